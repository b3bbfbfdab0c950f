"""The Gymnasium environment: what it shows, pays and forbids, over tables and over trees."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from synthetic import synthetic_table

from rslib import schedule
from rslib.complete_tree import tree_shape
from rslib.env import ID, MAX_INVALID, PENALTY, InvalidAction, ReplayScheduleEnv
from rslib.env_tables import save_tables
from rslib.schedule import Schedule


class LiveTree:
    """A schedule tree that makes its accuracies up from the path: no table behind it."""

    def __init__(self, n_tasks, memory_size=10):
        self.environment, self.n_tasks, self.memory_size = self, n_tasks, memory_size
        self.dataset, self.seed, self.walked = "made up", 0, []

    def budget(self, k):
        return self.memory_size

    def available(self, k):
        return [self.memory_size] * k

    def counts(self, proportions, k):
        return schedule.counts(list(proportions), self.memory_size)

    def walk(self, path):
        self.walked.append(tuple(path))
        t = len(path) + 1
        val = np.full((t + 1, self.n_tasks), np.nan)
        for row in range(1, t + 1):
            val[row, :row] = np.arange(1, row + 1) / (row + 1)
        node = type("Node", (), {})()
        node.path, node.depth, node.val, node.test = tuple(path), t, val, val
        node.schedule, node.acc, node.bwt = Schedule(tuple(path)), 0.5, 0.0
        node.reward = float(val[t, :t].mean())
        return node


@pytest.fixture
def env():
    return ReplayScheduleEnv([synthetic_table(4, seed) for seed in range(3)])


@pytest.mark.parametrize("n_tasks", [2, 3, 4, 5])
def test_check_env(n_tasks):
    """Broken: libraries that rely on Gymnasium's rules would fail in ways of their own."""
    check_env(ReplayScheduleEnv(synthetic_table(n_tasks)), skip_render_check=True)


def test_an_episode_by_hand(env):
    """Broken: agents would see, earn or be allowed something else than the protocol says."""
    table, shape = env.sources[1], tree_shape(4)
    observation, info = env.reset(options={"environment": 1})
    assert observation.tolist() == pytest.approx([table.val[0, 0], 0, 0])
    assert info["env_seed"] == 1 and info["task"] == 1
    row = 0
    for k, action in ((1, 0), (2, 2), (3, 7)):
        n_allowed = schedule.n_actions(k)
        assert env.action_masks().tolist() == [True] * n_allowed + [False] * (10 - n_allowed)
        assert env.action_masks().dtype == bool and info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == env.action_masks().tolist()
        observation, reward, terminated, truncated, info = env.step(action)
        row = shape.child[row, action]
        assert observation.tolist() == pytest.approx(table.val[row, :3].tolist())
        assert reward == pytest.approx(table.val[row, : k + 1].mean())
        assert (terminated, truncated) == (k == 3, False)
        assert ("schedule" in info) == terminated
    assert info["schedule"] == Schedule.from_actions((0, 2, 7), 10)
    assert info["val"].shape == info["test"].shape == (5, 4)
    assert info["val"][4].tolist() == table.val[row].tolist()
    assert info["val"][2].tolist() == [*table.val[1, :2], 0, 0]
    assert info["acc"] == pytest.approx(table.test[row].mean())
    assert not info["action_mask"].any()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_training_that_diverges_ends_the_episode_without_nan(at):
    """Broken: one diverged network makes an agent's weights NaN, without an error anywhere."""

    class Diverging(LiveTree):
        def walk(self, path):
            node = super().walk(path)
            if node.depth >= at:
                node.val[-1], node.reward = np.nan, float("nan")
            return node

    env = ReplayScheduleEnv(Diverging(4))
    observation, _ = env.reset(seed=0)
    for _ in range(at if at == 1 else at - 1):
        observation, reward, done, _, info = env.step(0)
    assert done and reward == 0.0 and info["diverged"] and not observation.any()
    assert env.observation_space.contains(observation)


def test_invalid_actions_are_penalised_and_change_nothing(env):
    """Broken: an agent could leave the action space, or gain by trying."""
    start, _ = env.reset(options={"environment": 0})
    observation, reward, terminated, truncated, info = env.step(1)  # one task seen: only action 0
    assert reward == PENALTY and info["invalid"] and not terminated and not truncated
    assert np.array_equal(observation, start) and info["task"] == 1
    for _ in range(MAX_INVALID - 2):
        assert not env.step(9)[3]
    assert env.step(9)[3]  # or an agent that ignores masks would never come back


