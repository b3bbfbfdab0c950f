"""Tables from result rows: one `Table` that notebooks show as HTML and papers input as LaTeX.

`summary_table` is mean +- population std with the three best highlighted and the paper's numbers
beside; `welch_table` its t-tests; `plain_table` anything else (hyper-parameters, task splits).
Rows hold fractions, tables print percent. A table never guesses: a cell that has not been run is a
dash, a seed that did not converge a star, and two rows for one cell and seed are an error.
How a table looks is `rslib.typeset`'s business; this module decides what it says.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from rslib import stats
from rslib.show import published, table_rows
from rslib.show.artefacts import save_table
from rslib.show.latex import DASH, Table, plain_table
from rslib.show.table_rows import (
    HEADS,
    as_tuple,
    caption,
    checked,
    grouped,
    joined,
    named,
    ordered_index,
    tuples,
    with_index,
)

__all__ = ["Table", "caption", "plain_table", "save_table", "summary_table", "welch_table"]

UNRANKED = ("Joint", "BFS", "Fine-tuning")  # bounds, not schedules one could choose
LOWER_IS_BETTER = ("rank", "seconds")
NOT_PERCENT = ("rank", "seconds", "trained")
METRICS = {"acc": "ACC (%)", "bwt": "BWT (%)", "fwt": "FWT (%)", "reward": "Val. ACC (%)"}


def summary_table(
    rows: pd.DataFrame,
    row_keys: Sequence[str] = ("label",),
    column_key: str = "dataset",
    metrics: Sequence[str] = ("acc", "bwt"),
    paper_table: str | None = None,
    caption: str | None = None,
    n_expected: int = 5,
    over: Sequence[str] = ("seed",),
    unranked: Sequence[str] = UNRANKED,
) -> Table:
    """Mean and population std per method (last of `row_keys`) within groups (the others).

    Means are over `over`: seeds, or ("environment", "seed") in the generalization experiments.
    The three best of a group are highlighted per column; `unranked` methods do not compete.
    `paper_table` (such as "memory_selection") adds the published value and the difference.
    """
    row_keys = list(row_keys)
    rows = checked(rows, [*row_keys, column_key], metrics, over)
    cells = [
        {**dict(zip([*row_keys, column_key], as_tuple(key), strict=True)), "metric": metric}
        | _summarise(part, metric)
        | _published(part, metric, paper_table)
        for key, part in rows.groupby([*row_keys, column_key], sort=False, dropna=False)
        for metric in metrics
    ]
    values = pd.DataFrame(cells)
    places = _highlight(values, [*row_keys[:-1], column_key, "metric"], row_keys[-1], unranked)
    index = ordered_index(rows, row_keys)
    columns = list(dict.fromkeys(rows[column_key]))
    shown: dict[tuple, list[str]] = {}
    marks: dict[tuple, list[str]] = {}
    for column in columns:
        for metric in metrics:
            here = values[(values[column_key] == column) & (values["metric"] == metric)]
            at = {as_tuple(k): i for k, i in zip(tuples(here, row_keys), here.index, strict=True)}
            found = [at.get(key) for key in index]
            head = (str(named(column_key, column)), METRICS.get(metric, metric))
            shown[(*head, "ours")] = [
                DASH if i is None else _cell(values.loc[i], n_expected) for i in found
            ]
            marks[(*head, "ours")] = ["" if i is None else places[i] for i in found]
            if here["paper_mean"].notna().any():
                for name, text in (("paper", _paper_cell), ("diff.", _difference_cell)):
                    shown[(*head, name)] = ["" if i is None else text(values.loc[i]) for i in found]
                    marks[(*head, name)] = [""] * len(index)
    frame = with_index(pd.DataFrame(shown), index, row_keys)
    text = caption or _default_caption(rows, row_keys, metrics)
    notes = _notes(values, frame, metrics, places, n_expected, over)
    marked = pd.DataFrame(marks).set_axis(frame.index)
    marked.columns = frame.columns = _without_constant_level(frame.columns)
    return Table(frame, joined(text, notes), marked, _csv_ready(values))


def welch_table(
    rows: pd.DataFrame,
    ours: str = "MCTS",
    against: Sequence[str] = ("Random", "ETS", "Heur-GD"),
    group_keys: Sequence[str] = ("dataset",),
    metric: str = "acc",
    paper_table: str | None = None,
    caption: str | None = None,
    over: Sequence[str] = ("seed",),
) -> Table:
    """Welch's two-tailed tests of `ours` against each other method, within each group.

    p is bold below 0.05, before correction, as in the paper; Holm corrects over the whole table.
    The paired difference rides along in the CSV: same seed, same realisation, so it is sharper.
    """
    group_keys = list(group_keys)
    rows = checked(rows, [*group_keys, "label"], [metric], over)
    scale = 1 if metric in NOT_PERCENT else 100
    lines = []
    parts = {as_tuple(k): p for k, p in rows.groupby(group_keys, sort=False, dropna=False)}
    for key in grouped(parts):
        part = parts[key]
        series = {m: p.set_index(list(over))[metric] for m, p in part.groupby("label")}
        mine = series.get(ours, pd.Series(dtype=float))
        for other in against:
            theirs = series.get(other, pd.Series(dtype=float))
            test = stats.welch(mine * scale, theirs * scale)
            pairs = pd.concat([mine, theirs], axis=1, join="inner").to_numpy(float) * scale
            paired = stats.paired_difference(pairs[:, 0], pairs[:, 1])
            own = part[part["label"] == ours]
            known = paper_table and len(own)
            found = (
                published.counterpart_test(own.iloc[0], paper_table, ours, other) if known else None
            )
            paper_t, paper_p = found or (nan, nan)
            lines.append(
                dict(zip(group_keys, key, strict=True))
                | {"comparison": f"{ours} vs {other}", "metric": metric}
                | {"n_ours": test.n_a, "n_other": test.n_b, "difference": test.difference}
                | {"ci_low": test.ci_low, "ci_high": test.ci_high, "t": test.t, "df": test.df}
                | {"p": test.p, "hedges_g": stats.effect_size(mine, theirs).value}
                | {"paired_difference": paired.value, "paired_p": paired.p}
                | {"reason": test.reason or "", "paper_t": paper_t, "paper_p": paper_p}
            )
    values = pd.DataFrame(lines)
    values.insert(values.columns.get_loc("p") + 1, "p_holm", stats.holm(values["p"]))
    shown = _welch_columns(values)
    index = list(tuples(values, [*group_keys, "comparison"]))
    frame = with_index(pd.DataFrame(shown), index, [*group_keys, "comparison"])
    marks = pd.DataFrame("", index=frame.index, columns=frame.columns)
    marks["p"] = np.where(values["p"] < 0.05, "bold", "")
    if "paper p" in frame:
        marks["paper p"] = np.where(values["paper_p"] < 0.05, "bold", "")
    tested = int(values["p"].notna().sum())
    notes = ["difference in points with its 95 % interval", "g: Hedges' effect size"]
    notes += ["bold: p < 0.05", f"Holm: corrected over the {tested} tests of this table"][
        : tested * 2
    ]
    told = rows[rows["label"].isin([ours, *against])]
    text = caption or table_rows.caption(
        told, f"Two-tailed Welch's t-tests on {metric.upper()}, {ours} against the others"
    )
    return Table(frame, joined(text, notes), marks, values)


def _summarise(part: pd.DataFrame, metric: str) -> dict[str, Any]:
    """Mean and std over the runs that have a number, and how many failed to converge."""
    kept = part[metric].dropna().to_numpy(float) * (1 if metric in NOT_PERCENT else 100)
    # Not every NaN is a failure (BWT of one task has no value): the run itself says so.
    failed = int((~part["converged"].astype(bool)).sum()) if "converged" in part else 0
    mean, std = (kept.mean(), kept.std()) if len(kept) else (nan, nan)
    return {"n": len(kept), "n_failed": failed, "mean": mean, "std": std}


def _published(part: pd.DataFrame, metric: str, table: str | None) -> dict[str, Any]:
    row = part.iloc[0]
    found = published.counterpart(row, table, row["label"], metric) if table else None
    mean, std, flag = found or (nan, nan, "")
    return {"paper_mean": mean, "paper_std": std, "paper_flag": flag}


def _highlight(values, within, method_key, unranked) -> pd.Series:
    """ "first", "second", "third" per group and column, on unrounded means, ties shared."""
    places = pd.Series("", index=values.index)
    competing = values[~values[method_key].isin(unranked) & values["mean"].notna()]
    for _, group in competing.groupby(within, dropna=False):
        if len(group) < 2:
            continue  # alone, a method is not the best of anything
        lower = group["metric"].iloc[0] in LOWER_IS_BETTER
        rank = group["mean"].rank(method="min", ascending=lower)
        places[group.index] = rank.map({1: "first", 2: "second", 3: "third"}).fillna("")
    return places


def _cell(value, n_expected: int) -> str:
    if not isfinite(value["mean"]):
        return f"n/a* (0/{value['n_failed']:.0f})" if value["n_failed"] else "n/a"
    text = f"{value['mean']:.2f}" + (f" ± {value['std']:.2f}" if value["n"] > 1 else "")
    if value["n_failed"]:
        return f"{text}* ({value['n']:.0f}/{value['n'] + value['n_failed']:.0f})"
    return text if value["n"] == n_expected else f"{text} (n={value['n']:.0f})"


def _paper_cell(value) -> str:
    if not isfinite(value["paper_mean"]):
        return ""
    std = f" ± {value['paper_std']:.2f}" if isfinite(value["paper_std"]) else ""
    return f"{value['paper_mean']:.2f}{std}{value['paper_flag']}"


def _difference_cell(value) -> str:
    difference = value["mean"] - value["paper_mean"]
    return f"{difference:+.2f}" if isfinite(difference) else ""


def _welch_columns(values: pd.DataFrame) -> dict[str, list[str]]:
    def number(name: str, form: str) -> list[str]:
        return [format(v, form) if isfinite(v) else DASH for v in values[name]]

    def probability(name: str) -> list[str]:
        return ["<0.001" if p < 0.0005 else t for p, t in zip(values[name], number(name, ".3f"))]

    bounds = zip(number("ci_low", ".2f"), number("ci_high", ".2f"), strict=True)
    shown = {
        "difference": number("difference", "+.2f"),
        "95 % CI": [DASH if low == DASH else f"[{low}, {high}]" for low, high in bounds],
        "g": number("hedges_g", ".2f"),
        "t": [f"{t:.2f}" if isfinite(t) else "n/a" for t in values["t"]],
        "p": probability("p"),
        "Holm p": probability("p_holm"),
    }
    if values["paper_t"].notna().any():
        published = {"paper t": number("paper_t", ".2f"), "paper p": probability("paper_p")}
        shown |= {k: ["" if t == DASH else t for t in v] for k, v in published.items()}
    if values["reason"].any():
        shown["why n/a"] = list(values["reason"])
    return shown


def _notes(values, frame, metrics, places, n_expected, over) -> list[str]:
    """Sentences for what occurs in the table, and for nothing else."""
    text = frame.to_numpy().ravel().tolist()
    notes = [f"Mean ± population std over {' and '.join(over)}s"]
    if places.any():
        notes.append("red, orange and yellow: best, second and third schedule")
    if any("*" in t for t in text):
        notes.append("*: some seed did not converge (ours: mean over those that did)")
    if any("n=" in t for t in text):
        notes.append(f"n: seeds where not {n_expected}")
    if DASH in text:
        notes.append(f"{DASH}: not run")
    if values["paper_mean"].notna().any():
        notes.append("diff.: ours - paper")
    return notes


def _default_caption(rows, row_keys, metrics) -> str:
    by = [str(HEADS.get(k, k)).lower() for k in row_keys]
    what = " and ".join(m.upper() for m in metrics) + " by " + " and ".join(by)
    return table_rows.caption(rows, what)


def _without_constant_level(columns: pd.MultiIndex) -> pd.Index:
    """Drop "ours" where nothing stands beside it."""
    return columns.droplevel(2) if set(columns.get_level_values(2)) == {"ours"} else columns


def _csv_ready(values: pd.DataFrame) -> pd.DataFrame:
    unit = np.where(values["metric"].isin(NOT_PERCENT), "", "percent")
    return values.assign(difference=values["mean"] - values["paper_mean"], unit=unit)
