"""Figures of searches: how far they have come, and where methods stand among all schedules."""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rslib.show import style

_BASELINES = ("BFS", "ETS", "Random", "Random-best", "Heur-GD", "Joint")
_PLACED = ("Random", "ETS", "Heur-GD", "Random-best", "MCTS", "BFS")


@style.styled
def search_progress(
    searches: Mapping[str, Sequence[Any]] | Sequence[Any],
    rows: pd.DataFrame | None = None,
    baselines: Sequence[str] = _BASELINES,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Test ACC of the best schedule so far over rollouts, against fixed methods (Figure 8).

    `searches` has one search result (with `.best_so_far`) or array per seed, by method or for
    MCTS alone; seeds that stopped early cut the curve at the shortest. Bands, and the bars at the
    right for the methods in `rows`, are one population std over seeds, as in the tables.
    """
    by_method = dict(searches) if isinstance(searches, Mapping) else {"MCTS": searches}
    new = ax is None
    fig, ax = style.on(ax, style.COLUMN, 2.5)
    longest = 1
    for label in style.in_order(list(by_method)):
        runs = [np.asarray(getattr(s, "best_so_far", s), dtype=float) for s in by_method[label]]
        n = min(map(len, runs))
        curves = 100 * np.stack([r[:n] for r in runs])  # (seeds, rollouts)
        low, high = _spread(curves)
        rollouts, look = np.arange(1, n + 1), style.method(label)
        marker = look.marker if n == 1 else ""  # a line of one point is no line
        mean = curves.mean(axis=0)
        ax.plot(rollouts, mean, color=look.color, marker=marker, label=label, zorder=3)
        ax.fill_between(rollouts, low, high, color=look.color, alpha=0.18, linewidth=0)
        longest = max(longest, n)
    fixed = [] if rows is None else [b for b in baselines if b in set(rows["label"])]
    fixed = [b for b in style.in_order(fixed) if b not in by_method]
    for i, label in enumerate(fixed):
        assert rows is not None
        values = 100 * rows.loc[rows["label"] == label, "acc"].dropna().to_numpy(float)
        if not len(values):
            continue
        look, (low, high) = style.method(label), _spread(values[:, None])
        ax.axhline(values.mean(), color=look.color, linestyle=look.linestyle, label=label, lw=1.1)
        at = longest * (1.03 + 0.035 * i)
        ax.plot([at, at], [low[0], high[0]], color=look.color, linewidth=1.5)
    ax.set(xlabel="rollouts", ylabel="ACC (%)", title=title)
    ticks = MaxNLocator(5, integer=True, min_n_ticks=1).tick_values(1, longest)
    ax.set_xticks(sorted({1, *(int(t) for t in ticks if 1 < t <= longest)}))
    right = longest * (1.03 + 0.035 * max(len(fixed), 1))
    ax.set_xlim((1, right) if longest > 1 else (0.5, 1.5))
    if new:
        style.legend_below(fig, [ax], 4)
    return fig


@style.styled
def all_schedules(
    exhaustive: Sequence[Any], rows: pd.DataFrame, labels: Sequence[str] = _PLACED
) -> Figure:
    """Test ACC of every schedule there is, one panel per seed of `exhaustive` (BFS results), with
    the methods of `rows` on the same seed as lines: how much there is to gain, and who gained it."""
    n = max(len(exhaustive), 1)
    fig, axes = style.panels(n, 2, style.COLUMN if n == 1 else style.PAGE, 2.1)
    if not exhaustive:
        axes[0].text(0.5, 0.5, "not every schedule was tried", ha="center")
        axes[0].set_axis_off()
        return fig
    for ax, found in zip(axes, exhaustive, strict=False):
        seed = found.node.environment.seed
        ax.hist(100 * found.accs, bins=40, color="#BBBBBB")
        here = rows[rows["seed"] == seed].set_index("label")["acc"]
        for label in style.in_order([label for label in labels if label in here]):
            look = style.method(label)
            ax.axvline(100 * here[label], color=look.color, linestyle=look.linestyle, label=label)
        ax.set(xlabel="ACC (%)", title=f"{len(found.accs)} schedules, seed {seed}")
    axes[0].set(ylabel="schedules")
    style.legend_below(fig, axes, 3)
    return fig


def _spread(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean -+ population std over axis 0, as in the tables; of one seed, the seed itself."""
    mean, std = curves.mean(axis=0), curves.std(axis=0)
    return mean - std, mean + std
