"""`explore_tree`: the search tree as MCTS grew it, rollout by rollout."""

from __future__ import annotations

from matplotlib.figure import Figure

from rslib.schedule import path_text
from rslib.tree import ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.known import ROLLOUTS, ReplayedSearch

_NOTHING = "No rollout is known. Run rslib.mcts(tree, 20), then this cell again."


def explore_tree(tree: ScheduleTree, rollouts: int = ROLLOUTS) -> Explorer:
    """Show a search that has been run with `rslib.mcts(tree, ...)`, at most `rollouts` of it."""
    if not isinstance(tree, ScheduleTree):
        raise TypeError(f"explore_tree takes a ScheduleTree, got {tree!r}")
    return Explorer(ReplayedSearch(tree, rollouts))


class Explorer(panel.Panel):
    """A slider over rollouts; visits and best reward per node; the leader's path in the tree."""

    def __init__(self, search: ReplayedSearch):
        self.search = search
        last = max(len(search), 1)
        self.rollout = panel.slider("Rollout", 1, last, last)
        self.summary = panel.text("rslib-rollout")
        self.picture = panel.text()
        super().__init__([self.rollout, self.summary, self.picture])
        self.add_class("rslib-explore")
        self.on_change(lambda _: self._draw(), self.rollout)
        if len(search):
            self._draw()
        else:
            self.rollout.disabled = True
            self.summary.value = panel.paragraph(_NOTHING)

    def _draw(self) -> None:
        i = self.rollout.value
        leaf, leader = self.search.leaves[i - 1], self.search.best_after(i)
        n_nodes = len(self.search.nodes(i))
        body = [
            [name, path_text(node.path), panel.percent(node.reward), panel.percent(node.acc, css)]
            for name, node, css in ((f"rollout {i}", leaf, "acc"), ("best so far", leader, "best"))
        ]
        self.summary.value = panel.table(
            ("", "schedule", "validation", "test ACC"),
            body,
            f"{n_nodes} nodes visited; {self.search.environment}",
        )
        alt = f"search tree of {n_nodes} nodes; best schedule {path_text(leader.path)}"
        self.picture.value = pictures.as_html(self.figure, alt)

    @property
    def figure(self) -> Figure:
        if not len(self.search):
            return pictures.sentence(_NOTHING)
        return pictures.search_tree(self.search, self.rollout.value)
