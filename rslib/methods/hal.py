"""Hindsight anchor learning (Chaudhry et al., 2021): ER that may not move what it says at anchors.

An anchor is a made-up input, one per class of a past task, where forgetting would show most: starting
from the class's mean image, gradient steps raise the loss that a copy of the network, fine-tuned on
the memory, has there above the network's own, and keep the features near the class's mean embedding.
A training step then looks ahead: it makes a temporary plain step on the batch (theta') and descends

    loss(theta) + strength * mean over anchors |f_theta(anchor) - f_theta'(anchor)|^2

through the temporary step as well (it is a function of theta; held constant, the term would pull the
network towards the forgetting). Everything temporary is functional: neither weights nor batch-norm
statistics are touched, so there is nothing to put back. Anchors are looked at in eval mode.

Under a schedule: the anchors of task t are made at the start of task t+1 from that task's memory, and
the term covers the tasks that are in the memory (in Class-IL their base samples count). With an empty
memory nothing can be forgotten in hindsight: the anchors follow the mean embedding alone, and a step
is a plain one. What the publication leaves open is as in its authors' program: fine-tuning is 50
steps, the squared changes are averaged over the anchors, every class has its own mean embedding.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from rslib.errors import BadValue
from rslib.methods.er import Batch, Method
from rslib.seeding import permutation, torch_rng

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory

FINE_TUNING_STEPS = 50
Weights = dict[str, Tensor]


class HAL(Method):
    """The paper's lambda, gamma, beta and k, in words."""

    def __init__(
        self,
        strength: float = 0.1,  # of the anchor term
        embedding: float = 0.1,  # how strongly an anchor is held near its mean embedding
        decay: float = 0.5,  # of the running mean embedding, per batch
        anchor_steps: int = 100,  # gradient steps that make an anchor
        optimizer: str = "sgd",
        lr: float | None = 0.1,
    ):
        super().__init__(optimizer, lr)
        for name, value in (("strength", strength), ("embedding", embedding)):
            if not value >= 0:
                raise BadValue(f"{name} must not be negative, got {value!r}")
        if not 0 <= decay < 1:
            raise BadValue(f"decay must be at least 0 and below 1, got {decay!r}")
        if not isinstance(anchor_steps, int) or anchor_steps < 0:
            raise BadValue(f"anchor_steps must be a whole number from 0, got {anchor_steps!r}")
        self.strength, self.embedding = strength, embedding
        self.decay, self.anchor_steps = decay, anchor_steps
        self.anchors: list[Tensor] = []  # per past task: (classes, ...) inputs
        # All empty until the first task begins:
        nothing = torch.zeros(0, device="cpu")
        self.embeddings = nothing  # (classes, n_features) of the task being or last learned
        self.images = nothing  # (classes, ...) mean inputs of the task last learned
        self.labels = nothing  # (classes,) of the current task
        self.guarded = self.heads = nothing  # the anchors of this task's term, their heads

    # -- around a task -----------------------------------------------------------------------------

    def begin(self, learner: Learner, memory: Memory) -> None:
        super().begin(learner, memory)
        tasks = learner.scenario.tasks
        if learner.n_learned > 1:
            self.anchors = [*self.anchors, self._learn_anchors(learner, memory)]
        replayed = memory.task.unique().tolist()
        if replayed:
            self.guarded = torch.cat([self.anchors[i] for i in replayed])
            heads = [tasks[i].head for i in replayed for _ in self.anchors[i]]
            self.heads = torch.tensor(heads, device=learner.device)
        self.labels = tasks[learner.n_learned - 1].train.y.unique().to(learner.device)
        n_features = learner.net.output.in_features
        self.embeddings = torch.zeros(len(self.labels), n_features, device=learner.device)

    @torch.no_grad()
    def end(self, learner: Learner) -> None:
        train = learner.scenario.tasks[learner.n_learned - 1].train
        means = [train.inputs(train.y == label).mean(dim=0) for label in self.labels.cpu()]
        self.images = torch.stack(means).to(learner.device)

    def _learn_anchors(self, learner: Learner, memory: Memory) -> Tensor:
        """Anchors for the task before the current one, whose network this still is."""
        net, task = learner.net, learner.scenario.tasks[learner.n_learned - 2]
        labels = task.train.y.unique().to(learner.device)
        head = torch.full_like(labels, task.head)
        net.eval()
        tuned = self._fine_tuned(learner, memory)
        anchors = self.images
        for _ in range(self.anchor_steps):
            anchors = anchors.detach().requires_grad_()
            features = net.features(anchors)
            here = F.cross_entropy(learner.own_logits(net.output(features), head), labels)
            outputs = functional_call(net, tuned, (anchors,))
            there = F.cross_entropy(learner.own_logits(outputs, head), labels)
            distance = (features - self.embeddings).square().sum(dim=1).mean()
            gain = there - here - self.embedding * distance
            # Times the classes: a mean's gradient would shrink each anchor's step by their number.
            (slope,) = torch.autograd.grad(gain * len(labels), anchors)
            anchors = anchors + _rate(learner) * slope
        net.train()
        return anchors.detach()

    def _fine_tuned(self, learner: Learner, memory: Memory) -> Weights:
        """The weights after plain steps on the memory: what it would do to the last task."""
        weights = {name: p.detach().clone() for name, p in _trained(learner.net).items()}
        if not len(memory):
            return weights
        seed, size = learner.environment.seed, learner.environment.batch_size or 1
        order = permutation(len(memory), torch_rng(seed, "hindsight", learner.n_learned))
        for rows in islice(cycle(order.split(size)), FINE_TUNING_STEPS):
            weights = {name: w.requires_grad_() for name, w in weights.items()}
            outputs = functional_call(learner.net, weights, (memory.x[rows],))
            logits = learner.own_logits(outputs, memory.head[rows])
            weights = _stepped(weights, F.cross_entropy(logits, memory.y[rows]), _rate(learner))
            weights = {name: w.detach() for name, w in weights.items()}
        return weights

    # -- a step ------------------------------------------------------------------------------------

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        net, m = learner.net, batch.m
        features = net.features(batch.x)
        loss = F.cross_entropy(learner.own_logits(net.output(features), batch.head), batch.y)
        self._average(features[m:].detach(), batch.y[m:])
        if not m:
            return loss
        ahead = _stepped(_trained(net), loss, _rate(learner), create_graph=True)
        net.eval()
        now = learner.logits(self.guarded, self.heads)
        then = learner.own_logits(functional_call(net, ahead, (self.guarded,)), self.heads)
        net.train()
        return loss + self.strength * (now - then).square().sum(dim=1).mean()

    def _average(self, features: Tensor, y: Tensor) -> None:
        """Move the running mean embedding of every class in the batch."""
        member = (self.labels[:, None] == y).to(features.dtype)  # (classes, b)
        count = member.sum(dim=1, keepdim=True)
        means = member @ features / count.clamp(min=1)
        moved = self.decay * self.embeddings + (1 - self.decay) * means
        self.embeddings = torch.where(count > 0, moved, self.embeddings)

    # -- what the next task needs ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"anchors": self.anchors, "embeddings": self.embeddings, "images": self.images}

    def load(self, state: dict[str, Any]) -> None:
        self.anchors = list(state["anchors"])
        self.embeddings, self.images = state["embeddings"], state["images"]


def _trained(net: nn.Module) -> Weights:
    """The weights by name, but for those that the user's own network keeps as they are."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def _rate(learner: Learner) -> float:
    return learner.optimizer.param_groups[0]["lr"]


def _stepped(weights: Weights, loss: Tensor, lr: float, create_graph: bool = False) -> Weights:
    """The weights after one plain gradient step; with `create_graph` as a function of themselves."""
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
    return {name: w - lr * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
