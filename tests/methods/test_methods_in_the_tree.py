"""What every replay method owes the schedule tree: exact snapshots, the scheduled samples and no others,
own heads, tiny memories, and a divergence that is reported instead of averaged."""

import io

import numpy as np
import pytest
import torch

from rslib.environment import Environment
from rslib.learner import Learner
from rslib.memory import fill
from rslib.methods import METHODS, Batch, Method, hal
from rslib.search import mcts, run_policy
from rslib.store import Store
from rslib.tree import ScheduleTree
from tools import bench

REPLAY = ("er", "hal", "mer", "der", "derpp", "agem", "er-ring")


@pytest.fixture(autouse=True)
def _short_fine_tuning(monkeypatch, request):
    """What is tested here does not depend on how long HAL fine-tunes (the slow ones do, and take it)."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(hal, "FINE_TUNING_STEPS", 3)


WAYS = [
    {},
    {"scenario": "class", "memory_size": 12},
    {"network": "convnet", "batch_size": 200},
]
PATH = ((4,), (1, 3), (0, 2, 2), (1, 1, 1, 1))


def small(method: str, **changes) -> Environment:
    settings = dict(epochs=1, hidden=16) | changes
    if method == "hal":
        settings["method_args"] = dict(anchor_steps=5) | settings.get("method_args", {})
    return Environment("digits", method=method, **settings)


def weights(learner: Learner) -> list[torch.Tensor]:
    return [t.clone() for t in learner.net.state_dict().values()]


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", WAYS, ids=["mlp", "class-il", "convnet"])
@pytest.mark.parametrize("method", REPLAY)
def test_resuming_from_a_saved_snapshot_gives_the_same_weights(method, changes):
    """Fails if a method keeps something the snapshot lacks, or edits what the snapshot shares."""
    learner = Learner(small(method, **changes))
    path = [counts if not changes else tuple(min(n, 1) for n in counts) for counts in PATH[:3]]
    learner.learn(())
    learner.learn(path[0])
    file = io.BytesIO()
    torch.save(learner.snapshot(), file)
    for counts in path[1:]:
        learner.learn(counts)
    through = weights(learner)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = Learner(small(method, **changes))
    for _ in range(2):  # twice: the state itself must have stayed as it was
        other.restore(state)
        for counts in path[1:]:
            other.learn(counts)
        assert all(torch.equal(a, b) for a, b in zip(through, weights(other), strict=True))


@pytest.mark.parametrize("method", REPLAY)
def test_a_cached_walk_equals_a_fresh_one_also_after_a_resume(method, tmp_path):
    """Fails if what a tree answers depends on what it was asked before, or on who asked."""
    environment = small(method)
    fresh = ScheduleTree(environment).walk(PATH)
    tree = ScheduleTree(environment, Store(tmp_path, shipped=None))
    tree.walk((*PATH[:3], (4, 0, 0, 0)))  # a sibling: the rest of the way is in the cache
    tree.walk(((0,), (0, 0), (4, 0, 0)))  # somewhere else
    for again in (tree, ScheduleTree(environment, Store(tmp_path, shipped=None))):
        node = again.walk(PATH)
        assert node.val.tobytes() == fresh.val.tobytes()
        assert node.test.tobytes() == fresh.test.tobytes()
    resumed = ScheduleTree(environment, Store(tmp_path, shipped=None))
    new = (*PATH[:3], (0, 0, 0, 4))  # its parent's snapshot comes from the disk
    assert resumed.walk(new).test.tobytes() == ScheduleTree(environment).walk(new).test.tobytes()
    assert resumed.trained == 1


# -- the scheduled samples, and all of them ----------------------------------------------------


@pytest.mark.parametrize("method", REPLAY)
def test_a_method_sees_the_scheduled_composition(method, monkeypatch):
    """Fails if a method replays from a buffer of its own, as released HAL, MER and DER did."""
    learner = Learner(small(method, batch_size=32))
    for counts in ((), (10,), (5, 5)):
        learner.learn(counts)
    seen = []
    step = METHODS[method].step

    def watched(self, learner, batch):
        seen.append((batch.m, self.memory.task.bincount().tolist()))
        assert torch.equal(batch.x[: batch.m], self.memory.x)
        return step(self, learner, batch)

    monkeypatch.setattr(METHODS[method], "step", watched)
    learner.learn((1, 0, 5))
    assert set(map(str, seen)) == {str((6, [1, 0, 5]))}
    samples = learner.scenario.tasks[2].train.inputs(learner.pools[2][:5])
    assert torch.equal(learner.method.memory.x[1:], samples)


@pytest.mark.parametrize("method", REPLAY)
def test_every_replayed_sample_has_a_say(method):
    """Fails if a method leaves out some of the samples the schedule gave it."""
    learner = Learner(small(method))
    learner.learn(())
    learner.learn((4,))
    before = learner.snapshot()

    def stepped(changed: int | None) -> list[torch.Tensor]:
        learner.restore(before)
        learner.n_learned = 3
        learner.net.train()
        memory = fill(learner.scenario.tasks, learner.pools, (4, 2))
        learner.method.begin(learner, memory)
        # Opposite labels for the current samples: A-GEM's memory speaks only when contradicted.
        x = torch.cat([memory.x, memory.x.repeat(2, 1, 1, 1)])
        y = torch.cat([memory.y, 1 - memory.y, 1 - memory.y])
        head = torch.cat([memory.head, memory.head, memory.head])
        if changed is not None:
            x[changed] = x[changed].flip(-1)
        m = len(memory)
        learner.method.step(learner, Batch(x, y, head, m, None, torch.arange(2 * m)))
        return weights(learner)

    unchanged = stepped(None)
    for row in range(6):
        assert any(not torch.equal(a, b) for a, b in zip(unchanged, stepped(row), strict=True)), (
            f"replayed sample {row} makes no difference"
        )


# -- own heads -------------------------------------------------------------------------------------


@pytest.fixture
def contradiction(tmp_path) -> str:
    """Three tasks with the same two pictures, which the second labels the other way round."""
    draws = np.random.default_rng(0)
    left, right = np.zeros((4, 4)), np.zeros((4, 4))
    left[:, :2], right[:, 2:] = 200, 200
    pictures = [left, right, right, left, left, right]
    parts = {}
    for part, n in (("train", 60), ("test", 20)):
        noisy = [p + draws.integers(0, 50, (n, 4, 4)) for p in pictures]
        parts[f"x_{part}"] = np.concatenate(noisy).astype(np.uint8)
        parts[f"y_{part}"] = np.repeat(np.arange(6), n)
    np.savez(tmp_path / "contradiction.npz", **parts)
    return str(tmp_path / "contradiction.npz")


@pytest.mark.parametrize("method", REPLAY)
def test_each_sample_goes_through_its_own_head(method, contradiction):
    """Fails if replayed samples go through one head (as in released MER): the same picture then has
    two labels there, and the tasks' accuracies fall to a half or below."""
    environment = Environment(
        contradiction, method=method, n_tasks=3, memory_size=8, epochs=8, hidden=16, lr=0.01
    )
    node = ScheduleTree(environment).walk(((8,), (4, 4)))
    assert node.test[-1].min() > 0.95
    if method in ("hal", "mer", "derpp"):  # and the fault would be seen
        learner = Learner(environment)
        own = learner.own_logits
        learner.own_logits = lambda outputs, head: own(outputs, torch.zeros_like(head))
        for counts in ((), (8,), (4, 4)):
            learner.learn(counts)
        assert learner.accuracies()[1].min() < 0.8


