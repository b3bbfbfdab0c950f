"""`make environments`: train every schedule of some environments, and save the trees to one CSV.

Policies learn in such complete trees: a step is a lookup. A tree of 5 tasks takes 1,085 trainings per
environment; if it is stopped and started again, it goes on, because finished trainings are stored. A
JSON file beside the CSV says what the trees were made from and with, and what they cost.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rslib import Store, files
from rslib.complete_tree import load_tables, save_tables
from rslib.runs.generalization import Trees, train_trees
from rslib.runs.values import environment_numbers


def facts_file(table: Path) -> Path:
    """The JSON file beside a table: digits.json beside digits.csv.gz."""
    return table.with_name(f"{table.name.partition('.')[0]}.json")


def facts(trees: Trees) -> dict[str, Any]:
    """What trained trees were made from and with, and what they cost."""
    environments = [tree.environment for tree in trees.live.values()]
    rows = [row for tree in trees.live.values() for row in tree.rows().values()]
    made_with = {(row.torch, row.cpu) for row in rows}
    if len(made_with) > 1:
        raise SystemExit(f"rows of several machines in one table: {sorted(made_with)}")
    ((torch, cpu),) = made_with
    return {
        "dataset": environments[0].dataset,
        "n_tasks": environments[0].n_tasks,
        "environments": [environment.seed for environment in environments],
        "data": environments[0].load().fingerprint,
        "torch": torch,
        "cpu": cpu,
        "code": sorted({row.code for row in rows if row.code}),
        "trainings": len(rows) - len(environments),  # an untrained network is a row, too
        "core_hours": round(sum(row.seconds for row in rows) / 3600, 2),
    }


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
    trained = train_trees(places, Store(given.store), given.n_tasks, given.workers)
    about = json.dumps(facts(trained))  # first: it may refuse
    save_tables(trained.complete.values(), given.out)
    files.write_atomically(facts_file(given.out), f"{about}\n".encode())
    trees = load_tables(given.out)  # read again: a damaged file raises here, not in a training
    names = ", ".join(f"{tree.dataset} {tree.seed}" for tree in trees)
    size = f"{trees[0].n_tasks} tasks, M = {trees[0].memory_size}"
    print(f"{given.out}: {len(trees)} environments of {size}: {names}")


if __name__ == "__main__":
    main()
