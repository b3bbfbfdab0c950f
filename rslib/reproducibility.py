"""`make reproducibility`: writes REPRODUCIBILITY.md from the rows there are. No number by hand.

Every figure and table of the paper: which notebook and command make it, how much of it has been run
with the paper's settings, how many of its cells came out as published, and what the rest would cost.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from rslib import experiments, params, presets, studies, tables, verdicts
from rslib.experiments import Cell
from rslib.params import REPOSITORY, Parameters
from rslib.store import Store, path_text, write_atomically
from rslib.tree import NotTrained

# The authors' code on one core, seconds per trained task of Split MNIST (protocol.md).
RELEASED_SECONDS = 23.5
PAPER_SECONDS = (
    40  # per schedule of Split MNIST on the authors' GPU (Appendix B, computational cost)
)


class Item(NamedTuple):
    """One figure or table of the paper."""

    what: str
    notebook: str
    study: Callable[[Parameters], list[Cell]] | None = None
    paper_table: str | None = None
    row_keys: tuple[str, ...] = ("label",)
    note: str = ""


ITEMS = [
    Item("Figure 1, one memory at one moment", "01_single_task_replay", studies.single_task_replay),
    Item("Figure 2, the tree of memories", "02_schedule_search", note="drawn, needs no run"),
    Item("Figure 4, App. C.2, C.3: search", "02_schedule_search", studies.schedule_search),
    Item(
        "Figure 3, App. C.7: memory sizes",
        "03_memory_size",
        studies.memory_sizes,
        "memory_size_domain_il",
        ("scenario", "memory_size", "label"),
        "the paper prints the numbers of Permuted MNIST only",
    ),
    Item(
        "Table 1, App. C.4: memory selection",
        "04_memory_selection",
        studies.memory_selection,
        "memory_selection",
        ("selection", "label"),
    ),
    Item(
        "Table 2, App. C.5: replay methods",
        "05_replay_methods",
        studies.replay_methods,
        "replay_methods",
        ("replay", "label"),
        "methods as published, not as released: expected to differ",
    ),
    Item("Table 3, App. C.6: tiny memory", "06_tiny_memory", studies.tiny_memory, "tiny_memory"),
    Item(
        "App. C.9: ETS + heuristic", "08_schedule_transfer", studies.ets_heuristic, "ets_heuristic"
    ),
    Item(
        "App. C.8: schedules on new seeds",
        "08_schedule_transfer",
        studies.transferred,
        "schedule_transfer",
        note="our own schedules and draws",
    ),
    Item(
        "Tables 4, 5, Figure 5, App. D: policies",
        "07_generalization",
        note="embedded data in minutes; the paper's settings are 50 trees of 1,085 trainings a dataset",
    ),
    Item("App. B, C.1, C.5, D.1, D.4: settings", "09_paper", note="typeset from the presets"),
]


def report(store: Store) -> str:
    everywhere = params.check(dict(profile="paper", n_jobs=1), "09")
    datasets = studies.each_dataset(everywhere, None)
    datasets = [q for q in datasets if q.dataset in presets.PAPER]
    lines = [_HEAD, "## Figures and tables of the paper\n"]
    lines += ["| in the paper | notebook | run with the paper's settings | as published |"]
    lines += ["|---|---|---|---|"]
    details = []
    for item in ITEMS:
        done, verdict, judged = _state(item, datasets, store)
        lines.append(f"| {item.what} | `{item.notebook}` | {done} | {verdict} |")
        if judged is not None and len(judged.frame):
            details.append(f"### {item.what}\n\n{_markdown(judged.frame)}\n")
    lines += ["", f"*{verdicts.RULE}, or within {verdicts.ALMOST} points.*", ""]
    lines += ["## Every cell that has a counterpart\n", *details] if details else []
    lines += [_cost(datasets, store)]
    return "\n".join(lines)


_HEAD = """# Reproducibility

