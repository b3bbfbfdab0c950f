"""What the numbers say, in words made from the numbers: sentences and verdicts for the notebooks.

No sentence is written beforehand: who is ahead, on how many seeds, whether a test calls it
significant and whether the paper's value is met all follow from the rows. The rule of a verdict is
stated with it: a mean is `reproduced` inside the paper's mean +- 2 of its standard deviations, a test
if both find the same significant sign or neither finds any, a winner if the same method is best.
One seed is not judged.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import numpy as np
import pandas as pd

from rslib import stats
from rslib.search import Result
from rslib.show import figures, published, tables
from rslib.show.tables import Table, as_tuple, plain_table
from rslib.show.tables import printed_name as named

RULE = "reproduced: our mean is inside the paper's mean ± 2 of its standard deviations"
TEST_RULE = "reproduced: significant (p < 0.05) with the same sign in both, or in neither"
WINNER_RULE = "reproduced: the same method has the highest mean ACC (Joint and BFS do not compete)"
LEVEL = 0.05
_PLACED = ("Random", "ETS", "Heur-GD", "Random-best", "MCTS", "BFS")
FEWEST = 2  # seeds: one says nothing of a mean
ALMOST = 0.25  # points: a published deviation of 0.02 would call any honest rerun a failure


class Words(str):
    """Text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


def compared(
    rows: pd.DataFrame,
    ours: str = "MCTS",
    against: Sequence[str] = ("Random", "ETS", "Heur-GD"),
    metric: str = "acc",
    group_keys: Sequence[str] = (),
) -> Words:
    """Who is ahead of whom, by how much, on how many of the paired seeds, and with which p."""
    groups = rows.groupby(list(group_keys), sort=False) if group_keys else [((), rows)]
    lines = []
    for key, part in groups:
        name = ", ".join(str(named(k, v)) for k, v in zip(group_keys, as_tuple(key), strict=True))
        mine = _by_seed(part, ours, metric)
        if not len(mine):
            lines.append(f"- {name + ': ' if name else ''}{ours} has not been run.")
            continue
        facts = [_pair(mine, part, other, metric) for other in against]
        text = "; ".join(fact for fact in facts if fact) or "nothing to compare it with"
        lines.append(f"- {name + ': ' if name else ''}**{ours}** {_value(mine)}: {text}.")
    return Words("\n".join(lines))


def among_all(
    exhaustive: Sequence[Result], rows: pd.DataFrame, labels: Sequence[str] = _PLACED
) -> Words:
    """Where methods stand among all schedules of a seed, which BFS has tried one by one."""
    lines = []
    for found in exhaustive:
        accs, seed = found.accs, found.node.environment.seed
        here = rows[rows["seed"] == seed].set_index("label")["acc"]
        beaten = [
            f"{label} {np.sum(accs < here[label])} ({here[label]:.2%})"
            for label in labels
            if label in here
        ]
        lines.append(
            f"- Seed {seed}: the {len(accs)} schedules end between {accs.min():.2%} and "
            f"{accs.max():.2%}, on average at {accs.mean():.2%}. How many of them each is better "
            f"than: {', '.join(beaten)}."
        )
    return Words("\n".join(lines) or "BFS was not run: nobody knows what all schedules come to.")


def moments(rows: pd.DataFrame) -> Words:
    """Figure 1: what the moment of a replay moves, in the mean and on single seeds."""
    acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc", sort=False)
    means, single = acc.mean(), acc.max(axis=1) - acc.min(axis=1)
    text = (
        f"The best moment is **{means.idxmax()}** ({means.max():.2f} %), the worst {means.idxmin()} "
        f"({means.min():.2f} %): {means.max() - means.min():.2f} points apart"
    )
    if len(acc) == 1:
        return Words(f"{text}, on one seed.")
    return Words(
        f"{text} in the mean over {len(acc)} seeds. On single seeds it is {single.min():.2f} to "
        f"{single.max():.2f} points, and the best moment is: {', '.join(acc.idxmax(axis=1))}."
    )


