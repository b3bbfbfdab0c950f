"""Sentences and verdicts: they must follow from the numbers, whatever the numbers are."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from rslib.runs.grid import Runs
from rslib.runs.studies import MEMORY_SELECTION, TINY_MEMORY
from rslib.show import tables, verdicts
from rslib.show.published import welch_tests


def rows(mcts=(0.98, 0.97), ets=(0.96, 0.98), dataset="mnist", others=()):
    """Two methods on two seeds; `others`, methods that do worse, complete the paper's table."""
    found = []
    for label, values in (("MCTS", mcts), ("ETS", ets), *((o, (0.8, 0.8)) for o in others)):
        for seed, acc in enumerate(values, start=1):
            line = dict(dataset=dataset, label=label, seed=seed, acc=acc, bwt=-0.02, converged=True)
            found.append(line | dict(scenario="task", selection="uniform", memory_size=10))
    return pd.DataFrame(found)


def compared(found, study=MEMORY_SELECTION):
    """The rows as a grid returns them, beside the paper's."""
    return verdicts.compare(study, as_runs(found))


def as_runs(found):
    seeds = found["seed"] if len(found) else []
    cells = [SimpleNamespace(environment=SimpleNamespace(seed=seed)) for seed in seeds]
    return Runs(cells, found, None)


def test_words_follow_the_numbers():
    """Broken: the text under a figure says what the paper found, not what was found here."""
    ahead = verdicts.paired_text(rows(), against=("ETS",))
    assert "0.50 points ahead of ETS (97.00 ± 1.00 %), better on 1 of 2 seeds" in ahead
    behind = verdicts.paired_text(rows(mcts=(0.90, 0.91)), against=("ETS",))
    assert "6.50 points behind ETS" in behind and "better on 0 of 2 seeds" in behind
    assert "level with" in verdicts.paired_text(rows(mcts=(0.96, 0.98)), against=("ETS",))


def test_the_best_moment_in_the_mean_and_on_single_seeds():
    """Broken: opposite effects on two seeds cancel in the mean, and nobody is told (Figure 1)."""
    acc = {"at task 2": (0.90, 0.95), "at task 3": (0.96, 0.91)}
    found = [dict(label=m, seed=s, acc=a) for m, both in acc.items() for s, a in enumerate(both)]
    said = verdicts.moments(pd.DataFrame(found))
    assert "**at task 3** (93.50 %), the worst at task 2 (92.50 %): 1.00 points apart" in said
    assert "On single seeds it is 4.00 to 6.00 points" in said
    assert "the best moment is: at task 3, at task 2." in said
    one = verdicts.moments(pd.DataFrame([line for line in found if line["seed"] == 0]))
    assert "6.00 points apart, on one seed" in one


def test_words_without_something_to_compare():
    """Broken: one seed, a missing method or a diverged run crashes the last cell of a notebook."""
    one = verdicts.paired_text(rows(mcts=(0.98,), ets=(0.96,)), against=("ETS", "Random"))
    assert "no test" in one and "Random" not in one
    assert "MCTS has not been run" in verdicts.paired_text(rows().query("label == 'ETS'"))
    lost = rows().assign(converged=lambda r: r["seed"] == 1)
    assert "better on 1 of 1 seeds" in verdicts.paired_text(lost, against=("ETS",))


def test_the_caption_of_a_picture_follows_its_numbers():
    """Broken: the text says the schedule matters where the selection does, or miscounts the seeds."""
    worse = rows(mcts=(0.90, 0.92), ets=(0.90, 0.90)).assign(selection="kmeans")
    joint = rows()[:1].assign(label="Joint", acc=0.99)
    both = pd.concat([rows(), worse, joint], ignore_index=True)
    table = tables.summary_table(both, ("selection", "label"), paper_table="memory_selection")
    said = verdicts.what_moves(table, "selection")
    assert "Dots: 2 seeds" in said and "Joint (1 seed)" in said and "BFS" not in said
    assert "hollow: the paper's" in said
    assert "**schedule** moves ACC by up to 1.00 points: with k-means, MCTS 91.00 %" in said
    assert "**selection** moves ACC by up to 7.00 points: with ETS, Uniform 97.00 % against" in said
    lost = both.assign(acc=float("nan"), bwt=float("nan"), converged=False)
    nothing = tables.summary_table(lost, ("selection", "label"), paper_table="memory_selection")
    assert "No run" in verdicts.what_moves(nothing, "selection")


