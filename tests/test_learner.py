"""One network learning one task after another: the loss, the batches, the snapshots."""

import copy
import os
import platform
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_environment import small
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rslib import environment
from rslib import learner as learner_module
from rslib.environment import Environment
from rslib.files import REPOSITORY
from rslib.learner import Learner
from rslib.memory import fill
from rslib.methods import METHODS, er
from rslib.seeding import torch_rng

ETS = ((), (10,), (5, 5), (4, 3, 3))


def learned(environment: Environment, path=ETS) -> Learner:
    learner = Learner(environment)
    for counts in path:
        learner.learn(counts)
    return learner


def weights(learner: Learner) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in learner.net.state_dict().items()}


def moments(learner: Learner) -> dict[int, list[bytes]]:
    """The optimizer's state by parameter: Adam's steps and moments, of SGD nothing."""
    states = learner.optimizer.state_dict()["state"]
    return {
        i: [t.numpy().tobytes() for t in s.values() if t is not None] for i, s in states.items()
    }


# -- the loss --------------------------------------------------------------------------------------


def slow_loss(net, scenario, n_learned, x, y, head) -> torch.Tensor:
    """Mean cross-entropy, sample by sample, each on its own slice of the outputs."""
    total = torch.zeros(())
    for i in range(len(y)):
        outputs = net.output(net.trunk(x[i : i + 1]))[0]
        if scenario.kind == "class":
            own = outputs[: n_learned * scenario.classes_per_task]
        else:
            own = outputs[int(head[i]) * scenario.head_size :][: scenario.head_size]
        total = total + torch.logsumexp(own, 0) - own[int(y[i])]
    return total / len(y)


@pytest.mark.parametrize("scenario", ["task", "class", "domain"])
def test_gradients_of_the_multi_head_loss(scenario):
    """A wrong head or a wrong mask trains something, and nothing else would notice."""
    learner = learned(small(scenario=scenario), [(), (4,), (2, 3)])
    memory = fill(
        learner.scenario.tasks, learner.pools, (3, 4, 2), learner.environment.samples_kept_per_task
    )
    learner.n_learned += 1
    learner.net.train()
    batch = next(iter(learner.batches(learner.n_learned, memory)))
    assert len(set(batch.head.tolist())) == (4 if scenario == "task" else 1)
    loss = METHODS["er"]().loss(learner, batch)
    learner.optimizer.zero_grad()
    loss.backward()
    fast = {n: p.grad.clone() for n, p in learner.net.named_parameters() if p.grad is not None}
    reference = copy.deepcopy(learner.net)
    reference.zero_grad()
    slow = slow_loss(reference, learner.scenario, 4, batch.x, batch.y, batch.head)
    slow.backward()
    torch.testing.assert_close(loss, slow, rtol=1e-5, atol=1e-6)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(fast[name], parameter.grad, rtol=1e-4, atol=1e-6)
    if scenario != "domain":  # heads, and logits of classes, not yet seen are not touched
        rows = fast["output.weight"].view(5, 2, 16).abs().sum(dim=(1, 2))
        assert (rows[:4] > 0).all() and rows[4] == 0


def test_training_agrees_with_a_plain_loop():
    """Two tasks in 20 plain lines: torch's own Adam, no buffers, no fused anything."""
    environment = small(epochs=2, first_epochs=2)
    learner = learned(environment, ())
    net = copy.deepcopy(learner.net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=False, foreach=False)
    tasks = learner.scenario.tasks
    for number, counts in ((1, ()), (2, (10,))):
        x, y = tasks[number - 1].train.x.float() / 255, tasks[number - 1].train.y
        for epoch in range(2):
            order = torch.randperm(len(y), generator=torch_rng(1, "batches", number, epoch))
            for start in range(0, len(y), 64):
                own = order[start : start + 64]
                losses = F.cross_entropy(
                    net(x[own])[:, 2 * number - 2 : 2 * number], y[own], reduction="sum"
                )
                n = len(own)
                if number == 2:
                    old = learner.pools[0]
                    replayed = tasks[0].train.x[old].float() / 255
                    losses = losses + F.cross_entropy(
                        net(replayed)[:, :2], tasks[0].train.y[old], reduction="sum"
                    )
                    n += len(old)
                optimizer.zero_grad()
                (losses / n).backward()
                optimizer.step()
        learner.learn(counts)
    for (name, fast), slow in zip(learner.net.named_parameters(), net.parameters()):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m)


