"""What the numbers say, in words made from the numbers, and ours beside the paper's.

No sentence is written beforehand: who is ahead, on how many seeds, whether a test calls it significant
and whether the paper's value is met all follow from the rows. The rules of a verdict are stated with it:
a mean is `reproduced` inside the paper's mean +- 2 of its standard deviations, a test if both find the
same significant sign or neither finds any, a winner if the same method is best. One seed is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rslib import stats
from rslib.runs.grid import Runs
from rslib.runs.studies import BASELINES, Study
from rslib.show import figures, published, style, tables
from rslib.show.tables import Table, as_tuple, plain_table, printed_name
from rslib.stats import plus_minus

RULE = "reproduced: our mean is inside the paper's mean ± 2 of its standard deviations"
TEST_RULE = "reproduced: significant (p < 0.05) with the same sign in both, or in neither"
WINNER_RULE = "reproduced: the same method has the highest mean ACC (Joint and BFS do not compete)"
LEVEL = 0.05
FEWEST = 2  # seeds: one says nothing of a mean
ALMOST = 0.25  # points: a published deviation of 0.02 would call any honest rerun a failure


class Markdown(str):
    """Text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


# -- ours among themselves -------------------------------------------------------------------------


def paired_text(
    rows: pd.DataFrame,
    against: Sequence[str] = BASELINES,
    group_keys: Sequence[str] = (),
) -> Markdown:
    """Whom MCTS is ahead of, by how much, on how many of the paired seeds, and with which p."""
    groups = rows.groupby(list(group_keys), sort=False) if group_keys else [((), rows)]
    lines = []
    for key, part in groups:
        pairs = zip(group_keys, as_tuple(key), strict=True)
        name = ", ".join(str(printed_name(k, v)) for k, v in pairs)
        mine = _by_seed(part, "MCTS")
        start = f"- {name}: " if name else "- "
        if not len(mine):
            lines.append(f"{start}MCTS has not been run.")
            continue
        facts = [fact for other in against if (fact := _pair(mine, part, other))]
        text = "; ".join(facts) or "nothing to compare it with"
        lines.append(f"{start}**MCTS** {_percent(mine)}: {text}.")
    return Markdown("\n".join(lines))


def _pair(mine: pd.Series, rows: pd.DataFrame, other: str) -> str:
    theirs = _by_seed(rows, other)
    if not len(theirs):
        return ""
    both = mine.index.intersection(theirs.index)
    gap = 100 * (mine.mean() - theirs.mean())
    side = "ahead of" if gap > 0 else "behind" if gap < 0 else "level with"
    wins = int((mine[both] > theirs[both]).sum())
    test = stats.welch(mine, theirs)
    p = f"p = {test.p:.3f}" if test.reason is None else f"no test: {test.reason}"
    return (
        f"{abs(gap):.2f} points {side} {other} ({_percent(theirs)}), "
        f"better on {wins} of {len(both)} seeds, {p}"
    )


def _by_seed(rows: pd.DataFrame, label: str) -> pd.Series:
    mine = rows[(rows["label"] == label) & rows["converged"].astype(bool)]
    return mine.set_index("seed")["acc"].dropna()


def _percent(values: pd.Series) -> str:
    std = 100 * values.std(ddof=0) if len(values) > 1 else float("nan")
    return f"{plus_minus(100 * values.mean(), std)} %"


def moments(rows: pd.DataFrame) -> Markdown:
    """Figure 1: what the moment of a replay moves, in the mean and on single seeds."""
    acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc", sort=False)
    means, single = acc.mean(), acc.max(axis=1) - acc.min(axis=1)
    text = (
        f"The best moment is **{means.idxmax()}** ({means.max():.2f} %), the worst {means.idxmin()} "
        f"({means.min():.2f} %): {means.max() - means.min():.2f} points apart"
    )
    if len(acc) == 1:
        return Markdown(f"{text}, on one seed.")
    return Markdown(
        f"{text} in the mean over {len(acc)} seeds. On single seeds it is {single.min():.2f} to "
        f"{single.max():.2f} points, and the best moment is: {', '.join(acc.idxmax(axis=1))}."
    )


