"""Figures that several notebooks share: ACC by setting, ours beside the paper's, paired differences.

Each function returns a matplotlib Figure at printed size, for `style.savefig`. Rows hold fractions,
figures show percent. A method that was not run is not drawn.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rslib.show import published, style
from rslib.show.tables import BOUNDS, Table, printed_name


@style.styled
def acc_by_setting(rows: pd.DataFrame, by: str, paper_table: str) -> Figure:
    """Draw schedules side by side within each setting (Tables 1 and 2), one panel per dataset.

    `by` is the column of the setting, "selection" or "replay". Dots are seeds, marks are their mean
    with the population std, and hollow marks are the paper's mean where `paper_table` has the cell.
    Joint is a line across all settings, BFS a line across the settings it was run in; the legend says
    where a bound is the mean of fewer seeds than the schedules have.
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
                _draw_cell(ax, own, at, step, paper_table)
        for label in BOUNDS:
            bound = part[part["label"] == label]
            look, values = style.method(label), 100 * bound["acc"].dropna()
            if not len(values):
                continue
            where = [settings.index(s) for s in set(bound[by]) & set(settings)]
            if label == "Joint" or not where:  # it replays nothing: the same in every setting
                where = [0, len(settings) - 1]
            ends = [min(where) - 0.5, max(where) + 0.5]
            line = dict(color=look.color, linestyle=look.linestyle, lw=1.1)
            n_seeds = scheduled["seed"].nunique()
            few = f" ({len(values)} of {n_seeds} seeds)" if len(values) < n_seeds else ""
            ax.plot(ends, [values.mean()] * 2, **line, label=label + few)
        for i in range(1, len(settings)):
            ax.axvline(i - 0.5, color="#CCCCCC", linewidth=0.6)
        ax.grid(False, axis="x")
        ax.set_xticks(range(len(settings)), [str(printed_name(by, s)) for s in settings])
        ax.set_xlim(-0.5, len(settings) - 0.5)
        ax.set(ylabel="ACC (%)", title=published.dataset_name(str(dataset)))
    note = "dots: seeds; bars: ± one standard deviation over seeds"
    style.legend_below(fig, axes, 8, note)
    return fig


def _draw_cell(ax: Axes, own: pd.DataFrame, at: float, step: float, paper_table: str) -> None:
    """Draw the seeds, their mean and the paper's mean of one cell, `step` wide around `at`."""
    values = 100 * own["acc"].dropna()
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
    theirs = published.counterpart(own.iloc[0], paper_table, label, "acc")
    if theirs:
        ax.errorbar(
            at + 0.3 * step, theirs.mean_percent, theirs.std_percent, color=look.color,
            marker=look.marker, markersize=4, markerfacecolor="white", linestyle="", elinewidth=0.6,
        )  # fmt: skip
        ax.plot([], [], "o", color="#444444", mfc="white", markersize=4, label="paper")


@style.styled
def ours_vs_paper(table: Table) -> Figure:
    """Draw our mean ACC (filled) beside the published means (hollow), with their std over seeds.

    Takes a `summary_table` made with `paper_table`; one panel per dataset.
    """
    values = table.values
    values = values[(values["metric"] == "acc") & values["paper_mean"].notna()]
    if not len(values):
        raise ValueError("the table has no published numbers: give summary_table a paper_table")
    keys = [k for k in values.columns[: values.columns.get_loc("metric")] if k != "dataset"]
    lines = values[["dataset"]].assign(label=values.get("label", ""))
    lines["name"] = [
        " ".join(str(printed_name(k, row[k])) for k in keys) for _, row in values.iterrows()
    ]
    for side in ("", "paper_"):
        mean, std = values[f"{side}mean"], values[f"{side}std"].fillna(0)
        lines[f"{side}value"], lines[f"{side}low"], lines[f"{side}high"] = (
            mean,
            mean - std,
            mean + std,
        )
    return _draw_lines(lines, "ACC (%)", "bars: ± one standard deviation over seeds")


@style.styled
def forest(tests: Table, xlabel: str = "ACC of MCTS - ACC of the other (points)") -> Figure:
    """Draw the paired differences of a table with their intervals, one panel per dataset.

    Hollow marks are the paper's differences, with the Welch intervals that its means imply.
    """
    values = tests.values[tests.values["pairs"] > 0]
    keys = values.columns[: values.columns.get_loc("comparison")].drop("dataset", errors="ignore")
    others = [c.split(" vs ")[-1] for c in values["comparison"]]
    lines = pd.DataFrame({"label": values["label"].to_list() if "label" in values else others})
    lines["name"] = [
        ", ".join([*(str(printed_name(k, row[k])) for k in keys), label])
        for (_, row), label in zip(values.iterrows(), lines["label"], strict=True)
    ]
    lines["dataset"] = values["dataset"].to_numpy() if "dataset" in values else ""
    ends = {"value": "difference", "low": "ci_low", "high": "ci_high"}
    for ours, paper in ends.items():
        name = f"paired_{ours if ours != 'value' else paper}"
        lines[ours] = values[name].to_numpy()
        found = values.get(f"paper_{paper}")
        lines[f"paper_{ours}"] = np.nan if found is None else found.to_numpy()
    fig = _draw_lines(lines, xlabel, "bars: 95 % intervals; ours of paired differences")
    for ax in fig.axes:
        ax.axvline(0, color="black", linewidth=0.8, zorder=0)
    return fig


def _draw_lines(lines: pd.DataFrame, xlabel: str, note: str) -> Figure:
    """Draw a value with its interval per line, ours filled and the paper's hollow, per dataset."""
    datasets = list(lines.groupby("dataset", sort=False))
    longest = max((len(part) for _, part in datasets), default=1)
    narrow = len(datasets) < 2 and lines["name"].str.len().max() < 20
    wide = style.COLUMN if narrow else style.PAGE
    fig, axes = style.panels(max(len(datasets), 1), 2, wide, 0.8 + 0.2 * longest)
    both = bool(lines["paper_value"].notna().any())
    for ax, (dataset, part) in zip(axes, datasets, strict=False):
        for y, row in enumerate(part.to_dict("records")):
            look = style.method(row["label"])
            for side, shift, face in (("", -0.15, look.color), ("paper_", 0.15, "white")):
                value, low, high = (row[f"{side}{end}"] for end in ("value", "low", "high"))
                if np.isfinite(value):
                    ends = np.nan_to_num(
                        [[value - low], [high - value]]
                    )  # one seed has no interval
                    ax.errorbar(
                        value, y + shift * both, xerr=ends, marker=look.marker, markersize=4,
                        color=look.color, markerfacecolor=face, markeredgewidth=0.9, elinewidth=0.8,
                    )  # fmt: skip
        ax.set_yticks(range(len(part)), part["name"])
        ax.set_ylim(len(part) - 0.5, -0.5)
        ax.set_title(published.dataset_name(str(dataset)))
    fig.supxlabel(f"{xlabel}\n{note}" if narrow else f"{xlabel}; {note}")
    if both:
        for face, name in (("#444444", "ours"), ("white", "paper")):
            axes[0].plot([], [], "o", color="#444444", mfc=face, markersize=4, label=name)
        style.legend_below(fig, axes, 2)
    return fig
