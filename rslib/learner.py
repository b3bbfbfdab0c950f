"""The learner: one network learning one task after another, each with a replay memory.

Everything random is derived from (seed, purpose, task, epoch), so `learn` is a pure function of the
state before it and the memory composition; `snapshot` and `restore` hold that whole state. One torch
thread per process: more are slower here and change the bits. The network, its batches and evaluation
are on `environment.device()`; data, pools, random draws and snapshots stay on the CPU, and no tensor
is made on torch's default device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rslib import models
from rslib.environment import Environment, device
from rslib.errors import BadValue
from rslib.memory import SELECTIONS, Memory, fill, make_pool
from rslib.methods import METHODS, Batch
from rslib.models import NETWORKS
from rslib.scenario import Samples, as_inputs, write_inputs
from rslib.seeding import derived_seed, permutation, torch_rng

EVALUATION_ROWS = 2048  # bounds memory; accuracies do not depend on it
SMALL = 2**20  # numbers in the inputs of a task, over all its epochs, that are gathered at once

Data = tuple[Tensor, Tensor, Tensor]  # inputs, labels and heads of the samples to learn
Draw = tuple[Tensor | None, Tensor]  # rows of the memory (None: all of it) and of the data


class Learner:
    """The network of one environment, before task 1 or after some task."""

    def __init__(self, environment: Environment):
        keep_freed_memory()
        same_arithmetic()
        self.environment, self.device = environment, device()
        # Own code may keep its inputs or change them in place: it is handed copies.
        self.runs_own_code = not (
            environment.network in NETWORKS.built_in
            and environment.method in METHODS.built_in
            and environment.selection in SELECTIONS.built_in
        )
        self.scenario = environment.tasks()
        self._pool_cache: dict[int, Tensor] = {}
        # Called before every step; may raise to stop.
        self.on_step: Callable[[], None] | None = None
        self.reset()

    def reset(self) -> None:
        """Go back to the untrained network."""
        environment, scenario = self.environment, self.scenario
        assert environment.network and environment.hidden and environment.lr
        with torch.device("cpu"):  # drawn here, so that every device starts with the same weights
            net = models.build(
                environment.network,
                scenario.input_shape,
                scenario.n_heads,
                scenario.head_size,
                torch_rng(environment.seed, "weights"),
                environment.hidden,
            )
        self.net = net.to(self.device)
        self.method = METHODS[environment.method](**environment.arguments)
        lr = environment.lr if self.method.lr is None else self.method.lr
        parameters = self.net.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, lr=lr, fused=True)
            if self.method.optimizer == "adam"
            else torch.optim.SGD(parameters, lr=lr)
        )
        self.pools: list[Tensor] = []
        self.n_learned = 0
        self.diverged = False

    # -- learning ----------------------------------------------------------------------------------

    def learn(self, counts: tuple[int, ...]) -> None:
        """Learn the next task while replaying `counts[i]` samples of task i+1."""
        number = self.n_learned + 1
        if len(counts) != self.n_learned:
            raise ValueError(
                f"task {number} needs {self.n_learned} counts, one per old task; got {counts}"
            )
        self.n_learned = number  # from here on the new task's classes count as seen
        if self.diverged:
            return
        same_arithmetic()
        with self._own_draws(number):
            memory = fill(
                self.scenario.tasks, self.pools, counts, self.environment.samples_kept_per_task
            ).to(self.device)
            self.net.train()
            self.method.begin(self, memory)
            for batch in self.batches(number, memory):
                if self.on_step:
                    self.on_step()
                if not math.isfinite(self.method.step(self, batch)):
                    self.diverged = True  # NaN never heals: stop here, report, train no child
                    return
            if not all(p.isfinite().all() for p in self.net.parameters()):
                self.diverged = True  # the very last step did it, and no later loss shows it
                return
            self.net.eval()
            self.pools.append(self._pool(number))
            self.method.end(self)

    @contextlib.contextmanager
    def _own_draws(self, number: int) -> Iterator[None]:
        """Seed torch's global generator for what users' code draws, such as a dropout layer's masks.

        Nothing built in draws from it. Threads that train own code take turns, for it is the process's.
        """
        if not self.runs_own_code:
            yield
            return
        with models.OWN_DRAWS, torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.environment.seed, "own draws", number))
            yield

    def batches(self, number: int, memory: Memory) -> Iterator[Batch]:
        """Yield B current samples with the whole memory (or with B of it, where it is larger than B).

        The batches of a small task are gathered in one call, because a gather for each would cost a
        tenth of its step. Those of a large task are written into the same buffer, one after the other.
        """
        environment, data = self.environment, self._training_data(number)
        epochs = environment.epochs or 1
        if number == 1:
            epochs = environment.first_epochs or epochs
        n, size = len(data[1]), environment.batch_size or 1
        n_rows = epochs * (n + min(len(memory), size) * -(-n // size))
        draws = self._draws(number, epochs, n, len(memory))
        gathered = self._at_once if n_rows * data[0][0].numel() < SMALL else self._one_by_one
        for batch in gathered(data, memory, draws):
            if len(batch.y) > 1 or environment.network == "mlp":
                yield batch  # batch norm has no variance of a single sample

    def _draws(self, number: int, epochs: int, n: int, n_memory: int) -> Iterator[Draw]:
        """Draw the batches: which rows of the memory (None: all of it), which of the n samples."""
        seed, size = self.environment.seed, self.environment.batch_size or 1
        for epoch in range(epochs):
            order = permutation(n, torch_rng(seed, "batches", number, epoch)).to(self.device)
            draws = torch_rng(seed, "replay", number, epoch) if n_memory > size else None
            for current in order.split(size):
                chosen = None
                if draws:
                    chosen = permutation(n_memory, draws)[:size].to(self.device)
                yield chosen, current

    def _at_once(self, data: Data, memory: Memory, draws: Iterator[Draw]) -> Iterator[Batch]:
        """Gather all batches of a task from its data and the memory together."""
        m = min(len(memory), self.environment.batch_size or 1)
        kept, n = (memory.x, memory.y, memory.head), len(data[1])
        sources = [torch.cat(pair) for pair in zip(data, kept, strict=True)]
        whole, drawn, rows = torch.arange(n, n + m, device=self.device), list(draws), []
        for chosen, current in drawn:
            rows += [whole if chosen is None else n + chosen, current]
        index, sizes = torch.cat(rows), [m + len(current) for _, current in drawn]
        batches = (source.index_select(0, index).split(sizes) for source in sources)
        for x, y, head, (chosen, current) in zip(*batches, drawn, strict=True):
            yield Batch(x, y, head, m, chosen, current)

    def _one_by_one(self, data: Data, memory: Memory, draws: Iterator[Draw]) -> Iterator[Batch]:
        """Gather one batch after the other; the memory's rows are written once, unless chosen anew."""
        size, (x, y, head) = self.environment.batch_size or 1, data
        m = min(len(memory), size)
        X = torch.empty((m + size, *x.shape[1:]), device=self.device)
        Y, H = (torch.empty(m + size, dtype=torch.long, device=self.device) for _ in range(2))
        X[:m], Y[:m], H[:m] = memory.x[:m], memory.y[:m], memory.head[:m]
        for chosen, current in draws:
            if chosen is not None:
                X[:m], Y[:m], H[:m] = memory.x[chosen], memory.y[chosen], memory.head[chosen]
            n = m + len(current)
            write_inputs(x, current, out=X[m:n])
            torch.index_select(y, 0, current, out=Y[m:n])
            torch.index_select(head, 0, current, out=H[m:n])
            now = X[:n], Y[:n], H[:n]
            x_now, y_now, h_now = (t.clone() for t in now) if self.runs_own_code else now
            yield Batch(x_now, y_now, h_now, m, chosen, current)

    def _training_data(self, number: int) -> Data:
        tasks = self.scenario.tasks[0 if self.method.joint else number - 1 : number]
        x = torch.cat([task.train.x for task in tasks])
        if x.numel() < SMALL:  # in the cache, floats are gathered in fewer calls than bytes
            x = as_inputs(x)
        y = torch.cat([task.train.y for task in tasks])
        head = torch.cat([torch.full_like(task.train.y, task.head) for task in tasks])
        return x.to(self.device), y.to(self.device), head.to(self.device)

    def _pool(self, number: int) -> Tensor:
        """Choose the candidates of the task just learned, and keep those that no schedule moves."""
        environment = self.environment
        own = self.method.pool(self)
        if own is not None:
            return own
        if number in self._pool_cache:
            return self._pool_cache[number]
        looked_at = False

        def network() -> Learner:
            nonlocal looked_at
            looked_at = True
            return self

        pool = make_pool(
            environment.selection,
            self.scenario.tasks[number - 1],
            environment.pool_size,
            environment.seed,
            network,
        )
        if not looked_at:
            self._pool_cache[number] = pool
        return pool

    # -- evaluating -----------------------------------------------------------------------------------

    def logits(self, x: Tensor, head: Tensor) -> Tensor:
        """Each sample's logits on its own head; in Class-IL over the classes seen so far."""
        return self.own_logits(self.net(x), head)

    def own_logits(self, outputs: Tensor, head: Tensor) -> Tensor:
        """Pick the same logits out of the network's outputs, for methods that need more than logits."""
        return self.net.own_head(outputs, head)[:, : self.n_answers]

    @property
    def n_answers(self) -> int:
        """How many classes a head chooses from: in Class-IL those seen so far, else all it has."""
        if self.scenario.kind == "class":
            return self.n_learned * self.scenario.classes_per_task
        return self.net.head_size

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The features of inputs, for selections; both on the CPU."""
        self.net.eval()
        parts = (rows.to(self.device, copy=True) for rows in x.split(EVALUATION_ROWS))
        return torch.cat([self.net.features(rows).cpu() for rows in parts])

    @torch.no_grad()
    def losses(self, x: Tensor, y: Tensor, head: int) -> Tensor:
        """The cross-entropy on every sample of one head, for selections."""
        self.net.eval()
        found = []
        for rows, labels in zip(x.split(EVALUATION_ROWS), y.split(EVALUATION_ROWS), strict=True):
            rows, labels = rows.to(self.device, copy=True), labels.to(self.device)
            logits = self.logits(rows, torch.full_like(labels, head))
            found.append(F.cross_entropy(logits, labels, reduction="none").cpu())
        return torch.cat(found)

    @torch.no_grad()
    def accuracies(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure validation (NaN for unseen tasks) and test accuracy (every task); two arrays of T."""
        n = self.scenario.n_tasks
        val, test = np.full(n, np.nan), np.full(n, np.nan)
        if self.diverged:
            return val, test
        same_arithmetic()
        self.net.eval()
        with self._own_draws(self.n_learned):
            for i, task in enumerate(self.scenario.tasks):
                test[i] = self._accuracy(task.test, task.head)
                if i < self.n_learned:
                    val[i] = self._accuracy(task.val, task.head)
        return val, test

    def _accuracy(self, samples: Samples, head: int) -> float:
        if self.scenario.kind == "class" and self.n_learned == 0:
            return 0.0  # no class seen: nothing to answer with
        right = 0
        for start in range(0, len(samples), EVALUATION_ROWS):
            rows = slice(start, start + EVALUATION_ROWS)
            y = samples.y[rows].to(self.device)
            x, heads = samples.inputs(rows).to(self.device), torch.full_like(y, head)
            x = x.clone() if self.runs_own_code else x
            right += int((self.logits(x, heads).argmax(dim=1) == y).sum())
        return right / len(samples)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Copy all that the next task needs: weights, optimizer, pools, the method's state."""
        return {
            "net": {name: _copied(t) for name, t in self.net.state_dict().items()},
            "optimizer": _copied(self.optimizer.state_dict()),
            "pools": [pool.clone() for pool in self.pools],
            "method": _copied(self.method.state()),
            "n_learned": self.n_learned,
            "diverged": self.diverged,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot, which stays untouched."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(_copied(state["optimizer"]))
        self.pools = list(state["pools"])
        self.method.load(_copied(state["method"], self.device))
        self.n_learned, self.diverged = state["n_learned"], state["diverged"]


def same_arithmetic() -> None:
    """Use one thread, and take weights near zero for zero: they slow products down twentyfold.

    Both move bits, and a program around us may set them between two tasks, or train in another thread.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc's malloc to keep what is freed, for the whole process; same bits, sooner.

    By default it returns every large tensor to the kernel, which hands out zeroed pages for the next:
    40 % of a step of the ConvNet. A process holds up to 0.4 GB more for it. RSLIB_MALLOC=system leaves
    malloc as it is, and so does every C library but glibc.
    """
    if os.environ.get("RSLIB_MALLOC") == "system" or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-4, 0)  # M_MMAP_MAX: no mapping of its own for a large tensor
    mallopt(-1, -1)  # M_TRIM_THRESHOLD: never shrink the heap
    mallopt(-2, 64 * 2**20)  # M_TOP_PAD: grow it by 64 MB at a time


def _copied(value: Any, device: torch.device | str = "cpu") -> Any:
    """A deep copy of nested dicts, lists, tensors and plain values (optimizers edit theirs in place).

    Raises for anything else, which would be shared with its snapshot, or not come back from the disk.
    """
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {key: _copied(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item, device) for item in value)
    if value is not None and type(value) not in (bool, int, float, str):
        raise BadValue(
            "state() of a method must hold tensors, lists, dicts and plain values, got "
            f"{type(value).__name__}"
        )
    return value
