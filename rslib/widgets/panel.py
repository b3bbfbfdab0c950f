"""What the panels share: a box of controls that is also a picture, its controls, its tables.

A panel's output carries its figure beside the widget, so that GitHub's preview and the offline report
show the figure; JupyterLab prefers the widget.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets
import numpy as np
from ipywidgets import HTML, Box, Layout, VBox
from matplotlib.figure import Figure

from rslib.tree import Node
from rslib.widgets import pictures

_WIDE = {"description_width": "initial"}  # no label is cut off


class Panel(VBox):
    """A vertical box with `.figure`, the matplotlib figure of its current state."""

    _filling = False

    @property
    def figure(self) -> Figure:
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        bundle["image/png"] = base64.b64encode(pictures.png(self.figure)).decode()
        return bundle

    def on_change(self, function: Callable[[dict], None], *controls: ipywidgets.Widget) -> None:
        """Call a function with every change a person makes to one of the controls."""
        for control in controls:
            control.observe(lambda event: self._filling or function(event), "value")

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Let the panel set its own controls; `on_change` ignores those changes."""
        self._filling = True
        try:
            yield
        finally:
            self._filling = False


# -- controls --------------------------------------------------------------------------------------


def row(*children: ipywidgets.Widget) -> Box:
    """Put widgets side by side, or below each other where the page is too narrow."""
    return Box(
        children, layout=Layout(flex_flow="row wrap", align_items="flex-start", width="100%")
    )


def dropdown(label: str, width: str = "auto") -> ipywidgets.Dropdown:
    return ipywidgets.Dropdown(
        description=label, style=_WIDE, layout=Layout(width=width, max_width="98%")
    )


def slider(label: str, low: int, high: int, value: int) -> ipywidgets.IntSlider:
    return ipywidgets.IntSlider(
        value,
        low,
        high,
        description=label,
        continuous_update=False,  # a picture per stop, not one per pixel
        style=_WIDE,
        layout=Layout(width="420px", max_width="98%"),
    )


def button(label: str, hint: str, style: str = "") -> ipywidgets.Button:
    return ipywidgets.Button(
        description=label, tooltip=hint, button_style=style, layout=Layout(width="auto")
    )


def text(name: str = "") -> HTML:
    """Make an empty place for text; a test or a style sheet finds it by its class `name`."""
    place = HTML(layout=Layout(max_width="100%", overflow="auto"))  # scrolls by itself
    if name:
        place.add_class(name)
    return place


def note(words: str) -> HTML:
    """Explain the words of a panel where they stand, smaller than what it shows."""
    css = "max-width:60em;font-size:.9em;line-height:1.4;opacity:.8"
    return HTML(f"<p style='{css}'>{html.escape(words)}</p>", layout=Layout(max_width="100%"))


# -- text ------------------------------------------------------------------------------------------


def paragraph(words: str) -> str:
    return f"<p>{html.escape(words)}</p>"


def table(head: Iterable[str], body: Iterable[Iterable[str]], caption: str) -> str:
    """Render a small table; its cells are safe HTML (`percent`, `change`, `html.escape`)."""
    cells = "".join(f"<th scope='col' style='padding:0 .6em'>{c}</th>" for c in head)
    css = "padding:0 .6em;text-align:right;white-space:nowrap"
    rows = "".join(
        "<tr>" + "".join(f"<td style='{css}'>{c}</td>" for c in line) + "</tr>" for line in body
    )
    words = html.escape(caption)
    # Above the table, not a <caption> in it, which would be as narrow as the table.
    return (
        f"<div style='line-height:1.6'><div>{words}</div>"
        f"<table aria-label='{words}'><tr>{cells}</tr>{rows}</table></div>"
    )


def step_table(node: Node, task: int, caption: str) -> str:
    """Render what learning `task` did: what was replayed, and test accuracies before and after."""
    replayed = node.path[task - 2] if task > 1 else ()
    before, after = node.test[task - 1, :task], node.test[task, :task]
    body = [
        ["replayed", *map(str, replayed), "new"],
        ["before", *map(percent, before)],
        ["after", *map(percent, after)],
        ["change", *map(change, after - before)],
    ]
    return table(["", *(f"task {i}" for i in range(1, task + 1))], body, caption)


def percent(value: float, name: str = "") -> str:
    """Format a fraction; a test finds it by its class `name`."""
    shown = "–" if np.isnan(value) else f"{value:.2%}"
    return f"<span class='{name}'>{shown}</span>" if name else shown


def change(value: float) -> str:
    """Format a difference in percentage points; sign and arrow say its direction, not colour alone."""
    if np.isnan(value):
        return "–"
    points = 100 * value
    if abs(points) < 0.005:
        return "±0.00"
    color, arrow = ("#1a7f37", "▲") if points > 0 else ("#b3261e", "▼")
    return f"<span style='color:{color}'>{arrow} {points:+.2f}</span>"
