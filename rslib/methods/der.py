"""Dark experience replay (Buzzega et al., 2020): replay what the network once answered.

DER: cross-entropy on the current samples plus alpha times the mean squared error between today's
logits of the replayed samples and those stored when their task ended. DER++ adds beta times the
cross-entropy on the replayed labels. Nothing else is stored: one row of logits per pool position.

In Class-IL the head grows, so logits stored after an earlier task are shorter than today's. The error
is the mean over the stored entries only: about classes that came later the old network said nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rslib.errors import BadValue
from rslib.methods.er import Batch, Method

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory


class DER(Method):
    """alpha weighs the stored logits."""

    beta = 0.0  # the weight of the replayed labels, which only DER++ has

    def __init__(self, alpha: float = 0.2, optimizer: str = "adam", lr: float | None = None):
        super().__init__(optimizer, lr)
        if not alpha >= 0:
            raise BadValue(f"alpha must not be negative, got {alpha!r}")
        self.alpha = alpha
        self.stored: list[Tensor] = []  # per task: (pool, classes then) logits by pool position
        # (M, classes now) for the memory's rows, made when a task begins
        self.target = self.known = torch.zeros(0, 0, device="cpu")

    def begin(self, learner: Learner, memory: Memory) -> None:
        super().begin(learner, memory)
        widest = learner.scenario.head_size
        if learner.scenario.kind == "class":
            widest = learner.n_learned * learner.scenario.classes_per_task
        self.target = torch.zeros(len(memory), widest, device=learner.device)
        self.known = torch.zeros_like(self.target)  # 1 where a logit was stored
        for row, (i, place) in enumerate(zip(memory.task, memory.position, strict=True)):
            logits = self.stored[int(i)][place]
            self.target[row, : len(logits)] = logits
            self.known[row, : len(logits)] = 1

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        m = batch.m
        logits = learner.logits(batch.x, batch.head)  # one pass: batch norm sees what ER's sees
        loss = F.cross_entropy(logits[m:], batch.y[m:])
        if m:
            rows = slice(None) if batch.chosen is None else batch.chosen
            known = self.known[rows]
            error = (logits[:m] - self.target[rows]) * known
            loss = loss + self.alpha * error.square().sum() / known.sum()
            if self.beta:
                loss = loss + self.beta * F.cross_entropy(logits[:m], batch.y[:m])
        return loss

    @torch.no_grad()
    def end(self, learner: Learner) -> None:
        learner.net.eval()  # the answers of the finished network, its running statistics untouched
        task = learner.scenario.tasks[learner.n_learned - 1]
        pool = learner.pools[-1]
        head = torch.full_like(pool, task.head).to(learner.device)
        inputs = task.train.inputs(pool).to(learner.device)
        self.stored = [*self.stored, learner.logits(inputs, head)]

    def state(self) -> dict[str, Any]:
        return {"stored": self.stored}

    def load(self, state: dict[str, Any]) -> None:
        self.stored = list(state["stored"])


class DERpp(DER):
    """DER with beta times the cross-entropy of the replayed labels."""

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 1.0,
        optimizer: str = "adam",
        lr: float | None = None,
    ):
        super().__init__(alpha, optimizer, lr)
        if not beta >= 0:
            raise BadValue(f"beta must not be negative, got {beta!r}")
        self.beta = beta
