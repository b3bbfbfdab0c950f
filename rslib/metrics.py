"""ACC, BWT and FWT of an accuracy matrix (paper Section 4.1 and Appendix C.4).

Rows say after which task, columns which task was tested. A matrix has T rows (after task 1..T), or
T+1 when it starts with the untrained network, as the test matrices of the schedule tree do; FWT
needs that row. Values in the unit of the matrix: fractions in, fractions out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def acc(matrix: ArrayLike) -> float:
    """Mean accuracy over all tasks after the last one."""
    return float(_after_tasks(matrix)[-1].mean())


def bwt(matrix: ArrayLike) -> float:
    """Mean change of each task from when it was learned to the end: negative is forgetting."""
    after = _after_tasks(matrix)
    if len(after) == 1:
        return float("nan")  # with one task there is nothing to forget
    return float((after[-1] - np.diag(after))[:-1].mean())


def fwt(matrix: ArrayLike) -> float:
    """Mean advantage over the untrained network on each task just before it is learned."""
    a = np.asarray(matrix, dtype=float)
    after = _after_tasks(a)
    if len(a) == len(after):
        raise ValueError("FWT needs a first row with the untrained network's accuracies")
    if len(after) == 1:
        return float("nan")
    return float((np.diag(after, k=1) - a[0, 1:]).mean())


def _after_tasks(matrix: ArrayLike) -> np.ndarray:
    """The T x T part: row t-1 = after task t."""
    a = np.asarray(matrix, dtype=float)
    if a.ndim != 2 or a.shape[0] - a.shape[1] not in (0, 1):
        raise ValueError(
            f"an accuracy matrix is (T, T), or (T+1, T) with the untrained network; got {a.shape}"
        )
    return a[a.shape[0] - a.shape[1] :]
