"""`make searches`: searches at equal cost on environments that were used for nothing else.

Random-best, MCTS, the surrogate and its control (the same candidates, chosen without the model) in every
environment of a setting; each search is counted as if it were alone. Rows go to results/searches/, one
CSV per setting, environment by environment: stopped and started again, it goes on. `--trees FILE` does
the same on complete trees, such as the authors', with several search seeds and a sweep of UCT's C.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rslib import files, search
from rslib.complete_tree import load_tables
from rslib.runs.generalization import policy_environment
from rslib.runs.workers import in_processes
from rslib.search import Result, Tree
from rslib.tree import ScheduleTree

FOLDER = files.REPOSITORY / "results" / "searches"  # written here, shown by notebook 02
C_VALUES = (0.01, 0.03, 0.1, 0.3, 1.0)


class Setting(NamedTuple):
    """Environments of one kind, and what every search may cost in each of them."""

    name: str  # of its CSV
    dataset: str
    n_tasks: int
    first: int  # number of the first environment: its seed and its class order
    n: int
    budget: dict[str, int]  # iterations or trainings


# Twenty rollouts each, or as many trainings as twenty rollouts are without shared beginnings; once as
# many as the paper's hundred. Numbers from 300 on: no other experiment of ours has looked at them.
SETTINGS = (
    Setting("digits-5tasks", "digits", 5, 300, 30, {"iterations": 20}),
    Setting("permuteddigits-10tasks", "permuteddigits", 10, 300, 12, {"trainings": 181}),
    Setting("glyphs-5tasks", "glyphs", 5, 300, 30, {"iterations": 20}),
    Setting("permuteddigits-20tasks", "permuteddigits", 20, 300, 12, {"trainings": 381}),
    Setting("permuteddigits-20tasks-long", "permuteddigits", 20, 400, 10, {"trainings": 1901}),
)


def without_model(seed: int) -> search.Score:
    """Draw among the candidates: after division by their cost, with probability by cost."""
    draws = np.random.default_rng(seed)
    return lambda tried, rewards, candidates: 1 / draws.exponential(size=len(candidates))


def searches(seed: int) -> dict[str, Callable[..., Result]]:
    """The searches that are compared, by label."""
    control = without_model(seed)
    return {
        "Random-best": search.random_best,
        "MCTS": search.mcts,
        "Surrogate": search.surrogate,
        "Without model": lambda tree, **budget: search.surrogate(tree, score=control, **budget),
    }


def row(label: str, tree: Tree, found: Result, **more) -> dict:
    n_nodes = {s.compositions[:k] for s in found.schedules for k in range(tree.n_tasks)}
    return {
        "dataset": tree.environment.dataset,
        "n_tasks": tree.n_tasks,
        "environment": tree.environment.seed,
        "search": label,
        **more,
        "rollouts": len(found.schedules),
        "trainings": len(n_nodes),
        "val": found.reward,
        "acc": found.acc,
    }


def in_environment(setting: Setting, number: int) -> list[dict]:
    """All searches in one environment; they share its tree, but not their budgets."""
    tree = ScheduleTree(policy_environment(setting.dataset, number, setting.n_tasks))
    found = {label: run(tree, **setting.budget) for label, run in searches(number).items()}
    return [row(label, tree, result) for label, result in found.items()]


def spent(rows: pd.DataFrame, setting: Setting) -> bool:
    """Whether every search of these rows went on until the budget of a setting was spent.

    A search ends before the first schedule that its trainings do not allow, and after task 1, which is
    trained once, a schedule costs at most the others.
    """
    if "iterations" in setting.budget:
        return bool((rows["rollouts"] == setting.budget["iterations"]).all())
    most = setting.budget["trainings"]
    return bool(rows["trainings"].between(most - (setting.n_tasks - 2), most).all())


def on_live_trees(setting: Setting, workers: int, folder: Path = FOLDER) -> pd.DataFrame:
    """The rows of a setting; environments that its CSV has are not run again."""
    file = folder / f"{setting.name}.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["environment"])
    if file.exists() and not spent(rows, setting):
        raise ValueError(
            f"{file} is of another budget than {setting.budget}: give the setting another name, or "
            "remove the file"
        )
    numbers = [setting.first + i for i in range(setting.n)]
    left = [n for n in numbers if n not in set(rows["environment"])]
    for start in range(0, len(left), 2 * workers):
        jobs = [(setting, number) for number in left[start : start + 2 * workers]]
        found = in_processes(in_environment, jobs, workers, setting.name)
        rows = pd.concat([rows, pd.DataFrame([line for lines in found for line in lines])])
        files.write_atomically(file, rows.to_csv(index=False).encode())
    return rows


def on_complete_trees(paths: list[Path], n_seeds: int, folder: Path = FOLDER) -> pd.DataFrame:
    """Searches and values of C on complete trees, with several search seeds each."""
    rows = []
    for tree in (tree for path in paths for tree in load_tables(path)):
        for budget in (20, 100):
            for seed in range(n_seeds):
                runs = {
                    f"MCTS, C = {c}": search.mcts(tree, budget, seed, exploration=c)
                    for c in C_VALUES
                }
                runs["Surrogate"] = search.surrogate(tree, budget, seed)
                runs["Random-best"] = search.random_best(tree, budget, first=1000 * seed)
                rows += [row(k, tree, v, search_seed=seed, budget=budget) for k, v in runs.items()]
    frame = pd.DataFrame(rows)
    files.write_atomically(folder / "complete-trees.csv", frame.to_csv(index=False).encode())
    return frame


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.searches", description=__doc__)
    parser.add_argument("--trees", type=Path, nargs="+", help="tables of complete trees instead")
    parser.add_argument("--seeds", type=int, default=5, help="search seeds on complete trees")
    parser.add_argument("--only", help="one setting, such as digits-5tasks")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    if given.trees:
        frame = on_complete_trees(given.trees, given.seeds)
        print(frame.groupby(["dataset", "budget", "search"])["acc"].mean().mul(100).round(2))
        return
    for setting in SETTINGS:
        if given.only in (None, setting.name):
            rows = on_live_trees(setting, given.workers)
            print(rows.groupby("search")[["rollouts", "trainings", "acc"]].mean().round(4))


if __name__ == "__main__":
    main()
