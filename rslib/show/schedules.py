"""Drawings of schedules and of what they do: bubbles, task accuracies, the schedule tree.

The functions take `Schedule` objects and accuracy matrices and know neither datasets nor result
rows. Accuracies come as fractions and are drawn in percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from rslib import metrics
from rslib.schedule import Composition, Schedule, compositions, n_actions
from rslib.show import style

# The paper's blue, red and purple for its example paths, in shades that all readers tell apart.
_PATH_COLORS = ("#2166C8", "#D6302A", "#8B3FA8")


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
def accuracy_and_bubbles(
    runs: Mapping[str, tuple[ArrayLike, Schedule | None]],
) -> Figure:
    """Draw task accuracies above and the schedule that led to them below, one column per run.

    `runs` maps a name to an accuracy matrix and its schedule, or None for no replay; the place below
    such a run holds the key of the tasks.
    """
    n_tasks = max(np.shape(m)[-1] for m, _ in runs.values())
    n = len(runs)
    fig, axes = style.panels(2 * n, n, style.PAGE if n > 1 else style.COLUMN, 1.9)
    lowest = min(np.nanmin(_learned(m)) for m, _ in runs.values()) * 100
    free = None
    for i, (name, (matrix, schedule)) in enumerate(runs.items()):
        above, below = axes[i], axes[n + i]
        draw_accuracies(above, matrix, name if schedule else f"{name}, no replay")
        above.set_ylim(max(0, lowest - 4), 102)
        above.set_xlabel("after task")
        if schedule is None:
            below.axis("off")
            free = below
        else:
            bubble(schedule, below)
        if i:
            above.tick_params(labelleft=False)
        else:
            above.set_ylabel("accuracy (%)")
    style.task_key(fig, axes, n_tasks, place=free)
    return fig


@dataclass
class _Node:
    """A memory in the drawn tree; `paths` are the indices of the example schedules through it."""

    composition: Composition
    paths: list[int]
    children: list[_Node | None] = field(default_factory=list)  # None: more, not drawn
    x: float = 0.0


@style.styled
def schedule_tree(n_tasks: int, memory_size: int) -> Figure:
    """Draw the tree of replay memories (Figure 2) with the paper's three schedules as paths in it.

    Boxes are memories, cut into the tasks' shares; dots stand for more of them.
    """
    if not 2 <= n_tasks <= 6:
        raise ValueError(f"a tree of 2 to 6 tasks fits on a page; got {n_tasks} tasks")
    paths = _example_paths(n_tasks, memory_size)
    root = _Node((), list(range(len(paths))))
    _grow(root, list(paths.values()), 0, n_tasks, memory_size)
    left, step, height = 0.62, 0.58, 0.58 * n_tasks + 0.05  # inches
    fig, (ax,) = style.panels(1, 1, style.PAGE, height + 0.3)
    ax.set(xlim=(0, style.PAGE), ylim=(-height, 0))
    ax.axis("off")
    slot = (style.PAGE - left - 0.85) / _place(root, 0.0)
    box = min(0.5, 0.86 * slot)
    _draw_node(ax, root, n_tasks, left, slot, box, step, level=0)
    for task in range(1, n_tasks + 1):
        y = -0.3 - step * (task - 1)
        ax.text(0, y, f"Task {task}", va="center", weight="bold")
        choices = n_actions(task - 1) if task > 1 else 0
        text = f"{choices} choice" + "s" * (choices > 1) if choices else "no memory"
        ax.text(style.PAGE, y, text, va="center", ha="right")
    colors = style.task_colors(n_tasks)
    handles = [Line2D([], [], color=_PATH_COLORS[i], lw=2, label=n) for i, n in enumerate(paths)]
    handles += [
        Rectangle((0, 0), 1, 1, color=colors[i], label=f"task {i + 1}") for i in range(n_tasks - 1)
    ]
    fig.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        handlelength=1.2,
        columnspacing=0.8,
    )
    return fig


def _example_paths(n_tasks: int, M: int) -> dict[str, Schedule]:
    olds = range(1, n_tasks)
    return {
        "only task 1": Schedule(tuple((M,) + (0,) * (k - 1) for k in olds)),
        "equal shares": Schedule.ets(n_tasks, M),
        "only the task before": Schedule(tuple((0,) * (k - 1) + (M,) for k in olds)),
    }


def _grow(node: _Node, paths: list[Schedule], k: int, n_tasks: int, M: int) -> None:
    """Add the children of a node on a path: the first, the last and those on paths; else dots."""
    if k + 1 == n_tasks:
        return
    if not node.paths:
        node.children = [None]
        return
    taken: dict[Composition, list[int]] = {}
    for i in node.paths:
        taken.setdefault(paths[i].compositions[k], []).append(i)
    # The oldest task first, as in actions.
    ordered = sorted(compositions(k + 1, M), key=lambda c: [-n for n in c])
    shown = [c for c in ordered if c in taken or c in (ordered[0], ordered[-1])]
    for c in shown:
        if node.children and ordered.index(c) != ordered.index(node.children[-1].composition) + 1:  # type: ignore[union-attr]
            node.children.append(None)
        child = _Node(c, taken.get(c, []))
        node.children.append(child)
        _grow(child, paths, k + 1, n_tasks, M)


def _place(node: _Node, left: float) -> float:
    """Set x of a subtree from `left` on, in slots; returns its width. Dots take less than a box."""
    width = 0.0
    for child in node.children:
        width += 0.4 if child is None else _place(child, left + width)
    width = max(width, 1.0)
    xs = [c.x for c in node.children if c is not None]
    node.x = (xs[0] + xs[-1]) / 2 if xs else left + width / 2
    return width


def _draw_node(ax, node, n_tasks, left, slot, box, step, level) -> None:
    x, y = left + node.x * slot, -0.3 - step * level
    bottom = y - (0.2 if node.paths and level else 0.08)
    for i, child in enumerate(node.children):
        if child is None:
            # Dots between two boxes stand between them; a node without boxes has them below it.
            beside = [c.x for c in (*node.children[:i][-1:], *node.children[i + 1 :][:1])]
            at = left + np.mean(beside) * slot if beside else x
            ax.text(at, y - step, "···", ha="center", va="center", color="#666666")
            if not beside:
                ax.plot([x, x], [bottom, y - step + 0.08], color="#999999", lw=0.7, ls=(0, (3, 2)))
            continue
        end = left + child.x * slot, y - step + 0.09
        if not child.paths:
            ax.plot([x, end[0]], [bottom, end[1]], color="#999999", lw=0.7, zorder=1)
        across = np.array([end[1] - bottom, x - end[0]])  # at right angles to the edge
        across = 0.035 * across / np.linalg.norm(across)
        for j, path in enumerate(child.paths):  # side by side where they share an edge
            dx, dy = across * ((len(child.paths) - 1) / 2 - j)
            ax.plot(
                [x + dx, end[0] + dx], [bottom + dy, end[1] + dy],
                color=_PATH_COLORS[path], lw=2, zorder=2, solid_capstyle="round",
            )  # fmt: skip
        _draw_node(ax, child, n_tasks, left, slot, box, step, level + 1)
    total = sum(node.composition)
    start = x - box / 2
    for color, n in zip(style.task_colors(n_tasks), node.composition, strict=False):
        share = box * n / total
        ax.add_patch(Rectangle((start, y - 0.06), share, 0.12, color=color, lw=0, zorder=3))
        start += share
    edge = "black" if node.paths else "#777777"
    ax.add_patch(
        Rectangle((x - box / 2, y - 0.06), box, 0.12, fill=False, ec=edge, lw=0.6, zorder=4)
    )
    if node.paths and level:
        counted = ",".join(map(str, node.composition))
        ax.text(x, y - 0.075, counted, ha="center", va="top", zorder=5)


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
    n_tasks = seen.shape[-1]
    many = n_tasks > style.MANY_TASKS
    for i, color in enumerate(style.task_colors(n_tasks)):
        after = np.arange(i + 1, n_tasks + 1)
        curves = 100 * seen[:, i:, i]  # (seeds, tasks from i+1 on)
        mean, std = curves.mean(axis=0), curves.std(axis=0)
        marker = "" if many else style.task_marker(i + 1)
        ax.plot(after, mean, color=color, marker=marker, markersize=2.5, linewidth=1.0)
        if len(curves) > 1 and not many:  # twenty bands over each other say nothing
            ax.fill_between(after, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    mean_acc = np.mean([metrics.acc(m) for m in np.nan_to_num(seen)])
    ax.set_title(f"{name}\nACC {100 * mean_acc:.2f} %")
    ax.set_xticks(style.task_ticks(1, n_tasks))
    ax.set_xlim(0.7, n_tasks + 0.3)
