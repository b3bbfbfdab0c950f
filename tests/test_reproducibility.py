"""REPRODUCIBILITY.md: written from rows, honest where there are none, and where ours differ."""

import re

import pandas as pd
import pytest

from rslib import reproducibility, studies, tables, verdicts
from rslib.reproducibility import ITEMS, REASONS, Judged
from rslib.store import Store


@pytest.fixture
def nothing_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path / "results"))
    return Store()


def test_without_rows_every_line_says_not_run(nothing_run):
    """Broken: a table nobody has run is called reproduced, or the report needs rows to be written."""
    text = reproducibility.report(nothing_run)
    for item in (item for item in ITEMS if item.study):
        assert f"| {item.what} | `{item.notebook}` | not run |" in text
    assert "reproduced |" not in text and "0 trainings, 0.0 core-hours" in text


def judged(label: str, acc: list[float], dataset="mnist", converged=True) -> Judged:
    """Rows of one schedule of Appendix C.8, judged against the paper's."""
    item = next(item for item in ITEMS if item.study is studies.transferred)
    rows = pd.DataFrame({"seed": range(10, 10 + len(acc)), "acc": acc})
    rows = rows.assign(dataset=dataset, label=label, bwt=0.0, converged=converged, memory_size=10)
    rows = rows.assign(scenario="task", selection="uniform", replay="er")
    values = tables.summary_table(rows, paper_table=item.paper_table).values
    return Judged(item, rows, values, *[pd.DataFrame()] * 3)


def test_a_difference_is_told_seed_by_seed():
    """Broken: a result that is off goes unmentioned, or one that is not is excused."""
    off = judged("Heur-GD", [0.98, 0.98, 0.98, 0.80, 0.98])  # mean 94.40, the paper has 97.90
    heading, line, _ = reproducibility._differences([off, judged("ETS", [0.965] * 5)])
    assert "differ" in heading and "**Split MNIST, Heur-GD** (App. C.8): lower by 3.50" in line
    assert "98.00, 98.00, 98.00, 80.00, 98.00; median 98.00" in line
    assert REASONS["Split MNIST", "App. C.8", "Heur-GD"] in line
    assert reproducibility._differences([judged("ETS", [0.965] * 5)]) == []
    (_, unknown, _) = reproducibility._differences([judged("Random", [0.5] * 5)])
    assert "Not looked into" in unknown
    elsewhere = judged("Heur-GD", [0.5] * 5, dataset="notmnist")  # the reason is not one for all
    assert "Not looked into" in reproducibility._differences([elsewhere])[1]


def test_a_run_that_did_not_converge_is_not_listed_as_a_result():
    """Broken: the seeds listed are not those of the mean they stand beside."""
    failed = judged("Heur-GD", [0.90, 0.90, 0.10], converged=[True, True, False])
    line = reproducibility._differences([failed])[1]
    assert "90.00, 90.00 (1 did not converge); median 90.00" in line


def test_the_rule_in_the_text_is_the_rule_that_is_applied(nothing_run):
    """Broken: a reader judges the verdicts by another rule than made them."""
    text = reproducibility.report(nothing_run)
    stds, almost = re.search(
        r"± (\d+) of its standard deviations, or within ([\d.]+) points", text
    ).groups()
    for room, std in ((int(stds) * 3.0, 3.0), (float(almost), 0.0)):
        assert verdicts.verdict(90 + room - 0.01, 90, std) == "reproduced"
        assert verdicts.verdict(90 + room + 0.01, 90, std).startswith("higher")
    level = float(re.search(r"significant \(p < ([\d.]+)\)", text).group(1))
    assert verdicts.test_verdict(3, level - 0.001, 3, level - 0.001) == "reproduced"
    assert verdicts.test_verdict(3, level + 0.001, 3, level - 0.001) == "not significant here"
