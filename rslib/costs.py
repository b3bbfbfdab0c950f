"""What the runs cost: core-hours per experiment here, beside the released code's and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rslib import experiments, studies
from rslib.experiments import Cell
from rslib.params import Parameters
from rslib.rows import path_text
from rslib.store import Store
from rslib.tree import NotTrained

Study = Callable[[Parameters], list[Cell]]

# The authors' code on one core, seconds per trained task of Split MNIST (protocol.md).
RELEASED_SECONDS = 23.5
PAPER_SECONDS = (
    40  # per schedule of Split MNIST on the authors' GPU (Appendix B, computational cost)
)


def account(asked: Sequence[tuple[str, Study]], datasets: list[Parameters], store: Store) -> str:
    """Core-hours per experiment of the runs there are, beside the released code's and the paper's.

    A training that several experiments use is counted in each: it is what one of them alone costs.
    """
    lines = ["## What it cost\n"]
    heads = ["notebook: in the paper", "dataset", "schedules", "trainings"]
    heads += ["core-hours here", "released code", "paper"]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    everything: set[tuple[str, str]] = set()
    for what, study in asked:
        for q in datasets:
            n, nodes = _walked(studies.asked(study, q), store)
            everything |= nodes
            if n:
                lines.append(f"| {what} | {q.title} | {_costs(q, n, nodes, store)} |")
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
