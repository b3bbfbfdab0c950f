"""`make bench`: speed as ratios within one run, on one core unless said otherwise.

The machine is shared and noisy, so every figure is a ratio of two things timed in turns, or a count.
The floor of a training step is what it cannot do without: the five large matrix products and one
fused Adam. Split MNIST's shapes throughout; random pixels where MNIST is not there.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rslib import data
from rslib.environment import Environment
from rslib.learner import Learner
from rslib.search import bfs, mcts
from rslib.tree import ScheduleTree
from tools import bench_methods, bench_rl

RELEASED_TASK_SECONDS = 23.5  # the authors' code, one Split MNIST task, one core (protocol.md)


def timed(job: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        job()
    return (time.perf_counter() - start) / repeats


def medians(jobs: dict[str, Callable[[], object]], rounds: int = 15, repeats: int = 40) -> dict:
    """Median seconds per call, the jobs taking turns so that noise hits all alike."""
    for job in jobs.values():
        timed(job, 5)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(timed(job, repeats))
    return {name: statistics.median(values) for name, values in times.items()}


@contextmanager
def mnist_or_noise() -> Iterator[str]:
    """The dataset to time on: MNIST, or random pixels of its shape."""
    try:
        data.load("mnist")
        yield "mnist"
    except data.DataError:
        rng = np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "noise.npz"
            parts = {}
            for part, n in (("train", 60_000), ("test", 10_000)):
                parts[f"x_{part}"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
                parts[f"y_{part}"] = np.arange(n) % 10
            np.savez(file, **parts)
            yield str(file)


def split_mnist(dataset: str, **changes) -> Environment:
    settings: dict[str, Any] = dict(epochs=10, batch_size=128, lr=0.001, memory_size=10) | changes
    return Environment(dataset, **settings)


def step_against_floor(dataset: str) -> tuple[float, float]:
    """(a) a whole training step, gathering the batch included, and the floor below it."""
    learner = Learner(split_mnist(dataset))
    learner.learn(())
    learner.n_learned = 2
    learner.net.train()
    memory_batches = endless(learner)
    hidden, n, pixels = 256, 138, 784
    x, h, d = torch.rand(n, pixels), torch.rand(n, hidden), torch.rand(n, hidden)
    w1, w2 = torch.rand(hidden, pixels), torch.rand(hidden, hidden)
    flat = torch.nn.Parameter(torch.zeros(sum(p.numel() for p in learner.net.parameters())))
    flat.grad = torch.rand_like(flat)
    adam = torch.optim.Adam([flat], fused=True)

    def floor():
        torch.mm(x, w1.t())
        torch.mm(h, w2.t())
        torch.mm(d, w2)
        torch.mm(d.t(), h)
        torch.mm(d.t(), x)
        adam.step()

    def step():
        learner.method.step(learner, next(memory_batches))

    found = medians({"floor": floor, "step": step})
    return found["step"], found["floor"]


def endless(learner: Learner) -> Iterator:
    from rslib.memory import fill

    memory = fill(learner.scenario.tasks, learner.pools, (10,))
    learner.method.begin(learner, memory)
    while True:
        for batch in learner._batches(2, memory):
            if len(batch.y) == 138:
                yield batch


def one_task(dataset: str) -> float:
    """(b) seconds to learn and evaluate one task with replay: the fastest of the tasks 2-4 in two
    runs, because what others do on the machine can only add to it."""
    times = []
    for _ in range(2):
        tree = ScheduleTree(split_mnist(dataset))
        tree.walk()
        path: tuple = ()
        for composition in ((10,), (5, 5), (4, 3, 3)):
            path = (*path, composition)
            times.append(timed(lambda t=tree, p=path: t.walk(p), 1))
    return min(times)


def _work(job: tuple[str, int]) -> float:
    """Seconds a worker needs for so many tasks, its own preparation left out."""
    dataset, n = job
    tree = ScheduleTree(split_mnist(dataset, epochs=2))
    tree.walk(((10,),))
    start = time.perf_counter()
    for i in range(n):
        tree.walk(((9 - i,),))
    return time.perf_counter() - start


def two_workers(dataset: str, n: int = 8) -> float:
    """(d) throughput of two processes over one: n tasks each, at the same time."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        alone = pool.map(_work, [(dataset, n)])[0]
        together = max(pool.map(_work, [(dataset, n)] * 2, chunksize=1))
    return 2 * alone / together


def _bfs_peak(dataset: str) -> tuple[int, float]:
    """BFS over all 1,050 schedules of Split MNIST: its memory, in minutes instead of an hour.

    One step per task, and only the first walk evaluated: neither changes what is held.
    """
    tree = ScheduleTree(split_mnist(dataset))
    whole = Learner._batches
    Learner._batches = lambda self, *a: iter([next(whole(self, *a))])  # type: ignore[method-assign]
    row = tree.walk(tuple(tree.compositions(k)[0] for k in range(1, tree.n_tasks))).test[-1]
    Learner.accuracies = lambda self: (row, row)  # type: ignore[method-assign]
    bfs(tree)
    return tree.trained, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with mnist_or_noise() as dataset:
        where = "MNIST" if dataset == "mnist" else "random pixels of MNIST's shape"
        print(f"Split MNIST on {where}; {torch.backends.cpu.get_cpu_capability()}, torch", end=" ")
        print(torch.__version__)
        step, floor = step_against_floor(dataset)
        print(f"(a) training step / floor: {step / floor:.2f} (at most 1.5)", end="; ")
        print(f"{step * 1e3:.2f} ms, floor {floor * 1e3:.2f} ms")
        seconds = one_task(dataset)
        print(f"(b) released code / ours, one task: {RELEASED_TASK_SECONDS / seconds:.1f}", end=" ")
        print(f"(at least 8); {seconds:.2f} s")
        tree = ScheduleTree(Environment("digits", epochs=1, hidden=16))
        mcts(tree, 100)
        print(f"(c) trainings for 100 MCTS rollouts of 5 tasks: {tree.trained} (at most 140)")
        print(f"(d) throughput of two workers / one: {two_workers(dataset):.2f} (at least 1.8)")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            trained, peak = pool.map(_bfs_peak, [dataset])[0]
        print(f"(e) peak memory of BFS ({trained} trainings): {peak:.2f} GiB (below 1.5 GB)")
    bench_methods.run()
    bench_rl.run()


if __name__ == "__main__":
    main()
