"""DQN for replay scheduling (the paper's Section 3.3, Appendix A.2 and D.1).

What it sees      s: validation accuracies of the T-1 tasks that can be replayed, 0 before a task is
                  learned.
What it does      a: an action of `schedule.actions`, the memory's proportions at the next task. It takes
                  argmax_a Q(s, a), or with probability epsilon a random action.
What it gains     r: the mean validation accuracy of the tasks learned so far, the next one included.
What it minimises mean over a batch of  huber(Q(s, a) - y),
                  y = r + gamma * max_a' Q_old(s', a')   (y = r after the last task)

s' is the state that follows, a' an action allowed there, Q a network of 2 x 512 ReLU units and Q_old its
copy of at most 500 updates ago. It is neither double nor duelling DQN. `loss` is the formula in torch;
`QNetwork.backward` is its gradient written out, with which the three 512 x 512 products and Adam take
nearly all of the time (a test holds both against each other).

An *episode* is one pass of all E environments through their T tasks. At each of its T-1 steps all
environments act at once, E transitions are stored and then E updates are made (10k episodes on 30
environments of 5 tasks are 1.2 million updates). All environments are complete trees of one shape: a
state is a row number, all environments allow the same first n_actions(k) actions, and max_a' Q_old is
computed for all states whenever Q_old is copied, instead of for every sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from rslib import schedule
from rslib.complete_tree import CompleteTree, stack
from rslib.policies.learned import LearnedPolicy, one_thread, training_config
from rslib.seeding import torch_rng


@dataclass(frozen=True)
class DQNArgs:
    """The paper's settings for Split MNIST; `presets.DQN` has those of the other experiments."""

    lr: float = 1e-4  # of Adam
    buffer_size: int = 10_000  # transitions kept, the oldest are overwritten
    target_period: int = 500  # updates between copies to the target network
    batch_size: int = 32  # transitions per update; the first update waits until these are stored
    gamma: float = 1.0  # discount factor
    epsilon_start: float = 1.0  # share of random actions in the first episode
    epsilon_final: float = 0.02  # and after annealing
    anneal_episodes: int = 2_500  # episodes over which epsilon falls, in a straight line
    episodes: int = 10_000  # passes of all environments
    hidden: int = 512  # units in each of the two hidden layers
    max_norm: float = 1.0  # gradient norm clip
    log_every: int = 100  # episodes between points of the learning curve


