"""A complete tree: an environment whose every schedule has been trained, for instant steps.

A `CompleteTree` walks like a `ScheduleTree`, except that it cannot train: a composition outside the
action space raises. Its rows are in breadth-first order, so all complete trees of T tasks share one
`TreeShape` and a node is a row number; `stack` turns trees into the arrays that DQN and A2C use.

On disk a row of the CSV is the network after k tasks, given the k-1 actions so far (the layout of the
authors' released environments). A file of ours ends with a line that holds M where it is not the
authors' 10, and one with a digest of the others. `load_tables` refuses a damaged file and names the row;
`complete` trains what a live tree lacks.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from rslib import files, schedule
from rslib.errors import BadValue, UserError
from rslib.tree import Node, NotTrained, ScheduleTree

DIGEST = b"# sha256 "  # begins the last line of a table that we have written
SIZE = b"# memory_size "  # begins the line before it
RELEASED_SIZE = 10  # M of the authors' trees, whose files do not say it
# Accuracies shrink about fivefold: an archive that grows more, to more than this, is taken for a bomb.
MAX_RATIO, HARMLESS_BYTES, MAX_BYTES = 20, 1 << 26, 1 << 31
MAX_NODES = 5_000_000  # a tree of 7 tasks would have 61 million rows per environment


class TableError(UserError, ValueError):
    """A table that is damaged; the message names the row."""


# -- the shape that all trees of T tasks share -----------------------------------------------------


@dataclass(frozen=True)
class TreeShape:
    """Which row follows which: the same for every environment with this number of tasks."""

    n_tasks: int
    first: tuple[int, ...]  # first[k-1] = row of the first node with k tasks; then the row count
    depth: np.ndarray  # (rows,) tasks learned
    child: np.ndarray  # (inner rows, actions) row after this action; -1 where the mask forbids it

    @property
    def n_inner(self) -> int:
        """Rows before the leaves: where there is something to decide."""
        return self.first[-2]

    def path(self, node: int) -> tuple[int, ...]:
        """The actions that lead to this row."""
        k = int(self.depth[node])
        rest, actions = int(node) - self.first[k - 1], []
        for seen in range(k - 1, 0, -1):
            rest, action = divmod(rest, schedule.n_actions(seen))
            actions.append(action)
        return tuple(reversed(actions))


@lru_cache
def tree_shape(n_tasks: int) -> TreeShape:
    if n_tasks < 2:
        raise BadValue(f"an environment needs at least 2 tasks to schedule, got {n_tasks}")
    widths = [schedule.n_schedules(depth) for depth in range(1, n_tasks + 1)]
    if sum(widths) > MAX_NODES:
        raise BadValue(
            f"{n_tasks} tasks have {widths[-1]:,} schedules, too many to train them all: use a live tree"
        )
    first = [0, *np.cumsum(widths).tolist()]
    depth = np.repeat(np.arange(1, n_tasks + 1), widths)
    child = np.full((first[-2], schedule.n_actions(n_tasks - 1)), -1)
    for k in range(1, n_tasks):
        rows, n = widths[k - 1], schedule.n_actions(k)
        child[first[k - 1] : first[k], :n] = first[k] + np.arange(rows * n).reshape(rows, n)
    return TreeShape(n_tasks, tuple(first), depth, child)


@lru_cache(maxsize=64)
def compositions(k: int, M: int) -> np.ndarray:
    """(actions, k) counts of every action with k tasks seen, in action order."""
    return np.array([schedule.counts(p, M) for p in schedule.actions(k)])


def nearest_action(composition: Sequence[int], M: int) -> tuple[int, bool]:
    """The action nearest by L1 distance (lowest index), and whether it is exactly that."""
    every = compositions(len(composition), M)
    distance = np.abs(every - np.asarray(composition)).sum(axis=1)
    return int(distance.argmin()), not distance.min()


# -- one environment -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CompleteTree:
    """All schedules of one environment. `walk` is the schedule tree's, without training."""

    dataset: str
    seed: int
    val: np.ndarray = field(repr=False)  # (rows, T) validation accuracies, 0 for unseen tasks
    test: np.ndarray = field(repr=False)  # (rows, T)
    memory_size: int = RELEASED_SIZE

    @property
    def n_tasks(self) -> int:
        return self.val.shape[1]

    @property
    def environment(self) -> CompleteTree:
        """Itself, so that a dataset, a seed and a size are found where a live tree has them."""
        return self

    def budget(self, k: int) -> int:
        return self.memory_size

    def available(self, k: int) -> None:
        """The pools of this environment held enough for every schedule in it."""

    def counts(self, proportions: Iterable, k: int) -> schedule.Composition:
        return schedule.counts(list(proportions), self.memory_size)

    def compositions(self, k: int) -> list[schedule.Composition]:
        return list(dict.fromkeys(map(tuple, compositions(k, self.memory_size).tolist())))

    @property
    def trained(self) -> int:
        """No training is left to do: searches count 0."""
        return 0

    @cached_property
    def shape(self) -> TreeShape:
        return tree_shape(self.n_tasks)

    def walk(self, path: Iterable[Iterable[int]] = ()) -> Node:
        """The node at the end of a path; raises NotTrained for a composition that is no action."""
        rows = [0]
        checked = schedule.checked_path(path)
        for k, composition in enumerate(checked, start=1):
            action, exact = nearest_action(composition, self.memory_size)
            if not exact:
                raise NotTrained(
                    f"{composition} at task {k + 1} is no action of a complete tree. "
                    "rslib.runs.scoring.follow(tree, policy) takes the nearest one instead"
                )
            rows.append(int(self.shape.child[rows[-1], action]))
        val, test = (self._matrix(accuracies, rows) for accuracies in (self.val, self.test))
        return Node(self, checked, val, test)

    def _matrix(self, accuracies: np.ndarray, rows: list[int]) -> np.ndarray:
        """(tasks + 1, T): row t after task t; NaN in row 0 and where nothing was recorded."""
        matrix = np.full((len(rows) + 1, self.n_tasks), np.nan)
        for t, row in enumerate(rows, start=1):
            matrix[t, :t] = accuracies[row, :t]
        return matrix

    def nearest(self, composition: schedule.Composition) -> schedule.Composition:
        """The composition of the nearest action, for policies that want something in between."""
        action, _ = nearest_action(composition, self.memory_size)
        return tuple(compositions(len(composition), self.memory_size)[action].tolist())

    def final(self, kind: str) -> np.ndarray:
        """(schedules,) mean accuracy over all tasks at the end, "val" or "test"."""
        return getattr(self, kind)[self.shape.n_inner :].mean(axis=1)

    def leaf(self, number: int) -> Node:
        """The node at the end of a schedule by its number in `final`."""
        actions = self.shape.path(self.shape.n_inner + number)
        return self.walk(schedule.Schedule.from_actions(actions, self.memory_size).compositions)


