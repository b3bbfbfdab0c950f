"""What the panels draw: a run above its schedule, the ranking of all schedules, the search tree."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rslib.schedule import Path, Schedule
from rslib.show import style
from rslib.show.schedules import bubble, draw_accuracies
from rslib.tree import Node
from rslib.widgets.known import KnownSchedules, SearchTree

SCREEN = 110  # dots per inch on a page, where 8 point letters are 12 pixels high
RUN = 3.6  # inches, the width of one run
IMAGES = 10  # samples of a task in a row


@style.styled
def run(name: str, node: Node, task: int | None = None, low: float | None = None) -> Figure:
    """Draw a run's accuracies (the axis starts at `low`) above its schedule; `task` is marked."""
    fig, (above, below) = style.panels(2, 1, RUN, 2.2)
    _draw_run(above, below, name, node, task, lowest([node]) if low is None else low)
    style.task_key(fig, [above, below], node.environment.n_tasks or 0)
    return fig


def lowest(nodes: Iterable[Node]) -> float:
    """Find the lowest accuracy of a learned task in any of the runs, where a common axis starts."""
    learned = [node.test[t, :t] for node in nodes for t in range(1, node.depth + 1)]
    found = np.concatenate(learned)
    return float(np.nanmin(found)) if np.isfinite(found).any() else 0.0  # NaN: it has diverged


def _draw_run(
    above: Axes, below: Axes, name: str, node: Node, task: int | None, low: float
) -> None:
    n_tasks = node.environment.n_tasks or 0
    missing = n_tasks - node.depth  # tasks a game has not reached stay empty, and the axes the same
    to_come = [(0,) * k for k in range(node.depth, n_tasks)]
    draw_accuracies(above, np.pad(node.test, ((0, missing), (0, 0)), constant_values=np.nan), name)
    above.set_title(f"{name}\nACC {node.acc:.2%}")
    above.set(xlabel="after task", ylabel="accuracy (%)", ylim=(max(100 * low - 4, -2), 102))
    bubble(Schedule((*node.path, *to_come)), below)
    if task is not None:
        above.axvline(task, color="black", linewidth=1, zorder=1.5)
        if task > 1:
            below.axvspan(task - 0.5, task + 0.5, color="#E8E8E8", zorder=0.5)


@style.styled
def ranking(known: KnownSchedules, runs: Mapping[str, Node]) -> Figure:
    """Draw the test ACC of every evaluated schedule, best first, and mark some of them."""
    fig, (ax,) = style.panels(1, 1, 5.6, 1.7)
    _draw_ranking(ax, known, runs)
    return fig


