"""Schedules: the action space, rounding to whole samples, and the `Schedule` value object."""

import json
import re
from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, islice, product
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rslib import schedule
from rslib.schedule import Schedule, ScheduleError, actions, counts, n_actions, sample_action

weights = st.lists(st.integers(0, 12), min_size=1, max_size=8)


# -- the action space ------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 9))
def test_number_of_actions_is_the_number_of_listed_ones(k):
    """Broken: tables of environments, BFS and the agents' outputs have the wrong size."""
    listed = list(actions(k))
    assert n_actions(k) == comb(2 * k - 1, k) == len(listed) == len(set(listed))


def test_the_papers_action_space_sizes():
    """Broken: not 1,050 schedules for 5 tasks, as the paper counts them."""
    assert [n_actions(k) for k in range(1, 5)] == [1, 3, 10, 35]
    assert np.prod([n_actions(k) for k in range(1, 5)]) == 1050
    assert n_actions(9) == 24_310
    assert n_actions(19) == 17_672_631_900


@pytest.mark.parametrize("k", range(1, 6))
def test_actions_are_all_shares_of_k_parts(k):
    """Broken: some way to divide the memory into k parts is missing, or is counted twice."""
    every = {parts for parts in product(range(k + 1), repeat=k) if sum(parts) == k}
    assert {tuple(int(p * k) for p in action) for action in actions(k)} == every


def test_protocol_order_of_actions():
    """Broken: action indices of stored environment tables mean other memories."""
    shares = [tuple(int(p * 3) for p in action) for action in actions(3)]
    # The multisets 111, 112, 113, 122, 123, 133, 222, 223, 233, 333, written out as shares.
    assert shares == [
        *[(3, 0, 0), (2, 1, 0), (2, 0, 1), (1, 2, 0), (1, 1, 1)],
        *[(1, 0, 2), (0, 3, 0), (0, 2, 1), (0, 1, 2), (0, 0, 3)],
    ]
    for k in range(1, 7):
        first, *_, last = [*actions(k), next(islice(actions(k), n_actions(k) - 1, None))]
        assert first == (1,) + (0,) * (k - 1) and last == (0,) * (k - 1) + (1,)


def test_actions_of_twenty_tasks_come_one_at_a_time():
    """Broken: looking at the first action of a long horizon lists 17.7 billion."""
    assert next(iter(actions(19))) == (1,) + (0,) * 18


@pytest.mark.parametrize("k", range(1, 5))
def test_sampling_is_uniform_over_actions(k):
    """Broken: Random and the rollouts of MCTS prefer some memories."""
    generator = np.random.default_rng(7)
    draws = Counter(sample_action(k, generator) for _ in range(150 * n_actions(k)))
    seen = [draws[action] for action in actions(k)]
    assert sum(seen) == 150 * n_actions(k)  # nothing outside the action space
    if k > 1:
        assert chisquare(seen).pvalue > 0.001


@given(k=st.integers(1, 25), seed=st.integers(0, 2**32))
def test_sampled_actions_are_proportions_in_kths(k, seed):
    """Broken: a draw of a long horizon is not an action at all."""
    action = sample_action(k, np.random.default_rng(seed))
    assert len(action) == k and sum(action) == 1
    assert all(p >= 0 and (p * k).denominator == 1 for p in action)


# -- proportions to counts: against a slow version of the protocol's words --------------------------


@pytest.mark.parametrize("weights, M", [([0.9, 0.1], 5), ([0.7, 0.3], 5), ([1 / 3, 1 / 3], 3)])
def test_single_precision_is_rounded_as_double_is(weights, M):
    """Broken: a policy whose shares are float32 tensors loses ties to the bits behind its digits."""
    for single in (np.array(weights, np.float32), torch.tensor(weights)):
        assert counts(single, M) == counts(weights, M)