def complete(tree: ScheduleTree) -> CompleteTree:
    """Walk every schedule of a live tree; what its store has is not trained again."""
    environment, M = tree.environment, tree.environment.memory_size or 0
    for k in range(1, tree.n_tasks):
        if tree.budget(k) != M or min(tree.available(k)) < M:
            raise BadValue(
                f"{environment}: a complete tree needs the whole memory and pools of at least {M} "
                "samples for every schedule (no Class-IL, no small tasks); otherwise other samples are "
                "replayed than it says"
            )
    shape = tree_shape(tree.n_tasks)
    val, test = (np.zeros((shape.first[-1], tree.n_tasks)) for _ in range(2))

    def visit(row: int, path: schedule.Path) -> None:
        node = tree.walk(path)
        t = node.depth
        val[row, :t], test[row, :t] = node.val[t, :t], node.test[t, :t]
        if not node.converged:
            raise TableError(f"{environment}: training along {path} did not converge")
        if t < tree.n_tasks:  # depth first: a child finds its parent's snapshot warm
            for action in range(schedule.n_actions(t)):
                composition = tree.counts(schedule.action_shares(t, action), t)
                visit(int(shape.child[row, action]), (*path, composition))

    visit(0, ())
    return CompleteTree(environment.dataset, environment.seed, val, test, M)


@dataclass(frozen=True)
class StackedTrees:
    """Trees of several environments as arrays; node numbers are the rows that all share."""

    shape: TreeShape
    state: np.ndarray  # (environments, inner rows, T-1) float32: what a policy sees
    reward: np.ndarray  # (environments, rows) float32: mean validation accuracy on arriving


