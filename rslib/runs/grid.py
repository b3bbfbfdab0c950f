"""Grids of runs: (environment, policy) cells on any `concurrent.futures` executor.

A cell is one policy or search in one environment; its result is one row of the DataFrame that tables
and plots take. Cells share everything through the store, so they can run anywhere and in any order:
serially, in processes (the default: one per core, one thread each), or on a Dask cluster. Interrupting
keeps what is done; a cell that fails is reported with its parameters and does not lose the others.
"""

from __future__ import annotations

import concurrent.futures as cf
import functools
import math
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from rslib import data, search
from rslib.environment import Environment
from rslib.learner import Learner
from rslib.memory import fill
from rslib.runs.workers import executor_for, finished, stop_workers
from rslib.schedule import n_actions
from rslib.store import Store
from rslib.tree import NotTrained, ScheduleTree


@dataclass(frozen=True)
class Cell:
    """One policy or search in one environment."""

    environment: Environment
    policy: str
    rollouts: int = 100
    label: str | None = None  # printed instead of the policy's own name, e.g. "A-GEM"

    def __str__(self) -> str:
        rollouts = f" ({self.rollouts} rollouts)" if self.policy in ("mcts", "random-best") else ""
        return f"{self.label or self.policy}{rollouts} on {self.environment}"


class GridError(RuntimeError):
    """Some cells failed; `.rows` has the others."""

    def __init__(self, failed: list[tuple[Cell, str]], rows: pd.DataFrame):
        lines = [f"{cell}\n{reason}" for cell, reason in failed]
        super().__init__(f"{len(failed)} cell(s) failed:\n\n" + "\n\n".join(lines))
        self.failed, self.rows = failed, rows


def run_cells(
    cells: Iterable[Cell],
    store: Store | None = None,
    n_jobs: int | None = None,
    executor: Any = None,
    progress: bool = True,
    strict: bool = True,
) -> pd.DataFrame:
    """Run the cells and return one row each, in the cells' order.

    `executor`: anything with `submit` (a `concurrent.futures` executor or a Dask client); by default
    the cluster at `$RSLIB_CLUSTER`, else `n_jobs` processes (one per core), else this process.
    `strict=False` returns the rows there are instead of raising when a cell fails.
    """
    cells = list(cells)
    store = store or Store()
    failed: list[tuple[Cell, str]] = []
    # What is there already needs no worker: starting one takes longer than looking it up.
    rows = _known(cells, store)
    # Longest first (it sorts stably): a BFS that starts last would leave the other cores idle.
    left = [i for i in range(len(cells)) if i not in rows]
    order = sorted(left, key=lambda i: -_trainings(cells[i]))
    with executor_for(executor, n_jobs, len(order)) as pool:
        jobs = {pool.submit(run_cell, cells[i], store): i for i in order}
        try:
            done = tqdm(finished(jobs), "cells", len(order), disable=not progress or not order)
            for job in done:
                try:
                    error = job.exception()
                except cf.CancelledError as cancelled:  # by the cluster: not by us, see below
                    error = cancelled
                if error is None:
                    rows[jobs[job]] = job.result()
                else:
                    reason = "".join(traceback.format_exception_only(error)).strip()
                    failed.append((cells[jobs[job]], reason))
        except KeyboardInterrupt:
            for job in jobs:
                job.cancel()
            if executor is None:
                stop_workers(pool)
            print(f"interrupted: {len(rows)} of {len(cells)} cells are done and kept")
    frame = pd.DataFrame([rows[i] for i in sorted(rows)])
    if failed and strict:
        raise GridError(failed, frame)
    for cell, reason in failed:
        print(f"failed: {cell}: {reason}")
    return frame


def _known(cells: list[Cell], store: Store) -> dict[int, dict[str, Any]]:
    """The rows, by number, of the cells that need no training; trouble is left to the workers."""
    found = {}
    find = _finder(store)
    for i, cell in enumerate(cells):
        start = time.perf_counter()
        try:
            found[i] = row(cell, find(cell))
        except Exception:
            continue
        found[i]["seconds"] = time.perf_counter() - start
    return found


def look_up(cells: Iterable[Cell], store: Store | None = None) -> pd.DataFrame:
    """The rows of those cells whose results are all there; nothing is trained."""
    find = _finder(store or Store())
    found = []
    for cell in cells:
        try:
            found.append(row(cell, find(cell)))
        except NotTrained:
            continue
    return pd.DataFrame(found)


def rows_of(
    cells: Iterable[Cell], n_jobs: int | None = None, train: bool = True, store: Store | None = None
) -> pd.DataFrame:
    """The rows of a notebook's grid, after saying how long that takes; or, with `train=False`, only
    those that are there, after saying how many that is."""
    cells, store = list(cells), store or Store()
    if train:
        print(forecast(cells, store, n_jobs or 1))
        return run_cells(cells, store, n_jobs)
    found = look_up(cells, store)
    if not len(found):
        raise NotTrained(f"none of the {len(cells)} runs is there, and nothing was to be trained")
    print(f"{len(found)} of {len(cells)} runs are there; nothing is trained.")
    return found


