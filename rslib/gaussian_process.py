"""What a search can believe about schedules it has not tried: a Gaussian process on their shares.

Two schedules are alike if they give the old tasks alike shares of the memory. With p_t the shares at
task t (one per old task), over the n tasks t = 3..T at which there is a choice, the kernel is

    k(p, q) = 1/2 * mean_t exp(-|p_t - q_t|^2 / (2 * 0.4^2))  +  1/2 * exp(-s * sum_t |p_t - q_t|^2 / 2)

The first half lets a good composition at one task count wherever it occurs, the second half holds whole
schedules apart; s = min(1, 3 / n) keeps distances comparable on long horizons. Rewards are standardised,
and their noise has the variance 0.1: a schedule that won by luck on the validation set is doubted. These
numbers were fixed before the comparisons in results/searches were run. The paper has no such search.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from rslib.schedule import Path

LENGTH_OF_TASK, LENGTH_OF_SCHEDULE = 0.4, 1.0
NOISE = 0.1  # variance, in units of the rewards' own


def shares(paths: Sequence[Path]) -> np.ndarray:
    """(schedules, tasks with a choice, old tasks): shares of the memory, 0 where a task is not yet old.

    At task 2 there is one old task and nothing to choose, so it is left out.
    """
    return np.stack([_shares(path) for path in paths])


@functools.lru_cache(maxsize=20_000)  # a search weighs the same schedules after every rollout
def _shares(path: Path) -> np.ndarray:
    out = np.zeros((max(len(path) - 1, 1), len(path)))
    for row, composition in zip(out, path[1:], strict=False):
        row[: len(composition)] = np.asarray(composition) / max(sum(composition), 1)
    return out


def kernel(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """(n, m) similarity of two sets of `shares`, 1 for equal schedules."""
    n_tasks = p.shape[1]
    squared = np.stack([cdist(p[:, t], q[:, t], "sqeuclidean") for t in range(n_tasks)])
    by_task = np.exp(-squared / (2 * LENGTH_OF_TASK**2)).mean(axis=0)
    scale = min(1.0, 3 / n_tasks)
    together = np.exp(-scale * squared.sum(axis=0) / (2 * LENGTH_OF_SCHEDULE**2))
    return (by_task + together) / 2


def posterior(
    tried: Sequence[Path], rewards: np.ndarray, candidates: Sequence[Path]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the candidates' rewards, in standardised units (see `standardised`)."""
    known, wanted = shares(tried), shares(candidates)
    factor = cho_factor(kernel(known, known) + NOISE * np.eye(len(known)), lower=True)
    alike = kernel(wanted, known)  # (candidates, tried)
    mean = alike @ cho_solve(factor, standardised(rewards))
    variance = 1 - np.einsum("ij,ji->i", alike, cho_solve(factor, alike.T))
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def standardised(rewards: np.ndarray) -> np.ndarray:
    """Rewards with mean 0 and deviation 1; all 0 where they are equal."""
    if np.ptp(rewards) < 1e-12:  # a mean of equal numbers may be off by a bit
        return np.zeros(len(rewards))
    return (rewards - rewards.mean()) / rewards.std()


def expected_improvement(
    tried: Sequence[Path], rewards: np.ndarray, candidates: Sequence[Path]
) -> np.ndarray:
    """How much each candidate is expected to exceed the best reward so far, in standardised units."""
    mean, std = posterior(tried, rewards, candidates)
    gain = mean - standardised(rewards).max()
    z = gain / std
    return gain * ndtr(z) + std * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
