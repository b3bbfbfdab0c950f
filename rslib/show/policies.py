"""Tables 4 and 5: how learned policies rank, beside the paper's values, with tests and in a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rslib.runs import scoring
from rslib.schedule import Schedule
from rslib.show import published, tables
from rslib.show.tables import Table
from rslib.show.verdicts import Markdown
from rslib.stats import plus_minus


def policy_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`scoring.summary` as a table is read, with the paper's values where it has this dataset.

    A star: some composition is not in the table; the nearest one was used.
    """
    experiment, dataset = (str(rows[name].iloc[0]) for name in ("experiment", "dataset"))
    place = (f"policy_{experiment}_10_methods", dataset, "")
    # References such as the mean over all schedules have none of their own.
    paths = [Schedule.from_json(text).n_tasks for text in rows["schedule"].fillna("") if text]
    whole = set(paths) == {5}  # the paper's; trees of fewer tasks are another experiment
    lines = []
    for line in scoring.summary(rows).reset_index().to_dict("records"):
        looked_up = [published.published(*place, line["label"], name) for name in ("rank", "acc")]
        theirs = looked_up if whole else [None, None]
        rank, acc = (found.mean_percent if found else np.nan for found in theirs)
        gap, low, high = (f"{100 * line[f'gap_{end}']:.0f}" for end in ("closed", "low", "high"))
        interval = "" if "nan" in (low, high) else f" [{low}, {high}]"  # one environment has none
        closed = (
            "n/a" if gap == "nan" else f"{gap}{interval}"
        )  # the oracle, by validation, gains nothing
        known = not line["missing"]
        lines.append(
            {
                "Method": line["label"] + (" *" if line["n_nearest"] else ""),
                "Rank": plus_minus(line["rank"]),
                "ACC (%)": plus_minus(line["acc"], line["acc_std"]) if known else "n/a",
                "BWT (%)": plus_minus(line["bwt"], line["bwt_std"]) if known else "-",
                "Gap closed (%)": closed if known else "-",
                "Paper: rank": plus_minus(rank),
                "Paper: ACC (%)": plus_minus(acc),
            }
        )
    frame = pd.DataFrame(lines)
    return frame.loc[:, [c for c in frame if not c.startswith("Paper") or set(frame[c]) != {"-"}]]


def policy_tests(rows: pd.DataFrame, what: str) -> Table:
    """Test learned policies against every other method over the environments' means, which are paired.

    `what` begins the caption.
    """
    acc = {k: v for k, v in scoring.by_environment(rows).items() if k not in scoring.REFERENCES}
    learned = [label for label in scoring.LEARNED if label in acc]
    lines = []
    for i, mine in enumerate(learned):
        for other in (label for label in acc if label not in learned[: i + 1]):
            name = {"dataset": str(rows["dataset"].iloc[0]), "comparison": f"{mine} vs {other}"}
            means = [
                100 * pd.Series({k: v.mean() for k, v in acc[x].items()}) for x in (mine, other)
            ]
            lines.append(name | tables.test_numbers(*means))
    return tables.tests_table(pd.DataFrame(lines), ["comparison"], what, "environment")


def policy_text(rows: pd.DataFrame) -> Markdown:
    """Say who ranks where, and how much of the gap to the oracle policies and a fixed schedule close."""
    experiment = str(rows["experiment"].iloc[0]).replace("_", " ")
    ranks = sorted(scoring.average_ranks(rows).items(), key=lambda item: item[1])
    order = ", ".join(f"{label} {rank:.2f}" for label, rank in ranks[:4])
    closed = []
    for label in (x for x in (*scoring.LEARNED, scoring.CONSTANT) if x in set(rows["label"])):
        gap = scoring.gap_closed(rows, label)
        share = f"{gap.value:.0%} [{gap.low:.0%}, {gap.high:.0%}]" if gap.reason is None else "n/a"
        closed.append(f"{label} closes {share} of the gap from the mean schedule to the oracle")
    return Markdown(f"- {experiment}: best ranks {order}. " + "; ".join(closed) + ".")
