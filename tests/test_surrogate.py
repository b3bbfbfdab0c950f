"""Surrogate search: the model against scikit-learn, the search against its rules."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel
from small_environment import small
from synthetic import synthetic_table

from rslib import gaussian_process as gp
from rslib.schedule import Schedule
from rslib.search import Budget, bfs, mcts, random_best, surrogate
from rslib.tree import ScheduleTree

PATHS = [
    ((10,), (10, 0), (10, 0, 0)),
    ((10,), (5, 5), (4, 3, 3)),
    ((10,), (0, 10), (0, 0, 10)),
    ((10,), (5, 5), (0, 7, 3)),
    ((10,), (10, 0), (0, 0, 10)),
    ((10,), (0, 10), (3, 7, 0)),
]
REWARDS = np.array([0.90, 0.95, 0.93, 0.97])


class Slow(Kernel):
    """The kernel of the docstring, written as two loops over numbers of schedules."""

    def __init__(self):
        pass  # scikit-learn wants to read its parameters here

    def __call__(self, X, Y=None, eval_gradient=False):
        Y = X if Y is None else Y
        return np.array([[self.of(PATHS[int(a)], PATHS[int(b)]) for (b,) in Y] for (a,) in X])

    @staticmethod
    def of(a, b):
        gaps = []
        for k in (2, 3):  # tasks 3 and 4, with two and three old tasks
            gaps.append(
                sum((x / 10 - y / 10) ** 2 for x, y in zip(a[k - 1], b[k - 1], strict=True))
            )
        by_task = np.mean([np.exp(-gap / (2 * 0.4**2)) for gap in gaps])
        return 0.5 * by_task + 0.5 * np.exp(-min(1, 3 / 2) * sum(gaps) / 2)

    def diag(self, X):
        return np.ones(len(X))

    def is_stationary(self):
        return False


def test_the_posterior_is_scikit_learns():
    """Broken: the search believes something else than the formula says."""
    y = (REWARDS - REWARDS.mean()) / REWARDS.std()
    model = GaussianProcessRegressor(Slow(), alpha=0.1, optimizer=None).fit([[0], [1], [2], [3]], y)
    mean, std = model.predict([[4], [5]], return_std=True)
    ours = gp.posterior(PATHS[:4], REWARDS, PATHS[4:])
    assert ours[0] == pytest.approx(mean) and ours[1] == pytest.approx(std)
    z = (mean - y.max()) / std
    expected = (mean - y.max()) * norm.cdf(z) + std * norm.pdf(z)
    assert gp.expected_improvement(PATHS[:4], REWARDS, PATHS[4:]) == pytest.approx(expected)


def test_shares_by_hand():
    """Broken: the model sees other shares than the schedule gives, or a memory that is not full."""
    (found,) = gp.shares([((10,), (3, 7), (0, 0, 0), (1, 1, 2, 0))])
    assert found.tolist() == [[0.3, 0.7, 0, 0], [0, 0, 0, 0], [0.25, 0.25, 0.5, 0]]
    assert gp.kernel(gp.shares(PATHS), gp.shares(PATHS)).diagonal() == pytest.approx(np.ones(6))
    assert gp.standardised(np.array([0.5, 0.5])).tolist() == [0, 0]  # nothing to tell apart


@pytest.mark.parametrize("search", [surrogate, mcts, random_best])
@pytest.mark.parametrize("n_tasks", [4, 6])  # all schedules listed; candidates drawn
def test_a_search_with_less_is_a_prefix_of_one_with_more(search, n_tasks):
    """Broken: more rollouts change what the first ones were, and nothing can be resumed or compared."""
    tree = synthetic_table(n_tasks, 1)
    long = search(tree, 14)
    for n in (3, 9):
        assert search(tree, n).schedules == long.schedules[:n]
    cheap = search(tree, trainings=40)
    assert cheap.schedules == long.schedules[: len(cheap.schedules)] or len(cheap.schedules) > 14
    assert search(tree, 14).schedules == long.schedules  # and the same again
    visited = {s.compositions[:k] for s in cheap.schedules for k in range(n_tasks)}
    assert len(visited) <= 40


def test_another_seed_is_another_search():
    tree = synthetic_table(5, 1)
    assert surrogate(tree, 10, seed=1).schedules != surrogate(tree, 10, seed=2).schedules


def test_no_schedule_is_tried_twice_and_the_end_is_the_best():
    """Broken: the budget is spent on what is known, or the search never ends on a small tree."""
    tree = synthetic_table(4, 2)
    found = surrogate(tree, 100)
    assert len(set(found.schedules)) == len(found.schedules) == 30
    assert found.reward == bfs(tree).reward
    assert len(mcts(tree, trainings=10_000).schedules) >= 30  # ends although every node is known


def test_it_finds_a_good_schedule_where_shares_matter():
    """Broken: the model does not guide. Reward: the share of task 1 at the last task, nothing else."""
    tree = synthetic_table(5, 0)
    for row in range(tree.shape.n_inner, tree.shape.first[-1]):
        actions = tree.shape.path(row)
        share = Schedule.from_actions(actions, 10).compositions[-1][0] / 10
        tree.val[row] = tree.test[row] = share
    found = surrogate(tree, 30)
    assert found.reward == 1.0 and (found.rewards[8:] > 0.5).mean() > 0.8
    assert np.mean(found.rewards[8:]) > np.mean(mcts(tree, 30).rewards[8:]) + 0.1


def test_the_score_can_be_replaced():
    """Broken: the control without the model is not the same search with other choices."""
    tree, seen = synthetic_table(4, 2), []

    def last(tried, rewards, candidates):
        seen.append((len(tried), len(candidates)))
        return np.arange(len(candidates))

    found = surrogate(tree, 12, score=last)
    assert seen == [(n, 30 - n) for n in range(8, 12)]
    assert found.schedules[:8] == surrogate(tree, 12).schedules[:8]


def test_runs_that_diverge_never_lead_and_do_not_blind_the_model():
    """Broken: a NaN reward makes every candidate NaN, or a 0 hides all differences."""
    tree = ScheduleTree(small(lr=1e30, epochs=3, n_tasks=3))
    assert np.isnan(surrogate(tree, 3).acc)
    table = synthetic_table(4, 2)
    table.val[20:30], table.test[20:30] = np.nan, np.nan
    found = surrogate(table, 30)
    assert np.isnan(found.rewards).sum() == 10 and np.isfinite(found.acc)
    seen = []

    def score(tried, rewards, candidates):
        seen.append(rewards)
        return np.zeros(len(candidates))

    lost = synthetic_table(4, 2)
    lost.val[13:43], lost.test[13:43] = np.nan, np.nan  # all but the first leaves and the last
    surrogate(lost, 40, score=score)
    assert any(rewards.min() < rewards.max() for rewards in seen)
    assert min(rewards.min() for rewards in seen) > 0  # also where the first one diverged


def test_the_budget_counts_what_this_search_visits():
    """Broken: a search on a warm store may do more than one on an empty store."""
    budget = Budget(None, 5)
    first, second = ((10,), (5, 5)), ((10,), (0, 10))
    assert budget.cost(first) == 3 and budget.allows(first)
    assert budget.cost(second) == 1 and budget.allows(second)
    assert budget.allows(second) and len(budget.visited) == 4
    assert not budget.allows(((9,), (5, 5))) and len(budget.visited) == 4  # 2 more would be 6
    for wrong in (dict(iterations=0, trainings=None), dict(iterations=None, trainings=-1)):
        with pytest.raises(ValueError, match="must be at least 1"):
            Budget(**wrong)