def what_moves(table: Table, by: str) -> Markdown:
    """The caption of `figures.acc_by_setting`: what is drawn, and whether the choice of schedule or of
    setting (`by`) moves ACC more, with the cells that say so."""
    values = table.values[table.values["metric"] == "acc"]
    values = values[values["mean"].notna()]
    schedules = values[~values["label"].isin(tables.BOUNDS)]
    if not len(schedules):
        return Markdown("No run of a schedule converged.")
    drawn = [f"Dots: {_seeds(schedules['n'])}; marks: their mean ± standard deviation"]
    for label in tables.BOUNDS:
        n = values.loc[values["label"] == label, "n"]
        drawn += [f"line: {label} ({_seeds(n)})"] if len(n) else []
    drawn += ["hollow: the paper's"] if len(schedules["paper_mean"].dropna()) else []
    schedules = schedules.rename(columns={"label": "schedule"})
    facts = []
    for across, within in (("schedule", by), (by, "schedule")):
        what = "replay method" if across == "replay" else across
        gap, where = _widest(schedules, across, within)
        facts.append(f"- The choice of **{what}** moves ACC by up to {gap:.2f} points: {where}.")
    return Markdown("; ".join(drawn) + ".\n\n" + "\n".join(facts))


def _seeds(n: pd.Series) -> str:
    least, most = n.min(), n.max()
    text = f"{most:.0f} seed" if most == 1 else f"{most:.0f} seeds"
    return text if least == most else f"{least:.0f} to {text}"


def _widest(values: pd.DataFrame, across: str, within: str) -> tuple[float, str]:
    """The widest gap of means between choices of `across` at one choice of `within`, and where."""
    found = []
    for fixed, part in values.groupby(within, sort=False):
        best, worst = (part.loc[part["mean"].agg(f)] for f in ("idxmax", "idxmin"))
        ends = [f"{printed_name(across, c[across])} {c['mean']:.2f} %" for c in (best, worst)]
        where = f"with {printed_name(within, fixed)}, {ends[0]} against {ends[1]}"
        found.append((best["mean"] - worst["mean"], where))
    return max(found, key=lambda item: item[0])


# -- ours beside the paper's -----------------------------------------------------------------------


class Comparison(NamedTuple):
    """A study's rows as its table and tests, and a verdict per mean, winner and test."""

    study: Study
    rows: pd.DataFrame
    table: Table
    cells: Table  # every mean that the paper has too
    winners: Table  # the best method of every group
    welch: Table | None  # None where the study has no tests
    tests: Table  # every test that the paper has too

    def judged(self) -> list[tuple[Table, Markdown]]:
        """The tables with verdicts that have any line, each with how many lines are reproduced."""
        kinds = (
            (self.cells, "cells", RULE),
            (self.winners, "winners", WINNER_RULE),
            (self.tests, "tests", TEST_RULE),
        )
        return [(t, count_reproduced(t, *words)) for t, *words in kinds if len(t.frame)]


def compare(study: Study, runs: Runs) -> Comparison:
    """A study's rows beside the paper's numbers."""
    table, title = tables.summary(study, runs), study.title
    welch = tables.welch(study, runs) if study.against else None
    empty = plain_table(pd.DataFrame(), "")
    return Comparison(
        study,
        runs.rows,
        table,
        _judged_means(table, f"{title}, ours beside the paper's"),
        _winners(table, study, f"{title}, the best here and in the paper") if welch else empty,
        welch,
        _judged_tests(welch, f"{title}, Welch's tests beside the paper's") if welch else empty,
    )


def count_reproduced(judged: Table, what: str = "cells", rule: str = RULE) -> Markdown:
    """How many lines of a table with verdicts are reproduced."""
    if not len(judged.frame):
        return Markdown("No cell has a counterpart in the paper (another dataset or setting).")
    verdicts = judged.frame["verdict"]
    known = verdicts[verdicts != "-"]
    if not len(known):
        return Markdown(
            f"None of the {len(verdicts)} {what} can be judged: too few seeds were run."
        )
    good = int((known == "reproduced").sum())
    return Markdown(f"**{good} of {len(known)}** {what} are reproduced ({rule}).")


def verdict(mean: float, paper_mean: float, paper_std: float, n: float = FEWEST) -> str:
    """One mean against the paper's: "reproduced", "higher" or "lower", with the distance; "-" where
    a number is missing, or a single seed was run."""
    if not (isfinite(mean) and isfinite(paper_mean)) or n < FEWEST:
        return "-"
    room = max(2 * (paper_std if isfinite(paper_std) else 0.0), ALMOST)
    gap = mean - paper_mean
    if abs(gap) <= room:
        return "reproduced"
    return f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.2f}"


def test_verdict(t: float, p: float, paper_t: float, paper_p: float) -> str:
    """One Welch test against the paper's: the same answer to "is it significant, and which way?" """
    if not (isfinite(p) and isfinite(paper_p)):
        return "-"
    if (p < LEVEL) != (paper_p < LEVEL):
        sign = "" if t * paper_t > 0 else ", other sign"
        return ("only here significant" if p < LEVEL else "not significant here") + sign
    return "reproduced" if p >= LEVEL or t * paper_t > 0 else "significant the other way"


