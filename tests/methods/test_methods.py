"""The replay methods one by one, each against slow and obvious arithmetic.

What holds for all of them (snapshots, compositions, divergence, tiny memories) is in
test_methods_tree.py. Where a network is needed it is one small enough to be done by hand.
"""

import math
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rslib import presets
from rslib.environment import Environment
from rslib.learner import Learner
from rslib.memory import Memory
from rslib.methods import METHODS, Batch, Method
from rslib.methods import mer as mer_module
from rslib.methods.agem import AGEM, project
from rslib.methods.der import DER, DERpp
from rslib.methods.er_ring import ERRing
from rslib.methods.hal import FINE_TUNING_STEPS, HAL
from rslib.methods.mer import MER
from rslib.models import Network

REPLAY = ("er", "hal", "mer", "der", "derpp", "agem", "er-ring")


def small(method: str, **changes) -> Learner:
    settings = dict(epochs=1, hidden=16) | changes
    return Learner(Environment("digits", method=method, **settings))


def batch_of(x, y, head, m, chosen=None) -> Batch:
    x, y, head = torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(head)
    return Batch(x, y, head, m, chosen, torch.arange(len(y) - m))


def cross_entropy(logits, label) -> float:
    return -logits[label] + math.log(sum(math.exp(z) for z in logits))


# -- DER and DER++ ---------------------------------------------------------------------------------


def memory_of(task, position) -> Memory:
    n = len(task)
    zeros = torch.zeros(n, dtype=torch.long)
    return Memory(torch.zeros(n, 1), zeros, zeros, torch.tensor(task), torch.tensor(position))


def der_loss_by_hand(now, targets, labels, m, alpha, beta):
    """Entry by entry; a target may be shorter than the logits of now."""
    current = [cross_entropy(z, y) for z, y in zip(now[m:], labels[m:], strict=True)]
    squares = [
        (a - b) ** 2
        for z, target in zip(now[:m], targets, strict=True)
        for a, b in zip(z, target, strict=False)
    ]
    replayed = [cross_entropy(z, y) for z, y in zip(now[:m], labels[:m], strict=True)]
    return np.mean(current) + alpha * np.mean(squares) + beta * np.mean(replayed)


@pytest.mark.parametrize("beta", [0, 0.7])
@pytest.mark.parametrize("kind", ["task", "class"])
def test_der_loss_on_hand_made_logits(beta, kind):
    """Fails if DER compares with the wrong stored row, weighs its terms wrongly, or (Class-IL)
    compares logits of classes that were unknown when the row was stored."""
    method = DERpp(alpha=0.3, beta=beta) if beta else DER(alpha=0.3)
    widths = [2, 4] if kind == "class" else [2, 2]  # after task 1 and after task 2
    draws = torch.Generator().manual_seed(0)
    method.stored = [torch.randn(5, w, generator=draws) for w in widths]
    now_width = 6 if kind == "class" else 2
    now = torch.randn(5, now_width, generator=draws)
    scenario = SimpleNamespace(kind=kind, head_size=2 if kind == "task" else 10, classes_per_task=2)
    learner = SimpleNamespace(
        device="cpu", scenario=scenario, n_learned=3, logits=lambda x, head: now
    )
    task, position = [0, 0, 0, 1, 1], [0, 1, 2, 0, 1]
    method.begin(learner, memory_of(task, position))
    chosen = torch.tensor([4, 0, 2])  # M larger than the batch: three of the five are in it
    labels = [1, 0, 1, 0, 1]
    batch = batch_of(torch.zeros(5, 1), labels, [0] * 5, 3, chosen)
    targets = [method.stored[task[i]][position[i]].tolist() for i in chosen]
    expected = der_loss_by_hand(now.tolist(), targets, labels, 3, 0.3, beta)
    assert method.loss(learner, batch).item() == pytest.approx(expected, rel=1e-5)
    # the whole memory, in order
    now = torch.randn(7, now_width, generator=draws)
    labels = [0, 1, 0, 1, 0, 1, 1]
    batch = batch_of(torch.zeros(7, 1), labels, [0] * 7, 5)
    targets = [method.stored[t][p].tolist() for t, p in zip(task, position, strict=True)]
    expected = der_loss_by_hand(now.tolist(), targets, labels, 5, 0.3, beta)
    assert method.loss(learner, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("changes", [{}, {"scenario": "class", "memory_size": 12}])
def test_der_stores_the_logits_of_the_finished_network_on_the_own_head(changes):
    """Fails if logits come from another head, another pool order or from before the last step."""
    learner = small("der", **changes)
    counts = [(), (4,)]
    for i, share in enumerate(counts):
        learner.learn(share)
        task, weights = learner.scenario.tasks[i], learner.net.output.weight
        for place, sample in enumerate(learner.pools[i][:4]):
            x = task.train.inputs(sample[None])
            outputs = (learner.net.features(x) @ weights.T + learner.net.output.bias)[0]
            own = outputs[: 2 * (i + 1)] if changes else outputs[2 * i : 2 * i + 2]
            assert torch.allclose(learner.method.stored[i][place], own, atol=1e-5)
    assert [len(stored) for stored in learner.method.stored] == [len(p) for p in learner.pools]


# -- A-GEM -----------------------------------------------------------------------------------------


def test_projection_takes_out_exactly_what_points_against_the_reference():
    """Fails if A-GEM lets a step raise the memory's loss, or bends one that would not."""
    draws = np.random.default_rng(0)
    bent = 0
    for _ in range(200):
        shapes = [(3, 4), (4,), (2, 2, 2)]
        g, r = ([draws.normal(size=shape) for shape in shapes] for _ in range(2))
        gradient, reference = ([torch.tensor(a) for a in parts] for parts in (g, r))
        project(gradient, reference)
        flat_g, flat_r = (np.concatenate([a.ravel() for a in parts]) for parts in (g, r))
        after = np.concatenate([a.numpy().ravel() for a in gradient])
        dot = flat_g @ flat_r
        if dot >= 0:
            assert np.array_equal(after, flat_g)
        else:
            bent += 1
            assert np.allclose(after, flat_g - dot / (flat_r @ flat_r) * flat_r)
            assert after @ flat_r >= -1e-9
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(reference, r, strict=True))
    assert 50 < bent < 150


