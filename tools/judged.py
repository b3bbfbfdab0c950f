"""Every figure and table of the paper, and our rows beside it: run how far, and come out how."""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from rslib.runs import grid, studies
from rslib.runs.grid import Cell
from rslib.runs.params import Parameters
from rslib.show import tables, verdicts
from rslib.store import Store


class Item(NamedTuple):
    """One figure or table of the paper."""

    what: str
    notebook: str
    study: Callable[[Parameters], list[Cell]] | None = None
    paper_table: str | None = None
    row_keys: tuple[str, ...] = ("label",)
    note: str = ""
    against: tuple[str, ...] = ("Random", "ETS", "Heur-GD")
    metrics: tuple[str, ...] = ("acc", "bwt")


class Judged(NamedTuple):
    """One table of the paper with our rows beside it."""

    item: Item
    rows: pd.DataFrame
    values: pd.DataFrame  # of the summary table, one line per mean
    cells: pd.DataFrame  # every mean with its verdict
    winners: pd.DataFrame  # the best method of every group
    tests: pd.DataFrame  # every Welch test with its verdict


_BFS = "BFS on two of the paper's five seeds"
ITEMS = [
    Item(
        "Figure 1, one memory at one moment",
        "01_single_task_replay",
        studies.single_task_replay,
        note="the paper has one run: in numbers below",
    ),
    Item("Figure 2, the tree of memories", "02_schedule_search", note="drawn, needs no run"),
    Item(
        "Figure 4, App. C.2, C.3: search",
        "02_schedule_search",
        studies.schedule_search,
        note=_BFS,
    ),
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
        _BFS,
    ),
    Item(
        "App. C.4: forward transfer",
        "04_memory_selection",
        studies.ets_heuristic,  # the rows of uniform selection
        "forward_transfer",
        against=(),
        metrics=("fwt",),
    ),
    Item(
        "Table 2, App. C.5: replay methods",
        "05_replay_methods",
        studies.replay_methods,
        "replay_methods",
        ("replay", "label"),
        "methods as published, not as released: expected to differ",
    ),
    Item(
        "Table 3, App. C.6: tiny memory",
        "06_tiny_memory",
        studies.tiny_memory,
        "tiny_memory",
        against=("Random", "A-GEM", "ER-Ring", "Uniform"),
    ),
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
        note="on the authors' released trees, see below; trees of our own on embedded data only: the "
        "paper's 50 trees of 1,085 trainings a dataset were not run",
    ),
    Item("App. B, C.1, C.5, D.1, D.4: settings", "09_paper", note="typeset from the presets"),
]


def judge(item: Item, datasets: list[Parameters], store: Store) -> tuple[str, str, Judged | None]:
    """How much has been run, how it compares, and the judged cells."""
    if item.study is None:
        return item.note, "", None
    parts, frames = [], []
    for q in datasets:
        cells = studies.asked(item.study, q)
        found = grid.look_up(cells, store)
        if len(found):
            parts.append(f"{q.title}: {len(found)} of {len(cells)} runs")
            frames.append(found)
    done = "; ".join(parts) or "not run"
    if not frames or item.paper_table is None:
        return done, item.note, None
    rows = pd.concat(frames, ignore_index=True)
    table = tables.summary_table(rows, item.row_keys, item.metrics, item.paper_table)
    cells = verdicts.against_paper(table, item.what)
    best = verdicts.winners(table, item.what, item.paper_table)
    shown = (cells, best) if len(best.frame) else (cells,)
    words = [str(verdicts.counted(which)).split(" (")[0] for which in shown]
    groups = ["dataset", *item.row_keys[:-1]]
    tests = pd.DataFrame()
    if item.against:
        welch = tables.welch_table(
            rows, against=item.against, group_keys=groups, paper_table=item.paper_table
        )
        found = verdicts.tests_against_paper(welch, item.what)
        tests = found.frame
        words += [str(verdicts.counted(found)).split(" (")[0]] if len(tests) else []
    words += [item.note] if item.note else []
    return (
        done,
        "; ".join(words),
        Judged(item, rows, table.values, cells.frame, best.frame, tests),
    )
