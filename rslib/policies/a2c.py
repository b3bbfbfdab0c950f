"""A2C for replay scheduling (the paper's Section 3.3, Appendix A.2 and D.1).

What it sees      s: validation accuracies of the T-1 tasks that can be replayed, 0 before a task is
                  learned.
What it does      a: an action of `schedule.actions`, the memory's proportions at the next task, drawn
                  from p(a | s) over the actions allowed.
What it gains     r: the mean validation accuracy of the tasks learned so far, the next one included.
What it minimises mean over the steps of
                  -A log p(a | s)  +  value_coef (R - V(s))^2  -  entropy_coef H(p(. | s)),
                  A = R - V(s), held constant in the first term; R is GAE's return (see `gae`)

p and V are separate networks of 2 x 64 tanh units with orthogonal initialisation. Advantages are not
normalised. `loss` is the formula in torch; `ActorCritic.backward` is its gradient written out (a test
holds both against each other): the networks are so small that the number of calls is what costs, and
so the rollout's forward pass is kept for the gradient.

One *update* (the paper's "training episode") takes `n_steps` steps in all E environments at once and
then one step of RMSProp, with the gradient's norm clipped at 0.5; episodes of T-1 steps go on across
updates. All environments are complete trees of one shape: a state is a row number, and all environments
allow the same first n_actions(k) actions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from tqdm.auto import tqdm

from rslib import schedule
from rslib.complete_tree import CompleteTree, stack
from rslib.policies.learned import LearnedPolicy, one_thread, training_config
from rslib.seeding import torch_rng

FORBIDDEN = -1e8  # the logit of a masked action: finite, so that 0 * log(0) is 0 in the entropy


@dataclass(frozen=True)
class A2CArgs:
    """The paper's settings for Split MNIST; `presets.A2C` has those of the other experiments."""

    lr: float = 1e-4  # of RMSProp
    alpha: float = 0.99  # of RMSProp: memory of the squared gradient
    eps: float = 1e-5  # of RMSProp
    max_norm: float = 0.5  # gradient norm clip, over both networks together
    gae_lambda: float = 0.95  # 0: advantages look one step ahead; 1: to the end of the episode
    gamma: float = 1.0  # discount factor
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.01  # weight of the entropy bonus
    n_steps: int = 5  # steps in every environment per update
    updates: int = 100_000  # the paper's "training episodes"
    hidden: int = 64  # units in each hidden layer of both networks
    log_every: int = 1_000  # updates between points of the learning curve


def loss(
    logits: torch.Tensor,
    values: torch.Tensor,
    actions: torch.Tensor,
    returns: torch.Tensor,
    args: A2CArgs,
) -> torch.Tensor:
    """Policy loss + value_coef * value loss - entropy_coef * entropy, each a mean over n steps.

    logits (n, actions), those of masked actions FORBIDDEN; values, actions and returns (n, 1).
    Training takes the gradient from `ActorCritic.backward`; this is what it is the gradient of.
    """
    advantages = returns - values
    log_p = torch.log_softmax(logits, dim=1)
    policy_loss = -(advantages.detach() * log_p.gather(1, actions)).mean()
    value_loss = advantages.square().mean()
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
    return policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy


class MLP:
    """Two hidden tanh layers over flat storage, with the activations of one rollout kept."""

    def __init__(self, weights: list[torch.Tensor], gradients: list[torch.Tensor], n_rows: int):
        self.weights, self.gradients = weights, gradients
        hidden, n_out = weights[4].shape
        self.x = torch.zeros(n_rows, len(weights[0]))
        self.h1, self.h2, self.d1, self.d2 = (torch.zeros(n_rows, hidden) for _ in range(4))
        self.out = torch.zeros(n_rows, n_out)

    def forward(self, rows: slice) -> torch.Tensor:
        """Fill `out[rows]` from `x[rows]`."""
        w1, b1, w2, b2, w3, b3 = self.weights
        h1 = torch.addmm(b1, self.x[rows], w1, out=self.h1[rows]).tanh_()
        h2 = torch.addmm(b2, h1, w2, out=self.h2[rows]).tanh_()
        return torch.addmm(b3, h2, w3, out=self.out[rows])

    def backward(self, error: torch.Tensor) -> None:
        """Write the gradient by the weights into `gradients`, given the gradient `error` of the loss
        by the first len(error) rows of `out`."""
        n = len(error)
        (_, _, w2, _, w3, _), (g1, gb1, g2, gb2, g3, gb3) = self.weights, self.gradients
        x, h1, h2, d1, d2 = (a[:n] for a in (self.x, self.h1, self.h2, self.d1, self.d2))
        torch.mm(h2.T, error, out=g3)
        torch.sum(error, 0, out=gb3)
        torch.mm(error, w3.T, out=d2)
        _tanh_backward(d2, h2)
        torch.mm(h1.T, d2, out=g2)
        torch.sum(d2, 0, out=gb2)
        torch.mm(d2, w2.T, out=d1)
        _tanh_backward(d1, h1)
        torch.mm(x.T, d1, out=g1)
        torch.sum(d1, 0, out=gb1)


