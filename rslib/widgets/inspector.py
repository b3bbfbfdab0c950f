"""`inspect_schedule`: two evaluated schedules side by side, task by task."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from rslib.environment import Environment
from rslib.errors import BadValue
from rslib.search import Result
from rslib.store import Store
from rslib.tree import Node, ScheduleTree
from rslib.widgets import panel, pictures
from rslib.widgets.known import SHARES, KnownSchedules, StoreIndex, shares_text

_SIDES = ("A", "B")
_WORDS = (
    "ACC is the mean test accuracy of all tasks after the last one; BWT is how far old tasks have moved "
    "since they were learned (below 0, they are forgotten). The lists go by validation accuracy, which "
    "is what a search sees; the figure goes by test. M is the size of the memory in samples. ETS gives "
    f"every old task an equal share. {SHARES}"
)


def inspect_schedule(what: Result | ScheduleTree | Store | None = None) -> Inspector:
    """Show the schedules of a result, a tree or a store (your own if no argument is given)."""
    if isinstance(what, ScheduleTree):
        return Inspector(what.store, lambda: KnownSchedules.of(what))
    if isinstance(what, Result):
        return Inspector(Store(), lambda: _beside(what))
    if what is None or isinstance(what, Store):
        return Inspector(what or Store())
    raise BadValue(f"inspect_schedule takes a Result, a ScheduleTree or a Store, got {what!r}")


def _beside(result: Result) -> KnownSchedules:
    """The store's schedules of the result's environment, and first of all the result's own."""
    environment, store = result.node.environment, Store()
    known = KnownSchedules(environment, store.rows(environment.key), store)
    known.add(result.node)  # it may have had no store
    own = {result.label: result.node.path}
    known.names = own | known.names | own  # its label is the first name, and means this schedule
    return known


