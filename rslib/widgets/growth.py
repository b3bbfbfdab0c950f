"""How a search tree grew: what MCTS had visited, and the best it had seen, after any rollout.

The search is deterministic and its trainings are in the tree, so it is simply run again, looking up
only, for as many rollouts as are known (and were asked for).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rslib import search
from rslib.data import DataError
from rslib.schedule import Composition
from rslib.tree import Node, NotTrained, ScheduleTree

Path_ = tuple[Composition, ...]
ROLLOUTS = 100  # as many as the paper's searches have


class Growth:
    """The rollouts of an MCTS run that are all known already."""

    def __init__(self, tree: ScheduleTree, rollouts: int = ROLLOUTS, seed: int | None = None):
        self.environment = tree.environment
        self.leaves: list[Node] = []
        self.depths: list[int] = []  # how far down the search itself chose, per rollout
        looking = ScheduleTree(tree.environment, tree.store, frozen=True, rows=tree.rows())
        try:
            search.mcts(looking, rollouts, seed, on_rollout=self._hear)
        except (NotTrained, DataError):
            pass  # here the search ended, or its data is not on this machine

    def _hear(self, i: int, leaf: Node, depth: int) -> None:
        self.leaves.append(leaf)
        self.depths.append(depth)

    def __len__(self) -> int:
        return len(self.leaves)

    @property
    def best(self) -> Node:
        return self.best_after(len(self))

    def best_after(self, rollouts: int) -> Node:
        """The leader by validation after so many rollouts; the first of equals, as in the search."""
        rewards = np.nan_to_num([leaf.reward for leaf in self.leaves[:rollouts]], nan=-1.0)
        return self.leaves[int(np.argmax(rewards))]

    def nodes(self, rollouts: int) -> dict[Path_, tuple[int, float]]:
        """Visits and best reward of every node of the search tree after so many rollouts."""
        visits: Counter[Path_] = Counter()
        best: dict[Path_, float] = {}
        for leaf, depth in zip(self.leaves[:rollouts], self.depths, strict=False):
            reward = leaf.reward if leaf.converged else 0.0
            for k in range(depth + 1):
                node = leaf.path[:k]
                visits[node] += 1
                best[node] = max(best.get(node, -np.inf), reward)
        return {node: (visits[node], best[node]) for node in visits}
