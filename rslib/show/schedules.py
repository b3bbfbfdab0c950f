"""Drawings of schedules and of what they do: bubbles and task accuracies.

The functions take `Schedule` objects and accuracy matrices and know neither datasets nor result
rows. Accuracies come as fractions and are drawn in percent.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from rslib.schedule import Schedule
from rslib.show import style


@style.styled
def bubble(schedule: Schedule, ax: Axes | None = None, title: str | None = None) -> Figure:
    """Draw which task (rows) is replayed at which task (columns), as circles (Figure 4).

    The area of a circle is the share of the memory, so every column with replay has equal area.
    On the given axes, or on a figure of their own.
    """
    n_old = schedule.n_tasks - 1
    most = 10 if ax is None or n_old <= 10 else 5  # ticks; a panel of several has half the room
    if ax is None:
        side = style.COLUMN if schedule.n_tasks > 6 else 0.75 * style.COLUMN
        _, (ax,) = style.panels(1, 1, side, side)
    colors = style.task_colors(schedule.n_tasks)
    share = schedule.proportions()  # (at task 2..T, of task 1..T-1)
    at, of = np.nonzero(share)
    diameter = 0.96 * np.sqrt(share[at, of])
    ax.set_aspect("equal")  # so that circles in data units are round
    circles = EllipseCollection(
        diameter,
        diameter,
        np.zeros_like(diameter),
        units="xy",
        offsets=np.column_stack([at + 2, of + 1]),
        offset_transform=ax.transData,
        facecolors=[tuple(colors[i]) for i in of],
        linewidths=0,
        zorder=3,
    )
    ax.add_collection(circles)
    ax.set(xlim=(1.4, n_old + 1.6), ylim=(n_old + 0.6, 0.4), title=title)
    ax.set_xticks(style.task_ticks(2, n_old + 1, most))
    ax.set_yticks(style.task_ticks(1, n_old, most))
    ax.set(xlabel="current task", ylabel="replayed task")
    fig = ax.get_figure(root=True)
    assert fig is not None
    return fig


@style.styled
def accuracy_and_bubbles(runs: Mapping[str, tuple[ArrayLike, Schedule]]) -> Figure:
    """Draw task accuracies above and the schedule that led to them below, one column per run.

    `runs` maps a name to an accuracy matrix and its schedule. The place below a run without replay
    holds the key of the tasks.
    """
    n_tasks = max(np.shape(m)[-1] for m, _ in runs.values())
    n = len(runs)
    fig, axes = style.panels(2 * n, n, style.PAGE if n > 1 else style.COLUMN, 1.9)
    lowest = min(np.nanmin(_learned(m)) for m, _ in runs.values()) * 100
    free = None
    for i, (name, (matrix, schedule)) in enumerate(runs.items()):
        above, below = axes[i], axes[n + i]
        replays = any(map(any, schedule.compositions))
        draw_accuracies(above, matrix, name if replays else f"{name}, no replay")
        above.set_ylim(max(0, lowest - 4), 102)
        above.set_xlabel("after task")
        if replays:
            bubble(schedule, below)
        else:
            below.axis("off")
            free = below
        if i:
            above.tick_params(labelleft=False)
        else:
            above.set_ylabel("accuracy (%)")
    style.task_key(fig, axes, n_tasks, place=free)
    return fig


def _learned(matrices: ArrayLike) -> np.ndarray:
    """Return (seeds, T, T) accuracies with NaN where a task has not been learned yet."""
    a = np.asarray(matrices, dtype=float)
    a = a[None] if a.ndim == 2 else a
    a = a[:, a.shape[1] - a.shape[2] :]  # without the untrained network's row
    unseen = np.triu(np.ones(a.shape[1:], bool), k=1)
    return np.where(unseen, np.nan, a)


def draw_accuracies(ax: Axes, matrices: ArrayLike, name: str) -> None:
    """Draw every task's test accuracy from when it was learned on (Figure 1), with the ACC as title.

    `matrices` is an accuracy matrix (T+1, T) or (T, T), or one per seed stacked in front; then the
    mean is drawn, with a band of one standard deviation.
    """
    seen = _learned(matrices)
    ends = seen[:, -1].mean(axis=1)  # (seeds,) ACC; NaN where training has diverged
    if not np.isnan(ends).all():
        seen, ends = seen[~np.isnan(ends)], ends[~np.isnan(ends)]
    n_tasks = seen.shape[-1]
    many = n_tasks > style.MANY_TASKS
    for i, color in enumerate(style.task_colors(n_tasks)):
        after = np.arange(i + 1, n_tasks + 1)
        curves = 100 * seen[:, i:, i]  # (seeds, tasks from i+1 on)
        mean, std = curves.mean(axis=0), curves.std(axis=0)  # of the seeds that converged
        marker = "" if many else style.task_marker(i + 1)
        ax.plot(after, mean, color=color, marker=marker, markersize=2.5, linewidth=1.0)
        if len(curves) > 1 and not many:  # twenty bands over each other say nothing
            ax.fill_between(after, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    acc = ends.mean()
    ax.set_title(f"{name}\n" + ("did not converge" if np.isnan(acc) else f"ACC {100 * acc:.2f} %"))
    ax.set_xticks(style.task_ticks(1, n_tasks))
    ax.set_xlim(0.7, n_tasks + 0.3)
