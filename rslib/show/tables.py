"""What a table says: one `Table`, shown as HTML in notebooks, saved as LaTeX and CSV.

`summary_table` holds mean and population std with the three best highlighted and the paper's numbers
beside, `welch_table` the paired differences and t-tests, `plain_table` any frame (hyper-parameters,
task splits). Rows hold fractions, tables print percent. A table never guesses: a cell that has not been
run is a dash, a seed that did not converge a star, and two rows for one cell and seed are an error.
`rslib.show.latex` decides how a table is set.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rslib import files, stats
from rslib.runs.grid import Runs
from rslib.runs.studies import BASELINES, Study
from rslib.show import latex, published, style
from rslib.show.latex import DASH

BOUNDS = ("Joint", "BFS")  # what schedules are held against, not schedules themselves
UNRANKED = (*BOUNDS, "Fine-tuning")  # methods that do not compete
METRICS = {"acc": "ACC (%)", "bwt": "BWT (%)", "fwt": "FWT (%)", "reward": "Val. ACC (%)"}

HEADS = {"selection": "Selection", "replay": "Replay", "label": "Schedule", "dataset": "Dataset"}
HEADS |= {"memory_size": "Memory", "scenario": "Scenario", "comparison": "Comparison"}
_NAMES = {
    "dataset": published.dataset_name,
    "selection": lambda v: (published.SELECTIONS | published.OUR_SELECTIONS).get(v, v),
    "replay": lambda v: published.REPLAY_METHODS.get(v, v),
    "scenario": lambda v: published.SCENARIOS.get(v, v),
    "memory_size": lambda v: f"M = {v:.0f}",
}


@dataclass(frozen=True)
class Table:
    """What is printed (`frame`), how (`marks`), and the numbers behind it (`values`)."""

    frame: pd.DataFrame  # strings, exactly as shown
    caption: str
    marks: pd.DataFrame = field(repr=False)  # "first", "second", "third", "bold" or ""
    values: pd.DataFrame = field(repr=False)  # one line per cell, numbers in full

    def _repr_html_(self) -> str:
        styler = self.frame.style.format(escape="html")
        styler = styler.format_index(escape="html", axis=0).format_index(escape="html", axis=1)
        if self.marks.any(axis=None):
            fonts = {"first": "; font-weight: bold", "second": "; text-decoration: underline"}
            on_colour = {
                mark: f"{latex.CSS[mark]}{fonts.get(mark, '')}; color: black"
                for mark in latex.HIGHLIGHT
            }
            styler = styler.apply(lambda _: self.marks.replace(latex.CSS | on_colour), axis=None)
        if isinstance(self.frame.index, pd.RangeIndex):
            styler = styler.hide(axis="index")
        # A page shows many tables, and the CSS of one may not colour the cells of another.
        text = f"{self.caption}{self.frame.to_csv()}{self.marks.to_csv()}"
        styler = styler.set_uuid(f"rslib_{hashlib.sha256(text.encode()).hexdigest()[:12]}")
        look = {
            "caption": "text-align: left; caption-side: top",
            "td": "text-align: right; white-space: nowrap",
            "th.col_heading": "text-align: center",
        }
        styler = styler.set_table_styles([dict(selector=s, props=css) for s, css in look.items()])
        return styler.set_caption(html.escape(self.caption)).to_html()

    def to_latex(self, label: str | None = None) -> str:
        """Whole `table` environments; the document needs booktabs, graphicx, xcolor with [table]."""
        return latex.floats(self.frame, self.marks, self.caption, label)

    def to_csv(self) -> str:
        """The numbers in full, one line per cell, for whoever computes with them."""
        return self.values.to_csv(index=False, lineterminator="\n")

    def save(self, name: str, dataset: str, out_dir: str | Path) -> list[Path]:
        """Write tables/<dataset>/<name>.tex (label tab:<dataset>-<name>) and .csv; returns both."""
        tex, csv = (
            files.artefact(out_dir, "tables", dataset, f"{name}.{kind}") for kind in ("tex", "csv")
        )
        label = f"tab:{tex.parent.name}-{tex.stem}"
        contents = {tex: self.to_latex(label), csv: self.to_csv()}
        return [files.write_atomically(path, text.encode()) for path, text in contents.items()]


def plain_table(frame: pd.DataFrame, caption: str, values: pd.DataFrame | None = None) -> Table:
    """Print any frame: whole numbers as they are, others to three significant figures.

    `values` are the numbers behind a frame of texts.
    """

    def text(value: Any) -> str:
        if isinstance(value, (float, np.floating)) and isfinite(value):
            return f"{value:.0f}" if value.is_integer() else f"{value:.3g}"
        return DASH if value is None or isinstance(value, (float, np.floating)) else str(value)

    shown = frame.map(text)
    marks = pd.DataFrame("", index=shown.index, columns=shown.columns)
    if values is None:
        counted = isinstance(frame.index, pd.RangeIndex)  # a counter says nothing: it is not shown
        values = frame.reset_index(drop=counted)
    return Table(shown, caption, marks, values)


# -- the tables of a study -------------------------------------------------------------------------


def summary(study: Study, runs: Runs) -> Table:
    """Tabulate the means of a study, with the paper's beside where it has them."""
    return summary_table(
        runs.rows,
        study.row_keys,
        study.metrics,
        study.published,
        study.title,
        n_requested=len(runs.cells),
        n_expected=len({cell.environment.seed for cell in runs.cells}),
    )