def slow_counts(shares: list[Fraction], M: int) -> list[int]:
    """ "floor(p_i * M), leftovers one by one to the largest fractional part, ties to the oldest"."""
    got = [(p * M).numerator // (p * M).denominator for p in shares]
    fraction = [p * M - n for p, n in zip(shares, got, strict=True)]
    while sum(got) < M:
        winner = 0
        for i in range(1, len(got)):
            if fraction[i] > fraction[winner]:
                winner = i
        got[winner] += 1
        fraction[winner] = Fraction(-1)  # served
    return got


def slow_capped(shares: list[Fraction], M: int, available: list[int]) -> list[int]:
    """ "the excess goes one by one to the task with the largest unmet share, ties to the oldest"."""
    got = [min(n, a) for n, a in zip(slow_counts(shares, M), available, strict=True)]
    while sum(got) < min(M, sum(available)):
        unmet = {i: shares[i] * M - got[i] for i in range(len(got)) if got[i] < available[i]}
        got[min(i for i in unmet if unmet[i] == max(unmet.values()))] += 1
    return got


@given(weights.filter(any), st.integers(0, 300))
def test_counts_follow_the_rounding_rule(parts, M):
    """Broken: another memory is replayed than the proportions say."""
    shares = [Fraction(n, sum(parts)) for n in parts]
    got = counts(shares, M)
    assert list(got) == slow_counts(shares, M)
    assert sum(got) == M
    assert all(abs(n - p * M) < 1 for n, p in zip(got, shares, strict=True))
    assert all(n == 0 for n, p in zip(got, shares, strict=True) if p == 0)


@given(st.data(), weights.filter(any), st.integers(0, 120))
def test_counts_capped_at_what_the_pools_hold(data, parts, M):
    """Broken: a memory asks a pool for samples it has not, or is smaller than it could be."""
    available = data.draw(st.lists(st.integers(0, 40), min_size=len(parts), max_size=len(parts)))
    shares = [Fraction(n, sum(parts)) for n in parts]
    got = counts(shares, M, available)
    assert sum(got) == min(M, sum(available))
    assert all(n <= a for n, a in zip(got, available, strict=True))
    assert list(got) == slow_capped(shares, M, available)


@given(weights, st.integers(0, 200), st.floats(0.01, 100))
def test_counts_take_weights_of_any_scale_and_kind(parts, M, scale):
    """Broken: 1/3 as a float, numpy booleans or unnormalised weights round otherwise than 1/3."""
    exact = counts([Fraction(n) for n in parts], M)
    assert counts([n * scale for n in parts], M) == exact
    assert counts(list(np.array(parts) / max(sum(parts), 1)), M) == exact
    as_flags = [n > 6 for n in parts]
    assert counts(list(np.array(as_flags)), M) == counts([Fraction(int(f)) for f in as_flags], M)


@pytest.mark.parametrize(
    ("shares", "M", "expected"),
    [
        ([Fraction(1, 4)] * 4, 10, (3, 3, 2, 2)),  # the protocol's own example
        ([0.25] * 4, 10, (3, 3, 2, 2)),
        ([1, 1, 1], 10, (4, 3, 3)),
        ([1 / 3, 1 / 3, 1 / 3], 10, (4, 3, 3)),
        ([0.1] * 10, 5, (1, 1, 1, 1, 1, 0, 0, 0, 0, 0)),
        ([2, 1, 1], 10, (5, 3, 2)),
        ([3, 1], 10, (8, 2)),  # 7.5 and 2.5: the tie is the oldest task's
        ([1, 3], 10, (3, 7)),
        ([0, 0, 1], 10, (0, 0, 10)),
        ([1e-12, 1e-12], 10, (5, 5)),  # weights are relative, however small
        ([0, 0], 10, (0, 0)),  # no weight at all: no replay
        ([1, 2], 0, (0, 0)),
        ([1], 7, (7,)),
    ],
)
def test_rounding_by_hand(shares, M, expected):
    """Broken: ties go to the wrong task, or a special case is not one."""
    assert counts(shares, M) == expected


@pytest.mark.parametrize(
    ("shares", "M", "available", "expected"),
    [
        # 10 for task 1, which has 2: 8 over, one by one to equal unmet shares, oldest first.
        ([1, 0, 0], 10, [2, 10, 10], (2, 4, 4)),
        ([1, 0, 0], 9, [2, 10, 10], (2, 4, 3)),
        # wanted 5 / 2.5 / 2.5, rounded 5 / 3 / 2, task 1 has 4: task 3 is still owed a half.
        ([2, 1, 1], 10, [4, 9, 9], (4, 3, 3)),
        ([1, 1], 10, [2, 2], (2, 2)),  # pools exhausted before M
        ([1, 1], 4, [0, 9], (0, 4)),
        ([0, 0], 4, [9, 9], (0, 0)),  # no replay stays no replay
        ([1, 1, 1, 1, 1], 2, [2, 2, 2, 2, 2], (1, 1, 0, 0, 0)),  # tiny memory, ETS at the end
    ],
)
def test_capping_by_hand(shares, M, available, expected):
    """Broken: the samples a small pool cannot give are lost or go to the wrong task."""
    assert counts(shares, M, available) == expected


def test_counts_refuses_what_cannot_be_meant():
    """Broken: nonsense weights become some memory without a word."""
    with pytest.raises(ScheduleError, match="negative"):
        counts([1, -1], 10)
    with pytest.raises(
        ScheduleError, match="memory size must be a whole number, not negative, got -1"
    ):
        counts([1], -1)
    for shares in ([1, 1], [0, 0]):
        with pytest.raises(ScheduleError, match="2 proportions for 1 pools"):
            counts(shares, 10, [3])
    for pool in (-5, 2.5, float("nan"), "4"):
        with pytest.raises(ScheduleError, match="pools hold whole numbers of samples"):
            counts([1, 1], 10, [pool, 20])
    assert json.dumps(counts([1, 1], 10, np.array([3, 20]))) == "[3, 7]"
    for action in (-1, 10):
        with pytest.raises(ScheduleError, match=f"action {action} with 3 tasks seen: there are 10"):
            schedule.action_shares(3, action)
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ScheduleError, match="finite"):
            counts([1, wrong], 10)