def _tanh_backward(gradient: torch.Tensor, output: torch.Tensor) -> None:
    torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)


class ActorCritic:
    """Both networks and their optimizer; all parameters in one flat tensor, so that clipping and
    RMSProp are a few calls."""

    def __init__(
        self, n_inputs: int, n_actions: int, n_envs: int, args: A2CArgs, generator: torch.Generator
    ):
        self.args, h = args, args.hidden
        self.n_samples = args.n_steps * n_envs
        shapes = [
            shape
            for n_out in (n_actions, 1)
            for shape in ((n_inputs, h), (h,), (h, h), (h,), (h, n_out), (n_out,))
        ]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.flat, self.gradient, self.square = (torch.zeros(sum(sizes)) for _ in range(3))
        weights, gradients = (
            [v.view(s) for v, s in zip(flat.split(sizes), shapes, strict=True)]
            for flat in (self.flat, self.gradient)
        )
        # Gains as in the implementation the paper names (Kostrikov 2018).
        for i, gain in zip(range(0, 12, 2), [sqrt(2)] * 2 + [0.01] + [sqrt(2)] * 3, strict=True):
            torch.nn.init.orthogonal_(weights[i], gain, generator=generator)
        self.policy = MLP(weights[:6], gradients[:6], self.n_samples)
        # The value network also sees the states after the last step: the bootstrap.
        self.value = MLP(weights[6:], gradients[6:], self.n_samples + n_envs)

    def backward(
        self, log_p: torch.Tensor, actions: torch.Tensor, advantages: torch.Tensor
    ) -> None:
        """Write the gradient of `loss` at these weights into `gradient`.

        log_p: (n, actions) log-probabilities; actions, advantages A = R - V: (n, 1).
        """
        n = len(log_p)
        p = log_p.exp()
        plogp = p * log_p
        entropy = -plogp.sum(1, keepdim=True)
        # By the logits z:  d(-A log p(a))/dz = A (p - 1[a]);  d(-H)/dz = p (log p + H)
        error = plogp.addcmul_(p, entropy).mul_(self.args.entropy_coef)
        error.addcmul_(p, advantages).scatter_add_(1, actions, -advantages).div_(n)
        self.policy.backward(error)
        # By the value:  d(R - V)^2/dV = -2 A
        self.value.backward(advantages * (-2 * self.args.value_coef / n))

    def step(self) -> None:
        """Take one step of RMSProp down the clipped gradient."""
        norm = float(torch.linalg.vector_norm(self.gradient))
        if norm > self.args.max_norm:
            self.gradient.mul_(self.args.max_norm / norm)
        self.square.mul_(self.args.alpha)
        self.square.addcmul_(self.gradient, self.gradient, value=1 - self.args.alpha)
        self.flat.addcdiv_(
            self.gradient, self.square.sqrt().add_(self.args.eps), value=-self.args.lr
        )


