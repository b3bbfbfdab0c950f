"""Scheduling policies: rules that map the validation accuracies so far to shares of the memory.

A rule is one function `rule(val, rng, parameter) -> weights`, where `val[s, i]` is the validation
accuracy of task i+1 after learning task s+1 (a square array over the k tasks seen, NaN above the
diagonal) and the k weights are normalised, turned into counts and capped at what the pools hold by
`schedule.counts`. All zeros means no replay. `@register("name")` is all a new policy needs: it then
runs as "name" or "name:parameter" in every notebook, table and grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rslib import schedule
from rslib.seeding import rng as derived_rng

Weights = Sequence[Any] | np.ndarray  # one per task seen
Rule = Callable[[np.ndarray, np.random.Generator, float | None], Weights]


@dataclass(frozen=True)
class Policy:
    """A named rule with its parameter (tau for the heuristics, the draw for Random)."""

    name: str  # as written by the user: "heur-gd:0.96"
    label: str  # as printed in tables: "Heur-GD"
    rule: Rule
    parameter: float | None = None

    def draws(self, seed: int, k: int) -> np.random.Generator:
        """Random numbers for the decision with k tasks seen ("random" is the draw "random:0")."""
        return derived_rng(seed, self.name.partition(":")[0], repr(self.parameter), k)

    def propose(
        self,
        val: np.ndarray,
        memory_size: int,
        available: Sequence[int] | None = None,
        rng: np.random.Generator | None = None,
    ) -> schedule.Composition:
        """Samples per seen task for the next task's memory."""
        val = _square(val)
        generator = rng if rng is not None else self.draws(0, len(val))
        weights = self.rule(val, generator, self.parameter)
        if len(weights) != len(val):
            raise ValueError(
                f"policy {self.name!r} gave {len(weights)} weights for {len(val)} tasks"
            )
        return schedule.counts(list(weights), memory_size, available)


@dataclass(frozen=True)
class _Registered:
    label: str
    rule: Rule
    needs: str | None  # what the parameter means, None where the rule takes none
    default: float | None


POLICIES: dict[str, _Registered] = {}


def register(
    name: str, label: str | None = None, needs: str | None = None, default: float | None = None
):
    """Make a rule available by name; `needs` names its parameter, `default` makes it optional."""

    def add(rule: Rule) -> Rule:
        POLICIES[name] = _Registered(label or name, rule, needs, default)
        return rule

    return add


def get(policy: str | Policy) -> Policy:
    """The policy called "name" or "name:parameter", or an error that lists what there is."""
    if isinstance(policy, Policy):
        return policy
    name, _, text = str(policy).partition(":")
    if name not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; there are {', '.join(sorted(POLICIES))}")
    entry = POLICIES[name]
    if not text:
        if entry.needs and entry.default is None:
            raise ValueError(f"policy {name!r} needs {entry.needs}: for example '{name}:0.95'")
        default = None if entry.default is None else float(entry.default)
        return Policy(name, entry.label, entry.rule, default)
    if not entry.needs:
        raise ValueError(f"policy {name!r} takes no parameter, got {text!r}")
    try:
        parameter = float(text)
    except ValueError:
        parameter = math.nan
    if not math.isfinite(parameter):  # "nan" would silently never replay
        raise ValueError(f"policy {policy!r}: {text!r} is not a number ({entry.needs})")
    return Policy(str(policy), entry.label, entry.rule, parameter)


@register("none", "Fine-tuning")
def no_replay(val, rng, parameter):
    return [0] * len(val)


@register("ets", "ETS")
def equal_task_shares(val, rng, parameter):
    return [1] * len(val)


@register("random", "Random", needs="the number of the draw", default=0)
def random_action(val, rng, parameter):
    return schedule.sample_action(len(val), rng)


@register("heur-gd", "Heur-GD", needs="tau")
def global_drop(val, rng, tau):
    """Replay what has fallen below tau times its best so far, now included."""
    return val[-1] < tau * np.nanmax(val, axis=0)


@register("heur-ld", "Heur-LD", needs="tau")
def local_drop(val, rng, tau):
    """Replay what has fallen below tau times its previous value; a new task has none."""
    previous = val[-2] if len(val) > 1 else np.full(1, np.nan)
    return val[-1] < tau * previous  # a comparison with NaN is False


@register("heur-at", "Heur-AT", needs="tau")
def accuracy_threshold(val, rng, tau):
    """Replay what is below tau."""
    return val[-1] < tau


def _with_ets(rule: Rule) -> Rule:
    """One share for every past task and one more for those the heuristic selects."""
    return lambda val, rng, tau: 1 + np.asarray(rule(val, rng, tau), dtype=int)


for _name in ("gd", "ld", "at"):
    _heuristic = POLICIES[f"heur-{_name}"]
    register(f"ets+heur-{_name}", f"ETS+{_heuristic.label}", needs="tau")(
        _with_ets(_heuristic.rule)
    )


def _square(val: np.ndarray) -> np.ndarray:
    """The accuracies over the k tasks seen, whatever came with them (later tasks, a NaN row 0)."""
    val = np.asarray(val, dtype=float)
    if val.ndim != 2 or not len(val):
        raise ValueError(f"validation accuracies must be a matrix (tasks, tasks), got {val.shape}")
    if np.isnan(val[0]).all():
        val = val[1:]  # the tree's matrices start with the untrained network
    k = len(val)
    if k == 0 or val.shape[1] < k:
        raise ValueError(f"{k} tasks learned, but accuracies of only {val.shape[1]} tasks")
    if np.isnan(val[-1, :k]).any():
        raise ValueError("the last row must hold the accuracy of every task seen so far")
    # What was measured before a task was learned is no accuracy to fall from: NaN, whoever asks.
    return np.where(np.tri(k, dtype=bool), val[:, :k], np.nan)
