"""`make reproducibility`: writes REPRODUCIBILITY.md, and its tables, from the stored rows.

First a summary: every figure and table of the paper, which notebook makes it, how much of it has been
run with the paper's settings, and its verdicts. Then what differs and why (docs/differences.md, written
by people), what it cost, what the rows say beyond the paper, and links to every cell in tables/paper.
No number is typed by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from rslib import files, presets, stats
from rslib.complete_tree import load_tables
from rslib.files import REPOSITORY, write_atomically
from rslib.policies import Policy
from rslib.runs import generalization, params, scoring, studies
from rslib.runs.params import Parameters
from rslib.runs.studies import STUDIES, Study
from rslib.show import published, searches, tables, verdicts
from rslib.show.policies import policy_table, policy_text
from rslib.show.tables import Table, printed_name, summary
from rslib.show.verdicts import Comparison, compare
from tools import costs

HEAD = """# Reproducibility

Written by `make reproducibility` from the rows in the store and in `results/`. One notebook on one
dataset with the paper's settings: `make paper-figures PROFILE=paper DATASETS=mnist NOTEBOOKS=04`.
Datasets that the summary does not name were not run.

## Summary
"""

# Figures and tables of the paper that are no grid of runs: place, notebook, what was done.
OTHERS = (
    ("Figure 2", "02", "the tree of memories", "drawn, needs no run"),
    (
        "Tables 4, 5, Figure 5, App. D",
        "07",
        "policies",
        "on the authors' released trees, see below; trees of our own on embedded data only: the "
        "paper's 50 trees of 1,085 trainings a dataset were not run",
    ),
    ("App. B, C.1, C.5, D.1, D.4", "09", "settings", "typeset from the presets"),
)

RULES = """On the complete trees of [results/trees](results/README.md); differences to the mean of all
schedules. The threshold of ETS+Heur-GD and the *best constant* schedule are chosen on the
environments of the other half, the *oracle*'s schedule in the environment itself.
"""

POLICIES = """*All schedules* is the mean over every schedule of a tree, *Best constant* one schedule
chosen on the training environments, *Oracle* the best schedule by validation accuracy; *gap closed* is
the share of the way from the first to the last. Its interval is Fieller's over the environments: it
holds 0 where a paired t test does not tell a policy from the mean schedule, which is what a random
schedule is expected to get. n/a: the rule wants to replay nothing, which the released trees lack;
\\*: not in the tree, the nearest composition was used. The paper's ranks are among ten methods. New
task order: the paper tests on environments 10-19, which are not released. New dataset: its test
environments, but trained on Split MNIST alone instead of two datasets.
"""


def report(out_dir: Path = REPOSITORY) -> str:
    """Save the tables with verdicts below `out_dir`; returns the text of REPRODUCIBILITY.md."""
    datasets = run_datasets()
    overview, compared = [], []
    for study in STUDIES:
        runs = studies.stored(study, datasets)
        found = [study.note] if study.note else []
        if study.published and len(runs):
            compared.append(compare(study, runs))
            found = [*_counts(compared[-1]), *found]
        done = _how_much(study, datasets, runs.rows)
        overview.append((study.notebook, _title(study), done, "; ".join(found)))
    overview += [(number, f"{place}: {what}", note, "") for place, number, what, note in OTHERS]
    lines = [
        HEAD,
        "| in the paper | notebook | run with the paper's settings | beside the paper's |",
    ]
    lines += ["|---|---|---|---|"]
    for number, title, done, verdict in sorted(overview):
        lines.append(f"| {title} | `{_notebook(number)}` | {done} | {verdict} |")
    lines += ["", *_rules(compared), *_differences(compared), costs.account(datasets)]
    lines += _searches() + figure_1(datasets) + _policies() + _cells(compared, datasets, out_dir)
    return "\n".join(lines)


def run_datasets() -> list[Parameters]:
    """The paper's datasets that have stored rows, each with the paper's settings."""
    everywhere = params.check(dict(profile="paper", n_jobs=1), "09")
    return [q for q in studies.each_dataset(everywhere) if q.dataset in presets.PAPER]


def _counts(found: Comparison) -> list[str]:
    """How many means, winners and tests of a study have which verdict."""
    metric = found.study.metrics[0]
    means = found.cells.values.query("metric == @metric")
    counts = [f"{metric.upper()}: {verdicts.counted(means['verdict'])}"]
    for name, table in (("winners", found.winners), ("tests", found.tests)):
        if len(table.frame):
            judged = [v for v in table.values["verdict"] if v != verdicts.TOO_FEW]
            counts.append(f"{judged.count('agrees')} of {len(judged)} {name} agree")
    return counts


def _rules(compared: list[Comparison]) -> list[str]:
    """The rules of the verdicts, and what five seeds can show at all."""
    per_std = stats.welch_from_summary(0, 1, published.SEEDS, 0, 1, published.SEEDS).interval()[1]
    lines = [
        f"*Means*: {verdicts.RULE}. BWT goes with ACC and is in the tables.",
        f"*Winners*: {verdicts.WINNER_RULE}. *Tests*: {verdicts.TEST_RULE}.",
        f"Fewer than {verdicts.FEWEST} seeds are not judged.\n",
        "**What five seeds can show.** Where ours and the paper's five seeds spread equally, a "
        f"difference shows from {per_std:.2f} of their (population) standard deviations on: "
        f"{per_std:.2f} points at one point of spread. Where the paper's standard deviation is above "
        f"{verdicts.ROOM / verdicts.paper_half_width(1):.2f} points, there is no room for *same*.",
    ]
    cells = judged_means(compared)
    if len(cells):
        half = (cells["high_95"] - cells["low_95"]) / 2
        lines[-1] += (
            f" Of the {len(cells)} ACC cells with enough seeds (App. C.9 repeats cells of Table 1, and "
            f"each counts once here): {verdicts.counted(cells['verdict'])}. "
            f"In the median cell a difference shows from {half.median():.2f} points on (in single "
            f"cells from {half.min():.2f} to {half.max():.2f}). {direction(cells)}"
        )
    return [*lines, ""]


def judged_means(compared: list[Comparison]) -> pd.DataFrame:
    """Every mean ACC with enough seeds that the paper has too, once each."""
    acc = [found.cells.values.query("metric == 'acc'") for found in compared]
    if not any(map(len, acc)):
        return pd.DataFrame()
    # Appendix C.9 prints the uniform cells of Table 1 again.
    cells = pd.concat(acc).drop_duplicates(["dataset", "label", "mean", "paper_mean"])
    return cells.query(f"n >= {verdicts.FEWEST}")


def direction(cells: pd.DataFrame) -> str:
    """How many cells are higher here, and by how much: worth more than single verdicts."""
    kinds = {"baselines": studies.BASELINES, "MCTS": ("MCTS",)}
    gaps = {
        name: cells.loc[cells["label"].isin(kind), "difference"] for name, kind in kinds.items()
    }
    parts = [
        f"of {len(gap)} cells of {name} {int((gap > 0).sum())} are higher here, in the median by "
        f"{gap.median():+.2f}"
        for name, gap in gaps.items()
    ]
    return f"Direction: {'; '.join(parts)} points."


def _title(study: Study) -> str:
    first, rest = study.title[0], study.title[1:]
    return f"{study.place}: {first if rest[0].isupper() else first.lower()}{rest}"


def _notebook(number: str) -> str:
    (path,) = (REPOSITORY / "notebooks").glob(f"{number}_*.ipynb")
    return path.stem


def _how_much(study: Study, datasets: list[Parameters], rows: pd.DataFrame) -> str:
    parts = []
    for q in datasets:
        n = int((rows["dataset"] == q.dataset).sum()) if len(rows) else 0
        parts += [f"{q.title}: {n} of {len(study.cells(q))} runs"] if n else []
    return "; ".join(parts) or "not run"


# -- what differs ----------------------------------------------------------------------------------


def _differences(compared: list[Comparison]) -> list[str]:
    """The protocol's differences as people wrote them, and every cell that is different."""
    protocol = _sections("\n## ")["Protocol"]
    return ["## What differs, and why\n", protocol, "", *means_that_differ(compared)]