def _judged_means(table: Table, what: str) -> Table:
    """Every mean of a summary table that the paper has too: ours, the paper's, and the verdict."""
    values = table.values[table.values["paper_mean"].notna()]
    frame = _places(values, "label")
    frame["metric"] = values["metric"].str.upper()
    std = values["std"].where(values["n"] >= FEWEST)
    frame["ours"] = list(map(plus_minus, values["mean"], std))
    frame["n"] = values["n"].astype(int)
    frame["paper"] = list(map(plus_minus, values["paper_mean"], values["paper_std"]))
    gaps = values["mean"] - values["paper_mean"]
    frame["difference"] = [f"{gap:+.2f}" if isfinite(gap) else "-" for gap in gaps]
    numbers = values[["mean", "paper_mean", "paper_std", "n"]].itertuples(index=False)
    frame["verdict"] = [verdict(*line) for line in numbers]
    return plain_table(frame.reset_index(drop=True), f"{what}. {RULE} (or within {ALMOST} points)")


def _judged_tests(table: Table, what: str) -> Table:
    """Every Welch test that the paper has too: ours, the paper's, and the verdict."""
    values = table.values[table.values["paper_p"].notna()]
    frame = _places(values, "comparison")
    for side, t, p in (("ours", "t", "p"), ("paper", "paper_t", "paper_p")):
        pairs = zip(values[t], values[p], strict=True)
        frame[side] = [f"t = {x:.2f}, p = {y:.3f}" if isfinite(y) else "-" for x, y in pairs]
    seeds = zip(values["n_ours"], values["n_other"], strict=True)
    numbers = [f"{a:.0f}" if a == b else f"{a:.0f}, {b:.0f}" for a, b in seeds]
    frame.insert(frame.columns.get_loc("ours") + 1, "n", numbers)
    lines = values[["t", "p", "paper_t", "paper_p"]].itertuples(index=False)
    frame["verdict"] = [test_verdict(*line) for line in lines]
    return plain_table(frame.reset_index(drop=True), f"{what}. {TEST_RULE}")


def _winners(table: Table, study: Study, what: str) -> Table:
    """The best method of every group, ours and the paper's.

    Judged once every method that the paper has there has been run on enough seeds.
    """
    theirs = published.results().query("table == @study.published")
    values = table.values[table.values["paper_mean"].notna() & (table.values["metric"] == "acc")]
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
        line = _places(group, "label").iloc[0].drop("schedule").to_dict()
        line |= {
            "best here": f"{best['']['label']} {best['']['mean']:.2f}",
            "n": ", ".join(str(int(n)) for n in sorted(set(group["n"]))),
            "best in the paper": f"{best['paper_']['label']} {best['paper_']['paper_mean']:.2f}",
            "verdict": ("reproduced" if same else "another") if judged else "-",
        }
        lines.append(line)
    return plain_table(pd.DataFrame(lines), f"{what}. {WINNER_RULE}")


_PLACES = ("dataset", "selection", "replay", "scenario", "memory_size")


def _places(values: pd.DataFrame, last: str) -> pd.DataFrame:
    """Where in the paper's table each line stands, in its words."""
    names = [c for c in _PLACES if c in values]
    frame = pd.DataFrame({name: [printed_name(name, v) for v in values[name]] for name in names})
    frame["schedule" if last == "label" else last] = list(values[last])
    return frame.set_axis(values.index)


def side_by_side(study: Study, runs: Runs, out_dir: Path) -> Markdown:
    """A study over datasets for 09_paper: its table and tests with their verdicts, all saved."""
    if not len(runs):
        return Markdown("*Not run: no rows in the store.*")
    found, name = compare(study, runs), study.published or study.name
    kinds = {"": found.table, "_verdicts": found.cells, "_winners": found.winners}
    kinds |= {"_welch": found.welch, "_welch_verdicts": found.tests}
    for kind, table in kinds.items():
        if table is not None and len(table.frame):
            table.save(f"{name}{kind}", "paper", out_dir)
    if len(found.cells.frame):
        style.savefig(figures.ours_vs_paper(found.table), name, "paper", out_dir)
    shown = [found.table, *([found.welch] if found.welch else [])]
    shown += [part for pair in found.judged() for part in reversed(pair)]
    return Markdown("\n\n".join(p if isinstance(p, str) else p._repr_html_() for p in shown))
