"""Sharing a search among workers: rollouts are trained ahead, and the result is the sequential search's.

A search is a pure function of the rewards that it sees, and walking what is stored takes milliseconds.
So whenever a worker is free, the search runs again from its start. Where it meets a schedule that is
not stored, it is given a guess (the schedule improves nothing) and goes on: what it meets next is what
it will probably need next, and is trained ahead. A search that needed no guess is the sequential one,
and is done. Workers are handed single nodes, and no node is handed out twice.
"""

from __future__ import annotations

import concurrent.futures as cf
import dataclasses
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path as Folder
from typing import TYPE_CHECKING, Any

import numpy as np

from rslib import search
from rslib.environment import Environment
from rslib.runs.workers import WithRegistered, n_workers
from rslib.schedule import Path, Schedule
from rslib.store import Store
from rslib.tree import Node, NotTrained, ScheduleTree

if TYPE_CHECKING:
    from rslib.runs.grid import Cell


class GuessingTree(ScheduleTree):
    """A tree that never trains: it notes the nodes it lacks, and guesses how their schedules end."""

    def __init__(self, environment: Environment, store: Store):
        super().__init__(environment, store, frozen=True)
        self.lacking: list[Path] = []  # the nodes to train, the one that is needed next first
        self.n_ahead = 1

    def search(self, policy: str, rollouts: int, n_ahead: int) -> search.Result | None:
        """Run a search or a policy; None if a node is lacking, and `lacking` then has up to n_ahead."""
        self.lacking, self.n_ahead = [], n_ahead
        try:
            result = search.run(self, policy, rollouts)
        except NotTrained:
            return None
        return None if self.lacking else result

    def walk(self, path: Iterable[Iterable[int]] | Schedule = ()) -> Node:
        """The node if it is stored; else, of a whole schedule, a guess: training along it diverges."""
        try:
            return super().walk(path)
        except NotTrained:
            path = self._checked(path)
            if len(path) < self.n_tasks - 1 or len(self.lacking) == self.n_ahead:
                raise  # a policy cannot decide without its node; or enough is known to be lacking
            nothing = np.full((len(path) + 2, self.n_tasks), np.nan)
            return Node(self.environment, path, nothing, nothing)

    def _train(self, path: Path, missing: int) -> None:
        node = path[: max(missing - 1, 0)]
        if node not in self.lacking:
            self.lacking.append(node)
        super()._train(path, missing)  # raises: this tree is frozen


def share(
    pool: Any,
    cells: Mapping[cf.Future, Cell],
    store: Store,
    row: Callable[[Cell, search.Result], dict[str, Any]],
) -> Iterator[cf.Future]:
    """Train the cells' nodes on the workers of a pool; yields a cell's future when it has its row.

    Nodes that a search or a policy needs next go before those that are guessed.
    """
    start, left, n = time.perf_counter(), dict(cells), n_workers(pool)
    store = Store(store.folder, store.shipped)  # a connection belongs to the thread that made it
    trees: dict[Environment, GuessingTree] = {}
    busy: dict[cf.Future, tuple[Environment, Path]] = {}
    done: dict[tuple[Environment, Path], BaseException] = {}  # and what to say if it is not stored
    trained: Counter[cf.Future] = Counter()
    try:
        while left:
            plans: dict[cf.Future, list[tuple[Environment, Path]]] = {}
            for job, cell in list(left.items()):
                environment = cell.environment
                try:
                    if environment not in trees:
                        trees[environment] = GuessingTree(environment, store)
                    result = trees[environment].search(cell.policy, cell.rollouts, n)
                    lacking = [(environment, path) for path in trees[environment].lacking]
                    if lacking and lacking[0] in done:
                        raise done[lacking[0]]
                except Exception as error:
                    job.set_exception(error)
                else:
                    if result is None:
                        plans[job] = lacking
                        continue
                    result = dataclasses.replace(result, trained=trained[job])
                    job.set_result(row(cell, result) | {"seconds": time.perf_counter() - start})
                del left[job]
                yield job
            ranked = zip_longest(*plans.values())
            for job, node in ((job, node) for rank in ranked for job, node in zip(plans, rank)):
                if node and len(busy) < n and node not in done and node not in busy.values():
                    try:
                        busy[pool.submit(WithRegistered(train), *node, store)] = node
                        trained[job] += 1
                    except cf.BrokenExecutor as error:
                        done[node] = error
            for job in cf.wait(busy, return_when=cf.FIRST_COMPLETED).done:
                node = busy.pop(job)
                error = cf.CancelledError() if job.cancelled() else job.exception()
                done[node] = error or NotTrained(
                    f"a worker has trained {node[1]} of {node[0]}, but it is not in {store.folder}: "
                    "let all workers use this folder"
                )
    finally:
        for job in busy:
            job.cancel()


def train(environment: Environment, path: Path, store: Store) -> None:
    """Train one node into the store. Runs in a worker."""
    kept_tree(environment, store).walk(path)


_of_thread = threading.local()  # neither a learner nor a connection can be shared by threads


def kept_tree(environment: Environment, store: Store) -> ScheduleTree:
    """This thread's tree of the environment; the key says if a user's file has changed meanwhile."""
    if not hasattr(_of_thread, "tree"):
        _of_thread.tree = functools.lru_cache(maxsize=2)(_new_tree)
    return _of_thread.tree(environment, environment.key, store.folder, store.shipped)


def _new_tree(
    environment: Environment, key: str, folder: Folder, shipped: Folder | None
) -> ScheduleTree:
    return ScheduleTree(environment, Store(folder, shipped))
