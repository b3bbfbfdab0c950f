"""What to replay now: the call an engineer makes once per retraining.

    from rslib.propose import Policy

    policy = Policy.load("heur-gd:0.96")  # or "ets", or the file of a trained policy
    counts = policy.propose(history, memory_size=100)  # samples per old task

`history` has one row per retraining so far: row t holds the validation accuracies of the tasks
1..t after learning task t. Named rules are those of `rslib.policies` and know no number of tasks;
a `LearnedPolicy` is what `rslib.dqn` and `rslib.a2c` train, for a number of tasks that it knows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rslib import policies, schedule

INSTEAD = "use Policy.load('ets') or a heuristic such as Policy.load('heur-gd:0.96') instead"

History = Sequence[Sequence[float]] | np.ndarray


class TooManyTasks(ValueError):
    """A learned policy was asked about more tasks than it was trained for."""


class Policy:
    """Maps validation accuracies so far to samples per old task. `Policy.load` makes one."""

    name: str  # as loaded
    label: str  # as printed in tables

    def propose(
        self,
        history: History,
        memory_size: int,
        available: Sequence[int] | None = None,
        rng: np.random.Generator | None = None,
    ) -> schedule.Composition:
        """Samples per task seen, for the memory of the next task.

        `available` caps the counts at what each old task can give; `rng` is for "random" only.
        """
        raise NotImplementedError

    @staticmethod
    def load(policy: str | Path) -> Policy:
        """A named rule ("ets", "heur-gd:0.96", ...) or the file of a trained policy."""
        name = str(policy).partition(":")[0]
        if isinstance(policy, str) and name in policies.POLICIES:
            rule = policies.get(policy)
            tau = rule.parameter if policies.POLICIES[name].needs == "tau" else None
            if tau is not None and not 0 <= tau <= 1:  # 96 for 0.96 would mean equal shares
                raise ValueError(f"{policy!r}: tau is a fraction from 0 to 1")
            return NamedPolicy(rule)
        if Path(policy).is_file():
            return LearnedPolicy.from_file(policy)
        raise ValueError(
            f"{str(policy)!r} is neither a file nor a rule; the rules are "
            + ", ".join(sorted(policies.POLICIES))
        )


class NamedPolicy(Policy):
    """A rule of `rslib.policies`, for any number of tasks."""

    def __init__(self, rule: policies.Policy):
        self.rule, self.name, self.label = rule, rule.name, rule.label

    def propose(self, history, memory_size, available=None, rng=None):
        return self.rule.propose(matrix(history), memory_size, available, rng)

    def __repr__(self) -> str:
        return f"Policy.load({self.name!r})"


@dataclass(eq=False)
class LearnedPolicy(Policy):
    """A trained network: accuracies in, one score per action out, the best allowed one is taken."""

    weights: list[torch.Tensor]  # W (in, out) and b (out,) of each layer in turn
    activation: str  # "relu" | "tanh"
    config: dict[str, Any] = field(default_factory=dict)  # JSON-able: how it was trained
    label: str = "Learned"
    name: str = "a learned policy"

    @property
    def n_tasks(self) -> int:
        """Input units are the tasks that can be replayed, so one fewer than the tasks."""
        return len(self.weights[0]) + 1

    @torch.no_grad()
    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """(n, T-1) states -> (n, actions): Q-values (DQN) or logits (A2C)."""
        squash = {"relu": torch.relu, "tanh": torch.tanh}[self.activation]
        hidden = states
        for layer in range(0, len(self.weights), 2):
            hidden = torch.addmm(self.weights[layer + 1], hidden, self.weights[layer])
            if layer < len(self.weights) - 2:
                hidden = squash(hidden)
        return hidden

    def greedy(self, states: torch.Tensor, n_seen: int) -> torch.Tensor:
        """The best action in each state, all with this many tasks seen. The allowed actions come
        first in every state's row, so the mask is a slice; ties go to the lowest index."""
        return self.scores(states)[:, : schedule.n_actions(n_seen)].argmax(dim=1)

    def propose(self, history, memory_size, available=None, rng=None):
        val = matrix(history)
        k = len(val)
        if k >= self.n_tasks:
            raise TooManyTasks(
                f"{self.name} was trained for {self.n_tasks} tasks, so it can plan with at most "
                f"{self.n_tasks - 1} tasks seen, and {k} are; {INSTEAD}"
            )
        state = torch.zeros(1, self.n_tasks - 1)
        state[0, :k] = torch.from_numpy(val[-1])
        action = int(self.greedy(state, k)[0])
        return schedule.counts(schedule.action_shares(k, action), memory_size, available)

    def save(self, path: str | Path) -> Path:
        """Tensors and plain values only, so that loading never runs code from the file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "weights": self.weights,
            "activation": self.activation,
            "label": self.label,
            "config": json.dumps(self.config, sort_keys=True),
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save(content, temporary)
        os.replace(temporary, path)
        return path

    @classmethod
    def from_file(cls, path: str | Path) -> LearnedPolicy:
        try:
            content = torch.load(path, weights_only=True)
            weights, activation = content["weights"], content["activation"]
            config, label = json.loads(content["config"]), content["label"]
        except Exception as error:  # torch.load raises a different kind for every kind of damage
            raise ValueError(f"{path} is not a policy saved by rslib: {error}") from None
        return cls(weights, activation, config, label, str(path))

    def __repr__(self) -> str:
        return f"LearnedPolicy({self.label}, {self.n_tasks} tasks, {self.name})"


def matrix(history: History) -> np.ndarray:
    """The history as a square matrix over the tasks seen, NaN above the diagonal, checked.

    Takes the rows as an engineer keeps them (row t has t accuracies) and the tree's matrices (a
    NaN row 0 for the untrained network, NaN or later columns for tasks not seen).
    """
    if to_numpy := getattr(history, "to_numpy", None):  # a DataFrame iterates over column names
        history = to_numpy(dtype=float)
    rows = [np.asarray(row, dtype=float).ravel() for row in history]
    if isinstance(history, np.ndarray) and rows and np.isnan(rows[0]).all():
        rows = rows[1:]
    if not rows:
        raise ValueError("the history is empty: propose needs the accuracies after task 1")
    val = np.full((len(rows), len(rows)), np.nan)
    for t, row in enumerate(rows, start=1):
        if len(row) < t or not (np.isnan(row[t:]).all() or isinstance(history, np.ndarray)):
            raise ValueError(
                f"row {t} of the history has {len(row)} accuracies; after task {t} there are {t}"
            )
        if not ((row[:t] >= 0) & (row[:t] <= 1)).all():  # NaN fails both
            raise ValueError(
                f"row {t} of the history must hold accuracies as fractions of 1, got {row[:t]}"
            )
        val[t - 1, :t] = row[:t]
    return val
