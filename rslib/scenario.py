"""Scenarios: a dataset as a sequence of tasks, in tensors ready for training.

Split tasks cut the classes into groups, permuted tasks permute the pixels of all classes, and a folder
has a task in every file. In Task-IL every task has its own head; in Domain-IL all share one; in Class-IL
one head is over the classes seen so far. 15 % of each task's training data is held out for validation,
seeded by the run seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rslib.data import Dataset
from rslib.errors import UserError
from rslib.seeding import rng

KINDS = ("task", "domain", "class")
VALIDATION_SHARE = 0.15


class ScenarioError(UserError, ValueError):
    """A dataset cannot be cut into the requested tasks."""


@dataclass(frozen=True)
class Samples:
    """Inputs as stored (uint8, or float32 for users' data) and the labels that the loss uses."""

    x: Tensor
    y: Tensor  # (n,) int64: within the head

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor | slice = slice(None)) -> Tensor:
        return as_inputs(self.x[index])


@dataclass(frozen=True)
class Task:
    number: int  # 1, 2, ..., T
    classes: tuple[int, ...]  # the dataset's class numbers, in the order of the labels
    head: int  # which block of outputs the task's samples use
    train: Samples
    val: Samples
    test: Samples


@dataclass(frozen=True)
class Scenario:
    kind: str
    tasks: tuple[Task, ...]
    input_shape: tuple[int, ...]
    n_heads: int
    head_size: int
    classes_per_task: int

    @property
    def n_tasks(self) -> int:
        return len(self.tasks)


def as_inputs(x: Tensor) -> Tensor:
    """Network inputs: uint8 in [0, 1], without normalisation or augmentation (protocol)."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def write_inputs(x: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write `as_inputs(x[rows])` into `out`; bytes are a quarter of the floats to gather."""
    if x.dtype == torch.uint8:
        out.copy_(x.index_select(0, rows)).div_(255)
    else:
        torch.index_select(x, 0, rows, out=out)


def class_order(seed: int, n_classes: int) -> list[int]:
    """The order in which classes are cut into tasks; seed 0 keeps the dataset's own order.

    The legacy generator on purpose: it reproduces the paper's tables of task splits.
    """
    if seed == 0:
        return list(range(n_classes))
    return [int(c) for c in np.random.RandomState(seed).permutation(n_classes)]


def task_splits(n_classes: int, n_tasks: int, class_order_seed: int = 0) -> list[tuple[int, ...]]:
    """List the classes of every task, equally many each; the last few in the order may be left out."""
    per_task = n_classes // n_tasks
    if per_task < 2:
        raise ScenarioError(
            f"{n_tasks} tasks need at least {2 * n_tasks} classes (two each); the data has "
            f"{n_classes}. Use fewer tasks or more classes"
        )
    order = class_order(class_order_seed, n_classes)
    return [tuple(order[t * per_task : (t + 1) * per_task]) for t in range(n_tasks)]


def make_scenario(
    dataset: Dataset,
    kind: str = "task",
    n_tasks: int = 5,
    seed: int = 1,
    class_order_seed: int = 0,
    permuted: bool = False,
    max_train: int | None = None,
) -> Scenario:
    """Cut a dataset into tasks. `seed` moves only the validation split (and the permutations)."""
    if kind not in KINDS:
        raise ScenarioError(f"scenario must be one of {', '.join(KINDS)}, got {kind!r}")
    if n_tasks < 2:
        raise ScenarioError(f"continual learning needs at least two tasks, got {n_tasks}")
    if permuted and kind != "domain":
        raise ScenarioError("permuted tasks share one head. Set scenario='domain'")
    whole = permuted or bool(dataset.task_sizes)  # every task has all classes
    if whole and class_order_seed:
        raise ScenarioError(
            "these tasks have no class order, since each has all classes. Set class_order_seed=0"
        )
    if permuted:
        tasks = _permuted_tasks(dataset, n_tasks, seed, max_train)
    elif dataset.task_sizes:
        tasks = _file_tasks(dataset, kind, n_tasks, seed)
    else:
        tasks = _split_tasks(dataset, kind, n_tasks, seed, class_order_seed)
    if dataset.scale:
        tasks = _scaled(tasks, dataset.scale)
    per_task = len(tasks[0].classes)
    head_size = per_task * n_tasks if kind == "class" else per_task
    n_heads = n_tasks if kind == "task" else 1
    return Scenario(kind, tuple(tasks), dataset.input_shape, n_heads, head_size, per_task)


def _split_tasks(
    dataset: Dataset, kind: str, n_tasks: int, seed: int, class_order_seed: int
) -> list[Task]:
    tasks = []
    splits = task_splits(dataset.n_classes, n_tasks, class_order_seed)
    for number, classes in enumerate(splits, start=1):
        offset = (number - 1) * len(classes) if kind == "class" else 0
        label_of = np.full(dataset.n_classes, -1)
        label_of[list(classes)] = offset + np.arange(len(classes))
        whole = _samples(dataset.x_train, label_of[dataset.y_train])
        test = _samples(dataset.x_test, label_of[dataset.y_test])
        train, val = _hold_out(whole, seed, number)
        head = number - 1 if kind == "task" else 0
        tasks.append(Task(number, classes, head, train, val, test))
    return tasks


