"""Experience replay (ER), and with it what a replay method is: how one batch updates the network.

ER's loss is one mean cross-entropy over the current samples and the memory, every sample on its own
head. Other methods override `loss` (another loss on the same batch) or `step` (another update),
`begin` and `end` (around a task), and name what they keep in `state`: the schedule tree snapshots it,
so that a cached walk stays exact. A method never chooses what is replayed.

On the paper's MLP, ER takes `MLPStep` on the CPU: the same step with its gradients written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rslib.errors import BadValue

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory

# Private names of torch: the operations of the functions above them, without what these do around them
# (a tenth of a step on digits), the backward passes that autograd calls, the kernel of Adam(fused=True).
_addmm_relu: Any = torch._addmm_activation  # pyright: ignore
_log_softmax: Any = torch._log_softmax  # pyright: ignore
_nll_loss: Any = torch._C._nn.nll_loss  # pyright: ignore
_relu_backward: Any = torch.ops.aten.threshold_backward.grad_input._op
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
    optimizer: str = "adam"  # what holds until __init__ says otherwise, or is left out by your own
    lr: float | None = None  # None: the environment's
    memory: Memory | None = None
    _mlp_step: MLPStep | None = None

    def __init__(self, optimizer: str = "adam", lr: float | None = None):
        if optimizer not in ("adam", "sgd"):
            raise BadValue(f"optimizer must be adam or sgd, got {optimizer!r}")
        if lr is not None and not 0 < lr < float("inf"):
            raise BadValue(f"lr must be a positive number, got {lr!r}")
        self.optimizer, self.lr = optimizer, lr

    def begin(self, learner: Learner, memory: Memory) -> None:
        """Prepare for a task, before its first batch."""
        self.memory = memory

    def step(self, learner: Learner, batch: Batch) -> float:
        """Update the network once; returns the loss, whose NaN ends the training."""
        plain = type(self).loss is Method.loss and learner.environment.network == "mlp"
        if plain and learner.device.type == "cpu":
            if self._mlp_step is None or not self._mlp_step.is_of(learner):
                self._mlp_step = MLPStep(learner)
            return self._mlp_step(batch)
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


class MLPStep:
    """ER's step on the MLP in one task: `Method.loss` and its gradients written out.

    A step on digits multiplies for 0.2 ms. Recording a graph, walking it back, allocating, making views
    and looking up what never changes would cost as much again. The same operations in the same order
    give the same bits (a test holds both against each other). Their results go into lasting buffers.
    """

    def __init__(self, learner: Learner):
        self.optimizer, self.n_learned = learner.optimizer, learner.n_learned
        self.state = self.optimizer.state  # another one after a snapshot has been restored
        self.parameters = list(learner.net.parameters())
        self.weights = [p.detach() for p in self.parameters]
        self.places = [p.data_ptr() for p in self.parameters]
        self.w1_t, self.w2_t, self.w3_t = (w.t() for w in self.weights[::2])
        self.gradients = [torch.empty_like(weights) for weights in self.weights]
        self.columns = learner.net.columns[:, : learner.n_answers].contiguous()  # (heads, answers)
        self.update: Callable[[], None] = self._optimizer_step
        self.buffers: dict[int, _Buffers] = {}  # by the number of rows

    def is_of(self, learner: Learner) -> bool:
        """Whether the learner's task, weights and moments still are those of this step."""
        same_task = learner.optimizer.state is self.state and learner.n_learned == self.n_learned
        return same_task and self.places == [p.data_ptr() for p in self.parameters]

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> float:
        """Update the network once; returns the loss."""
        _, b1, w2, b2, w3, b3 = self.weights
        dw1, db1, dw2, db2, dw3, db3 = self.gradients
        x, y = batch.x.flatten(1), batch.y
        n = len(x)
        if n not in self.buffers:
            self.buffers[n] = _Buffers(n, self)
        at = self.buffers[n]

        _addmm_relu(b1, x, self.w1_t, out=at.h1)
        _addmm_relu(b2, at.h1, self.w2_t, out=at.h2)
        torch.addmm(b3, at.h2, self.w3_t, out=at.outputs)
        torch.index_select(self.columns, 0, batch.head, out=at.columns)
        torch.gather(at.outputs, 1, at.columns, out=at.logits)
        _log_softmax(at.logits, 1, False, out=at.log_p)
        loss = _nll_loss(at.log_p, y, None, 1, -100)  # 1: the mean

        torch.index_select(at.d_loss, 0, y, out=at.d_log_p)
        _log_softmax_backward(at.d_log_p, at.log_p, 1, at.log_p.dtype, out=at.d_logits)
        at.d_outputs.zero_().scatter_(1, at.columns, at.d_logits)
        _relu_backward(torch.mm(at.d_outputs, w3, out=at.d2), at.h2, 0, grad_input=at.d2)
        _relu_backward(torch.mm(at.d2, w2, out=at.d1), at.h1, 0, grad_input=at.d1)
        torch.mm(at.d_outputs_t, at.h2, out=dw3)
        torch.mm(at.d2_t, at.h1, out=dw2)
        torch.mm(at.d1_t, x, out=dw1)
        torch.sum(at.d_outputs, 0, out=db3)
        torch.sum(at.d2, 0, out=db2)
        torch.sum(at.d1, 0, out=db1)
        self.update()
        return loss.item()

    def _optimizer_step(self) -> None:
        """Take the optimizer's own step: the first one, and every step without a fused kernel."""
        with torch.inference_mode(False), torch.no_grad():  # what it makes outlives inference mode
            for p, gradient in zip(self.parameters, self.gradients, strict=True):
                p.grad = gradient
            self.optimizer.step()
            self.update = fused_adam(self.optimizer) or self._optimizer_step