def q_values(weights: Sequence[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """Q(s, a) of every action: (n, T-1) -> (n, actions)."""
    w1, b1, w2, b2, w3, b3 = weights
    h1 = torch.addmm(b1, states, w1).relu()
    h2 = torch.addmm(b2, h1, w2).relu()
    return torch.addmm(b3, h2, w3.T)


def loss(
    weights: Sequence[torch.Tensor],
    states: torch.Tensor,
    actions: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Mean of huber(Q(s, a) - y) over a batch: states (n, T-1), actions (n,), targets y (n,).

    Training takes the gradient from `QNetwork.backward`; this is what it is the gradient of.
    """
    q = q_values(weights, states)
    taken = q.gather(1, actions.unsqueeze(1)).squeeze(1)
    return F.huber_loss(taken, targets)


class QNetwork:
    """The weights of Q with a hand-written update. All parameters are in one flat tensor, so that
    clipping and Adam are one call each. The last layer is kept as (actions, hidden): an update
    reads and writes only the rows of the actions taken."""

    def __init__(self, n_inputs: int, n_actions: int, args: DQNArgs, generator: torch.Generator):
        h = args.hidden
        shapes = [(n_inputs, h), (h,), (h, h), (h,), (n_actions, h), (n_actions,)]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        flat, self.gradient = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
        self.weights, self.gradients = (
            [v.view(shape) for v, shape in zip(x.split(sizes), shapes, strict=True)]
            for x in (flat, self.gradient)
        )
        for tensor, n_in in zip(self.weights, (n_inputs, n_inputs, h, h, h, h), strict=True):
            tensor.uniform_(-(n_in**-0.5), n_in**-0.5, generator=generator)  # nn.Linear's default
        self.parameter = torch.nn.Parameter(flat)
        self.parameter.grad = self.gradient
        self.adam = torch.optim.Adam([self.parameter], lr=args.lr, fused=True)
        self.max_norm = args.max_norm
        self.h1, self.h2, self.d1, self.d2 = (torch.empty(args.batch_size, h) for _ in range(4))

    def backward(self, states: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> None:
        """Write the gradient of `loss` at these weights into `gradients`."""
        w1, b1, w2, b2, w3, b3 = self.weights
        g1, gb1, g2, gb2, g3, gb3 = self.gradients
        h1 = torch.addmm(b1, states, w1, out=self.h1).relu_()
        h2 = torch.addmm(b2, h1, w2, out=self.h2).relu_()
        rows = w3.index_select(0, actions)  # (n, hidden)
        q = torch.mul(h2, rows, out=self.d2).sum(1).add_(b3.index_select(0, actions))
        # Huber's derivative is the error itself, held to [-1, 1].
        slope = q.sub_(targets).clamp_(-1, 1).div_(len(states))
        gb3.zero_().index_add_(0, actions, slope)
        slope = slope.unsqueeze(1)
        g3.zero_().index_add_(0, actions, torch.mul(h2, slope, out=self.d1))
        torch.mul(rows, slope, out=self.d2)
        _relu_backward(self.d2, h2)
        torch.mm(h1.T, self.d2, out=g2)
        torch.sum(self.d2, 0, out=gb2)
        torch.mm(self.d2, w2.T, out=self.d1)
        _relu_backward(self.d1, h1)
        torch.mm(states.T, self.d1, out=g1)
        torch.sum(self.d1, 0, out=gb1)

    def update(self, states: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> None:
        """Take one step of Adam down the clipped gradient of `loss`."""
        self.backward(states, actions, targets)
        norm = float(torch.linalg.vector_norm(self.gradient))
        if norm > self.max_norm:
            self.gradient.mul_(self.max_norm / norm)
        self.adam.step()


def _relu_backward(gradient: torch.Tensor, output: torch.Tensor) -> None:
    """Set the gradient to 0 where the ReLU's output is 0, in place; five times faster than
    multiplying with `output > 0`."""
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def choose(
    q: torch.Tensor, n_allowed: int, epsilon: float, generator: torch.Generator
) -> torch.Tensor:
    """Choose epsilon-greedily among the allowed actions, for all environments: (E, actions) -> (E,)."""
    greedy = q[:, :n_allowed].argmax(dim=1)
    explore = torch.rand(len(q), generator=generator) < epsilon
    return torch.where(explore, torch.randint(n_allowed, (len(q),), generator=generator), greedy)


def best_values(q: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Take max_a Q(s, a) over the allowed actions of each state: (states, actions) -> (states,)."""
    return q.masked_fill(~allowed, -torch.inf).amax(dim=1)


@one_thread
def train(
    trees: Sequence[CompleteTree], args: DQNArgs, seed: int = 0, progress: bool = True
) -> tuple[LearnedPolicy, list[dict]]:
    """Train a policy on complete trees; returns it as it is after the last episode, and its
    learning curve. The same seed gives the same bits."""
    arrays = stack(trees)
    shape, n_envs = arrays.shape, len(trees)
    n_rows, n_inner, n_actions = shape.first[-1], shape.n_inner, shape.child.shape[1]
    # Environment e's state in row r is number e * n_inner + r.
    states = torch.from_numpy(arrays.state).reshape(n_envs * n_inner, -1)
    rewards = torch.from_numpy(arrays.reward).reshape(-1)  # by e * n_rows + row arrived at
    child = torch.from_numpy(shape.child)
    allowed = (child >= 0).repeat(n_envs, 1)
    environment = torch.arange(n_envs)

    generator = torch_rng(seed, "dqn")
    network = QNetwork(states.shape[1], n_actions, args, generator)
    buffer = torch.zeros(args.buffer_size, 3, dtype=torch.long)  # state, action, row arrived at
    stored = updates = 0
    # max_a' Q_old(s', a') by e * n_rows + row; after the last task (the leaves) it stays 0.
    target_values = torch.zeros(n_envs * n_rows)
    curve, started = [], time.perf_counter()
    name = f"DQN seed {seed}"
    for episode in tqdm(range(args.episodes), desc=name, disable=not progress):
        annealed = min(1.0, episode / max(1, args.anneal_episodes))
        epsilon = args.epsilon_start + annealed * (args.epsilon_final - args.epsilon_start)
        row, total, reward = torch.zeros(n_envs, dtype=torch.long), 0.0, 0.0
        for k in range(1, shape.n_tasks):
            state = environment * n_inner + row
            q = q_values(network.weights, states[state])
            action = choose(q, schedule.n_actions(k), epsilon, generator)
            row = child[row, action]
            arrived = environment * n_rows + row
            slots = (stored + environment) % args.buffer_size
            buffer[slots] = torch.stack([state, action, arrived], dim=1)
            stored += n_envs
            reward = float(rewards[arrived].mean())
            total += reward
            if stored < args.batch_size:
                continue
            filled = min(stored, args.buffer_size)
            drawn = torch.randint(filled, (n_envs, args.batch_size), generator=generator)
            batches = buffer[drawn]  # (E, batch, 3)
            batch_states, taken, ends = states[batches[:, :, 0]], batches[:, :, 1], batches[:, :, 2]
            for i in range(n_envs):
                if updates % args.target_period == 0:  # Q_old becomes Q
                    values = best_values(q_values(network.weights, states), allowed)
                    target_values.view(n_envs, n_rows)[:, :n_inner] = values.view(n_envs, n_inner)
                targets = rewards[ends[i]] + args.gamma * target_values[ends[i]]  # (batch,)
                network.update(batch_states[i], taken[i], targets)
                updates += 1
        if (episode + 1) % args.log_every == 0 or episode + 1 == args.episodes:
            curve.append(
                {
                    "episode": episode + 1,
                    "updates": updates,
                    "return": total,  # sum of rewards, mean over environments, while exploring
                    "final": reward,  # mean validation accuracy at the end
                    "epsilon": epsilon,
                    "seconds": time.perf_counter() - started,
                }
            )
    config = training_config("dqn", seed, args, trees)
    *below, w3, b3 = network.weights
    weights = [w.clone() for w in (*below, w3.T.contiguous(), b3)]
    return LearnedPolicy(weights, "relu", config, "DQN", name), curve
