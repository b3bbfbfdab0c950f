"""Scheduling policies: what to replay next, from the validation accuracies so far.

    from rslib.policies import Policy

    policy = Policy.load("heur-gd:0.96")  # or "ets", or the file of a trained policy
    counts = policy.propose(history, memory_size=100)  # samples per old task

A rule is one function `rule(val, rng, parameter) -> weights`, where `val[s, i]` is the validation
accuracy of task i+1 after learning task s+1 (a square array over the k tasks seen, NaN above the
diagonal) and the k weights are turned into counts by `schedule.counts`: normalised, rounded, capped at
what the pools hold. All zeros means no replay. `@register("name")` is all a new rule needs: it then runs
as "name" or "name:parameter" in every notebook, table and grid. The paper's rules are in `heuristics`;
a trained network is a `learned.LearnedPolicy`, made by `dqn` or `a2c`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rslib import schedule
from rslib.errors import BadValue
from rslib.registry import Registry

History = Sequence[Sequence[float]] | np.ndarray
Weights = Sequence[Any] | np.ndarray  # one per task seen
RuleFunction = Callable[[np.ndarray, np.random.Generator, float | None], Weights]


class Policy:
    """Maps validation accuracies so far to samples per old task. `Policy.load` makes one.

    name: as the user wrote it, such as "heur-gd:0.96" or the path of a file.
    label: as printed in tables, such as "Heur-GD".
    """

    name: str
    label: str

    def propose(
        self,
        history: History,
        memory_size: int,
        available: Sequence[int] | None = None,
        rng: np.random.Generator | None = None,
    ) -> schedule.Composition:
        """Samples per task seen, for the memory of the next task.

        history: one row per task learned so far; row t holds the validation accuracies of the tasks
            1..t after learning task t.
        memory_size: M, how many samples may be replayed.
        available: the most samples that each task can give.
        rng: where a rule draws; others ignore it. Without one, "random" gives the same draw again.
        """
        raise NotImplementedError

    def draws(self, seed: int, k: int) -> np.random.Generator | None:
        """Random numbers for the decision with k tasks seen; None where nothing is drawn."""
        return None

    @staticmethod
    def load(policy: str | Path | Policy) -> Policy:
        """A rule by name ("ets", "heur-gd:0.96", ...) or the file of a trained policy."""
        if isinstance(policy, Policy):
            return policy
        name = str(policy).partition(":")[0]
        if isinstance(policy, str) and name in POLICIES:
            return _named(policy)
        if os.path.isfile(policy):  # Path's raises if the name is too long
            from rslib.policies.learned import LearnedPolicy  # here: rules need no torch

            return LearnedPolicy.from_file(policy)
        raise BadValue(
            f"unknown policy {str(policy)[:80]!r}: neither a file nor one of the rules "
            + ", ".join(sorted(POLICIES))
        )


@dataclass(frozen=True)
class Rule(Policy):
    """A registered rule with its parameter (tau for the heuristics, the draw for Random)."""

    name: str
    label: str
    rule: RuleFunction
    parameter: float | None = None

    def draws(self, seed: int, k: int) -> np.random.Generator:
        """ "random" is the draw "random:0"; every draw has random numbers of its own."""
        from rslib.seeding import rng  # here: proposing needs no torch

        return rng(seed, self.name.partition(":")[0], repr(self.parameter), k)

    def propose(self, history, memory_size, available=None, rng=None):
        val = matrix(history)
        generator = rng if rng is not None else self.draws(0, len(val))
        weights = self.rule(val, generator, self.parameter)
        if len(weights) != len(val):
            raise BadValue(f"policy {self.name!r} gave {len(weights)} weights for {len(val)} tasks")
        return schedule.counts(list(weights), memory_size, available)

    def __repr__(self) -> str:
        return f"Policy.load({self.name!r})"


@dataclass(frozen=True)
class _Registered:
    label: str
    rule: RuleFunction
    needs: str | None  # what the parameter means, None where the rule takes none
    default: float | None


POLICIES = Registry("policy")


def register(
    name: str, label: str | None = None, needs: str | None = None, default: float | None = None
):
    """Make a rule available by name.

    needs: what its parameter means, if "name:0.9" shall hand it one. default: makes it optional.
    """

    if ":" in name:
        raise BadValue(f"{name!r}: a colon stands between a policy's name and its parameter")

    def add(rule: RuleFunction) -> RuleFunction:
        POLICIES[name] = _Registered(label or name, rule, needs, default)
        return rule

    return add


def _named(policy: str) -> Rule:
    """The rule "name" or "name:parameter", or an error that says what its parameter is."""
    name, _, text = policy.partition(":")
    entry = POLICIES[name]
    if not text:
        if entry.needs and entry.default is None:
            raise BadValue(f"policy {name!r} needs {entry.needs}: for example '{name}:0.95'")
        default = None if entry.default is None else float(entry.default)
        return Rule(name, entry.label, entry.rule, default)
    if not entry.needs:
        raise BadValue(
            f"policy {name!r} takes no parameter, got {text!r}. A rule of your own takes one if it is "
            'registered with needs="what it means"'
        )
    try:
        parameter = float(text)
    except ValueError:
        parameter = math.nan
    if not math.isfinite(parameter):  # "nan" would silently never replay
        raise BadValue(f"policy {policy!r}: {text!r} is not a number ({entry.needs})")
    if entry.needs == "tau" and not 0 <= parameter <= 1:  # 96 for 0.96 would mean equal shares
        raise BadValue(f"policy {policy!r}: tau is a fraction from 0 to 1")
    return Rule(policy, entry.label, entry.rule, parameter)


def matrix(history: History) -> np.ndarray:
    """The history as a square matrix over the tasks seen, NaN above the diagonal, checked.

    Takes the rows as an engineer keeps them (row t has t accuracies) and the tree's matrices (a
    NaN row 0 for the untrained network, NaN or later columns for tasks not seen).
    """
    if isinstance(history, str | Path):
        raise BadValue("propose takes accuracies; a CSV is read by `python -m rslib propose`")
    if to_numpy := getattr(history, "to_numpy", None):  # a DataFrame iterates over column names
        history = to_numpy(dtype=float)
    rows = [np.asarray(row, dtype=float).ravel() for row in history]
    if isinstance(history, np.ndarray) and rows and np.isnan(rows[0]).all():
        rows = rows[1:]
    if not rows:
        raise BadValue("the history is empty: propose needs the accuracies after task 1")
    val = np.full((len(rows), len(rows)), np.nan)
    for t, row in enumerate(rows, start=1):
        if len(row) < t or not (np.isnan(row[t:]).all() or isinstance(history, np.ndarray)):
            raise BadValue(
                f"row {t} of the history has {len(row)} accuracies; after task {t} there are {t}"
            )
        if not ((row[:t] >= 0) & (row[:t] <= 1)).all():  # NaN fails both
            raise BadValue(
                f"row {t} of the history must hold accuracies as fractions of 1, got {row[:t]}"
            )
        val[t - 1, :t] = row[:t]
    return val


from rslib.policies import heuristics  # noqa: E402, F401  registers the paper's rules

POLICIES.built_in = frozenset(POLICIES)
