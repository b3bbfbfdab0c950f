"""Do searches beat luck? MCTS against random schedules by tree size, and searches at equal cost.

All from stored rows: `mcts_against_luck` from the store and `results/`, the others from
`results/searches`, which `make searches` fills. Differences are paired, in points, with 95 % intervals.
"""

from __future__ import annotations

import pandas as pd

from rslib import files, stats
from rslib.runs import studies


def mcts_against_luck() -> pd.DataFrame:
    """ACC of MCTS and of the best of as many random schedules (100), per dataset and tree size."""
    lines = []
    for (dataset, n_tasks), part in studies.luck_pairs().groupby(
        ["dataset", "n_tasks"], sort=False
    ):
        mcts, luck = 100 * part["mcts"], 100 * part["random_best"]
        line = {"dataset": dataset, "tasks": n_tasks, "MCTS": f"{mcts.mean():.2f}"}
        lines.append(line | {"Random-best": f"{luck.mean():.2f}"} | _paired(mcts, luck))
    return pd.DataFrame(lines)


def at_equal_cost() -> pd.DataFrame:
    """ACC of each search and its difference to Random-best, in environments used for nothing else."""
    lines = []
    for file in sorted((files.results() / "searches").glob("*tasks.csv")):
        rows = pd.read_csv(file)
        acc = 100 * rows.pivot(index="environment", columns="search", values="acc")
        cost = rows.groupby("search")[["rollouts", "trainings"]].mean()
        for name in ("Random-best", "MCTS", "Without model", "Surrogate"):
            dataset, tasks = rows["dataset"].iloc[0], int(rows["n_tasks"].iloc[0])
            line = {"dataset": dataset, "tasks": tasks, "search": name}
            line |= {"trainings": f"{cost.loc[name, 'trainings']:.0f}"}
            line |= {"ACC (%)": f"{acc[name].mean():.2f}"}
            if name != "Random-best":
                line |= _paired(acc[name], acc["Random-best"])
            lines.append(line)
    return pd.DataFrame(lines).fillna("")


def on_complete_trees() -> pd.DataFrame:
    """ACC on complete trees (the authors'), means over search seeds; UCT with several values of C.

    Differences to as many random schedules are paired by tree.
    """
    file = files.results() / "searches" / "complete-trees.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame()
    lines = []
    for (dataset, budget), part in rows.groupby(["dataset", "budget"]) if len(rows) else ():
        keys = ["environment", "search"]
        acc = 100 * part.groupby(keys)["acc"].mean().unstack()  # (trees, searches)
        for name in sorted(acc, key=lambda label: acc[label].mean()):
            line = {"dataset": dataset, "rollouts": budget, "search": name}
            line |= {"ACC (%)": f"{acc[name].mean():.2f}"}
            if name != "Random-best":
                line |= _paired(acc[name], acc["Random-best"])
            lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _paired(mine: pd.Series, other: pd.Series) -> dict[str, object]:
    gap = stats.paired_difference(mine, other)
    interval = f"[{gap.low:+.2f}, {gap.high:+.2f}]" if gap.reason is None else f"({gap.reason})"
    wins = f"{int((mine.to_numpy() > other.to_numpy()).sum())} of {len(mine)}"
    return {"difference": f"{gap.value:+.2f}", "95 % interval": interval, "ahead on": wins}