def welch(study: Study, runs: Runs) -> Table:
    """Tabulate the Welch tests of a study: MCTS against each of the others, within each group."""
    groups = ("dataset", *study.row_keys[:-1])
    return welch_table(runs.rows, study.against, groups, study.published)


# -- mean and deviation ----------------------------------------------------------------------------


def summary_table(
    rows: pd.DataFrame,
    row_keys: Sequence[str] = ("label",),
    metrics: Sequence[str] = ("acc", "bwt"),
    paper_table: str | None = None,
    title: str | None = None,
    n_requested: int = 0,
    n_expected: int = 5,
) -> Table:
    """Tabulate mean and population std over seeds, per method (last of `row_keys`) and group.

    The keys before the last make the groups. The three best methods of a group are highlighted in
    each column; those in `UNRANKED` do not compete.
    `paper_table` (such as "memory_selection") adds the published value and the difference. The caption
    begins with `title` and says if rows are fewer than `n_requested`; cells from another number of
    seeds than `n_expected` say so.
    """
    row_keys = list(row_keys)
    keys = [*row_keys, "dataset"]
    rows = _checked(rows, keys, metrics)
    values = pd.DataFrame(
        dict(zip(keys, key, strict=True)) | _summary(part, metric, paper_table)
        for key, part in rows.groupby(keys, sort=False, dropna=False)
        for metric in metrics
    )
    values["difference"] = values["mean"] - values["paper_mean"]
    cells = _printed(values, keys)
    cells["ours"] = [_our_text(cell, n_expected) for cell in values.to_dict("records")]
    theirs = values[["paper_mean", "paper_std", "paper_flag"]].itertuples(index=False)
    cells["paper"] = [
        stats.plus_minus(mean, std) + flag if isfinite(mean) else "" for mean, std, flag in theirs
    ]
    cells["diff."] = numbers(values["difference"], "+.2f", missing="")
    cells["place"] = _places(values, row_keys)
    index = _index(_in_order(cells, row_keys), row_keys)
    shown, marks = {}, {}
    for (dataset, metric), part in cells.groupby(["dataset", "metric"], sort=False):
        part = part.set_index(row_keys).reindex(index)
        head = (dataset, METRICS[metric])
        shown[*head, "ours"] = part["ours"].fillna(DASH)
        marks[*head, "ours"] = part["place"].fillna("")
        if part["paper_mean"].notna().any():
            for column in ("paper", "diff."):
                shown[*head, column] = part[column].fillna("")
                marks[*head, column] = ""
    frame, marked = pd.DataFrame(shown, index), pd.DataFrame(marks, index)
    if values["paper_mean"].isna().all():  # nothing stands beside "ours"
        frame, marked = frame.droplevel(2, axis=1), marked.droplevel(2, axis=1)
    by = " and ".join(HEADS.get(key, key).lower() for key in row_keys)
    title = title or f"{' and '.join(metric.upper() for metric in metrics)} by {by}"
    text = caption(rows, title, n_requested)
    return Table(frame, _with_notes(text, _notes(frame, marked, n_expected)), marked, values)


def _summary(part: pd.DataFrame, metric: str, paper_table: str | None) -> dict[str, Any]:
    """Mean and std over the runs that have a number, how many failed, and the published values."""
    percent = 100 * part[metric].dropna().to_numpy(float)
    # Not every NaN is a failure (BWT of one task has no value): the run itself says so.
    failed = int((~part["converged"].astype(bool)).sum())
    row = part.iloc[0]
    found = published.counterpart(row, paper_table, row["label"], metric) if paper_table else None
    mean = percent.mean() if len(percent) else nan
    std = percent.std() if len(percent) > 1 else nan  # one seed has no deviation
    ours = {"metric": metric, "n": len(percent), "n_failed": failed, "mean": mean, "std": std}
    paper = ("paper_mean", "paper_std", "paper_flag")
    return ours | dict(zip(paper, found or (nan, nan, ""), strict=True))


