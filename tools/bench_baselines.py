"""What `make bench` compares with: the same work as one writes it in plain PyTorch.

Eager modules, autograd, optimizers with their default implementation; nothing is tuned, for better or
worse. Every function returns a job, to be timed in turns with ours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from rslib import data, schedule
from rslib.complete_tree import CompleteTree, stack
from rslib.data.sources import torchvision_datasets
from rslib.environment import Environment
from rslib.policies.a2c import A2CArgs
from rslib.policies.dqn import DQNArgs

Batches = Iterable[tuple[Tensor, Tensor]]

# -- learning a task -------------------------------------------------------------------------------


def learning(environment: Environment, train: Batches, tests: Sequence[tuple[int, Batches]]):
    """A job that learns task 2 of a Task-IL scenario with ER on an MLP, and evaluates.

    train: the batches of one epoch. tests: a head and its batches. Returns the accuracy on each.
    """
    scenario, hidden = environment.tasks(), environment.hidden or 0
    n_heads, head_size = scenario.n_heads, scenario.head_size
    memory = scenario.tasks[0].train
    memory_x, memory_y = memory.inputs(slice(0, 10)), memory.y[:10]

    def learn_and_evaluate() -> list[float]:
        net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(memory_x[0].numel(), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_heads * head_size),
            nn.Unflatten(1, (n_heads, head_size)),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=environment.lr or 0)
        for _ in range(environment.epochs or 0):
            for x, y in train:
                outputs = net(torch.cat([memory_x, x]))
                heads = torch.cat([torch.zeros_like(memory_y), torch.ones_like(y)])
                logits = outputs[torch.arange(len(heads)), heads]
                loss = F.cross_entropy(logits, torch.cat([memory_y, y]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        accuracies = []
        with torch.no_grad():
            for head, batches in tests:
                right = [net(x)[:, head].argmax(1) == y for x, y in batches]
                accuracies.append(float(torch.cat(right).float().mean()))
        return accuracies

    return learn_and_evaluate


class Shuffled:
    """The batches of one epoch of tensors, in another order every time."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int):
        self.x, self.y, self.batch_size = x, y, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.y)).split(self.batch_size):
            yield self.x[rows], self.y[rows]


def plain_loop(environment: Environment) -> Callable[[], list[float]]:
    """Task 2 by a plain loop: the dataset is a tensor in memory, as ours is."""
    tasks = environment.tasks().tasks
    test_parts = chain(
        ((task.head, task.test) for task in tasks), ((task.head, task.val) for task in tasks[:2])
    )
    tests = [(head, list(zip(p.inputs().split(2048), p.y.split(2048)))) for head, p in test_parts]
    train = Shuffled(tasks[1].train.inputs(), tasks[1].train.y, environment.batch_size or 0)
    return learning(environment, train, tests)


