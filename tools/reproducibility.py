"""`make reproducibility`: writes REPRODUCIBILITY.md from the stored rows. No number is typed by hand.

Every figure and table of the paper: which notebook makes it, how much of it has been run with the
paper's settings, how many of its cells came out as published, where not, and what it cost. The likely
reasons of differences are Markdown written by people, in docs/differences.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from rslib import presets
from rslib.files import REPOSITORY, write_atomically
from rslib.runs import generalization, params, studies
from rslib.runs.params import Parameters
from rslib.runs.studies import STUDIES, Study
from rslib.show import published, searches, verdicts
from rslib.show.policies import policy_table, policy_text
from rslib.show.tables import printed_name, summary
from rslib.show.verdicts import Comparison, compare
from rslib.stats import plus_minus
from tools import costs

HEAD = """# Reproducibility

Written by `make reproducibility` from the rows in the store and in `results/`; no number is typed by
hand (likely reasons, in italics, are our reading of the rows). One notebook on one dataset with the
paper's settings:
`make paper-figures PROFILE=paper DATASETS=mnist NOTEBOOKS=04`. Datasets not named below were
not run. Where we deviate from the authors' released code on purpose (all schedules train on the same
85 %, balanced pools, replay methods as published), the notebooks say so.
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

POLICIES = """*All schedules* is the mean over every schedule of a tree, *Best constant* one schedule
chosen on the training environments, *Oracle* the best schedule by validation accuracy; *gap closed* is
the share of the way from the first to the last. n/a: the rule wants to replay nothing, which the
released trees lack; \\*: not in the tree, the nearest composition was used. The paper's ranks are
among ten methods. New task order: the paper tests on environments 10-19, which are not released. New
dataset: its test environments, but trained on Split MNIST alone instead of two datasets.
"""


def report() -> str:
    everywhere = params.check(dict(profile="paper", n_jobs=1), "09")
    datasets = [q for q in studies.each_dataset(everywhere) if q.dataset in presets.PAPER]
    overview, details, compared = [], [], []
    for study in STUDIES:
        runs = studies.stored(study, datasets)
        done = _how_much(study, datasets, runs.rows)
        verdict = study.note
        if study.published and len(runs):
            found = compare(study, runs)
            compared.append(found)
            counts = [str(count).split(" (")[0] for _, count in found.judged()]
            verdict = "; ".join([*counts, *([study.note] if study.note else [])])
            tables = [table.frame for table, _ in found.judged()]
            details += [f"### {_title(study)}\n", *(f"{_markdown(t)}\n" for t in tables)]
        overview.append((study.notebook, _title(study), done, verdict))
    overview += [(number, f"{place}: {what}", note, "") for place, number, what, note in OTHERS]
    lines = [HEAD, "## Figures and tables of the paper\n"]
    lines += ["| in the paper | notebook | run with the paper's settings | as published |"]
    lines += ["|---|---|---|---|"]
    for number, title, done, verdict in sorted(overview):
        lines.append(f"| {title} | `{_notebook(number)}` | {done} | {verdict} |")
    lines += ["", f"*Cells are {verdicts.RULE}, or within {verdicts.ALMOST} points.*"]
    lines += [f"*Winners are {verdicts.WINNER_RULE}.*", f"*Tests are {verdicts.TEST_RULE}.*"]
    lines += [f"*`-`: not judged, because there are fewer than {verdicts.FEWEST} seeds.*", ""]
    lines += ["## Every cell that has a counterpart\n", *details] if details else []
    lines += means_that_differ(compared) + tests_that_differ(compared)
    lines += _pools(datasets) + _searches() + figure_1(datasets) + _policies() + _pictures()
    return "\n".join([*lines, costs.account(datasets)])


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


def means_that_differ(compared: list[Comparison]) -> list[str]:
    """Every mean (ACC; BWT goes with it) that is off, seed by seed, with the likely reason."""
    reasons, lines = read_reasons(), []
    for found in compared:
        metric, keys = found.study.metrics[0], ["dataset", *found.study.row_keys]
        values = found.table.values[found.table.values["metric"] == metric]
        for value in values.to_dict("records"):
            numbers = (value[k] for k in ("mean", "paper_mean", "paper_std", "n"))
            verdict = verdicts.verdict(*numbers)
            if verdict in ("reproduced", "-"):
                continue
            mine = found.rows[(found.rows[keys] == [value[k] for k in keys]).all(axis=1)]
            acc = 100 * mine.loc[mine["converged"].astype(bool), metric]
            seeds = ", ".join(f"{x:.2f}" for x in acc)
            n_failed = len(mine) - len(acc)
            seeds += f" ({n_failed} did not converge)" if n_failed else ""
            place = [str(printed_name(key, value[key])) for key in keys]
            known = {found.study.place, *place}
            reason = next((text for words, text in reasons.items() if words <= known), None)
            lines.append(
                f"- **{', '.join(place)}** ({found.study.place}): {verdict} than the "
                f"paper's {value['paper_mean']:.2f}. Ours by seed: {seeds}; median "
                f"{acc.median():.2f}. *{reason or 'Not looked into yet.'}*"
            )
    return ["## Means that differ, and the likely reason\n", *lines, ""] if lines else []


def read_reasons(file: Path = REPOSITORY / "docs" / "differences.md") -> dict[frozenset[str], str]:
    """The reasons of docs/differences.md by the words of their headings."""
    reasons = {}
    for section in file.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        reasons[frozenset(map(str.strip, heading.split(",")))] = " ".join(text.split())
    return reasons


