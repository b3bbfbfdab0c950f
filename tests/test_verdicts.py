"""Sentences and verdicts: they must follow from the numbers, whatever the numbers are."""

import numpy as np
import pandas as pd

from rslib import tables, verdicts


def rows(mcts=(0.98, 0.97), ets=(0.96, 0.98), dataset="mnist"):
    found = []
    for label, values in (("MCTS", mcts), ("ETS", ets)):
        for seed, acc in enumerate(values, start=1):
            line = dict(dataset=dataset, label=label, seed=seed, acc=acc, bwt=-0.02, converged=True)
            found.append(line | dict(scenario="task", selection="uniform", memory_size=10))
    return pd.DataFrame(found)


def test_words_follow_the_numbers():
    """Broken: the text under a figure says what the paper found, not what was found here."""
    ahead = verdicts.compared(rows(), against=("ETS",))
    assert "0.50 points ahead of ETS (97.00 ± 1.00 %), better on 1 of 2 seeds" in ahead
    behind = verdicts.compared(rows(mcts=(0.90, 0.91)), against=("ETS",))
    assert "6.50 points behind ETS" in behind and "better on 0 of 2 seeds" in behind
    assert "level with" in verdicts.compared(rows(mcts=(0.96, 0.98)), against=("ETS",))


def test_words_without_something_to_compare():
    """Broken: one seed, a missing method or a diverged run crashes the last cell of a notebook."""
    one = verdicts.compared(rows(mcts=(0.98,), ets=(0.96,)), against=("ETS", "Random"))
    assert "no test" in one and "Random" not in one
    assert "MCTS has not been run" in verdicts.compared(rows().query("label == 'ETS'"))
    lost = rows().assign(converged=lambda r: r["seed"] == 1)
    assert "better on 1 of 1 seeds" in verdicts.compared(lost, against=("ETS",))


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


def test_against_paper_takes_only_cells_the_paper_has():
    """Broken: an embedded dataset is judged against a number that is not its own."""
    table = tables.summary_table(rows(), ("selection", "label"), paper_table="memory_selection")
    judged = verdicts.against_paper(table, "test")
    assert set(judged.frame["label"]) == {"MCTS", "ETS"} and len(judged.frame) == 4
    mcts = judged.frame.query("label == 'MCTS' and metric == 'ACC'").iloc[0]
    assert mcts["paper"].startswith("97.93") and mcts["verdict"] == "reproduced"
    assert "of 4** cells are reproduced" in verdicts.counted(judged)
    ours = tables.summary_table(
        rows(dataset="digits"), ("selection", "label"), paper_table="memory_selection"
    )
    assert "No cell has a counterpart" in verdicts.counted(verdicts.against_paper(ours, "test"))
