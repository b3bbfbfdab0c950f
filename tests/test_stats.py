"""rslib.stats against the paper's published tests, hand calculations and slow versions."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats as sp

from rslib import stats
from rslib.show import published

pytestmark = pytest.mark.filterwarnings("error")
NAN = float("nan")


def published_pairs():
    for row in published.welch_tests().to_dict("records"):
        place = (row["table"], row["dataset"], row["group"])
        ours, other = (
            published.published(*place, method, "acc") for method in row["comparison"].split(" vs ")
        )
        yield row, ours, other


def from_published(ours, other):
    return stats.welch_from_summary(*ours[:2], 5, *other[:2], 5)


def test_all_published_welch_tests_come_out():
    """Else deviations are read as sample ones, or a published number was lost on the way here."""
    strictly = 0
    pairs = list(published_pairs())
    assert len(pairs) == 168
    for row, ours, other in pairs:
        test = from_published(ours, other)
        # Means are printed to 0.01 and t to 0.01: no reading of them can be sharper than this.
        standard_error = abs(test.difference / test.t)
        rounding = 0.01 / standard_error + 0.005
        assert abs(test.t - row["t"]) <= max(0.03 * abs(row["t"]), rounding), row
        assert abs(test.p - row["p"]) <= 0.01, row
        strictly += abs(test.t - row["t"]) <= 0.03 * abs(row["t"])
    assert strictly == 165  # the other three have |t| < 0.15, where 3 % is less than the rounding


def test_sample_deviations_would_not_reproduce_the_paper():
    """Else the test above passes whatever the reading, and says nothing."""
    wrong = 0
    for row, ours, other in published_pairs():
        t, _ = sp.ttest_ind_from_stats(*ours[:2], 5, *other[:2], 5, equal_var=False)
        wrong += abs(t - row["t"]) > 0.03 * abs(row["t"])
    assert wrong > 150


@pytest.mark.parametrize("seed", range(3))
def test_welch_is_scipys_test_with_its_interval(seed):
    """Else t, p, df or the interval of the difference is wrong."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.9, 0.02, 5), rng.normal(0.88, 0.05, 4)
    expected = sp.ttest_ind(a, b, equal_var=False)
    interval = expected.confidence_interval()
    got = stats.welch(a, b)
    np.testing.assert_allclose(
        [got.t, got.p, got.df, *got.interval()],
        [expected.statistic, expected.pvalue, expected.df, interval.low, interval.high],
    )
    narrower = expected.confidence_interval(0.90)
    assert got.interval(0.90) == pytest.approx((narrower.low, narrower.high))
    assert got.reason is None
    summary = stats.welch_from_summary(a.mean(), a.std(), 5, b.mean(), b.std(), 4)
    assert summary.t == pytest.approx(got.t) and summary.p == pytest.approx(got.p)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([0.9, 0.8, 0.7], [], "not run"),
        ([0.9, 0.8, 0.7], [NAN, NAN], "not run"),
        ([0.9, 0.8, 0.7], [0.5], "one seed"),
        ([0.9], [], "not run"),
        ([0.1] * 5, [0.3] * 5, "no variance"),
        ([0.5] * 3, [0.5] * 3, "no variance"),
        ([0.9, math.inf], [0.1, 0.2], "one seed"),
    ],
)
def test_welch_says_why_there_is_no_test(a, b, reason):
    """Else a half-finished run crashes the table, or shows a number that means nothing."""
    got = stats.welch(a, b)
    assert math.isnan(got.p) and got.reason == reason


def test_one_sample_without_spread_is_still_a_test():
    """Else a deterministic baseline could not be compared: with var(b) = 0 this is a 1-sample t."""
    a = [0.91, 0.93, 0.92, 0.95]
    got, expected = stats.welch(a, [0.9] * 4), sp.ttest_1samp(a, 0.9)
    assert got.t == pytest.approx(expected.statistic) and got.p == pytest.approx(expected.pvalue)
    assert got.df == pytest.approx(3)


def test_missing_seeds_are_left_out():
    """Else one NaN turns the whole test into NaN."""
    assert stats.welch([0.9, NAN, 0.8, 0.7], [0.5, 0.6]) == stats.welch([0.9, 0.8, 0.7], [0.5, 0.6])