def test_projection_survives_a_memory_that_is_learned_by_heart():
    """Fails if a reference gradient too small to be squared turns the step into NaN, as it did on
    digits with a high learning rate."""
    gradient, reference = [torch.tensor([-3.0, 4.0])], [torch.tensor([1e-25, 0.0])]
    project(gradient, reference)
    assert gradient[0].tolist() == [0.0, 4.0]


def linear_gradient(weights, bias, x, y, head):
    """Mean gradient of softmax regression with two outputs per head, sample by sample."""
    slope_w, slope_b = np.zeros_like(weights), np.zeros_like(bias)
    for xi, yi, hi in zip(x, y, head, strict=True):
        rows = slice(2 * hi, 2 * hi + 2)
        z = weights[rows] @ xi + bias[rows]
        error = np.exp(z) / np.exp(z).sum() - np.eye(2)[yi]
        slope_w[rows] += np.outer(error, xi) / len(y)
        slope_b[rows] += error / len(y)
    return np.concatenate([slope_w.ravel(), slope_b])


def linear_learner(n_heads: int, lr: float) -> SimpleNamespace:
    net = Network(nn.Identity(), 3, n_heads, 2).double()
    draws = torch.Generator().manual_seed(1)
    for p in net.parameters():
        p.data.normal_(generator=draws)
    return SimpleNamespace(
        net=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=lr),
        logits=lambda x, head: net.own_head(net(x), head),
    )


@pytest.mark.parametrize("against", [True, False])
def test_agem_step_by_hand_with_one_head_per_task(against):
    """Fails if the reference gradient contains the current batch (as in the released code), if the
    step contains the memory, or if a replayed sample goes through another head than its own."""
    draws = np.random.default_rng(2)
    for _ in range(50):
        x = draws.normal(size=(7, 3))
        y, head = draws.integers(2, size=7), np.array([0, 1, 1, 2, 2, 2, 2])
        head[3:] = draws.integers(3, size=4)  # so that gradients meet in a head
        learner = linear_learner(3, lr=0.5)
        weights, bias = (p.detach().numpy().copy() for p in learner.net.parameters())
        reference = linear_gradient(weights, bias, x[:3], y[:3], head[:3])
        gradient = linear_gradient(weights, bias, x[3:], y[3:], head[3:])
        dot = gradient @ reference
        if (dot < 0) == against:
            break
    else:
        pytest.fail("no such batch drawn")
    contaminated = linear_gradient(weights, bias, x, y, head)
    assert abs(contaminated @ gradient - dot) > 1e-3  # the fault would be seen
    if against:
        gradient = gradient - dot / (reference @ reference) * reference
    AGEM().step(learner, batch_of(x, y, head, 3))
    moved = np.concatenate([p.detach().numpy().ravel() for p in learner.net.parameters()])
    assert np.allclose(moved, np.concatenate([weights.ravel(), bias]) - 0.5 * gradient)


