"""`make bench`: the speed of training, searching and policy learning.

The machine is shared and noisy. So jobs that are compared take turns in one run, their processor time
is counted, and the median is reported. What the released code needs was measured once on another
machine (one core at 2.8 GHz); it is printed beside our seconds and is no ratio of this run.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rslib import data
from rslib.complete_tree import CompleteTree, tree_shape
from rslib.environment import Environment
from rslib.gaussian_process import expected_improvement
from rslib.learner import Learner
from rslib.memory import fill
from rslib.policies import a2c, dqn
from rslib.search import bfs, mcts
from rslib.tree import ScheduleTree

RELEASED_TASK_SECONDS = 23.5  # one task of Split MNIST, learned and evaluated
RELEASED_UPDATES = {"a2c": 28.5, "dqn": 111.0}  # per second, with 10 and 30 environments

# How many times the step of ER a step may cost, so that schedules can be searched.
STEP_LIMITS = {"der": 1.5, "derpp": 1.5, "er-ring": 1.5, "agem": 3.0, "mer": 3.0, "hal": 6.0}
# The dearest of the paper's settings: with beta = 1, MER never returns to earlier weights.
METHOD_ARGS = {"mer": dict(beta=0.1)}
SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit what was measured before
SCHEDULE = ((), (10,), (5, 5), (4, 3, 3), (3, 3, 2, 2))  # the memory of tasks 1 to 5


def in_turns(
    jobs: Mapping[str, Callable[[], object]],
    rounds: int,
    calls: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Run the jobs in turns and return the median seconds of a call of each job."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(1 + rounds):
        for name, job in jobs.items():
            start = clock()
            for _ in range(calls):
                job()
            times[name].append((clock() - start) / calls)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}  # 0 is a warm-up


# -- Split MNIST -----------------------------------------------------------------------------------


def write_noise(file: Path, n_train: int, n_test: int) -> str:
    """Write a dataset of random pixels in MNIST's shape and return its name."""
    random = np.random.default_rng(0)
    parts = {}
    for part, n in (("train", n_train), ("test", n_test)):
        parts[f"x_{part}"] = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        parts[f"y_{part}"] = np.arange(n) % 10
    np.savez(file, **parts)
    return str(file)


@contextmanager
def mnist_or_noise() -> Iterator[str]:
    """Yield the dataset to time on: MNIST, or random pixels where MNIST is not available."""
    try:
        data.load("mnist")
        yield "mnist"
    except data.DataError:
        with tempfile.TemporaryDirectory() as folder:
            yield write_noise(Path(folder) / "noise.npz", 60_000, 10_000)


def split_mnist(dataset: str, **changes) -> Environment:
    settings: dict[str, Any] = dict(epochs=10, batch_size=128, lr=0.001, memory_size=10) | changes
    return Environment(dataset, **settings)


class Training:
    """A replay method in the middle of task 5; a call makes one step, the batch's copy included."""

    def __init__(self, dataset: str, method: str = "er"):
        args = METHOD_ARGS.get(method)
        environment = split_mnist(dataset, epochs=1, method=method, method_args=args)
        self.learner = learner = Learner(environment)
        *learned, counts = SCHEDULE
        for past in learned:
            learner.learn(past)
        learner.n_learned = 5
        learner.net.train()
        self.memory = fill(learner.scenario.tasks, learner.pools, counts)
        start = time.process_time()
        learner.method.begin(learner, self.memory)
        self.begin_seconds = time.process_time() - start
        self.batches = self._whole_batches()

    def _whole_batches(self) -> Iterator:
        """Repeat the epochs of task 5 without end, each without its smaller last batch."""
        while True:
            for batch in self.learner.batches(5, self.memory):
                if len(batch.y) == 138:
                    yield batch

    def __call__(self) -> None:
        self.learner.method.step(self.learner, next(self.batches))


