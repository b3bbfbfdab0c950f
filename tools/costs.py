"""What the runs cost: core-hours per experiment here, beside the released code's and the paper's."""

from __future__ import annotations

from dataclasses import replace

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
from rslib.store.rows import Row

# By environment, not by key: with another torch than theirs, shipped rows have another key.
Nodes = dict[tuple[Environment, str], Row]  # by environment and path text

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
# Seconds of one training of datasets of twenty tasks where no rows are stored, measured on 18 November
# 2026 on one core of two; miniImagenet's with 100 training images a class, its released subset.
LONG_SECONDS = {"Split CIFAR-100": 82, "Split miniImagenet": 54}


def account(datasets: list[Parameters]) -> str:
    """Core-hours per experiment of the stored runs, beside the released code's and the paper's.

    A training that several experiments use is counted in each: it is what one of them alone costs.
    """
    heads = ["notebook: in the paper", "dataset", "schedules", "trainings"]
    heads += ["core-hours here", "released code, core-hours", "paper, GPU-hours"]
    lines = ["## What it cost\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    everything: Nodes = {}
    for study in (study for study in STUDIES if "acc" in study.metrics):
        for q in datasets:
            runs = studies.stored(study, [q])
            found = [(cell, runs[cell]) for cell in runs.cells if cell in runs]
            nodes = {node: row for cell, _ in found for node, row in _walked(runs, cell).items()}
            everything |= nodes
            if found:
                n = sum(len(result.schedules) for _, result in found)
                theirs = _theirs(found) if q.dataset == "mnist" else ("", "")
                counts = f"{n:,} | {len(nodes):,} | {_hours(nodes):.2f}"
                what = f"`{study.notebook}`: {study.place}"
                lines.append(f"| {what} | {q.title} | {counts} | {' | '.join(theirs)} |")
    hours = _hours(everything)
    text = (
        f"All of them together, each training once: {len(everything):,} trainings, {hours:.1f} "
        f"core-hours{_made_with(everything)}, on a machine that was doing other things as "
        "well. The other columns are estimates for Split MNIST and plain replay: searches and "
        "schedules times what one took (the released code on one core of a faster CPU, 2.8 GHz; the "
        "paper on its GPU). Random-best is ours, so it costs them nothing."
    )
    left = _left(datasets, everything)
    return "\n".join([*lines, "", text, "", *_policies(), *left, _not_run(everything), ""])


def _walked(runs: Runs, cell: Cell) -> Nodes:
    """The nodes on the ways of all schedules a cell tried."""
    paths = [schedule.compositions for schedule in runs[cell].schedules]
    texts = {path_text(path[:k]) for path in paths for k in range(len(path) + 1)}
    rows = runs.tree(cell).rows()
    return {(cell.environment, text): rows[text] for text in texts}


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


def _hours(nodes: Nodes) -> float:
    return float(np.nansum([row.seconds for row in nodes.values()])) / 3600


def _made_with(nodes: Nodes) -> str:
    kinds = {(row.torch, row.cpu) for row in nodes.values()}
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


def _left(datasets: list[Parameters], nodes: Nodes) -> list[str]:
    """What the runs of the paper that are not stored would cost."""
    taken: dict[tuple[str, str], Nodes] = {}
    for (environment, path), row in nodes.items():
        kind = environment.dataset, environment.method
        taken.setdefault(kind, {})[environment, path] = row
    seconds = {kind: 3600 * _hours(mine) / len(mine) for kind, mine in taken.items()}
    lines = ["### What is left\n", "| in the paper | dataset | runs | core-hours, about |"]
    lines.append("|---" * 4 + "|")
    store = Store()
    asked = [(s.place, q, s.cells(q)) for s in STUDIES if "acc" in s.metrics for q in datasets]
    asked += [("Figure 4, Table 1: BFS on the other seeds", q, _more_bfs(q)) for q in datasets]
    for place, q, cells in asked:
        runs, hours, n = Runs(cells, pd.DataFrame(), store), 0.0, 0
        for cell in (cell for cell in runs.cells if cell not in runs):
            plain = seconds.get((q.dataset, "er"), LONG_SECONDS.get(q.title, 0))
            each = seconds.get((q.dataset, cell.environment.method), plain)
            hours, n = hours + expected_trainings(cell) * each / 3600, n + 1
        if n:
            about = f"{hours:.1f}" if hours >= 0.05 else "less than 0.1"
            lines.append(f"| {place} | {q.title} | {n} | {about} |")
    long = Environment("permuteddigits", n_tasks=20)  # stands for every tree of twenty tasks
    one, search = (expected_trainings(Cell(long, policy, 100)) for policy in ("ets", "mcts"))
    measured = {q.title: seconds.get((q.dataset, "er")) for q in datasets}
    each = "; ".join(
        f"{name} {one * s / 3600:.1f} a schedule, {search * s / 3600:.0f} a search of 100 rollouts"
        for name, s in ((name, measured.get(name) or s) for name, s in LONG_SECONDS.items())
    )
    text = (
        "Trainings that runs share are counted in each, and a training is taken to last as long as "
        "the mean of those stored (of plain replay, where none with this replay method is), on a "
        "machine that was doing other things as well. Datasets of twenty tasks, core-hours: "
        f"{each}."
    )
    return [*lines, "", text, ""]


def _more_bfs(q: Parameters) -> list[Cell]:
    """BFS on the seeds of the paper on which our profile does not ask for it."""
    study = studies.SCHEDULE_SEARCH
    p = q.on(q.dataset, q.profile_name, study.notebook)
    every = replace(p, profile=replace(p.profile, bfs_seeds=len(p.seeds)))
    asked = study.cells(p)
    return [cell for cell in study.cells(every) if cell not in asked]


def _not_run(nodes: Nodes) -> str:
    """What the trees of Tables 4 and 5 would cost."""
    mine = {node: row for node, row in nodes.items() if node[0].dataset == "mnist"}
    here = ""
    if mine:
        each = TREE_TRAININGS * _hours(mine) / len(mine)
        here = f" (Split MNIST here: about {each:.1f} core-hours a tree, {TREES * each:.0f} in all)"
    paper = " and ".join(
        f"{hours} GPU-hours a tree of {name}" for name, hours in PAPER_TREE.items()
    )
    return (
        f"Not run: the {TREES} trees a dataset behind Tables 4 and 5, {TREE_TRAININGS:,} trainings "
        f"each{here}; Split CIFAR-10's are out of reach of this machine. The paper took {paper}."
    )
