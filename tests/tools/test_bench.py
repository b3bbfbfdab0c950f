"""`make bench`: what it compares with does the same work. No test here looks at the clock."""

import numpy as np
import pandas as pd
import pytest
import torch
from small_environment import small
from synthetic import synthetic_table

from rslib.environment import Environment
from rslib.learner import Learner
from rslib.policies import a2c, dqn
from tools import bench, bench_baselines


def test_the_plain_loop_learns_what_ours_learns():
    """Broken: `make bench` divides by the time of a loop that trains something else."""
    environment = Environment("digits")
    torch.manual_seed(0)
    *test, val1, val2 = bench_baselines.plain_loop(environment)()
    learner = Learner(environment)
    learner.learn(())
    learner.learn((10,))
    ours = learner.accuracies()
    assert len(test) == 5 and test[1] == pytest.approx(ours[1][1], abs=0.05)
    assert min(val1, val2, test[0]) > 0.7  # ten samples of task 1, from a fresh network


def test_the_data_loader_reads_the_same_images(tmp_path):
    """Broken: torchvision is timed on images or labels of another task."""
    file = tmp_path / "images.npz"
    bench.write_noise(file, 200, 100)
    environment = bench.split_mnist(str(file), epochs=1)
    learn = bench_baselines.data_loader(environment, tmp_path)
    accuracies = learn()
    assert len(accuracies) == 5 + 2 and all(0 <= accuracy <= 1 for accuracy in accuracies)
    raw = (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte").read_bytes()
    assert raw[16:] == np.load(file)["x_test"].tobytes()


def test_the_plain_agents_learn():
    """Broken: ours is compared with an agent that ignores its mask or its reward."""
    trees = [synthetic_table(seed=seed) for seed in range(2)]
    best = np.mean([tree.val.mean(axis=1)[tree.shape.n_inner :].max() for tree in trees])
    torch.manual_seed(0)
    for final in (
        bench_baselines.plain_a2c(trees, a2c.A2CArgs(updates=20))(),
        bench_baselines.plain_dqn(trees, dqn.DQNArgs(episodes=20, hidden=16))(),
    ):
        assert 0 < final <= best


@pytest.mark.parametrize("network, n_products", [("mlp", 2 + 1 + 2), ("convnet", 4 + 4)])
def test_the_floor_has_the_products_of_every_layer(network, n_products):
    """Broken: a step is compared with less, or more, than what it cannot do without."""
    floor = bench.floors(bench.Training(small("glyphs", network=network), ((), (10,))))["floor"]
    with torch.profiler.profile() as profile:
        floor()
    counted = {event.key: event.count for event in profile.key_averages()}
    products = ("aten::mm", "aten::convolution", "aten::convolution_backward")
    assert sum(counted.get(name, 0) for name in products) == n_products
    assert counted["aten::_fused_adam_"] == 1


def test_the_diary_grows_and_is_drawn(tmp_path, monkeypatch):
    """Broken: a run overwrites the runs before it."""
    monkeypatch.setattr(bench, "DIARY", tmp_path / "bench.csv")
    for ratio in (1.25, 1.2):
        bench.write_down({"step_mnist": ratio, "plain_mnist": 1.6, "two_workers": 1.9}, 0.5)
    diary = pd.read_csv(tmp_path / "bench.csv")
    assert diary.step_mnist.tolist() == [1.25, 1.2] and diary.machine.notna().all()
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