# -- MER -------------------------------------------------------------------------------------------


class QuadraticMER(MER):
    """Half the mean squared distance of the one weight to the batch's inputs, instead of a network."""

    def loss(self, learner, batch):
        return 0.5 * (learner.net.weight - batch.x).square().mean()


class OneWeight(nn.Module):
    def __init__(self, start: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))


@pytest.mark.parametrize("n", [8, 5, 1])
def test_mer_step_on_a_quadratic_by_hand(n):
    """Fails if beta and gamma are swapped, if a chunk lacks the memory, or if Reptile goes back to
    the wrong weights."""
    beta, gamma, lr, start = 0.3, 0.8, 0.5, 2.0
    memory, current = [10.0, 11.0], [float(i * i) for i in range(n)]
    chunks = {8: [2, 2, 2, 2], 5: [3, 2], 1: [1]}[n]
    w, at = start, 0
    for size in chunks:
        pulled_to = np.mean(memory + current[at : at + size])
        stepped = w - lr * (w - pulled_to)
        w = w + beta * (stepped - w)
        at += size
    w = start + gamma * (w - start)
    net = OneWeight(start)
    learner = SimpleNamespace(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=lr))
    x = torch.tensor(memory + current, dtype=torch.float64)
    method = QuadraticMER(gamma=gamma, beta=beta)
    zeros = [0] * (n + 2)
    method.begin(learner, memory_of([0, 0], [0, 1]))
    method.step(learner, batch_of(x, zeros, zeros, 2))
    assert net.weight.item() == pytest.approx(w, rel=1e-12)


def test_mer_in_one_chunk_with_nothing_held_back_is_er(monkeypatch):
    """Fails if MER does anything but chunks and Reptile: another loss, another optimizer."""
    monkeypatch.setattr(mer_module, "CHUNKS", 1)
    learners = [small("mer"), small("er")]
    for learner in learners:
        learner.learn(())
        learner.learn((6,))
    for a, b in zip(*(learner.net.parameters() for learner in learners), strict=True):
        assert torch.equal(a, b)


# -- HAL on a model of two parameters: features a x, logits (a b x, 0) ---------------------------


class Twice(nn.Module):
    in_features = 1

    def __init__(self, b):
        super().__init__()
        self.b = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def forward(self, h):
        return torch.cat([self.b * h, 0 * h], dim=1)


class Once(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def forward(self, x):
        return self.a * x


def two_parameters(a: float, b: float, lr: float) -> SimpleNamespace:
    net = Network(Once(a), 1, 1, 2)
    net.output = Twice(b)
    part = SimpleNamespace(y=torch.tensor([0, 1, 0, 1]))
    tasks = [SimpleNamespace(head=0, train=part) for _ in range(3)]
    return SimpleNamespace(
        device="cpu",
        net=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=lr),
        own_logits=net.own_head,
        logits=lambda x, head: net.own_head(net(x), head),
        environment=SimpleNamespace(seed=1, batch_size=16),
        scenario=SimpleNamespace(tasks=tasks, kind="task"),
        n_learned=2,
    )


def loss_of(a, b, xs, ys) -> float:
    return np.mean([cross_entropy([a * b * x, 0.0], y) for x, y in zip(xs, ys, strict=True)])


def slope_of(a, b, xs, ys) -> tuple[float, float]:
    """d loss / da and d loss / db: the error of the first output times what it depends on."""
    p = [1 / (1 + math.exp(-a * b * x)) for x in xs]
    errors = [pi - (y == 0) for pi, y in zip(p, ys, strict=True)]
    rows = list(zip(errors, xs, strict=True))
    return np.mean([e * b * x for e, x in rows]), np.mean([e * a * x for e, x in rows])