def result(cell: Cell, store: Store | None = None) -> search.Result:
    """A finished cell's whole result: schedules and accuracy matrices, every rollout of a search."""
    return _finder(store or Store())(cell)


def _finder(store: Store) -> Callable[[Cell], search.Result]:
    """Finds results one after the other; cells of one environment share its tree, read once."""
    trees: dict[Environment, ScheduleTree] = {}

    def find(cell: Cell) -> search.Result:
        environment = cell.environment
        if environment not in trees:
            trees[environment] = ScheduleTree(environment, store, frozen=True)
        tree = trees[environment]
        tree.walk()  # nothing there at all: said before a search has made any plans
        try:
            return search.run(tree, cell.policy, cell.rollouts)
        except data.DataError as error:  # own rows, but their data have gone
            raise NotTrained(str(error)) from None

    return find


def forecast(cells: Iterable[Cell], store: Store | None = None, n_jobs: int = 1) -> str:
    """How long the cells will take: trainings still to be done (at most) times a timed step."""
    find = _finder(store or Store())
    trainings, seconds = 0.0, 0.0
    cost: dict[tuple, float] = {}
    for cell in cells:
        environment = cell.environment
        try:
            find(cell)
        except NotTrained:
            kind = (environment.dataset, environment.method, environment.memory_size)
            if kind not in cost:
                cost[kind] = _seconds_per_task(environment)
            n = _trainings(cell)
            trainings, seconds = trainings + n, seconds + n * cost[kind]
    if not trainings:
        return "Everything is there already: nothing to train."
    minutes = seconds / n_jobs / 60
    return f"At most {trainings:,.0f} task trainings to do: about {minutes:.1f} min on {n_jobs} core(s)."


def _trainings(cell: Cell) -> float:
    """Expected distinct nodes of r random paths (one path for a policy) below the root."""
    n = cell.environment.n_tasks or 0
    paths = cell.rollouts if cell.policy in ("mcts", "random-best") else 1
    width, total = 1.0, 1.0
    for k in range(1, n):
        width = min(width * n_actions(k), 1e12)
        if cell.policy == "bfs":
            total += width
        elif width > 1:
            total -= width * math.expm1(paths * math.log1p(-1 / width))
        else:
            total += 1
    return total


def _seconds_per_task(environment: Environment, n_steps: int = 10) -> float:
    """A few real training steps, timed and multiplied."""
    learner = Learner(environment)
    learner.n_learned = 1
    learner.net.train()
    batches = learner._batches(1, fill(learner.scenario.tasks, [], ()))
    learner.method.begin(learner, fill(learner.scenario.tasks, [], ()))
    times = []
    for batch in islice(batches, n_steps):
        start = time.perf_counter()
        learner.method.step(learner, batch)
        times.append(time.perf_counter() - start)
    per_step = statistics.median(times)  # the first steps warm up
    n = len(learner.scenario.tasks[0].train)
    return per_step * (environment.epochs or 1) * -(-n // (environment.batch_size or 1))


def run_cell(cell: Cell, store: Store) -> dict[str, Any]:
    """One row. Runs in a worker, which keeps its last trees so that cells of one environment share."""
    start = time.perf_counter()
    tree = _tree(cell.environment, store)
    result = search.run(tree, cell.policy, cell.rollouts)
    return row(cell, result) | {"seconds": time.perf_counter() - start}


def row(cell: Cell, result: search.Result) -> dict[str, Any]:
    """The columns that tables and plots take; accuracies as fractions."""
    environment = cell.environment
    ok = result.node.converged
    return {
        "dataset": environment.dataset,
        "scenario": environment.scenario,
        "selection": environment.selection,
        "replay": environment.method,
        "memory_size": environment.memory_size,
        "samples_per_class": environment.samples_per_class,
        "n_tasks": environment.n_tasks,
        "seed": environment.seed,
        "class_order_seed": environment.class_order_seed,
        "policy": cell.policy,
        "label": cell.label or ("Joint" if environment.method == "joint" else result.label),
        "rollouts": len(result.rewards) if cell.policy in search.SEARCHES else float("nan"),
        "acc": result.acc,
        "bwt": result.bwt,
        "fwt": result.fwt,
        "reward": result.reward,
        "converged": ok,
        "trained": result.trained,
        "schedule": result.schedule.to_json(),
        "subset": environment.subset,
        "key": environment.key,
    }


_of_thread = threading.local()  # neither a learner nor a connection can be shared by threads


def _tree(environment: Environment, store: Store) -> ScheduleTree:
    """This thread's tree of the environment; the key says if a user's file has changed meanwhile."""
    if not hasattr(_of_thread, "tree"):
        _of_thread.tree = functools.lru_cache(maxsize=2)(_new_tree)
    return _of_thread.tree(environment, environment.key, store.folder, store.shipped)


def _new_tree(
    environment: Environment, key: str, folder: Path, shipped: Path | None
) -> ScheduleTree:
    return ScheduleTree(environment, Store(folder, shipped))
