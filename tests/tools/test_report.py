"""The report: a site that works offline, has no dead link, and tells a failed run from a good one."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import report

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def output(**data):
    return new_output("display_data", data={k.replace("_", "/", 1): v for k, v in data.items()})


def write(file: Path, *cells, **metadata) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells), metadata=metadata), file)


def code(*outputs, source="", tags=()):
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


@pytest.fixture
def site(tmp_path):
    next_one = new_markdown_cell("**Next:** [02](02_search.ipynb), [code](../rslib/tree.py)")
    write(tmp_path / "default/01_moment.ipynb", new_markdown_cell("# 01 · Moment"), next_one)
    write(tmp_path / "default/02_search.ipynb", new_markdown_cell("# 02 · Search"))
    write(tmp_path / "mnist/01_moment.ipynb", new_markdown_cell("# 01 · Moment"), next_one)
    return tmp_path


def pages_of(site: Path) -> dict[str, str]:
    report.build(site)
    return {p.relative_to(site).as_posix(): p.read_text() for p in site.rglob("*.html")}


def test_no_link_is_dead_and_notebooks_lead_to_pages(site):
    """Broken: a reader clicks and finds nothing, or gets the JSON of a notebook."""
    pages = pages_of(site)
    assert {"index.html", "glossary.html", "reproducibility.html"} < set(pages)
    for place, page in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]*)"', page):
            if re.match("data:|https?:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (site / place).parent / unquote(name) if name else site / place
            assert target.is_file(), (place, link)
            assert target.suffix != ".ipynb", (place, link)
            if anchor:
                assert f'id="{anchor}"' in target.read_text(), (place, link)
    # The folder of MNIST has no second notebook, so the link leads to the one that exists.
    assert 'href="../default/02_search.html"' in pages["mnist/01_moment.html"]
    assert "tree.py" not in pages["mnist/01_moment.html"]
    assert 'rel="next"' in pages["default/01_moment.html"]
    assert 'rel="prev"' in pages["default/02_search.html"]


def test_a_page_needs_no_script_and_shows_formulas(tmp_path):
    """Broken: offline, a reader sees raw TeX, or an empty box where a script should be."""
    text = "# 01\n\nA share $a_i$ of $$\\frac{M}{k}$$ costs `$5` and $6."
    write(tmp_path / "default/01_x.ipynb", new_markdown_cell(text))
    page = pages_of(tmp_path)["default/01_x.html"]
    assert page.count("<math") == 2 and "<mfrac>" in page and "<script" not in page
    assert "<code>$5</code> and $6." in page  # money is not a formula


def test_a_widget_shows_its_figure_and_a_bar_its_end(tmp_path):
    """Broken: an exported notebook shows an empty widget, or a finished bar at 0 %."""
    bar = {report.WIDGET: {"model_id": "box"}, "text/plain": "  0%| 0/8"}
    states = {
        "box": {"state": {"children": ["IPY_MODEL_a", "IPY_MODEL_b"]}},
        "a": {"state": {"value": "cells: 100%"}},
        "b": {"state": {"value": " 8/8 [00:02]"}},
    }
    widget = {report.WIDGET: {"model_id": "x"}, "image/png": PNG, "text/plain": "Player()"}
    stream = new_output("stream", name="stderr", text="run:  10%\rrun: 100%\ndone\n")
    cells = code(
        new_output("display_data", data=bar), new_output("display_data", data=widget), stream
    )
    kept = {report.WIDGET_STATE: {"state": states}}
    write(tmp_path / "default/01_x.ipynb", new_markdown_cell("# 01"), cells, widgets=kept)
    page = pages_of(tmp_path)["default/01_x.html"]
    assert "cells: 100%" in page and "8/8" in page and "0/8 " not in page
    assert "model_id" not in page and page.count("<img") == 1
    assert "run: 100%" in page and "10%" not in page.replace("100%", "")


def test_an_image_is_described_by_the_text_before_it(tmp_path):
    """Broken: someone who cannot see a figure is told nothing about it."""
    caption = new_markdown_cell("## Figure\n\nThe *best* moment, see [02](02.ipynb).\n\nMore.")
    write(tmp_path / "default/01_x.ipynb", caption, code(output(image_png=PNG)))
    page = pages_of(tmp_path)["default/01_x.html"]
    assert 'alt="The best moment, see 02."' in page


def test_pages_name_no_folder_of_this_machine(tmp_path):
    """Broken: a published page tells where on a disk it was made."""
    out = "/home/somebody/results"
    cells = code(output(text_plain=f"{report.REPOSITORY}/rslib and {out}/figures"))
    given = code(source=f'out_dir = "{out}"', tags=["injected-parameters"])
    write(tmp_path / "default/01_x.ipynb", given, cells, papermill={"parameters": {"out_dir": out}})
    page = pages_of(tmp_path)["default/01_x.html"]
    assert "somebody" not in page and str(report.REPOSITORY) not in page
    assert "./rslib and ./figures" in page


def test_the_index_says_what_is_toy_data_and_which_run_failed(tmp_path):
    """Broken: toy digits pass for a result, or a page from before a failure passes for today's."""
    table = "<table><tr><th>dataset</th><td style='text-align: left'>Split MNIST (real)</td></tr>"
    table += "<tr><th>seeds</th><td style='text-align: left'>1, 2, 3</td></tr></table>"
    for folder in ("mnist", "digits"):
        cells = new_markdown_cell("# 01 · Moment"), code(output(text_html=table))
        write(tmp_path / folder / "01_x.ipynb", *cells)
    good = pages_of(tmp_path)
    assert "Split MNIST: real data, at most 3 seeds" in good["index.html"]
    assert "Split Digits: embedded toy data, at most 3 seeds" in good["index.html"]
    assert "failed" not in re.sub("<style>.*?</style>", "", good["index.html"], flags=re.S)
    write(tmp_path / "mnist/01_x.failed.ipynb", new_markdown_cell("# an error"))
    write(tmp_path / "mnist/02_y.failed.ipynb", new_markdown_cell("# 02 · Never good"))
    after = pages_of(tmp_path)
    assert after["index.html"].count("its last run failed") == 2
    assert "an error" not in after["mnist/01_x.html"] and "went through" in after["mnist/01_x.html"]
    assert "Never good" in after["mnist/02_y.failed.html"]
