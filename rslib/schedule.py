"""Replay schedules: which share of the memory every old task gets, at every task.

The words are the paper's (Section 3.2). With k tasks seen, an *action* is a multiset of size k
over those tasks and stands for the *proportions* bincount / k; a *composition* is what it becomes
in a memory of M samples: whole counts per task. A `Schedule` is the list of compositions for the
tasks 2..T, in that order. Nothing here trains, and nothing here knows a dataset.

Four letters are used throughout the library:
    T  the number of tasks          k  the tasks seen so far: task k+1 is learned next
    M  the samples in the memory    E  the environments that an agent learns on
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb, isfinite, lcm, prod
from numbers import Real

import numpy as np

from rslib.errors import UserError

Composition = tuple[int, ...]  # samples per seen task
Path = tuple[Composition, ...]  # compositions for the tasks 2, 3, ...: a node of the schedule tree
Proportions = tuple[Fraction, ...]  # shares per seen task, exact so that ties are ties


class ScheduleError(UserError, ValueError):
    """A composition or schedule that is not valid."""


def n_actions(k: int) -> int:
    """The number of actions with k tasks seen: multisets of size k over k tasks."""
    return comb(2 * k - 1, k)


def n_schedules(n_tasks: int) -> int:
    """The number of schedules for T tasks: one action at each of the tasks 2..T."""
    return prod(n_actions(k) for k in range(1, n_tasks))


def actions(k: int) -> Iterator[Proportions]:
    """All actions in protocol order (index 0: everything from the oldest task), one at a time.

    A generator, because at 20 tasks there are 17.7 billion of them.
    """
    for multiset in combinations_with_replacement(range(k), k):
        yield _proportions(multiset, k)


def action_shares(k: int, action: int) -> list[int]:
    """How often each of k tasks is in an action, found without listing the others (17.7 billion
    at 19 tasks). Proportions are these over k."""
    if not 0 <= action < n_actions(k):
        raise ScheduleError(
            f"action {action} with {k} tasks seen: there are {n_actions(k)}, from 0"
        )
    multiset, rest, lowest = [], action, 0
    for place in range(k):
        # multisets that go on with a task: the other places from that task on
        while rest >= (following := comb((k - lowest) + (k - place - 1) - 1, k - place - 1)):
            rest -= following
            lowest += 1
        multiset.append(lowest)
    return np.bincount(multiset, minlength=k).tolist()


def sample_action(k: int, rng: np.random.Generator) -> Proportions:
    """One action drawn uniformly from the multisets, without listing them.

    Stars and bars: k of 2k-1 places chosen at random, in order, minus 0..k-1, is a sorted multiset,
    and every multiset has exactly one such choice.
    """
    places = np.sort(rng.choice(2 * k - 1, size=k, replace=False))
    return _proportions(places - np.arange(k), k)


def _proportions(multiset: Iterable[int], k: int) -> Proportions:
    return tuple(Fraction(int(n), k) for n in np.bincount(list(multiset), minlength=k))


def counts(
    proportions: Sequence[float | Fraction], M: int, available: Sequence[int] | None = None
) -> Composition:
    """Whole samples per task for a memory of M: the protocol's rounding.

    floor(p_i * M), then one more for the largest fractional parts, ties to the oldest task.
    Where a pool holds fewer (`available`), its share is capped and the excess goes one by one to
    the task with the largest unmet share, ties to the oldest, until M or the pools are exhausted.
    Proportions may be any non-negative weights; all zero means no replay.
    """
    if isinstance(M, bool) or not isinstance(M, int | np.integer) or M < 0:
        raise ScheduleError(f"memory size must be a whole number, not negative, got {M!r}")
    if available is not None:
        if len(available) != len(proportions):
            raise ScheduleError(f"{len(proportions)} proportions for {len(available)} pools")
        if not all(_is_whole(n) and n >= 0 for n in available):
            raise ScheduleError(f"pools hold whole numbers of samples, got {list(available)}")
        available = [int(n) for n in available]  # numpy's are no JSON
    if not all(isinstance(p, Fraction) or isfinite(p) for p in proportions):
        raise ScheduleError(f"proportions must be finite, got {[float(p) for p in proportions]}")
    shares = [p if isinstance(p, Fraction) else Fraction(_as_float(p)) for p in proportions]
    if any(s.denominator > 10**9 for s in shares):
        # Floats that came from 1/3 or 0.1 are meant as such: exact ties matter, stray bits do not.
        scale = sum(map(abs, shares))
        shares = [(s / scale).limit_denominator(10**9) for s in shares]
    if any(s.numerator < 0 for s in shares):
        raise ScheduleError(f"proportions must not be negative, got {[float(s) for s in shares]}")
    denominator = lcm(*(s.denominator for s in shares))
    weights = [s.numerator * (denominator // s.denominator) for s in shares]
    total = sum(weights)
    if not total:
        return (0,) * len(shares)
    # Exact, and in whole numbers five times as fast as in fractions: a sample is `total` parts.
    wanted = [int(M) * weight for weight in weights]
    rounded = [w // total for w in wanted]
    by_remainder = sorted(range(len(wanted)), key=lambda i: (rounded[i] * total - wanted[i], i))
    for i in by_remainder[: int(M) - sum(rounded)]:
        rounded[i] += 1
    return tuple(rounded) if available is None else _capped(rounded, wanted, total, available)


def _as_float(p: float) -> float:
    """A weight as it was meant: float32's 0.1 is 0.1, and ties are not decided by its stray bits."""
    single = str(getattr(p, "dtype", "")).endswith("float32")  # numpy's or torch's
    return float(str(np.float32(float(p)))) if single else float(p)