def test_average_ranks_of_the_papers_example():
    """Else ranks are not those of Appendix D.2: ties averaged, then means over seeds."""
    acc = [[[90, 95, 95, 99], [90, 95, 97, 98]]]  # ETS, Heur, DQN, A2C; ETS and Heur copied
    assert stats.average_ranks(acc).tolist() == [4, 2.75, 2.25, 1]
    assert stats.average_ranks([[[90, 99, 95]]]).tolist() == [3, 1, 2]


def test_ranks_against_counting():
    """Else ranks are not 1 + wins against it + half its ties, averaged over pairs."""
    acc = np.random.default_rng(0).integers(0, 4, (3, 2, 5)) / 4
    slow = np.zeros(5)
    for pair in acc.reshape(-1, 5):
        for m in range(5):
            slow[m] += 1 + (pair > pair[m]).sum() + ((pair == pair[m]).sum() - 1) / 2
    np.testing.assert_allclose(stats.average_ranks(acc), slow / 6)


def test_ranks_with_holes():
    """Else a method that was not run shifts the others, or a lone NaN is ranked as a result."""
    acc = np.array([[[0.9, NAN, 0.8], [0.7, NAN, 0.8]], [[0.9, NAN, 0.1], [NAN, NAN, 0.9]]])
    np.testing.assert_allclose(stats.average_ranks(acc), [4 / 3, NAN, 5 / 3])
    whys = [e.reason for e in stats.rank_intervals(acc)]
    assert whys == [None, "not run", None]
    nothing = np.full((2, 2, 2), NAN)
    assert np.isnan(stats.average_ranks(nothing)).all()
    assert [str(e) for e in stats.rank_intervals(nothing)] == ["n/a (not run)"] * 2
    never_together = [[[1.0, NAN]], [[NAN, 1.0]]]
    assert {e.reason for e in stats.rank_intervals(never_together)} == {"no complete environment"}


def test_rank_intervals_hold_the_mean_and_the_extremes():
    """Else intervals do not belong to the ranks they are drawn with."""
    acc = np.random.default_rng(1).normal(0, 1, (10, 5, 3)) + [0, 0, 9]
    first, second, best = stats.rank_intervals(acc)
    for estimate, mean in zip((first, second, best), stats.average_ranks(acc), strict=True):
        assert estimate.low <= estimate.value <= estimate.high and estimate.value == mean
    assert (best.low, best.high) == (1, 1) and first.low < first.high
    (alone, _) = stats.rank_intervals([[[0.3, 0.2]]])
    assert alone.value == 1 and alone.reason == "one environment"


def test_rank_intervals_do_not_shrink_with_copied_seeds():
    """Else a method copied over 20 seeds looks as certain as one run in 20 environments."""
    acc = np.random.default_rng(0).normal(0, 1, (6, 1, 3))
    once, copied = stats.rank_intervals(acc), stats.rank_intervals(np.repeat(acc, 20, axis=1))
    assert [(e.low, e.high) for e in once] == [(e.low, e.high) for e in copied]


def test_holm_by_hand():
    """Else corrected p-values are too small, out of order, or counted over tests not made."""
    got = stats.holm([0.01, 0.04, NAN, 0.03, 0.005])
    np.testing.assert_allclose(got, [0.03, 0.06, NAN, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]).tolist() == [1, 1]
    assert stats.holm([]).size == 0


def test_holm_rejects_what_the_step_down_procedure_rejects():
    """Else adjusting is not the same as stepping down through sorted p-values at 0.05 / remaining."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.uniform(0, 0.06, 6)
        rejected = set()
        for step, i in enumerate(np.argsort(p)):
            if p[i] > 0.05 / (6 - step):
                break
            rejected.add(i)
        assert rejected == set(np.flatnonzero(stats.holm(p) <= 0.05))


def test_paired_difference_is_scipys_paired_test_over_the_pairs():
    """Else a seed that only one method has is compared with another's."""
    a, b = [0.9, 0.8, NAN, 0.7, 0.95], [0.85, 0.7, 0.1, 0.72, 0.9]
    keep = [0, 1, 3, 4]
    expected = sp.ttest_rel(np.array(a)[keep], np.array(b)[keep])
    got = stats.paired_difference(a, b)
    interval = expected.confidence_interval()
    assert (got.n, got.p) == (4, pytest.approx(expected.pvalue))
    assert (got.low, got.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([NAN], [1], "n/a (no pairs)"),
        ([], [], "n/a (no pairs)"),
        ([0.75], [0.5], "0.25 (n/a: one pair)"),
        ([0.9, 0.8], [0.9, 0.8], "0 (n/a: all differences equal)"),
    ],
)
def test_paired_difference_says_what_is_missing(a, b, text):
    """Else equal schedules (MCTS that found ETS) or single seeds crash or warn."""
    assert str(stats.paired_difference(a, b)) == text


