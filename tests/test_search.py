"""Searches and policies on trees whose rewards are known: made up here, or small enough to list."""

import functools
import itertools
import math

import numpy as np
import pytest
from small_environment import small

from rslib import policies, search
from rslib import tree as tree_module
from rslib.schedule import Schedule, ScheduleError, compositions, counts, n_actions
from rslib.search import (
    Result,
    SearchNode,
    bfs,
    mcts,
    random_best,
    run,
    run_policy,
)
from rslib.tree import Node, ScheduleTree

COMPOSITIONS = functools.cache(compositions)


class MadeUp:
    """A tree without training: `reward(path)` of a leaf is all there is to it."""

    def __init__(self, reward, n_tasks: int = 5, memory_size: int = 10, seed: int = 1):
        self.reward, self.n_tasks, self.trained = reward, n_tasks, 0
        self.environment = small(n_tasks=n_tasks, memory_size=memory_size, seed=seed)
        self.walked: list[tuple] = []
        self._known: set[tuple] = set()
        self._children = {k: COMPOSITIONS(k, memory_size) for k in range(1, n_tasks)}

    def budget(self, k: int) -> int:
        return self.environment.memory_size or 0

    def available(self, k: int) -> list[int]:
        return [self.budget(k)] * k

    def counts(self, proportions, k: int):
        return counts(list(proportions), self.budget(k))

    def compositions(self, k: int):
        return self._children[k]

    def walk(self, path=()) -> Node:
        path = tuple(path.compositions if isinstance(path, Schedule) else path)
        nodes = {path[:i] for i in range(len(path) + 1)}
        self.trained += len(nodes - self._known)
        self._known |= nodes
        if len(path) == self.n_tasks - 1:
            self.walked.append(path)
        value = self.reward(path)
        n = self.n_tasks
        test = np.full((len(path) + 2, n), np.nan if np.isnan(value) else value / 2)
        test[0] = 0.1
        val = np.where(np.arange(n) < np.arange(len(path) + 2)[:, None], value, np.nan)
        return Node(self.environment, path, val, test)


def structured(seed: int):
    """Rewards of 1,050 leaves: every choice has a worth of its own, and some noise per leaf.

    In reality too a good composition at one task is good whatever follows, give or take.
    """
    draws = np.random.RandomState(seed)
    worth = [{c: draws.rand() for c in COMPOSITIONS(k, 10)} for k in range(1, 5)]
    weight = draws.dirichlet(np.ones(4))
    noise: dict[tuple, float] = {}
    for path in itertools.product(*worth):
        noise[path] = draws.rand()

    def reward(path: tuple) -> float:
        parts = [w * own.get(c, 0) for w, own, c in zip(weight, worth, path)]
        return 0.7 + 0.25 * sum(parts) + 0.05 * noise.get(path, 0.5)

    return reward, list(noise)


# -- MCTS ------------------------------------------------------------------------------------------


def test_mcts_finds_the_best_of_1050_leaves_clearly_more_often_than_luck():
    """200 made-up trees, 100 rollouts: at least twice as often as 100 draws are expected to.

    Draws with replacement hit the best of 1,050 in 9.1 % of trees: 18.2 of 200, standard deviation
    4.1. Twice that is 4.5 standard deviations above luck; a search that ignores rewards fails.
    """
    by_search = by_luck = ahead = 0
    for seed in range(200):
        reward, leaves = structured(seed)
        best = max(leaves, key=reward)
        found = mcts(MadeUp(reward, seed=seed), 100)
        drawn = np.random.RandomState(seed).choice(len(leaves), 100)
        lucky = max((leaves[i] for i in drawn), key=reward)
        by_search += found.schedule.compositions == best
        by_luck += lucky == best
        ahead += found.reward >= reward(lucky)
    assert 6 <= by_luck <= 31  # else the control is no control
    assert by_search >= 37, f"MCTS found {by_search}, luck {by_luck} of 200"
    assert ahead >= 130, f"MCTS was at least as good as luck in {ahead} of 200"