def data_loader(environment: Environment, folder: Path) -> Callable[[], list[float]]:
    """Task 2 of Split MNIST by torchvision's MNIST with `ToTensor` in a `DataLoader`.

    folder: where the images are written in MNIST's own format, for torchvision to read.
    """
    dataset = data.load(environment.dataset)
    for part, x, y in (
        ("train", dataset.x_train, dataset.y_train),
        (
            "t10k",
            dataset.x_test,
            dataset.y_test,
        ),
    ):
        for kind, array in ("images-idx3", x.reshape(len(x), 28, 28)), ("labels-idx1", y):
            file = folder / "MNIST" / "raw" / f"{part}-{kind}-ubyte"
            file.parent.mkdir(parents=True, exist_ok=True)
            header = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4")
            file.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())
    datasets = torchvision_datasets()
    from torchvision.transforms import ToTensor  # after the line above, which makes it importable

    options: dict[str, Any] = dict(transform=ToTensor(), target_transform=lambda digit: digit % 2)
    images, test_images = (
        datasets.MNIST(folder, train=train, **options) for train in (True, False)
    )

    def of_task(images: Any, head: int) -> list[int]:
        return torch.nonzero(images.targets // 2 == head).flatten().tolist()

    def loader(images: Any, rows: list[int], batch_size: int, shuffle: bool = False) -> DataLoader:
        return DataLoader(Subset(images, rows), batch_size, shuffle, num_workers=0)

    tests = [(head, loader(test_images, of_task(test_images, head), 2048)) for head in range(5)]
    train = []
    for head in range(2):
        rows = of_task(images, head)
        n_train = round(0.85 * len(rows))
        tests.append((head, loader(images, rows[n_train:], 2048)))
        train = rows[:n_train]
    batches = loader(images, train, environment.batch_size or 0, shuffle=True)
    return learning(environment, batches, tests)


# -- agents ----------------------------------------------------------------------------------------


def _network(n_inputs: int, hidden: int, n_outputs: int, unit: type[nn.Module]) -> nn.Sequential:
    layers = nn.Linear(n_inputs, hidden), unit(), nn.Linear(hidden, hidden), unit()
    return nn.Sequential(*layers, nn.Linear(hidden, n_outputs))


class Environments:
    """Complete trees as an agent meets them: a state and a mask, an action, a reward."""

    def __init__(self, trees: Sequence[CompleteTree]):
        arrays = stack(trees)
        self.states, self.rewards = torch.tensor(arrays.state), torch.tensor(arrays.reward)
        self.child = torch.tensor(arrays.shape.child)
        self.n_inputs, self.n_actions = self.states.shape[2], self.child.shape[1]
        self.n_tasks, self.each = arrays.shape.n_tasks, torch.arange(len(trees))
        self.reset()

    def reset(self) -> None:
        self.row, self.k = torch.zeros_like(self.each), 1

    def observe(self) -> tuple[Tensor, Tensor]:
        """The states (E, T-1), and which actions are allowed (E, actions)."""
        allowed = torch.arange(self.n_actions) < schedule.n_actions(self.k)
        return self.states[self.each, self.row], allowed.expand(len(self.each), -1)

    def step(self, actions: Tensor) -> tuple[Tensor, bool]:
        """The rewards (E,), and whether the episodes end with this step."""
        self.row, self.k = self.child[self.row, actions], self.k + 1
        return self.rewards[self.each, self.row], self.k == self.n_tasks


def plain_a2c(trees: Sequence[CompleteTree], args: A2CArgs) -> Callable[[], float]:
    """A2C with autograd; the job returns the mean reward at the end of the last episodes."""

    def train() -> float:
        world, final = Environments(trees), 0.0
        policy = _network(world.n_inputs, args.hidden, world.n_actions, nn.Tanh)
        critic = _network(world.n_inputs, args.hidden, 1, nn.Tanh)
        parameters = [*policy.parameters(), *critic.parameters()]
        optimizer = torch.optim.RMSprop(parameters, lr=args.lr, alpha=args.alpha, eps=args.eps)
        for _ in range(args.updates):
            log_probs, entropies, values, rewards, ends = [], [], [], [], []
            for _ in range(args.n_steps):
                state, allowed = world.observe()
                logits = policy(state).masked_fill(~allowed, -1e8)
                choice = torch.distributions.Categorical(logits=logits)
                action = choice.sample()
                reward, end = world.step(action)
                if end:
                    final = float(reward.mean())
                    world.reset()
                log_probs.append(choice.log_prob(action))
                entropies.append(choice.entropy())
                values.append(critic(state).squeeze(1))
                rewards.append(reward)
                ends.append(end)
            with torch.no_grad():
                following = critic(world.observe()[0]).squeeze(1)
            advantage, advantages = torch.zeros_like(following), []
            for value, reward, end in zip(values[::-1], rewards[::-1], ends[::-1], strict=True):
                value, goes_on = value.detach(), 0.0 if end else 1.0
                delta = reward + args.gamma * following * goes_on - value
                advantage = delta + args.gamma * args.gae_lambda * goes_on * advantage
                advantages.insert(0, advantage)
                following = value
            A, V = torch.cat(advantages), torch.cat(values)
            returns = A + V.detach()
            loss = (
                -(A * torch.cat(log_probs)).mean()
                + args.value_coef * (returns - V).square().mean()
                - args.entropy_coef * torch.cat(entropies).mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, args.max_norm)
            optimizer.step()
        return final

    return train


def plain_dqn(trees: Sequence[CompleteTree], args: DQNArgs) -> Callable[[], float]:
    """DQN with autograd; the job returns the mean reward at the end of the last episode."""

    def train() -> float:
        world, final, updates = Environments(trees), 0.0, 0
        net = _network(world.n_inputs, args.hidden, world.n_actions, nn.ReLU)
        target = copy.deepcopy(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
        kinds = torch.float, torch.long, torch.float, torch.float, torch.bool, torch.float
        widths = (world.n_inputs,), (), (), (world.n_inputs,), (world.n_actions,), ()
        buffer = [
            torch.zeros(args.buffer_size, *width, dtype=kind)
            for width, kind in zip(widths, kinds, strict=True)
        ]  # state, action, reward, next state, its allowed actions, whether the episode goes on
        stored, n = 0, len(trees)
        for episode in range(args.episodes):
            annealed = min(1.0, episode / args.anneal_episodes)
            epsilon = args.epsilon_start + annealed * (args.epsilon_final - args.epsilon_start)
            world.reset()
            end = False
            while not end:
                state, allowed = world.observe()
                with torch.no_grad():
                    greedy = net(state).masked_fill(~allowed, -torch.inf).argmax(1)
                drawn = torch.multinomial(allowed.float(), 1).squeeze(1)
                action = torch.where(torch.rand(n) < epsilon, drawn, greedy)
                reward, end = world.step(action)
                final = float(reward.mean())
                following, goes_on = torch.zeros_like(state), torch.zeros(n)
                if not end:
                    (following, allowed), goes_on = world.observe(), torch.ones(n)
                slots = (stored + torch.arange(n)) % args.buffer_size
                new = (state, action, reward, following, allowed, goes_on)
                for column, values in zip(buffer, new, strict=True):
                    column[slots] = values
                stored += n
                if stored < args.batch_size:
                    continue
                for _ in range(n):
                    if updates % args.target_period == 0:
                        target.load_state_dict(net.state_dict())
                    rows = torch.randint(min(stored, args.buffer_size), (args.batch_size,))
                    s, a, r, s2, allowed2, on = (column[rows] for column in buffer)
                    with torch.no_grad():
                        best = target(s2).masked_fill(~allowed2, -torch.inf).amax(1)
                        y = r + args.gamma * on * best
                    q = net(s).gather(1, a.unsqueeze(1)).squeeze(1)
                    loss = F.huber_loss(q, y)
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(net.parameters(), args.max_norm)
                    optimizer.step()
                    updates += 1
        return final

    return train
