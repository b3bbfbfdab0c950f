"""What the numbers say, in words made from the numbers, and ours beside the paper's.

No sentence is written beforehand: who is ahead, on how many seeds, and whether the paper's value is met
all follow from the rows. A mean is judged by Welch intervals of its difference to the paper's (`RULE`),
so a noisy cell is *open* and never *same*. A test agrees if both find the same significant sign or
neither finds any, a winner if the same method is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import pandas as pd
from scipy import stats as sp

from rslib import stats
from rslib.runs.grid import Runs
from rslib.runs.studies import BASELINES, Study
from rslib.show import published, tables
from rslib.show.latex import DASH
from rslib.show.tables import Table, plain_table, printed_name
from rslib.stats import plus_minus

RULE = (
    "different: the 95 % Welch interval of ours - paper excludes 0; same: otherwise, if its 90 % "
    "interval lies within ±1 point; open: otherwise; without room: the paper's own 90 % "
    "half-width exceeds 1 point, so that no number of our seeds can show the two to be the same"
)
TEST_RULE = "agrees: significant (p < 0.05) with the same sign in both, or in neither"
WINNER_RULE = "agrees: the same method has the highest mean ACC (Joint and BFS do not compete)"
LEVEL = 0.05
ROOM = 1.0  # points within which two means count as the same
FEWEST = 3  # seeds of ours: fewer say too little of a mean
TOO_FEW = "too few seeds"
_EMPTY = plain_table(pd.DataFrame(), "")  # instead of a table that a study has no line of


class Markdown(str):
    """Text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


# -- ours among themselves -------------------------------------------------------------------------


def paired_text(
    rows: pd.DataFrame,
    against: Sequence[str] = BASELINES,
    group_keys: Sequence[str] = (),
    of: Sequence[str] = ("MCTS",),
) -> Markdown:
    """Whom MCTS, or whoever else `of` names, is ahead of, by how much in paired seeds, with which
    interval, and on how many."""
    groups = rows.groupby(list(group_keys), sort=False) if group_keys else [((), rows)]
    lines = []
    for key, part in groups:
        pairs = zip(group_keys, key, strict=True)
        name = ", ".join(str(printed_name(k, v)) for k, v in pairs)
        start = f"- {name}: " if name else "- "
        for label in of:
            mine = _by_seed(part, label)
            if not len(mine):
                run = (part["label"] == label).any()
                lines.append(f"{start}{label} {'did not converge' if run else 'has not been run'}.")
                continue
            others = [other for other in against if other != label]
            facts = [fact for other in others if (fact := _pair(mine, part, other))]
            text = "; ".join(facts) or "nothing to compare it with"
            lines.append(f"{start}**{label}** {_percent(mine)}: {text}.")
    return Markdown("\n".join(lines))