# -- tiny memories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["er", "agem", "er-ring"])
def test_incremental_baselines_replay_one_sample_per_class_of_every_past_task(method):
    """Fails if ETS leaves out a sample of the tiny memory, or replays one twice."""
    environment = small(method, samples_per_class=1, memory_size=8)
    tree = ScheduleTree(environment)
    assert [tree.counts([1] * k, k) for k in (1, 2, 3, 4)] == [(2,) * k for k in (1, 2, 3, 4)]
    result = run_policy(tree, "ets")
    assert result.schedule.compositions == tuple((2,) * k for k in (1, 2, 3, 4))
    for task, pool in zip(tree._learner.scenario.tasks, tree._learner.pools, strict=True):
        assert sorted(task.train.y[pool].tolist()) == [0, 1]


def test_the_tiny_memory_of_scheduling_grows_until_it_is_full():
    """Fails if M = 2 of 1 sample per class gives other totals than the paper's bars."""
    tree = ScheduleTree(small("er", samples_per_class=1, memory_size=2))
    random, found = run_policy(tree, "random"), mcts(tree, 4)
    for result in (random, found):
        for schedule in result.schedules:
            assert [sum(c) for c in schedule.compositions] == [2, 2, 2, 2]
            assert max(max(c) for c in schedule.compositions) <= 2
    tree = ScheduleTree(Environment("permuteddigits", samples_per_class=1, memory_size=50))
    random_draw = np.random.default_rng(0)
    for k in range(1, 10):
        shares = random_draw.multinomial(k, [1 / k] * k)
        counts = tree.counts(shares, k)
        assert sum(counts) == min(10 * k, 50)
        assert max(counts) <= 10