def _sections(mark: str) -> dict[str, str]:
    """The sections of docs/differences.md below headings of one level."""
    text = (REPOSITORY / "docs" / "differences.md").read_text()
    parts = (section.partition("\n") for section in text.split(mark)[1:])
    return {heading: body.strip() for heading, _, body in parts}


def means_that_differ(compared: list[Comparison]) -> list[str]:
    """Every cell (ACC; BWT goes with it) that is different, seed by seed, with the likely reason."""
    reasons = {
        frozenset(map(str.strip, heading.split(","))): " ".join(text.split())
        for heading, text in _sections("\n### ").items()
    }
    lines = []
    for found in compared:
        metric, keys = found.study.metrics[0], ["dataset", *found.study.row_keys]
        cells = found.cells.values
        for cell in cells[cells["metric"] == metric].to_dict("records"):
            if cell["verdict"] != "different":
                continue
            mine = found.rows[(found.rows[keys] == [cell[k] for k in keys]).all(axis=1)]
            acc = 100 * mine.loc[mine["converged"].astype(bool), metric]
            seeds = ", ".join(f"{x:.2f}" for x in acc)
            n_failed = len(mine) - len(acc)
            seeds += f" ({n_failed} did not converge)" if n_failed else ""
            place = [str(printed_name(key, cell[key])) for key in keys]
            known = {found.study.place, *place}
            reason = next((text for words, text in reasons.items() if words <= known), None)
            lines.append(
                f"- **{', '.join(place)}** ({found.study.place}, {metric.upper()}): "
                f"{cell['difference']:+.2f} [{cell['low_95']:.2f}, {cell['high_95']:.2f}] to the "
                f"paper's {cell['paper_mean']:.2f}. Ours by seed: {seeds}. "
                f"*{reason or 'Not looked into yet.'}*"
            )
    return ["### Cells that are different\n", *lines, ""] if lines else []