def tests_that_differ(compared: list[Comparison]) -> list[str]:
    """Every Welch test that answers otherwise: which of the two means, or which spread, moved."""
    lines = []
    for found in compared:
        keys = ["dataset", *found.study.row_keys[:-1]]
        acc = found.table.values[found.table.values["metric"] == "acc"].to_dict("records")
        at = {tuple(str(printed_name(k, v[k])) for k in keys) + (v["label"],): v for v in acc}
        for test in found.tests.frame.to_dict("records"):
            if test["verdict"] in ("reproduced", "-"):
                continue
            place = tuple(str(test[k]) for k in keys)
            pair = [at[(*place, label)] for label in test["comparison"].split(" vs ")]
            gap, theirs = (pair[0][m] - pair[1][m] for m in ("mean", "paper_mean"))
            moved = ", ".join(
                f"{v['label']} is {v['mean'] - v['paper_mean']:+.2f} from the paper's mean (standard "
                f"deviation {v['std']:.2f}, there {v['paper_std']:.2f})"
                for v in pair
            )
            lines.append(
                f"- **{', '.join(place)}, {test['comparison']}** ({found.study.place}): "
                f"{test['verdict']}. {gap:+.2f} points here, {theirs:+.2f} in the paper: {moved}."
            )
    return ["## Tests that differ, and what moved\n", *lines, ""] if lines else []


def figure_1(datasets: list[Parameters]) -> list[str]:
    """Figure 1 in numbers. The paper has one run and so no deviation to judge by: both are shown."""
    rows = studies.stored(
        studies.SINGLE_TASK_REPLAY, [q for q in datasets if q.dataset == "mnist"]
    ).rows
    if not len(rows):
        return []
    acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc", sort=False)
    curves = published.single_task_replay()
    theirs = {f"at task {t}": 100 * m[-1].mean() for t, m in curves.items()}
    frame = pd.DataFrame(
        {
            "replayed": moment,
            "ours": f"{acc[moment].mean():.2f} ± {acc[moment].std(ddof=0):.2f}",
            "n": len(acc),
            "the paper's one run": f"{theirs[moment]:.2f}",
            "difference": f"{acc[moment].mean() - theirs[moment]:+.2f}",
        }
        for moment in acc
    )
    spread = max(theirs.values()) - min(theirs.values())
    best = max(theirs, key=lambda moment: theirs[moment])
    words = (
        f"{verdicts.moments(rows)} In the paper's run {spread:.2f} points lie between the best moment, "
        f"{best}, and the worst."
    )
    return ["## Figure 1 in numbers: ACC on Split MNIST\n", _markdown(frame), "", words, ""]


def _pools(datasets: list[Parameters]) -> list[str]:
    """What balanced pools do to ETS and Random on Split MNIST, beside the paper's means."""
    runs = studies.stored(studies.POOLS, [q for q in datasets if q.dataset == "mnist"])
    if not len(runs):
        return []
    values = summary(studies.POOLS, runs).values
    frame = pd.DataFrame(
        {
            "selection": printed_name("selection", line["selection"]),
            "schedule": line["label"],
            "ACC (%)": plus_minus(line["mean"], line["std"]),
            "n": line["n"],
        }
        for line in values.to_dict("records")
    )
    words = (
        "Our pools are balanced over classes. The released code draws them over all classes at\n"
    )
    words += "once (unbalanced), and calls the seeds of k-means++ k-means:\n"
    return ["## Pools, balanced and not: Split MNIST\n", words, _markdown(frame), ""]


def _searches() -> list[str]:
    """Whether searches beat luck: the paper's by tree size, and all of them at equal cost."""
    lines = [
        "## Do searches beat luck?\n",
        "MCTS against the best of as many random schedules (100):\n",
    ]
    lines += [_markdown(searches.mcts_against_luck()), ""]
    equal = searches.at_equal_cost()
    if len(equal):
        lines += [
            "At equal cost, in environments used for nothing else (`make searches`; *without model*"
        ]
        lines += ["draws among the surrogate's own candidates); differences to Random-best:\n"]
        lines += [_markdown(equal), ""]
    whole = searches.on_complete_trees()
    if len(whole):
        lines += [
            "On the authors' complete trees, where every schedule is known (means over search"
        ]
        lines += [
            "seeds; C is UCT's exploration constant, 0.1 in the paper):\n",
            _markdown(whole),
            "",
        ]
    return lines


# -- the rest --------------------------------------------------------------------------------------


def _policies() -> list[str]:
    """What learned policies did on the trees that were released."""
    lines = ["## Learned policies\n"]
    for what, rows in generalization.finished():
        lines += [f"{what}.\n", _markdown(policy_table(rows)), "", policy_text(rows), ""]
    return [*lines, POLICIES] if len(lines) > 1 else []


def _pictures(folder: Path = REPOSITORY / "docs" / "results") -> list[str]:
    """The figures of the shipped results (`make pictures` puts them there), dataset by dataset."""
    lines = []
    for dataset in sorted(path for path in folder.glob("*") if path.is_dir()):
        about_all = dataset.name == "paper"  # 09's, of all datasets
        title = "Ours beside the paper's" if about_all else printed_name("dataset", dataset.name)
        lines += [f"## Figures: {title}\n"]
        for picture in sorted(dataset.glob("*.png")):
            where = picture.relative_to(folder.parents[1]).as_posix()
            lines += [f"![{picture.stem.replace('_', ' ')}]({where})\n"]
    return lines


def _markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(frame.columns) + " |", "|---" * len(frame.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def main() -> int:
    print("wrote", write_atomically(REPOSITORY / "REPRODUCIBILITY.md", report().encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
