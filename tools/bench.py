"""`make bench`: the speed of training, searching and policy learning, as ratios within one run.

The machine is shared and noisy. So jobs that are compared take turns in one process with the same
allocator, their processor time is counted, and the median is reported. They are compared with the floor
(what no step can do without) and with the same work in plain PyTorch (`tools.bench_baselines`). What the
released code needs was measured once on another machine; it is printed as such and is no ratio.
Each run appends a line to docs/bench.csv, and docs/bench.png draws them.
"""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import os
import platform
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from rslib import data, files
from rslib.complete_tree import CompleteTree, tree_shape
from rslib.environment import Environment
from rslib.gaussian_process import expected_improvement
from rslib.learner import Learner
from rslib.memory import fill
from rslib.methods import er
from rslib.policies import a2c, dqn
from rslib.runs.grid import Cell, row, run_cell
from rslib.runs.speculation import share
from rslib.search import bfs, mcts
from rslib.show import style
from rslib.store import Store
from rslib.tree import ScheduleTree
from tools import bench_baselines as baselines

DIARY = files.REPOSITORY / "docs" / "bench.csv"
RELEASED = """the released code, measured once on another machine (one core at 2.8 GHz):
  23.5 s for one task of Split MNIST, 28.5 updates of A2C and 111 of DQN per second"""
# What the issue on speed allows for a ratio. A miss is printed and fails nothing: plain PyTorch was
# written by us too, and elapsed times depend on who else uses the machine.
AT_MOST = {"step_mnist": 1.3, "step_digits": 1.5, "step_convnet": 1.4}
AT_LEAST = {"plain_mnist": 1.5, "plain_digits": 2.0, "two_workers": 1.8, "shared_search": 1.7}

# How many times the step of ER a step may cost, so that schedules can be searched.
STEP_LIMITS = {"der": 1.5, "derpp": 1.5, "er-ring": 1.5, "agem": 3.0, "mer": 3.0, "hal": 6.0}
# The dearest of the paper's settings: with beta = 1, MER never returns to earlier weights.
METHOD_ARGS = {"mer": dict(beta=0.1)}
SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit what was measured before


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


# -- environments ----------------------------------------------------------------------------------


def write_noise(file: Path, n_train: int, n_test: int, shape: tuple[int, ...] = (28, 28)) -> str:
    """Write a dataset of random pixels and return its name."""
    random = np.random.default_rng(0)
    parts = {}
    for part, n in (("train", n_train), ("test", n_test)):
        parts[f"x_{part}"] = random.integers(0, 256, (n, *shape), dtype=np.uint8)
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
    """A method in the middle of a task; a call makes one step, the batch's copy included."""

    def __init__(self, environment: Environment, schedule: tuple[tuple[int, ...], ...]):
        self.learner = learner = Learner(environment)
        *learned, counts = schedule
        for past in learned:
            learner.learn(past)
        self.number = learner.n_learned = len(schedule)
        learner.net.train()
        self.memory = fill(learner.scenario.tasks, learner.pools, counts)
        start = time.process_time()
        learner.method.begin(learner, self.memory)
        self.begin_seconds = time.process_time() - start
        self.batches = self._whole_batches()

    def _whole_batches(self) -> Iterator:
        """Repeat the epochs of the task without end, each without its smaller last batch."""
        size = self.learner.environment.batch_size
        while True:
            for batch in self.learner.batches(self.number, self.memory):
                if len(batch.current) == size:
                    yield batch

    def __call__(self) -> None:
        self.learner.method.step(self.learner, next(self.batches))


