"""How figures look and how they are saved: one style file, one colour per method and per task.

A notebook draws inside `with style.context():` on axes from `panels`, and hands the figure to
`savefig`. A method has the same colour, line and marker in every figure (`method`, or `hues` for
seaborn). Its colour is an Okabe-Ito or Tol colour, which colour-blind readers can tell apart, and
marker and dash do the same in grey. Tasks are ordered, so they take a sequence from dark to light
instead, which never meets a method's colours in one panel.
"""

from __future__ import annotations

import io
import textwrap
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rslib import files

STYLE = Path(__file__).with_name("rslib.mplstyle")
PAGE, COLUMN = 6.5, 3.25  # inches, of a TMLR page
DPI = 200  # of a saved PNG: 1300 pixels for a figure as wide as the page
MANY_TASKS = 10  # above this a colour bar replaces a legend


def context():
    """Draw under the style file, whatever the notebook has set: `with style.context(): ...`."""
    return matplotlib.style.context(["default", STYLE])


styled = context()  # the same, as a decorator of a function that draws


class Look(NamedTuple):
    color: str
    linestyle: str | tuple
    marker: str


_DASHES = {"--": (0, (4, 1.5)), ":": (0, (1, 1.2)), "-.": (0, (5, 1.5, 1, 1.5)), "-": "-"}
# In the order of the paper's tables: bounds, baselines, ours. Legends have the same.
_METHODS = {
    "Joint": ("#666666", ":", "h"),
    "Fine-tuning": ("#D55E00", "-.", "v"),
    "BFS": ("#000000", "--", "*"),
    "Random": ("#CC79A7", ":", "D"),
    "A-GEM": ("#999933", "--", "p"),
    "ER-Ring": ("#AA4499", "-.", "H"),
    "Uniform": ("#B8A038", ":", "8"),
    "ETS": ("#E69F00", "--", "s"),
    "Heur-GD": ("#009E73", "-.", "^"),
    "Heur-LD": ("#44AA99", "--", "<"),
    "Heur-AT": ("#117733", ":", ">"),
    "ETS+Heur-GD": ("#661100", "-.", "^"),
    "ETS+Heur-LD": ("#CC6677", "--", "<"),
    "ETS+Heur-AT": ("#AA8866", ":", ">"),
    "DQN": ("#56B4E9", "-.", "P"),
    "A2C": ("#332288", "-", "X"),
    "Random-best": ("#882255", "--", "d"),
    "Surrogate": ("#D32F2F", "-", "*"),
    "MCTS": ("#0072B2", "-", "o"),
}
_SPARE = ("#1B7837", "#B35806", "#542788", "#01665E", "#8C510A", "#4D4D4D")