def numeric(function, at, h=1e-6):
    return (function(at + h) - function(at - h)) / (2 * h)


A, B, LR = 0.8, -0.6, 0.3


def hal_on_two_parameters() -> tuple[HAL, SimpleNamespace, Memory]:
    """HAL at the start of task 2, with mean images and embeddings of task 1 as if it had learned it."""
    method = HAL(strength=0.9, embedding=0.2, decay=0.7, anchor_steps=3, lr=LR)
    method.images = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    method.embeddings = torch.tensor([[0.3], [-0.9]], dtype=torch.float64)
    x = torch.tensor([[1.5], [-1.0], [0.7]], dtype=torch.float64)
    y, zeros = torch.tensor([0, 1, 1]), torch.zeros(3, dtype=torch.long)
    return method, two_parameters(A, B, LR), Memory(x, y, zeros, zeros, torch.arange(3))


def test_hal_anchors_by_hand():
    """Fails if anchors minimise instead of maximise, if the fine-tuned and the own loss are swapped,
    or if the mean embedding pulls the wrong way or on the wrong class."""
    method, learner, memory = hal_on_two_parameters()
    xs, ys = memory.x.flatten().tolist(), memory.y.tolist()
    a, b = A, B
    for _ in range(FINE_TUNING_STEPS):
        da, db = slope_of(a, b, xs, ys)
        a, b = a - LR * da, b - LR * db
    expected = []
    for label, start, mean in ((0, 1.0, 0.3), (1, -0.5, -0.9)):

        def gain(e, label=label, mean=mean):
            forgotten = cross_entropy([a * b * e, 0.0], label)
            return forgotten - cross_entropy([A * B * e, 0.0], label) - 0.2 * (A * e - mean) ** 2

        e = start
        for _ in range(3):
            e += LR * numeric(gain, e)
        expected.append(e)
    method.begin(learner, memory)
    assert method.anchors[0].flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert [p.item() for p in learner.net.parameters()] == [A, B]  # fine-tuning was on a copy


def test_hal_step_by_hand():
    """Fails if the anchor term is left out, has the wrong sign or strength, or does not look through
    the temporary step (its gradient would then point towards the forgetting)."""
    method, learner, memory = hal_on_two_parameters()
    method.begin(learner, memory)
    anchors = method.anchors[0].flatten().tolist()
    xs, ys = [1.5, -1.0, 0.7, 0.4, -2.0], [0, 1, 1, 1, 0]

    def objective(a, b):
        da, db = slope_of(a, b, xs, ys)
        ahead_a, ahead_b = a - LR * da, b - LR * db
        changes = [(a * b * e - ahead_a * ahead_b * e) ** 2 for e in anchors]
        return loss_of(a, b, xs, ys) + 0.9 * np.mean(changes)

    expected_a = A - LR * numeric(lambda a: objective(a, B), A)
    expected_b = B - LR * numeric(lambda b: objective(A, b), B)
    x = torch.tensor(xs, dtype=torch.float64)[:, None]
    loss = method.step(learner, batch_of(x, ys, [0] * 5, 3))
    assert loss == pytest.approx(objective(A, B), rel=1e-9)
    moved = [p.item() for p in learner.net.parameters()]
    assert moved == pytest.approx([expected_a, expected_b], rel=1e-6)
    plain = [w - LR * s for w, s in zip((A, B), slope_of(A, B, xs, ys), strict=True)]
    assert moved != pytest.approx(plain, rel=1e-4)


def test_hal_mean_embedding_is_a_running_mean_per_class_of_the_current_samples():
    """Fails if decay weighs the wrong side, if replayed samples are averaged in, or if a class that
    is not in the batch moves."""
    method, learner, memory = hal_on_two_parameters()
    method.begin(learner, memory)
    x = torch.tensor([[9.0], [9.0], [9.0], [1.0], [2.0], [4.0]], dtype=torch.float64)
    method.loss(learner, batch_of(x, [0, 1, 1, 0, 0, 1], [0] * 6, 3))
    expected = np.array([0.3 * A * 1.5, 0.3 * A * 4.0])
    assert method.embeddings.flatten().tolist() == pytest.approx(expected)
    method.loss(learner, batch_of(x, [0, 1, 1, 0, 0, 0], [0] * 6, 3))
    expected = np.array([0.7 * expected[0] + 0.3 * A * 7 / 3, expected[1]])
    assert method.embeddings.flatten().tolist() == pytest.approx(expected)