def test_verdict_rule():
    """Broken: a cell is called reproduced outside the paper's mean +- 2 std, or not inside it."""
    assert verdicts.verdict(97.0, 97.93, 0.56) == "reproduced"  # 0.93 <= 1.12
    assert verdicts.verdict(96.8, 97.93, 0.56) == "lower by 1.13"
    assert verdicts.verdict(99.1, 97.93, 0.56) == "higher by 1.17"
    assert verdicts.verdict(99.90, 99.75, 0.0) == "reproduced"  # within the quarter point
    assert verdicts.verdict(np.nan, 97.93, 0.56) == "-"
    assert verdicts.verdict(97.0, np.nan, np.nan) == "-"
    assert verdicts.verdict(97.0, 97.93, 0.56, n=1) == "-"  # one seed says nothing of a mean


def test_only_cells_the_paper_has_are_judged():
    """Broken: an embedded dataset is judged against a number that is not its own."""
    judged = compared(rows()).cells
    assert set(judged.frame["schedule"]) == {"MCTS", "ETS"} and len(judged.frame) == 4
    mcts = judged.frame.query("schedule == 'MCTS' and metric == 'ACC'").iloc[0]
    assert mcts["paper"].startswith("97.93") and mcts["verdict"] == "reproduced"
    assert set(judged.frame["dataset"]) == {"Split MNIST"}  # in the paper's words
    assert "of 4** cells are reproduced" in verdicts.count_reproduced(judged)
    ours = compared(rows(dataset="digits"))
    assert "No cell has a counterpart" in verdicts.count_reproduced(ours.cells)
    assert ours.judged() == []


def test_winners_are_the_best_means_here_and_in_the_paper():
    """Broken: a table says MCTS wins as published when equal shares won here, or after one seed."""

    def winners(others=("Random", "Heur-GD"), **changes):
        return compared(rows(others=others, **changes)).winners.frame

    (won,) = winners().to_dict("records")
    assert (won["best here"], won["best in the paper"]) == ("MCTS 97.50", "MCTS 97.93")
    assert won["selection"] == "Uniform" and won["verdict"] == "reproduced"
    (lost,) = winners(mcts=(0.90, 0.91)).to_dict("records")
    assert (lost["best here"], lost["verdict"]) == ("ETS 97.00", "another")
    said = [
        count for _, count in compared(rows((0.90, 0.91), others=("Random", "Heur-GD"))).judged()
    ]
    assert any("**0 of 1** winners" in count for count in said)
    assert winners(mcts=(0.98,))["verdict"].tolist() == ["-"]
    assert winners(mcts=()).empty and winners(others=("Random",)).empty  # not all run
    assert winners(mcts=(np.nan, np.nan)).empty  # nor has it where nothing converged


def test_verdict_rule_of_a_test():
    """Broken: a significant result is called reproduced that is not one here, or points elsewhere."""
    judge = verdicts.test_verdict
    assert judge(3.0, 0.01, 2.5, 0.04) == "reproduced"
    assert judge(0.5, 0.60, -0.7, 0.50) == "reproduced"  # neither found anything
    assert judge(-3.0, 0.01, 2.5, 0.04) == "significant the other way"
    assert judge(1.0, 0.30, 2.5, 0.04) == "not significant here"
    assert judge(3.0, 0.01, 1.0, 0.30) == "only here significant"
    assert judge(-3.0, 0.01, 1.0, 0.30) == "only here significant, other sign"
    assert judge(np.nan, np.nan, 2.5, 0.04) == "-"


def test_tests_beside_the_papers():
    """Broken: our test is judged against another comparison's, or against a dataset's it is not."""
    found = compared(rows())
    (line,) = [t for t in found.tests.frame.to_dict("records") if t["comparison"] == "MCTS vs ETS"]
    theirs = welch_tests().query(
        "table == 'memory_selection' and dataset == 'mnist' and group == 'Uniform'"
        " and comparison == 'MCTS vs ETS'"
    )
    assert line["selection"] == "Uniform"
    assert line["paper"] == f"t = {theirs['t'].item():.2f}, p = {theirs['p'].item():.3f}"
    assert any("of 1** tests are reproduced" in count for _, count in found.judged())


def test_side_by_side_saves_cells_and_tests(tmp_path):
    """Broken: 09 shows a table that is not in tables/paper, or tests that a study does not have."""
    whole = rows(others=("Random", "Heur-GD"))
    said = verdicts.side_by_side(MEMORY_SELECTION, as_runs(whole), tmp_path)
    names = {path.name for path in (tmp_path / "tables" / "paper").iterdir()}
    kinds = ("", "_verdicts", "_winners", "_welch", "_welch_verdicts")
    assert {f"memory_selection{kind}.tex" for kind in kinds} <= names
    assert "cells are reproduced" in said and "tests are reproduced" in said
    untested = replace(MEMORY_SELECTION, against=())
    assert "tests are" not in verdicts.side_by_side(untested, as_runs(rows()), tmp_path)
    nothing = verdicts.side_by_side(TINY_MEMORY, as_runs(pd.DataFrame()), tmp_path)
    assert "Not run" in nothing