Written by `make reproducibility` from the rows in the store and in `results/`; nothing is typed by hand.
One notebook on one dataset with the paper's settings:
`make paper-figures PROFILE=paper DATASETS=mnist NOTEBOOKS=04`. Datasets not named below were
not run. Where we deviate from the authors' released code on purpose (all schedules train on the same
85 %, balanced pools, replay methods as published), the notebooks say so.
"""


def _state(item: Item, datasets: list[Parameters], store: Store):
    """How much has been run, how it compares, and the judged cells."""
    if item.study is None:
        return item.note, "", None
    parts, frames = [], []
    for q in datasets:
        cells = studies.asked(item.study, q)
        found = experiments.look_up(cells, store)
        if len(found):
            parts.append(f"{q.title}: {len(found)} of {len(cells)} runs")
            frames.append(found)
    done = "; ".join(parts) or "not run"
    if not frames or item.paper_table is None:
        return done, item.note, None
    rows = pd.concat(frames, ignore_index=True)
    table = tables.summary_table(rows, row_keys=item.row_keys, paper_table=item.paper_table)
    judged = verdicts.against_paper(table, item.what)
    words = str(verdicts.counted(judged)).split(" (")[0]
    return done, f"{words}{'; ' + item.note if item.note else ''}", judged


def _markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(frame.columns) + " |", "|---" * len(frame.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def _cost(datasets: list[Parameters], store: Store) -> str:
    """Core-hours per notebook of the runs there are, beside the released code's and the paper's.

    A training that several notebooks use is counted in each: it is what one of them alone costs.
    """
    lines = ["## What it cost\n"]
    lines += [
        "| notebook | dataset | schedules | trainings | core-hours here | released code | paper |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    everything: set[tuple[str, str]] = set()
    for item in ITEMS:
        for q in datasets if item.study else ():
            n, nodes = _walked(studies.asked(item.study, q), store)
            everything |= nodes
            if n:
                lines.append(f"| `{item.notebook}` | {q.title} | {_costs(q, n, nodes, store)} |")
    hours = _hours(everything, store)
    return "\n".join(
        [
            *lines,
            "",
            f"All of them together, each training once: {len(everything):,} trainings, {hours:.1f} "
            "core-hours, on a machine that was doing other things as well. The released code trains "
            f"every task of every schedule anew, {RELEASED_SECONDS} s a task on Split MNIST on one of "
            f"these cores (other datasets: not measured); the paper's GPU took {PAPER_SECONDS} s a "
            "schedule of Split MNIST.",
            "",
        ]
    )


def _costs(q: Parameters, n: int, nodes: set[tuple[str, str]], store: Store) -> str:
    mnist = q.dataset == "mnist"
    n_tasks = q.environment(q.seeds[0]).n_tasks or 0
    released = f"{n * n_tasks * RELEASED_SECONDS / 3600:.1f} core-hours" if mnist else ""
    paper = f"{n * PAPER_SECONDS / 3600:.1f} GPU-hours" if mnist else ""
    return f"{n:,} | {len(nodes):,} | {_hours(nodes, store):.2f} | {released} | {paper}"


def _walked(cells: list[Cell], store: Store) -> tuple[int, set[tuple[str, str]]]:
    """How many schedules the finished cells tried, and the nodes (key, path) on their ways."""
    n, nodes = 0, set()
    for cell in cells:
        try:
            found = experiments.result(cell, store)
        except NotTrained:
            continue
        n += len(found.schedules)
        for schedule in found.schedules:
            path = schedule.compositions
            nodes |= {(cell.environment.key, path_text(path[:k])) for k in range(len(path) + 1)}
    return n, nodes


def _hours(nodes: set[tuple[str, str]], store: Store) -> float:
    rows = {key: store.rows(key) for key in {key for key, _ in nodes}}
    return float(np.nansum([rows[key][path].seconds for key, path in nodes])) / 3600


def main() -> int:
    target = REPOSITORY / "REPRODUCIBILITY.md"
    write_atomically(target, report(Store()).encode())
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
