"""What is known without training: an environment's schedules, a store's environments, a search.

Works from rows alone, so that shipped results can be viewed on a machine without their dataset. Only
the replayed images, and the names that a policy has to propose again, need the data.
"""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Mapping

import numpy as np
import torch

from rslib import data, presets, search
from rslib.environment import Environment
from rslib.memory import SELECTIONS, NeedsNetwork, fill, make_pool
from rslib.methods import METHODS
from rslib.methods.er import Method
from rslib.schedule import UNTRAINED, Path, path_from_text, path_text
from rslib.search import Result
from rslib.store import Store
from rslib.store.rows import Row
from rslib.tree import Node, NotTrained, ScheduleTree

ROLLOUTS = 100  # of the paper's searches
SEARCHES = {"mcts": "MCTS", "surrogate": "Surrogate"}  # functions of rslib.search, and their labels

SHARES = (
    "A schedule is written as the shares (%) of the old tasks in the memory: 100 | 70:30 is all of "
    "task 1 at task 2, then 70 of task 1 and 30 of task 2 at task 3."
)


def shares_text(path: Path) -> str:
    """Write a schedule as shares in percent, memory by memory (`SHARES` explains it)."""
    shares = [":".join(f"{100 * n / sum(c):.0f}" for n in c) if any(c) else "none" for c in path]
    return " | ".join(shares)


def whole_way(path: Path, rows: Mapping[str, Row]) -> bool:
    """Whether every node down to the end of a path is known: a damaged row is left out of the rows."""
    return all(
        text in rows for text in (UNTRAINED, *(path_text(path[:k]) for k in range(len(path))))
    )


# -- an environment's schedules --------------------------------------------------------------------


class KnownSchedules:
    """The evaluated complete schedules of one environment, best by validation first."""

    def __init__(
        self,
        environment: Environment,
        rows: Mapping[str, Row],
        store: Store | None = None,
        key: str | None = None,  # the rows'; None: the environment's of today
    ):
        self.environment, self.store, self._key = environment, store, key
        self._rows = rows
        n_old = (environment.n_tasks or 0) - 1
        paths = [path_from_text(text) for text in rows]
        paths = [p for p in paths if len(p) == n_old and whole_way(p, rows)]
        nodes = [Node.from_rows(environment, p, rows) for p in paths]
        self.nodes: dict[Path, Node] = {}
        self.add(*(node for node in nodes if node.converged))

    def add(self, *nodes: Node) -> None:
        """List more schedules, each at its rank; one that is listed stays as it is."""
        listed = {node.path: node for node in nodes} | self.nodes
        ranked = sorted(
            listed.values(), key=lambda n: (-np.nan_to_num(n.reward), path_text(n.path))
        )
        self.nodes = {node.path: node for node in ranked}

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
        """The schedules of searches and of named policies such as "ETS", where every row is known."""
        names: dict[str, Path] = {}
        environment = self.environment
        if environment.method == "joint":  # replays nothing, whatever a policy says
            return dict(zip(["Joint"], self.nodes, strict=False))
        try:  # without the store, whose rows may be of other data than these
            tree = ScheduleTree(environment, frozen=True, rows=self._rows)
        except (data.DataError, KeyError):
            return names  # shipped rows without their dataset
        for name, label in SEARCHES.items():
            if found := replayed(tree, name):
                names[f"{label} ({len(found.rewards)} rollouts)"] = found.node.path
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
            (f"#{i} of {len(self)} by validation: {textwrap.shorten(shares_text(path), 60)}", path)
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
        if self._key not in (None, environment.key, environment.recorded_key):
            return "these results are of other data, or of another protocol or torch"
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
        self.keys: dict[str, dict[str, dict[int, str]]] = {}  # by dataset, settings and seed
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
        title, settings, seed = environment.preset.title, environment.settings, environment.seed
        by_settings = self.keys.setdefault(title, {})
        while by_settings.get(settings, {}).get(seed, key) != key:
            settings += ", other data, protocol or torch"  # what else a key is made of
        by_settings.setdefault(settings, {})[seed] = key
        return title, settings, seed

    def schedules(self, key: str) -> KnownSchedules:
        """Read the evaluated schedules of one environment."""
        if self._given is not None and key == self._given.environment.key:
            return self._given
        assert self.store
        # Rows by the stored key: an environment without its data cannot compute its own.
        environment = Environment.from_spec(self._specs[key])
        return KnownSchedules(environment, self.store.rows(key), self.store, key)


# -- a search --------------------------------------------------------------------------------------


def replayed(tree: ScheduleTree, name: str = "mcts", rollouts: int = ROLLOUTS) -> Result | None:
    """Run a search again as far as its trainings are known; None if its first rollout is not.

    A search is deterministic, so that looking rows up gives what it gave.
    """
    frozen = ScheduleTree(tree.environment, tree.store, frozen=True, rows=tree.rows())
    run, known = getattr(search, name), []
    try:
        return run(frozen, rollouts, on_rollout=lambda *rollout: known.append(rollout))
    except (NotTrained, data.DataError):  # the search ended here, or its data is elsewhere
        return run(frozen, len(known)) if known else None


class SearchTree:
    """The tree that a search has grown, after any number of its rollouts.

    MCTS adds one node per rollout and draws the rest of the path. Every other search chooses whole
    schedules, so that its tree has all nodes that it has been along.
    """

    def __init__(self, result: Result):
        self.result = result
        self.rewards = np.nan_to_num(result.rewards)  # a diverged run is as bad as it gets
        self.paths = [schedule.compositions for schedule in result.schedules]

    def __len__(self) -> int:
        return len(self.paths)

    def leader(self, rollouts: int) -> int:
        """Return the best rollout so far by validation, counted from 0."""
        return search.leader(self.rewards[:rollouts])

    def chosen(self, rollouts: int) -> set[Path]:
        """Collect the nodes that the search chose itself, the root included."""
        nodes: set[Path] = {()}
        for path in self.paths[:rollouts]:
            new = [node for node in _prefixes(path) if node not in nodes]
            nodes.update(new[:1] if self.result.policy == "mcts" else new)
        return nodes

    def nodes(self, rollouts: int) -> dict[Path, tuple[int, float]]:
        """Count the rollouts through every node, and find the best reward among them.

        The nodes are those that the search chose, and the leader's down to the last task. Rollouts
        from before a node entered the tree count too: they are evaluations of schedules below it.
        """
        shown = self.chosen(rollouts).union(_prefixes(self.paths[self.leader(rollouts)]))
        found: dict[Path, tuple[int, float]] = {}
        for path, reward in zip(self.paths[:rollouts], self.rewards, strict=False):
            for node in shown.intersection(_prefixes(path)):
                n, best = found.get(node, (0, 0.0))
                found[node] = n + 1, max(best, float(reward))
        return found

    @functools.cached_property
    def ever(self) -> set[Path]:
        """Collect the nodes that are shown after any rollout, so that each has one place."""
        leaders = {self.leader(i) for i in range(1, len(self) + 1)}
        return self.chosen(len(self)).union(*(_prefixes(self.paths[i]) for i in leaders))


def _prefixes(path: Path) -> list[Path]:
    return [path[:k] for k in range(len(path) + 1)]