def _file_tasks(dataset: Dataset, kind: str, n_tasks: int, seed: int) -> list[Task]:
    """Take the first n_tasks files of a folder as tasks, which share one head."""
    n_files = len(dataset.task_sizes)
    if kind != "domain":
        raise ScenarioError(
            "the files of a folder are tasks that share one head. Set scenario='domain'"
        )
    if n_tasks > n_files:
        raise ScenarioError(f"{dataset.name} has {n_files} files, which give no {n_tasks} tasks")
    ends = np.cumsum(dataset.task_sizes, axis=0)
    classes = tuple(range(dataset.n_classes))
    tasks = []
    for number, (end, size) in enumerate(zip(ends, dataset.task_sizes, strict=True), start=1):
        rows, test_rows = (slice(e - n, e) for e, n in zip(end, size, strict=True))
        train, val = _hold_out(_samples(dataset.x_train[rows], dataset.y_train[rows]), seed, number)
        test = _samples(dataset.x_test[test_rows], dataset.y_test[test_rows])
        tasks.append(Task(number, classes, 0, train, val, test))
    return tasks[:n_tasks]


def _scaled(tasks: list[Task], scale: str) -> list[Task]:
    """Scale users' floats by task 1's training split alone: later tasks are the future.

    A feature that is constant there has no scale and is only shifted. Values are cut at 10 deviations,
    so that no feature drowns the others in a later task.
    """
    first = tasks[0].train.x.double()
    over = [axis for axis in range(first.ndim) if axis != 1]
    mean = first.mean(over, keepdim=True)
    deviation = first.std(over, correction=0, keepdim=True)
    deviation[deviation <= 1e-12 * mean.abs()] = 1

    def scaled(samples: Samples) -> Samples:
        x = samples.x
        if scale == "features":
            x = ((x - mean) / deviation).clamp(-10, 10)
        if not (x := x.float()).isfinite().all():
            raise ScenarioError("some inputs are too large for 32-bit floats. Scale them first")
        return Samples(x, samples.y)

    return [
        replace(task, train=scaled(task.train), val=scaled(task.val), test=scaled(task.test))
        for task in tasks
    ]


def _permuted_tasks(dataset: Dataset, n_tasks: int, seed: int, max_train: int | None) -> list[Task]:
    """Permute the pixels of all classes, once per task; task 1 sees the pixels as they are."""
    n = len(dataset.y_train)
    chosen = np.sort(rng(seed, "subset").permutation(n)[: max_train or n])
    whole = _samples(dataset.x_train[chosen], dataset.y_train[chosen])
    test = _samples(dataset.x_test, dataset.y_test)
    tasks = []
    for number in range(1, n_tasks + 1):
        n_pixels = whole.x[0].numel()
        order = rng(seed, "pixels", number).permutation(n_pixels)
        pixels = torch.arange(n_pixels, device="cpu") if number == 1 else torch.from_numpy(order)
        train, val = _hold_out(_permute(whole, pixels), seed, number)
        classes = tuple(range(dataset.n_classes))
        tasks.append(Task(number, classes, 0, train, val, _permute(test, pixels)))
    return tasks


def _permute(samples: Samples, pixels: Tensor) -> Samples:
    return Samples(samples.x.flatten(1)[:, pixels].view(samples.x.shape), samples.y)


def _samples(x: np.ndarray, labels: np.ndarray) -> Samples:
    """Keep the samples of this task: those of other classes have the label -1."""
    mine = np.flatnonzero(labels >= 0)
    return Samples(torch.from_numpy(np.ascontiguousarray(x[mine])), torch.from_numpy(labels[mine]))


def _hold_out(samples: Samples, seed: int, task: int) -> tuple[Samples, Samples]:
    """Split off the validation samples: 15 %, rounded down; returns (training, validation)."""
    order = torch.from_numpy(rng(seed, "validation", task).permutation(len(samples)))
    n_val = int(VALIDATION_SHARE * len(samples))
    if n_val == 0:
        raise ScenarioError(
            f"task {task} has only {len(samples)} training samples: too few to hold out "
            f"{VALIDATION_SHARE:.0%} for validation. Use fewer tasks or more data"
        )
    val, train = order[:n_val].sort().values, order[n_val:].sort().values
    lost = sorted({*samples.y.tolist()} - {*samples.y[train].tolist()})
    if lost:
        raise ScenarioError(
            f"task {task}: after {VALIDATION_SHARE:.0%} were held out for validation, no training "
            f"sample is left of label {lost[0]}. Add some of that class, or leave it out"
        )
    return Samples(samples.x[train], samples.y[train]), Samples(samples.x[val], samples.y[val])
