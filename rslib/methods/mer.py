"""Meta-experience replay (Riemer et al., 2019), in four steps per batch instead of one per sample.

A quarter of the current samples together with the whole memory is what MER calls a batch. Each is one
step of the optimizer, of which the fraction beta is kept (Reptile within the batch); when all four
have been taken in turn, the fraction gamma of the whole way is kept (Reptile across batches). With
beta = gamma = 1 it is ER in smaller steps, in which the memory weighs four times as much.

Published MER steps on single samples, which costs a hundred times ER; one step on everything, as the
paper's released code takes, would be ER itself. Nothing is kept from one task to the next but the
optimizer's state: Reptile's old weights live for one batch only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rslib.errors import BadValue
from rslib.methods.er import Batch, Method

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory

CHUNKS = 4


class MER(Method):
    """gamma: Reptile across the chunks of a batch; beta: within one."""

    def __init__(
        self,
        gamma: float = 1.0,
        beta: float = 1.0,
        optimizer: str = "adam",
        lr: float | None = None,
    ):
        super().__init__(optimizer, lr)
        for name, value in (("gamma", gamma), ("beta", beta)):
            if not 0 < value <= 1:
                raise BadValue(f"{name} must be above 0 and at most 1, got {value!r}")
        self.gamma, self.beta = gamma, beta
        self.batch_start: list[Tensor] = []  # the weights before the batch
        self.chunk_start: list[Tensor] = []  # the weights before the chunk

    def begin(self, learner: Learner, memory: Memory) -> None:
        super().begin(learner, memory)
        # Room for old weights, taken once: fresh megabytes for every chunk would cost more time
        # than the copying.
        self.batch_start, self.chunk_start = (
            [torch.empty_like(p, requires_grad=False) for p in learner.net.parameters()]
            for _ in range(2)
        )

    def step(self, learner: Learner, batch: Batch) -> float:
        weights = [p.data for p in learner.net.parameters()]
        _remember(self.gamma, weights, self.batch_start)
        losses = []
        for chunk in _chunks(batch):
            _remember(self.beta, weights, self.chunk_start)
            losses.append(super().step(learner, chunk))
            _keep(self.beta, weights, self.chunk_start)
        _keep(self.gamma, weights, self.batch_start)
        return sum(losses) / len(losses)


def _chunks(batch: Batch) -> Iterator[Batch]:
    """The current samples in four parts, each with the whole memory."""
    m, n = batch.m, len(batch.current)
    # Never a chunk of one sample: batch norm has no statistics of one.
    every = torch.arange(m + n, device=batch.x.device)
    for part in every[:n].tensor_split(max(1, min(CHUNKS, n // 2))):
        rows = torch.cat([every[:m], m + part])
        x, y, head = batch.x[rows], batch.y[rows], batch.head[rows]
        yield Batch(x, y, head, m, batch.chosen, batch.current[part])


def _remember(fraction: float, weights: list[Tensor], place: list[Tensor]) -> None:
    """Save the weights, unless the fraction is 1 (they are never restored)."""
    if fraction != 1:
        for now, then in zip(weights, place, strict=True):
            then.copy_(now)


def _keep(fraction: float, weights: list[Tensor], before: list[Tensor]) -> None:
    """Reptile: move the weights from where they were only this fraction of the way."""
    if fraction != 1:
        for now, then in zip(weights, before, strict=True):
            torch.lerp(then, now, fraction, out=now)
