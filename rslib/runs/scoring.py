"""Scoring scheduling policies in environments, beside references that show what could be gained.

`score` follows policies through environments (live or complete trees). A long frame of such runs, one
row per (environment, policy seed, label), carries everything the tables need: ranks, ACC, BWT, and
the share of the gap from random to the oracle that a policy closes. Three labels are
references instead of policies: the mean over all schedules (what a random schedule gets on average),
the best schedule by validation (the oracle) and the best constant schedule (one for every environment,
chosen on the training environments). Training is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from rslib import search, seeding, stats
from rslib.complete_tree import CompleteTree
from rslib.policies import Policy, Rule
from rslib.schedule import Composition, Schedule
from rslib.search import Tree
from rslib.tree import Node

MEAN, ORACLE, CONSTANT = "All schedules", "Oracle", "Best constant"
REFERENCES = (MEAN, CONSTANT, ORACLE)
HEURISTICS = tuple(f"{prefix}heur-{rule}" for prefix in ("", "ets+") for rule in ("gd", "ld", "at"))
LEARNED = ("DQN", "A2C")

COLUMNS = [
    *("dataset", "env_seed", "policy_seed", "label"),
    *("acc", "bwt", "val", "schedule", "n_nearest", "reason"),
]


@dataclass(frozen=True)
class Run:
    """One pass of a policy through one environment."""

    acc: float = float("nan")  # mean test accuracy at the end
    bwt: float = float("nan")
    val: float = float("nan")  # mean validation accuracy at the end
    schedule: Schedule | None = None
    n_nearest: int = 0  # steps whose composition a complete tree lacks: its nearest one was used
    reason: str = ""  # why there is no result

    @classmethod
    def at(cls, node: Node, n_nearest: int = 0) -> Run:
        return cls(node.acc, node.bwt, node.reward, node.schedule, n_nearest)


class _NoReplay(Exception):
    """A policy wants to replay nothing, and no action of a complete tree is near that."""


def follow(tree: Tree, policy: Policy, policy_seed: int = 0) -> Run:
    """Follow a policy to the last task; a complete tree takes the nearest composition it has."""
    environment, n_nearest = tree.environment, 0

    def draws(k: int) -> np.random.Generator:
        return seeding.rng(policy_seed, "play", environment.dataset, environment.seed, k)

    def nearest(wanted: Composition) -> Composition:
        nonlocal n_nearest
        if not any(wanted):
            raise _NoReplay
        found = tree.nearest(wanted)  # type: ignore[union-attr]
        n_nearest += found != wanted
        return found

    try:
        fit = nearest if isinstance(tree, CompleteTree) else None
        node = search.follow(tree, policy, draws, fit)
    except _NoReplay:
        return Run(reason="no replay is not in the table")
    return Run.at(node, n_nearest) if node.converged else Run(reason="training did not converge")


def choose_tau(
    rule: str, trees: Sequence[Tree], grid: Iterable[float]
) -> tuple[float | None, dict[float, float]]:
    """The threshold with the best mean validation accuracy at the end (ties to the first), and
    that mean for each. None where every threshold lacks a result in some environment."""
    means = {}
    for tau in grid:
        policy = Policy.load(f"{rule}:{tau}")
        means[tau] = float(np.mean([follow(tree, policy).val for tree in trees]))
    known = [tau for tau, mean in means.items() if not np.isnan(mean)]
    return (max(known, key=lambda tau: means[tau]) if known else None), means


# -- the long frame --------------------------------------------------------------------------------


def score(
    trees: Sequence[Tree], policies: Sequence[Policy | Sequence[Policy]], n_seeds: int
) -> list[dict]:
    """Rows of these policies in these environments. A learned policy comes as one per policy seed;
    Random draws anew for each seed; deterministic rules are copied across seeds."""
    rows = []
    for tree in trees:
        for policy in policies:
            if isinstance(policy, Policy):
                drawn = isinstance(policy, Rule) and policy.name.startswith("random")
                runs = [follow(tree, policy, seed) for seed in range(n_seeds if drawn else 1)]
                runs = runs if drawn else runs * n_seeds
                label = policy.label
            else:
                runs = [follow(tree, one, seed) for seed, one in enumerate(policy)]
                label = policy[0].label
            rows += _rows(tree, label, runs)
    return rows


def not_available(trees: Sequence[Tree], label: str, n_seeds: int, reason: str) -> list[dict]:
    """Rows of a method that has no result, so that tables can say n/a and why."""
    runs = [Run(reason=reason)] * n_seeds
    return [row for tree in trees for row in _rows(tree, label, runs)]


def _rows(tree: Tree, label: str, runs: Sequence[Run]) -> list[dict]:
    """One row for the run of each policy seed."""
    rows = []
    for policy_seed, run in enumerate(runs):
        text = run.schedule.to_json() if run.schedule else ""
        place = (tree.environment.dataset, tree.environment.seed, policy_seed, label)
        values = (run.acc, run.bwt, run.val, text, run.n_nearest, run.reason)
        rows.append(dict(zip(COLUMNS, (*place, *values), strict=True)))
    return rows


# -- the references --------------------------------------------------------------------------------


def references(
    trees: Sequence[CompleteTree], training: Sequence[CompleteTree], n_seeds: int
) -> list[dict]:
    """Rows of the three labels of REFERENCES, copied across policy seeds."""
    # The one schedule with the best mean validation accuracy over the training environments.
    constant = int(np.mean([tree.final("val") for tree in training], axis=0).argmax())
    rows = []
    for tree in trees:
        test, val = tree.final("test"), tree.final("val")
        runs = {
            MEAN: Run(float(test.mean()), val=float(val.mean())),
            CONSTANT: Run.at(tree.leaf(constant)),
            ORACLE: Run.at(tree.leaf(int(val.argmax()))),
        }
        for label, run in runs.items():
            rows += _rows(tree, label, [run] * n_seeds)
    return rows


def by_environment(rows: pd.DataFrame) -> dict[str, dict[tuple[str, int], np.ndarray]]:
    """{label: {(dataset, env_seed): ACC by policy seed}}, in the order of the rows."""
    found: dict[str, dict[tuple[str, int], np.ndarray]] = {}
    groups: Any = rows.groupby(["label", "dataset", "env_seed"], sort=False)["acc"]
    for (label, *place), values in groups:
        found.setdefault(label, {})[tuple(place)] = values.to_numpy(dtype=float)
    return found


def gap_closed(rows: pd.DataFrame, label: str) -> stats.Estimate:
    """(ACC - mean of all schedules) / (oracle - mean of all schedules), each summed over
    environments: a ratio of means, so that an environment where nothing can be gained does not
    blow it up. The interval is Fieller's, over environments: the shares s for which ACC - mean - s * gap
    has a mean that a paired t test does not tell from 0. So it holds 0 where that test of ACC does."""
    acc = by_environment(rows)
    if not {label, MEAN, ORACLE} <= set(acc):
        return stats.Estimate(float("nan"), reason="no references")
    mine, floor, oracle = (
        np.array([acc[name][key].mean() for key in acc[label]]) for name in (label, MEAN, ORACLE)
    )
    closed, gap = mine - floor, oracle - floor
    if np.isnan(closed).any() or gap.sum() <= 0:
        reason = "no gap to close" if gap.sum() <= 0 else "n/a in some environment"
        return stats.Estimate(float("nan"), reason=reason)
    value = float(closed.sum() / gap.sum())
    n, c, g = len(gap), closed.mean(), gap.mean()
    if n < 2:
        return stats.Estimate(value, n=n, reason="one environment")
    (cc, cg), (_, gg) = np.cov(closed, gap)
    k = student.ppf(0.975, n - 1) ** 2 / n
    a, b = g**2 - k * gg, c * g - k * cg  # a s^2 - 2 b s + (c^2 - k cc) <= 0
    if a <= 0:
        return stats.Estimate(value, n=n, reason="the gap itself may be 0")
    half = np.sqrt(max(b**2 - a * (c**2 - k * cc), 0.0)) / a
    return stats.Estimate(value, float(b / a - half), float(b / a + half), n)


# -- tables ----------------------------------------------------------------------------------------


def rank_array(rows: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """(environments, policy seeds, methods) ACC of the methods that are ranked, and their labels.

    References are not ranked, nor is a method without a result somewhere: ranks among fewer would not
    be the same.
    """
    acc = {
        label: np.array(list(environments.values()))  # (environments, policy seeds)
        for label, environments in by_environment(rows).items()
        if label not in REFERENCES
    }
    acc = {label: values for label, values in acc.items() if not np.isnan(values).any()}
    return np.stack([*acc.values()], axis=-1) if acc else np.empty((0, 0, 0)), list(acc)


def average_ranks(rows: pd.DataFrame) -> dict[str, float]:
    """Average rank of every method that is ranked."""
    acc, labels = rank_array(rows)
    return dict(zip(labels, stats.average_ranks(acc).tolist(), strict=True))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per label: rank, ACC and BWT in % (population std), gap closed with its interval."""
    ranks = average_ranks(rows)
    lines = []
    for name, part in rows.groupby("label", sort=False):
        label = str(name)
        acc, bwt, n_nearest = part[["acc", "bwt", "n_nearest"]].to_numpy(dtype=float).T
        gap = gap_closed(rows, label)
        lines.append(
            {
                "label": label,
                "rank": ranks.get(label, float("nan")),
                "acc": 100 * float(acc.mean()),
                "acc_std": 100 * float(acc.std()),
                "bwt": 100 * float(bwt.mean()),
                "bwt_std": 100 * float(bwt.std()),
                "gap_closed": gap.value,
                "gap_low": gap.low,
                "gap_high": gap.high,
                "n_nearest": int((n_nearest > 0).sum()),
                "missing": int(np.isnan(acc).sum()),
                "runs": len(acc),
            }
        )
    return pd.DataFrame(lines).set_index("label")
