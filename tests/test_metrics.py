"""ACC, BWT and FWT, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rslib.metrics import acc, bwt, fwt

UNTRAINED = [0.50, 0.40, 0.55]
AFTER = [
    [0.90, 0.60, 0.50],  # after task 1
    [0.70, 0.95, 0.45],
    [0.60, 0.85, 0.99],  # after task 3
]
WITH_FIRST_ROW = [UNTRAINED, *AFTER]


@pytest.mark.parametrize("matrix", [AFTER, WITH_FIRST_ROW, np.array(WITH_FIRST_ROW)])
def test_acc_and_bwt_by_hand(matrix):
    """Broken: every number of every table."""
    assert acc(matrix) == pytest.approx((0.60 + 0.85 + 0.99) / 3)
    assert bwt(matrix) == pytest.approx(((0.60 - 0.90) + (0.85 - 0.95)) / 2)


def test_fwt_by_hand():
    """Broken: forward transfer compares with the wrong row, or counts task 1."""
    # Task 2 just before it is learned: 0.60 against 0.40; task 3: 0.45 against 0.55.
    assert fwt(WITH_FIRST_ROW) == pytest.approx(((0.60 - 0.40) + (0.45 - 0.55)) / 2)


def test_fwt_needs_the_untrained_network():
    """Broken: FWT without its baseline is some number instead of an error."""
    with pytest.raises(ValueError, match="untrained network"):
        fwt(AFTER)


def test_one_task_has_an_acc_and_nothing_to_transfer():
    """Broken: the first task of a sequence cannot be reported."""
    assert acc([[0.5], [0.9]]) == 0.9 and acc([[0.9]]) == 0.9
    assert np.isnan(bwt([[0.9]])) and np.isnan(fwt([[0.5], [0.9]]))


@given(st.integers(2, 7).flatmap(lambda t: arrays(float, (t + 1, t), elements=st.floats(0, 1))))
def test_metrics_are_the_papers_sums(a):
    """Broken: the vectorised formulas differ from the equations, one index at a time."""
    n = a.shape[1]

    def A(t, i):  # the paper's A_{t,i}, from 1; row 0 is the untrained network
        return a[t, i - 1]

    assert acc(a) == pytest.approx(sum(A(n, i) for i in range(1, n + 1)) / n)
    assert bwt(a) == pytest.approx(sum(A(n, i) - A(i, i) for i in range(1, n)) / (n - 1), abs=1e-12)
    expected = sum(A(i - 1, i) - A(0, i) for i in range(2, n + 1)) / (n - 1)
    assert fwt(a) == pytest.approx(expected, abs=1e-12)
    assert acc(100 * a) == pytest.approx(100 * acc(a))  # percent in, percent out


@pytest.mark.parametrize("shape", [(2, 3), (5, 3), (3,), (2, 2, 2), (0, 1)])
def test_other_shapes_are_refused(shape):
    """Broken: a transposed or cut matrix gives a plausible number."""
    for metric in (acc, bwt, fwt):
        with pytest.raises(ValueError, match="accuracy matrix"):
            metric(np.zeros(shape))


def test_a_run_that_did_not_converge_has_no_acc():
    """Broken: a diverged run enters a mean as a number."""
    assert np.isnan(acc([[0.9, 0.5], [np.nan, np.nan]]))
