"""What the panels have in common: a box of controls that is also a picture where widgets cannot run.

A panel's output carries its figure beside the widget, so that GitHub's preview and the offline report
show the figure; JupyterLab prefers the widget.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

import ipywidgets
import numpy as np
from ipywidgets import HTML, Box, Layout, VBox
from matplotlib.figure import Figure

from rslib.widgets import pictures

_WIDE = {"description_width": "initial"}  # no label is cut off


class Panel(VBox):
    """A vertical box with `.figure`, the matplotlib figure of its current state."""

    @property
    def figure(self) -> Figure:
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        bundle["image/png"] = base64.b64encode(pictures.png(self.figure)).decode()
        return bundle


def row(*children: ipywidgets.Widget) -> Box:
    """Side by side where there is room, below each other where there is not."""
    return Box(
        children, layout=Layout(flex_flow="row wrap", align_items="flex-start", width="100%")
    )


def dropdown(label: str, options: Sequence = (), width: str = "auto") -> ipywidgets.Dropdown:
    return ipywidgets.Dropdown(
        description=label, options=options, style=_WIDE, layout=Layout(width=width, max_width="98%")
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


def told(text: str, name: str = "") -> HTML:
    """A place for words; `name` is what a test or a style sheet finds it by."""
    place = HTML(text, layout=Layout(max_width="100%", overflow="auto"))  # scrolls by itself
    if name:
        place.add_class(name)
    return place


def table(head: Iterable[str], body: Iterable[Iterable[str]], caption: str) -> str:
    """A small table; cells are text that is already safe (use `percent`, `change`, `html.escape`)."""
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


def percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2%}"


def change(value: float) -> str:
    """A difference in percentage points, its direction in sign and arrow, not in colour alone."""
    if np.isnan(value):
        return "–"
    points = 100 * value
    if abs(points) < 0.005:
        return "±0.00"
    color, arrow = ("#1a7f37", "▲") if points > 0 else ("#b3261e", "▼")
    return f"<span style='color:{color}'>{arrow} {points:+.2f}</span>"