class _Buffers:
    """Where the results of `MLPStep` go in a batch of n rows; `_t` are transposed views."""

    def __init__(self, n: int, step: MLPStep):
        w1, _, w2, _, w3, _ = step.weights
        n_answers = step.columns.shape[1]
        self.h1, self.d1 = w1.new_empty(n, len(w1)), w1.new_empty(n, len(w1))
        self.h2, self.d2 = w2.new_empty(n, len(w2)), w2.new_empty(n, len(w2))
        self.outputs, self.d_outputs = w3.new_empty(n, len(w3)), w3.new_empty(n, len(w3))
        self.d1_t, self.d2_t, self.d_outputs_t = self.d1.t(), self.d2.t(), self.d_outputs.t()
        self.columns = step.columns.new_empty(n, n_answers)  # of each row's own head
        self.logits, self.log_p = w3.new_empty(n, n_answers), w3.new_empty(n, n_answers)
        self.d_log_p, self.d_logits = w3.new_empty(n, n_answers), w3.new_empty(n, n_answers)
        self.d_loss = torch.eye(n_answers, device=w3.device).mul_(-1 / n)  # row y: of the label y


def fused_adam(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """Prepare the steps of a fused Adam after its first: the arithmetic, on the optimizer's own tensors.

    What `optimizer.step()` does around it takes as long on a network of 80,000 weights. Returns None
    for an optimizer that is none, and where torch has no such kernel.
    """
    group = optimizer.param_groups[0]
    if _fused_adam is None or not group["fused"]:
        return None
    states = [optimizer.state[p] for p in group["params"]]
    counters = torch.stack([state["step"] for state in states])
    for state, counter in zip(states, counters, strict=True):
        state["step"] = counter  # a view, to count all in one call
    kernel = partial(
        _fused_adam,
        group["params"],
        [p.grad for p in group["params"]],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],  # of amsgrad
        [state["step"] for state in states],
        amsgrad=False,
        maximize=False,
    )

    def update() -> None:
        counters.add_(1)
        beta1, beta2 = group["betas"]
        decay, eps = group["weight_decay"], group["eps"]
        kernel(lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps)

    return update


class Joint(Method):
    """Offline training on all tasks seen so far: the upper bound of the tables."""

    joint = True
