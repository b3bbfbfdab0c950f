"""What the runs cost: core-hours per experiment here, beside the released code's and the paper's."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rslib.environment import Environment
from rslib.runs import generalization, studies
from rslib.runs.grid import Cell, Runs, expected_trainings
from rslib.runs.params import Parameters
from rslib.runs.studies import STUDIES
from rslib.schedule import path_text
from rslib.search import SEARCHES, Result
from rslib.store import Store

Nodes = set[tuple[str, str]]  # (environment key, path text)

# Split MNIST, in hours. The authors' code, measured on one core of a 2.8 GHz server CPU:
# a search, or one schedule of 5 tasks at 23.5 s each. The paper's own GPU (Appendix B): 40 s an
# iteration of a search, 1.5 minutes a schedule. Methods other than plain replay were not measured.
RELEASED_HOURS = {"mcts": 1.5, "bfs": 8.5, "one schedule": 5 * 23.5 / 3600}
PAPER_SECONDS = {"iteration": 40, "one schedule": 90}
MEASURED = ("er", "joint")
# Hours of one policy with the released code; of one tree on the paper's GPU (App. D).
RELEASED_POLICY = {"DQN": 3.1, "A2C": 58 / 60}
PAPER_TREE = {"Split MNIST": 9.5, "Split CIFAR-10": 16.1}
TREES, TREE_TRAININGS = 50, 1085  # of the paper, a dataset; of five tasks
# Seconds of one training of datasets of which there may be no rows, measured on 18 November 2026 on one
# core of two; miniImagenet's with 100 training images a class, its released subset.
LONG_SECONDS = {"Split CIFAR-100": 82, "Split miniImagenet": 54}


def account(datasets: list[Parameters]) -> str:
    """Core-hours per experiment of the stored runs, beside the released code's and the paper's.

    A training that several experiments use is counted in each: it is what one of them alone costs.
    """
    heads = ["notebook: in the paper", "dataset", "schedules", "trainings"]
    heads += ["core-hours here", "released code, core-hours", "paper, GPU-hours"]
    lines = ["## What it cost\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    store, everything = Store(), set()
    for study in (study for study in STUDIES if "acc" in study.metrics):
        for q in datasets:
            runs = studies.stored(study, [q])
            found = [(cell, runs[cell]) for cell in runs.cells if cell in runs]
            nodes = {node for cell, result in found for node in _walked(cell, result)}
            everything |= nodes
            if found:
                n = sum(len(result.schedules) for _, result in found)
                theirs = _theirs(found) if q.dataset == "mnist" else ("", "")
                counts = f"{n:,} | {len(nodes):,} | {_hours(nodes, store):.2f}"
                what = f"`{study.notebook}`: {study.place}"
                lines.append(f"| {what} | {q.title} | {counts} | {' | '.join(theirs)} |")
    hours = _hours(everything, store)
    text = (
        f"All of them together, each training once: {len(everything):,} trainings, {hours:.1f} "
        f"core-hours{_made_with(everything, store)}, on a machine that was doing other things as "
        "well. The other columns are estimates for Split MNIST and plain replay: searches and "
        "schedules times what one took (the released code on one core of a faster CPU, 2.8 GHz; the "
        "paper on its GPU). Random-best is ours, so it costs them nothing."
    )
    left = _left(datasets, everything, store)
    return "\n".join([*lines, "", text, "", *_policies(), *left, _not_run(everything, store), ""])


def _walked(cell: Cell, result: Result) -> Nodes:
    """The nodes on the ways of all schedules a cell tried."""
    paths = (schedule.compositions for schedule in result.schedules)
    key = cell.environment.key
    return {(key, path_text(path[:k])) for path in paths for k in range(len(path) + 1)}


def _theirs(found: list[tuple[Cell, Result]]) -> tuple[str, str]:
    """What the same cells cost with the released code, and on the paper's GPU."""
    if any(cell.environment.method not in MEASURED for cell, _ in found):
        return "", ""
    released, paper = 0.0, 0.0
    for cell, result in found:
        if cell.policy == "random-best":
            continue
        released += RELEASED_HOURS.get(cell.policy, RELEASED_HOURS["one schedule"])
        if cell.policy in SEARCHES:
            paper += len(result.schedules) * PAPER_SECONDS["iteration"] / 3600
        else:
            paper += PAPER_SECONDS["one schedule"] / 3600
    return f"{released:.1f}", f"{paper:.1f}"


