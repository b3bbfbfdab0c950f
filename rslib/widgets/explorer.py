"""`explore_tree`: the search tree as MCTS grew it, rollout by rollout."""

from __future__ import annotations

from matplotlib.figure import Figure

from rslib.schedule import path_text
from rslib.tree import ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.growth import ROLLOUTS, Growth


def explore_tree(tree: ScheduleTree, rollouts: int = ROLLOUTS, seed: int | None = None) -> Explorer:
    """Look at a search that has been run: `rslib.mcts(tree, ...)` with the same seed."""
    if not isinstance(tree, ScheduleTree):
        raise TypeError(f"explore_tree takes a ScheduleTree, got {tree!r}")
    return Explorer(Growth(tree, rollouts, seed))


class Explorer(panel.Panel):
    """A slider over rollouts; visits and best reward per node; the leader's way through the tree."""

    def __init__(self, growth: Growth):
        self.growth = growth
        self.rollout = panel.slider("Rollout", 1, max(len(growth), 1), max(len(growth), 1))
        self.told = panel.told("", "rslib-rollout")
        self.picture = panel.told("")
        super().__init__([self.rollout, self.told, self.picture])
        self.add_class("rslib-explore")
        self.rollout.observe(lambda event: self._draw(), "value")
        self._draw()

    def _draw(self) -> None:
        if not len(self.growth):
            self.rollout.disabled = True
            self.told.value = f"<p>{_NOTHING}</p>"
            return
        r = self.rollout.value
        leaf, leader = self.growth.leaves[r - 1], self.growth.best_after(r)
        nodes = self.growth.nodes(r)
        self.told.value = panel.table(
            ("", "schedule", "validation", "test ACC"),
            [
                [f"rollout {r}", path_text(leaf.path), panel.percent(leaf.reward),
                 f"<span class='acc'>{panel.percent(leaf.acc)}</span>"],
                ["best so far", path_text(leader.path), panel.percent(leader.reward),
                 f"<span class='best'>{panel.percent(leader.acc)}</span>"],
            ],
            f"{len(nodes)} nodes visited; {self.growth.environment}",
        )  # fmt: skip
        alt = f"search tree of {len(nodes)} nodes; best schedule {path_text(leader.path)}"
        self.picture.value = pictures.as_html(self.figure, alt)

    @property
    def figure(self) -> Figure:
        if not len(self.growth):
            return pictures.words(_NOTHING)
        return pictures.search_tree(self.growth, self.rollout.value)


_NOTHING = "No rollout is known: run rslib.mcts(tree, 20), then look again."