def step_and_floor(dataset: str, rounds: int = 15, calls: int = 40) -> tuple[float, float]:
    """Time a step of ER, and what no step can do without: five matrix products and one Adam."""
    step = Training(dataset)
    hidden, n, pixels = 256, 138, 784
    x, h, d = torch.rand(n, pixels), torch.rand(n, hidden), torch.rand(n, hidden)
    w1, w2 = torch.rand(hidden, pixels), torch.rand(hidden, hidden)
    n_parameters = sum(p.numel() for p in step.learner.net.parameters())
    parameters = torch.nn.Parameter(torch.zeros(n_parameters))
    parameters.grad = torch.rand_like(parameters)
    adam = torch.optim.Adam([parameters], fused=True)

    def floor() -> None:
        torch.mm(x, w1.t())
        torch.mm(h, w2.t())
        torch.mm(d, w2)
        torch.mm(d.t(), h)
        torch.mm(d.t(), x)
        adam.step()

    taken = in_turns({"floor": floor, "step": step}, rounds, calls)
    return taken["step"], taken["floor"]


def one_task(environment: Environment) -> Callable[[], None]:
    """A job that learns task 2 with replay and evaluates after it."""
    learner = Learner(environment)
    learner.learn(())
    after_task_1 = learner.snapshot()

    def learn_and_evaluate() -> None:
        learner.restore(after_task_1)
        learner.learn((10,))
        learner.accuracies()

    return learn_and_evaluate


def surrogate_model(n_tried: int = 50) -> Callable[[], object]:
    """A job that weighs all schedules of 5 tasks after some rollouts of the surrogate search."""
    tree = ScheduleTree(Environment("digits"))
    paths = list(product(*(tree.compositions(k) for k in range(1, tree.n_tasks))))
    order = np.random.default_rng(0).permutation(len(paths))
    tried, rest = ([paths[i] for i in part] for part in (order[:n_tried], order[n_tried:]))
    rewards = np.random.default_rng(0).random(n_tried)
    return functools.partial(expected_improvement, tried, rewards, rest)


def mcts_trainings(rollouts: int = 100) -> int:
    """Count the tasks that MCTS trains on a tree of 5 tasks."""
    tree = ScheduleTree(Environment("digits", epochs=1, hidden=16))
    mcts(tree, rollouts)
    return tree.trained


@functools.cache  # once per worker: its preparation is not timed
def _steps_of_worker(dataset: str) -> Training:
    return Training(dataset)


def _work(dataset: str, n_steps: int) -> None:
    step = _steps_of_worker(dataset)
    for _ in range(n_steps):
        step()


def two_workers(dataset: str, rounds: int = 5, n_steps: int = 1500) -> float:
    """Throughput of two processes relative to one: each makes the same steps at the same time.

    Elapsed time is counted here, because waiting for the other process is what may be lost.
    """
    with ProcessPoolExecutor(2, SPAWN) as workers:

        def use(n_workers: int) -> None:
            list(workers.map(_work, [dataset] * n_workers, [n_steps] * n_workers))

        jobs = {"one": lambda: use(1), "two": lambda: use(2)}
        taken = in_turns(jobs, rounds, clock=time.perf_counter)
    return 2 * taken["one"] / taken["two"]


def _bfs_peak(dataset: str) -> tuple[int, float]:
    """Search all 1,050 schedules of Split MNIST; return the trainings and the peak memory in GB.

    Each task is trained for one step, and only the first walk is evaluated. Neither changes what
    is held in memory, and the search takes seconds instead of an hour.
    """
    tree = ScheduleTree(split_mnist(dataset))
    whole = Learner.batches
    Learner.batches = lambda self, *a: iter([next(whole(self, *a))])  # type: ignore[method-assign]
    row = tree.walk(tuple(tree.compositions(k)[0] for k in range(1, tree.n_tasks))).test[-1]
    Learner.accuracies = lambda self: (row, row)  # type: ignore[method-assign]
    bfs(tree)
    return tree.trained, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def bfs_memory(dataset: str) -> tuple[int, float]:
    """Measure BFS in a process of its own: the peak of a process never falls again."""
    with ProcessPoolExecutor(1, SPAWN) as worker:
        return worker.submit(_bfs_peak, dataset).result()


