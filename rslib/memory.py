"""Replay memory: candidate pools of past tasks, and filling a memory from counts.

A pool is an ordering of a past task's training samples, made once when the task has been learned;
a share of n takes its first n. Classes are interleaved, so that every prefix is as balanced as it can
be. `uniform`, `kmeans` and `kcenter` look at the inputs only; `mof` (Mean-of-Features, herding)
looks at the network that has just learned the task, so its pools depend on the schedule so far.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor

from rslib.scenario import Task
from rslib.seeding import derived_seed, rng

Selector = Callable[[np.ndarray, int, tuple], np.ndarray]


@dataclass(frozen=True)
class Memory:
    """The samples replayed while one task is learned, task by task, oldest first."""

    x: Tensor  # (m, ...) inputs, ready for the network
    y: Tensor  # (m,) labels within their heads
    head: Tensor  # (m,)
    task: Tensor  # (m,) index of the task they come from, 0 = task 1
    position: Tensor  # (m,) place in that task's pool, by which a method finds what it stored

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Memory:
        """The same memory on another device."""
        return Memory(*(getattr(self, f.name).to(device) for f in fields(self)))


def make_pool(
    selection: str,
    task: Task,
    size: int,
    seed: int,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Choose the first `size` candidates of a task (all its samples, where it has fewer); returns
    their indices in `task.train`. Classes are equally frequent (where one is rare, the others fill up),
    except with the selections of OVER_ALL_CLASSES.

    `features` maps network inputs to features; only "mof" uses it.
    """
    if selection not in SELECTIONS:
        raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}, got {selection!r}")
    if size == 0:
        return torch.zeros(0, dtype=torch.long, device="cpu")
    if selection in OVER_ALL_CLASSES:
        labels, members = [-1], [torch.arange(len(task.train), device="cpu")]
    else:
        labels = task.train.y.unique().tolist()
        members = [torch.nonzero(task.train.y == label).flatten() for label in labels]
    per_class = _per_class_quota([len(mine) for mine in members], size)
    orders = []
    for label, mine in zip(labels, members, strict=True):
        inputs = task.train.inputs(mine)
        if selection == "mof":
            if features is None:
                raise ValueError(
                    "selection='mof' needs `features`, from the network that has learned the task"
                )
            inputs = features(inputs)
        points = inputs.flatten(1).numpy()
        order = SELECTIONS[selection](points, min(per_class, len(mine)), (seed, task.number, label))
        orders.append(mine.numpy()[order])
    return torch.from_numpy(interleave(orders)[:size])


def fill(
    tasks: tuple[Task, ...], pools: list[Tensor], counts: tuple[int, ...], kept_per_task: int = 0
) -> Memory:
    """Fill a memory with `counts[i]` samples of task i+1.

    In Class-IL every past task also gives the first `kept_per_task` candidates of its pool (one per
    class), which no count includes.
    """
    x, y, head, number, position = [], [], [], [], []
    for i, n in enumerate(counts):
        places = torch.arange(kept_per_task + n, device="cpu")
        chosen = pools[i][places]
        x.append(tasks[i].train.inputs(chosen))
        y.append(tasks[i].train.y[chosen])
        head.append(torch.full_like(places, tasks[i].head))
        number.append(torch.full_like(places, i))
        position.append(places)
    if not x:  # task 1: nothing to replay
        empty = torch.zeros(0, dtype=torch.long, device="cpu")
        return Memory(tasks[0].train.inputs(slice(0, 0)), empty, empty, empty, empty)
    return Memory(*(torch.cat(parts) for parts in (x, y, head, number, position)))


def _per_class_quota(sizes: list[int], size: int) -> int:
    """The fewest samples per class with which all classes give `size` together, if they can."""
    quota = -(-size // len(sizes))
    while sum(min(n, quota) for n in sizes) < min(size, sum(sizes)):
        quota += 1
    return quota


def interleave(orders: list[np.ndarray]) -> np.ndarray:
    """Take the first of each class, then the second of each; a class that has run out is skipped."""
    ranked = [(rank, c, i) for c, order in enumerate(orders) for rank, i in enumerate(order)]
    return np.array([i for _, _, i in sorted(ranked)], dtype=np.int64)


def _uniform(points: np.ndarray, n: int, key: tuple) -> np.ndarray:
    """Take a prefix of one permutation per class, so that memories of any size nest."""
    return rng(key[0], "pool", *key[1:]).permutation(len(points))[:n]


def _kmeans(points: np.ndarray, n: int, key: tuple) -> np.ndarray:
    """Take the sample nearest to each of n centres, largest cluster first."""
    # One thread: more change the order of sums, and with it the bits. Warnings: identical images
    # give fewer distinct clusters than n; the samples in `rest` then fill up.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        state = derived_seed(key[0], "kmeans", *key[1:]) % 2**32
        fitted = KMeans(n_clusters=n, n_init="auto", random_state=state).fit(points)
    label_of = np.asarray(fitted.labels_)
    to_own_centre = ((points - fitted.cluster_centers_[label_of]) ** 2).sum(axis=1)
    sizes = np.bincount(label_of, minlength=n)
    chosen = []
    for cluster in np.argsort(-sizes, kind="stable"):
        members = np.flatnonzero(label_of == cluster)
        if len(members):
            chosen.append(members[np.argmin(to_own_centre[members])])
    rest = [i for i in _uniform(points, len(points), key) if i not in set(chosen)]
    return np.array(chosen + rest[: n - len(chosen)])


def _kmeans_seeds(points: np.ndarray, n: int, key: tuple) -> np.ndarray:
    """The seeds of k-means++, without a step of k-means: samples far apart, drawn at random."""
    state = derived_seed(key[0], "kmeans++", *key[1:]) % 2**32
    with threadpool_limits(1):  # more threads change the order of sums, and with it the bits
        _, chosen = kmeans_plusplus(points, n, random_state=state)
    rest = [i for i in _uniform(points, len(points), key) if i not in set(chosen)]
    return np.array([*dict.fromkeys(chosen), *rest])[:n]  # identical images are drawn twice


def _kcenter(points: np.ndarray, n: int, key: tuple) -> np.ndarray:
    """Start with the sample nearest the mean, then always take the sample farthest from all chosen."""
    chosen = [int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < n:
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        distance[chosen] = -1  # identical images are at distance 0: never take one twice
        chosen.append(int(np.argmax(distance)))
    return np.array(chosen)


def _herding(features: np.ndarray, n: int, key: tuple) -> np.ndarray:
    """Mean-of-Features: each next sample brings the mean of the chosen nearest the class mean."""
    features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    target, total = features.mean(axis=0), np.zeros_like(features[0])
    free = np.ones(len(features), dtype=bool)
    chosen = []
    for k in range(1, n + 1):
        gap = ((target - (total + features) / k) ** 2).sum(axis=1)
        best = int(np.argmin(np.where(free, gap, np.inf)))
        free[best] = False
        total += features[best]
        chosen.append(best)
    return np.array(chosen)


SELECTIONS: dict[str, Selector] = {
    "uniform": _uniform,
    "kmeans": _kmeans,
    "kcenter": _kcenter,
    "mof": _herding,
    "unbalanced": _uniform,
    "kmeans++": _kmeans_seeds,
}
# Choose from all classes of a task at once, so a pool may lack one: what the authors' released code
# does under the names of uniform selection and k-means.
OVER_ALL_CLASSES = ("unbalanced", "kmeans++")
