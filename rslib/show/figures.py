"""Figures that several notebooks share: ours beside the paper's, and paired differences.

Each function returns a matplotlib Figure at printed size, for `style.savefig`. Rows hold fractions,
figures show percent. A method that was not run is not drawn.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from rslib.show import published, style
from rslib.show.tables import Table, printed_name


@style.styled
def ours_vs_paper(table: Table) -> Figure:
    """Draw our mean ACC (filled) beside the published means (hollow), with their std over seeds.

    Takes a `summary_table` made with `paper_table`; one panel per dataset. Names say of how many seeds
    ours are, where the paper's number is another.
    """
    values = table.values
    values = values[(values["metric"] == "acc") & values["paper_mean"].notna()]
    if not len(values):
        raise ValueError("the table has no published numbers: give summary_table a paper_table")
    keys = [k for k in values.columns[: values.columns.get_loc("metric")] if k != "label"]
    sides = []
    for mean, std in (("mean", "std"), ("paper_mean", "paper_std")):
        ends = values[mean] - values[std], values[mean] + values[std]
        sides.append(np.column_stack([values[mean], *ends]))
    # The paper's are of five: a mean of fewer says so where it stands.
    seeds = ["" if n == published.SEEDS else f" (n={n})" for n in values["n"]]
    note = "bars: ± one standard deviation over seeds"
    return _draw_lines(values.assign(text=values["label"] + seeds), keys, sides, f"ACC (%); {note}")


@style.styled
def forest(tests: Table, xlabel: str = "ACC of MCTS - ACC of the other (points)") -> Figure:
    """Draw the paired differences of a table with their intervals, one panel per dataset.

    Hollow marks are the paper's differences, with the Welch intervals that its means imply.
    """
    values = tests.values[tests.values["pairs"] > 0]
    keys = list(values.columns[: values.columns.get_loc("comparison")])
    others = values["comparison"].str.split(" vs ").str[-1]
    labels = values.get("label", others)
    ours = ["paired_difference", "paired_low", "paired_high"]
    paper = ["paper_difference", "paper_ci_low", "paper_ci_high"]
    sides = [values.reindex(columns=names).to_numpy(float) for names in (ours, paper)]
    hollow = bool(np.isfinite(sides[1]).any())
    note = "bars: 95 % intervals" + (", ours paired" if hollow else "")
    fig = _draw_lines(values.assign(label=labels, text=labels), keys, sides, f"{xlabel}; {note}")
    for ax in fig.axes:
        ax.axvline(0, color="black", linewidth=0.8, zorder=0)
    return fig


def _draw_lines(values, keys, sides, xlabel: str) -> Figure:
    """Draw a line per row: ours (filled) and the paper's (hollow), as (value, low, high) each.

    Its name is made of the keys and its text; each value of the key "dataset" has its own panel.
    """
    values = values.reset_index(drop=True)
    panels = list(values.groupby("dataset", sort=False)) if "dataset" in keys else [("", values)]
    longest = max((len(part) for _, part in panels), default=1)
    fig, axes = style.panels(max(len(panels), 1), 2, style.PAGE, 0.8 + 0.2 * longest)
    both = bool(np.isfinite(sides[1]).any())
    for ax, (dataset, part) in zip(axes, panels, strict=False):
        for y, (i, row) in enumerate(part.iterrows()):
            look = style.method(row["label"])
            for side, shift, face in zip(sides, (-0.15, 0.15), (look.color, "white"), strict=True):
                value, low, high = side[i]
                ends = np.nan_to_num([[value - low], [high - value]])  # one seed has no interval
                ax.errorbar(
                    value, y + shift * both, xerr=ends, marker=look.marker, markersize=4,
                    color=look.color, markerfacecolor=face, markeredgewidth=0.9, elinewidth=0.8,
                )  # fmt: skip
        parts = [[printed_name(k, v) for v in part[k]] for k in [*keys, "text"] if k != "dataset"]
        ax.set_yticks(range(len(part)), [", ".join(map(str, name)) for name in zip(*parts)])
        ax.set_ylim(len(part) - 0.5, -0.5)
        ax.set_title(published.dataset_name(str(dataset)) if dataset else "")
    if not both:
        fig.supxlabel(xlabel)
        return fig
    for face, name in (("#444444", "ours"), ("white", "paper")):
        axes[0].plot([], [], "o", color="#444444", mfc=face, markersize=4, label=name)
    style.legend_below(fig, axes, 2, xlabel)
    return fig