def test_uct_by_hand():
    """q + C sqrt(2 ln n(parent) / n(child)), q the best reward below."""
    parent = SearchNode(visits=10, best=0.9)
    a, b = SearchNode(visits=4, best=0.9), SearchNode(visits=1, best=0.8)
    assert parent.uct(a) == pytest.approx(0.9 + 0.1 * 1.0729830131446736, abs=1e-12)
    assert parent.uct(b) == pytest.approx(0.8 + 0.1 * 2.145966026289347, abs=1e-12)
    assert parent.uct(b) > parent.uct(a)  # rarely tried: it is its turn
    assert SearchNode(visits=1).uct(SearchNode(visits=1, best=0.3)) == 0.3  # ln 1 = 0


def test_mcts_step_by_step_against_a_plain_version():
    """Replayed from its schedules: selection by UCT, new children first, the maximum backed up."""
    reward, _ = structured(3)
    found = mcts(MadeUp(reward), 60, seed=7)

    visits: dict[tuple, int] = {}
    best: dict[tuple, float] = {}
    for schedule, value in zip(found.schedules, found.rewards):
        path = schedule.compositions
        depth = 0
        while depth < 4:
            children = [(*path[:depth], c) for c in compositions(depth + 1, 10)]
            if any(child not in visits for child in children):
                assert path[: depth + 1] not in visits  # an unvisited child comes first
                depth += 1
                break
            n = visits[path[:depth]]
            uct = {c: best[c] + 0.1 * math.sqrt(2 * math.log(n) / visits[c]) for c in children}
            assert uct[path[: depth + 1]] == max(uct.values())
            depth += 1
        for i in range(depth + 1):
            visits[path[:i]] = visits.get(path[:i], 0) + 1
            best[path[:i]] = max(best.get(path[:i], -1), value)
    assert visits[()] == 60  # visits count at the root too


def test_unvisited_children_are_drawn_uniformly():
    """Released code went from last to first, which prefers the newest task."""
    first = [
        mcts(MadeUp(lambda path: 0.5), 2, seed=seed).schedules[1].compositions[1]
        for seed in range(300)
    ]
    for composition in compositions(2, 10):
        assert 70 <= first.count(composition) <= 130  # 100 each, standard deviation 8


def test_a_shorter_search_is_the_beginning_of_a_longer_one():
    """The curve over rollouts is one search, not many; a resumed one goes on where it was."""
    reward, _ = structured(0)
    short, long = mcts(MadeUp(reward), 20), mcts(MadeUp(reward), 60)
    assert short.schedules == long.schedules[:20]
    assert np.array_equal(short.rewards, long.rewards[:20])
    assert np.array_equal(short.best_so_far, long.best_so_far[:20])
    few, many = random_best(MadeUp(reward), 20), random_best(MadeUp(reward), 60)
    assert few.schedules == many.schedules[:20]


def test_the_seed_of_the_search_is_the_environments_unless_given():
    reward, _ = structured(0)
    own, given, other = (mcts(MadeUp(reward, seed=4), 10, seed=s) for s in (None, 4, 5))
    assert own.schedules == given.schedules != other.schedules


def test_the_result_is_the_best_by_validation_with_its_own_test_accuracies():
    reward, _ = structured(1)
    result = mcts(MadeUp(reward), 50)
    best = int(np.argmax(result.rewards))
    assert result.schedule == result.schedules[best] and result.reward == result.rewards[best]
    assert result.acc == result.accs[best] == result.best_so_far[-1]
    assert len(result.best_so_far) == 50 and result.best_so_far[0] == result.accs[0]
    leaders = [result.accs[np.argmax(result.rewards[: i + 1])] for i in range(50)]
    assert list(result.best_so_far) == leaders
    assert "50 rollouts" in str(result) and "ACC" in result._repr_html_()


def test_every_rollout_is_reported_as_it_ends():
    reward, _ = structured(1)
    seen = []
    result = mcts(
        MadeUp(reward), 12, on_rollout=lambda i, node, depth: seen.append((i, node.reward))
    )
    assert seen == list(enumerate(result.rewards))


def test_a_search_larger_than_the_tree_visits_it_all():
    """Three leaves, 20 rollouts: all seen, no endless loop, every node trained once."""
    tree = MadeUp(lambda path: 0.5 + path[1][0] / 100 if len(path) == 2 else 0.5, n_tasks=3)
    result = mcts(tree, 20)
    assert {s.compositions[1] for s in result.schedules} == {(10, 0), (5, 5), (0, 10)}
    assert result.schedule.compositions == ((10,), (10, 0)) and len(result.rewards) == 20
    assert tree.trained == result.trained == 1 + 1 + 3


