"""What the notebooks 00 to 08 teach: a formula, a step by hand that is asserted, a figure of their own.

The notebooks are read here, not run: `test_notebooks.py` runs them, and with them the assertions.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("0[0-8]_*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem[:2])


def cells(notebook):
    return nbformat.read(notebook, as_version=4).cells


def numbers(text: str) -> set[float]:
    return set(map(float, re.findall(r"\d+\.\d+|\d+", text)))


def names_from_rslib(notebook) -> set[str]:
    """What the notebook imports from the library."""
    names = set()
    for cell in cells(notebook):
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rslib"):
                names |= {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.Import):
                names |= {a.asname or a.name for a in node.names if a.name.startswith("rslib")}
    return names


@each_notebook
def test_the_idea_is_also_a_formula(notebook):
    """Broken: one reads what came out, and cannot say what was computed."""
    words = [c.source for c in cells(notebook) if c.cell_type == "markdown"]
    assert any(re.search(r"\$.+?\$|\\\(.+?\\\)", text, re.DOTALL) for text in words)


@each_notebook
def test_a_step_by_hand_is_asserted_against_the_library(notebook):
    """Broken: the numbers worked out in the text are not those that the library computes.

    A cell below a text "by hand" uses the library, asserts, and has at least two of the text's numbers.
    """
    library, text, held = names_from_rslib(notebook), "", []
    for cell in cells(notebook):
        if cell.cell_type == "markdown":
            text = f"{text} {cell.source}" if text and cell.source[0] != "#" else cell.source
            text = text if "by hand" in text.lower() else ""
        elif text:
            tree = ast.parse(cell.source)
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            asserts = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
            same = numbers(cell.source) & numbers(text)
            held.append(asserts and used & library and len(same) >= 2)
    assert any(held)


@each_notebook
def test_a_figure_is_drawn_in_the_notebook(notebook):
    """Broken: to change a figure one has to look for it in the library."""
    code = [c.source for c in cells(notebook) if c.cell_type == "code"]
    # In one cell, or in several until the next figure.
    figures = re.split(r"^ *figure\b.* = ", "\n".join(code), flags=re.M)
    assert any("style.panels(" in part and "style.savefig(" in part for part in code + figures)


@each_notebook
def test_the_parameters_are_folded(notebook):
    """Broken: the first thing a reader sees is a list of settings."""
    first = next(c for c in cells(notebook) if c.cell_type == "code")
    assert first.metadata.get("jupyter", {}).get("source_hidden")
