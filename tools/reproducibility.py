"""`make reproducibility`: writes REPRODUCIBILITY.md from the rows there are. No number by hand.

Every figure and table of the paper: which notebook and command make it, how much of it has been run
with the paper's settings, how many of its cells came out as published, where not, and what it cost.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from rslib import presets
from rslib.files import REPOSITORY, write_atomically
from rslib.runs import generalization, params, scoring, studies
from rslib.show import verdicts
from rslib.show.tables import printed_name as named
from rslib.store import Store
from tools import costs, differences
from tools.judged import ITEMS, judge


def report(store: Store) -> str:
    everywhere = params.check(dict(profile="paper", n_jobs=1), "09")
    datasets = studies.each_dataset(everywhere, None)
    datasets = [q for q in datasets if q.dataset in presets.PAPER]
    lines = [_HEAD, "## Figures and tables of the paper\n"]
    lines += ["| in the paper | notebook | run with the paper's settings | as published |"]
    lines += ["|---|---|---|---|"]
    details, judgements = [], []
    for item in ITEMS:
        done, verdict, judged = judge(item, datasets, store)
        lines.append(f"| {item.what} | `{item.notebook}` | {done} | {verdict} |")
        if judged is not None and len(judged.cells):
            judgements.append(judged)
            details.append(f"### {item.what}\n\n{_markdown(judged.cells)}\n")
            beside = (judged.winners, judged.tests)
            details += [f"{_markdown(frame)}\n" for frame in beside if len(frame)]
    lines += ["", f"*Cells are {verdicts.RULE}, or within {verdicts.ALMOST} points.*"]
    lines += [f"*Winners are {verdicts.WINNER_RULE}.*"]
    lines += [f"*Tests are {verdicts.TEST_RULE}.*"]
    lines += [f"*`-`: not judged, because there are fewer than {verdicts.FEWEST} seeds.*", ""]
    lines += ["## Every cell that has a counterpart\n", *details] if details else []
    lines += differences.of_means(judgements) + differences.of_tests(judgements)
    lines += differences.figure_1(datasets, store) + _policies() + _pictures()
    asked = [
        (f"`{i.notebook}`: {i.what}", i.study) for i in ITEMS if i.study and "acc" in i.metrics
    ]
    lines += [costs.account(asked, datasets, store)]
    return "\n".join(lines)


_HEAD = """# Reproducibility

Written by `make reproducibility` from the rows in the store and in `results/`; no number is typed by
hand (likely reasons, in italics, are our reading of the rows). One notebook on one dataset with the
paper's settings:
`make paper-figures PROFILE=paper DATASETS=mnist NOTEBOOKS=04`. Datasets not named below were
not run. Where we deviate from the authors' released code on purpose (all schedules train on the same
85 %, balanced pools, replay methods as published), the notebooks say so.
"""


_POLICIES = """*All schedules* is the mean over every schedule of a tree, *Best constant* one schedule
chosen on the training environments, *Oracle* the best schedule by validation accuracy; *gap closed* is
the share of the way from the first to the last. n/a: the rule wants to replay nothing, which the
released trees lack; \\*: the nearest action of the tree stood in. The paper's ranks are
among ten methods. New task order: the paper tests on environments 10-19, which are not released. New
dataset: its test environments, but trained on Split MNIST alone instead of two datasets.
"""


def _policies() -> list[str]:
    """What learned policies did on the trees there are."""
    lines = ["## Learned policies\n"]
    for what, rows in generalization.finished():
        name = rows["experiment"].iloc[0]
        lines += [f"{what}.\n", _markdown(scoring.printable(name, rows)), ""]
        lines += [scoring.in_words(name, rows), ""]
    return [*lines, _POLICIES] if len(lines) > 1 else []


def _pictures(folder: Path = REPOSITORY / "docs" / "results") -> list[str]:
    """The figures of the shipped results (`make pictures` puts them there), dataset by dataset."""
    lines = []
    for dataset in sorted(path for path in folder.glob("*") if path.is_dir()):
        about_all = dataset.name == "paper"  # 09's, of all datasets
        title = "Ours beside the paper's" if about_all else str(named("dataset", dataset.name))
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
    target = REPOSITORY / "REPRODUCIBILITY.md"
    write_atomically(target, report(Store()).encode())
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