def _places(values: pd.DataFrame, row_keys: list[str]) -> pd.Series:
    """Mark the three best means of each group and column, unrounded; equal means share a place."""
    competing = values[~values[row_keys[-1]].isin(UNRANKED)]
    groups = competing.groupby([*row_keys[:-1], "dataset", "metric"], dropna=False)["mean"]
    ranks = groups.rank(method="min", ascending=False)
    ranks = ranks[groups.transform("count") > 1]  # alone, a method is not the best of anything
    names = {1: "first", 2: "second", 3: "third"}
    return pd.Series([names.get(rank, "") for rank in ranks.reindex(values.index)], values.index)


def _our_text(cell: Mapping[str, Any], n_expected: int) -> str:
    n, failed = cell["n"], cell["n_failed"]
    if not isfinite(cell["mean"]):
        return f"n/a* (0/{failed})" if failed else "n/a"
    text = stats.plus_minus(cell["mean"], cell["std"])
    if failed:
        return f"{text}* ({n}/{n + failed})"
    return text if n == n_expected else f"{text} (n={n})"


def _notes(frame: pd.DataFrame, marks: pd.DataFrame, n_expected: int) -> list[str]:
    """Sentences for what occurs in the table, and for nothing else."""
    texts = frame.to_numpy().ravel().tolist()
    notes = ["Mean ± population std over seeds"]
    if marks.any(axis=None):
        notes.append("bold on red, underlined on orange, yellow: best, second and third schedule")
    if any("*" in text for text in texts):
        notes.append("*: some seed did not converge (ours: mean over those that did)")
    if any("n=" in text for text in texts):
        notes.append(f"n: seeds where not {n_expected}")
    if DASH in texts:
        notes.append(f"{DASH}: not run")
    if frame.columns.nlevels > 2:
        notes.append("diff.: ours - paper")
    return notes


# -- tests -----------------------------------------------------------------------------------------

WELCH, PAPER = "Welch, as in the paper", "Paper"  # headings


def welch_table(
    rows: pd.DataFrame,
    against: Sequence[str] = BASELINES,
    group_keys: Sequence[str] = ("dataset",),
    paper_table: str | None = None,
) -> Table:
    """Test the ACC of MCTS against each other method, within each group."""
    keys = [*group_keys, "comparison"]
    rows = _checked(rows, [*group_keys, "label"], ["acc"])
    lines = []
    for key, part in rows.groupby(list(group_keys), sort=False, dropna=False):
        by_seed = {
            label: 100 * own.set_index("seed")["acc"] for label, own in part.groupby("label")
        }
        mine = by_seed.get("MCTS", pd.Series(dtype=float))
        own = part[part["label"] == "MCTS"]
        for other in against:
            theirs = by_seed.get(other, pd.Series(dtype=float))
            lines.append(
                dict(zip(group_keys, key, strict=True))
                | {"dataset": part["dataset"].iloc[0], "comparison": f"MCTS vs {other}"}
                | test_numbers(mine, theirs)
                | (_paper_test(own.iloc[0], paper_table, other) if paper_table and len(own) else {})
            )
    compared = rows[rows["label"].isin(["MCTS", *against])]
    text = caption(compared, "ACC of MCTS minus that of the others")
    return tests_table(_in_order(pd.DataFrame(lines), keys), keys, text)


def test_numbers(mine: pd.Series, theirs: pd.Series) -> dict[str, Any]:
    """Compare two samples in percent: paired by their common index, and by Welch's test."""
    test = stats.welch(mine, theirs)
    low, high = test.interval()
    return {
        "metric": "acc",
        **paired(mine, theirs),
        **{"n_ours": test.n_a, "n_other": test.n_b},
        **{"difference": test.difference, "ci_low": low, "ci_high": high},
        **{"t": test.t, "df": test.df, "p": test.p, "reason": test.reason or ""},
    }