def figure_1(datasets: list[Parameters]) -> list[str]:
    """Figure 1 in numbers. The paper prints means without deviations, which nothing can be judged by."""
    rows = studies.stored(
        studies.SINGLE_TASK_REPLAY, [q for q in datasets if q.dataset == "mnist"]
    ).rows
    if not len(rows):
        return []
    acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc", sort=False)
    curves = published.single_task_replay()
    theirs = {f"at task {t}": 100 * m[-1].mean() for t, m in curves.items()}
    n = acc.count()  # a seed that did not converge is in no mean
    std = acc.std(ddof=0).where(n > 1)
    frame = pd.DataFrame(
        {
            "replayed": moment,
            "ours": stats.plus_minus(acc[moment].mean(), std[moment]),
            "n": n[moment],
            "paper (mean of 5 seeds)": f"{theirs[moment]:.2f}",
            "difference": f"{acc[moment].mean() - theirs[moment]:+.2f}",
        }
        for moment in acc
    )
    spread = max(theirs.values()) - min(theirs.values())
    best = max(theirs, key=lambda moment: theirs[moment])
    words = (
        f"{verdicts.moments(rows)} In the paper's means {spread:.2f} points lie between the best "
        f"moment, {best}, and the worst."
    )
    return ["## Figure 1 in numbers: ACC on Split MNIST\n", _markdown(frame), "", words, ""]


