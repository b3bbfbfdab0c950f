"""What a replay method is: how one batch updates the network, and what it keeps for later.

`Method` itself is experience replay (ER): one mean cross-entropy over the current samples and the
memory, every sample on its own head. Other methods override `loss` (another loss on the same batch)
or `step` (another update), `begin` and `end` (around a task), and name what they keep in `state`: the
schedule tree snapshots it, so that a cached walk stays exact. A method never chooses what is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from rslib.methods import mlp_step

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory


@dataclass
class Batch:
    """Rows 0..m-1 are replayed samples, the rest are the current task's."""

    x: Tensor  # (m + b, ...)
    y: Tensor  # (m + b,)
    head: Tensor  # (m + b,)
    m: int
    chosen: Tensor | None  # which rows of the memory these m are; None: all of it, in order
    current: Tensor  # (b,) which samples of the current training data the rest are


class Method:
    """Experience replay; the base of every method."""

    joint = False  # True: learn the union of all tasks so far instead of the current one

    def __init__(self, optimizer: str = "adam", lr: float | None = None):
        if optimizer not in ("adam", "sgd"):
            raise ValueError(f"optimizer must be adam or sgd, got {optimizer!r}")
        self.optimizer, self.lr = optimizer, lr
        self.memory: Memory | None = None

    def begin(self, learner: Learner, memory: Memory) -> None:
        """Before the first batch of a task."""
        self.memory = memory

    def step(self, learner: Learner, batch: Batch) -> float:
        """One update of the network; returns the loss, whose NaN ends the training."""
        if type(self).loss is Method.loss and learner.environment.network == "mlp":
            return mlp_step.step(learner, batch)
        learner.optimizer.zero_grad()
        loss = self.loss(learner, batch)
        loss.backward()
        learner.optimizer.step()
        return loss.item()

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        return F.cross_entropy(learner.logits(batch.x, batch.head), batch.y)

    def pool(self, learner: Learner) -> Tensor | None:
        """The candidates of the task just learned, where the method picks them; None: it does not."""
        return None

    def end(self, learner: Learner) -> None:
        """After the last batch of a task, when its pool has been made."""

    def state(self) -> dict[str, Any]:
        """Tensors (and plain values) the next task needs; what `load` gives back."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take a state back. It may be shared with a snapshot: replace tensors, do not edit them."""


class Joint(Method):
    """Offline training on everything seen so far: the upper bound of the tables."""

    joint = True