def _pair(mine: pd.Series, rows: pd.DataFrame, other: str, metric: str) -> str:
    theirs = _by_seed(rows, other, metric)
    if not len(theirs):
        return ""
    both = mine.index.intersection(theirs.index)
    gap = 100 * (mine.mean() - theirs.mean())
    side = "ahead of" if gap > 0 else "behind" if gap < 0 else "level with"
    wins = int((mine[both] > theirs[both]).sum())
    test = stats.welch(mine, theirs)
    p = f"p = {test.p:.3f}" if test.reason is None else f"no test: {test.reason}"
    return (
        f"{abs(gap):.2f} points {side} {other} ({_value(theirs)}), "
        f"better on {wins} of {len(both)} seeds, {p}"
    )


def _by_seed(rows: pd.DataFrame, label: str, metric: str) -> pd.Series:
    mine = rows[(rows["label"] == label) & rows["converged"].astype(bool)]
    return pd.Series(mine.set_index("seed")[metric]).dropna()


def _value(values: pd.Series) -> str:
    text = f"{100 * values.mean():.2f}"
    return f"{text} ± {100 * values.std(ddof=0):.2f} %" if len(values) > 1 else f"{text} %"


def verdict(mean: float, paper_mean: float, paper_std: float, n: float = FEWEST) -> str:
    """One cell against the paper's: "reproduced", "higher" or "lower", with the distance; "-" where
    there is nothing, or a single seed, to judge."""
    if not (isfinite(mean) and isfinite(paper_mean)) or n < FEWEST:
        return "-"
    room = max(2 * (paper_std if isfinite(paper_std) else 0.0), ALMOST)
    gap = mean - paper_mean
    if abs(gap) <= room:
        return "reproduced"
    return f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.2f}"


def what_moves(table: Table, by: str) -> Words:
    """The caption of `plots.acc_by_setting`: what is drawn, and whether the choice of schedule or of
    setting (`by`) moves ACC more, with the cells that say so."""
    values = table.values[table.values["metric"] == "acc"]
    values = values[values["mean"].notna()]
    schedules = values[~values["label"].isin(figures.BOUNDS)]
    if not len(schedules):
        return Words("No run of a schedule converged.")
    seeds = _seeds(schedules["n"].min(), schedules["n"].max())
    drawn = [f"Dots: {seeds}; marks: their mean ± standard deviation"]
    for label in figures.BOUNDS:
        n = values.loc[values["label"] == label, "n"]
        drawn += [f"line: {label} ({_seeds(n.min(), n.max())})"] if len(n) else []
    drawn += ["hollow: the paper's"] if len(schedules["paper_mean"].dropna()) else []
    schedules = schedules.rename(columns={"label": "schedule"})
    facts = []
    for across, within in (("schedule", by), (by, "schedule")):
        what = "replay method" if across == "replay" else across
        gap, where = _widest(schedules, across, within)
        facts.append(f"- The choice of **{what}** moves ACC by up to {gap:.2f} points: {where}.")
    return Words("; ".join(drawn) + ".\n\n" + "\n".join(facts))


def _seeds(least: float, most: float) -> str:
    text = f"{most:.0f} seed" if most == 1 else f"{most:.0f} seeds"
    return text if least == most else f"{least:.0f} to {text}"


def _widest(values: pd.DataFrame, across: str, within: str) -> tuple[float, str]:
    """The widest gap of means between choices of `across` at one choice of `within`, and where."""
    found = []
    for fixed, part in values.groupby(within, sort=False):
        best, worst = (part.loc[part["mean"].agg(f)] for f in ("idxmax", "idxmin"))
        ends = [f"{named(across, c[across])} {c['mean']:.2f} %" for c in (best, worst)]
        where = f"with {named(within, fixed)}, {ends[0]} against {ends[1]}"
        found.append((best["mean"] - worst["mean"], where))
    return max(found, key=lambda item: item[0])