def test_invalid_actions_are_refused_if_asked():
    """Broken: a bug in a user's agent would train on in silence."""
    env = ReplayScheduleEnv(synthetic_table(4), on_invalid="refuse")
    env.reset()
    for action in (1, -1):
        with pytest.raises(InvalidAction, match="1 tasks seen"):
            env.step(action)
    with pytest.raises(ValueError, match="on_invalid"):
        ReplayScheduleEnv(synthetic_table(4), on_invalid="ignore")


def test_reset_picks_the_environment(env):
    """Broken: training would see one environment only, or not the one asked for."""
    drawn = {env.reset(seed=seed)[1]["env_seed"] for seed in range(20)}
    assert drawn == {0, 1, 2}
    assert env.reset(seed=4)[1]["env_seed"] == env.reset(seed=4)[1]["env_seed"]
    assert env.reset(options={"env_seed": 2, "dataset": "synthetic"})[1]["env_seed"] == 2
    for bad in ({"environment": 3}, {"env_seed": 9}, {"environmnt": 0}):
        with pytest.raises(ValueError):
            env.reset(options=bad)


def test_a_live_tree_and_its_table_are_the_same_environment():
    """Broken: a policy trained on tables would meet another world when it is used."""
    table = synthetic_table(4, 6)

    class Tree(LiveTree):
        def walk(self, path):
            self.walked.append(tuple(path))
            return table.walk(path)

    tree = Tree(4)
    envs = ReplayScheduleEnv(tree), ReplayScheduleEnv(table)
    for env in envs:
        env.reset()
    for action in (0, 1, 8):
        a, b = (env.step(action) for env in envs)
        assert np.array_equal(a[0], b[0]) and a[1:4] == b[1:4]
    assert len(tree.walked) == 4 and tree.walked[-1] == a[4]["schedule"].compositions


def test_ten_tasks_work_lazily_and_twenty_say_why_not():
    """Broken: long task sequences would hang on listing actions nobody takes."""
    env = ReplayScheduleEnv(LiveTree(10))
    assert env.action_space.n == 24310
    env.reset()
    for k in range(1, 10):
        terminated = env.step(schedule.n_actions(k) - 1)[2]  # all from the newest task
    assert terminated and env.sources[0].walked[-1][-1] == (0,) * 8 + (10,)
    with pytest.raises(ValueError, match="too many"):
        ReplayScheduleEnv(LiveTree(20))


def test_sources_must_fit_together(tmp_path):
    """Broken: environments of different sizes would share one observation space."""
    with pytest.raises(ValueError, match="one number of tasks"):
        ReplayScheduleEnv([synthetic_table(3), synthetic_table(4)])
    path = save_tables([synthetic_table(3, 1), synthetic_table(3, 2)], tmp_path / "t.csv.gz")
    assert len(ReplayScheduleEnv(path).sources) == 2


def test_made_by_name():
    """Broken: `gymnasium.make` would not find the environment."""
    env = gymnasium.make(ID, sources=synthetic_table(3))
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space and info["action_mask"].sum() == 1
    env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments(mode):
    """Broken: the usual way to train on several environments at once would not work."""
    envs = gymnasium.make_vec(
        ID, num_envs=2, vectorization_mode=mode, sources=[synthetic_table(3, s) for s in (0, 1)]
    )
    try:
        observations, infos = envs.reset(seed=1)
        assert observations.shape == (2, 2) and infos["action_mask"].shape == (2, 3)
        for _ in range(2):
            actions = [np.flatnonzero(mask)[-1] for mask in infos["action_mask"]]
            _, rewards, terminated, _, infos = envs.step(np.array(actions))
        assert terminated.all() and (rewards > 0).all()
        assert [s.n_tasks for s in infos["schedule"]] == [3, 3]
    finally:
        envs.close()


def test_pickled(env):
    """Broken: no process could be given an environment."""
    twin = pickle.loads(pickle.dumps(env))
    assert np.array_equal(twin.reset(seed=5)[0], env.reset(seed=5)[0])
