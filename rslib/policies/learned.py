"""A trained policy: a small network from accuracies to actions, its file, and how it decides.

`dqn.train` and `a2c.train` make one. Its input is the validation accuracy of the T-1 tasks that can be
replayed (0 for tasks not seen), its output one score per action; the best action that exists with the
tasks seen so far is taken. So it knows a number of tasks, and refuses to plan beyond it.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from rslib import files, schedule
from rslib.complete_tree import CompleteTree
from rslib.errors import BadValue, UserError
from rslib.policies import Policy, matrix

P = ParamSpec("P")
R = TypeVar("R")


class TooManyTasks(UserError, ValueError):
    """More tasks were seen than the policy was trained for."""


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
                f"{self.n_tasks - 1} tasks seen, and {k} are; use Policy.load('ets') or a heuristic "
                "such as Policy.load('heur-gd:0.96') instead"
            )
        state = torch.zeros(1, self.n_tasks - 1)
        state[0, :k] = torch.from_numpy(val[-1])
        action = int(self.greedy(state, k)[0])
        return schedule.counts(schedule.action_shares(k, action), memory_size, available)

    def save(self, path: str | Path) -> Path:
        """Tensors and plain values only, so that loading never runs code from the file."""
        content = {
            "weights": self.weights,
            "activation": self.activation,
            "label": self.label,
            "config": json.dumps(self.config, sort_keys=True),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        return files.write_atomically(Path(path), files.seal("policy", buffer.getvalue()))

    @classmethod
    def from_file(cls, path: str | Path) -> LearnedPolicy:
        """Load a policy; raises BadValue, which names the file, after any change of a bit."""
        try:
            content = Path(path).read_bytes()
            if not content.startswith(b"PK"):
                content = files.unseal("policy", content)
            elif damaged := zipfile.ZipFile(io.BytesIO(content)).testzip():
                # From before policies had a seal: a zip file, whose checksums torch does not compare.
                raise ValueError(f"{damaged} does not have its checksum")
            found = torch.load(io.BytesIO(content), weights_only=True)
            weights, activation = found["weights"], found["activation"]
            config, label = json.loads(found["config"]), str(found["label"])
            policy = cls(weights, activation, config, label, str(path))
            if not policy.scores(torch.zeros(1, policy.n_tasks - 1)).isfinite().all():
                raise ValueError("its weights are not finite")
        except Exception as error:  # torch raises a different kind for every kind of damage
            raise BadValue(f"{path} is not a policy saved by rslib: {error}") from None
        return policy

    def __repr__(self) -> str:
        return f"LearnedPolicy({self.label}, {self.n_tasks} tasks, {self.name})"


def one_thread(train: Callable[P, R]) -> Callable[P, R]:
    """Run a training on one thread and without autograd; more threads would change the bits."""

    @functools.wraps(train)
    @torch.no_grad()
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # The optimizer's averages of parameters that are rarely used fade through denormal numbers,
        # which take a hundred times longer. Left on: torch cannot say what it was before.
        torch.set_flush_denormal(True)
        try:
            return train(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return wrapper


def training_config(
    agent: str, seed: int, args: Any, trees: Sequence[CompleteTree]
) -> dict[str, Any]:
    """What a policy's file says of its training."""
    return {
        "agent": agent,
        "seed": seed,
        "arguments": asdict(args),
        "environments": [[tree.dataset, tree.seed] for tree in trees],
        "memory_size": trees[0].memory_size,
        "torch": torch.__version__,
    }
