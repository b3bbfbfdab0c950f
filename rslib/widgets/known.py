"""What is known without training: an environment's schedules, a store's environments, a search.

Works from rows alone, so that shipped results can be viewed on a machine without their dataset. Only
the replayed images, and the names that a policy has to propose again, need the data.
"""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch

from rslib import data, presets, search
from rslib.environment import Environment
from rslib.memory import SELECTIONS, NeedsNetwork, fill, make_pool
from rslib.methods import METHODS
from rslib.methods.er import Method
from rslib.schedule import Path, path_from_text, path_text
from rslib.store import Store
from rslib.store.rows import Row
from rslib.tree import Node, NotTrained, ScheduleTree

ROLLOUTS = 100  # of the paper's searches


# -- an environment's schedules --------------------------------------------------------------------


class KnownSchedules:
    """The evaluated complete schedules of one environment, best by validation first."""

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
        self.nodes: dict[Path, Node] = {node.path: node for node in nodes}

    @classmethod
    def of(cls, tree: ScheduleTree) -> KnownSchedules:
        return cls(tree.environment, tree.rows(), tree.store)

    def __len__(self) -> int:
        return len(self.nodes)

    def rank(self, node: Node, by: str = "acc") -> int:
        """Count from 1 for the best by "acc" or "reward"; equals share the better rank."""
        return 1 + sum(getattr(other, by) > getattr(node, by) for other in self.nodes.values())

    @functools.cached_property
    def names(self) -> dict[str, Path]:
        """The schedules of MCTS and of named policies such as "ETS", where every row is known."""
        names: dict[str, Path] = {}
        environment = self.environment
        try:
            tree = ScheduleTree(environment, self.store, frozen=True, rows=self._rows)
            replayed = ReplayedSearch(tree)
        except (data.DataError, KeyError):
            return names  # shipped rows without their dataset
        if len(replayed):
            names[f"MCTS ({len(replayed)} rollouts)"] = replayed.best.path
        heuristic = presets.heuristic(environment.dataset, environment.scenario or "task")
        for policy in ("ets", heuristic, "random", "none"):
            try:
                result = search.run_policy(tree, policy)
            except NotTrained:
                continue
            if result.node.converged:
                names[result.label] = result.node.path
        return names

    def choices(self) -> list[tuple[str, Path]]:
        """List every schedule with a label: first those with a name, then all by validation."""
        named = [(name, path) for name, path in self.names.items() if path in self.nodes]
        ranked = [
            (f"#{i} of {len(self)}: {textwrap.shorten(path_text(path), 60)}", path)
            for i, path in enumerate(self.nodes, start=1)
        ]
        return named + ranked

    def replayed_images(self, path: Path, task: int) -> list[tuple[int, np.ndarray]] | str:
        """Find the images replayed while `task` was learned, by old task; or say why it cannot."""
        if task == 1:
            return "nothing is replayed yet"
        environment = self.environment
        try:
            tasks = environment.tasks().tasks
        except data.DataError:
            return f"{environment.dataset} is not on this machine"
        pools = self._pools(path, task)
        if pools is None:
            return "these samples were chosen with the network, and its snapshot is gone"
        memory = fill(tasks, pools, path[task - 2], environment.samples_kept_per_task)
        if not len(memory):
            return "nothing is replayed"
        if memory.x.ndim != 4:
            return "these samples are not images"
        return [(int(i) + 1, memory.x[memory.task == i].numpy()) for i in memory.task.unique()]

    def _pools(self, path: Path, task: int) -> list[torch.Tensor] | None:
        """The candidates of the tasks before `task`, drawn again or from a snapshot."""
        environment = self.environment
        tasks = environment.tasks().tasks[: task - 1]
        by_method = getattr(METHODS[environment.method], "pool", None) is not Method.pool
        if environment.selection in SELECTIONS.built_in and not by_method:
            with contextlib.suppress(NeedsNetwork):
                size = environment.pool_size
                return [make_pool(environment.selection, t, size, environment.seed) for t in tasks]
        if not self.store:
            return None
        state = self.store.load_checkpoint(environment.key, path_text(path[: task - 2]))
        return state["pools"] if state else None


# -- a store's environments ------------------------------------------------------------------------


