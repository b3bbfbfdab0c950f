"""Grids of runs: (environment, policy) cells, their results, and one row of a DataFrame for each.

`run` looks every cell up once, trains what the store lacks, and returns `Runs`: the rows that tables and
figures take, and each cell's whole result on request. Cells share everything through the store, so they
can run anywhere and in any order: in this process, in processes of our own (the default, one thread
each), or on a Dask cluster. Where these are more than the environments, searches are shared among them
(`rslib.runs.speculation`). Interrupting keeps what is done; a cell that fails is reported with its
parameters and does not lose the others.
"""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import functools
import math
import os
import statistics
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from rslib import data, files, search
from rslib.environment import Environment
from rslib.errors import Interrupted, UserError
from rslib.learner import Learner
from rslib.memory import fill
from rslib.runs.speculation import kept_tree, share
from rslib.runs.workers import WithRegistered, executor_for, finished, n_workers
from rslib.schedule import n_actions
from rslib.store import Store
from rslib.tree import NotTrained, ScheduleTree, nbytes


@dataclass(frozen=True)
class Cell:
    """One policy or search in one environment."""

    environment: Environment
    policy: str
    rollouts: int = 100
    label: str | None = None  # printed instead of the policy's own name, e.g. "A-GEM"

    def __str__(self) -> str:
        rollouts = f" ({self.rollouts} rollouts)" if self.policy in search.BOUNDED else ""
        return f"{self.label or self.policy}{rollouts} on {self.environment}"


class GridError(UserError, RuntimeError):
    """Some cells failed; `.rows` has the others."""

    def __init__(self, failed: list[tuple[Cell, str]], rows: pd.DataFrame):
        lines = [f"{cell}\n{reason}" for cell, reason in failed]
        super().__init__(f"{len(failed)} cell(s) failed:\n\n" + "\n\n".join(lines))
        self.failed, self.rows = failed, rows


@dataclass(eq=False)
class Runs:
    """The cells that were requested, a row for each that has a result, and the results themselves.

    Results are read from a store, never trained; cells of one environment share its tree, read once.
    With another torch than that of results/, a cell that the store cannot answer is looked up in the
    shipped rows alone: rows of two versions of torch never meet in one result.
    """

    cells: Sequence[Cell]
    rows: pd.DataFrame
    store: Store = field(repr=False)
    _trees: dict[Environment, list[ScheduleTree]] = field(default_factory=dict, repr=False)
    _found: dict[Cell, tuple[ScheduleTree, search.Result]] = field(default_factory=dict, repr=False)

    def __getitem__(self, cell: Cell) -> search.Result:
        """A cell's whole result: schedules and accuracy matrices, every rollout of a search.

        Raises NotTrained if the store lacks any part of it.
        """
        return self._answer(cell)[1]

    def tree(self, cell: Cell) -> ScheduleTree:
        """The tree that answered a cell, which looks up more schedules and never trains."""
        return self._answer(cell)[0]

    def made_with(self) -> set[str]:
        """Name the torch, the CPU and the code that trained what these runs are read from."""
        trees = {self.tree(cell) for cell in self.cells if cell in self}
        return {row.made_with() for tree in trees for row in tree.rows().values()}

    def of(self, name: str) -> list[search.Result]:
        """The stored results of a label, or of a policy without one, in the order of the cells."""
        wanted = [cell for cell in self.cells if name == (cell.label or cell.policy)]
        return [self[cell] for cell in wanted if cell in self]

    def first(self, name: str) -> search.Result:
        """The first of them; raises NotTrained where none is stored."""
        stored = self.of(name)
        if not stored:
            raise NotTrained(
                f"What is shown here is about {name!r}, and none of its runs is stored. Set "
                "train=True to run it"
            )
        return stored[0]

    def __contains__(self, cell: Cell) -> bool:
        try:
            return self[cell] is not None
        except NotTrained:
            return False

    def __len__(self) -> int:
        """How many cells have a result."""
        return len(self.rows)

    def _answer(self, cell: Cell) -> tuple[ScheduleTree, search.Result]:
        """The tree that knows all of a cell, and the cell's result."""
        if cell not in self._found:
            try:
                for tree in self._trees_of(cell.environment):
                    with contextlib.suppress(NotTrained):
                        tree.walk()  # raises if nothing is stored, before a search has made any plans
                        self._found[cell] = tree, search.run(tree, cell.policy, cell.rollouts)
                        break
                else:
                    raise NotTrained(f"{cell} has not been trained")
            except data.DataError as error:  # own rows, but their data are gone
                raise NotTrained(str(error)) from None
        return self._found[cell]

    def _trees_of(self, environment: Environment) -> list[ScheduleTree]:
        """The trees to look an environment up in: the store's, and with another torch the shipped."""
        if environment not in self._trees:
            trees = [ScheduleTree(environment, self.store, frozen=True)]
            if environment.key != environment.recorded_key:
                rows = self.store.shipped_rows(environment.recorded_key, environment.spec())
                trees += [ScheduleTree(environment, frozen=True, rows=rows)] if rows else []
            self._trees[environment] = trees
        return self._trees[environment]


