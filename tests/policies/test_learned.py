"""The engineer's call: named rules for any number of tasks, learned ones up to theirs."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from synthetic import synthetic_table

from rslib import files, schedule
from rslib.policies import Policy, a2c, matrix
from rslib.policies.learned import LearnedPolicy, TooManyTasks


def likes(action, n_tasks=4):
    """A network without hidden thoughts: its biases prefer one action everywhere."""
    n_actions = schedule.n_actions(n_tasks - 1)
    bias = torch.zeros(n_actions)
    bias[action] = 1.0
    weights = [torch.zeros(n_tasks - 1, 2), torch.zeros(2), torch.zeros(2, n_actions), bias]
    return LearnedPolicy(weights, "relu", {"seed": 3}, "DQN")


def test_ets_for_any_number_of_tasks():
    """Broken: the plainest advice would be wrong, or stop at some number of tasks."""
    history = [[0.9] * t for t in range(1, 31)]
    assert Policy.load("ets").propose(history, 60) == (2,) * 30
    assert Policy.load("ets").propose(history[:4], 10) == (3, 3, 2, 2)


def test_heuristic_by_hand():
    """Broken: the advice is not the paper's rule. Best so far 0.9, 0.8, 0.7; now 0.5, 0.8, 0.7:
    only task 1 is below 0.96 of its best."""
    history = [[0.9], [0.9, 0.8], [0.5, 0.8, 0.7]]
    assert Policy.load("heur-gd:0.96").propose(history, 10) == (10, 0, 0)
    assert Policy.load("heur-gd:0.96").propose(history, 10, available=[4, 9, 9]) == (4, 3, 3)
    assert Policy.load("ets+heur-gd:0.96").propose(history, 12) == (6, 3, 3)


def test_rows_of_a_tree_and_rows_of_an_engineer_say_the_same():
    """Broken: policies would act differently in experiments and in use."""
    table = synthetic_table(4, 2)
    node = table.walk([(10,), (5, 5)])
    rows = [[float(x) for x in node.val[t, :t]] for t in (1, 2, 3)]
    assert np.array_equal(matrix(node.val), matrix(rows), equal_nan=True)
    for name in ("heur-ld:0.999", "heur-at:0.8"):
        policy = Policy.load(name)
        assert policy.propose(node.val, 10) == policy.propose(rows, 10)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "empty"),
        ([[0.9], [0.9]], "row 2 .* has 1 accuracies"),
        ([[0.9, 0.8]], "row 1 .* has 2"),
        ([[0.9], [91.0, 88.0]], "row 2 .* fractions"),
        ([[float("nan")]], "row 1 .* fractions"),
    ],
)
def test_a_bad_history_is_named(history, message):
    """Broken: percent instead of fractions, or a forgotten column, would give silent nonsense."""
    with pytest.raises(ValueError, match=message):
        Policy.load("ets").propose(history, 10)


def test_what_an_engineer_may_hand_over_or_mistype():
    """Broken: a DataFrame is read as its column names, and a slip gives advice instead of an error."""
    history = [[0.99], [0.90, 0.98]]
    for tau in (0.5, 0.95):
        rule = Policy.load(f"heur-at:{tau}")
        assert rule.propose(pd.DataFrame([[0.99]]), 10) == rule.propose(history[:1], 10)
        padded = pd.DataFrame([[0.99, np.nan], [0.90, 0.98]])
        assert rule.propose(padded, 10) == rule.propose(history, 10)
    for wrong in (100.0, "10", True, -1):
        with pytest.raises(schedule.ScheduleError, match="memory size must be a whole number"):
            Policy.load("ets").propose(history, wrong)
    assert Policy.load("ets").propose(history, np.int64(10)) == (5, 5)
    for wrong in ("heur-gd:96", "heur-gd:-1", "ets+heur-at:1.5"):
        with pytest.raises(ValueError, match="tau is a fraction from 0 to 1"):
            Policy.load(wrong)


def test_a_learned_policy_by_hand():
    """Broken: an action index would become other counts. With 3 tasks seen, action 5 of
    000 001 002 011 012 022 ... is one share of task 1 and two of task 3."""
    history = [[0.9], [0.8, 0.9], [0.7, 0.8, 0.9]]
    assert likes(5).propose(history, 9) == (3, 0, 6)
    assert likes(5).propose(history, 100) == (33, 0, 67)
    assert likes(5).propose(history, 9, available=[9, 9, 4]) == (4, 1, 4)
    # With 2 tasks seen, action 5 does not exist; all allowed ones tie, so the first is taken.
    assert likes(5).propose(history[:2], 9) == (9, 0)


def test_beyond_its_tasks_a_learned_policy_says_so_and_names_what_to_use():
    """Broken: the fifth week would end in a shape error, or in silent nonsense."""
    history = [[0.9] * t for t in range(1, 5)]
    with pytest.raises(TooManyTasks, match=r"trained for 4 tasks.* 4 are; use .*ets.*heur-gd:0.96"):
        likes(0).propose(history, 10)


def test_saved_and_loaded_is_the_same_policy(tmp_path):
    """Broken: what was trained is not what is used; or loading could run code from the file."""
    trained, _ = a2c.train([synthetic_table(4)], a2c.A2CArgs(updates=20), 1, progress=False)
    path = trained.save(tmp_path / "deep" / "policy.pt")
    loaded = Policy.load(path)
    assert isinstance(loaded, LearnedPolicy) and loaded.label == "A2C" and loaded.n_tasks == 4
    assert loaded.config == trained.config and loaded.config["arguments"]["updates"] == 20
    states = torch.rand(20, 3)
    assert torch.equal(loaded.scores(states), trained.scores(states))
    assert Policy.load(str(path)).propose([[0.9]], 10) == (10,)
    content = io.BytesIO(files.unseal("policy", path.read_bytes()))
    content = torch.load(content, weights_only=True)  # would refuse anything but tensors and values
    assert set(content) == {"weights", "activation", "label", "config"}


def test_a_policy_with_a_changed_bit_is_refused_by_name(tmp_path):
    """Broken: 47 of 150 flipped bits gave a policy with other weights, without a word."""
    sealed = likes(5).save(tmp_path / "policy.pt").read_bytes()
    before = files.unseal("policy", sealed)  # a file from before policies had a seal
    for name, content in (("new", sealed), ("old", before)):
        file = tmp_path / f"{name}.pt"
        file.write_bytes(content)
        assert Policy.load(file).propose([[0.9]], 9) == (9,)
        for place in range(0, len(content), len(content) // 80):
            harmed = bytearray(content)
            harmed[place] ^= 0x10
            file.write_bytes(harmed)
            try:
                loaded = Policy.load(file)
            except ValueError as error:
                assert str(file) in str(error)
                continue
            # The checksums of a zip do not cover its own tables; the weights they do.
            assert name == "old" and all(map(torch.equal, loaded.weights, likes(5).weights))


@pytest.mark.parametrize("change", ["shape", "NaN", "activation", "folder"])
def test_a_policy_that_cannot_decide_is_refused_when_it_is_loaded(tmp_path, change):
    """Broken: the mistake shows weeks later, or as a shape error without a name."""
    policy, file = likes(5), tmp_path / "policy.pt"
    if change == "shape":
        policy.weights[1] = torch.zeros(3)
    if change == "NaN":
        policy.weights[1] = torch.full_like(policy.weights[1], float("nan"))
    if change == "activation":
        policy.activation = "sine"
    policy.save(file)
    if change == "folder":
        file.unlink()
        file.mkdir()
    with pytest.raises(ValueError, match=r"policy\.pt is not a policy saved by rslib"):
        LearnedPolicy.from_file(file)


def test_what_is_no_policy_is_refused_by_name(tmp_path):
    """Broken: a typing error would end in a stack trace without the list of what there is."""
    with pytest.raises(ValueError, match="heur-gd"):
        Policy.load("heur-dg:0.96")
    junk = tmp_path / "junk.pt"
    junk.write_bytes(b"not a policy")
    with pytest.raises(ValueError, match="not a policy saved by rslib"):
        Policy.load(junk)


def test_scores_follow_the_activation():
    """Broken: a saved A2C policy would be read as a DQN one."""
    weights = [
        torch.tensor([[1.0]]),
        torch.tensor([-2.0]),
        torch.tensor([[3.0]]),
        torch.tensor([1.0]),
    ]
    state = torch.tensor([[1.0]])
    assert float(LearnedPolicy(weights, "relu").scores(state)) == 1.0
    expected = 3 * np.tanh(-1.0) + 1
    assert float(LearnedPolicy(weights, "tanh").scores(state)) == pytest.approx(expected, rel=1e-6)