# -- divergence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REPLAY)
def test_an_absurd_learning_rate_is_reported_not_averaged(method):
    """Fails if NaN weights are evaluated: all logits NaN is "class 0", an accuracy of a half."""
    arguments = dict(optimizer="sgd", lr=1e20)
    tree = ScheduleTree(small(method, method_args=arguments))
    node = tree.walk(PATH)
    assert not node.converged
    assert np.isnan(node.test[-1]).all()
    assert np.isnan(node.val[-1]).all()
    result = mcts(tree, 3)
    assert len(result.rewards) == 3
    assert np.isnan(result.acc)


class Fragile(Method):
    """Diverges at task 3 if only task 2 is replayed; the loss it reports is still finite."""

    def step(self, learner, batch):
        loss = super().step(learner, batch)
        if learner.n_learned == 3 and self.memory.task.unique().tolist() == [1]:
            with torch.no_grad():
                learner.net.output.weight.fill_(float("inf"))
        return loss


def test_search_goes_on_where_some_schedules_diverge(monkeypatch):
    """Fails if a weight that only the last step of a task made infinite goes unseen (with one batch
    per task no later loss shows it), or if the search stops or reports a diverged schedule."""
    monkeypatch.setitem(METHODS, "fragile", Fragile)
    tree = ScheduleTree(small("fragile", memory_size=2, batch_size=10_000))
    fallen = tree.walk(((2,), (0, 2)))
    assert not fallen.converged
    assert np.isnan(fallen.test[-1]).all()
    assert not np.isnan(fallen.test[:-1]).any()  # what was learned before stays reported
    tree = ScheduleTree(small("fragile", memory_size=2))
    result = mcts(tree, 12)
    assert len(result.rewards) == 12
    assert np.isnan(result.rewards).any()
    assert not np.isnan(result.rewards).all()
    assert result.node.converged


# -- cost and benefit ------------------------------------------------------------------------------


def test_the_benchmark_times_every_method():
    """Fails if `make bench` forgets a method."""
    assert set(bench.replay_methods(rounds=1, calls=2)) == set(REPLAY)


@pytest.mark.slow
def test_a_step_costs_what_it_may():
    """Fails if a method became too dear to search schedules with."""
    seconds = {method: step for method, (step, _) in bench.replay_methods().items()}
    ratios = {method: seconds[method] / seconds["er"] for method in bench.STEP_LIMITS}
    assert {m: ratio for m, ratio in ratios.items() if ratio > bench.STEP_LIMITS[m]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", REPLAY)
def test_replay_beats_fine_tuning_with_the_same_optimizer(method):
    """Fails if a method makes no use of what it replays: digits, ETS, mean of five seeds."""
    accs = {"ets": [], "none": []}
    for seed in range(1, 6):
        tree = ScheduleTree(Environment("digits", seed=seed, method=method))
        for policy in accs:
            accs[policy].append(run_policy(tree, policy).acc)
    print(method, {policy: np.mean(values) for policy, values in accs.items()})
    assert np.mean(accs["ets"]) > np.mean(accs["none"])