def test_hal_without_a_memory_is_a_plain_step():
    """Fails if anchors act, or anything divides by zero, at a task for which nothing is replayed."""
    learners = [small("hal"), small("er", method_args=dict(optimizer="sgd", lr=0.1))]
    for learner in learners:
        learner.learn(())
        learner.learn((0,))
    for a, b in zip(*(learner.net.parameters() for learner in learners), strict=True):
        assert torch.equal(a, b)


def test_hal_guards_the_tasks_with_a_share_only():
    """Fails if a task outside the memory keeps its anchors in the loss, or a head is mixed up."""
    learner = small("hal", method_args=dict(anchor_steps=2))
    for counts in ((), (10,), (5, 5), (0, 4, 6)):
        learner.learn(counts)
    method = learner.method
    assert len(method.anchors) == 3
    assert torch.equal(method.guarded, torch.cat(method.anchors[1:]))
    assert method.heads.tolist() == [1, 1, 2, 2]


def test_hal_anchors_are_learned_from_the_scheduled_memory():
    """Fails if anchors are made before the schedule for the next task is known."""
    learner = small("hal")
    learner.learn(())
    before = learner.snapshot()
    made = []
    for counts in ((2,), (10,)):
        learner.restore(before)
        learner.learn(counts)
        made.append(learner.method.anchors[0])
    assert not torch.equal(*made)


# -- ER-Ring ---------------------------------------------------------------------------------------


