"""REPRODUCIBILITY.md: written from rows, honest where there are none, and where ours differ."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sp

from rslib import ScheduleTree, files, run_policy
from rslib import environment as environment_module
from rslib.complete_tree import CompleteTree, save_tables
from rslib.data import fetch
from rslib.runs import params, studies
from rslib.runs.grid import Runs
from rslib.schedule import UNTRAINED
from rslib.show import tables, verdicts
from rslib.store import Store
from rslib.store.rows import Row
from tools import costs, reproducibility


@pytest.fixture
def nothing_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path / "results"))
    return Store()


def test_without_rows_every_line_says_not_run(nothing_run, tmp_path):
    """Broken: a table that was not run has a verdict, or the report needs rows to be written."""
    text = reproducibility.report(tmp_path)
    for study in studies.STUDIES:
        (line,) = [x for x in text.splitlines() if x.startswith(f"| {study.place}: ")]
        assert f"| `{study.notebook}_" in line and "| not run |" in line
    assert " agree" not in text.split("## What differs")[0].split("*Means*")[0]
    assert "0 trainings, 0.0 core-hours" in text


@pytest.mark.slow  # every run of the shipped rows is looked up again
def test_the_page_says_what_the_rows_say(only_shipped, tmp_path):
    """Broken: results/, docs/differences.md or the report's words have changed and REPRODUCIBILITY.md
    has not: run `make ship`."""
    written = (files.REPOSITORY / "REPRODUCIBILITY.md").read_text()
    assert reproducibility.report(tmp_path) == written


@pytest.fixture
def only_shipped(tmp_path, monkeypatch):
    """A clone with an empty store, without data."""
    monkeypatch.setenv("RSLIB_RESULTS", str(files.REPOSITORY / "results"))
    monkeypatch.setattr(fetch, "OWN", tmp_path / "data")
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    return Store()


def test_costs_are_counted_from_rows(only_shipped):
    """Broken: the account adds what was not run, or flatters us with what theirs would have cost."""
    mnist = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "01")
    text = costs.account([mnist])
    # Five seeds, four schedules each. A seed's nodes: task 1, then replay at task 2 has 4 of its own,
    # at task 3 also 4 (it shares none of those), at task 4 three more, at task 5 two more.
    line = next(line for line in text.splitlines() if line.startswith("| `01`"))
    schedules, trainings, hours, released, paper = line.strip("| ").split(" | ")[2:]
    assert (schedules, trainings) == ("20", str(5 * 14))
    keys = {cell.environment.key for cell in studies.SINGLE_TASK_REPLAY.cells(mnist)}
    seconds = sum(row.seconds for key in keys for row in only_shipped.rows(key).values())
    assert 0 < float(hours) <= seconds / 3600
    assert float(released) == pytest.approx(20 * 5 * 23.5 / 3600, abs=0.05)
    assert float(paper) == pytest.approx(20 * 1.5 / 60, abs=0.05)


def test_what_is_left_is_counted(nothing_run):
    """Broken: a run that is stored is called left, or its cost is not the mean of those stored."""
    smoke = params.check(dict(dataset="digits", profile="smoke", n_jobs=1), "01")
    environment = smoke.environment(1)
    tree = ScheduleTree(environment)
    run_policy(tree, "ets")
    for path, row in tree.rows().items():
        row = replace(row, seconds=0.0 if path == UNTRAINED else 1800.0)
        nothing_run.put(environment.key, environment.as_stored(), path, row)
    (ets,) = [
        cell for cell in studies.ETS_HEURISTIC.cells(smoke) if str(cell).startswith("ets on")
    ][:1]
    walked = costs._walked(Runs([ets], pd.DataFrame(), nothing_run), ets)
    text = "\n".join(costs._left([smoke], walked))
    # Task 1's memory at one of four moments, two seeds: 8 schedules of 5 tasks, half an hour each.
    assert "| Figure 1 | Split Digits | 8 | 20.0 |" in text
    assert (
        "| App. C.9 | Split Digits | 9 |" in text
    )  # five policies, two seeds, but not ETS on seed 1
    # Trees of 1 + 1 + 3 + 30 + 1050 trainings, which the paper has on every seed and our profile not.
    assert "| Figure 4, Table 1: BFS on the other seeds | Split Digits | 2 | 1085.0 |" in text


def test_what_a_search_of_twenty_tasks_would_cost_is_said(only_shipped):
    """Broken: a search that was not run says its cost only where no schedule was run either."""
    cifar = params.check(dict(dataset="cifar100", profile="paper", n_jobs=1), "02")
    environment = cifar.environment(1)
    hour = {(environment, "-"): Row(np.zeros(20), np.zeros(20), seconds=3600.0)}
    for nodes, each in ((hour, 20.0), ({}, 20 * 82 / 3600)):
        text = "\n".join(costs._left([cifar], nodes))
        assert f"Split CIFAR-100 {each:.1f} a schedule" in text and "miniImagenet 0.3" in text


def test_costs_of_rows_of_another_torch_are_counted_too(only_shipped, monkeypatch):
    """Broken: after an update of torch, whose version is in every key, no report can be written."""
    mnist = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "01")
    monkeypatch.setattr(costs, "STUDIES", (studies.SINGLE_TASK_REPLAY,))
    before = costs.account([mnist])
    monkeypatch.setattr(environment_module.torch, "__version__", "9.9.9")
    assert costs.account([mnist]) == before


def test_figure_1_is_told_in_numbers(only_shipped):
    """Broken: that our means show far less than the paper's goes unsaid."""
    mnist = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "09")
    text = "\n".join(reproducibility.figure_1([mnist]))
    assert all(f"| at task {t} |" in text for t in (2, 3, 4, 5))
    assert "In the paper's means 4.84 points lie between the best moment, at task 5" in text
    assert reproducibility.figure_1([]) == []


