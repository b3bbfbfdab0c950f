"""The schedule tree: training along a path of memory compositions, each prefix at most once.

The network after task t is a pure function of the environment and the compositions chosen for the
tasks 2..t. So the tree keeps a row of accuracies per node and a snapshot per inner node; MCTS, BFS,
the baselines, the RL environments and the widgets all walk the same tree, and comparisons are paired.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rslib import metrics
from rslib.environment import Environment
from rslib.errors import UserError
from rslib.learner import Learner
from rslib.schedule import (
    UNTRAINED,
    Composition,
    Path,
    Schedule,
    ScheduleError,
    checked_path,
    compositions,
    counts,
    path_text,
)
from rslib.store import Store
from rslib.store.rows import Row

RAM_LIMIT = 256 * 2**20  # bytes of snapshots a tree holds in memory


@dataclass(frozen=True)
class Node:
    """The network after some tasks: what it was given to replay, and how well it does."""

    environment: Any  # an Environment, or the complete tree that the node belongs to
    path: Path
    val: np.ndarray  # (t+1, T) validation accuracies; row 0 (untrained) and unseen tasks are NaN
    test: np.ndarray  # (t+1, T) test accuracies; row 0 is the untrained network

    @classmethod
    def from_rows(cls, environment: Environment, path: Path, rows: Mapping[str, Row]) -> Node:
        found = [rows[text] for text in _way_to(path)]
        val, test = (np.array([getattr(row, kind) for row in found]) for kind in ("val", "test"))
        return cls(environment, path, val, test)

    @property
    def depth(self) -> int:
        """How many tasks have been learned."""
        return len(self.path) + 1

    @property
    def complete(self) -> bool:
        return self.depth == self.environment.n_tasks

    @property
    def converged(self) -> bool:
        """Whether training converged; a network that has diverged has NaN accuracies from then on."""
        now = np.concatenate([self.val[-1, : self.depth], self.test[-1, : self.depth]])
        return not np.isnan(now).any()

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.path)

    @property
    def reward(self) -> float:
        """Mean validation accuracy of the tasks seen: what search and policies maximise."""
        return float(self.val[-1, : self.depth].mean())

    @property
    def acc(self) -> float:
        """Mean test accuracy of the tasks seen; the paper's ACC once all are."""
        return float(self.test[-1, : self.depth].mean())

    @property
    def bwt(self) -> float:
        return metrics.bwt(self.test[:, : self.depth])

    @property
    def fwt(self) -> float:
        return metrics.fwt(self.test[:, : self.depth])

    def __str__(self) -> str:
        state = f"ACC {self.acc:.2%}" if self.converged else "did not converge"
        return f"after task {self.depth} of {self.environment.n_tasks}: {state}"


def _way_to(path: Path) -> list[str]:
    """The path texts of the untrained network and of every node down to the end of a path."""
    return [UNTRAINED] + [path_text(path[:i]) for i in range(len(path) + 1)]


class NotTrained(UserError, LookupError):
    """A node that is not known, in a tree that may only look up."""