def gae(
    rewards: torch.Tensor, values: torch.Tensor, ends: Sequence[bool], gamma: float, lam: float
) -> torch.Tensor:
    """Compute GAE's advantages (S, E) from rewards (S, E) and values (S+1, E):

        A_s = delta_s + gamma * lam * A_(s+1),   delta_s = r_s + gamma * V(s+1) - V(s)

    Where `ends[s]`, step s is the last of its episodes, and what follows it counts as 0.
    """
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for s in range(len(rewards) - 1, -1, -1):
        delta = rewards[s] - values[s]
        if not ends[s]:
            delta.add_(values[s + 1], alpha=gamma).add_(following, alpha=gamma * lam)
        advantages[s] = following = delta
    return advantages


def sample(logits: torch.Tensor, n_allowed: int, gumbel: torch.Tensor) -> torch.Tensor:
    """Draw one action per row from the softmax over the allowed actions (Gumbel's trick)."""
    return (logits[:, :n_allowed] + gumbel[:, :n_allowed]).argmax(dim=1)


@one_thread
def train(
    trees: Sequence[CompleteTree], args: A2CArgs, seed: int = 0, progress: bool = True
) -> tuple[LearnedPolicy, list[dict]]:
    """Train a policy on complete trees; returns it as it is after the last update, and its
    learning curve. The same seed gives the same bits."""
    arrays = stack(trees)
    shape, n_envs, n_steps = arrays.shape, len(trees), args.n_steps
    n_inner, n_actions = shape.n_inner, shape.child.shape[1]
    # Environment e's state in row r is number e * n_inner + r; rewards likewise over all rows.
    states = torch.from_numpy(arrays.state).reshape(n_envs * n_inner, -1)
    rewards = torch.from_numpy(arrays.reward).reshape(-1)
    child = torch.from_numpy(shape.child).reshape(-1)
    state_base = torch.arange(n_envs) * n_inner
    reward_base = torch.arange(n_envs) * shape.first[-1]
    root = torch.zeros(n_envs, dtype=torch.long)
    n_allowed = [schedule.n_actions(k) for k in range(1, shape.n_tasks)]

    generator = torch_rng(seed, "a2c")
    agent = ActorCritic(states.shape[1], n_actions, n_envs, args, generator)
    actions = torch.zeros(n_steps, n_envs, dtype=torch.long)
    gained = torch.zeros(n_steps, n_envs)
    gumbel = torch.empty(n_steps, n_envs, n_actions)
    steps = [slice(s * n_envs, (s + 1) * n_envs) for s in range(n_steps + 1)]
    row, k = root, 1
    curve, started, finals = [], time.perf_counter(), []
    name = f"A2C seed {seed}"
    for update in tqdm(range(1, args.updates + 1), desc=name, disable=not progress):
        gumbel.exponential_(generator=generator).log_().neg_()
        ends = []
        for s in range(n_steps):
            x = agent.value.x[steps[s]]
            torch.index_select(states, 0, state_base + row, out=x)
            agent.policy.x[steps[s]] = x
            logits = agent.policy.forward(steps[s])
            logits[:, n_allowed[k - 1] :] = FORBIDDEN
            action = actions[s] = sample(logits, n_allowed[k - 1], gumbel[s])
            row = child[row * n_actions + action]
            gained[s] = rewards[reward_base + row]
            k += 1
            ends.append(k == shape.n_tasks)
            if ends[-1]:
                finals.append(gained[s].mean())
                row, k = root, 1
        torch.index_select(states, 0, state_base + row, out=agent.value.x[steps[n_steps]])
        values = agent.value.forward(slice(None)).view(n_steps + 1, n_envs)
        advantages = gae(gained, values, ends, args.gamma, args.gae_lambda).view(-1, 1)
        log_p = torch.log_softmax(agent.policy.out, dim=1)
        agent.backward(log_p, actions.view(-1, 1), advantages)
        agent.step()
        if update % args.log_every == 0 or update == args.updates:
            curve.append(
                {
                    "updates": update,
                    "final": float(torch.stack(finals).mean()) if finals else float("nan"),
                    "entropy": float(-(log_p.exp() * log_p).sum(1).mean()),
                    "value_error": float(advantages.square().mean()),
                    "seconds": time.perf_counter() - started,
                }
            )
            finals = []
    config = training_config("a2c", seed, args, trees)
    weights = [w.clone() for w in agent.policy.weights]
    return LearnedPolicy(weights, "tanh", config, "A2C", name), curve