def test_ring_holds_the_last_samples_per_class_of_a_known_stream():
    """Fails if the ring keeps the first samples, or counts them over all classes together."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    task = SimpleNamespace(train=SimpleNamespace(y=labels))
    learner = SimpleNamespace(
        scenario=SimpleNamespace(tasks=[task]),
        n_learned=1,
        environment=SimpleNamespace(pool_size=4, selection="uniform"),
    )
    method = ERRing()
    method.begin(learner, memory_of([], []))
    epochs = [[6, 5, 4, 3, 2, 1, 0], [2, 4, 0, 3, 1, 6, 5]]
    method.stream = [torch.tensor(part) for epoch in epochs for part in (epoch[:4], epoch[4:])]
    # the second epoch: class 0 came as 2, 0, 1 and class 1 as 4, 3, 6, 5
    assert method.pool(learner).tolist() == [1, 5, 0, 6]


@pytest.mark.parametrize("per_class", [1, 3])
def test_ring_of_a_real_run_is_what_queues_would_hold(per_class, monkeypatch):
    """Fails if the pool does not follow the batches that were really trained on."""
    learner = small("er-ring", epochs=2, samples_per_class=per_class)
    queues, step = {}, Method.step

    def watched(self, learner, batch):
        labels = learner.scenario.tasks[learner.n_learned - 1].train.y
        for i in batch.current.tolist():
            queues.setdefault(int(labels[i]), deque(maxlen=per_class)).append(i)
        return step(self, learner, batch)

    monkeypatch.setattr(Method, "step", watched)
    learner.learn(())
    newest_first = [list(queues[label])[::-1] for label in (0, 1)]
    expected = [i for ranked in zip(*newest_first, strict=True) for i in ranked]
    assert learner.pools[0].tolist() == expected
    labels = learner.scenario.tasks[0].train.y
    assert labels[learner.pools[0]].tolist() == [0, 1] * per_class


def test_ring_refuses_another_selection():
    """Fails if "k-means" in a table were silently a ring."""
    with pytest.raises(ValueError, match="stream"):
        small("er-ring", selection="kmeans").learn(())


# -- batch norm ------------------------------------------------------------------------------------


def convnet(method: str) -> Learner:
    return small(method, network="convnet", batch_size=128)  # two or three steps per task


def buffers(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in learner.net.named_buffers()}


def same(a: dict, b: dict) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", ["agem", "er-ring"])
def test_a_last_batch_of_one_sample_is_no_trouble(method):
    """Broken: where a task's samples leave one over, A-GEM stops in batch norm, or a ring lacks samples
    and the next task reads beyond its end."""
    sizes = [len(task.train) for task in small("er").scenario.tasks]
    size = next(b for b in range(20, 300) if sizes[0] % b == 1 or sizes[1] % b == 1)
    for m in (5, sizes[0]):
        learner = small(method, network="convnet", batch_size=size, epochs=1, memory_size=m)
        learner.learn(())
        learner.learn((m,))
        assert not learner.diverged
        assert all(len(set(pool.tolist())) == len(pool) for pool in learner.pools)


@pytest.mark.parametrize("method", ["der", "derpp", "hal"])
def test_what_is_stored_and_tried_leaves_the_network_alone(method):
    """Fails if storing logits or learning anchors moves batch norm's running statistics or weights."""
    learner = convnet(method)
    learner.learn(())
    before, weights = buffers(learner), [p.clone() for p in learner.net.parameters()]
    learner.net.train()  # even if someone forgot to say eval
    learner.method.end(learner)
    learner.n_learned = 2
    tasks, pool = learner.scenario.tasks, learner.pools[0][:4]
    zeros = torch.zeros(4, dtype=torch.long)
    inputs, labels = tasks[0].train.inputs(pool), tasks[0].train.y[pool]
    learner.method.begin(learner, Memory(inputs, labels, zeros, zeros, torch.arange(4)))
    assert same(before, buffers(learner))
    for a, b in zip(weights, learner.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_looking_ahead_moves_running_statistics_no_further_than_er():
    """Fails if HAL's temporary step or its anchors pass through batch norm in training mode."""
    after = []
    for learner in (convnet("hal"), convnet("er")):  # the same untrained network
        train = learner.scenario.tasks[0].train
        zeros = torch.zeros(3, dtype=torch.long)
        memory = Memory(train.inputs(slice(0, 3)), train.y[:3], zeros, zeros, torch.arange(3))
        learner.n_learned = 1
        learner.net.train()
        learner.method.begin(learner, memory_of([], []))
        learner.method.end(learner)
        learner.n_learned = 2
        learner.method.begin(learner, memory)
        learner.method.step(learner, next(learner.batches(2, memory)))
        assert learner.net.training
        after.append(buffers(learner))
    assert same(*after)
    assert after[0]["trunk.1.num_batches_tracked"] == 1


@pytest.mark.parametrize("method", REPLAY)
def test_every_method_trains_a_batch_norm_network_with_one_replayed_sample(method):
    """Fails if a method sends a single sample through batch norm in training mode."""
    learner = convnet(method)
    learner.learn(())
    before = [p.clone() for p in learner.net.parameters()]
    learner.learn((1,))
    assert not learner.diverged
    assert not any(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))


# -- hyper-parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("hal", dict(strength=-1), "strength"),
        ("hal", dict(embedding=float("nan")), "embedding"),
        ("hal", dict(decay=1.0), "decay"),
        ("hal", dict(anchor_steps=-1), "anchor_steps"),
        ("hal", dict(anchor_steps=100.0), "anchor_steps"),
        ("hal", dict(lr=0.0), "lr must be a positive number"),
        ("der", dict(alpha="0.2"), "method_args of 'der'"),
        ("er", dict(width=2), "method_args of 'er': .*width"),
        ("mer", dict(gamma=0), "gamma"),
        ("mer", dict(beta=1.5), "beta"),
        ("der", dict(alpha=-0.1), "alpha"),
        ("derpp", dict(beta=-0.1), "beta"),
        ("agem", dict(optimizer="adagrad"), "optimizer"),
    ],
)
def test_bad_hyper_parameters_are_named(method, arguments, named):
    """Fails if a slip in a notebook's parameters trains for hours before anyone sees it."""
    with pytest.raises(ValueError, match=named):
        Environment("digits", method=method, method_args=arguments)


@pytest.mark.parametrize("method", presets.METHODS)
def test_the_papers_hyper_parameters_fit_the_methods(method):
    """Fails if a name in the presets is none of the method's."""
    for dataset in (*presets.METHODS[method], "digits"):
        made = METHODS[method](**presets.method_arguments(method, dataset))
        for name, value in presets.method_arguments(method, dataset).items():
            assert getattr(made, name) == value