class ScheduleTree:
    """All schedules of one environment. `store=None`: this process's memory only.

    `frozen=True` looks up and never trains: what 09_paper uses to see which results are stored.
    `rows`: results to use in addition to the store's.
    """

    def __init__(
        self,
        environment: Environment,
        store: Store | None = None,
        ram_limit: int = RAM_LIMIT,
        frozen: bool = False,
        rows: Mapping[str, Row] | None = None,
    ):
        self.environment, self.store, self.frozen = environment, store, frozen
        self.n_tasks: int = environment.n_tasks or 0
        self.trained = 0  # task trainings done by this tree
        if environment.budget(self.n_tasks - 1) < 0:
            needed = (self.n_tasks - 1) * environment.samples_kept_per_task
            raise ScheduleError(
                f"memory size {environment.memory_size} is too small: Class-IL keeps one sample of "
                f"each past class, {needed} before the last task"
            )
        self._rows: dict[str, Row] = {}
        if store:
            self._rows = store.rows(environment.key, environment.spec())
        self._rows |= rows or {}
        self._snapshots = _Snapshots(ram_limit)
        self._children: dict[int, list[Composition]] = {}  # listing them takes long: once each
        self.on_step: Callable[[], None] | None = None  # called at every step; may raise to stop
        self._learner: Learner | None = None
        self._at: Path | None = None  # where the learner stands; None: untrained
        self._key = environment.key  # of all the above

    # -- what may be replayed ----------------------------------------------------------------------

    def available(self, k: int) -> list[int]:
        """How many samples a schedule can take from each of the k tasks seen."""
        return self._available[:k]

    @functools.cached_property
    def _available(self) -> list[int]:
        """A pool holds `pool_size` samples, or the whole of a smaller task."""
        size, kept = self.environment.pool_size, self.environment.samples_kept_per_task
        return [min(size, sum(sizes)) - kept for sizes in self.environment.class_sizes()]

    @functools.cached_property
    def _stored_as(self) -> dict[str, Any]:
        return self.environment.as_stored()

    def budget(self, k: int) -> int:
        """How many samples may be scheduled with k tasks seen."""
        return self.environment.budget(k)

    def counts(self, proportions: Iterable, k: int) -> Composition:
        """A composition from shares of the k tasks seen, as this environment rounds and caps it."""
        return counts(list(proportions), self.budget(k), self.available(k))

    def compositions(self, k: int) -> list[Composition]:
        """The distinct children of a node with k tasks seen (for k small enough to list)."""
        if k not in self._children:
            self._children[k] = compositions(k, self.budget(k), self.available(k))
        return list(self._children[k])

    # -- walking -----------------------------------------------------------------------------------

    def walk(self, path: Iterable[Iterable[int]] | Schedule = ()) -> Node:
        """The node at the end of a path: looked up where it is known, trained where it is not."""
        self._forget_if_redefined()
        path = self._checked(path)
        for depth, text in enumerate(_way_to(path)):
            if self._row(text) is None:
                self._train(path, depth)
                break
        return Node.from_rows(self.environment, path, self._rows)

    def known(self, path: Iterable[Iterable[int]] | Schedule) -> bool:
        """Whether walking this path needs no training."""
        self._forget_if_redefined()
        return all(self._row(text) is not None for text in _way_to(self._checked(path)))

    def rows(self) -> dict[str, Row]:
        """Every row known now by path text, those that other processes have stored meanwhile too."""
        self._forget_if_redefined()
        if self.store:
            self._rows |= self.store.rows(self.environment.key)
        return dict(self._rows)

    def _forget_if_redefined(self) -> None:
        """Start anew where a user's own method, network or selection is not what it was."""
        if self.environment.key != self._key:
            self._rows, self._snapshots = {}, _Snapshots(self._snapshots.limit)
            self._learner = self._at = None
            self._key = self.environment.key

    def _checked(self, path: Iterable[Iterable[int]] | Schedule) -> Path:
        path = checked_path(path.compositions if isinstance(path, Schedule) else path)
        if len(path) > self.n_tasks - 1:
            raise ScheduleError(f"{len(path)} compositions, but only {self.n_tasks} tasks")
        for k, composition in enumerate(path, start=1):
            if sum(composition) > self.budget(k):
                raise ScheduleError(
                    f"composition {k} {composition} asks for {sum(composition)} samples; "
                    f"the memory has room for {self.budget(k)}"
                )
            for i, (n, pool) in enumerate(zip(composition, self.available(k), strict=True), 1):
                if n > pool:
                    raise ScheduleError(
                        f"composition {k} {composition} asks for {n} samples of task {i}; "
                        f"its pool holds {pool}"
                    )
        return path

    def _row(self, text: str) -> Row | None:
        if text not in self._rows and self.store:
            row = self.store.row(self.environment.key, text)  # another process may have put it
            if row:
                self._rows[text] = row
        return self._rows.get(text)

    def _train(self, path: Path, missing: int) -> None:
        """Fill in the rows from depth `missing` (0 = untrained) down to the end of the path."""
        if self.frozen:
            raise NotTrained(f"{path_text(path)!r} of {self.environment} has not been trained")
        learner = self._learner_above(path, missing)
        if missing == 0:
            self._put(UNTRAINED, learner, time.perf_counter())
        for depth in range(learner.n_learned + 1, len(path) + 2):
            start = time.perf_counter()
            self._at = None  # if interrupted in the middle, the learner stands nowhere
            learner.learn(path[depth - 2] if depth > 1 else ())
            self.trained += 1
            if self.environment.key != self._key:
                raise UserError(
                    f"{self.environment}: your own method, network or selection changed while it was "
                    "trained. If it writes to what it reads, register it with version=1"
                )
            node = path[: depth - 1]
            if depth < self.n_tasks:  # leaves are never trained on from
                self._save(node, learner)
            self._put(path_text(node), learner, start)
            self._at = node

    def _put(self, text: str, learner: Learner, start: float) -> None:
        if text in self._rows:
            return  # trained again only because its snapshot was gone
        val, test = learner.accuracies()
        seconds, environment = time.perf_counter() - start, self.environment
        row = Row(val, test, seconds, cpu=environment.cpu(), code=environment.code())
        if self.store:  # first, so that what could not be stored is not known here either
            self.store.put(environment.key, self._stored_as, text, row)
        self._rows[text] = row

    def _learner_above(self, path: Path, missing: int) -> Learner:
        """The learner at the deepest ancestor of depth `missing - 1` or less that can be had."""
        if self._learner is None:
            self._learner = Learner(self.environment)
        self._learner.on_step = self.on_step
        for depth in range(missing - 1, 0, -1):
            node = path[: depth - 1]
            if self._at == node:
                return self._learner
            state = self._snapshots.get(node)
            if state is None and self.store:
                state = self.store.load_checkpoint(self.environment.key, path_text(node))
            if state is not None:
                self._at = None  # if interrupted while restoring, the learner stands nowhere
                if self._restored(state, depth):
                    self._snapshots.put(node, state)
                    return self._learner
        self._at = None
        self._learner.reset()
        return self._learner

    def _restored(self, state: dict[str, Any], depth: int) -> bool:
        """Restore the learner from a snapshot; a snapshot that does not fit counts as absent."""
        assert self._learner is not None
        try:
            self._learner.restore(state)
            if self._learner.n_learned == depth:
                return True
            reason = f"it has learned {self._learner.n_learned} tasks instead of {depth}"
        except Exception as error:  # other names or shapes: torch raises many kinds
            reason = str(error)
        warnings.warn(f"a snapshot of {self.environment} is not used: {reason}", stacklevel=2)
        return False

    def _save(self, node: Path, learner: Learner) -> None:
        state = learner.snapshot()
        self._snapshots.put(node, state)
        if self.store:
            key = self.environment.key
            self.store.save_checkpoint(key, self._stored_as, path_text(node), state)

    def __repr__(self) -> str:
        return f"<ScheduleTree of {self.environment}: {len(self._rows)} nodes known>"


class _Snapshots:
    """Snapshots in memory, the least recently used dropped when they exceed the limit."""

    def __init__(self, limit: int):
        self.limit, self.size = limit, 0
        self._states: OrderedDict[tuple, tuple[dict[str, Any], int]] = OrderedDict()

    def get(self, node: tuple) -> dict[str, Any] | None:
        if node not in self._states:
            return None
        self._states.move_to_end(node)
        return self._states[node][0]

    def put(self, node: tuple, state: dict[str, Any]) -> None:
        if node in self._states:
            self.size -= self._states.pop(node)[1]
        size = nbytes(state)
        self._states[node] = (state, size)
        self.size += size
        while self.size > self.limit and len(self._states) > 1:
            self.size -= self._states.popitem(last=False)[1][1]


def nbytes(value: Any) -> int:
    """Add up the bytes of all tensors in a snapshot."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    return 0
