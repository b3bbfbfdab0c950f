"""One training step of the MLP under experience replay, its gradients written out.

The paper's MLP is small enough that recording a graph and walking it back costs as much as its two
smaller matrix products. Written out, the same operations in the same order give the same bits (a test
holds both against each other), in a tenth less time; gradients go into buffers that live on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.methods.er import Batch

_aten = torch.ops.aten
_relu_backward: Callable[..., Tensor] = _aten.threshold_backward.default
_log_softmax_backward: Callable[..., Tensor] = _aten._log_softmax_backward_data.default


@torch.no_grad()
def step(learner: Learner, batch: Batch) -> float:
    """Mean cross-entropy over the batch, each sample on its own head; one update; the loss."""
    net = learner.net
    parameters = learner.optimizer.param_groups[0]["params"]  # net.parameters(), but at hand
    w1, b1, w2, b2, w3, b3 = (p.detach() for p in parameters)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.empty_like(p)
    dw1, db1, dw2, db2, dw3, db3 = (p.grad for p in parameters)

    x = batch.x.flatten(1)
    h1 = torch.addmm(b1, x, w1.t()).relu_()
    h2 = torch.addmm(b2, h1, w2.t()).relu_()
    outputs = torch.addmm(b3, h2, w3.t())
    columns = net.own_columns(batch.head)[:, : learner.n_answers]
    log_p = F.log_softmax(outputs.gather(1, columns), dim=1)
    loss = F.nll_loss(log_p, batch.y)

    d_log_p = torch.zeros_like(log_p).scatter_(1, batch.y[:, None], -1 / len(x))
    d_logits = _log_softmax_backward(d_log_p, log_p, 1, log_p.dtype)
    d_outputs = torch.zeros_like(outputs).scatter_(1, columns, d_logits)
    d2 = _relu_backward(torch.mm(d_outputs, w3), h2, 0)
    d1 = _relu_backward(torch.mm(d2, w2), h1, 0)
    for delta, below, dw, db in (d_outputs, h2, dw3, db3), (d2, h1, dw2, db2), (d1, x, dw1, db1):
        torch.mm(delta.t(), below, out=dw)
        torch.sum(delta, 0, out=db)
    learner.optimizer.step()
    return loss.item()
