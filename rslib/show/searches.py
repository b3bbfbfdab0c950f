"""Do searches beat luck? MCTS against random schedules by tree size, and searches at equal cost.

All from stored rows: `mcts_against_luck` from the store and `results/`, the others from
`results/searches`, which `make searches` fills. Differences are paired, in points, with 95 % intervals.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from rslib import files
from rslib.runs import studies
from rslib.show import published, tables
from rslib.show.tables import Table, plain_table


def mcts_against_luck() -> Table:
    """ACC of MCTS and of the best of as many random schedules (100), per dataset and tree size.

    Its values have the columns that `figures.forest` draws.
    """
    caption = (
        "MCTS against the best of as many random schedules (100), by tree size, paired by seed"
    )
    lines, shown = [], []
    for (dataset, n_tasks), part in studies.luck_pairs().groupby(
        ["dataset", "n_tasks"], sort=False
    ):
        mcts, luck = 100 * part["mcts"], 100 * part["random_best"]
        line = {"tree": f"{dataset}, {n_tasks} tasks", "comparison": "MCTS vs Random-best"}
        lines.append(line | {"mcts": mcts.mean(), "luck": luck.mean()} | tables.paired(mcts, luck))
        line = {"Dataset": dataset, "Tasks": n_tasks}
        shown.append(line | {"MCTS": f"{mcts.mean():.2f}", "Random-best": f"{luck.mean():.2f}"})
    if not lines:
        return plain_table(pd.DataFrame(), caption)
    values = pd.DataFrame(lines)
    frame = pd.DataFrame(shown).assign(**tables.paired_texts(values))
    return replace(plain_table(frame, caption), values=values)


def at_equal_cost() -> pd.DataFrame:
    """ACC of each search and its difference to Random-best, in environments used for nothing else."""
    shown, found = [], []
    for file in sorted((files.results() / "searches").glob("*tasks.csv")):
        rows = pd.read_csv(file)
        acc = 100 * rows.pivot(index="environment", columns="search", values="acc")
        cost = rows.groupby("search")[["rollouts", "trainings"]].mean()
        dataset = published.dataset_name(rows["dataset"].iloc[0])
        for name in ("Random-best", "MCTS", "Without model", "Surrogate"):
            line = {"Dataset": dataset, "Tasks": int(rows["n_tasks"].iloc[0]), "Search": name}
            line |= {"Trainings": f"{cost.loc[name, 'trainings']:.0f}"}
            shown.append(line | {"ACC (%)": f"{acc[name].mean():.2f}"})
            found.append(_to_luck(acc, name))
    return _with_differences(shown, found)


def on_complete_trees() -> pd.DataFrame:
    """ACC on complete trees (the authors'), means over search seeds; UCT with several values of C.

    Differences to as many random schedules are paired by tree.
    """
    file = files.results() / "searches" / "complete-trees.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame()
    shown, found = [], []
    for (dataset, budget), part in rows.groupby(["dataset", "budget"]) if len(rows) else ():
        keys = ["environment", "search"]
        acc = 100 * part.groupby(keys)["acc"].mean().unstack()  # (trees, searches)
        for name in sorted(acc, key=lambda label: acc[label].mean()):
            line = {"Dataset": published.dataset_name(dataset), "Rollouts": budget, "Search": name}
            shown.append(line | {"ACC (%)": f"{acc[name].mean():.2f}"})
            found.append(_to_luck(acc, name))
    return _with_differences(shown, found)


def _to_luck(acc: pd.DataFrame, name: str) -> dict[str, float]:
    """The paired difference of a search to Random-best; of Random-best itself, no pairs."""
    return tables.paired(acc[name] if name != "Random-best" else acc[name][:0], acc["Random-best"])


def _with_differences(shown: list[dict], found: list[dict]) -> pd.DataFrame:
    if not shown:
        return pd.DataFrame()
    return pd.DataFrame(shown).assign(**tables.paired_texts(pd.DataFrame(found)))