def test_figure_1_counts_the_seeds_of_each_mean(monkeypatch):
    """Broken: a mean of the seeds that converged says that it is of all."""
    mnist = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "09")
    accs = {"at task 2": [0.9, 0.8, float("nan")], "at task 3": [0.7, float("nan"), float("nan")]}
    rows = [
        {"seed": seed, "label": label, "acc": acc}
        for label, values in accs.items()
        for seed, acc in enumerate(values)
    ]
    found = SimpleNamespace(rows=pd.DataFrame(rows))
    monkeypatch.setattr(studies, "stored", lambda *_: found)
    text = "\n".join(reproducibility.figure_1([mnist]))
    assert "| at task 2 | 85.00 ± 5.00 | 2 |" in text and "| at task 3 | 70.00 | 1 |" in text


def comparison(study, rows):
    """A study's rows beside the paper's."""
    cells = [SimpleNamespace(environment=SimpleNamespace(seed=seed)) for seed in rows["seed"]]
    return verdicts.compare(study, Runs(cells, rows, None))


def rows_of(label: str, acc: list[float], dataset="mnist", converged=True) -> pd.DataFrame:
    rows = pd.DataFrame({"seed": range(10, 10 + len(acc)), "acc": acc})
    rows = rows.assign(dataset=dataset, label=label, bwt=0.0, converged=converged, memory_size=10)
    return rows.assign(scenario="task", selection="uniform", replay="er")


def judged(label: str, acc: list[float], dataset="mnist", converged=True):
    """Rows of one schedule of Appendix C.9, judged against the paper's."""
    return comparison(studies.ETS_HEURISTIC, rows_of(label, acc, dataset, converged))


def test_a_difference_is_told_seed_by_seed(monkeypatch):
    """Broken: a cell that is different goes unmentioned, or one that is not is excused."""
    reason = {"Split MNIST, App. C.9, MCTS": "A\nreason.", "Split MNIST, Random": "Another."}
    monkeypatch.setattr(reproducibility, "_sections", lambda mark: reason)
    off = judged("MCTS", [0.90, 0.91, 0.92])  # the paper has 97.93 +- 0.56
    heading, line, _ = reproducibility.means_that_differ([off, judged("ETS", [0.965] * 5)])
    assert "different" in heading and "**Split MNIST, MCTS** (App. C.9, ACC): -6.93 [" in line
    assert "90.00, 91.00, 92.00. *A reason.*" in line
    assert reproducibility.means_that_differ([judged("ETS", [0.96, 0.97, 0.94])]) == []
    elsewhere = judged("MCTS", [0.5, 0.51, 0.52], dataset="notmnist")  # another dataset's reason
    assert "Not looked into" in reproducibility.means_that_differ([elsewhere])[1]


def test_a_run_that_did_not_converge_is_not_listed_as_a_result():
    """Broken: the seeds listed are not those of the mean they stand beside."""
    failed = judged("MCTS", [0.90, 0.91, 0.90, 0.10], converged=[True, True, True, False])
    line = reproducibility.means_that_differ([failed])[1]
    assert "90.00, 91.00, 90.00 (1 did not converge)" in line