class Recorded(METHODS["er"]):
    """Experience replay by autograd: a loss of its own, so nothing is written out by hand."""

    def loss(self, learner, batch):
        return super().loss(learner, batch)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("scenario", ["task", "class", "domain"])
@pytest.mark.parametrize("hidden, batch_size", [(16, 64), (33, 59), (256, 128)])
def test_the_written_out_step_is_autograd_bit_for_bit(
    monkeypatch, scenario, optimizer, hidden, batch_size
):
    """One other bit, and every row in every store and in results/ would be of another protocol."""
    environment = small(
        scenario=scenario,
        hidden=hidden,
        batch_size=batch_size,
        epochs=2,
        method_args=dict(optimizer=optimizer),
    )
    path = [(), (4,), (2, 3), (0, 1, 2)]
    by_hand = learned(environment, path)
    monkeypatch.setitem(METHODS, "recorded", Recorded)
    recorded = learned(replace(environment, method="recorded"), path)
    assert type(recorded.method) is Recorded
    assert weights(by_hand) == weights(recorded)
    assert moments(by_hand) == moments(recorded)


def test_a_method_may_change_the_learning_rate_between_steps(monkeypatch):
    """Broken: a schedule of learning rates in somebody's method is ignored on the MLP alone."""

    class Decayed(METHODS["er"]):
        def step(self, learner, batch):
            learner.optimizer.param_groups[0]["lr"] *= 0.9
            learner.optimizer.zero_grad()  # harmless, so it must stay so
            return super().step(learner, batch)

    class RecordedDecayed(Decayed):
        def loss(self, learner, batch):
            return super().loss(learner, batch)

    for optimizer in ("adam", "sgd"):
        found = []
        for name, method in (("decayed", Decayed), ("recorded", RecordedDecayed)):
            monkeypatch.setitem(METHODS, name, method)
            environment = small(method=name, method_args=dict(optimizer=optimizer), epochs=2)
            found.append(weights(learned(environment, ETS[:2])))
        assert found[0] == found[1]


def test_a_method_may_replace_the_weights_between_steps(monkeypatch):
    """Broken: the MLP's step goes on with the tensors that somebody's method has put away."""

    class Averaged(METHODS["er"]):
        def step(self, learner, batch):
            before = parameters_to_vector(learner.net.parameters()).detach().clone()
            loss = super().step(learner, batch)
            after = parameters_to_vector(learner.net.parameters()).detach()
            vector_to_parameters(before + 0.9 * (after - before), learner.net.parameters())
            return loss

    class RecordedAveraged(Averaged):
        def loss(self, learner, batch):
            return super().loss(learner, batch)

    found = []
    for name, method in (("averaged", Averaged), ("recorded", RecordedAveraged)):
        monkeypatch.setitem(METHODS, name, method)
        found.append(weights(learned(small(method=name), ETS[:2])))
    assert found[0] == found[1]


def test_the_fused_kernel_takes_turns_with_the_optimizers_own_step(monkeypatch):
    """Broken: with a torch that has no such kernel, or after a step of the optimizer's own, Adam
    counts its steps otherwise."""
    fast = learned(small(), ETS[:3])
    slow = Learner(fast.environment)
    for i, counts in enumerate(ETS[:3]):
        with monkeypatch.context() as patch:
            if i != 1:
                patch.setattr(er, "_fused_adam", None)
            slow.learn(counts)
            slow.restore(slow.snapshot())  # a prepared step ends here
    assert weights(fast) == weights(slow)
    assert moments(fast) == moments(slow)


# -- the batches -----------------------------------------------------------------------------------


def batches(learner: Learner, number: int, memory) -> list:
    learner.n_learned = number
    return [
        (b.x.clone(), b.y.clone(), b.head.clone(), b.m, b.chosen)
        for b in learner.batches(number, memory)
    ]