@given(k=st.integers(1, 5), M=st.integers(0, 12))
@settings(max_examples=30)
def test_compositions_are_the_distinct_counts_in_action_order(k, M):
    """Broken: MCTS trains one memory twice, or never reaches another."""
    every = [counts(action, M) for action in actions(k)]
    distinct = schedule.compositions(k, M)
    assert set(distinct) == set(every) and len(distinct) == len(set(distinct))
    assert sorted(distinct, key=every.index) == distinct


def test_compositions_of_a_tiny_memory_are_fewer_than_the_actions():
    """Broken: two actions with the same memory count as two children."""
    assert schedule.compositions(2, 1) == [(1, 0), (0, 1)]  # thirds: (1/2, 1/2) rounds to (1, 0)
    assert schedule.compositions(3, 10, [0, 0, 0]) == [(0, 0, 0)]
    assert len(schedule.compositions(4, 10)) == 35


# -- the value object ------------------------------------------------------------------------------

paths = st.integers(0, 6).flatmap(
    lambda n: st.tuples(*[st.tuples(*[st.integers(0, 99)] * k) for k in range(1, n + 1)])
)


def test_ets_shares_equally():
    """Broken: the baseline of every comparison is not the equal schedule."""
    ets = Schedule.ets(5, 10)
    assert ets.compositions == ((10,), (5, 5), (4, 3, 3), (3, 3, 2, 2))
    assert ets.n_tasks == 5


def test_from_actions_reads_protocol_indices():
    """Broken: a schedule found in an environment table is replayed as another one."""
    assert Schedule.from_actions([0, 1, 9], 10).compositions == ((10,), (5, 5), (0, 0, 10))
    for k in range(1, 5):
        for index, multiset in enumerate(combinations_with_replacement(range(k), k)):
            zeros = [0] * (k - 1)
            found = Schedule.from_actions([*zeros, index], 2 * k).compositions[-1]
            assert found == tuple(2 * multiset.count(i) for i in range(k))


@pytest.mark.parametrize("indices", [[1], [0, 3], [0, -1], [0, 0, 10], [0, 1.5]])
def test_from_actions_refuses_an_index_outside_the_action_space(indices):
    """Broken: an index that does not exist becomes some other action."""
    last = len(indices)
    with pytest.raises(
        ScheduleError, match=rf"task {last + 1} is outside 0\.\.{n_actions(last) - 1}"
    ):
        Schedule.from_actions(indices, 10)


@given(paths)
def test_json_round_trip(path):
    """Broken: a saved schedule does not come back as itself."""
    original = Schedule(path)
    assert Schedule.from_json(original.to_json()) == original
    assert json.loads(original.to_json()) == {"compositions": [list(c) for c in path]}


