"""Experience replay (ER), and with it what a replay method is: how one batch updates the network.

ER's loss is one mean cross-entropy over the current samples and the memory, every sample on its own
head. Other methods override `loss` (another loss on the same batch) or `step` (another update),
`begin` and `end` (around a task), and name what they keep in `state`: the schedule tree snapshots it,
so that a cached walk stays exact. A method never chooses what is replayed.

On the paper's MLP, ER takes `mlp_step`: the same step with its gradients written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rslib.errors import BadValue

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory

# Private names of torch: the backward passes that autograd calls, and the kernel of Adam(fused=True).
_relu_backward: Any = torch.ops.aten.threshold_backward.default
_log_softmax_backward: Any = torch._log_softmax_backward_data  # pyright: ignore
_fused_adam: Any = getattr(torch, "_fused_adam_", None)


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
            raise BadValue(f"optimizer must be adam or sgd, got {optimizer!r}")
        self.optimizer, self.lr = optimizer, lr
        self.memory: Memory | None = None

    def begin(self, learner: Learner, memory: Memory) -> None:
        """Prepare for a task, before its first batch."""
        self.memory = memory

    def step(self, learner: Learner, batch: Batch) -> float:
        """Update the network once; returns the loss, whose NaN ends the training."""
        if type(self).loss is Method.loss and learner.environment.network == "mlp":
            return mlp_step(learner, batch)
        learner.optimizer.zero_grad()
        loss = self.loss(learner, batch)
        loss.backward()
        learner.optimizer.step()
        return loss.item()

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        """Mean cross-entropy over the batch, each sample on its own head."""
        return F.cross_entropy(learner.logits(batch.x, batch.head), batch.y)

    def pool(self, learner: Learner) -> Tensor | None:
        """Pick the candidates of the task just learned; None leaves that to the selection."""
        return None

    def end(self, learner: Learner) -> None:
        """Finish a task, after its last batch and when its pool has been made."""

    def state(self) -> dict[str, Any]:
        """Return the tensors and plain values that the next task needs, for `load`."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take a state back. A snapshot may share it: replace its tensors, do not edit them."""


@torch.no_grad()
def mlp_step(learner: Learner, batch: Batch) -> float:
    """Take ER's step on the MLP: `Method.loss` and its gradients written out; returns the loss.

    The MLP is small enough that recording a graph and walking it back costs as much as its two
    smaller matrix products. Written out, the same operations in the same order give the same bits
    (a test holds both against each other), in less time; gradients go into buffers that live on.
    """
    net = learner.net
    parameters = learner.optimizer.param_groups[0]["params"]  # net.parameters(), but at hand
    w1, b1, w2, b2, w3, b3 = parameters
    for p in parameters:
        if p.grad is None:
            p.grad = torch.empty_like(p)
    dw1, db1, dw2, db2, dw3, db3 = (p.grad for p in parameters)

    x = batch.x.flatten(1)
    h1 = F.linear(x, w1, b1).relu_()
    h2 = F.linear(h1, w2, b2).relu_()
    outputs = F.linear(h2, w3, b3)
    columns = net.own_columns(batch.head).narrow(1, 0, learner.n_answers)
    log_p = torch.log_softmax(outputs.gather(1, columns), 1)
    loss = F.nll_loss(log_p, batch.y)

    d_log_p = torch.zeros_like(log_p).scatter_(1, batch.y.unsqueeze(1), -1 / len(x))
    d_logits = _log_softmax_backward(d_log_p, log_p, 1, log_p.dtype)
    d_outputs = torch.zeros_like(outputs).scatter_(1, columns, d_logits)
    d2 = _relu_backward(torch.mm(d_outputs, w3), h2, 0)
    d1 = _relu_backward(torch.mm(d2, w2), h1, 0)
    for delta, below, dw, db in (d_outputs, h2, dw3, db3), (d2, h1, dw2, db2), (d1, x, dw1, db1):
        torch.mm(delta.t(), below, out=dw)
        torch.sum(delta, 0, out=db)
    optimizer_step(learner.optimizer)
    return loss.item()


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """Call `optimizer.step()`; of a fused Adam only the arithmetic, on the optimizer's own tensors.

    What `step` does around it takes as long as the arithmetic itself on a network of 80,000 weights.
    The first step, which makes the state, is the optimizer's, and so is every step of SGD.
    """
    group = optimizer.param_groups[0]
    if _fused_adam is None or not group["fused"] or not optimizer.state:
        optimizer.step()
        return
    states = [optimizer.state[p] for p in group["params"]]
    counters = states[0]["step"]._base
    if counters is None:  # a new or a restored state: make its counters views, to count in one call
        counters = torch.stack([state["step"] for state in states])
        for state, counter in zip(states, counters, strict=True):
            state["step"] = counter
    counters.add_(1)
    _fused_adam(
        group["params"],
        [p.grad for p in group["params"]],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],  # of amsgrad
        [state["step"] for state in states],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class Joint(Method):
    """Offline training on all tasks seen so far: the upper bound of the tables."""

    joint = True
