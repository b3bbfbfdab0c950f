"""What has been evaluated: the complete schedules of an environment, their ranks and their names.

Works from rows alone, so that shipped results can be looked at on a machine without their dataset;
only the replayed images, and the names that need a policy to be asked, want the data.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rslib import data, presets, search
from rslib.environment import Environment
from rslib.memory import fill, make_pool
from rslib.methods import METHODS
from rslib.methods.er import Method
from rslib.schedule import Composition, path_from_text, path_text
from rslib.store import Store
from rslib.store.rows import Row
from rslib.tree import Node, NotTrained, ScheduleTree
from rslib.widgets.growth import Growth

Path_ = tuple[Composition, ...]


@dataclass(frozen=True)
class Step:
    """What learning one task did: accuracies of every task before and after it, as fractions."""

    task: int
    composition: Composition
    before: np.ndarray  # (T,) test accuracies
    after: np.ndarray  # (T,)


def step(node: Node, task: int) -> Step:
    """The moment when `task` was learned; at task 1 there is nothing to replay."""
    composition = node.path[task - 2] if task > 1 else ()
    return Step(task, composition, node.test[task - 1], node.test[task])


class Record:
    """The evaluated schedules of one environment, best by validation first."""

    def __init__(
        self, environment: Environment, rows: Mapping[str, Row], store: Store | None = None
    ):
        self.environment, self.store = environment, store
        self._rows = rows
        n_old = (environment.n_tasks or 0) - 1
        paths = [path_from_text(text) for text in rows]
        nodes = [Node.from_rows(environment, p, rows) for p in paths if len(p) == n_old]
        nodes = [node for node in nodes if node.converged]
        nodes.sort(key=lambda node: (-node.reward, path_text(node.path)))
        self.nodes: dict[Path_, Node] = {node.path: node for node in nodes}

    @classmethod
    def of(cls, tree: ScheduleTree) -> Record:
        return cls(tree.environment, tree.rows(), tree.store)

    @classmethod
    def none(cls) -> Record:
        """Of an empty store."""
        return cls(Environment(), {})

    def __len__(self) -> int:
        return len(self.nodes)

    def rank(self, node: Node, by: str = "acc") -> int:
        """1 for the best; equally good ones share the better rank. `by`: "acc" or "reward"."""
        return 1 + sum(getattr(other, by) > getattr(node, by) for other in self.nodes.values())

    @functools.cached_property
    def names(self) -> dict[str, Path_]:
        """Schedules that have a name here, such as "ETS": those whose whole way is known."""
        names: dict[str, Path_] = {}
        try:
            tree = ScheduleTree(self.environment, self.store, frozen=True, rows=self._rows)
            tau = presets.heuristic(self.environment.dataset, self.environment.scenario or "task")
            grown = Growth(tree)
        except (data.DataError, KeyError):
            return names  # shipped rows without their dataset
        if len(grown):
            names[f"MCTS ({len(grown)} rollouts)"] = grown.best.path
        for policy in ("ets", tau, "random", "none"):
            try:
                result = search.run_policy(tree, policy)
            except NotTrained:
                continue
            if result.node.converged:
                names[result.label] = result.node.path
        return names

    def choices(self) -> list[tuple[str, Path_]]:
        """Every schedule with a label: those with names first, then all by validation."""
        named = [(name, path) for name, path in self.names.items() if path in self.nodes]
        ranked = [
            (f"#{i} of {len(self)}: {textwrap.shorten(path_text(path), 60)}", path)
            for i, path in enumerate(self.nodes, start=1)
        ]
        return named + ranked

    # -- what was replayed -------------------------------------------------------------------------

    def replayed(self, path: Path_, task: int) -> list[tuple[int, np.ndarray]] | str:
        """The images replayed while `task` was learned, by old task; or why they cannot be shown."""
        environment = self.environment
        try:
            tasks = environment.tasks().tasks
        except data.DataError:
            return f"{environment.dataset} is not on this machine"
        pools = self._pools(path, task)
        if pools is None:
            return "these samples were chosen with the network, and its snapshot is gone"
        counts = path[task - 2] if task > 1 else ()
        memory = fill(tasks, pools, counts, environment.samples_kept_per_task)
        if not len(memory):
            return "nothing is replayed"
        if memory.x.ndim != 4:
            return "these samples are not images"
        by_task = [(int(i), memory.x[memory.task == i].numpy()) for i in memory.task.unique()]
        return [(i + 1, images) for i, images in by_task]

    def _pools(self, path: Path_, task: int) -> list[torch.Tensor] | None:
        """The candidates of the tasks before `task`: out of a snapshot, or drawn again."""
        environment = self.environment
        tasks = environment.tasks().tasks[: task - 1]
        by_method = METHODS[environment.method].pool is not Method.pool
        if environment.selection != "mof" and not by_method:
            size = environment.pool_size
            return [make_pool(environment.selection, t, size, environment.seed) for t in tasks]
        state = None
        if self.store and task > 1:
            state = self.store.load_checkpoint(environment.key, path_text(path[: task - 2]))
        return state["pools"] if state else None


class Library:
    """The environments in a store, by dataset, settings and seed; one record may be handed in."""

    def __init__(self, store: Store | None, given: Record | None = None):
        self.store = store
        self._found: dict[str, dict[str, dict[int, str]]] = {}  # dataset, settings, seed: key
        self._given = {given.environment.key: given} if given else {}
        self._specs = store.environments() if store else {}
        self.start: tuple[str, str, int] | None = None  # what to show first: the given, or the
        rows = store.sizes()[0] if store else {}  # one that most of the store's own rows are of
        if store and not rows:  # a fresh clone: most of the shipped ones
            rows = {key: len(store.shipped_rows(key)) for key in self._specs}
        for key, spec in sorted(self._specs.items(), key=lambda item: -rows.get(item[0], 0)):
            try:
                place = self._add(Environment.from_spec(spec), key)
                self.start = self.start or place
            except (ValueError, TypeError, data.DataError):
                continue  # of a method or a file that this machine does not have
        for key, record in self._given.items():
            self.start = self._add(record.environment, key)

    def _add(self, environment: Environment, key: str) -> tuple[str, str, int]:
        title, text, seed = environment.preset.title, settings_of(environment), environment.seed
        by_settings = self._found.setdefault(title, {})
        if by_settings.get(text, {}).get(seed, key) != key:
            text = f"{text} ({key[:6]})"  # they differ in something not said, such as epochs
        by_settings.setdefault(text, {})[seed] = key
        return title, text, seed

    def datasets(self) -> list[str]:
        return sorted(self._found)

    def settings(self, dataset: str) -> list[str]:
        return sorted(self._found[dataset])

    def seeds(self, dataset: str, settings: str) -> list[int]:
        return sorted(self._found[dataset][settings])

    def record(self, dataset: str, settings: str, seed: int) -> Record:
        key = self._found[dataset][settings][seed]
        if key in self._given:
            return self._given[key]
        assert self.store
        return Record(Environment.from_spec(self._specs[key]), self.store.rows(key), self.store)


def settings_of(environment: Environment) -> str:
    """An environment's description without its dataset and its seed."""
    whole = str(environment).removeprefix(environment.preset.title).lstrip()
    return whole.removesuffix(f", seed {environment.seed}")
