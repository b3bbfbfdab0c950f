"""Do searches beat luck? MCTS against random schedules by tree size, and searches at equal cost.

All from stored rows: `mcts_against_luck` from the store and `results/`, the others from
`results/searches`, which `make searches` fills. Differences are paired, in points, with 95 % intervals;
`figures.forest` draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from rslib import files
from rslib.runs import studies
from rslib.show import published, tables
from rslib.show.tables import Table, plain_table

LUCK = "Random-best"
CONTROL = "Without model"  # draws among the surrogate's own candidates


def mcts_against_luck() -> Table:
    """ACC of MCTS and of the best of as many random schedules (100), per dataset and tree size."""
    shown, found = [], []
    pairs = studies.luck_pairs()
    # By the dataset, of which the title is only a name: two users' files may share it.
    for (name, n_tasks), part in pairs.groupby(["dataset", "n_tasks"], sort=False):
        dataset = published.dataset_name(name)
        acc = 100 * part.set_index("seed")[["MCTS", LUCK]]
        line = {"Dataset": dataset, "Tasks": n_tasks}
        shown.append(line | {search: f"{acc[search].mean():.2f}" for search in ("MCTS", LUCK)})
        alone = " (one seed)" if len(acc) == 1 else ""  # no interval can be drawn
        found.append({"tree": f"{dataset}, {n_tasks} tasks{alone}"} | _to_luck(acc, "MCTS"))
    return _table(shown, found, "MCTS against as many random schedules (100), paired by seed")


def at_equal_cost() -> Table:
    """ACC of each search and its difference to Random-best, in environments used for nothing else."""
    shown, found = [], []
    for dataset, n_tasks, trainings, acc in _settings():
        tree = f"{dataset}, {n_tasks} tasks, {trainings[LUCK]:.0f} trainings"
        for name in (LUCK, "MCTS", CONTROL, "Surrogate"):
            line = {"Dataset": dataset, "Tasks": n_tasks, "Environments": len(acc), "Search": name}
            line |= {"Trainings": f"{trainings[name]:.0f}", "ACC (%)": f"{acc[name].mean():.2f}"}
            shown.append(line)
            found.append({"tree": tree} | _to_luck(acc, name))
    return _table(
        shown, found, "Searches at equal cost; differences to Random-best, paired by environment"
    )


def model_alone() -> Table:
    """What the surrogate's model adds to its candidates: its ACC beside that of a draw among them."""
    shown, found = [], []
    for dataset, n_tasks, trainings, acc in _settings():
        spent = f"{trainings['Surrogate']:.0f}"
        shown.append({"Dataset": dataset, "Tasks": n_tasks, "Trainings": spent})
        name = {"tree": f"{dataset}, {n_tasks} tasks, {spent} trainings", "label": "Surrogate"}
        name["comparison"] = f"Surrogate vs {CONTROL}"
        found.append(name | tables.paired(acc["Surrogate"], acc[CONTROL]))
    caption = "The surrogate beside the same candidates without its model, paired by environment"
    return _table(shown, found, caption)


def _settings() -> Iterator[tuple[str, int, pd.Series, pd.DataFrame]]:
    """Of each setting: dataset, tasks, mean trainings by search, ACC by environment and search."""
    files_of_settings = (files.results() / "searches").glob("*tasks*.csv")
    for file in sorted(files_of_settings, key=lambda file: file.stem):  # a longer one comes later
        rows = pd.read_csv(file)
        acc = 100 * rows.pivot(index="environment", columns="search", values="acc")
        dataset, n_tasks = published.dataset_name(rows["dataset"][0]), int(rows["n_tasks"][0])
        yield dataset, n_tasks, rows.groupby("search")["trainings"].mean(), acc


def on_complete_trees() -> Table:
    """ACC on complete trees (the authors'), means over search seeds; UCT with several values of C."""
    file = files.results() / "searches" / "complete-trees.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame()
    shown, found = [], []
    for (dataset, budget), part in rows.groupby(["dataset", "budget"]) if len(rows) else ():
        keys = ["environment", "search"]
        acc = 100 * part.groupby(keys)["acc"].mean().unstack()  # (trees, searches)
        for name in sorted(acc, key=lambda label: acc[label].mean()):
            line = {"Dataset": published.dataset_name(dataset), "Rollouts": budget, "Search": name}
            shown.append(line | {"ACC (%)": f"{acc[name].mean():.2f}"})
            found.append({"tree": f"{dataset}, {budget} rollouts"} | _to_luck(acc, name))
    return _table(
        shown, found, "Searches on the authors' trees; differences to Random-best, paired by tree"
    )


def _to_luck(acc: pd.DataFrame, name: str) -> dict[str, Any]:
    """Compare a search with Random-best, which has no pairs with itself."""
    mine = acc[name] if name != LUCK else acc[name][:0]
    return {"comparison": f"{name} vs {LUCK}", "label": name} | tables.paired(mine, acc[LUCK])


def _table(shown: list[dict], found: list[dict], caption: str) -> Table:
    if not shown:
        return plain_table(pd.DataFrame(), caption)
    values = pd.DataFrame(found)
    return plain_table(pd.DataFrame(shown).assign(**tables.paired_texts(values)), caption, values)