def _draw_ranking(ax: Axes, known: KnownSchedules, runs: Mapping[str, Node]) -> None:
    accs = sorted((100 * node.acc for node in known.nodes.values()), reverse=True)
    ax.plot(np.arange(1, len(accs) + 1), accs, ".", color="#888888", markersize=3)
    for (name, node), marker, color in zip(runs.items(), "os", ("#0072B2", "#D55E00")):
        rank, side = known.rank(node), name.partition(":")[0]
        label = f"{side}: {rank} of {len(accs)} by test, {known.rank(node, 'reward')} by validation"
        ax.plot(rank, 100 * node.acc, marker, color=color, label=label)
    ax.set(xlabel="rank by test ACC among the schedules evaluated", ylabel="ACC (%)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="lower left")


@style.styled
def inspection(known: KnownSchedules, runs: Mapping[str, Node], task: int) -> Figure:
    """Draw two runs side by side above the ranking, the static form of `inspect_schedule`."""
    fig = plt.figure(figsize=(style.PAGE, 5.6))
    plt.close(fig)
    grid = fig.add_gridspec(3, 2, height_ratios=(1, 1, 0.8))
    for column, (name, node) in enumerate(runs.items()):
        above, below = (fig.add_subplot(grid[row, column]) for row in (0, 1))
        _draw_run(above, below, name, node, task, lowest(runs.values()))
    _draw_ranking(fig.add_subplot(grid[2, :]), known, runs)
    style.task_key(fig, fig.axes[:-1], next(iter(runs.values())).environment.n_tasks or 0)
    return fig


@style.styled
def search_tree(search: SearchTree, rollouts: int) -> Figure:
    """Draw the tree after some rollouts, from task 1 down, beside the shares of the leader's schedule.

    A node's area is the rollouts through it, its colour their best reward. The leader's path is black,
    and dashed where it was drawn instead of chosen. Places, areas and colours mean the same after
    every rollout, so that only the search moves.
    """
    nodes, place, chosen = search.nodes(rollouts), _positions(search.ever), search.chosen(rollouts)
    leader = search.paths[search.leader(rollouts)]
    n_tasks = len(leader) + 1
    fig, (ax, shares) = plt.subplots(
        1, 2, figsize=(7.4, 3 + 0.1 * n_tasks), sharey=True, width_ratios=(4, 1)
    )
    plt.close(fig)
    for node in nodes:
        if node:
            (x, y), on_path = zip(place[node[:-1]], place[node]), node == leader[: len(node)]
            ax.plot(
                x, y, "-" if node in chosen else "--", color="black" if on_path else "#BBBBBB",
                linewidth=1.6 if on_path else 0.6, zorder=2 if on_path else 1,
            )  # fmt: skip
    n, best = np.array([*nodes.values()]).T
    drawn = ax.scatter(
        *zip(*(place[node] for node in nodes)), s=12 + 260 * n / len(search), c=100 * best,
        cmap="Blues", vmin=100 * np.nanmin(search.result.rewards), vmax=100 * search.rewards.max(),
        edgecolors="black", linewidths=0.4, zorder=3,
    )  # fmt: skip
    fig.colorbar(drawn, ax=ax, label="best validation of its rollouts (%)", pad=0.01)
    widest = max(x for x, _ in place.values())
    ax.set_yticks([-k for k in range(n_tasks)], [f"task {k + 1}" for k in range(n_tasks)])
    ax.set(xticks=[], xlim=(-0.5, widest + 0.5), ylim=(0.5 - n_tasks, 0.5))
    ax.set_title(f"{search.result.label}, after {rollouts} of {len(search)} rollouts")
    ax.grid(axis="x", visible=False)
    _draw_shares(shares, Schedule(leader))
    style.task_key(fig, [shares], n_tasks)
    return fig


def _draw_shares(ax: Axes, schedule: Schedule) -> None:
    """Draw the memory at every task as one bar, cut into the shares of the old tasks."""
    share = 100 * schedule.proportions()  # (at task 2..T, of task 1..T-1)
    left, y = share.cumsum(axis=1) - share, -np.arange(1, schedule.n_tasks)
    for of, color in enumerate(style.task_colors(schedule.n_tasks)[:-1]):
        ax.barh(y, share[:, of], 0.6, left[:, of], color=color)
    ax.set(xlim=(0, 100), xlabel="share (%)", title="memory of the best")


def _positions(nodes: Iterable[Path]) -> dict[Path, tuple[float, float]]:
    """Put childless nodes side by side in order, every other node in the middle of its children."""
    ordered = sorted(nodes, key=lambda path: [[-n for n in c] for c in path])
    children: dict[Path, list[Path]] = {}
    for node in ordered:
        if node:
            children.setdefault(node[:-1], []).append(node)
    x = {node: float(i) for i, node in enumerate(n for n in ordered if n not in children)}
    for node in sorted(children, key=len, reverse=True):
        x[node] = (x[children[node][0]] + x[children[node][-1]]) / 2
    return {node: (x[node], -len(node)) for node in ordered}


@style.styled
def sentence(text: str) -> Figure:
    """Draw a sentence, for a panel that has nothing else to show."""
    fig, (ax,) = style.panels(1, 1, style.PAGE, 0.6)
    ax.axis("off")
    ax.text(0, 0.5, text, va="center", wrap=True, transform=ax.transAxes)
    return fig


# -- as HTML ---------------------------------------------------------------------------------------


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=SCREEN)
    return out.getvalue()


def as_html(figure: Figure, alt: str) -> str:
    """Embed a figure in a page, never wider than its place; `alt` describes it for screen readers."""
    width = round(figure.get_figwidth() * SCREEN)
    return _img(png(figure), alt, f"width:{width}px;max-width:100%;height:auto")


def images_as_html(images: np.ndarray, alt: str) -> str:
    """Embed the first samples in a row, pixels kept square and sharp."""
    shown = images[:IMAGES]  # (n, channels, height, width), in [0, 1] but for users' floats
    if shown.min() < 0 or shown.max() > 1:
        low, high = (f(axis=(0, 2, 3), keepdims=True) for f in (shown.min, shown.max))
        shown = (shown - low) / np.maximum(high - low, 1e-12)
    if shown.shape[1] != 3:
        shown = shown[:, :1].repeat(3, axis=1)  # grey
    row = np.concatenate([np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=1) for x in shown], 2)
    out = io.BytesIO()
    plt.imsave(out, row.clip(0, 1).transpose(1, 2, 0))
    more = f" and {len(images) - IMAGES} more" if len(images) > IMAGES else ""
    css = "height:34px;max-width:100%;image-rendering:pixelated;vertical-align:middle"
    return _img(out.getvalue(), alt, css) + more


def _img(content: bytes, alt: str, css: str) -> str:
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt)}" style="{css}" src="data:image/png;base64,{data}">'