class Inspector(panel.Panel):
    """Lists of datasets, settings and seeds; schedules A and B of one environment; a task.

    `given` reads schedules to list beside the store's; it is called again by Refresh.
    """

    def __init__(self, store: Store | None, given: Callable[[], KnownSchedules] | None = None):
        self._store, self._given = store, given
        self.known = KnownSchedules(Environment(), {})  # empty, until an environment is chosen
        self.dataset = panel.dropdown("Dataset")
        self.settings = panel.dropdown("Settings")
        self.seed = panel.dropdown("Seed")
        self.refresh = panel.button("Refresh", "read the store again")
        self.left = panel.dropdown("Schedule A", width="380px")
        self.right = panel.dropdown("Schedule B", width="380px")
        self.task = panel.slider("Task", 1, 2, 1)
        self.summary = panel.text("rslib-summary")
        self.pictures = [panel.text() for _ in _SIDES]
        self.ranking = panel.text()
        self.step = panel.text("rslib-step")
        super().__init__(
            [
                panel.row(self.dataset, self.settings, self.seed, self.refresh),
                panel.row(self.left, self.right),
                self.summary,
                panel.note(_WORDS),
                panel.row(*self.pictures),
                self.ranking,
                self.task,
                self.step,
            ]
        )
        self.add_class("rslib-inspect")
        self._read()
        self.on_change(lambda _: self._choose(self._place), self.dataset, self.settings, self.seed)
        self.on_change(lambda _: self._draw(), self.left, self.right)
        self.on_change(lambda _: self._draw_task(), self.task)
        self.refresh.on_click(lambda _: self._read())

    # -- what is chosen ----------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the store, and what is given, anew; an environment that is shown stays."""
        self.index = StoreIndex(self._store, self._given() if self._given else None)
        start = self._place if self.dataset.value is not None else self.index.start
        if self.index.start is None:  # nothing is stored, or not any more
            self.known = KnownSchedules(Environment(), {})
            with self.filling():
                for control in (self.dataset, self.settings, self.seed, self.left, self.right):
                    control.options = ()
            self._draw()
        elif start:
            self._choose(start)

    @property
    def _place(self) -> tuple[Any, Any, Any]:
        return self.dataset.value, self.settings.value, self.seed.value

    def _choose(self, place: tuple[Any, Any, Any]) -> None:
        """Show one environment; each list depends on the choice in the list before it."""
        below: Any = self.index.keys  # what is below the choices so far: at last a key
        with self.filling():
            for control, wanted in zip((self.dataset, self.settings, self.seed), place):
                control.options = sorted(below)
                control.value = wanted if wanted in below else control.options[0]
                below = below[control.value]
            self.known = self.index.schedules(below)
            self._list_schedules()
        self._draw()

    def _list_schedules(self) -> None:
        """Fill both lists; A starts with the first name, B with ETS."""
        choices = self.known.choices()
        for control in (self.left, self.right):
            control.options = choices
        if choices:
            labels = [label for label, _ in choices]
            others = [i for i, (_, path) in enumerate(choices) if path != choices[0][1]]
            self.left.index = 0
            self.right.index = labels.index("ETS") if "ETS" in labels else (others or [0])[0]
        self.task.max = self.known.environment.n_tasks or 2

    @property
    def nodes(self) -> dict[str, Node]:
        """The two runs that are shown, by the labels in the lists."""
        shown = {}
        for side, control in zip(_SIDES, (self.left, self.right)):
            path: Any = control.value
            shown[f"{side}: {str(control.label).partition(':')[0]}"] = self.known.nodes[path]
        return shown

    @property
    def _first_difference(self) -> int:
        """The first task with two different memories; before it the two runs are one."""
        memories = zip(*(node.path for node in self.nodes.values()))
        return next((t for t, (a, b) in enumerate(memories, start=2) if a != b), 2)

    @property
    def _why_empty(self) -> str | None:
        if not self.index.start:
            return "The store is empty. Run a notebook, or rslib.run_policy(tree, 'ets')."
        if not self.left.options:
            return "No schedule of this environment has been evaluated to its last task yet."
        return None

    # -- what is shown -----------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._why_empty:
            self.summary.value = panel.paragraph(self._why_empty)
            for place in (*self.pictures, self.ranking, self.step):
                place.value = ""
            return
        self.summary.value = self._summary()
        alt = "ranks: " + ", ".join(f"{name} {node.acc:.2%}" for name, node in self.nodes.items())
        self.ranking.value = pictures.as_html(pictures.ranking(self.known, self.nodes), alt)
        with self.filling():
            self.task.value = max(self.task.value, self._first_difference)
        self._draw_task()

    def _draw_task(self) -> None:
        if self._why_empty:
            return
        task, steps = self.task.value, ""
        low = pictures.lowest(self.nodes.values())  # one axis, so that A and B can be compared
        for side, place, (name, node) in zip(_SIDES, self.pictures, self.nodes.items()):
            alt = f"schedule {name}, {shares_text(node.path)}, ACC {node.acc:.2%}"
            place.value = pictures.as_html(pictures.run(name, node, task, low), alt)
            seen = panel.percent(node.test[task, :task].mean())
            caption = f"{side}: learning task {task}; mean test accuracy so far {seen}"
            step = panel.step_table(node, task, caption) + self._images(node, task)
            steps += f"<div class='side-{side}'>{step}</div>"
        css = "display:flex;flex-wrap:wrap;column-gap:3em"
        self.step.value = f"<div style='{css}'>{steps}</div>"

    def _summary(self) -> str:
        known = self.known
        ets = known.nodes.get(known.names.get("ETS", ()))
        body = [
            [
                html.escape(name),
                panel.percent(node.acc, "acc"),
                panel.percent(node.bwt),
                f"{known.rank(node)} of {len(known)}",
                f"{known.rank(node, 'reward')} of {len(known)}",
                panel.change(node.acc - ets.acc) if ets else "ETS not run",
            ]
            for name, node in self.nodes.items()
        ]
        head = ("schedule", "ACC", "BWT", "rank by test", "rank by validation", "ACC − ETS")
        return panel.table(head, body, str(known.environment))

    def _images(self, node: Node, task: int) -> str:
        """Render the replayed samples, or the reason why they cannot be shown."""
        found = self.known.replayed_images(node.path, task)
        if isinstance(found, str):
            return panel.paragraph(f"Replayed samples: {found}.")
        lines = [
            f"task {i}: " + pictures.images_as_html(x, f"{len(x)} samples of task {i}")
            for i, x in found
        ]
        return "<p>" + "<br>".join(["Replayed samples:", *lines]) + "</p>"

    @property
    def figure(self) -> Figure:
        if self._why_empty:
            return pictures.sentence(self._why_empty)
        return pictures.inspection(self.known, self.nodes, self.task.value)
