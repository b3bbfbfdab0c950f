"""The published numbers of the paper, as it prints them: in percent, population std over 5 seeds.

`published_*.csv` hold every mean and deviation of its tables (the flag `*` says that some seed did
not converge), its 168 Welch tests, and the curves of Figure 1. `published` looks a number up by its
place in the paper, `counterpart` by a result row. A row in another setting than the paper's (a
Class-IL run, or another memory size) has no counterpart, however alike the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rslib import presets

# Names of the rows' columns in the paper's words; also how tables and figures print them.
SELECTIONS = {"uniform": "Uniform", "kmeans": "k-means", "kcenter": "k-center", "mof": "MoF"}
# Not the paper's words: what its released code does under the first two names.
OUR_SELECTIONS = {"unbalanced": "Uniform, unbalanced", "kmeans++": "k-means++ seeds"}
REPLAY_METHODS = {
    "er": "ER",
    "hal": "HAL",
    "mer": "MER",
    "der": "DER",
    "derpp": "DER++",
    "agem": "A-GEM",
    "er-ring": "ER-Ring",
    "joint": "Joint",
}
SCENARIOS = {"task": "Task-IL", "domain": "Domain-IL", "class": "Class-IL"}
DATASETS = {name: p.title for name, p in (presets.PAPER | presets.EMBEDDED).items()}

SEEDS = 5  # behind every mean, deviation and test
_LARGE = ("permutedmnist", "cifar100", "miniimagenet")  # 10 and 20 tasks
# In the tiny-memory table these keep one sample per class of every past task: no fixed M.
_INCREMENTAL = ("A-GEM", "ER-Ring", "Uniform")

Row = Mapping[str, Any] | pd.Series  # of results


class Published(NamedTuple):
    mean_percent: float
    std_percent: float
    flag: str  # "*" where some seed did not converge


@cache
def _read(name: str) -> pd.DataFrame:
    with (files("rslib.show.published") / f"published_{name}.csv").open() as file:
        return pd.read_csv(file).fillna({"group": "", "flag": ""})


def results() -> pd.DataFrame:
    """Load every published mean and deviation, by table, dataset, group, method and metric."""
    return _read("results").copy()


def welch_tests() -> pd.DataFrame:
    """Load every published Welch test: table, dataset, group, comparison ("MCTS vs ETS"), t, p."""
    return _read("welch_tests").copy()


def single_task_replay() -> dict[int, np.ndarray]:
    """Load Figure 1: {task at which task 1 was replayed: accuracies (T, T)}, NaN if unseen."""
    frame = _read("single_task_replay")
    n_tasks = int(frame["task"].max())
    curves = {}
    for replayed_at, rows in frame.groupby("replayed_at_task"):
        matrix = np.full((n_tasks, n_tasks), np.nan)
        matrix[rows["after_task"] - 1, rows["task"] - 1] = rows["accuracy"]
        curves[int(str(replayed_at))] = matrix
    return curves


def dataset_key(name: str) -> str:
    """Spell a dataset's name as the CSV files do: "Permuted-MNIST" is "permutedmnist"."""
    if "/" in str(name):  # a user's, even where the folder is called mnist
        return str(name)
    key = "".join(c for c in str(name).lower() if c.isalnum())
    return key.removeprefix("split")


def dataset_name(name: str) -> str:
    """Spell a dataset's name as printed; a dataset that the paper does not have keeps its own."""
    return DATASETS.get(dataset_key(name)) or presets.preset(str(name)).title


def counterpart(row: Row, table: str, method: str, metric: str) -> Published | None:
    """Look up the published value of the cell that a result row belongs to, or None."""
    if not _same_setting(row, table, method):
        return None
    return published(table, row["dataset"], _group(row, table, method), method, metric)


def counterpart_test(row: Row, table: str, ours: str, other: str) -> tuple[float, float] | None:
    """Look up the published (t, p) of `ours` against `other` for a result row of `ours`, or None."""
    if not _same_setting(row, table, ours):
        return None
    place = (table, dataset_key(row["dataset"]), _group(row, table, ours), f"{ours} vs {other}")
    return _tests_by_key().get(place)


def _same_setting(row: Row, table: str, method: str) -> bool:
    dataset = dataset_key(row["dataset"])
    scenario = "domain" if dataset == "permutedmnist" else "task"
    rollouts = row.get("rollouts", nan)
    shorter = method.startswith("MCTS") and not isnan(rollouts) and rollouts != 100
    if shorter or row.get("changed") or row.get("subset"):  # `-p epochs 1`, a part of the data, ...
        return False  # another experiment
    M, own = _memory_size(table, dataset, method), row.get("memory_size", nan)
    return row.get("scenario", scenario) == scenario and (M is None or isnan(own) or own == M)


def _memory_size(table: str, dataset: str, method: str) -> int | None:
    """The M that a row must have to be compared with a published number, or None for any M."""
    if method in ("Joint", "Fine-tuning") or table == "memory_size_domain_il":
        return None  # no memory, or the group names it
    if table == "tiny_memory":
        return None if method in _INCREMENTAL else (50 if dataset in _LARGE else 2)
    return 100 if dataset in _LARGE else 10


def _group(row: Row, table: str, method: str) -> str:
    """The group of the paper's table that a row belongs to, "" in tables without groups."""
    if table == "memory_selection":
        return "Offline" if method == "Joint" else SELECTIONS.get(row["selection"], "")
    if table == "replay_methods":
        return REPLAY_METHODS.get(row["replay"], "")
    if table == "memory_size_domain_il":
        return f"M={row['memory_size']:.0f}"
    if table == "forward_transfer":
        return SELECTIONS.get(row.get("selection", "uniform"), "")
    return ""


def published(table: str, dataset: str, group: str, method: str, metric: str) -> Published | None:
    """Look up a published mean and deviation (percent; ranks as they are), or None."""
    known = set(_read("results")["table"])
    if table not in known:
        raise ValueError(
            f"the paper has no table {table!r}; choose from {', '.join(sorted(known))}"
        )
    return _results_by_key().get((table, dataset_key(dataset), group, method, metric.upper()))


@cache
def _results_by_key() -> dict[tuple, Published]:
    return {
        (r.table, r.dataset, r.group, r.method, r.metric.upper()): Published(
            float(r.mean_percent), float(r.std_percent), r.flag
        )
        for r in _read("results").itertuples()
    }


@cache
def _tests_by_key() -> dict[tuple, tuple[float, float]]:
    return {
        (r.table, r.dataset, r.group, r.comparison): (float(r.t), float(r.p))
        for r in _read("welch_tests").itertuples()
    }
