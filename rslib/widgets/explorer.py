"""`explore_tree`: the tree of a search as it grew, rollout by rollout."""

from __future__ import annotations

from matplotlib.figure import Figure

from rslib.errors import BadValue
from rslib.search import Result
from rslib.tree import ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.known import ROLLOUTS, SEARCHES, SHARES, SearchTree, replayed, shares_text

_WORDS = (
    "A rollout is one schedule, trained to its last task. A circle is a memory that the search chose at "
    "that task: the larger, the more rollouts went through it; the darker, the better the best of them. "
    "Black is the path of the best schedule so far, dashed where it was drawn at random. A search sees "
    f"validation accuracy only; ACC is the mean test accuracy of all tasks. {SHARES}"
)


def explore_tree(
    what: ScheduleTree | Result, search: str = "mcts", rollouts: int = ROLLOUTS
) -> Explorer:
    """Show how a search grew its tree.

    what: the result of a search, all of which is shown, or a tree in which one has been run.
    search: which search of a tree, "mcts" or "surrogate". rollouts: show at most these of a tree.
    """
    if isinstance(what, Result):
        return Explorer(what)
    if not isinstance(what, ScheduleTree):
        raise BadValue(f"explore_tree takes a ScheduleTree or a Result, got {what!r}")
    if search not in SEARCHES:
        raise BadValue(f"search must be one of {', '.join(SEARCHES)}, got {search!r}")
    return Explorer(replayed(what, search, rollouts), search)


class Explorer(panel.Panel):
    """A slider over rollouts; the tree with rollouts and best reward per node; the leader."""

    def __init__(self, result: Result | None, name: str = ""):
        self.search = SearchTree(result) if result else None
        last = len(self.search) if self.search else 1
        self.rollout = panel.slider("Rollout", 1, last, last)
        self.summary = panel.text("rslib-rollout")
        self.picture = panel.text()
        super().__init__([self.rollout, self.summary, panel.note(_WORDS), self.picture])
        self.add_class("rslib-explore")
        self.on_change(lambda _: self._draw(), self.rollout)
        self._nothing = f"No rollout is known. Run rslib.{name}(tree, 20), then this cell again."
        self._draw()

    def _draw(self) -> None:
        if not self.search:
            self.rollout.disabled = True
            self.summary.value = panel.paragraph(self._nothing)
            return
        i, result = self.rollout.value, self.search.result
        leader = self.search.leader(i)
        body = [
            [
                name,
                shares_text(self.search.paths[n]),
                panel.percent(result.rewards[n]),
                panel.percent(result.accs[n], css),
            ]
            for name, n, css in (
                (f"rollout {i}", i - 1, "acc"),
                (f"best so far: rollout {leader + 1}", leader, "best"),
            )
        ]
        head = ("", "schedule (shares in %)", "validation", "test ACC")
        caption = f"{result.label} on {result.node.environment}"
        self.summary.value = panel.table(head, body, caption)
        alt = f"search tree after {i} rollouts; best schedule {body[1][1]}"
        self.picture.value = pictures.as_html(self.figure, alt)

    @property
    def figure(self) -> Figure:
        if not self.search:
            return pictures.sentence(self._nothing)
        return pictures.search_tree(self.search, self.rollout.value)