def floors(training: Training) -> dict[str, Callable[[], None]]:
    """Jobs that do what no step can do without: the trunk's products, and Adam.

    Every linear or convolutional layer is multiplied forward, by its inputs and (but for the first
    layer) by its weights, on tensors of the step's own shapes and layout. Adam is one call on one flat
    tensor of all weights: of its kernel alone in "floor", of `Adam.step()` in "floor with step()".
    """
    net, x = training.learner.net, next(training.batches).x
    layers: list[tuple] = []
    hooks = [
        layer.register_forward_hook(lambda *seen: layers.append(seen))
        for layer in net.trunk.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    calls: list[Callable[[], object]] = []
    for i, (layer, (x,), y) in enumerate(layers):
        w, d = layer.weight.detach(), torch.rand_like(y)
        if isinstance(layer, nn.Conv2d):
            how = (layer.stride, layer.padding, layer.dilation, False, [0, 0], 1)
            backward: Any = torch.ops.aten.convolution_backward
            needed = [i > 0, True, False]
            calls.append(functools.partial(torch.convolution, x, w, None, *how))
            calls.append(functools.partial(backward, d, x, w, None, *how, needed))
        else:
            calls.append(functools.partial(torch.mm, x, w.t()))
            calls.append(functools.partial(torch.mm, d.t(), x))
            if i > 0:
                calls.append(functools.partial(torch.mm, d, w))
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    parameter = nn.Parameter(flat)
    parameter.grad = torch.rand_like(flat)
    adam = torch.optim.Adam([parameter], fused=True)
    adam.step()  # makes its state

    @torch.no_grad()
    def products_and(update: Callable[[], object]) -> None:
        for call in calls:
            call()
        update()

    kernel = er.fused_adam(adam) or adam.step
    updates = {"floor": kernel, "floor with step()": adam.step}
    return {name: functools.partial(products_and, update) for name, update in updates.items()}


def step_and_floors(environment: Environment, calls: int, rounds: int) -> dict[str, float]:
    """Seconds of a step of ER in task 2, and of its floors."""
    step = Training(environment, ((), (environment.memory_size or 0,)))
    return in_turns({"step": step, **floors(step)}, rounds, calls)


def steps_and_floors(dataset: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield a setting's name and the seconds of a step and of its floors: the paper's batches.

    The convolutional networks have random pixels in the shape of CIFAR-100 and of miniImagenet.
    """
    with tempfile.TemporaryDirectory() as folder:
        small = write_noise(Path(folder) / "cifar.npz", 2000, 100, (3, 32, 32))
        large = write_noise(Path(folder) / "miniimagenet.npz", 800, 100, (3, 84, 84))
        images: dict[str, Any] = dict(n_tasks=5, memory_size=100, epochs=1, lr=0.001)
        settings = {
            "mnist": (split_mnist(dataset, epochs=1), 20, 15),
            "digits": (Environment("digits"), 100, 15),
            "convnet": (Environment(small, network="convnet", batch_size=256, **images), 1, 7),
            "resnet": (Environment(large, network="resnet", batch_size=32, **images), 1, 3),
        }
        if dataset == "mnist":
            settings["permuted"] = Environment("permutedmnist", epochs=1), 20, 7
        for name, setting in settings.items():
            yield name, step_and_floors(*setting)


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
    return Training(split_mnist(dataset, epochs=1), ((), (10,)))


def _work(dataset: str, n_steps: int) -> None:
    step = _steps_of_worker(dataset)
    for _ in range(n_steps):
        step()


def two_workers(dataset: str, rounds: int = 3, n_steps: int = 1000) -> float:
    """Throughput of two processes relative to one: each makes the same steps at the same time.

    Elapsed time is counted here, because waiting for the other process is what may be lost.
    """
    with ProcessPoolExecutor(2, SPAWN) as workers:

        def use(n_workers: int) -> None:
            list(workers.map(_work, [dataset] * n_workers, [n_steps] * n_workers))

        jobs = {"one": lambda: use(1), "two": lambda: use(2)}
        taken = in_turns(jobs, rounds, clock=time.perf_counter)
    return 2 * taken["one"] / taken["two"]


def shared_search(dataset: str, rollouts: int = 50) -> tuple[float, int, int]:
    """Elapsed time of MCTS on one process over that on two, and the trainings of both.

    Tasks are trained for one epoch. Raises if the two searches differ in a single rollout.
    """
    cell = Cell(split_mnist(dataset, epochs=1), "mcts", rollouts)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, SPAWN) as workers:
        list(workers.map(_work, [dataset] * 2, [1] * 2))  # both have started and have the data
        one, two = (Store(Path(folder) / name, shipped=None) for name in ("one", "two"))
        start = time.perf_counter()
        alone = workers.submit(run_cell, cell, one).result()
        middle = time.perf_counter()
        (job,) = share(workers, {Future(): cell}, two, row)
        seconds = middle - start, time.perf_counter() - middle
        trees = (ScheduleTree(cell.environment, store, frozen=True) for store in (one, two))
        first, second = (mcts(tree, rollouts) for tree in trees)
        if first.schedules != second.schedules or (first.rewards != second.rewards).any():
            raise AssertionError("the shared search has other rollouts than the sequential one")
        return seconds[0] / seconds[1], alone["trained"], job.result()["trained"]


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
    return tree.trained, peak_memory()


def peak_memory() -> float:
    """The most memory that this program has held, in GB.

    Linux hands `ru_maxrss` on from the process that starts another, so it is not this program's alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def bfs_memory(dataset: str) -> tuple[int, float]:
    """Measure BFS in a process of its own: the peak of a process never falls again."""
    with ProcessPoolExecutor(1, SPAWN) as worker:
        return worker.submit(_bfs_peak, dataset).result()


# -- replay methods and agents ---------------------------------------------------------------------


def replay_methods(rounds: int = 15, calls: int = 8) -> dict[str, tuple[float, float]]:
    """Seconds of a step of each method in task 5, and of what it does once before a task's steps.

    A small dataset of random pixels has the same batches as Split MNIST.
    """
    schedule = ((), (10,), (5, 5), (4, 3, 3), (3, 3, 2, 2))
    methods = {}
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_noise(Path(folder) / "noise.npz", 2000, 100)
        for method in ("er", *STEP_LIMITS):
            args = METHOD_ARGS.get(method)
            environment = split_mnist(dataset, epochs=1, method=method, method_args=args)
            methods[method] = Training(environment, schedule)
    steps = in_turns(methods, rounds, calls)
    return {method: (steps[method], methods[method].begin_seconds) for method in methods}


def agents(rounds: int = 3) -> dict[str, tuple[float, float]]:
    """Updates per second of A2C and DQN with the paper's settings: ours, and plain PyTorch's.

    DQN spends most of its time on three products with a 512 x 512 matrix and on Adam; A2C on about
    100 small calls per update. Random tables will do: a step of the environment is a lookup.
    """
    shape = (2, tree_shape(5).first[-1], 5)
    accuracies = [np.random.default_rng(seed).uniform(0.5, 1, shape) for seed in range(30)]
    tables = [
        CompleteTree("random", seed, val, test) for seed, (val, test) in enumerate(accuracies)
    ]
    few_updates, few_episodes = a2c.A2CArgs(updates=300), dqn.DQNArgs(episodes=6)
    jobs: dict[str, Callable] = {
        "a2c": lambda: a2c.train(tables[:10], few_updates, progress=False),
        "dqn": lambda: dqn.train(tables, few_episodes, progress=False),
        "plain a2c": baselines.plain_a2c(tables[:10], few_updates),
        "plain dqn": baselines.plain_dqn(tables, few_episodes),
    }
    updates = {name: jobs[name]()[1][-1]["updates"] for name in ("a2c", "dqn")}
    taken = in_turns(jobs, rounds)
    return {name: (n / taken[name], n / taken[f"plain {name}"]) for name, n in updates.items()}


# -- the report ------------------------------------------------------------------------------------


def report(name: str, ratio: float, text: str) -> None:
    """Print a ratio with its limit, and whether it is kept."""
    limit, kept = "", True
    if name in AT_MOST:
        limit, kept = f" (at most {AT_MOST[name]})", ratio <= AT_MOST[name]
    if name in AT_LEAST:
        limit, kept = f" (at least {AT_LEAST[name]})", ratio >= AT_LEAST[name]
    print(f"  {name:16} {ratio:5.2f}{limit}{'' if kept else ' MISSED'}; {text}", flush=True)


def machine() -> str:
    """The processor's name and the number of cores."""
    cpu = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", cpu.read_text()) if cpu.exists() else None
    name = named[1] if named else platform.machine()
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def write_down(ratios: Mapping[str, float], load: float) -> None:
    """Append the ratios to the diary, and draw it."""
    git = ["git", "-C", str(files.REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    now = datetime.datetime.now().isoformat(" ", "minutes")
    about = {"date": now, "commit": commit, "machine": machine(), "torch": torch.__version__}
    line = pd.DataFrame([about | {"load": load} | {k: round(v, 3) for k, v in ratios.items()}])
    diary = pd.concat([pd.read_csv(DIARY), line]) if DIARY.exists() else line
    diary.to_csv(DIARY, index=False)
    draw(diary)


@style.styled
def draw(diary: pd.DataFrame) -> None:
    """Draw every ratio over the runs, with its limit, into docs/bench.png."""
    groups = {
        "step / floor (lower is better)": "step_",
        "plain PyTorch / ours": "plain_",
        "two processes / one": ("two_workers", "shared_search"),
    }
    fig, axes = style.panels(3, 3, style.PAGE, 2.4)
    for ax, (title, start) in zip(axes, groups.items(), strict=True):
        for i, name in enumerate(c for c in diary.columns if c.startswith(start)):
            label = name.removeprefix("step_").removeprefix("plain_").replace("_", " ")
            (line,) = ax.plot(
                range(len(diary)), diary[name], f"{style.task_marker(i + 1)}-", label=label
            )
            limit = (AT_MOST | AT_LEAST).get(name)
            if limit:
                ax.axhline(limit, color=line.get_color(), linewidth=0.6, linestyle=":")
        ax.set_title(title)
        ax.set_xticks(range(len(diary)), diary["commit"].str[:7], rotation=60, ha="right")
        ax.set_ylim(0, 1.35 * ax.dataLim.ymax)  # room for the legend
        ax.legend(fontsize=6, loc="upper center", ncols=3, columnspacing=1, handlelength=1.5)
    fig.savefig(DIARY.with_suffix(".png"), dpi=style.DPI, metadata={"Software": None})


def main() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    load = os.getloadavg()[0]
    ratios: dict[str, float] = {}
    with mnist_or_noise() as dataset, tempfile.TemporaryDirectory() as folder:
        pixels = "MNIST" if dataset == "mnist" else "random pixels of MNIST's shape"
        print(f"{machine()}, torch {torch.__version__}; load {load:.1f}; Split MNIST on {pixels}")
        print("a training step / its floor (matrix products and Adam's kernel):", flush=True)
        for name, taken in steps_and_floors(dataset):
            step, least, usual = (taken[k] for k in ("step", "floor", "floor with step()"))
            ratios[f"step_{name}"] = step / least
            text = f"{step * 1e3:.2f} ms, floor {least * 1e3:.2f} ms"
            text += f"; {step / usual:.2f} with Adam.step() in the floor"
            report(f"step_{name}", step / least, text)

        print("plain PyTorch / ours: task 2 with replay, learned and evaluated:", flush=True)
        mnist, digits = split_mnist(dataset), Environment("digits")
        jobs = {"mnist": one_task(mnist), "plain_mnist": baselines.plain_loop(mnist)}
        jobs["plain_dataloader"] = baselines.data_loader(mnist, Path(folder))
        taken = in_turns(jobs, rounds=7)  # with 3 the ratio moved by a tenth
        jobs = {"digits": one_task(digits), "plain_digits": baselines.plain_loop(digits)}
        taken |= in_turns(jobs | {"model": surrogate_model()}, rounds=9, calls=3)
        for plain in ("plain_mnist", "plain_dataloader", "plain_digits"):
            name = "digits" if plain == "plain_digits" else "mnist"
            ratios[plain] = taken[plain] / taken[name]
            # What a processor allows: one that is fast at small calls leaves less to be saved.
            most = ratios[plain] * ratios[f"step_{name}"]
            text = (
                f"{taken[plain]:.2f} s, ours {taken[name]:.2f} s; at most {most:.2f} at the floor"
            )
            report(plain, ratios[plain], text)
        for agent, (ours, plain) in agents().items():
            ratios[f"plain_{agent}"] = ours / plain
            text = f"{plain:.0f} updates per second, ours {ours:.0f}"
            report(f"plain_{agent}", ours / plain, text)
        print(RELEASED)

        print("searches:", flush=True)
        print(f"  the surrogate's model per rollout: {1e3 * taken['model']:.1f} ms, ", end="")
        print(
            f"{taken['model'] / taken['digits']:.1%} of a training on digits (below 10 %), ", end=""
        )
        print(f"{taken['model'] / taken['mnist']:.2%} of one on Split MNIST (below 5 %)")
        print(f"  trainings for 100 MCTS rollouts of 5 tasks: {mcts_trainings()} (at most 140)")
        trained, peak = bfs_memory(dataset)
        print(f"  peak memory of BFS ({trained} trainings): {peak:.2f} GB (at most 1.5)")

        print("two processes / one, in elapsed time", end="")
        print(f"; load {os.getloadavg()[0]:.1f}: more than 1.5 is other people's work", flush=True)
        ratios["two_workers"] = two_workers(dataset)
        report("two_workers", ratios["two_workers"], "the same steps in each")
        searched = [shared_search(dataset) for _ in range(3)]  # elapsed time: 1.5 to 1.9 on one day
        ratio, alone, together = sorted(searched)[1]
        ratios["shared_search"] = ratio
        text = f"MCTS, the same rollouts, {together} trainings instead of {alone}"
        report("shared_search", ratio, text)
    print("replay methods, a training step relative to ER:", flush=True)
    methods = replay_methods()
    for method, (step, begin) in methods.items():
        limit = f" (at most {STEP_LIMITS[method]})" if method in STEP_LIMITS else ""
        print(f"  {method:8} {step / methods['er'][0]:.2f}{limit}; ", end="")
        print(f"{step * 1e3:.2f} ms, once per task {begin * 1e3:.0f} ms")
    write_down(ratios, load)
    print(f"appended to {DIARY.relative_to(files.REPOSITORY)}")


if __name__ == "__main__":
    main()