def _searches() -> list[str]:
    """Whether searches beat luck: the paper's by tree size, and all of them at equal cost."""
    lines = [
        "## Do searches beat luck?\n",
        "MCTS against the best of as many random schedules (100):\n",
    ]
    lines += [_markdown(searches.mcts_against_luck().frame), ""]
    equal = searches.at_equal_cost().frame
    if len(equal):
        lines += [
            "At about equal cost (*trainings*: the mean that was spent), in environments used for "
            "nothing else (`make searches`; *without model* draws among the surrogate's own "
            "candidates); differences to Random-best:\n",
            _markdown(equal),
            "",
            "What the model alone adds, to the same candidates without it:\n",
            _markdown(searches.model_alone().frame),
            "",
        ]
    whole = searches.on_complete_trees().frame
    if len(whole):
        lines += [
            "On the authors' complete trees, where every schedule is known (means over search "
            "seeds; C is UCT's exploration constant, 0.1 in the paper):\n",
            _markdown(whole),
            "",
        ]
    return lines


# -- the rest --------------------------------------------------------------------------------------


def _policies() -> list[str]:
    """What learned policies did on the trees that were released, and rules on trees of our own."""
    lines = ["## Learned policies\n"]
    for what, rows in generalization.finished():
        lines += [f"{what}.\n", _markdown(policy_table(rows)), "", policy_text(rows), ""]
    lines = [*lines, POLICIES] if len(lines) > 1 else []
    rules = rules_on_trees()
    if len(rules.frame):
        lines += ["## Rules where every schedule is known\n", RULES, _markdown(rules.frame), ""]
    return lines


def rules_on_trees() -> Table:
    """Score rules that need no training on our complete trees, beside the mean of all schedules.

    Whatever is chosen for an environment is chosen on environments of the other half.
    """
    shown, found = [], []
    for file in sorted((files.results() / "trees").glob("*.csv.gz")):
        trees, rows = load_tables(file), []
        for mine, other in ((trees[::2], trees[1::2]), (trees[1::2], trees[::2])):
            tau, _ = scoring.choose_tau("ets+heur-gd", other, presets.RL_TAU_GRID)
            rules = [Policy.load("ets"), Policy.load(f"ets+heur-gd:{tau}")]
            rows += scoring.references(mine, other, 1) + scoring.score(mine, rules, 1)
        acc = 100 * pd.DataFrame(rows).pivot(index="env_seed", columns="label", values="acc")
        tree = f"{published.dataset_name(trees[0].dataset)}, {trees[0].n_tasks} tasks"
        for name in ("ETS", "ETS+Heur-GD", scoring.CONSTANT, scoring.ORACLE):
            shown.append({"Trees": tree, "Rule": name, "ACC (%)": f"{acc[name].mean():.2f}"})
            gap = tables.paired(acc[name], acc[scoring.MEAN])
            found.append({"tree": tree, "label": name, "comparison": f"{name} vs luck"} | gap)
    values = pd.DataFrame(found)
    frame = pd.DataFrame(shown).assign(**tables.paired_texts(values)) if found else values
    return tables.plain_table(frame, "Rules beside the mean of all schedules", values)


def _cells(compared: list[Comparison], datasets: list[Parameters], out_dir: Path) -> list[str]:
    """Save every table with verdicts, and the pools beside ours; returns links to them."""
    names = {"_verdicts": "means", "_winners": "winners", "_welch_verdicts": "tests"}
    lines = []
    for found in compared:
        saved = {f"{found.study.name}{kind}": names[kind] for kind in found.judged()}
        for name, table in zip(saved, found.judged().values(), strict=True):
            table.save(name, "paper", out_dir)
        links = [f"[{what}](tables/paper/{name}.csv)" for name, what in saved.items()]
        lines.append(f"- {_title(found.study)}: {', '.join(links)}")
    pools = studies.stored(studies.POOLS, [q for q in datasets if q.dataset == "mnist"])
    if len(pools):
        summary(studies.POOLS, pools).save("pools", "paper", out_dir)
        lines.append(
            "- Pools, balanced and not (not in the paper): [means](tables/paper/pools.csv)"
        )
    text = "Ours, the paper's, both intervals and the verdict, line by line; LaTeX stands beside each.\n"
    return ["## Every cell\n", text, *lines, ""] if lines else []


def _markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(frame.columns) + " |", "|---" * len(frame.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def main() -> int:
    print("wrote", write_atomically(REPOSITORY / "REPRODUCIBILITY.md", report().encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
