"""Statistics over seeds and environments: Welch's test, ranks, Holm, intervals.

Every function takes plain arrays and leaves out missing values (NaN, infinite). Where a number has no
meaning (one seed, no spread) the result carries the `reason`; no function warns or raises for data that
a half-finished run can produce.
The tests and the resampling are scipy's; only what scipy lacks is written out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as sp

# Spread below this share of the mean is rounding of equal numbers, not spread.
_ROUNDING = 1e-12
_CONFIDENCE = 0.95  # of every interval


@dataclass(frozen=True)
class Welch:
    """Welch's two-tailed t-test of mean(a) - mean(b), with the interval of that difference."""

    t: float
    p: float
    df: float
    se: float  # of the difference
    difference: float = nan
    n_a: int = 0
    n_b: int = 0
    reason: str | None = None  # why the test is missing; None where it is not

    def interval(self, confidence: float = _CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the difference at a confidence; NaN where there is no test."""
        half = float(sp.t.ppf((1 + confidence) / 2, self.df)) * self.se
        return self.difference - half, self.difference + half


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; `p` only where a test belongs to it."""

    value: float
    low: float = nan
    high: float = nan
    n: int = 0
    p: float = nan
    reason: str | None = None  # why the value, or only its interval, is missing

    def __str__(self) -> str:
        if not isfinite(self.value):
            return f"n/a ({self.reason})"
        if self.reason:
            return f"{self.value:.4g} (n/a: {self.reason})"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def welch(a: ArrayLike, b: ArrayLike) -> Welch:
    """Compare two samples by Welch's test, such as the ACC of two methods over seeds."""
    return welch_from_summary(*_summary(_finite(a)), *_summary(_finite(b)))


def welch_from_summary(
    mean_a: float,
    std_a: float,
    n_a: int,
    mean_b: float,
    std_b: float,
    n_b: int,
) -> Welch:
    """Welch's test from means and *population* standard deviations (ddof = 0), as papers print.

    The paper prints population deviations; read as sample deviations, they give 4 of its 168 tests.
    """
    difference, reason = mean_a - mean_b, None
    if min(n_a, n_b) < 2:
        reason = "one seed" if min(n_a, n_b) == 1 else "not run"
    elif not all(map(isfinite, (mean_a, std_a, mean_b, std_b))):
        reason = "missing numbers"
    elif max(std_a, std_b) <= _ROUNDING * max(abs(mean_a), abs(mean_b)):
        reason = "no variance"
    if reason:
        return Welch(nan, nan, nan, nan, difference, n_a, n_b, reason)
    # Squared standard errors of the two means: sample variance / n = population variance / (n-1).
    se_a, se_b = std_a**2 / (n_a - 1), std_b**2 / (n_b - 1)
    t, p = sp.ttest_ind_from_stats(
        mean_a, sqrt(se_a * n_a), n_a, mean_b, sqrt(se_b * n_b), n_b, equal_var=False
    )
    # scipy's summary form does not return it: Welch-Satterthwaite.
    df = (se_a + se_b) ** 2 / (se_a**2 / (n_a - 1) + se_b**2 / (n_b - 1))
    return Welch(float(t), float(p), df, sqrt(se_a + se_b), difference, n_a, n_b)


def holm(pvalues: ArrayLike) -> np.ndarray:
    """Holm's step-down adjusted p-values; tests that do not exist (NaN) are not counted."""
    p = np.asarray(pvalues, dtype=float)
    adjusted = np.full(p.shape, nan)
    order = [i for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    floor = 0.0
    for rank, i in enumerate(order):
        floor = max(floor, (len(order) - rank) * p[i])  # never below an easier test's value
        adjusted[i] = min(floor, 1.0)
    return adjusted


def paired_difference(a: ArrayLike, b: ArrayLike) -> Estimate:
    """Mean of a - b over the seeds that have both, with the paired t-test's interval and p.

    All methods of an experiment see the same realisation of a seed, so this is the sharper test.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"pairs need two equally long samples, got {a.shape} and {b.shape}")
    pairs = np.isfinite(a) & np.isfinite(b)
    differences = (a - b)[pairs]
    if not len(differences):
        return Estimate(nan, reason="no pairs")
    value = float(differences.mean())
    if len(differences) == 1:
        return Estimate(value, n=1, reason="one pair")
    scale = max(np.abs(a[pairs]).max(), np.abs(b[pairs]).max())
    if np.ptp(differences) <= _ROUNDING * scale:
        return Estimate(value, n=len(differences), reason="all differences equal")
    test: Any = sp.ttest_1samp(differences, 0)
    low, high = test.confidence_interval(_CONFIDENCE)
    return Estimate(value, float(low), float(high), len(differences), float(test.pvalue))


def plus_minus(mean: float, std: float = nan) -> str:
    """A mean and its deviation as text, such as "97.00 ± 1.41"; a mean that is NaN is "-"."""
    if not isfinite(mean):
        return "-"
    return f"{mean:.2f} ± {std:.2f}" if isfinite(std) else f"{mean:.2f}"


def average_ranks(acc: ArrayLike) -> np.ndarray:
    """One average rank per method, 1 = best (Appendix D.2). acc: (environments, seeds, methods).

    Methods are ranked on unrounded ACC within each (environment, seed), ties averaged, then ranks
    are averaged over both. A method that was never run has rank NaN; an (environment, seed) in
    which another method is missing is left out for all, since ranks among fewer are not the same.
    """
    by_environment, run = _ranks(acc)
    means = np.full(len(run), nan)
    if by_environment:
        means[run] = np.concatenate(by_environment).mean(axis=0)
    return means


def rank_intervals(acc: ArrayLike) -> list[Estimate]:
    """`average_ranks` with 95 % bootstrap intervals over environments.

    Over environments only: seeds of one environment are not independent (the ranks of methods
    without a seed are copies), and resampling them would make the intervals too narrow.
    """
    by_environment, run = _ranks(acc)
    units = [ranks.mean(axis=0) for ranks in by_environment]  # each (methods run,)
    out = []
    for i, value in enumerate(average_ranks(acc).tolist()):
        if not run[i]:
            out.append(Estimate(nan, reason="not run"))
        elif not units:
            out.append(Estimate(nan, reason="no complete environment"))
        elif len(units) == 1:
            out.append(Estimate(value, n=1, reason="one environment"))
        else:
            sample = np.array(units)[:, run[:i].sum()]
            out.append(Estimate(value, *_bootstrap([sample], np.mean), len(units)))
    return out


def _ranks(acc: ArrayLike) -> tuple[list[np.ndarray], np.ndarray]:
    """Rank (complete seeds, methods run) in every environment that has any; also which methods ran."""
    acc = np.asarray(acc, dtype=float)
    if acc.ndim != 3:
        raise ValueError(f"acc is (environments, seeds, methods), got shape {acc.shape}")
    run = np.asarray(np.isfinite(acc).any(axis=(0, 1)))
    complete = [env[np.isfinite(env).all(axis=1)] for env in acc[:, :, run] if run.any()]
    return [np.asarray(sp.rankdata(-env, axis=-1)) for env in complete if len(env)], run


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> Estimate:
    """How often a run of a beats a run of b (ties half), averaged over strata, with an interval.

    a: (strata, runs of a), b: (strata, runs of b). A stratum that lacks either is left out.
    """
    rows_a, rows_b = (np.atleast_2d(np.asarray(x, float)) for x in (a, b))
    if len(rows_a) != len(rows_b):
        raise ValueError(f"a and b need the same strata, got {len(rows_a)} and {len(rows_b)}")
    both = [(_finite(x), _finite(y)) for x, y in zip(rows_a, rows_b, strict=True)]
    both = [(x, y) for x, y in both if len(x) and len(y)]
    if not both:
        return Estimate(nan, reason="not run")
    samples = [x for x, _ in both] + [y for _, y in both]
    value, n = float(_improvement(*samples)), sum(map(len, samples))
    if min(map(len, samples)) < 2:
        return Estimate(value, n=n, reason="one run in a stratum")
    low, high = _bootstrap(samples, _improvement)
    return Estimate(value, low, high, n)


def _improvement(*samples, axis=-1):
    half = len(samples) // 2
    wins = [
        (np.sign(x[..., :, None] - y[..., None, :]) + 1).mean(axis=(-1, -2)) / 2
        for x, y in zip(samples[:half], samples[half:], strict=True)
    ]
    return np.mean(wins, axis=0)


def _bootstrap(samples, statistic) -> tuple[float, float]:
    """Percentile interval; scipy resamples every sample on its own, which is stratification.

    The batch bounds memory: all resamples at once would be 2,000 times the data.
    """
    result = sp.bootstrap(
        samples,
        statistic,
        n_resamples=2000,
        vectorized=True,
        method="percentile",
        batch=500,
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _finite(values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, dtype=float).ravel()
    return values[np.isfinite(values)]


def _summary(x: np.ndarray) -> tuple[float, float, int]:
    """Mean, population deviation (exactly 0 for equal numbers, whatever their mean rounds to), n."""
    if not len(x):
        return nan, nan, 0
    equal = np.ptp(x) <= _ROUNDING * np.abs(x).max()
    return float(x.mean()), 0.0 if equal else float(x.std()), len(x)