@given(paths, paths)
def test_equality_and_hash_are_by_value(a, b):
    """Broken: schedules cannot be counted, cached or compared."""
    as_lists = Schedule([list(c) for c in a])  # pyright: ignore[reportArgumentType]
    assert Schedule(a) == as_lists and hash(Schedule(a)) == hash(as_lists)
    assert (Schedule(a) == Schedule(b)) == (a == b)
    assert len({Schedule(a), as_lists, Schedule(b)}) == 1 + (a != b)


def test_a_schedule_cannot_be_changed():
    """Broken: a schedule used as a key moves under its users."""
    with pytest.raises(AttributeError):
        Schedule.ets(3, 10).compositions = ()  # pyright: ignore[reportAttributeAccessIssue]
    numpy_counts = Schedule((np.array([10]), np.array([4, 6])))  # pyright: ignore
    assert numpy_counts == Schedule(((10,), (4, 6)))
    assert all(type(n) is int for c in numpy_counts.compositions for n in c)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (((1, 2),), r"composition 1 \(for task 2\) needs 1 counts, one per old task; got \(1, 2\)"),
        (((1,), (1,)), r"composition 2 \(for task 3\) needs 2 counts"),
        (((1,), (1, -1)), r"composition 2 has a negative count: \(1, -1\)"),
        (((1.5,),), r"composition 1 needs whole numbers, got \(1.5,\)"),
        (((True,),), "composition 1 needs whole numbers"),
        ((("3",),), "composition 1 needs whole numbers"),
        ((("x",),), "composition 1 needs whole numbers"),
        (((None,),), "composition 1 needs whole numbers"),
        (((float("nan"),),), "composition 1 needs whole numbers"),
        (((float("inf"),),), "composition 1 needs whole numbers"),
        ((3,), "composition 1 must be a list of counts, got 3"),
        (7, "a schedule is a list of compositions, got 7"),
        (None, "a schedule is a list of compositions, got None"),
    ],
)
def test_schedule_validation_names_the_composition(path, message):
    """Broken: a mistyped schedule fails far away, or trains on something else."""
    with pytest.raises(ScheduleError, match=message):
        Schedule(path)


@pytest.mark.parametrize("text", ["", "not json", "[]", "[[1]]", '"x"', "3", '{"composition": []}'])
def test_json_that_is_no_schedule_is_refused(text):
    """Broken: a wrong file gives an error about something else."""
    with pytest.raises(ScheduleError, match="schedule in JSON"):
        Schedule.from_json(text)
    with pytest.raises(ScheduleError, match="list of compositions"):
        Schedule.from_json('{"compositions": null}')


def test_array_and_proportions():
    """Broken: bubble plots show samples at the wrong task or time."""
    s = Schedule(((4,), (0, 0), (1, 0, 3)))
    assert s.array().tolist() == [[4, 0, 0], [0, 0, 0], [1, 0, 3]]
    assert s.proportions().tolist() == [[1, 0, 0], [0, 0, 0], [0.25, 0, 0.75]]
    assert s.n_tasks == 4 and Schedule(()).n_tasks == 1


def test_text_form():
    """Broken: a printed schedule does not say what is replayed when."""
    assert str(Schedule(((10,), (0, 0), (7, 0, 3)))).splitlines() == [
        "task 2: 10 of task 1",
        "task 3: no replay",
        "task 4: 7 of task 1, 3 of task 3",
    ]
    assert str(Schedule(())) == "one task, nothing to replay"


def test_html_form_is_a_table_of_the_counts():
    """Broken: JupyterLab shows other numbers than the schedule has."""
    text = Schedule(((10,), (0, 6)))._repr_html_()
    rows = re.findall("<tr>(.*?)</tr>", text)
    assert re.findall("<th>(.*?)</th>", rows[0]) == ["replayed samples of", "task 1", "task 2"]
    body = [(*re.findall("<th>(.*?)</th>", r), re.findall("<td>(.*?)</td>", r)) for r in rows[1:]]
    assert body == [("at task 2", ["10"]), ("at task 3", ["", "6"])]
    assert "3 tasks" in text
