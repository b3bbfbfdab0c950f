"""Figures from result rows: ACC over memory sizes and settings, ranks, ours and the paper's.

Every function returns a matplotlib Figure drawn at printed size; `savefig` writes it as PDF and
PNG. What draws schedules and single runs lives in `rslib.schedule_plots`, what draws searches in
`rslib.search_plots`; both are offered here too.
Rows hold fractions, figures show percent. A method that was not run is simply not drawn.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from rslib import stats
from rslib.show import published, style
from rslib.show.artefacts import savefig
from rslib.show.schedules import (
    accuracy_and_bubbles,
    bubble,
    memory_usage,
    schedule_tree,
    task_accuracies,
)
from rslib.show.search_plots import all_schedules, search_progress
from rslib.show.tables import Table
from rslib.show.tables import printed_name as named

__all__ = [
    "acc_by_setting",
    "acc_over_memory",
    "accuracy_and_bubbles",
    "all_schedules",
    "bubble",
    "memory_usage",
    "ours_vs_paper",
    "rank_plot",
    "savefig",
    "schedule_tree",
    "search_progress",
    "task_accuracies",
]

_METRICS = {"acc": "ACC (%)", "bwt": "BWT (%)", "fwt": "FWT (%)", "reward": "validation ACC (%)"}
_NO_MEMORY = ("Joint", "Fine-tuning")  # the same at every memory size
BOUNDS = ("Joint", "BFS")  # what schedules are held against, not schedules themselves


@style.styled
def acc_over_memory(
    rows: pd.DataFrame, x: str = "memory_size", metric: str = "acc", n_columns: int = 3
) -> Figure:
    """A metric over memory sizes (Figure 3), mean and population std over seeds.

    One panel per dataset and scenario. Sizes stand at equal distances: the ladder is geometric.
    """
    settings = list(rows.groupby(["dataset", "scenario"], sort=False))
    wide = style.PAGE if len(settings) > 1 else style.COLUMN
    fig, axes = style.panels(len(settings), n_columns, wide, 1.9)
    for i, (ax, (setting, part)) in enumerate(zip(axes, settings, strict=True)):
        dataset, scenario = setting  # type: ignore[misc]
        scheduled = part[~part["label"].isin(_NO_MEMORY)]
        sizes = sorted(scheduled[x].dropna().unique())
        labels = style.in_order(scheduled["label"].tolist())
        for j, label in enumerate(labels):
            by_size = (100 * _series(scheduled, label, metric, x)).groupby(level=0)
            mean, std = by_size.mean().reindex(sizes), by_size.std(ddof=0).reindex(sizes)
            look = style.method(label)
            dodge = (j - (len(labels) - 1) / 2) * 0.07  # error bars beside each other
            ax.errorbar(
                np.arange(len(sizes)) + dodge, mean, std, label=label, color=look.color,
                linestyle=look.linestyle, marker=look.marker, capsize=1.5, elinewidth=0.7,
            )  # fmt: skip
        for label in style.in_order(part.loc[part["label"].isin(_NO_MEMORY), "label"].tolist()):
            value = 100 * part.loc[part["label"] == label, metric].mean()
            look = style.method(label)
            ax.axhline(value, color=look.color, linestyle=look.linestyle, label=label)
        name = published.SCENARIOS.get(str(scenario), str(scenario))
        ax.set_title(f"{published.dataset_name(str(dataset))}, {name}")
        ax.set_xticks(range(len(sizes)), [f"{s:.0f}" for s in sizes])
        ax.set_xlim(-0.4, len(sizes) - 0.6)
        ax.set_xlabel("memory size M" if x == "memory_size" else x.replace("_", " "))
        if i % n_columns == 0:
            ax.set_ylabel(_METRICS.get(metric, metric))
    style.legend_below(fig, axes, 8 if len(settings) > 1 else 4)
    return fig


@style.styled
def acc_by_setting(
    rows: pd.DataFrame, by: str, paper_table: str | None = None, metric: str = "acc"
) -> Figure:
    """Schedules side by side within each setting (Tables 1 and 2): `by` is "selection" or "replay".

    Dots are seeds, marks their mean with the population std, hollow marks the paper's mean where
    `paper_table` has that cell. Joint is a line, BFS one across the settings it was run in.
    """
    datasets = list(rows.groupby("dataset", sort=False))
    fig, axes = style.panels(len(datasets), 1, style.PAGE, 2.5)
    for ax, (dataset, part) in zip(axes, datasets, strict=True):
        scheduled = part[~part["label"].isin(BOUNDS)]
        settings = list(dict.fromkeys(scheduled[by]))
        labels = style.in_order(scheduled["label"].tolist())
        step = 0.84 / len(labels)
        for j, label in enumerate(labels):
            for i, setting in enumerate(settings):
                own = scheduled[(scheduled["label"] == label) & (scheduled[by] == setting)]
                at = i + (j - (len(labels) - 1) / 2) * step
                _seeds_mean_paper(ax, own, at, step, paper_table, metric)
        for label in BOUNDS:
            bound = part[part["label"] == label]
            look, values = style.method(label), 100 * bound[metric].dropna()
            if not len(values):
                continue
            where = [settings.index(s) for s in set(bound[by]) & set(settings)]
            if label == "Joint" or not where:  # it replays nothing: the same in every setting
                where = [0, len(settings) - 1]
            ends = [min(where) - 0.5, max(where) + 0.5]
            ax.plot(ends, [values.mean()] * 2, color=look.color, linestyle=look.linestyle, lw=1.1)
            ax.plot([], [], color=look.color, linestyle=look.linestyle, lw=1.1, label=label)
        for i in range(1, len(settings)):
            ax.axvline(i - 0.5, color="#CCCCCC", linewidth=0.6)
        ax.grid(False, axis="x")
        ax.set_xticks(range(len(settings)), [str(named(by, s)) for s in settings])
        ax.set_xlim(-0.5, len(settings) - 0.5)
        ax.set(ylabel=_METRICS.get(metric, metric), title=published.dataset_name(str(dataset)))
    style.legend_below(fig, axes, 8)
    return fig


def _seeds_mean_paper(
    ax: Axes, own: pd.DataFrame, at: float, step: float, paper_table: str | None, metric: str
) -> None:
    """One cell of `acc_by_setting`, in a column `step` wide around `at`."""
    values = 100 * own[metric].dropna()
    if not len(values):
        return
    label = own["label"].iloc[0]
    look = style.method(label)
    ax.plot(
        [at - 0.25 * step] * len(values), values, ".", color=look.color, alpha=0.45, markersize=4,
    )  # fmt: skip
    ax.errorbar(
        at, values.mean(), values.std(ddof=0), color=look.color, marker=look.marker, markersize=5,
        linestyle="", elinewidth=0.9, label=label,
    )  # fmt: skip
    theirs = published.counterpart(own.iloc[0], paper_table, label, metric) if paper_table else None
    if theirs:
        ax.errorbar(
            at + 0.3 * step, theirs.mean_percent, theirs.std_percent, color=look.color,
            marker=look.marker, markersize=4, markerfacecolor="white", linestyle="", elinewidth=0.6,
        )  # fmt: skip
        ax.plot([], [], "o", color="#444444", mfc="white", markersize=4, label="paper")


@style.styled
def rank_plot(
    acc: ArrayLike, labels: Sequence[str], ax: Axes | None = None, title: str | None = None
) -> Figure:
    """Average ranks, best on top, with 95 % bootstrap intervals.

    acc: (environments, seeds, methods), as for `stats.average_ranks`.
    """
    ranks = dict(zip(labels, stats.rank_intervals(acc), strict=True))
    shown = sorted((k for k in ranks if np.isfinite(ranks[k].value)), key=lambda k: ranks[k].value)
    fig, ax = style.on(ax, style.COLUMN, 0.65 + 0.2 * len(shown))
    for y, label in enumerate(shown):
        rank, look = ranks[label], style.method(label)
        if rank.reason is None:
            ax.plot([rank.low, rank.high], [y, y], color=look.color, linewidth=1.5)
        ax.plot(rank.value, y, color=look.color, marker=look.marker, markersize=4.5)
        ax.annotate(
            f"{rank.value:.2f}", (1.01, y), xycoords=("axes fraction", "data"),
            va="center", fontsize=7, annotation_clip=False,
        )  # fmt: skip
    ax.set_yticks(range(len(shown)), shown)
    ax.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0.8, len(shown) + 0.2), title=title)
    ax.set_xticks(range(1, len(shown) + 1))
    ax.set_xlabel("average rank (1 = best)")
    return fig


@style.styled
def ours_vs_paper(table: Table, metric: str = "acc", n_columns: int = 2) -> Figure:
    """Our means (filled) beside the published ones (hollow), both with their std over seeds.

    Takes a `summary_table` made with `paper_table`; one panel per dataset.
    """
    values = table.values
    values = values[(values["metric"] == metric) & values["paper_mean"].notna()]
    if not len(values):
        raise ValueError("the table has no published numbers: give summary_table a paper_table")
    keys = [k for k in values.columns[: values.columns.get_loc("metric")] if k != "dataset"]
    datasets = list(values.groupby("dataset", sort=False))
    longest = max(len(part) for _, part in datasets)
    wide = style.PAGE if len(datasets) > 1 else style.COLUMN
    fig, axes = style.panels(len(datasets), n_columns, wide, 0.75 + 0.2 * longest)
    for ax, (dataset, part) in zip(axes, datasets, strict=True):
        for y, row in enumerate(part.to_dict("records")):
            look = style.method(str(row.get("label", "")))
            ours, theirs = (
                (y - 0.15, row["mean"], row["std"]),
                (y + 0.15, row["paper_mean"], row["paper_std"]),
            )
            ax.plot([ours[1], theirs[1]], [y, y], color="#BBBBBB", linewidth=0.8, zorder=1)
            for (at, mean, std), face in ((ours, look.color), (theirs, "white")):
                ax.errorbar(
                    mean, at, xerr=std if np.isfinite(std) else 0, marker=look.marker, markersize=4,
                    color=look.color, markerfacecolor=face, markeredgewidth=0.9, elinewidth=0.8,
                )  # fmt: skip
        names = [" ".join(str(named(k, row[k])) for k in keys) for row in part.to_dict("records")]
        ax.set_yticks(range(len(part)), names)
        ax.set_ylim(len(part) - 0.5, -0.5)
        ax.set_title(published.dataset_name(str(dataset)))
        ax.set_xlabel(_METRICS.get(metric, metric))
    handles = [
        axes[0].plot([], [], "o", color="#444444", mfc=face, label=name)[0]
        for face, name in (("#444444", "ours"), ("white", "paper"))
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=2)
    return fig


def _series(rows: pd.DataFrame, label: str, metric: str, by: str) -> pd.Series:
    return rows[rows["label"] == label].set_index(by)[metric].dropna()