def _hours(nodes: Nodes, store: Store) -> float:
    rows = {key: store.rows(key) for key in {key for key, _ in nodes}}
    return float(np.nansum([rows[key][path].seconds for key, path in nodes])) / 3600


def _made_with(nodes: Nodes, store: Store) -> str:
    rows = {key: store.rows(key) for key in {key for key, _ in nodes}}
    kinds = {(rows[key][path].torch, rows[key][path].cpu) for key, path in nodes}
    said = "; ".join(f"torch {torch}, {cpu}" for torch, cpu in sorted(kinds))
    return f" ({said})" if said else ""


def _policies() -> list[str]:
    """What training the learned policies cost."""
    lines = []
    for about in generalization.facts():
        if about["experiment"] != "new_task_order":
            continue  # the same policies, tested elsewhere
        for agent, cost in about["training"].items():
            lines.append(
                f"{agent}, {cost['policies']:.0f} policies on the authors' trees (notebook 07): "
                f"{cost['policies'] * cost['seconds'] / 3600:.2f} core-hours here, the released code "
                f"{cost['policies'] * RELEASED_POLICY[agent]:.1f}."
            )
    return [*lines, ""] if lines else []


def _left(datasets: list[Parameters], nodes: Nodes, store: Store) -> list[str]:
    """What the runs of the paper that are not stored would cost."""
    specs, taken = store.environments(), {}
    for key, path in nodes:
        kind = specs[key]["dataset"], specs[key]["method"]
        taken.setdefault(kind, set()).add((key, path))
    seconds = {kind: 3600 * _hours(mine, store) / len(mine) for kind, mine in taken.items()}
    lines = ["### What is left\n", "| in the paper | dataset | runs | core-hours, about |"]
    lines.append("|---" * 4 + "|")
    for study in (study for study in STUDIES if "acc" in study.metrics):
        for q in datasets:
            runs, hours, n = Runs(study.cells(q), pd.DataFrame(), store), 0.0, 0
            for cell in (cell for cell in runs.cells if cell not in runs):
                plain = seconds.get((q.dataset, "er"), LONG_SECONDS.get(q.title, 0))
                each = seconds.get((q.dataset, cell.environment.method), plain)
                hours, n = hours + expected_trainings(cell) * each / 3600, n + 1
            if n:
                about = f"{hours:.1f}" if hours >= 0.05 else "less than 0.1"
                lines.append(f"| {study.place} | {q.title} | {n} | {about} |")
    long = Environment("permuteddigits", n_tasks=20)  # stands for every tree of twenty tasks
    one, search = (expected_trainings(Cell(long, policy, 100)) for policy in ("ets", "mcts"))
    each = "; ".join(
        f"{name} {one * s / 3600:.1f} a schedule, {search * s / 3600:.0f} a search"
        for name, s in LONG_SECONDS.items()
        if name not in [q.title for q in datasets]
    )
    text = (
        "Trainings that runs share are counted in each, and a training is taken to last as long as "
        "the mean of those stored (of plain replay, where none with this replay method is), on a "
        "machine that was doing other things as well. Datasets of "
        f"twenty tasks without stored rows, core-hours: {each}."
    )
    return [*lines, "", text, ""]


def _not_run(nodes: Nodes, store: Store) -> str:
    """What the trees of Tables 4 and 5 would cost."""
    mnist = {key for key, spec in store.environments().items() if spec["dataset"] == "mnist"}
    mine = {node for node in nodes if node[0] in mnist}
    here = ""
    if mine:
        each = TREE_TRAININGS * _hours(mine, store) / len(mine)
        here = f" (Split MNIST here: about {each:.1f} core-hours a tree, {TREES * each:.0f} in all)"
    paper = " and ".join(
        f"{hours} GPU-hours a tree of {name}" for name, hours in PAPER_TREE.items()
    )
    return (
        f"Not run: the {TREES} trees a dataset behind Tables 4 and 5, {TREE_TRAININGS:,} trainings "
        f"each{here}; Split CIFAR-10's are out of reach of this machine. The paper took {paper}."
    )