def test_the_rule_in_the_text_is_the_rule_that_is_applied(nothing_run, tmp_path):
    """Broken: a reader judges the verdicts by another rule than made them."""
    text = reproducibility.report(tmp_path)
    assert verdicts.RULE in text and f"Fewer than {verdicts.FEWEST} seeds" in text
    # Five seeds each with population std 1: t(8) times the standard error sqrt(1/4 + 1/4).
    shows = sp.t.ppf(0.975, 8) * 0.5**0.5
    assert f"shows from {shows:.2f} of their" in text
    assert verdicts.verdict(90 + shows + 0.01, 1, 5, 90, 1)[0] == "different"
    assert verdicts.verdict(90 + shows - 0.01, 1, 5, 90, 1)[0] != "different"
    above = float(re.search(r"is above ([\d.]+) points", text).group(1))
    assert above == pytest.approx(2 / sp.t.ppf(0.95, 4), abs=0.005)


EFFECT = re.compile(r"(?:^|[;:] )([^;:]+): ([+-]\d+\.\d\d) \[(-?\d+\.\d\d), (-?\d+\.\d\d)\]")


def test_the_numbers_that_people_wrote_are_those_of_the_rows(only_shipped):
    """Broken: docs/differences.md claims an effect that the shipped rows do not have."""
    known = {}
    mnist, *others = (
        params.check(dict(dataset=name, profile="paper", n_jobs=1), "09")
        for name in ("mnist", "notmnist")
    )
    for study in studies.STUDIES:
        runs = studies.stored(study, [mnist, *others])
        for cell in (
            verdicts.compare(study, runs).cells.values.to_dict("records") if len(runs) else ()
        ):
            if cell["metric"] == "acc":
                keys = ["dataset", *study.row_keys]
                place = [
                    study.place.split(",")[0],
                    *(tables.printed_name(k, cell[k]) for k in keys),
                ]
                known[", ".join(place)] = (cell["difference"], cell["low_95"], cell["high_95"])
    permuted = params.check(dict(dataset="permutedmnist", profile="paper", n_jobs=1), "09")
    pairs = {
        "": (mnist, "unbalanced", "uniform"),
        "k-means ": (mnist, "kmeans++", "kmeans"),
        "Permuted MNIST ": (permuted, "unbalanced", "uniform"),
    }
    for name, (dataset, *pair) in pairs.items():
        pools = studies.stored(studies.POOLS, [dataset]).rows
        for label in ("ETS", "Random"):
            own = pools[pools["label"] == label].pivot(
                index="seed", columns="selection", values="acc"
            )
            own = own[pair].dropna()
            test = sp.ttest_rel(own[pair[0]], own[pair[1]])
            gap, ends = (own[pair[0]] - own[pair[1]]).mean(), test.confidence_interval()
            known[f"{name}{label}"] = (100 * gap, 100 * ends.low, 100 * ends.high)
    protocol = reproducibility._sections("\n## ")["Protocol"]
    said = 0
    for item in re.split(r"\n\d+\. ", protocol)[1:]:
        item = " ".join(item.split())
        for place, *numbers in EFFECT.findall(item):
            place = place.split(". ")[-1] if place.split(". ")[-1] in known else place
            expected = known[place]
            assert [float(n) for n in numbers] == pytest.approx(expected, abs=0.00501), place
            said += 1
        rest = EFFECT.sub("", item)
        assert "no rows are kept" in item or not re.search(r"\d\.\d\d", rest), item
    assert said >= 10


def test_a_rule_is_judged_where_nothing_of_it_was_chosen(nothing_run, tmp_path):
    """Broken: a constant schedule is chosen on the trees it is scored on, as the oracle's is."""
    # Three tasks have three schedules. The first is best in even environments, the last in odd ones.
    trees = []
    for number in range(4):
        best, worst = (0.9, 0.6) if number % 2 == 0 else (0.6, 0.9)
        ends = np.array([[best] * 3, [0.7] * 3, [worst] * 3])
        accuracies = np.vstack([[1, 0, 0], [1, 1, 0], ends])
        trees.append(CompleteTree("digits", number, accuracies, accuracies))
    save_tables(trees, tmp_path / "results" / "trees" / "digits.csv.gz")
    table = reproducibility.rules_on_trees()
    acc = dict(zip(table.frame["Rule"], table.frame["ACC (%)"], strict=True))
    assert acc["Oracle"] == "90.00" and acc["Best constant"] == "60.00" and acc["ETS"] == "70.00"
    # The mean of all schedules is 73.33 everywhere.
    assert table.frame["difference"].tolist() == ["-3.33", "-3.33", "-13.33", "+16.67"]