def _capped(
    rounded: list[int], wanted: Sequence[int], total: int, available: Sequence[int]
) -> Composition:
    filled = [min(n, a) for n, a in zip(rounded, available, strict=True)]
    for _ in range(sum(rounded) - sum(filled)):
        open_tasks = [i for i, a in enumerate(available) if filled[i] < a]
        if not open_tasks:
            break
        # "Unmet share": what the task was meant to get minus what it has.
        filled[max(open_tasks, key=lambda i: (wanted[i] - filled[i] * total, -i))] += 1
    return tuple(filled)


def compositions(k: int, M: int, available: Sequence[int] | None = None) -> list[Composition]:
    """The distinct compositions of the actions with k tasks seen, in action order.

    Two actions that round to the same counts are the same training, so they are one.
    """
    return list(dict.fromkeys(counts(p, M, available) for p in actions(k)))


@dataclass(frozen=True)
class Schedule:
    """Memory compositions for the tasks 2..T: `compositions[0]` is replayed at task 2."""

    compositions: Path

    def __post_init__(self):
        object.__setattr__(self, "compositions", checked_path(self.compositions))

    @classmethod
    def ets(cls, n_tasks: int, M: int) -> Schedule:
        """Equal task shares: the baseline every search has to beat."""
        return cls(tuple(counts([1] * k, M) for k in range(1, n_tasks)))

    @classmethod
    def from_actions(cls, indices: Sequence[int], M: int) -> Schedule:
        """From action indices in protocol order, as environment tables have them."""
        path = []
        for k, index in enumerate(indices, start=1):
            if index not in range(n_actions(k)):
                raise ScheduleError(
                    f"action {index} at task {k + 1} is outside 0..{n_actions(k) - 1}"
                )
            path.append(counts(action_shares(k, index), M))
        return cls(tuple(path))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ScheduleError(f"not a schedule in JSON: {error}") from None
        if not isinstance(value, dict) or "compositions" not in value:
            raise ScheduleError('a schedule in JSON is {"compositions": [[...], ...]}')
        return cls(value["compositions"])

    def to_json(self) -> str:
        return json.dumps({"compositions": [list(c) for c in self.compositions]})

    @property
    def n_tasks(self) -> int:
        return len(self.compositions) + 1

    def array(self) -> np.ndarray:
        """(T-1, T-1) counts; row r = memory at task r+2, column c = samples of task c+1."""
        table = np.zeros((len(self.compositions),) * 2, dtype=int)
        for row, composition in enumerate(self.compositions):
            table[row, : len(composition)] = composition
        return table

    def proportions(self) -> np.ndarray:
        """`array()` as shares of each task's memory; a task without replay is a row of zeros."""
        table = self.array().astype(float)
        return table / np.maximum(table.sum(axis=1, keepdims=True), 1)

    def __str__(self) -> str:
        lines = []
        for t, composition in enumerate(self.compositions, start=2):
            shares = [f"{n} of task {i}" for i, n in enumerate(composition, start=1) if n]
            lines.append(f"task {t}: " + (", ".join(shares) or "no replay"))
        return "\n".join(lines) or "one task, nothing to replay"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>task {i}</th>" for i in range(1, self.n_tasks))
        rows = "".join(
            f"<tr><th>at task {t}</th>"
            + "".join(f"<td>{n or ''}</td>" for n in row[: t - 1])
            + "</tr>"
            for t, row in enumerate(self.array(), start=2)
        )
        return (
            f"<table><caption>Replay schedule, {self.n_tasks} tasks</caption>"
            f"<tr><th>replayed samples of</th>{head}</tr>{rows}</table>"
        )


def checked_path(path: Iterable[Iterable[int]]) -> Path:
    """Compositions as tuples of ints, or an error that names the one that is wrong."""
    if not isinstance(path, Iterable):
        raise ScheduleError(f"a schedule is a list of compositions, got {path!r}")
    out = []
    for k, composition in enumerate(path, start=1):
        try:
            values = tuple(composition)
        except TypeError:
            raise ScheduleError(f"composition {k} must be a list of counts, got {composition!r}")
        if len(values) != k:
            raise ScheduleError(
                f"composition {k} (for task {k + 1}) needs {k} counts, one per old task; got {values}"
            )
        if not all(_is_whole(n) for n in values):
            raise ScheduleError(f"composition {k} needs whole numbers, got {values}")
        if any(n < 0 for n in values):
            raise ScheduleError(f"composition {k} has a negative count: {values}")
        out.append(tuple(int(n) for n in values))
    return tuple(out)


UNTRAINED = "-"  # stands for the network before task 1; "" is the network after task 1


def path_text(path: Path) -> str:
    """A path as rows are filed under it: "10/5,5" is ten of task 1, then five of each."""
    return "/".join(",".join(map(str, composition)) for composition in path)


def path_from_text(text: str) -> Path:
    if not text or text == UNTRAINED:
        return ()
    try:
        return tuple(tuple(int(n) for n in part.split(",")) for part in text.split("/"))
    except ValueError:
        raise ScheduleError(f'a schedule is written like "10/5,5/4,3,3", got {text!r}') from None


def _is_whole(n: object) -> bool:
    # numpy's numbers are registered as Integral or Real; JSON may bring 3.0, strings and null.
    return isinstance(n, Real) and not isinstance(n, bool) and float(n).is_integer()
