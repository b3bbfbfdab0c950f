"""Replay memory: candidate pools of past tasks, and filling a memory from counts.

A pool is an ordering of a past task's training samples, made once when the task has been learned;
a share of n takes its first n. Classes are interleaved, so that every prefix is as balanced as it can
be. `uniform`, `kmeans` and `kcenter` look at the inputs only; `mof` (Mean-of-Features, herding)
looks at the network that has just learned the task, so its pools depend on the schedule so far.

A selection is one function `select(candidates, n)` that returns the places of n of the candidates, the
most wanted first; `@register("name")` is all that your own needs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor

from rslib.registry import Registry, RegistryError
from rslib.scenario import Task
from rslib.seeding import derived_seed

if TYPE_CHECKING:
    from rslib.learner import Learner


class NeedsNetwork(ValueError):
    """A selection that looks at the network, where no network is given."""


@dataclass(frozen=True)
class Candidates:
    """The training samples of one class of a task (of all, in OVER_ALL_CLASSES), to choose from.

    `features` and `losses` come from the network that has just learned the task. Where a selection
    reads one of them, its pools depend on the schedule so far, and are made anew on every path.
    """

    x: Tensor  # (n, ...) inputs, ready for the network
    y: Tensor  # (n,) labels within their head
    head: int
    key: tuple[int, int, int]  # the seed, the task's number and the label
    learner: Callable[[], Learner] | None

    def __len__(self) -> int:
        return len(self.y)

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers of their own for this seed, purpose, task and class."""
        return np.random.default_rng(self.seed(purpose))

    def seed(self, purpose: str) -> int:
        return derived_seed(self.key[0], purpose, *self.key[1:])

    @functools.cached_property
    def points(self) -> np.ndarray:
        """The inputs as an array of one row each."""
        return self.x.flatten(1).numpy()

    @functools.cached_property
    def features(self) -> np.ndarray:
        """The network's features, one row each."""
        return self._network().features(self.x).flatten(1).numpy()

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """The network's cross-entropy on each sample."""
        return self._network().losses(self.x, self.y, self.head).numpy()

    def _network(self) -> Learner:
        if self.learner is None:
            raise NeedsNetwork("this selection needs the network that has learned the task")
        return self.learner()


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
    learner: Callable[[], Learner] | None = None,
) -> Tensor:
    """Choose the first `size` candidates of a task (all its samples, where it has fewer); returns
    their indices in `task.train`. Classes are equally frequent (where one is rare, the others fill up),
    except with the selections of OVER_ALL_CLASSES.

    `learner` gives the network that has learned the task; it is called if the selection looks at it.
    """
    select = SELECTIONS[selection]
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
        n, key = min(per_class, len(mine)), (seed, task.number, label)
        inputs, labels_of = task.train.inputs(mine), task.train.y[mine]
        order = np.asarray(select(Candidates(inputs, labels_of, task.head, key, learner), n))
        whole = order.dtype.kind in "iu" and order.shape == (n,)
        if not whole or len(np.intersect1d(order, np.arange(len(mine)))) != n:
            raise RegistryError(
                f"selection {selection!r} must return {n} different places below {len(mine)}, "
                f"got {order.tolist()}"
            )
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


def _uniform(candidates: Candidates, n: int) -> np.ndarray:
    """Take a prefix of one permutation per class, so that memories of any size nest."""
    return candidates.rng("pool").permutation(len(candidates))[:n]


def _kmeans(candidates: Candidates, n: int) -> np.ndarray:
    """Take the sample nearest to each of n centres, largest cluster first."""
    points = candidates.points
    # One thread: more change the order of sums, and with it the bits. Warnings: identical images
    # give fewer distinct clusters than n; the samples in `rest` then fill up.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        state = candidates.seed("kmeans") % 2**32
        fitted = KMeans(n_clusters=n, n_init="auto", random_state=state).fit(points)
    label_of = np.asarray(fitted.labels_)
    to_own_centre = ((points - fitted.cluster_centers_[label_of]) ** 2).sum(axis=1)
    sizes = np.bincount(label_of, minlength=n)
    chosen = []
    for cluster in np.argsort(-sizes, kind="stable"):
        members = np.flatnonzero(label_of == cluster)
        if len(members):
            chosen.append(members[np.argmin(to_own_centre[members])])
    rest = [i for i in _uniform(candidates, len(candidates)) if i not in set(chosen)]
    return np.array(chosen + rest[: n - len(chosen)])


def _kmeans_seeds(candidates: Candidates, n: int) -> np.ndarray:
    """The seeds of k-means++, without a step of k-means: samples far apart, drawn at random."""
    state = candidates.seed("kmeans++") % 2**32
    with threadpool_limits(1):  # more threads change the order of sums, and with it the bits
        _, chosen = kmeans_plusplus(candidates.points, n, random_state=state)
    rest = [i for i in _uniform(candidates, len(candidates)) if i not in set(chosen)]
    return np.array([*dict.fromkeys(chosen), *rest])[:n]  # identical images are drawn twice


def _kcenter(candidates: Candidates, n: int) -> np.ndarray:
    """Start with the sample nearest the mean, then always take the sample farthest from all chosen."""
    points = candidates.points
    chosen = [int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < n:
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        distance[chosen] = -1  # identical images are at distance 0: never take one twice
        chosen.append(int(np.argmax(distance)))
    return np.array(chosen)


def _herding(candidates: Candidates, n: int) -> np.ndarray:
    """Mean-of-Features: each next sample brings the mean of the chosen nearest the class mean."""
    features = candidates.features
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


SELECTIONS = Registry(
    "selection",
    {
        "uniform": _uniform,
        "kmeans": _kmeans,
        "kcenter": _kcenter,
        "mof": _herding,
        "unbalanced": _uniform,
        "kmeans++": _kmeans_seeds,
    },
)
register = SELECTIONS.register
# Choose from all classes of a task at once, so a pool may lack one: what the authors' released code
# does under the names of uniform selection and k-means.
OVER_ALL_CLASSES = ("unbalanced", "kmeans++")