def stack(trees: Sequence[CompleteTree]) -> StackedTrees:
    sizes = sorted({t.n_tasks for t in trees})
    if len(sizes) != 1:
        raise ValueError(f"agents need environments of one number of tasks, got {sizes or 'none'}")
    shape = tree_shape(sizes[0])
    val = np.stack([t.val for t in trees])
    return StackedTrees(
        shape,
        np.ascontiguousarray(val[:, : shape.n_inner, :-1], dtype=np.float32),
        np.asarray(val.sum(axis=2) / shape.depth, dtype=np.float32),
    )


# -- on disk ---------------------------------------------------------------------------------------


def columns(n_tasks: int) -> list[str]:
    tasks = range(1, n_tasks + 1)
    return (
        ["dataset", "env_seed", "k", *(f"a{k}" for k in range(1, n_tasks))]
        + [f"val_acc_{i}" for i in tasks]
        + [f"test_acc_{i}" for i in tasks]
    )


def load_tables(path: str | Path, memory_size: int = RELEASED_SIZE) -> list[CompleteTree]:
    """The environments in a CSV (plain or .gz), sorted by (dataset, seed); refused if damaged.

    memory_size: M of a file that does not say it.
    """
    (header, *lines), said, as_written = _read(Path(path))
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
        M = memory_size if said is None else said
        tables.append(CompleteTree(str(name), int(seed), val, test, M))
    if not as_written:  # last, because the checks of rows say where
        raise TableError(f"{path} is not what was written: its digest differs")
    return tables


def _read(path: Path) -> tuple[list[list[str]], int | None, bool]:
    """The lines of a table, M (None: not said), and whether its digest, if it has one, is of these."""
    if not path.exists():
        raise TableError(f"no environment table at {path}")
    try:
        limit = min(max(HARMLESS_BYTES, MAX_RATIO * path.stat().st_size), MAX_BYTES)
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            text = file.read(limit + 1)
        if len(text) > limit:
            raise ValueError(f"it unpacks to more than the {limit} bytes allowed")
        text, mark, digest = text.partition(DIGEST)
        rows, _, size = text.partition(SIZE)
        lines = list(csv.reader(io.StringIO(rows.decode())))
        said = int(size) if size else None
    except (EOFError, OSError, zlib.error, ValueError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read to its end: {error}") from None
    as_written = not mark or digest == f"{sha256(text).hexdigest()}\n".encode()
    return lines or [[]], said, as_written


def _numbers(lines: list[list[str]], header: list[str], path: str | Path) -> np.ndarray:
    """(rows, columns after the dataset) as floats, or the first cell that is no number."""
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise TableError(f"{path}: line {number}: {len(line)} cells instead of {len(header)}")
    numbers = np.array([[_number(cell) for cell in line[1:]] for line in lines])
    if not np.isfinite(numbers).all():
        row, column = np.argwhere(~np.isfinite(numbers))[0]
        name, cell = header[column + 1], lines[row][column + 1]
        raise TableError(f"{path}: line {row + 2}: {name} is {cell!r}, not a number")
    return numbers


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return nan


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


def save_tables(tables: Iterable[CompleteTree], path: str | Path) -> Path:
    """Write the layout that `load_tables` reads; the same tables give the same bytes."""
    path = Path(path)
    tables = sorted(tables, key=lambda t: (t.dataset, t.seed))
    if not tables:
        raise ValueError("no tables to save")
    n_tasks = tables[0].n_tasks
    M = tables[0].memory_size
    if any((t.n_tasks, t.memory_size) != (n_tasks, M) for t in tables):
        raise ValueError("the tables of one file need the same number of tasks and the same M")
    if len({(t.dataset, t.seed) for t in tables}) < len(tables):
        raise ValueError("two tables of the same dataset and seed")
    shape = tree_shape(n_tasks)
    actions = np.full((shape.first[-1], n_tasks - 1), -1)
    for node in range(shape.first[-1]):
        actions[node, : shape.depth[node] - 1] = shape.path(node)
    keys = np.column_stack([shape.depth, actions]).tolist()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns(n_tasks))
    for table in tables:
        accuracies = np.hstack([table.val, table.test]).tolist()
        for key, row in zip(keys, accuracies, strict=True):
            lines.writerow([table.dataset, table.seed, *key, *(f"{x:.6f}" for x in row)])
    content = text.getvalue().encode()
    content += SIZE + f"{M}\n".encode() if M != RELEASED_SIZE else b""
    content += DIGEST + f"{sha256(content).hexdigest()}\n".encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)  # no date: a rebuilt table is byte-identical
    return files.write_atomically(path, content)
