"""`make environments`: train every schedule of some environments, and save the trees to one CSV.

Policies learn in such complete trees: a step is a lookup. A tree of 5 tasks takes 1,085 trainings per
environment; if it is stopped and started again, it goes on, because finished trainings are stored.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rslib import Store
from rslib.env_tables import build, load_tables, policy_environment, save_tables


def parse_seeds(text: str) -> list[int]:
    """Turn "0-9,20" into [0, ..., 9, 20]."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise argparse.ArgumentTypeError(f"write seeds like 0-9,20, not {text!r}")
        seeds += range(int(low), int(high or low) + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"write each seed once, not {text!r}")
    return seeds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.trees", description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--seeds", required=True, type=parse_seeds, help="such as 0-9,20-39")
    parser.add_argument("--n-tasks", type=int, help="default: the dataset's")
    parser.add_argument("--out", required=True, type=Path, help=".csv or .csv.gz")
    parser.add_argument("--store", type=Path, help="folder of finished trainings; default: yours")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    environments = [policy_environment(given.dataset, seed, given.n_tasks) for seed in given.seeds]
    save_tables(build(environments, Store(given.store), given.workers), given.out)
    M = environments[0].memory_size
    trees = load_tables(given.out, M)  # read again: a damaged file raises here, not in a training
    names = ", ".join(f"{tree.dataset} {tree.seed}" for tree in trees)
    print(f"{given.out}: {len(trees)} environments of {trees[0].n_tasks} tasks, M = {M}: {names}")


if __name__ == "__main__":
    main()