def test_every_epoch_sees_every_sample_once_behind_the_whole_memory():
    learner = learned(small(epochs=2), ETS[:2])
    memory = fill(learner.scenario.tasks, learner.pools, (3, 4))
    train = learner.scenario.tasks[2].train
    seen = batches(learner, 3, memory)
    assert len(seen) == 2 * -(-len(train) // 64)
    for x, y, head, m, chosen in seen:
        assert m == 7 and chosen is None
        assert torch.equal(x[:7], memory.x) and torch.equal(y[:7], memory.y)
        assert head.tolist() == [0] * 3 + [1] * 4 + [2] * (len(y) - 7)
    for epoch in (seen[: len(seen) // 2], seen[len(seen) // 2 :]):
        rows = torch.cat([x[7:] for x, *_ in epoch]).flatten(1).numpy()
        whole = train.inputs().flatten(1).numpy()
        assert sorted(map(bytes, rows)) == sorted(map(bytes, whole))
    assert not torch.equal(seen[0][0][7:], seen[len(seen) // 2][0][7:])  # epochs are shuffled


@pytest.mark.parametrize("batch_size", [64, 8])  # the second is smaller than the memory
def test_large_and_small_tasks_give_the_same_batches(batch_size, monkeypatch):
    """Broken: a task too large to be gathered at once is trained on other inputs."""
    environment = small(batch_size=batch_size, epochs=2)
    small_task = learned(environment)
    monkeypatch.setattr(learner_module, "SMALL", 0)
    assert weights(learned(environment)) == weights(small_task)


def test_memory_larger_than_the_batch_is_drawn_without_replacement_per_batch():
    """Protocol: if M > B, B memory samples per batch; over the batches all get their turn."""
    environment = small(memory_size=40, batch_size=16, epochs=3)
    learner = learned(environment, [(), (40,)])
    memory = fill(learner.scenario.tasks, learner.pools, (25, 15))
    turns = np.zeros(40, dtype=int)
    for x, y, head, m, chosen in batches(learner, 3, memory):
        assert m == 16 == len(set(chosen.tolist()))
        assert torch.equal(x[:16], memory.x[chosen]) and torch.equal(y[:16], memory.y[chosen])
        assert torch.equal(head[:16], memory.head[chosen])
        turns[chosen.numpy()] += 1
    assert turns.min() > 0


def test_batch_order_does_not_depend_on_the_schedule():
    """Paired comparisons: two schedules differ in what is replayed and in nothing else."""
    learner = learned(small(), ETS[:2])
    orders = []
    for counts in ((10, 0), (0, 3), (0, 0)):
        memory = fill(learner.scenario.tasks, learner.pools, counts)
        orders.append(torch.cat([x[m:] for x, _, _, m, _ in batches(learner, 3, memory)]))
    assert torch.equal(orders[0], orders[1]) and torch.equal(orders[1], orders[2])


def test_the_first_task_has_its_own_number_of_epochs():
    """miniImagenet: 5 epochs, then 1."""
    learner = Learner(small(first_epochs=3))
    memory = fill(learner.scenario.tasks, [], ())
    n = -(-len(learner.scenario.tasks[0].train) // 64)
    assert len(batches(learner, 1, memory)) == 3 * n
    learner = learned(learner.environment, [(), (0,)])
    memory = fill(learner.scenario.tasks, learner.pools, (0, 0))
    assert len(batches(learner, 3, memory)) == -(-len(learner.scenario.tasks[2].train) // 64)


def test_joint_learns_the_union_on_the_right_heads():
    learner = Learner(small(method="joint"))
    learner.learn(())
    memory = fill(learner.scenario.tasks, learner.pools, (0,))
    seen = batches(learner, 2, memory)
    heads = torch.cat([head for _, _, head, _, _ in seen])
    sizes = [len(task.train) for task in learner.scenario.tasks[:2]]
    assert np.bincount(heads).tolist() == sizes


# -- evaluation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["task", "class", "domain"])
def test_accuracies_against_a_plain_count(scenario, monkeypatch):
    """Test of every task, validation of those seen; no matter how evaluation is cut into pieces."""
    path = [(), (0,)]
    learner = learned(small(scenario=scenario), path)
    val, test = learner.accuracies()
    for i, task in enumerate(learner.scenario.tasks):
        for part, found in ((task.val, val[i]), (task.test, test[i])):
            if part is task.val and i >= 2:
                assert np.isnan(found)
                continue
            outputs = learner.net(part.x.float() / 255).detach().numpy()
            start = 2 * i if scenario == "task" else 0
            stop = 4 if scenario == "class" else start + 2
            guesses = outputs[:, start:stop].argmax(axis=1)
            assert found == (guesses == part.y.numpy()).mean()
    monkeypatch.setattr(learner_module, "EVALUATION_ROWS", 7)
    assert [a.tobytes() for a in learner.accuracies()] == [val.tobytes(), test.tobytes()]
    if scenario == "class":
        assert (test[2:] == 0).all()  # classes not seen cannot be answered


def test_evaluation_changes_nothing_even_with_batch_norm():
    """Evaluating in training mode would move the running statistics and all that follows."""
    learner = learned(small(network="convnet"), ETS[:1])
    before = weights(learner)
    assert any("running_mean" in name for name in before)
    learner.accuracies()
    assert weights(learner) == before


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(selection="mof"),
        dict(scenario="class", memory_size=12),
        dict(scenario="domain"),
        dict(network="convnet"),
        dict(memory_size=40, batch_size=16),
        dict(method="joint"),
        dict(method_args=dict(optimizer="sgd", lr=0.1)),
    ],
    ids=str,
)
def test_restored_learner_goes_on_as_if_nothing_had_happened(changes):
    """Whatever a snapshot forgets (moments, BatchNorm, pools) would move every cached result."""
    environment = small(**changes)
    zero = environment.method == "joint"
    path = [tuple(0 if zero else min(2, n) for n in counts) for counts in ETS]
    straight = learned(environment, path)
    learner = learned(environment, path[:2])
    state = learner.snapshot()
    for counts in path[2:]:
        learner.learn(counts)
    learner.learn((0,) * 4)  # somewhere else, before going back
    learner.restore(state)
    other = Learner(environment)
    other.restore(state)
    for again in (learner, other):
        for counts in path[2:]:
            again.learn(counts)
        assert weights(again) == weights(straight)
        assert [p.tolist() for p in again.pools] == [p.tolist() for p in straight.pools]
        for one, two in zip(again.accuracies(), straight.accuracies()):
            assert one.tobytes() == two.tobytes()


def test_a_snapshot_is_not_touched_by_further_learning():
    """Snapshots are shared by all children of a node."""
    learner = learned(small(network="convnet"), ETS[:2])
    state = learner.snapshot()
    kept = copy.deepcopy(state)
    learner.learn((5, 5))
    learner.restore(state)
    learner.learn((10, 0))
    torch.testing.assert_close(state["net"], kept["net"], rtol=0, atol=0)
    torch.testing.assert_close(
        state["optimizer"]["state"], kept["optimizer"]["state"], rtol=0, atol=0
    )
    assert [p.tolist() for p in state["pools"]] == [p.tolist() for p in kept["pools"]]


def test_optimizer_is_never_reset_between_tasks():
    """Protocol: Adam goes on; its step counter tells."""
    learner = learned(small(), ETS[:3])
    steps = {int(s["step"]) for s in learner.optimizer.state_dict()["state"].values()}
    assert steps == {sum(-(-len(t.train) // 64) for t in learner.scenario.tasks[:3])}


def test_mean_of_features_pools_depend_on_the_path_and_others_do_not():
    paths = ([(), (10,), (10, 0)], [(), (0,), (0, 0)])
    for selection, same in (("mof", False), ("uniform", True), ("kcenter", True)):
        one, two = (learned(small(selection=selection), path) for path in paths)
        assert torch.equal(one.pools[2], two.pools[2]) == same, selection
        assert torch.equal(one.pools[0], two.pools[0])  # after task 1 nothing has been chosen yet


# -- memory ----------------------------------------------------------------------------------------

FAULTS = """
import os, resource, torch
from small_environment import small
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from rslib.learner import Learner, keep_freed_memory

def count():
    Learner(small())
    torch.ones(2**24)  # 64 MB, which glibc maps and unmaps each time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**24)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

os.environ["RSLIB_MALLOC"] = "system"
count()
del os.environ["RSLIB_MALLOC"]
keep_freed_memory.cache_clear()
count()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc has mallopt")
@pytest.mark.parametrize("network", ["mlp", "convnet"])
def test_threads_set_meanwhile_move_no_bit(network):
    """Broken: a program that sets torch's threads between two tasks gets other results under the same
    key, and later runs take them for its own."""
    environment = small(network=network, n_tasks=2, batch_size=256)
    alone, other = learned(environment, ETS[:2]), Learner(environment)
    other.learn(())
    torch.set_num_threads(2)
    torch.set_flush_denormal(False)
    other.learn((10,))
    assert torch.get_num_threads() == 1 and torch.set_flush_denormal(True)
    assert weights(other) == weights(alone)
    torch.set_num_threads(2)
    assert other.accuracies()[1].tobytes() == alone.accuracies()[1].tobytes()
    assert torch.get_num_threads() == 1


def test_freed_memory_is_kept_unless_switched_off():
    """Broken: every step of a convolutional network waits for the kernel to zero its pages again."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FAULTS]
    output = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    system, kept = map(int, output.split())
    assert 10 * kept < system


# -- what goes wrong -------------------------------------------------------------------------------


def test_counts_must_be_those_of_the_tasks_learned():
    learner = learned(small(), ETS[:2])
    with pytest.raises(ValueError, match="task 3 needs 2 counts"):
        learner.learn((1, 2, 3))


def test_a_diverged_run_is_nan_and_stays_nan():
    """Accuracies of a network full of NaN would be chance level and look like a result."""
    learner = Learner(small(lr=1e30, epochs=3, first_epochs=3))
    learner.learn(())
    assert learner.diverged
    state = learner.snapshot()
    learner.learn((10,))
    val, test = learner.accuracies()
    assert np.isnan(val).all() and np.isnan(test).all()
    fresh = Learner(small(lr=1e30, epochs=3, first_epochs=3))
    fresh.restore(state)
    fresh.learn((10,))
    assert fresh.diverged and fresh.n_learned == 2
    fresh.reset()
    assert not fresh.diverged and np.isfinite(fresh.accuracies()[1]).all()


# -- devices ------------------------------------------------------------------------------------------


def test_no_tensor_is_made_on_torchs_default_device():
    """Broken: a tensor of the training loop is made where torch likes, so that a GPU run stops or mixes
    devices. With the default on "meta", which holds no numbers, every golden walk must keep its bits."""
    code = """
import sys, torch
torch.set_default_device("meta")
sys.path.insert(0, "tests/guards")
import test_golden as golden
for name, row in golden.GOLDEN["rows"].items():
    if row["environment"]["dataset"] != "glyphs" and name != "resnet":  # those add nothing but time
        node = golden.walked(row["environment"], row["path"])
        print(name, golden.difference(row, node, golden.same_instructions(row)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=300
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 12 and all(line.endswith(" None") for line in lines), done


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta", "cuda:x"])
def test_a_device_that_torch_does_not_find_is_refused(monkeypatch, name):
    """Broken: a run that was meant for a GPU trains on the CPU for days, or ends in a traceback."""
    monkeypatch.setenv("RSLIB_DEVICE", name)
    with pytest.raises(ValueError, match=f"RSLIB_DEVICE is '{name}', .* It finds: .*cpu"):
        Learner(small())


def test_the_device_enters_the_key_only_where_it_is_not_the_cpu(monkeypatch):
    """Broken: rows of a GPU, which rounds otherwise, mix with the CPU's, or shipped rows are lost."""
    kept = small()
    plain = kept.key
    monkeypatch.setenv("RSLIB_DEVICE", "cpu")
    assert small().key == plain
    monkeypatch.setattr(environment, "device", lambda: torch.device("cuda", 1))
    assert small().key == kept.key != plain