def tests_table(values: pd.DataFrame, keys: list[str], text: str, pairs: str = "seed") -> Table:
    """Print `test_numbers`, one line each; the keys name a line, `text` begins the caption.

    Paired differences stand first: the same seed is the same realisation, so they are sharper. Beside
    them stands Welch's two-tailed test, as the paper has it: bold below 0.05, without correction. The
    family of Holm's correction is the paired tests of this table on one dataset.
    """
    family = values.groupby("dataset", sort=False)["paired_p"]
    values.insert(values.columns.get_loc("paired_p") + 1, "holm_p", family.transform(stats.holm))
    head = f"Paired by {pairs}"
    shown: dict[tuple[str, str], list[str]] = {
        (head, name): texts for name, texts in paired_texts(values).items()
    }
    shown |= {
        (head, "p"): probabilities(values["paired_p"]),
        (head, "Holm p"): probabilities(values["holm_p"]),
        (WELCH, "95 % CI"): intervals(values["ci_low"], values["ci_high"]),
        (WELCH, "t"): numbers(values["t"], ".2f", missing="n/a"),
        (WELCH, "p"): probabilities(values["p"]),
    }
    if values["reason"].any():
        shown[WELCH, "why n/a"] = list(values["reason"])
    bold = {(head, "Holm p"): "holm_p", (WELCH, "p"): "p"}
    if "paper_t" in values:
        shown[PAPER, "t"] = numbers(values["paper_t"], ".2f", missing="")
        shown[PAPER, "p"] = probabilities(values["paper_p"], missing="")
        bold[PAPER, "p"] = "paper_p"
    frame = pd.DataFrame(shown).set_axis(_index(_printed(values, keys), keys))
    marks = pd.DataFrame("", frame.index, frame.columns)
    for column, name in bold.items():
        marks[column] = np.where(values[name] < 0.05, "bold", "")
    notes = ["differences in points with 95 % intervals", "bold: p < 0.05"]
    if sizes := {published.dataset_name(str(d)): n for d, n in family.count().items() if n}:
        families = ", ".join(f"{name}: {n}" for name, n in sizes.items())
        notes.append(f"Holm's family: the paired tests of this table on one dataset ({families})")
    return Table(frame, _with_notes(text, notes), marks, values)


def _paper_test(row: pd.Series, paper_table: str, other: str) -> dict[str, float]:
    """The published test of MCTS against another method, with the interval that its means imply."""
    found = published.counterpart_test(row, paper_table, "MCTS", other)
    cells = [published.counterpart(row, paper_table, label, "acc") for label in ("MCTS", other)]
    if not (found and cells[0] and cells[1]):
        return {}
    test = stats.welch_from_summary(*cells[0][:2], published.SEEDS, *cells[1][:2], published.SEEDS)
    (low, high), (t, p) = test.interval(), found
    effect = {"paper_difference": test.difference, "paper_ci_low": low, "paper_ci_high": high}
    return effect | {"paper_t": t, "paper_p": p}


def paired(mine: pd.Series, theirs: pd.Series) -> dict[str, float]:
    """Compare two samples by their common index: the difference, its interval, and who is ahead."""
    both = pd.concat([mine, theirs], axis=1, join="inner").dropna().to_numpy(float)
    found = stats.paired_difference(both[:, 0], both[:, 1])
    return {
        "paired_difference": found.value,
        "paired_low": found.low,
        "paired_high": found.high,
        "ahead": int((both[:, 0] > both[:, 1]).sum()),
        "pairs": len(both),
        "paired_p": found.p,
    }


def paired_texts(values: pd.DataFrame) -> dict[str, list[str]]:
    """Print what `paired` found, column by column."""
    counts = zip(values["ahead"], values["pairs"], strict=True)
    return {
        "difference": numbers(values["paired_difference"], "+.2f"),
        "95 % CI": intervals(values["paired_low"], values["paired_high"]),
        "ahead on": [f"{a:.0f} of {n:.0f}" if n > 0 else DASH for a, n in counts],
    }


def numbers(values: Iterable[float], form: str, missing: str = DASH) -> list[str]:
    return [format(v, form) if isfinite(v) else missing for v in values]


def intervals(lows: Iterable[float], highs: Iterable[float]) -> list[str]:
    ends = zip(lows, highs, strict=True)
    return [f"[{low:.2f}, {high:.2f}]" if isfinite(low) else DASH for low, high in ends]


def probabilities(values: Iterable[float], missing: str = DASH) -> list[str]:
    return ["<0.001" if p < 0.0005 else numbers([p], ".3f", missing)[0] for p in values]


# -- rows: checked, ordered, named -----------------------------------------------------------------


