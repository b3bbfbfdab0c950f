"""Searches beside luck: which rows make one line, and what a line says of itself."""

import pandas as pd

from rslib.runs import studies
from rslib.show import searches


def test_two_users_files_of_one_title_are_two_lines(monkeypatch):
    """Broken: seeds of /a/mine.npz and of /b/mine.npz go into one mean."""
    lines = [
        (f"/{folder}/mine.npz", 5, seed, 0.5 + gap, 0.5)
        for folder, gap in {"a": 0.1, "b": -0.1}.items()
        for seed in (1, 2)
    ]
    columns = ["dataset", "n_tasks", "seed", "MCTS", "Random-best"]
    monkeypatch.setattr(studies, "luck_pairs", lambda: pd.DataFrame(lines, columns=columns))
    table = searches.mcts_against_luck()
    assert table.frame[["Dataset", "MCTS"]].to_numpy().tolist() == [
        ["mine", "60.00"],
        ["mine", "40.00"],
    ]
    assert table.values["pairs"].tolist() == [2, 2]
