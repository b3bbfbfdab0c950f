"""What is shipped: it belongs to the results beside it, and names no machine and no moment."""

import json
import re

from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import ship


def test_shipped_artefacts_belong_to_the_results_beside_them():
    """Broken: figures, tables and executed notebooks are not from results/: run `make ship`."""
    assert ship.STAMP.read_text().strip() == ship.results_digest()


def test_executed_copies_stay_small_and_name_no_folder():
    """Broken: a clone grows with every `make ship`, or a copy tells where it was made."""
    copies = list(ship.EXECUTED.glob("*/*.ipynb"))
    assert copies and sum(copy.stat().st_size for copy in copies) < 8 * 2**20
    for copy in copies:
        assert str(ship.REPOSITORY) not in copy.read_text()


def test_links_of_executed_copies_lead_somewhere():
    """Broken: a visitor who reads a result and follows "next" finds nothing."""
    for copy in ship.EXECUTED.glob("*/*.ipynb"):
        cells = json.loads(copy.read_text())["cells"]
        text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (copy.parent / link).exists(), f"{copy}: {link}"


def executed(revision, duration, id_):
    table = (
        f"<table><tr><th>git revision</th><td>{revision}</td></tr><tr><th>torch</th></tr></table>"
    )
    data = {"text/html": table, "text/plain": f"git revision: {revision}\ntorch: 2"}
    cell = new_code_cell("p", id=id_, outputs=[new_output("display_data", data=data)])
    cell.metadata["papermill"] = {"duration": duration}
    return new_notebook(cells=[cell], metadata={"papermill": {"duration": duration}})


def test_two_runs_ship_the_same_bytes():
    """Broken: `make ship` changes files although no result has changed."""
    one, two = (
        ship.shippable(executed(*run)) for run in (("a1", 1.5, "x"), ("b2 (edited)", 2, "y"))
    )
    assert json.dumps(one) == json.dumps(two)
    assert "torch" in json.dumps(one) and "revision" not in json.dumps(one)