# -- replay methods and agents ---------------------------------------------------------------------


def replay_methods(rounds: int = 25, calls: int = 8) -> dict[str, tuple[float, float]]:
    """Seconds of a step of each method, and of what it does once before the steps of a task.

    A small dataset of random pixels has the same batches as Split MNIST.
    """
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_noise(Path(folder) / "noise.npz", 2000, 100)
        methods = {method: Training(dataset, method) for method in ("er", *STEP_LIMITS)}
    steps = in_turns(methods, rounds, calls)
    return {method: (steps[method], methods[method].begin_seconds) for method in methods}


def agents(rounds: int = 8) -> dict[str, float]:
    """Updates per second of A2C and DQN with the paper's settings.

    DQN spends most of its time on three products with a 512 x 512 matrix and on Adam; A2C on about
    100 small calls per update. Random tables will do: a step of the environment is a lookup.
    """
    shape = (2, tree_shape(5).first[-1], 5)
    accuracies = [np.random.default_rng(seed).uniform(0.5, 1, shape) for seed in range(30)]
    tables = [
        CompleteTree("random", seed, val, test) for seed, (val, test) in enumerate(accuracies)
    ]
    few_updates, few_episodes = a2c.A2CArgs(updates=300), dqn.DQNArgs(episodes=4)
    trainings: dict[str, Callable] = {
        "a2c": lambda: a2c.train(tables[:10], few_updates, progress=False),
        "dqn": lambda: dqn.train(tables, few_episodes, progress=False),
    }
    updates = {name: train()[1][-1]["updates"] for name, train in trainings.items()}
    taken = in_turns(trainings, rounds)
    return {name: updates[name] / taken[name] for name in trainings}


def main() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    with mnist_or_noise() as dataset:
        pixels = "MNIST" if dataset == "mnist" else "random pixels of MNIST's shape"
        print(f"Split MNIST on {pixels}; ", end="")
        print(f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}", flush=True)
        step, floor = step_and_floor(dataset)
        print(f"(a) training step / floor: {step / floor:.2f} (at most 1.5); ", end="")
        print(f"{step * 1e3:.2f} ms, floor {floor * 1e3:.2f} ms", flush=True)
        jobs = {"mnist": one_task(split_mnist(dataset)), "digits": one_task(Environment("digits"))}
        taken = in_turns(jobs | {"model": surrogate_model()}, rounds=3)
        print(f"(b) one task: {taken['mnist']:.2f} s; the released code needed ", end="")
        print(f"{RELEASED_TASK_SECONDS} s on another machine", flush=True)
        shares = {name: taken["model"] / taken[name] for name in jobs}
        print(f"    the surrogate's model per rollout: {1e3 * taken['model']:.1f} ms, ", end="")
        print(f"{shares['digits']:.1%} of a training on digits (below 10 %), ", end="")
        print(f"{shares['mnist']:.2%} on Split MNIST (below 1 %)", flush=True)
        print(f"(c) trainings for 100 MCTS rollouts of 5 tasks: {mcts_trainings()} (at most 140)")
        print(f"(d) throughput of two workers / one: {two_workers(dataset):.2f} (at least 1.8)")
        trained, peak = bfs_memory(dataset)
        print(f"(e) peak memory of BFS ({trained} trainings): {peak:.2f} GB (at most 1.5)")
    print("replay methods, a training step relative to ER:", flush=True)
    methods = replay_methods()
    for method, (step, begin) in methods.items():
        limit = f" (at most {STEP_LIMITS[method]})" if method in STEP_LIMITS else ""
        print(f"  {method:8} {step / methods['er'][0]:.2f}{limit}; ", end="")
        print(f"{step * 1e3:.2f} ms, once per task {begin * 1e3:.0f} ms")
    print("agents, updates per second; the released code's are from another machine:", flush=True)
    for agent, speed in agents().items():
        print(f"  {agent:8} {speed:.0f}; the released code made {RELEASED_UPDATES[agent]}")


if __name__ == "__main__":
    main()