class StoreIndex:
    """The environments in a store by dataset, settings and seed; `given` is listed beside them.

    `start` is the place to show first: the given environment, or the one with the most rows.
    """

    def __init__(self, store: Store | None, given: KnownSchedules | None = None):
        self.store, self._given = store, given
        self._keys: dict[str, dict[str, dict[int, str]]] = {}  # by dataset, settings and seed
        self._specs = store.environments() if store else {}
        self.start: tuple[str, str, int] | None = None
        n_rows = store.sizes()[0] if store else {}
        if store and not n_rows:  # a fresh clone has shipped rows only
            n_rows = {key: len(store.shipped_rows(key)) for key in self._specs}
        for key in sorted(self._specs, key=lambda key: -n_rows.get(key, 0)):
            try:
                place = self._add(Environment.from_spec(self._specs[key]), key)
            except (ValueError, TypeError, data.DataError):
                continue  # its method or its file is not on this machine
            self.start = self.start or place
        if given is not None:
            self.start = self._add(given.environment, given.environment.key)

    def _add(self, environment: Environment, key: str) -> tuple[str, str, int]:
        title, settings, seed = (
            environment.preset.title,
            settings_text(environment),
            environment.seed,
        )
        by_settings = self._keys.setdefault(title, {})
        if by_settings.get(settings, {}).get(seed, key) != key:
            # They differ in a field that the text leaves out, such as epochs.
            settings += f" ({key[:6]})"
        by_settings.setdefault(settings, {})[seed] = key
        return title, settings, seed

    def datasets(self) -> list[str]:
        return sorted(self._keys)

    def settings(self, dataset: str) -> list[str]:
        return sorted(self._keys[dataset])

    def seeds(self, dataset: str, settings: str) -> list[int]:
        return sorted(self._keys[dataset][settings])

    def schedules(self, dataset: str, settings: str, seed: int) -> KnownSchedules:
        """Read the evaluated schedules of one environment."""
        key = self._keys[dataset][settings][seed]
        if self._given is not None and key == self._given.environment.key:
            return self._given
        assert self.store
        # Rows by the stored key: an environment without its data cannot compute its own.
        environment = Environment.from_spec(self._specs[key])
        return KnownSchedules(environment, self.store.rows(key), self.store)


def settings_text(environment: Environment) -> str:
    """Describe an environment without its dataset and its seed, for a list of settings."""
    parts = [f"{environment.scenario}-IL", f"{environment.n_tasks} tasks"]
    if environment.class_order_seed:
        parts.append(f"class order {environment.class_order_seed}")
    parts.append(f"M={environment.memory_size}")
    if environment.samples_per_class is not None:
        parts.append(f"{environment.samples_per_class} per class")
    return ", ".join([*parts, f"{environment.selection} selection", environment.method])


# -- a search --------------------------------------------------------------------------------------


class ReplayedSearch:
    """The rollouts of MCTS that are already known, in order.

    The search is deterministic and its trainings are in the tree. So it is run again, looking rows
    up only, until a rollout is not known.
    """

    def __init__(self, tree: ScheduleTree, rollouts: int = ROLLOUTS):
        self.environment = tree.environment
        self.leaves: list[Node] = []
        self.depths: list[int] = []  # per rollout, how many compositions the search itself chose
        frozen = ScheduleTree(tree.environment, tree.store, frozen=True, rows=tree.rows())
        try:
            search.mcts(frozen, rollouts, on_rollout=self._collect)
        except (NotTrained, data.DataError):
            pass  # the search ended here, or its data is not on this machine

    def _collect(self, i: int, leaf: Node, depth: int) -> None:
        self.leaves.append(leaf)
        self.depths.append(depth)

    def __len__(self) -> int:
        return len(self.leaves)

    @property
    def best(self) -> Node:
        return self.best_after(len(self))

    def best_after(self, rollouts: int) -> Node:
        """Return the search's leader, by validation, after a number of rollouts."""
        return self.leaves[search.leader([leaf.reward for leaf in self.leaves[:rollouts]])]

    def nodes(self, rollouts: int) -> dict[Path, tuple[int, float]]:
        """Count the visits of every node of the search tree, and find the best reward below it."""
        visits: Counter[Path] = Counter()
        best: dict[Path, float] = {}
        for leaf, depth in zip(self.leaves[:rollouts], self.depths, strict=False):
            reward = leaf.reward if leaf.converged else 0.0
            for k in range(depth + 1):
                node = leaf.path[:k]
                visits[node] += 1
                best[node] = max(best.get(node, -np.inf), reward)
        return {node: (visits[node], best[node]) for node in visits}