def against_paper(table: Table, what: str) -> Table:
    """Every cell of a `summary_table(..., paper_table=...)`: ours, the paper's, and the verdict."""
    values = table.values
    values = values[values["paper_mean"].notna()].copy()
    values["verdict"] = [
        verdict(v["mean"], v["paper_mean"], v["paper_std"], v["n"]) for _, v in values.iterrows()
    ]
    frame = _places(values, "label")
    frame["metric"] = values["metric"].str.upper()
    frame["ours"] = _plus_minus(values["mean"], values["std"].where(values["n"] >= FEWEST))
    frame["n"] = values["n"].astype(int)
    frame["paper"] = _plus_minus(values["paper_mean"], values["paper_std"])
    gaps = values["mean"] - values["paper_mean"]
    frame["difference"] = [f"{gap:+.2f}" if isfinite(gap) else "-" for gap in gaps]
    frame["verdict"] = values["verdict"]
    return plain_table(frame.reset_index(drop=True), f"{what}. {RULE} (or within {ALMOST} points)")


def test_verdict(t: float, p: float, paper_t: float, paper_p: float) -> str:
    """One Welch test against the paper's: the same answer to "is it significant, and which way?" """
    if not (isfinite(p) and isfinite(paper_p)):
        return "-"
    if (p < LEVEL) != (paper_p < LEVEL):
        sign = "" if t * paper_t > 0 else ", other sign"
        return ("only here significant" if p < LEVEL else "not significant here") + sign
    return "reproduced" if p >= LEVEL or t * paper_t > 0 else "significant the other way"


def tests_against_paper(table: Table, what: str) -> Table:
    """Every test of a `welch_table(..., paper_table=...)`: ours, the paper's, and the verdict."""
    values = table.values
    values = values[values["paper_p"].notna()]
    frame = _places(values, "comparison")
    for side, t, p in (("ours", "t", "p"), ("paper", "paper_t", "paper_p")):
        pairs = zip(values[t], values[p], strict=True)
        frame[side] = [f"t = {x:.2f}, p = {y:.3f}" if isfinite(y) else "-" for x, y in pairs]
    frame.insert(
        frame.columns.get_loc("ours") + 1,
        "n",
        [
            f"{a:.0f}" if a == b else f"{a:.0f}, {b:.0f}"
            for a, b in zip(values["n_ours"], values["n_other"], strict=True)
        ],
    )
    numbers = values[["t", "p", "paper_t", "paper_p"]].itertuples(index=False)
    frame["verdict"] = [test_verdict(*line) for line in numbers]
    return plain_table(frame.reset_index(drop=True), f"{what}. {TEST_RULE}")


def winners(table: Table, what: str, paper_table: str) -> Table:
    """The best method of every group of a `summary_table(..., paper_table=...)`, ours and the paper's.

    Judged once every method the paper has there has been run on enough seeds."""
    values = table.values
    theirs = published.results().query("table == @paper_table")
    values = values[values["paper_mean"].notna() & (values["metric"] == "acc")]
    values = values[~values["label"].isin(tables.UNRANKED)].reset_index(drop=True)
    lines = []
    for _, group in values.groupby([c for c in _PLACES if c in values], sort=False):
        dataset = published.dataset_key(group["dataset"].iloc[0])
        methods = set(theirs.loc[theirs["dataset"] == dataset, "method"])
        group = group[group["mean"].notna()]
        if methods - set(tables.UNRANKED) - set(group["label"]):
            continue
        best = {side: group.loc[group[f"{side}mean"].idxmax()] for side in ("", "paper_")}
        same = best[""]["label"] == best["paper_"]["label"]
        judged = bool((group["n"] >= FEWEST).all())
        seeds = sorted({int(n) for n in group["n"]})
        line = _places(group, "label").iloc[0].drop("schedule").to_dict()
        line |= {
            "best here": f"{best['']['label']} {best['']['mean']:.2f}",
            "n": ", ".join(map(str, seeds)),
            "best in the paper": f"{best['paper_']['label']} {best['paper_']['paper_mean']:.2f}",
            "verdict": ("reproduced" if same else "another") if judged else "-",
        }
        lines.append(line)
    return plain_table(pd.DataFrame(lines), f"{what}. {WINNER_RULE}")


