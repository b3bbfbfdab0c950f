"""Searches beside luck: which rows make one line, and what a line says of itself."""

import pandas as pd
import pytest

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


@pytest.fixture
def two_settings(tmp_path, monkeypatch):
    """Searches on one dataset with as many tasks and two budgets; of the second little is done."""
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path))
    (tmp_path / "searches").mkdir()
    names = ("Random-best", "MCTS", "Surrogate", "Without model")
    for name, trainings, n in (("20tasks", 370, 4), ("20tasks-long", 1890, 2)):
        lines = [
            {"environment": e, "dataset": "permuteddigits", "n_tasks": 20.0, "search": search}
            | {"trainings": trainings, "acc": 0.5 + 0.01 * i + 0.0001 * (e % 3) * i}
            for e in range(n)
            for i, search in enumerate(names)
        ]
        file = tmp_path / "searches" / f"permuteddigits-{name}.csv"
        pd.DataFrame(lines).to_csv(file, index=False)


def test_settings_with_one_dataset_are_told_apart(two_settings):
    """Broken: two lines read alike, and a setting of which two environments are done looks whole."""
    frame = searches.at_equal_cost().frame.query("Search == 'Surrogate'")
    assert frame[["Environments", "Trainings"]].to_numpy().tolist() == [["4", "370"], ["2", "1890"]]
    from tools import facts

    said = facts.surrogate(searches.at_equal_cost())
    assert "**ahead** on Permuted Digits (20 tasks, 370 trainings, 4 environments) +2.0" in said
    assert "too few to judge on Permuted Digits (20 tasks, 1890 trainings, 2 environments)" in said


def test_what_the_model_adds_is_its_own_difference(two_settings):
    """Broken: a reader subtracts two differences to luck, which have no interval together."""
    table = searches.model_alone()
    assert table.frame["Trainings"].tolist() == ["370", "1890"]
    # Below its control by 1 point and 0.01 for every point of e % 3, which is 0, 1, 2 and 0.
    assert table.frame["difference"].tolist()[0] == "-1.01"
    assert table.frame["ahead on"].tolist() == ["0 of 4", "0 of 2"]
