"""`play`: you are the scheduler. Share out the memory, train, look, take it back, try otherwise."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from ipywidgets import Layout, Textarea, VBox
from matplotlib.figure import Figure

from rslib.environment import Environment
from rslib.store import Store
from rslib.tree import ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.game import Cancelled, Game
from rslib.widgets.records import step

_DEFAULT = object()
_FIRST = "Learning task 1 …"


def play(environment: Environment | ScheduleTree | str = "digits", store: Any = _DEFAULT) -> Player:
    """Play in an environment (or the one of a tree, or a dataset's name), with seed 1 by default.

    Every training is kept in the store, so that a move made once is there at once; `store=None`
    keeps nothing.
    """
    if isinstance(environment, ScheduleTree):
        environment, store = environment.environment, environment.store
    if isinstance(environment, str):
        environment = Environment(environment)
    if not isinstance(environment, Environment):
        raise TypeError(f"play takes an Environment, a ScheduleTree or a name, got {environment!r}")
    if environment.method == "joint":
        raise ValueError("joint training replays nothing: there is nothing to schedule")
    return Player(Game(environment, Store() if store is _DEFAULT else store))


class Player(panel.Panel):
    """Controls that always sum to M, a Train button, what happened, and the score at the end."""

    def __init__(self, game: Game):
        self.game = game
        try:
            self._loop = asyncio.get_running_loop()  # the kernel's: drawing belongs there
        except RuntimeError:
            self._loop = None
        self.shares: list = []
        self.box = panel.row()
        self.told = panel.told("", "rslib-told")
        self.train = panel.button("Train", "learn the next task with this memory", "primary")
        self.equal = panel.button("Equal shares", "what ETS would do")
        self.back = panel.button("Back", "take the last move back")
        self.cancel = panel.button("Cancel", "stop the training")
        self.step = panel.told("", "rslib-step")
        self.picture = panel.told("")
        self.score = panel.told("", "rslib-score")
        self.copied = Textarea(
            description="To copy", disabled=False, layout=Layout(width="98%", display="none")
        )
        super().__init__(
            [
                self.told,
                self.box,
                panel.row(self.train, self.equal, self.back, self.cancel),
                panel.row(VBox([self.step, self.score]), self.picture),
                self.copied,
            ]
        )
        self.add_class("rslib-play")
        self._busy = False
        self.pending: Future | None = None  # what is going on in the game's thread
        self.train.on_click(lambda _: self._train())
        self.equal.on_click(lambda _: self._set(self.game.equal_shares()))
        self.back.on_click(lambda _: self._back())
        self.cancel.on_click(lambda _: self.game.cancel())
        self._start(self.game.train(), _FIRST, self._trained, patience=2)

    @property
    def schedule(self):
        """Your moves so far, as a `Schedule`."""
        return self.game.schedule

    # -- what goes on in the game's thread ---------------------------------------------------------

    def _start(
        self, job: Future, words: str, then: Callable[[Any], None], patience: float = 0
    ) -> None:
        self.pending = job
        self._enable(False)
        self.told.value = f"<p>{html.escape(words)}</p>"
        if wait([job], patience).done:  # a static copy of the panel then shows more than words
            self._finished(job, then)
            return
        job.add_done_callback(lambda done: self._on_loop(self._finished, done, then))

    def _on_loop(self, function: Callable, *arguments) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
        else:
            function(*arguments)

    def _finished(self, job: Future, then: Callable[[Any], None]) -> None:
        error = job.exception()
        if error is None:
            then(job.result())
        else:
            self._controls()
            stopped = isinstance(error, Cancelled)
            words = "Stopped; nothing of it is kept." if stopped else f"It failed: {error}"
            self.told.value = f"<p>{html.escape(words)}</p>{self.told.value}"
        if self.pending is job:  # or else the next one has been started
            self.pending = None

    # -- moves -------------------------------------------------------------------------------------

    @property
    def composition(self) -> tuple[int, ...]:
        return tuple(control.value for control in self.shares)

    def _train(self) -> None:
        if self.game.node is None:
            self._start(self.game.train(), _FIRST, self._trained)
        else:
            job = self.game.train(self.composition)
            self._start(job, f"Learning task {self.game.next_task} …", self._trained)

    def _trained(self, node) -> None:
        self._draw()  # first what happened, then the controls that ask what next
        self._controls()
        if self.game.over:
            self._start(self.game.standings(), "Looking up ETS, MCTS and the best …", self._scored)

    def _back(self) -> None:
        last = self.game.back()
        self._controls()
        if last:
            self._set(last)
        self._draw()

    def _set(self, counts: tuple[int, ...]) -> None:
        self._busy = True
        for control, n in zip(self.shares, counts, strict=True):
            control.value = n
        self._busy = False

    def _moved(self, event: dict) -> None:
        """One share was changed: the others give or take."""
        if self._busy:
            return
        before = list(self.composition)
        changed = self.shares.index(event["owner"])
        before[changed] = event["old"]
        self._set(self.game.change(before, changed, event["new"]))

    # -- what is shown -----------------------------------------------------------------------------

    def _controls(self) -> None:
        """The controls for the next task, starting with equal shares."""
        game = self.game
        self.score.value, self.copied.layout.display = "", "none"
        if game.node is None:
            self.told.value = "<p>Task 1 has not been learned yet: press Train.</p>"
            self.shares = []
        elif game.over:
            self.told.value = "<p>All tasks are learned.</p>"
            self.shares = []
        else:
            self.told.value = (
                f"<p>Next is <b>task {game.next_task} of {game.n_tasks}</b>: share out "
                f"{game.total} samples over the tasks before it. They always sum to "
                f"{game.total}.</p>"
            )
            self.shares = [
                panel.slider(f"Task {i}", 0, min(game.total, game.available[i - 1]), n)
                for i, n in enumerate(game.equal_shares(), start=1)
            ]
            for control in self.shares:
                control.observe(self._moved, "value")
        self.box.children = self.shares
        self._enable(True)

    def _enable(self, ready: bool) -> None:
        over = self.game.over
        self.train.disabled = not ready or over
        self.equal.disabled = not ready or len(self.shares) < 2
        self.back.disabled = not ready or not self.game.path
        self.cancel.disabled = ready
        for control in self.shares:
            control.disabled = not ready or len(self.shares) < 2

    def _draw(self) -> None:
        node = self.game.node
        if node is None:
            return
        now = step(node, node.depth)
        old = range(1, node.depth + 1)
        body = [
            ["replayed", *map(str, now.composition), "new"],
            ["before", *(panel.percent(now.before[i - 1]) for i in old)],
            ["after", *(panel.percent(now.after[i - 1]) for i in old)],
            ["change", *(panel.change(now.after[i - 1] - now.before[i - 1]) for i in old)],
        ]
        acc = f"<b>ACC <span class='acc'>{panel.percent(node.acc)}</span></b>"
        caption = f"What learning task {node.depth} did (test accuracy)"
        table = panel.table(["", *(f"task {i}" for i in old)], body, caption)
        self.step.value = f"{table}<p>{acc} so far</p>"
        alt = f"accuracies and schedule after task {node.depth}"
        self.picture.value = pictures.as_html(self.figure, alt)

    def _scored(self, standings: list) -> None:
        self._controls()
        yours = standings[0].node
        lines = [
            [
                s.name,
                f"<span class='acc-{s.name.split()[0].lower()}'>{panel.percent(s.node.acc)}</span>"
                if s.node
                else "–",
                panel.change(yours.acc - s.node.acc) if s.node and s.name != "You" else "",
                html.escape(s.note),
            ]
            for s in standings
        ]
        head = ("", "ACC", "you are ahead by", "")
        self.score.value = panel.table(head, lines, "The score (test accuracy)")
        self.copied.value = f"rslib.Schedule({list(self.schedule.compositions)})"
        self.copied.layout.display = ""

    @property
    def figure(self) -> Figure:
        if self.game.node is None:
            return pictures.words(f"You are the scheduler of {self.game.environment}.")
        return pictures.run("Your schedule", self.game.node)
