"""The game behind `play`, without its controls: one walk through the schedule tree, move by move.

At every task the memory is shared out over the old tasks and the network is trained. Moves can be
taken back, and a move that the tree knows takes no time. Training runs in one thread of its own, in
which the tree lives (threads can share neither a learner nor a connection); it returns a `Future`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from rslib import schedule, search
from rslib.environment import Environment
from rslib.schedule import Composition, Path
from rslib.store import Store
from rslib.tree import Node, ScheduleTree
from rslib.widgets.known import SEARCHES, KnownSchedules, replayed


class Cancelled(Exception):
    """Raised in a training that a person has stopped; nothing of it is stored."""


@dataclass(frozen=True)
class Standing:
    """One line of the final score."""

    name: str
    node: Node | None  # None if it is not known
    note: str = ""


def share_out(
    counts: Sequence[int], changed: int, value: int, available: Sequence[int], total: int
) -> Composition:
    """Set one count and change the others so that their sum stays `total`.

    The others keep their proportions as far as whole samples and pools allow; if all of them are
    zero, they share equally.
    """
    others = [i for i in range(len(counts)) if i != changed]
    room = sum(available[i] for i in others)
    value = min(max(value, total - room, 0), available[changed], total)
    weights = [counts[i] for i in others]
    if not any(weights):
        weights = [1] * len(others)
    rest = schedule.counts(weights, total - value, [available[i] for i in others]) if others else ()
    shared = dict(zip(others, rest, strict=True)) | {changed: value}
    return tuple(shared[i] for i in range(len(counts)))


class Game:
    """A walk through one environment's schedule tree, one move per task."""

    def __init__(self, environment: Environment, store: Store | None):
        self.environment, self.n_tasks = environment, environment.n_tasks or 0
        self.node: Node | None = None  # None until task 1 is learned
        self._store = store  # only its folders are used; the thread opens a store of its own
        self._cancelled = threading.Event()
        self._thread = ThreadPoolExecutor(1, "rslib-play")
        self._tree: ScheduleTree | None = None
        self.available: list[int] = []  # samples per task, set once task 1 is learned

    # -- moves -------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.node.path if self.node else ()

    @property
    def next_task(self) -> int:
        """The task to learn next; T + 1 when the game is over."""
        return len(self.path) + 2 if self.node else 1

    @property
    def over(self) -> bool:
        return self.node is not None and self.node.complete

    @property
    def total(self) -> int:
        """How many samples to share out now: M, or the whole pools if they hold fewer."""
        k = self.next_task - 1
        return min(self.environment.budget(k), sum(self.available[:k]))

    def equal_shares(self) -> Composition:
        k = self.next_task - 1
        return schedule.counts([1] * k, self.total, self.available[:k])

    def train(self, composition: Composition | None = None) -> Future[Node]:
        """Learn the next task with this replay; without a composition, learn task 1."""
        self._cancelled.clear()
        path = () if composition is None else (*self.path, tuple(composition))
        return self._thread.submit(self._walk, path)

    def _walk(self, path: Path) -> Node:
        if self._tree is None:
            store = Store(self._store.folder, self._store.shipped) if self._store else None
            self._tree = ScheduleTree(self.environment, store)
            self._tree.on_step = self._stop_if_cancelled
        node = self._tree.walk(path)
        self.available = self._tree.available(self.n_tasks - 1)
        self.node = node
        return node

    def _stop_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Stop the current training before its next step."""
        self._cancelled.set()

    def back(self) -> Composition | None:
        """Take the last move back and return it, so that it can be changed and tried again."""
        if self.node is None or not self.path:
            return None
        last, t = self.path[-1], self.node.depth
        self.node = Node(self.environment, self.path[:-1], self.node.val[:t], self.node.test[:t])
        return last

    # -- the score ---------------------------------------------------------------------------------

    def standings(self) -> Future[list[Standing]]:
        """Compare you with ETS (trained if need be), the searches and the best known schedule."""
        self._cancelled.clear()
        return self._thread.submit(self._standings, self.node)

    def _standings(self, yours: Node | None) -> list[Standing]:
        assert self._tree is not None
        ets = search.run_policy(self._tree, "ets").node
        searches = []
        for name, label in SEARCHES.items():
            found = replayed(self._tree, name)
            note = f"the best by validation of {len(found.rewards)} rollouts" if found else ""
            not_run = f"not run yet: rslib.{name}(tree, 20)"
            searches.append(Standing(label, found.node if found else None, note or not_run))
        known = KnownSchedules.of(self._tree)
        best = max(known.nodes.values(), key=lambda node: node.acc, default=None)
        return [
            Standing("You", yours),
            Standing("ETS", ets, "equal shares for all old tasks"),
            *searches,
            Standing("Best known", best, f"the best by test of {len(known)} schedules"),
        ]
