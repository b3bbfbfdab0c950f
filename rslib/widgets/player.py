"""`play`: you are the scheduler. Share out the memory, train, look, take it back, try again."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from ipywidgets import Layout, Textarea, VBox
from matplotlib.figure import Figure

from rslib.environment import Environment
from rslib.errors import BadValue
from rslib.schedule import Schedule
from rslib.store import Store
from rslib.tree import ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.game import Cancelled, Game, Standing, share_out

_FIRST = "Learning task 1 …"


def play(environment: Environment | ScheduleTree | str = "digits") -> Player:
    """Make you the scheduler of an environment, given as such, as a tree or as a dataset's name.

    Every training is kept in your store, or in the tree's, so that a move made once takes no time
    again. A tree without a store keeps nothing.
    """
    if isinstance(environment, ScheduleTree):
        environment, store = environment.environment, environment.store
    else:
        store = Store()
    if isinstance(environment, str):
        environment = Environment(environment)
    if not isinstance(environment, Environment):
        raise BadValue(f"play takes an Environment, a ScheduleTree or a name, got {environment!r}")
    if environment.method == "joint":
        raise BadValue("joint training replays nothing; choose an environment that replays")
    return Player(Game(environment, store))


class Player(panel.Panel):
    """Sliders that always sum to M, a Train button, what a training did, and the final score."""

    def __init__(self, game: Game):
        self.game = game
        try:
            self._loop = asyncio.get_running_loop()  # the kernel's, in which panels are drawn
        except RuntimeError:
            self._loop = None
        self.shares: list = []
        self.box = panel.row()
        self.message = panel.text("rslib-message")
        self.train = panel.button("Train", "learn the next task with this memory", "primary")
        self.equal = panel.button("Equal shares", "what ETS would do")
        self.back = panel.button("Back", "take the last move back")
        self.cancel = panel.button("Cancel", "stop the training")
        self.step = panel.text("rslib-step")
        self.picture = panel.text()
        self.score = panel.text("rslib-score")
        self.copied = Textarea(description="To copy", layout=Layout(width="98%", display="none"))
        buttons = panel.row(self.train, self.equal, self.back, self.cancel)
        moves = VBox([self.message, self.box, buttons, self.step])
        # The picture comes first and keeps its width, so that no move and no score shifts it.
        self.picture.layout.flex = f"0 0 {pictures.RUN * pictures.SCREEN:.0f}px"
        moves.layout.flex, moves.layout.min_width = "1 1 440px", "0"
        super().__init__([panel.row(self.picture, moves), self.score, self.copied])
        self.add_class("rslib-play")
        self.pending: Future | None = None  # the current job of the game's thread
        self.train.on_click(lambda _: self._train())
        self.equal.on_click(lambda _: self._set(self.game.equal_shares()))
        self.back.on_click(lambda _: self._back())
        self.cancel.on_click(lambda _: self.game.cancel())
        self._start(self.game.train(), _FIRST, self._trained, patience=2)

    @property
    def schedule(self) -> Schedule:
        """Your moves so far."""
        return Schedule(self.game.path)

    # -- jobs of the game's thread -----------------------------------------------------------------

    def _start(
        self, job: Future, words: str, then: Callable[[Any], None], patience: float = 0
    ) -> None:
        """Call `then` with the job's result, at once if it is done after `patience` seconds."""
        self.pending = job
        self._enable(False)
        self.message.value = panel.paragraph(words)
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
            self.message.value = panel.paragraph(words) + self.message.value
        if self.pending is job:  # `then` may have started the next job
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
        self._draw()  # first what the training did, then the controls for the next move
        self._controls()
        if self.game.over:
            self._start(self.game.standings(), "Looking up the others …", self._scored)

    def _back(self) -> None:
        last = self.game.back()
        self._controls()
        if last:
            self._set(last)
        self._draw()

    def _set(self, counts: tuple[int, ...]) -> None:
        with self.filling():
            for control, n in zip(self.shares, counts, strict=True):
                control.value = n

    def _moved(self, event: dict) -> None:
        """Change the other shares after one was moved, so that the sum stays."""
        before, game = list(self.composition), self.game
        changed = self.shares.index(event["owner"])
        before[changed] = event["old"]
        self._set(
            share_out(before, changed, event["new"], game.available[: len(before)], game.total)
        )

    # -- what is shown -----------------------------------------------------------------------------

    def _controls(self) -> None:
        """Make the controls for the next task; they start with equal shares."""
        game = self.game
        self.score.value, self.copied.layout.display = "", "none"
        self.shares = []
        if game.node is None:
            self.message.value = panel.paragraph("Task 1 has not been learned yet. Press Train.")
        elif game.over:
            self.message.value = panel.paragraph("All tasks are learned.")
        else:
            self.message.value = (
                f"<p>Next is <b>task {game.next_task} of {game.n_tasks}</b>: share out "
                f"{game.total} samples over the tasks before it. They always sum to "
                f"{game.total}.</p>"
            )
            self.shares = [
                panel.slider(f"Task {i}", 0, min(game.total, game.available[i - 1]), n)
                for i, n in enumerate(game.equal_shares(), start=1)
            ]
            self.on_change(self._moved, *self.shares)
        self.box.children = self.shares
        self._enable(True)

    def _enable(self, ready: bool) -> None:
        self.train.disabled = not ready or self.game.over
        self.equal.disabled = not ready or len(self.shares) < 2
        self.back.disabled = not ready or not self.game.path
        self.cancel.disabled = ready
        for control in self.shares:
            control.disabled = not ready or len(self.shares) < 2

    def _draw(self) -> None:
        node = self.game.node
        if node is None:
            return
        caption = f"What learning task {node.depth} did (samples, test accuracies)"
        table = panel.step_table(node, node.depth, caption)
        acc = panel.percent(node.acc, "acc")
        self.step.value = f"{table}<p><b>ACC {acc}</b>, the mean of the tasks so far</p>"
        alt = f"accuracies and schedule after task {node.depth}"
        self.picture.value = pictures.as_html(self.figure, alt)

    def _scored(self, standings: list[Standing]) -> None:
        self._controls()
        yours = standings[0].node
        assert yours
        body = []
        for each in standings:
            acc, ahead = "–", ""
            if each.node:
                acc = panel.percent(each.node.acc, f"acc-{each.name.split()[0].lower()}")
            if each.node and each.node is not yours:
                ahead = panel.change(yours.acc - each.node.acc)
            body.append([each.name, acc, ahead, html.escape(each.note)])
        head = ("", "ACC", "your lead (points)", "")
        self.score.value = panel.table(
            head, body, "The score: ACC, mean test accuracy of all tasks"
        )
        self.copied.value = f"rslib.Schedule({list(self.schedule.compositions)})"
        self.copied.layout.display = ""

    @property
    def figure(self) -> Figure:
        if self.game.node is None:
            return pictures.sentence(f"You are the scheduler of {self.game.environment}.")
        return pictures.run("Your schedule", self.game.node)