@pytest.mark.parametrize("iterations", [0, -1])
def test_no_rollouts_are_refused(iterations):
    for look in (mcts, random_best):
        with pytest.raises(ValueError, match="at least 1"):
            look(MadeUp(lambda path: 0.5), iterations)


@pytest.mark.parametrize("n_tasks, memory_size", [(10, 90), (20, 95), (20, 3)])
def test_long_task_sequences_draw_their_children_lazily(n_tasks, memory_size, monkeypatch):
    """17.7 billion actions at the last of 20 tasks: listing them would never end."""

    class Counted(ScheduleTree):
        def compositions(self, k):
            assert n_actions(k) <= search.ENUMERABLE, f"listed the children with {k} tasks seen"
            return super().compositions(k)

    class Learner:
        def __init__(self, environment):
            self.reset()

        def reset(self):
            self.path = []

        n_learned = property(lambda self: len(self.path))

        def learn(self, given):
            self.path = [*self.path, list(given)]

        def accuracies(self):
            t = len(self.path)
            done = np.where(np.arange(n_tasks) < t, 0.5 + sum(map(sum, self.path)) % 7 / 20, np.nan)
            return done, np.full(n_tasks, 0.5)

        def snapshot(self):
            return {"path": self.path}

        def restore(self, state):
            self.path = state["path"]

    monkeypatch.setattr(tree_module, "Learner", Learner)
    environment = small(
        "permuteddigits", scenario="domain", n_tasks=n_tasks, memory_size=memory_size
    )
    tree = Counted(environment)
    result = mcts(tree, 30)
    assert len(result.schedules) == 30 and result.schedule.n_tasks == n_tasks
    assert all(sum(c) == memory_size for s in result.schedules for c in s.compositions)
    assert mcts(Counted(environment), 30).schedules == result.schedules
    with pytest.raises(ValueError, match="BFS would train"):
        bfs(tree)


# -- BFS, and real training ------------------------------------------------------------------------


def test_bfs_equals_brute_force_on_three_tasks(tmp_path):
    """Every schedule in a tree of its own, against one walk over all: real training, 3 tasks."""
    draws = np.random.RandomState(0)
    x = draws.rand(180, 8).astype(np.float32)
    y = np.arange(180) % 6
    x[np.arange(180), y] += 0.5
    test = dict(x_test=x[120:], y_test=y[120:])
    np.savez(tmp_path / "six.npz", x_train=x[:120], y_train=y[:120], **test)
    environment = small(str(tmp_path / "six.npz"), n_tasks=3, memory_size=4, batch_size=16)
    tree = ScheduleTree(environment)
    result = bfs(tree)
    shares = [(a, b) for a, b in ((4, 0), (2, 2), (0, 4))]
    alone = [ScheduleTree(environment).walk([(4,), share]) for share in shares]
    assert [s.compositions for s in result.schedules] == [((4,), share) for share in shares]
    assert result.rewards.tolist() == [node.reward for node in alone]
    assert result.accs.tolist() == [node.acc for node in alone]
    best = max(alone, key=lambda node: node.reward)
    assert result.reward == best.reward and result.acc == result.accs[np.argmax(result.rewards)]
    assert tree.trained == result.trained == 1 + 1 + 3
    assert bfs(tree).trained == 0
    assert mcts(tree, 10).reward == best.reward and tree.trained == 5  # in the same tree: nothing


def test_bfs_visits_all_1050():
    reward, leaves = structured(5)
    result = bfs(MadeUp(reward))
    assert [schedule.compositions for schedule in result.schedules] == leaves
    assert len(set(leaves)) == 1050
    assert result.schedule.compositions == max(leaves, key=reward)
    assert result.rewards.tolist() == [MadeUp(reward).walk(leaf).reward for leaf in leaves]


# -- policies --------------------------------------------------------------------------------------


def test_random_is_the_first_draw_of_random_best():
    """`Random` = `random:0`, so the control contains the baseline it is compared with."""
    reward, _ = structured(2)
    plain, named = (run_policy(MadeUp(reward), name) for name in ("random", "random:0"))
    best = random_best(MadeUp(reward), 30)
    assert plain.schedule == named.schedule == best.schedules[0]
    assert run_policy(MadeUp(reward), "random:1").schedule == best.schedules[1] != plain.schedule
    assert len(set(best.schedules)) > 20
    assert best.reward == best.rewards.max() >= plain.reward
    assert run_policy(MadeUp(reward, seed=2), "random").schedule != plain.schedule


