"""A table as a schedule tree: one environment whose every schedule has been trained already.

A `Table` walks like a schedule tree, except that it cannot train: what is not in the action space
is not there. Its rows are in breadth-first order, so all tables of T tasks share one `TreeShape`
and a node is a row number. `stack` turns tables into the arrays that the agents step through.
Reading, writing and building tables is `rslib.env_tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from rslib import metrics, schedule

MAX_NODES = 5_000_000  # a table of 7 tasks would have 61 million rows per environment


class NotInTable(KeyError):
    """A composition that the action space lacks: only a live tree can train it."""


# -- the tree that all tables of T tasks share ---------------------------------------------------


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
        raise ValueError(f"an environment needs at least 2 tasks to schedule, got {n_tasks}")
    widths = [
        prod(schedule.n_actions(k) for k in range(1, depth)) for depth in range(1, n_tasks + 1)
    ]
    if sum(widths) > MAX_NODES:
        raise ValueError(
            f"{n_tasks} tasks have {widths[-1]:,} schedules: too many for a table, use a live tree"
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


# -- one environment's table ---------------------------------------------------------------------


@dataclass(frozen=True)
class TableNode:
    """A place in a table, with the fields of a schedule tree's node."""

    depth: int
    path: tuple[schedule.Composition, ...]
    val: np.ndarray  # (depth+1, T); row 0 and what was not seen or not recorded is NaN
    test: np.ndarray  # (depth+1, T)

    @property
    def schedule(self) -> schedule.Schedule:
        return schedule.Schedule(self.path)

    @property
    def reward(self) -> float:
        return float(self.val[-1, : self.depth].mean())

    @property
    def acc(self) -> float:
        return float(self.test[-1, : self.depth].mean())

    @property
    def bwt(self) -> float:
        return metrics.bwt(self.test[1:, : self.depth])


@dataclass(frozen=True, eq=False)
class Table:
    """All schedules of one environment. `walk` is the schedule tree's, without training."""

    dataset: str
    seed: int
    val: np.ndarray = field(repr=False)  # (rows, T) validation accuracies, 0 for unseen tasks
    test: np.ndarray = field(repr=False)  # (rows, T)
    memory_size: int = 10  # the layout does not carry it; the released tables have 10

    @property
    def n_tasks(self) -> int:
        return self.val.shape[1]

    @property
    def environment(self) -> Table:
        """Itself: whatever asks a tree's environment for its dataset, seed or size gets them."""
        return self

    def budget(self, k: int) -> int:
        return self.memory_size

    def available(self, k: int) -> None:
        """The pools of a table's environment held enough for everything in it."""

    def counts(self, proportions: Iterable, k: int) -> schedule.Composition:
        return schedule.counts(list(proportions), self.memory_size)

    @cached_property
    def shape(self) -> TreeShape:
        return tree_shape(self.n_tasks)

    def walk(self, path: Iterable[Sequence[int]] = ()) -> TableNode:
        """The node after these compositions, or NotInTable: node identity is the composition."""
        rows = [0]
        checked = schedule.checked_path(path)
        for k, composition in enumerate(checked, start=1):
            action, exact = nearest_action(composition, self.memory_size)
            if not exact:
                raise NotInTable(f"{composition} at task {k + 1} is no action of the table")
            rows.append(int(self.shape.child[rows[-1], action]))
        val, test = (self._matrix(accuracies, rows) for accuracies in (self.val, self.test))
        return TableNode(len(rows), checked, val, test)

    def _matrix(self, accuracies: np.ndarray, rows: list[int]) -> np.ndarray:
        matrix = np.full((len(rows) + 1, self.n_tasks), np.nan)
        for t, row in enumerate(rows, start=1):
            matrix[t, :t] = accuracies[row, :t]
        return matrix

    def final(self, kind: str) -> np.ndarray:
        """(schedules,) mean accuracy over all tasks at the end, "val" or "test"."""
        return getattr(self, kind)[self.shape.n_inner :].mean(axis=1)


@dataclass(frozen=True)
class TableArrays:
    """Tables of several environments as arrays: node ids are the rows that all share."""

    shape: TreeShape
    state: np.ndarray  # (environments, inner rows, T-1) float32: what a policy sees
    reward: np.ndarray  # (environments, rows) float32: mean validation accuracy on arriving


def stack(tables: Sequence[Table]) -> TableArrays:
    sizes = sorted({t.n_tasks for t in tables})
    if len(sizes) != 1:
        raise ValueError(f"agents need environments of one number of tasks, got {sizes or 'none'}")
    shape = tree_shape(sizes[0])
    val = np.stack([t.val for t in tables])
    return TableArrays(
        shape,
        np.ascontiguousarray(val[:, : shape.n_inner, :-1], dtype=np.float32),
        np.asarray(val.sum(axis=2) / shape.depth, dtype=np.float32),
    )