def lookup(cells: Iterable[Cell], store: Store | None = None) -> Runs:
    """The runs whose results are stored; nothing is trained."""
    runs = Runs(list(cells), pd.DataFrame(), store or Store())
    runs.rows = pd.DataFrame([row(cell, runs[cell]) for cell in runs.cells if cell in runs])
    return runs


def run(
    cells: Iterable[Cell],
    n_jobs: int | None = None,
    train: bool = True,
    store: Store | None = None,
    executor: Any = None,
    progress: bool = True,
) -> Runs:
    """The results of all cells: those stored are looked up, the others trained.

    n_jobs: processes; None is one per core.
    train: False returns what is stored, and raises if that is nothing.
    executor: anything with `submit` (a `concurrent.futures` executor or a Dask client); by default
        the cluster at `$RSLIB_CLUSTER`, else processes of our own, else this process.
    """
    runs = Runs(list(cells), pd.DataFrame(), store or Store())
    cells = runs.cells
    rows: dict[int, dict[str, Any]] = {}  # by the number of their cell
    for i, cell in enumerate(cells):
        # Looked up here: starting a worker takes longer. A cell in trouble is left to the workers,
        # which report it with its parameters; if nothing is trained, it raises here.
        start = time.perf_counter()
        with contextlib.suppress(Exception if train else NotTrained):
            rows[i] = row(cell, runs[cell]) | {"seconds": time.perf_counter() - start}
    if not train:
        if not rows:
            raise NotTrained(
                f"No stored results for these {len(cells)} runs. Set train=True to run them"
            )
        print(f"{len(rows)} of {len(cells)} runs are stored; nothing is trained.")
        runs.rows = pd.DataFrame(list(rows.values()))
        return runs
    left = [i for i in range(len(cells)) if i not in rows]
    cores = n_jobs or os.cpu_count() or 1
    if progress:
        print(forecast([cells[i] for i in left], cores))
    # Longest first (it sorts stably): a BFS that starts last would leave the other cores idle.
    order = sorted(left, key=lambda i: -expected_trainings(cells[i]))
    longest = [cells[i] for i in order]
    failed: list[tuple[Cell, str]] = []
    n_processes = cores if _worth_sharing(longest, cores) else min(cores, len(order))
    with executor_for(executor, n_processes) as pool:
        if _worth_sharing(longest, n_workers(pool)):
            jobs = dict(zip([cf.Future() for _ in order], order, strict=True))
            done = share(pool, dict(zip(jobs, longest, strict=True)), runs.store, row)
        else:
            jobs = {pool.submit(WithRegistered(run_cell), cells[i], runs.store): i for i in order}
            done = finished(jobs)
        try:
            for job in tqdm(done, "cells", len(order), disable=not progress or not order):
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
            for job in jobs:  # a pool of ours ends its processes too
                job.cancel()
            raise Interrupted(
                f"{len(rows)} of {len(cells)} cells are done and kept. Run this again to go on"
            ) from None
    runs.rows = pd.DataFrame([rows[i] for i in sorted(rows)])
    if failed:
        raise GridError(failed, runs.rows)
    runs._trees.clear()  # read anew next time: workers have stored more
    return runs


# -- one cell --------------------------------------------------------------------------------------


def run_cell(cell: Cell, store: Store) -> dict[str, Any]:
    """One row. Runs in a worker, which keeps its last trees so that cells of one environment share."""
    start = time.perf_counter()
    tree = kept_tree(cell.environment, store)
    result = search.run(tree, cell.policy, cell.rollouts)
    return row(cell, result) | {"seconds": time.perf_counter() - start}