def test_random_draws_actions_uniformly():
    """Over seeds, each of the 35 actions at task 5 as often as any other."""
    draws = [run_policy(MadeUp(lambda p: 0.5), f"random:{i}").schedule for i in range(350)]
    last = [schedule.compositions[3] for schedule in draws]
    expected = {c: 0 for c in compositions(4, 10)}
    for composition in last:
        expected[composition] += 1
    assert len(expected) == 35 and min(expected.values()) >= 1 and max(expected.values()) <= 26


def test_ets_and_fixed_schedules():
    reward, leaves = structured(2)
    tree, best = MadeUp(reward), leaves[321]
    assert run_policy(tree, "ets").schedule == Schedule.ets(5, 10)
    assert run_policy(tree, "none").schedule.compositions == tuple((0,) * k for k in range(1, 5))
    fixed = run_policy(tree, Schedule(best))
    assert fixed.schedule.compositions == best and fixed.label == "Fixed"
    text = "schedule:" + "/".join(",".join(map(str, c)) for c in best)
    assert run(tree, text).reward == fixed.reward
    with pytest.raises(ScheduleError, match="a schedule for 3 tasks, but 5"):
        run_policy(tree, Schedule(best[:2]))


def test_a_policy_sees_the_validation_accuracies_so_far_and_nothing_else():
    """In a real tree: squares without NaN below the diagonal, in the order of the tasks."""
    seen = []

    @policies.register("spy")
    def spy(val, rng, parameter):
        seen.append(val.copy())
        return np.arange(len(val)) == 0

    try:
        tree = ScheduleTree(small())
        node = run_policy(tree, "spy").node
    finally:
        del policies.POLICIES["spy"]
    assert node.path == ((10,), (10, 0), (10, 0, 0), (10, 0, 0, 0))
    for k, val in enumerate(seen, start=1):
        assert np.array_equal(val, node.val[1 : k + 1, :k], equal_nan=True)
    assert len(seen) == 4


def test_joint_replays_nothing_whatever_the_policy():
    tree = ScheduleTree(small(method="joint"))
    result = run_policy(tree, "ets")
    assert not any(map(sum, result.schedule.compositions))
    assert bfs(tree).schedule == result.schedule == mcts(tree, 5).schedule and tree.trained == 5


# -- runs that did not converge --------------------------------------------------------------------


def diverging(path: tuple) -> float:
    """NaN wherever task 1 gets nothing at task 5; else better the more it gets."""
    if len(path) == 4:
        return np.nan if path[3][0] == 0 else 0.5 + path[3][0] / 100
    return 0.5


def test_diverged_runs_never_lead_and_never_crash():
    for result in (
        mcts(MadeUp(diverging), 80),
        random_best(MadeUp(diverging), 40),
        bfs(MadeUp(diverging)),
    ):
        assert np.isnan(result.rewards).any()
        assert result.reward == np.nanmax(result.rewards) and np.isfinite(result.acc)
        started = int(np.argmax(~np.isnan(result.rewards)))
        assert np.isfinite(result.best_so_far[started:]).all()


def test_when_all_runs_diverge_the_result_says_so():
    for look in (mcts, random_best):
        result = look(MadeUp(lambda path: np.nan if path else 0.5), 5)
        assert isinstance(result, Result) and np.isnan(result.acc)
        assert not result.node.converged and np.isnan(result.best_so_far).all()


def test_policies_go_on_when_the_run_has_diverged():
    """A heuristic has nothing to go by: it must not raise, and the row must be NaN."""
    tree = ScheduleTree(small(lr=1e30, epochs=3, first_epochs=3))
    for name in ("ets", "random", "heur-gd:0.9", "heur-ld:0.9", "ets+heur-at:0.5"):
        result = run_policy(tree, name)
        assert result.node.complete and np.isnan(result.acc) and np.isnan(result.reward)


@pytest.mark.parametrize("search_of", [search.mcts, search.random_best, search.surrogate])
def test_too_few_trainings_for_one_schedule(search_of):
    """Broken: a budget below the number of tasks ends in numpy's words."""
    with pytest.raises(search.BadValue, match="trainings must allow one schedule"):
        search_of(ScheduleTree(small()), trainings=2)
