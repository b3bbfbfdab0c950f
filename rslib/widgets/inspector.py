"""`inspect_schedule`: two evaluated schedules side by side, and a walk through their tasks."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rslib.schedule import path_text
from rslib.search import Result
from rslib.store import Store
from rslib.tree import Node, ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.records import Library, Record, step

_SIDES = ("A", "B")


def inspect_schedule(what: Result | ScheduleTree | Store | None = None) -> Inspector:
    """Look at schedules: a result's, a tree's, or (without an argument) those in your store."""
    if isinstance(what, ScheduleTree):
        return Inspector(what.store, lambda: Record.of(what))
    if isinstance(what, Result):
        return Inspector(Store(), lambda: _with_result(what), what)
    if what is None or isinstance(what, Store):
        return Inspector(what or Store())
    raise TypeError(f"inspect_schedule takes a Result, a ScheduleTree or a Store, got {what!r}")


def _with_result(result: Result) -> Record:
    """The store's rows of the result's environment, and the result's own where it had no store."""
    environment = result.node.environment
    record = Record(environment, Store().rows(environment.key), Store())
    record.nodes.setdefault(result.node.path, result.node)
    return record


class Inspector(panel.Panel):
    """Dataset, settings and seed from the store; schedules A and B; one task at a time."""

    def __init__(
        self,
        store: Store | None,
        given: Callable[[], Record] | None = None,
        result: Result | None = None,
    ):
        self._store, self._given = store, given
        self.library = Library(store, given() if given else None)
        self.record: Record = Record.none()
        self._result = result
        self.dataset = panel.dropdown("Dataset")
        self.settings = panel.dropdown("Settings")
        self.seed = panel.dropdown("Seed")
        self.refresh = panel.button("Refresh", "look into the store again")
        self.left = panel.dropdown("Schedule A", width="380px")
        self.right = panel.dropdown("Schedule B", width="380px")
        self.task = panel.slider("Task", 1, 2, 1)
        self.summary = panel.told("", "rslib-summary")
        self.pictures = [panel.told("") for _ in _SIDES]
        self.ranking = panel.told("")
        self.step = panel.told("", "rslib-step")
        self._all = (self.dataset, self.settings, self.seed, self.left, self.right, self.task)
        super().__init__(
            [
                panel.row(self.dataset, self.settings, self.seed, self.refresh),
                panel.row(self.left, self.right),
                self.summary,
                panel.row(*self.pictures),
                self.ranking,
                self.task,
                self.step,
            ]
        )
        self.add_class("rslib-inspect")
        self._busy = False  # True while one control changes others: a single drawing follows
        self._begin(self.library.start)
        for control in self._all:
            control.observe(self._changed, "value")
        self.refresh.on_click(lambda _: self._look_again())

    def _begin(self, where: tuple[str, str, int] | None) -> None:
        """All lists anew, standing at one environment; None: there is none."""
        self._busy = True
        if where:
            title, settings, seed = where
            _refill(self.dataset, self.library.datasets(), title)
            _refill(self.settings, self.library.settings(title), settings)
            _refill(self.seed, self.library.seeds(title, settings), seed)
        self._offer(self.seed)

    def _look_again(self) -> None:
        """What has been evaluated since; the environment that is shown stays."""
        here: Any = (self.dataset.value, self.settings.value, self.seed.value)
        self.library = Library(self._store, self._given() if self._given else None)
        self._begin(here if all(v is not None for v in here) else self.library.start)

    # -- what is chosen ----------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, Node]:
        """The two runs that are shown, by the labels in the lists."""
        shown = {}
        for side, control in zip(_SIDES, (self.left, self.right)):
            path: Any = control.value
            shown[f"{side}: {str(control.label).partition(':')[0]}"] = self.record.nodes[path]
        return shown

    def _changed(self, event: dict) -> None:
        if not self._busy:
            self._offer(event["owner"])

    def _offer(self, control) -> None:
        """Fill the lists that depend on a control, then draw."""
        self._busy = True
        try:
            library, title = self.library, self.dataset.value
            if control is self.dataset:
                _refill(self.settings, library.settings(str(title)), self.settings.value)
            if control in (self.dataset, self.settings):
                seeds = library.seeds(str(title), str(self.settings.value))
                _refill(self.seed, seeds, self.seed.value)
            if control in (self.dataset, self.settings, self.seed) and title:
                where: Any = (title, self.settings.value, self.seed.value)
                self.record = library.record(*where)
                self._schedules(self.record)
        finally:
            self._busy = False
        self._draw(step_only=control is self.task)

    def _schedules(self, record: Record) -> None:
        """The two lists of schedules; A starts with the result or the first name, B with ETS."""
        choices = record.choices()
        if self._result and self._result.node.environment == record.environment:
            choices = [(self._result.label, self._result.node.path), *choices]
        for control in (self.left, self.right):
            control.options = choices
        if choices:
            labels = [label for label, _ in choices]
            others = [i for i, (_, path) in enumerate(choices) if path != choices[0][1]]
            self.left.index = 0
            self.right.index = labels.index("ETS") if "ETS" in labels else (others or [0])[0]
        self.task.max = record.environment.n_tasks or 2
        self.task.value = min(max(self.task.value, 2), self.task.max)

    # -- what is shown -----------------------------------------------------------------------------

    @property
    def _empty(self) -> str | None:
        """Why there is nothing to show, if there is nothing."""
        if not self.library.start:
            return "The store is empty: run a notebook, or rslib.run_policy(tree, 'ets')."
        if not self.left.options:
            return "No schedule has been walked to its end in this environment yet."
        return None

    def _draw(self, step_only: bool = False) -> None:
        if self._empty:
            self.summary.value = f"<p>{html.escape(self._empty)}</p>"
            for place in (*self.pictures, self.ranking, self.step):
                place.value = ""
            return
        if not step_only:
            self.summary.value = self._summary()
            self.ranking.value = pictures.as_html(
                pictures.ranking(self._accs, self._marks),
                "ranks: " + ", ".join(f"{k} {v:.2%}" for k, v in self._marks.items()),
            )
        low = pictures.lowest(self.nodes.values())  # one axis, so that A and B can be compared
        for place, (name, node) in zip(self.pictures, self.nodes.items()):
            alt = f"schedule {name}, {path_text(node.path)}, ACC {node.acc:.2%}"
            place.value = pictures.as_html(pictures.run(name, node, self.task.value, low), alt)
        self.step.value = self._step()

    @property
    def _accs(self) -> list[float]:
        return [node.acc for node in self.record.nodes.values()]

    @property
    def _marks(self) -> dict[str, float]:
        return {side: node.acc for side, node in zip(_SIDES, self.nodes.values())}

    def _summary(self) -> str:
        record = self.record
        path = record.names.get("ETS")
        ets = record.nodes.get(path) if path else None
        lines = []
        for name, node in self.nodes.items():
            lines.append(
                [
                    html.escape(name),
                    f"<span class='acc'>{panel.percent(node.acc)}</span>",
                    panel.percent(node.bwt),
                    f"{record.rank(node)} of {len(record)}",
                    f"{record.rank(node, 'reward')} of {len(record)}",
                    panel.change(node.acc - ets.acc) if ets else "ETS not run",
                ]
            )
        head = ("schedule", "ACC", "BWT", "rank by test", "rank by validation", "ACC − ETS")
        return panel.table(head, lines, str(record.environment))

    def _step(self) -> str:
        """Both schedules at the chosen task: composition, accuracies before and after, images."""
        task, parts = self.task.value, []
        for side, node in zip(_SIDES, self.nodes.values()):
            now = step(node, task)
            seen = range(1, task + 1)
            counts = [*now.composition, None][:task]
            body = [
                ["replayed", *("new" if c is None else str(c) for c in counts)],
                ["before", *(panel.percent(now.before[i - 1]) for i in seen)],
                ["after", *(panel.percent(now.after[i - 1]) for i in seen)],
                ["change", *(panel.change(now.after[i - 1] - now.before[i - 1]) for i in seen)],
            ]
            head = ["", *(f"task {i}" for i in seen)]
            caption = (
                f"{side}: learning task {task}; ACC of the tasks seen {_mean(now.after, task)}"
            )
            parts.append(panel.table(head, body, caption) + self._images(node, task))
        sides = "".join(f"<div class='side-{s}'>{p}</div>" for s, p in zip(_SIDES, parts))
        return f"<div style='display:flex;flex-wrap:wrap;column-gap:3em'>{sides}</div>"

    def _images(self, node: Node, task: int) -> str:
        found = self.record.replayed(node.path, task) if task > 1 else "nothing is replayed yet"
        if isinstance(found, str):
            return f"<p>Replayed samples: {html.escape(found)}.</p>"
        lines = [
            f"task {i}: " + pictures.images_as_html(x, f"{len(x)} samples of task {i}")
            for i, x in found
        ]
        return "<p>Replayed samples:<br>" + "<br>".join(lines) + "</p>"

    @property
    def figure(self) -> Figure:
        if self._empty:
            return pictures.words(self._empty)
        return pictures.inspection(self.nodes, self.task.value, self._accs, self._marks)


def _refill(control, options: list, chosen: object) -> None:
    """New options, with `chosen` chosen where it is one of them."""
    control.options = options
    control.value = chosen if chosen in options else options[0]


def _mean(accuracies: np.ndarray, task: int) -> str:
    return panel.percent(float(accuracies[:task].mean()))