def test_unequal_pairs_are_refused():
    """Else arrays of different seeds would be paired by position."""
    with pytest.raises(ValueError, match="equally long"):
        stats.paired_difference([1, 2], [1, 2, 3])


def test_probability_of_improvement_against_mann_whitney_and_counting():
    """Else it is not the mean over strata of wins plus half the ties."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 5, (3, 4)), rng.integers(0, 5, (3, 6))
    counted = [
        sum((x > y) + (x == y) / 2 for x, y in itertools.product(p, q)) / 24
        for p, q in zip(a, b, strict=True)
    ]
    u = [sp.mannwhitneyu(p, q).statistic / 24 for p, q in zip(a, b, strict=True)]
    got = stats.probability_of_improvement(a, b)
    assert got.value == pytest.approx(np.mean(counted)) == pytest.approx(np.mean(u))
    assert 0 <= got.low <= got.value <= got.high <= 1
    other = stats.probability_of_improvement(b, a)
    assert other.value == pytest.approx(1 - got.value)


def test_probability_of_improvement_leaves_out_what_it_cannot_compare():
    """Else a stratum that only one method has counts as a win or a loss."""
    a, b = [[2.0, 2.0], [0.0, 0.0]], [[1.0, 1.0], [NAN, NAN]]
    got = stats.probability_of_improvement(a, b)
    assert (got.value, got.low, got.high) == (1, 1, 1)
    assert stats.probability_of_improvement([[1.0]], [[0.0, 2.0]]).reason == "one run in a stratum"
    assert stats.probability_of_improvement([[NAN]], [[1.0]]).reason == "not run"
    with pytest.raises(ValueError, match="same strata"):
        stats.probability_of_improvement([[1.0]], [[1.0], [2.0]])


def test_counterparts_need_the_papers_setting():
    """Else a Class-IL run or another memory size is printed beside a number it cannot equal."""
    row = {"dataset": "mnist", "scenario": "task", "selection": "kmeans", "replay": "er"}
    row["memory_size"] = 10
    found = published.counterpart(row, "memory_selection", "MCTS", "acc")
    assert found == (98.20, 0.16, "")
    assert (
        published.counterpart(row | {"scenario": "class"}, "memory_selection", "MCTS", "acc")
        is None
    )
    assert (
        published.counterpart(row | {"memory_size": 20}, "memory_selection", "MCTS", "acc") is None
    )
    assert (
        published.counterpart(row | {"dataset": "digits"}, "memory_selection", "MCTS", "acc")
        is None
    )
    for other in ({"rollouts": 20}, {"subset": "100 images per class"}, {"changed": "epochs = 1"}):
        assert published.counterpart(row | other, "memory_selection", "MCTS", "acc") is None
    moved = ("schedule_transfer", "MCTS Seed 1", "acc")  # found by a search, applied elsewhere
    assert published.counterpart(row | {"rollouts": 20}, *moved) is None
    assert published.counterpart(row | {"rollouts": 100}, *moved)
    uniform = row | {"selection": "uniform"}
    assert published.counterpart(uniform, "forward_transfer", "MCTS", "fwt")
    assert published.counterpart(row, "forward_transfer", "MCTS", "fwt") is None
    joint = published.counterpart(row | {"memory_size": 0}, "memory_selection", "Joint", "acc")
    assert joint == (99.75, 0.06, "")
    assert published.counterpart_test(row, "memory_selection", "MCTS", "ETS") == (3.00, 0.040)
    with pytest.raises(ValueError, match="no table 'selection'"):
        published.counterpart(row, "selection", "MCTS", "acc")


def test_figure_1_curves_have_the_published_acc():
    """Else the curves were put into the wrong task or time."""
    curves = published.single_task_replay()
    acc = {k: round(100 * float(m[-1].mean()), 2) for k, m in curves.items()}
    assert acc == {2: 89.66, 3: 93.85, 4: 93.17, 5: 94.49}
    assert all(np.isnan(m[np.triu_indices(5, 1)]).all() for m in curves.values())
