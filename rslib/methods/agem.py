"""A-GEM (Chaudhry et al., 2019): the memory does not teach, it vetoes.

The gradient is the current batch's alone. Where it would raise the loss on the memory (a negative dot
product with the memory's own gradient), the part that does so is taken out before the optimizer sees
it. Without a memory it is a plain step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rslib.methods.er import Batch, Method

if TYPE_CHECKING:
    from rslib.learner import Learner


def project(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Take out of the gradient, in place, what points against the reference."""
    dot = sum(torch.dot(g.flatten(), r.flatten()) for g, r in zip(gradient, reference, strict=True))
    if dot < 0:
        # Only the reference's direction counts, and a memory learned by heart has a gradient whose
        # square is zero in single precision: divided by it, the step would be NaN.
        largest = max(float(r.abs().max()) for r in reference)
        unit = [r / largest for r in reference]
        dot = sum(torch.dot(g.flatten(), u.flatten()) for g, u in zip(gradient, unit, strict=True))
        length = sum(torch.dot(u.flatten(), u.flatten()) for u in unit)
        for g, u in zip(gradient, unit, strict=True):
            g.sub_(u * (dot / length))


class AGEM(Method):
    """Current samples, corrected by the memory."""

    def step(self, learner: Learner, batch: Batch) -> float:
        m, parameters = batch.m, [p for p in learner.net.parameters() if p.requires_grad]
        if len(batch.current) == 1 and learner.environment.network != "mlp":
            return 0.0  # alone it has no variance for batch norm
        reference = []
        if m:
            # Apart from the current samples also in batch norm: with its running statistics, which
            # a handful of samples must not move (and one sample alone has none of its own).
            learner.net.eval()
            replayed = F.cross_entropy(learner.logits(batch.x[:m], batch.head[:m]), batch.y[:m])
            reference = list(torch.autograd.grad(replayed, parameters))
            learner.net.train()
        learner.optimizer.zero_grad()
        loss = F.cross_entropy(learner.logits(batch.x[m:], batch.head[m:]), batch.y[m:])
        loss.backward()
        if m:
            project([p.grad for p in parameters if p.grad is not None], reference)
        learner.optimizer.step()
        return loss.item()
