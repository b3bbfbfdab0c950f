"""`make environments`: train every schedule of some environments, and save the trees to one CSV.

Policies learn in such complete trees: a step is a lookup. A tree of 5 tasks takes 1,085 trainings per
environment; if it is stopped and started again, it goes on, because finished trainings are stored.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rslib import Store
from rslib.complete_tree import load_tables, save_tables
from rslib.runs.generalization import train_trees
from rslib.runs.values import environment_numbers


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.trees", description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument(
        "--seeds", required=True, type=environment_numbers, help="such as 0-9,20-39"
    )
    parser.add_argument("--n-tasks", type=int, help="default: the dataset's")
    parser.add_argument("--out", required=True, type=Path, help=".csv or .csv.gz")
    parser.add_argument("--store", type=Path, help="folder of finished trainings; default: yours")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    places = [(given.dataset, seed) for seed in given.seeds]
    trained = train_trees(places, Store(given.store), given.n_tasks, given.workers).complete
    save_tables(trained.values(), given.out)
    trees = load_tables(given.out)  # read again: a damaged file raises here, not in a training
    names = ", ".join(f"{tree.dataset} {tree.seed}" for tree in trees)
    size = f"{trees[0].n_tasks} tasks, M = {trees[0].memory_size}"
    print(f"{given.out}: {len(trees)} environments of {size}: {names}")


if __name__ == "__main__":
    main()