_PLACES = ("dataset", "selection", "replay", "scenario", "memory_size")


def _places(values: pd.DataFrame, last: str) -> pd.DataFrame:
    """Where in the paper's table each line stands, in its words."""
    names = [c for c in _PLACES if c in values]
    frame = pd.DataFrame({name: [named(name, v) for v in values[name]] for name in names})
    frame["schedule" if last == "label" else last] = list(values[last])
    return frame.set_axis(values.index)


def counted(table: Table) -> Words:
    """How many lines of an `against_paper`, `tests_against_paper` or `winners` table are reproduced."""
    if not len(table.frame):
        return Words("No cell has a counterpart in the paper (another dataset or setting).")
    found = table.frame["verdict"]
    judged = found[found != "-"]
    good = int((judged == "reproduced").sum())
    what, rule = ("tests", TEST_RULE) if "comparison" in table.frame else ("cells", RULE)
    if "best here" in table.frame:
        what, rule = "winners", WINNER_RULE
    if not len(judged):
        return Words(
            f"None of the {len(found)} {what} can be judged yet: too few runs have a result."
        )
    return Words(f"**{good} of {len(judged)}** {what} are reproduced ({rule}).")


def _plus_minus(mean: pd.Series, std: pd.Series) -> list[str]:
    return [
        "-" if not np.isfinite(m) else f"{m:.2f}" + (f" ± {s:.2f}" if np.isfinite(s) else "")
        for m, s in zip(mean, std, strict=True)
    ]


# -- side by side (09_paper) -----------------------------------------------------------------------


def side_by_side(
    rows: pd.DataFrame,
    name: str,
    out_dir: Path,
    what: str,
    row_keys: Sequence[str] = ("label",),
    against: Sequence[str] = ("Random", "ETS", "Heur-GD"),
) -> Words:
    """The paper's table `name` from our rows and its Welch tests, with a verdict per cell and per
    test, saved; or that it was not run. Without `against` there are no tests."""
    if not len(rows):
        return Words("*Not run: no rows in the store.*")
    table = tables.summary_table(
        rows, row_keys=row_keys, paper_table=name, caption=tables.caption(rows, what)
    )
    tables.save_table(table, name, "paper", out_dir)
    judged = against_paper(table, f"{what}, ours beside the paper's")
    if len(judged.frame):
        tables.save_table(judged, f"{name}_verdicts", "paper", out_dir)
        figures.savefig(figures.ours_vs_paper(table), name, "paper", out_dir)
    shown = [table._repr_html_(), counted(judged), judged._repr_html_()]
    if against:
        best = winners(table, f"{what}, the best here and in the paper", name)
        if len(best.frame):
            tables.save_table(best, f"{name}_winners", "paper", out_dir)
            shown += [counted(best), best._repr_html_()]
        groups = ["dataset", *row_keys[:-1]]
        welch = tables.welch_table(rows, against=against, group_keys=groups, paper_table=name)
        tables.save_table(welch, f"{name}_welch", "paper", out_dir)
        tests = tests_against_paper(welch, f"{what}, Welch's tests beside the paper's")
        shown += [welch._repr_html_()]
        if len(tests.frame):
            tables.save_table(tests, f"{name}_welch_verdicts", "paper", out_dir)
            shown += [counted(tests), tests._repr_html_()]
    return Words("\n\n".join(shown))
