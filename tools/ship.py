"""`make ship`: rewrite everything in the repository that follows from results/.

Figures and tables of the shipped datasets, executed copies of their notebooks in docs/executed,
REPRODUCIBILITY.md, and the README's picture and blocks of facts. Only shipped rows are read (the store
is an empty folder) and nothing is trained, so two runs write the same bytes.
`docs/executed/results.sha256` says which results were shipped; a test compares it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rslib.files import REPOSITORY, write_atomically
from rslib.store.rows import results_files

RESULTS = REPOSITORY / "results"
EXECUTED = REPOSITORY / "docs" / "executed"
STAMP = EXECUTED / "results.sha256"


def results_digest() -> str:
    """A digest of every file in results/ and of its place."""
    digest = hashlib.sha256()
    for file in sorted(RESULTS.rglob("*")):
        if file.suffix in (".csv", ".json", ".gz"):
            digest.update(f"{file.relative_to(RESULTS).as_posix()}\n".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def shippable(node: NotebookNode, beside: set[str] | None = None) -> NotebookNode:
    """A copy of an executed notebook without what differs from run to run or from machine to machine.

    beside: the names of the notebooks in its folder, which its links may lead to.
    """
    from tools.report import WIDGET, without_paths

    node = without_paths(node)
    node.metadata = {k: v for k, v in node.metadata.items() if k in ("kernelspec", "language_info")}
    for i, cell in enumerate(node.cells):
        cell["id"] = f"cell-{i}"
        if cell.cell_type == "markdown":
            cell.source = _relinked(cell.source, beside or set())
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(WIDGET, None)  # needs its kernel; the figure beside it is shown
            for kind in ("text/html", "text/plain"):
                if kind in data:
                    data[kind] = _without_machine(data[kind])
    return node


def _relinked(text: str, beside: set[str]) -> str:
    """Lead links from notebooks/ to where they lead from docs/executed/<dataset>/."""

    def moved(link: re.Match) -> str:
        target = link[1]
        if target.startswith("../"):
            return f"](../../{target})"
        if target.endswith(".ipynb") and target not in beside:
            return f"](../../../notebooks/{target})"
        return link[0]

    return re.sub(r"\]\(([^)#:]+)\)", moved, text)


def _without_machine(text: str) -> str:
    """Drop the lines of a provenance table that name this machine's revision of the code."""
    text = re.sub(r"<tr><th>git revision</th>.*?</tr>", "", text)
    return re.sub(r"^git revision: .*\n", "", text)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        # Before anything reads it: rows of this machine's own store are not shipped.
        os.environ |= {"RSLIB_STORE": f"{folder}/store", "RSLIB_OFFLINE": "1"}
        os.environ.pop("RSLIB_RESULTS", None)
        from tools import facts, paper_figures, reproducibility

        datasets = sorted({file.parent.name for file in results_files(RESULTS)})
        arguments = ["--profile", "paper", "--datasets", " ".join(datasets)]
        if paper_figures.main([*arguments, "--executed", f"{folder}/executed"]):
            return 1
        for old in EXECUTED.glob("*/*.ipynb"):
            old.unlink()
        for notebook in sorted(Path(folder, "executed").glob("*/*.ipynb")):
            beside = {other.name for other in notebook.parent.glob("*.ipynb")}
            copy = shippable(nbformat.read(notebook, as_version=4), beside)
            target = EXECUTED / notebook.parent.name / notebook.name
            write_atomically(target, nbformat.writes(copy).encode())
        reproducibility.main()
        facts.main()
    write_atomically(STAMP, f"{results_digest()}\n".encode())
    print(f"shipped {', '.join(datasets)}: figures/, tables/, docs/, REPRODUCIBILITY.md, README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