def row(cell: Cell, result: search.Result) -> dict[str, Any]:
    """The columns that tables and figures take; accuracies as fractions."""
    environment = cell.environment
    preset = environment.preset
    usual = {name: getattr(preset, name) for name in ("n_tasks", "network", "epochs", "hidden")}
    usual["first_epochs"] = preset.first_epochs or environment.epochs
    changed = {k: getattr(environment, k) for k, v in usual.items() if getattr(environment, k) != v}
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
        "changed": ", ".join(f"{name} = {value}" for name, value in changed.items()),
        "policy": cell.policy,
        "label": cell.label or ("Joint" if environment.method == "joint" else result.label),
        "rollouts": _n_rollouts(cell, result),
        "acc": result.acc,
        "bwt": result.bwt,
        "fwt": result.fwt,
        "reward": result.reward,
        "converged": result.node.converged,
        "trained": result.trained,
        "schedule": result.schedule.to_json(),
        "subset": environment.subset,
        "key": environment.key,
    }


def _n_rollouts(cell: Cell, result: search.Result) -> float:
    """How many schedules a search tried, also one whose schedule is transferred; NaN for policies."""
    if cell.policy in search.SEARCHES:
        return len(result.rewards)
    return cell.rollouts if (cell.label or "").startswith("MCTS ") else float("nan")


# -- how long it will take -------------------------------------------------------------------------


def forecast(cells: Iterable[Cell], n_jobs: int = 1) -> str:
    """How long these cells will take, and how much disk: their trainings (at most) times one of them."""
    trainings, seconds, snapshots = _cost(cells)
    if not trainings:
        return "Every result is stored already: nothing to train."
    minutes, disk = seconds / n_jobs / 60, min(snapshots, files.snapshot_limit()) / 2**20
    return (
        f"At most {trainings:,.0f} task trainings to do: about {minutes:.1f} min on {n_jobs} core(s), "
        f"and at most {math.ceil(disk):,} MB of disk."
    )


def _cost(cells: Iterable[Cell]) -> tuple[float, float, float]:
    """The task trainings of these cells (at most), their seconds on one core, their snapshots' bytes."""
    trainings, seconds, snapshots = 0.0, 0.0, 0.0
    cost: dict[tuple, tuple[float, int]] = {}
    for cell in cells:
        environment = cell.environment
        kind = (environment.dataset, environment.method, environment.memory_size)
        if kind not in cost:
            cost[kind] = 0.0, 0  # where a cell is in trouble: a worker reports it by name
            with contextlib.suppress(Exception):
                cost[kind] = _cost_per_task(environment)
        n, (time_each, bytes_each) = expected_trainings(cell), cost[kind]
        trainings, seconds = trainings + n, seconds + n * time_each
        snapshots += n * bytes_each
    return trainings, seconds, snapshots


SHORT = 60  # seconds of training that are not worth starting processes for


def _worth_sharing(cells: Sequence[Cell], n_workers: int) -> bool:
    """Whether to hand nodes to workers instead of cells, which would leave some idle or train twice."""
    searches = any(cell.policy in search.SEARCHES for cell in cells)
    environments = {cell.environment for cell in cells}
    return searches and len(environments) < n_workers and _cost(cells)[1] > SHORT


def expected_trainings(cell: Cell) -> float:
    """Expected distinct nodes of r random paths (one path for a policy) below the root."""
    n = cell.environment.n_tasks or 0
    paths = cell.rollouts if cell.policy in search.BOUNDED else 1
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


@functools.lru_cache(maxsize=64)
def _cost_per_task(environment: Environment, n_steps: int = 10) -> tuple[float, int]:
    """The seconds of a few real training steps, multiplied, and the bytes of a snapshot after them."""
    learner = Learner(environment)
    learner.n_learned = 1
    learner.net.train()
    nothing = fill(learner.scenario.tasks, [], ())
    learner.method.begin(learner, nothing)
    times = []
    for batch in islice(learner.batches(1, nothing), n_steps):
        start = time.perf_counter()
        learner.method.step(learner, batch)
        times.append(time.perf_counter() - start)
    per_step = statistics.median(times)  # the first steps warm up
    n = len(learner.scenario.tasks[0].train)
    n_batches = (environment.epochs or 1) * -(-n // (environment.batch_size or 1))
    return per_step * n_batches, nbytes(learner.snapshot())