def _checked(rows: pd.DataFrame, keys: list[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return the rows; raise if a column is missing or if rows would be averaged by accident."""
    run = [*keys, "seed"]
    missing = [column for column in [*run, "converged", *metrics] if column not in rows]
    if missing:
        raise ValueError(f"result rows lack the columns {missing}; they have {list(rows.columns)}")
    if not len(rows):
        raise ValueError("no result rows: run or load the experiment first")
    twice = rows[rows.duplicated(run, keep=False)]
    if len(twice):
        key, same = next(iter(twice.groupby(run, sort=False, dropna=False)))
        settings = [c for c in rows if same[c].dtype.kind not in "fb" or c == "memory_size"]
        differ = [c for c in settings if same[c].astype(str).nunique() > 1]
        raise ValueError(
            f"{len(same)} rows for the one run {key}, which differ in {differ or 'numbers only'}: "
            "filter them, or name the column in the keys"
        )
    failed = ~rows["converged"].astype(bool)  # whatever number it left is not a result
    return rows.assign(**{m: rows[m].mask(failed) for m in metrics})


def _in_order(values: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sort by the keys: methods as the paper does, anything else in its order of appearance."""
    places = pd.DataFrame({key: pd.factorize(values[key])[0] for key in keys})
    if "label" in keys:
        places["label"] = [style.place_of(label) for label in values["label"]]
    return values.iloc[places.sort_values(keys, kind="stable").index].reset_index(drop=True)


def _printed(values: pd.DataFrame, keys: Iterable[str]) -> pd.DataFrame:
    return values.assign(**{k: [str(printed_name(k, v)) for v in values[k]] for k in keys})


def _index(values: pd.DataFrame, keys: list[str]) -> pd.Index:
    lines = values[keys].drop_duplicates().rename(columns=HEADS)
    return lines.set_index(list(lines)).index


def printed_name(key: str, value: Any) -> Any:
    """Name a value of the column `key` in the paper's words: the selection "kmeans" is "k-means"."""
    return _NAMES[key](value) if key in _NAMES and pd.notna(value) else value


# -- captions --------------------------------------------------------------------------------------


def caption(rows: pd.DataFrame, what: str, n_requested: int = 0) -> str:
    """Say `what`, then what the rows hold: dataset, subset, scenario, M, seeds and rollouts.

    Tasks, network and epochs are named where they are not the preset's.

    If they hold fewer runs than `n_requested`, the caption says how many.
    """
    names, subsets = [], []
    for dataset, part in rows.groupby("dataset", sort=False):
        names.append(published.dataset_name(str(dataset)))
        subsets.append(", ".join(_distinct(part, "subset")))
    if len(names) > 1 and len(set(subsets)) == 1 and subsets[0]:
        facts = [f"{', '.join(names)} (each: {subsets[0]})"]
    else:
        facts = [", ".join(f"{n} ({s})" if s else n for n, s in zip(names, subsets, strict=True))]
    facts += [published.SCENARIOS.get(s, s) for s in _distinct(rows, "scenario")]
    sizes = [size for size in _distinct(rows, "memory_size") if size > 0]
    if sizes:
        facts.append("M = " + _listed(sizes))
    facts += filter(None, _distinct(rows, "changed"))
    seeds = _distinct(rows, "seed")
    if seeds:  # none where neither MCTS nor a baseline has been run yet
        many = f"{len(seeds)} seeds ({_listed(seeds)})"
        facts.append(many if seeds[1:] else f"seed {seeds[0]:.0f}")
    rollouts = _distinct(rows[rows["label"] != "BFS"], "rollouts")  # BFS tries every schedule
    if rollouts:
        facts.append(f"{_listed(rollouts)} rollout" + ("s" if rollouts != [1] else ""))
    if len(rows) < n_requested:
        facts.append(f"{len(rows)} of {n_requested} runs, the others were not run")
    return f"{what.rstrip('. ')}. " + "; ".join(map(str, facts)) + "."


def _with_notes(text: str, notes: Iterable[str]) -> str:
    sentence = "; ".join(notes)
    return f"{text.rstrip()} {sentence[0].upper()}{sentence[1:]}."


def _distinct(rows: pd.DataFrame, column: str) -> list:
    if column not in rows:
        return []
    found = rows[column].dropna().drop_duplicates().tolist()
    return sorted(found) if found and not isinstance(found[0], str) else found


def _listed(numbers: Sequence[float]) -> str:
    """1, 2, 3, 4, 5 as 1–5; others one by one."""
    whole = [int(n) for n in numbers]
    if len(whole) > 2 and whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}–{whole[-1]}"
    return ", ".join(map(str, whole))