def _pair(mine: pd.Series, rows: pd.DataFrame, other: str) -> str:
    theirs = _by_seed(rows, other)
    if not len(theirs):
        return ""
    found = tables.paired(100 * mine, 100 * theirs)
    if not found["pairs"]:
        return f"no seed in common with {other} ({_percent(theirs)})"
    # The means of the seeds that both have, or they would contradict the difference beside them.
    common = mine.index.intersection(theirs.index)
    shown = _percent(theirs[common])
    if len(common) < max(len(mine), len(theirs)):
        shown = f"{shown} against {_percent(mine[common])} on the seeds of both"
    gap = found["paired_difference"]
    side = "ahead of" if gap > 0 else "behind" if gap < 0 else "level with"
    (interval,) = tables.intervals([found["paired_low"]], [found["paired_high"]])
    interval = "no interval" if interval == DASH else f"95 % interval {interval}"
    return (
        f"{abs(gap):.2f} points {side} {other} ({shown}; {interval}), "
        f"better on {found['ahead']} of {found['pairs']} seeds"
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
    n_all, acc = len(acc), acc.dropna()  # seeds whose every run converged: means of the same seeds
    if not len(acc):
        return Markdown("On no seed did the runs of all moments converge.")
    means, single = acc.mean(), acc.max(axis=1) - acc.min(axis=1)
    text = (
        f"The best moment is **{means.idxmax()}** ({means.max():.2f} %), the worst {means.idxmin()} "
        f"({means.min():.2f} %): {means.max() - means.min():.2f} points apart"
    )
    if len(acc) < n_all:
        text += f" (of {n_all - len(acc)} more seeds some run is missing)"
    if len(acc) == 1:
        return Markdown(f"{text}, on one seed.")
    return Markdown(
        f"{text} in the mean over {len(acc)} seeds. On single seeds it is {single.min():.2f} to "
        f"{single.max():.2f} points, and the best moment is: {', '.join(acc.idxmax(axis=1))}."
    )


def what_moves(table: Table, by: str) -> Markdown:
    """The caption of Table 1 or 2 as a picture: what is drawn, and whether the choice of schedule or of
    setting (`by`) moves ACC more, with the cells that say so: those of the most seeds, because means
    over other seeds differ anyway."""
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
    schedules = schedules[schedules["n"] == schedules["n"].max()]
    schedules = schedules.rename(columns={"label": "schedule"})
    facts = []
    for across, within in (("schedule", by), (by, "schedule")):
        what = "replay method" if across == "replay" else across
        if not schedules.duplicated(within).any():
            facts.append(f"- Only one **{what}** was run on {_seeds(schedules['n'])}.")
            continue
        gap, where = _widest(schedules, across, within)
        facts.append(
            f"- Between the best and the worst **{what}** lie up to {gap:.2f} points of mean ACC: "
            f"{where}. Chance alone makes such a gap wider than 0."
        )
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

    def judged(self) -> dict[str, Table]:
        """The tables with verdicts that have any line, by the end of their file names."""
        kinds = {"_verdicts": self.cells, "_winners": self.winners, "_welch_verdicts": self.tests}
        return {kind: table for kind, table in kinds.items() if len(table.frame)}


def compare(study: Study, runs: Runs) -> Comparison:
    """A study's rows beside the paper's numbers."""
    table, title = tables.summary(study, runs), study.title
    welch = tables.welch(study, runs) if study.against else None
    return Comparison(
        study,
        runs.rows,
        table,
        _judged_means(table, f"{title}, ours beside the paper's"),
        _winners(table, study, f"{title}, the best here and in the paper") if welch else _EMPTY,
        welch,
        _judged_tests(welch, f"{title}, tests beside the paper's") if welch else _EMPTY,
    )


def count_verdicts(judged: Table) -> Markdown:
    """How many lines of a table with verdicts have which verdict."""
    if not len(judged.frame):
        return Markdown("No cell has a counterpart in the paper (another dataset or setting).")
    counts, rule = counted(judged.values["verdict"]), judged.caption.partition(". ")[2]
    return Markdown(f"{len(judged.frame)} lines: **{counts}**. {rule}.")


def counted(verdicts: pd.Series) -> str:
    """Say how many there are of each verdict."""
    order = ["same", "different", "open", "open without room", "agrees", *verdicts]
    found = {kind: int((verdicts == kind).sum()) for kind in order}
    return ", ".join(f"{n} {kind}" for kind, n in found.items() if n)


def verdict(
    mean: float, std: float, n: float, paper_mean: float, paper_std: float
) -> tuple[str, stats.Welch]:
    """Judge one mean (percent, population std, seeds) by `RULE`; returns the verdict and the test."""
    test = stats.welch_from_summary(mean, std, int(n), paper_mean, paper_std, published.SEEDS)
    if not isfinite(test.difference):
        return "-", test
    if n < FEWEST:
        return TOO_FEW, test
    if test.reason:
        return test.reason, test
    if test.p < LEVEL:  # exactly where the 95 % interval excludes 0
        return "different", test
    if max(map(abs, test.interval(0.90))) <= ROOM:
        return "same", test
    return "open without room" if paper_half_width(paper_std) > ROOM else "open", test


def paper_half_width(paper_std: float) -> float:
    """Half the 90 % interval that would be left if we had run infinitely many seeds."""
    error = paper_std / (published.SEEDS - 1) ** 0.5
    return float(sp.t.ppf(0.95, published.SEEDS - 1)) * error


def test_verdict(t: float, p: float, paper_t: float, paper_p: float) -> str:
    """One test against the paper's: the same answer to "is it significant, and which way?" """
    if not (isfinite(p) and isfinite(paper_p)):
        return "-"
    if (p < LEVEL) != (paper_p < LEVEL):
        sign = "" if t * paper_t > 0 else ", other sign"
        return ("only here significant" if p < LEVEL else "not significant here") + sign
    return "agrees" if p >= LEVEL or t * paper_t > 0 else "significant the other way"


def _judged_means(table: Table, what: str) -> Table:
    """Every mean of a summary table that the paper has too: ours, the paper's, and the verdict."""
    values = table.values[table.values["paper_mean"].notna()].reset_index(drop=True)
    if not len(values):
        return _EMPTY
    columns = ["mean", "std", "n", "paper_mean", "paper_std"]
    lines = [verdict(*line) for line in values[columns].itertuples(index=False)]
    for level in (95, 90):
        ends = [test.interval(level / 100) for _, test in lines]
        values[f"low_{level}"], values[f"high_{level}"] = zip(*ends, strict=True)
    values["verdict"] = [verdict for verdict, _ in lines]
    frame = _places(values, "label")
    frame["Metric"] = values["metric"].str.upper()
    frame["Ours"] = list(map(plus_minus, values["mean"], values["std"]))
    frame["n"] = values["n"].astype(int)
    frame["Paper"] = list(map(plus_minus, values["paper_mean"], values["paper_std"]))
    frame["Difference"] = tables.numbers(values["difference"], "+.2f")
    for level in (95, 90):
        frame[f"{level} % CI"] = tables.intervals(values[f"low_{level}"], values[f"high_{level}"])
    frame["Verdict"] = values["verdict"]
    return plain_table(frame, f"{what}. {_sentence(RULE)}", values)


def _judged_tests(tests: Table, what: str) -> Table:
    """Every Welch test that the paper has too, with its effect: ours, the paper's, and the verdict."""
    values = tests.values
    if "paper_p" not in values:
        return _EMPTY
    values = values[values["paper_p"].notna()].reset_index(drop=True)
    numbers = values[["t", "p", "paper_t", "paper_p"]].itertuples(index=False)
    values["verdict"] = [test_verdict(*line) for line in numbers]
    few = values[["n_ours", "n_other"]].min(axis=1) < FEWEST
    values["verdict"] = values["verdict"].mask(few, TOO_FEW)
    frame = _places(values, "comparison")
    seeds = zip(values["n_ours"], values["n_other"], strict=True)
    frame["n"] = [f"{a:.0f}" if a == b else f"{a:.0f}, {b:.0f}" for a, b in seeds]
    for name, side in (("Ours", ""), ("Paper", "paper_")):
        frame[name] = tables.numbers(values[f"{side}difference"], "+.2f")
        ends = values[f"{side}ci_low"], values[f"{side}ci_high"]
        frame[f"{name} 95 % CI"] = tables.intervals(*ends)
        frame[f"{name} p"] = tables.probabilities(values[f"{side}p"])
    frame["Verdict"] = values["verdict"]
    return plain_table(frame, f"{what}. {_sentence(TEST_RULE)}", values)


def _winners(table: Table, study: Study, what: str) -> Table:
    """The best method of every group, ours and the paper's.

    Judged once every method that the paper has there has been run on enough seeds.
    """
    theirs = published.results().query("table == @study.published")
    values = table.values[table.values["paper_mean"].notna() & (table.values["metric"] == "acc")]
    values = values[~values["label"].isin(tables.UNRANKED)].reset_index(drop=True)
    lines, verdicts = [], []
    for _, group in values.groupby([c for c in _PLACES if c in values], sort=False):
        dataset = published.dataset_key(group["dataset"].iloc[0])
        methods = set(theirs.loc[theirs["dataset"] == dataset, "method"])
        group = group[group["mean"].notna()]
        if methods - set(tables.UNRANKED) - set(group["label"]):
            continue
        best = {side: group.loc[group[f"{side}mean"].idxmax()] for side in ("", "paper_")}
        same = best[""]["label"] == best["paper_"]["label"]
        judged = bool((group["n"] >= FEWEST).all())
        verdicts.append(("agrees" if same else "another") if judged else TOO_FEW)
        line = _places(group, "label").iloc[0].drop("Schedule").to_dict()
        line |= {
            "Best here": f"{best['']['label']} {best['']['mean']:.2f}",
            "n": ", ".join(str(int(n)) for n in sorted(set(group["n"]))),
            "Best in the paper": f"{best['paper_']['label']} {best['paper_']['paper_mean']:.2f}",
            "Verdict": verdicts[-1],
        }
        lines.append(line)
    frame = pd.DataFrame(lines)
    caption = f"{what}. {_sentence(WINNER_RULE)}"
    return plain_table(frame, caption, frame.assign(verdict=verdicts))


_PLACES = ("dataset", "selection", "replay", "scenario", "memory_size")


def _places(values: pd.DataFrame, last: str) -> pd.DataFrame:
    """Where in the paper's table each line stands, in its words."""
    names = [*(c for c in _PLACES if c in values), last]
    heads = [tables.HEADS[name] for name in names]
    texts = [[printed_name(name, v) for v in values[name]] for name in names]
    return pd.DataFrame(dict(zip(heads, texts, strict=True)), values.index)


def _sentence(rule: str) -> str:
    return rule[0].upper() + rule[1:]