def method(label: str) -> Look:
    """A method's look; an unknown one gets a spare look that depends on its name only."""
    if label in _METHODS:
        color, line, marker = _METHODS[label]
        return Look(color, _DASHES[line], marker)
    number = zlib.crc32(label.encode())
    return Look(_SPARE[number % len(_SPARE)], _DASHES["-"], "oDs^vPX"[number // 7 % 7])


def place_of(label: str) -> float:
    """A method's place in tables and legends: an unknown one before MCTS, the paper's marks last."""
    places, name = [*_METHODS, "paper"], label.split(" (")[0]  # "BFS (1 seed)" is BFS
    return places.index(name) if name in places else len(places) - 2.5


def in_order(labels: Iterable[str]) -> list[str]:
    """Each label once, in the order of the paper's tables."""
    return sorted(dict.fromkeys(labels), key=place_of)


def hues(labels: Iterable[str]) -> dict[str, Any]:
    """Return seaborn's `hue_order` and `palette` that draw each method as in every figure."""
    order = in_order(labels)
    return {"hue_order": order, "palette": {label: method(label).color for label in order}}


def spread(values: Any) -> tuple[float, float]:
    """Return mean - std and mean + std, of the population as in the tables, for seaborn's `errorbar`.

    seaborn's own "sd" is the deviation of a sample.
    """
    mean, std = np.mean(values), np.std(np.asarray(values))
    return float(mean - std), float(mean + std)


def task_colors(n_tasks: int) -> np.ndarray:
    """(n_tasks, 4) colours from dark to light, short of the yellow that vanishes on white."""
    return plt.get_cmap("viridis")(np.linspace(0.0, 0.9, n_tasks))


def task_marker(task: int) -> str:
    return "osD^vP<>Xd"[(task - 1) % 10]


def task_ticks(first: int, last: int, most: int = 10) -> list[int]:
    """Whole tasks to label, at most about `most`: both ends, and even steps between."""
    step = -(-(last - first + 1) // most)
    ticks = list(range(first, last + 1, step))
    if ticks[-1] != last:
        ticks = [*ticks[:-1], last] if last - ticks[-1] < step / 2 + 0.5 else [*ticks, last]
    return ticks


def task_key(
    fig: Figure,
    axes: Sequence[Axes],
    n_tasks: int,
    replay: bool = False,
    place: Axes | None = None,
) -> None:
    """Say which colour is which task: a legend for few, a colour bar for many.

    It stands on the empty axes `place`, or else below all panels.
    """
    line = [Line2D([], [], color="black", linewidth=1.2, label="replay")] if replay else []
    if n_tasks > MANY_TASKS:
        bounds = np.arange(0.5, n_tasks + 1)
        scale = ScalarMappable(
            BoundaryNorm(bounds, n_tasks), ListedColormap([tuple(c) for c in task_colors(n_tasks)])
        )
        if place:
            bar = fig.colorbar(scale, cax=place.inset_axes((0.1, 0, 0.08, 1)))
        else:
            bar = fig.colorbar(scale, ax=list(axes), pad=0.01, aspect=25, fraction=0.05)
        bar.set_ticks(task_ticks(1, n_tasks, 7))
        bar.ax.tick_params(which="both", length=0)
        bar.ax.grid(False)
        bar.set_label("task")
        if line:
            fig.legend(handles=line, loc="outside lower center")
        return
    handles = [
        Line2D([], [], color=c, marker=task_marker(i), label=f"Task {i}")
        for i, c in enumerate(task_colors(n_tasks), start=1)
    ]
    handles += line
    if place:
        place.legend(handles=handles, loc="center", ncols=-(-n_tasks // 6))
        return
    room = 7 if fig.get_figwidth() > COLUMN + 1 else 4
    fig.legend(handles=handles, loc="outside lower center", ncols=_even(len(handles), room))


def panels(
    n: int, n_columns: int, width: float, height: float, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of n axes; the places of a last row that stay empty are removed.

    The figure is closed for pyplot at once: a notebook then shows it where it is returned, and
    only there, and a long run does not pile figures up.
    """
    n_columns = min(n, n_columns)
    n_rows = -(-n // n_columns)
    fig, grid = plt.subplots(
        n_rows, n_columns, figsize=(width, height * n_rows), squeeze=False, sharey=share_y
    )
    plt.close(fig)
    axes = list(grid.ravel())
    for ax in axes[n:]:
        ax.remove()
    return fig, axes[:n]


def legend_below(fig: Figure, axes: Sequence[Axes], n_columns: int, note: str = "") -> None:
    """One legend for all panels, each label once, below them; it replaces the panels' own.

    The `note` above it says what bars and bands are.
    """
    found: dict[str, Any] = {}
    for ax in axes:
        if own := ax.get_legend():  # seaborn's
            own.remove()
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = in_order(list(found))
    if labels:
        handles = [found[name] for name in labels]
        n_columns = _even(len(labels), n_columns)
        place: Any = "outside lower center"
        fig.legend(handles, labels, loc=place, ncols=n_columns, title=note or None)


def _even(n: int, most: int) -> int:
    """Columns, at most `most`, that fill the rows of a legend evenly."""
    n_rows = -(-n // most)
    return -(-n // n_rows)


def fit_titles(fig: Figure) -> None:
    """Break titles that are wider than their panels, as users' own names may be."""
    fig.draw_without_rendering()
    for ax in fig.axes:
        title, lines = ax.title.get_window_extent(), ax.get_title().splitlines()
        share = ax.get_window_extent().width / max(title.width, 1)
        # A title may reach a little into the gap between panels, but not over the edge.
        if share < 0.8 or (lines and not (title.x0 >= 0 and title.x1 <= fig.bbox.x1)):
            width = int(min(share, 0.95) * max(map(len, lines)))
            ax.set_title("\n".join(textwrap.fill(line, max(width, 12)) for line in lines))


def savefig(fig: Figure, name: str, dataset: str, out_dir: str | Path = ".") -> list[Path]:
    """Write figures/<dataset>/<name>.pdf and .png, the same bytes from every run; returns the paths."""
    kinds: dict[str, dict[str, Any]] = {
        "pdf": {"metadata": {"CreationDate": None, "ModDate": None}},
        "png": {"metadata": {"Software": None}, "dpi": DPI},
    }
    written = []
    with matplotlib.style.context(STYLE):  # font embedding is decided when saving
        fit_titles(fig)
        for kind, options in kinds.items():
            content = io.BytesIO()
            fig.savefig(content, format=kind, **options)
            target = files.artefact(out_dir, "figures", dataset, f"{name}.{kind}")
            written.append(files.write_atomically(target, content.getvalue()))
    return written
