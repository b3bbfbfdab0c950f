"""Environment tables on disk: every schedule of an environment trained once, for instant steps.

One row of the CSV is the network after k tasks, given the k-1 actions so far (the layout of the
authors' released environments); in memory it is a `table_tree.Table`. `load_tables` refuses a
damaged file and names the row. `python -m rslib.env_tables build` makes a table from live trees,
`check` says what is wrong with one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from rslib import schedule
from rslib.complete_tree import Table, tree_shape
from rslib.runs.workers import in_processes


class TableError(ValueError):
    """A table that is damaged, with the row named."""


# -- reading and writing -------------------------------------------------------------------------


def columns(n_tasks: int) -> list[str]:
    tasks = range(1, n_tasks + 1)
    return (
        ["dataset", "env_seed", "k", *(f"a{k}" for k in range(1, n_tasks))]
        + [f"val_acc_{i}" for i in tasks]
        + [f"test_acc_{i}" for i in tasks]
    )


def load_tables(path: str | Path, memory_size: int = 10) -> list[Table]:
    """The environments in a CSV (plain or .gz), sorted by (dataset, seed); refused if damaged."""
    header, *lines = _read(Path(path))
    n_tasks = sum(name.startswith("val_acc_") for name in header)
    if n_tasks < 2 or header != columns(n_tasks):
        raise TableError(f"{path}: line 1: the columns are not those of an environment table")
    if not lines:
        raise TableError(f"{path}: line 2: no rows")
    numbers = _numbers(lines, header, path)
    names = np.array([line[0] for line in lines])
    node = _check_rows(numbers, n_tasks, path)
    rows = tree_shape(n_tasks).first[-1]
    tables = []
    for name, seed in sorted(set(zip(names, numbers[:, 0].astype(int), strict=True))):
        here = np.flatnonzero((names == name) & (numbers[:, 0] == seed))
        where = f"{path}: {name} environment {seed}"
        order = here[np.argsort(node[here], kind="stable")]
        twice = np.flatnonzero(np.diff(node[order]) == 0)
        if len(twice):
            a, b = order[twice[0]] + 2, order[twice[0] + 1] + 2
            raise TableError(f"{where}: line {b} is the same node as line {a}")
        missing = np.setdiff1d(np.arange(rows), node[order])
        if len(missing):
            actions = tree_shape(n_tasks).path(missing[0])
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise TableError(
                f"{where}: the row k={len(actions) + 1}, actions {actions} is missing{more}"
            )
        accuracies = numbers[order, 1 + n_tasks :]
        val, test = accuracies[:, :n_tasks].copy(), accuracies[:, n_tasks:].copy()
        tables.append(Table(str(name), int(seed), val, test, memory_size))
    return tables


def _read(path: Path) -> list[list[str]]:
    if not path.exists():
        raise FileNotFoundError(f"no environment table at {path}")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except (EOFError, OSError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read to its end: {error}") from None
    return lines or [[]]


def _numbers(lines: list[list[str]], header: list[str], path: str | Path) -> np.ndarray:
    """(rows, columns after the dataset) as floats, or the first cell that is no number."""
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise TableError(f"{path}: line {number}: {len(line)} cells instead of {len(header)}")
    try:
        numbers = np.array([line[1:] for line in lines]).astype(float)
        good = np.isfinite(numbers)
    except ValueError:
        good = np.array([[_is_number(cell) for cell in line[1:]] for line in lines])
        numbers = np.empty(good.shape)
    if not good.all():
        row, column = np.argwhere(~good)[0]
        name, cell = header[column + 1], lines[row][column + 1]
        raise TableError(f"{path}: line {row + 2}: {name} is {cell!r}, not a number")
    return numbers


def _is_number(cell: str) -> bool:
    try:
        return isfinite(float(cell))
    except ValueError:
        return False


def _check_rows(numbers: np.ndarray, n_tasks: int, path: str | Path) -> np.ndarray:
    """The node of every row, once each row has been found possible in itself."""
    seed, k = numbers[:, 0], numbers[:, 1]
    actions, accuracies = numbers[:, 2 : 1 + n_tasks], numbers[:, 1 + n_tasks :]

    def refuse(bad: Any, what: Callable[[int], str]) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise TableError(f"{path}: line {row + 2}: {what(row)}")

    refuse((seed < 0) | (seed % 1 != 0), lambda r: f"env_seed is {seed[r]:g}")
    impossible = (k < 1) | (k > n_tasks) | (k % 1 != 0)
    refuse(impossible, lambda r: f"k is {k[r]:g}, not 1..{n_tasks}")
    node = np.zeros(len(k), dtype=int)
    for step in range(1, n_tasks):
        action, n = actions[:, step - 1], schedule.n_actions(step)
        taken = k > step
        impossible = (action < 0) | (action >= n) | (action % 1 != 0)
        refuse(
            np.where(taken, impossible, action != -1),
            lambda r, s=step, a=action, n=n: (
                f"a{s} is {a[r]:g} at k={k[r]:g}; it must be 0..{n - 1} if taken and -1 if not"
            ),
        )
        node = np.where(taken, node * n + action.astype(int), node)
    # NaN was refused before, so this is the whole range check.
    outside = (accuracies < 0) | (accuracies > 1)
    names = columns(n_tasks)[2 + n_tasks :]
    worst = outside.argmax(axis=1)
    refuse(
        outside.any(axis=1),
        lambda r: f"{names[worst[r]]} is {accuracies[r, worst[r]]:g}, outside [0, 1]",
    )
    unseen = np.tile(np.arange(n_tasks), 2) >= k[:, None]
    leaked = unseen & (accuracies != 0)
    first = leaked.argmax(axis=1)
    refuse(
        leaked.any(axis=1),
        lambda r: f"{names[first[r]]} is {accuracies[r, first[r]]:g} before that task is learned",
    )
    return node + np.array(tree_shape(n_tasks).first)[k.astype(int) - 1]


def save_tables(tables: Iterable[Table], path: str | Path) -> Path:
    """Write the layout that `load_tables` reads; the same tables give the same bytes."""
    path = Path(path)
    tables = sorted(tables, key=lambda t: (t.dataset, t.seed))
    if not tables:
        raise ValueError("no tables to save")
    n_tasks = tables[0].n_tasks
    if any(t.n_tasks != n_tasks for t in tables):
        raise ValueError("the tables of one file need the same number of tasks")
    if len({(t.dataset, t.seed) for t in tables}) < len(tables):
        raise ValueError("two tables of the same dataset and seed")
    shape = tree_shape(n_tasks)
    actions = np.full((shape.first[-1], n_tasks - 1), -1)
    for node in range(shape.first[-1]):
        actions[node, : shape.depth[node] - 1] = shape.path(node)
    keys = [",".join(map(str, [k, *a])) for k, a in zip(shape.depth, actions, strict=True)]
    lines = [",".join(columns(n_tasks))]
    for table in tables:
        accuracies = np.hstack([table.val, table.test])
        lines += [
            f"{table.dataset},{table.seed},{key}," + ",".join(f"{x:.6f}" for x in row)
            for key, row in zip(keys, accuracies.tolist(), strict=True)
        ]
    content = ("\n".join(lines) + "\n").encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)  # no date: a rebuilt table is byte-identical
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # a reader never sees half a table
    return path


# -- building from trees -------------------------------------------------------------------------


def from_tree(tree: Any) -> Table:
    """Walk every schedule of a live tree; what its store already has is not trained again."""
    environment = tree.environment
    shape = tree_shape(environment.n_tasks)
    val, test = (np.zeros((shape.first[-1], environment.n_tasks)) for _ in range(2))

    def visit(row: int, path: tuple[schedule.Composition, ...]) -> None:
        node = tree.walk(path)
        t = node.depth
        val[row, :t], test[row, :t] = node.val[t, :t], node.test[t, :t]
        if np.isnan(val[row]).any() or np.isnan(test[row]).any():
            raise TableError(f"{environment}: training along {path} did not converge")
        if t < environment.n_tasks:  # depth first: a child finds its parent's snapshot warm
            for action in range(schedule.n_actions(t)):
                composition = tree.counts(schedule.action_shares(t, action), t)
                visit(int(shape.child[row, action]), (*path, composition))

    visit(0, ())
    return Table(environment.dataset, environment.seed, val, test, environment.memory_size)


def policy_environment(dataset: str, seed: int, n_tasks: int | None = None) -> Any:
    """Environment number `seed` of a dataset: its own weights and its own order of classes."""
    from rslib import Environment, presets

    order = (
        0 if presets.preset(dataset, "rl").permuted else seed
    )  # there all tasks have all classes
    return Environment(dataset, seed, class_order_seed=order, n_tasks=n_tasks, setting="rl")


def live_tree(environment: Any, store: Any = None) -> Any:
    from rslib import ScheduleTree  # here, so that reading a table needs nothing that trains

    return ScheduleTree(environment, store=store)


def _build(environment: Any, store: Any, make_tree: Callable) -> Table:
    return from_tree(make_tree(environment, store))


def build(
    environments: Sequence[Any],
    store: Any = None,
    workers: int = 1,
    make_tree: Callable = live_tree,
) -> list[Table]:
    """Tables of these environments, in parallel. Killed and started again, it goes on: finished
    nodes are rows of the store."""
    jobs = [(environment, store, make_tree) for environment in environments]
    return in_processes(_build, jobs, workers, "environments")


def parse_seeds(text: str) -> list[int]:
    """ "0-9,20" -> [0, ..., 9, 20]."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"seeds are written like 0-9,20; got {text!r}")
        seeds += range(int(low), int(high or low) + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be given once each, got {text!r}")
    return seeds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rslib.env_tables", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="train every schedule of some environments")
    make.add_argument("--dataset", required=True)
    make.add_argument("--seeds", required=True, type=parse_seeds, help="such as 0-9,20-39")
    make.add_argument("--n-tasks", type=int, help="default: the dataset's")
    make.add_argument("--out", required=True, type=Path, help=".csv or .csv.gz")
    make.add_argument("--store", type=Path, help="where finished trainings are kept")
    make.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    look = commands.add_parser("check", help="load a table, or say which row is wrong")
    look.add_argument("path", type=Path)
    look.add_argument("--memory-size", type=int, default=10, help="M, which a table does not carry")
    given = parser.parse_args(arguments)
    if given.command == "build":
        from rslib import Store

        environments = [
            policy_environment(given.dataset, seed, given.n_tasks) for seed in given.seeds
        ]
        store = Store(given.store)  # None: the user's own
        given.path = save_tables(build(environments, store, given.workers), given.out)
        given.memory_size = environments[0].memory_size
    tables = load_tables(given.path, given.memory_size)
    print(
        f"{given.path}: {len(tables)} environments of {tables[0].n_tasks} tasks, M = "
        f"{given.memory_size}: " + ", ".join(f"{t.dataset} {t.seed}" for t in tables)
    )


if __name__ == "__main__":
    main()
