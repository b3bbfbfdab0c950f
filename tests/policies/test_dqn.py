"""DQN: the update by hand and by autograd, the three masks, a slow twin, and a known optimum."""

import numpy as np
import pytest
import torch
from synthetic import synthetic_table

from rslib import schedule
from rslib.complete_tree import CompleteTree, tree_shape
from rslib.policies import dqn
from rslib.policies.dqn import DQNArgs, QNetwork, best_values, choose
from rslib.seeding import torch_rng

SMALL = DQNArgs(hidden=32, episodes=60, anneal_episodes=30, lr=1e-3, log_every=20, batch_size=8)


def best_return(table):
    """Undiscounted optimum by dynamic programming, and the rewards it sums."""
    shape = tree_shape(table.n_tasks)
    reward = table.val.sum(axis=1) / shape.depth
    worth = np.zeros(len(reward))
    for row in range(shape.n_inner - 1, -1, -1):
        children = shape.child[row][shape.child[row] >= 0]
        worth[row] = (reward[children] + worth[children]).max()
    return worth[0], reward


def greedy_return(policy, table):
    shape, (_, reward) = tree_shape(table.n_tasks), best_return(table)
    row, total = 0, 0.0
    for k in range(1, table.n_tasks):
        state = torch.from_numpy(table.val[row, :-1]).float().unsqueeze(0)
        row = shape.child[row, int(policy.greedy(state, k)[0])]
        total += reward[row]
    return total


def known_tables():
    """Two environments told apart by task 1's accuracy, in which the greedy choice at task 3 is a
    trap: it pays 0.1 more at once and then 0.5 less at best."""
    tables = []
    shape = tree_shape(4)
    for environment in range(2):
        val = np.where(np.arange(4) < shape.depth[:, None], 0.5, 0.0)
        val[shape.depth <= 2, 0] = (0.3, 0.9)[environment]
        trap, good = (0, 2) if environment else (2, 0)
        for row in range(shape.first[-1]):
            actions = shape.path(row)
            k = len(actions) + 1
            if k >= 3:
                val[row, :k] = {trap: 0.6, good: 0.5}.get(actions[1], 0.3)
            if k == 4:
                val[row, :k] = (0.9 if actions[1] == good else 0.4) if actions[2] == 5 else 0.2
        tables.append(CompleteTree("known", environment, val, val))
    return tables


def small_network(seed=0, **changes):
    args = DQNArgs(**({"hidden": 7, "batch_size": 5} | changes))
    return QNetwork(3, 10, args, torch.Generator().manual_seed(seed))


def test_an_update_by_hand():
    """Broken: the update is not the paper's.

    One input 0.5, one unit per layer: h1 = 0.5, h2 = 2 * 0.5 = 1, Q = (1 * 1 + 0.5, -1) = (1.5, -1).
    Target = reward 0.2 + best allowed value 1.0 of the next state (5 is masked) = 1.2; so the slope
    of Huber's loss is 0.3, and down the network: 0.3, 0.3 * h1 = 0.15, 0.3 * 2 = 0.6, 0.6 * 0.5.
    The norm is sqrt(0.7425) < 1: no clipping. Adam's first step is lr against each gradient's sign.
    """
    args = DQNArgs(hidden=1, batch_size=1, lr=0.01)
    network = QNetwork(1, 2, args, torch.Generator())
    with torch.no_grad():
        for weight, value in zip(
            network.weights,
            ([[1.0]], [0.0], [[2.0]], [0.0], [[1.0], [-1.0]], [0.5, 0.0]),
            strict=True,
        ):
            weight.copy_(torch.tensor(value))
        target = 0.2 + best_values(torch.tensor([[5.0, 1.0]]), torch.tensor([[False, True]]))
        network.update(torch.tensor([[0.5]]), torch.tensor([0]), target)
    expected = [[0.3], [0.6], [0.15], [0.3], [0.3, 0.0], [0.3, 0.0]]
    for gradient, value in zip(network.gradients, expected, strict=True):
        assert gradient.flatten().tolist() == pytest.approx(value, abs=1e-6)
    moved = [w.flatten().tolist() for w in network.weights]
    after = [[0.99], [-0.01], [1.99], [-0.01], [0.99, -1.0], [0.49, 0.0]]
    for weight, value in zip(moved, after, strict=True):
        assert weight == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("spread", [0.1, 30.0])  # Huber's quadratic and linear parts
def test_gradient_is_autograds(spread):
    """Broken: the hand-written gradient would be of another loss."""
    network = small_network()
    states, actions = torch.rand(5, 3), torch.tensor([0, 9, 4, 4, 1])
    targets = spread * torch.randn(5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        network.backward(states, actions, targets)
    weights = [w.detach().clone().requires_grad_() for w in network.weights]
    loss = dqn.loss(weights, states, actions, targets)
    for mine, theirs in zip(network.gradients, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_loss_by_hand():
    """Broken: the formula would not be the paper's. Q = (1.5, -1) as above; the errors 1.5 - 1.2 = 0.3
    and -1 - 1 = -2 cost 0.3^2 / 2 = 0.045 and 2 - 1/2 = 1.5, on average 0.7725."""
    values = ([[1.0]], [0.0], [[2.0]], [0.0], [[1.0], [-1.0]], [0.5, 0.0])
    weights = [torch.tensor(value) for value in values]
    actions, targets = torch.tensor([0, 1]), torch.tensor([1.2, 1.0])
    loss = dqn.loss(weights, torch.tensor([[0.5], [0.5]]), actions, targets)
    assert float(loss) == pytest.approx(0.7725)


def test_gradient_norm_is_clipped_at_one():
    """Broken: one bad batch could throw the network off."""
    network = small_network(hidden=64)
    with torch.no_grad():
        network.update(torch.ones(5, 3), torch.zeros(5, dtype=torch.long), torch.full((5,), -9.0))
    assert float(network.gradient.norm()) <= 1 + 1e-6


def test_masks_hold_in_the_random_choice():
    """Broken: exploring would take actions that do not exist, or not all that do."""
    q = torch.full((4000, 10), -9.0)
    q[:, 5] = 9.0  # greedy and forbidden
    actions = choose(q, 3, 1.0, torch.Generator().manual_seed(0))
    assert torch.bincount(actions).tolist() == pytest.approx([4000 / 3] * 3, rel=0.1)


def test_masks_hold_in_the_greedy_choice():
    """Broken: the policy would choose what it may not."""
    q = torch.tensor([[1.0, 2.0, 9.0], [3.0, 3.0, 9.0]])
    assert choose(q, 2, 0.0, torch.Generator()).tolist() == [1, 0]


def test_masks_hold_in_the_targets_max():
    """Broken: values would be learned from actions that cannot be taken."""
    q = torch.tensor([[1.0, 2.0, 9.0], [-3.0, -4.0, 9.0]])
    allowed = torch.tensor([[True, True, False], [True, False, False]])
    assert best_values(q, allowed).tolist() == [2.0, -3.0]


@pytest.mark.parametrize("seed", [0, 1])
def test_finds_the_optimum_of_a_known_tree(seed):
    """Broken: it does not learn; taking what pays now falls into the trap, which costs 0.4."""
    args = DQNArgs(
        hidden=64, lr=3e-3, episodes=300, anneal_episodes=200, target_period=50, log_every=300
    )
    tables = known_tables()
    policy, _ = dqn.train(tables, args, seed, progress=False)
    for table in tables:
        assert greedy_return(policy, table) == pytest.approx(best_return(table)[0])


def test_a_slow_twin_learns_the_same():
    """Broken: stepping as arrays, looking targets up or the flat parameters would change the
    algorithm. The twin steps environment by environment, keeps a target network and uses autograd."""
    tables = [synthetic_table(4, seed) for seed in range(3)]
    args = DQNArgs(
        hidden=6,
        batch_size=4,
        episodes=20,
        anneal_episodes=10,
        buffer_size=17,  # so that it wraps around
        target_period=7,
        lr=0.01,
        gamma=0.9,
    )
    fast, curve = dqn.train(tables, args, seed=5, progress=False)
    generator, shape, E = torch_rng(5, "dqn"), tree_shape(4), 3
    sizes = [(3, 6), (6, 6), (6, 10)]
    weights = []
    for n_in, n_out in sizes:
        for size in ((n_out, n_in) if n_out == 10 else (n_in, n_out), (n_out,)):
            bound = n_in**-0.5
            weights.append(torch.empty(size).uniform_(-bound, bound, generator=generator))
    weights[4] = weights[4].T.contiguous()
    weights = [w.requires_grad_() for w in weights]
    adam = torch.optim.Adam(weights, lr=0.01)

    def q_values(state, w):
        return torch.relu(torch.relu(state @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]

    def state_of(e, row):
        return torch.from_numpy(tables[e].val[row, :3]).float()

    memory, updates, target = {}, 0, weights
    stored = 0
    for episode in range(20):
        epsilon = 1 + min(1, episode / 10) * (0.02 - 1)
        rows = [0] * E
        for k in (1, 2, 3):
            uniform = torch.rand(E, generator=generator)
            random = torch.randint(schedule.n_actions(k), (E,), generator=generator)
            for e in range(E):
                q = q_values(state_of(e, rows[e]), weights)[: schedule.n_actions(k)]
                action = int(random[e]) if uniform[e] < epsilon else int(q.argmax())
                after = int(shape.child[rows[e], action])
                memory[stored % 17] = (e, rows[e], action, after)
                stored, rows[e] = stored + 1, after
            if stored < 4:
                continue
            drawn = torch.randint(min(stored, 17), (E, 4), generator=generator)
            for batch in drawn.tolist():
                if updates % 7 == 0:
                    target = [w.detach().clone() for w in weights]
                losses = []
                for e, row, action, after in (memory[i] for i in batch):
                    seen = int(shape.depth[after])
                    y = torch.tensor(tables[e].val[after, :seen].mean(), dtype=torch.float32)
                    if after < shape.n_inner:
                        allowed = schedule.n_actions(seen)
                        y = y + 0.9 * q_values(state_of(e, after), target)[:allowed].max()
                    got = q_values(state_of(e, row), weights)[action]
                    losses.append(torch.nn.functional.huber_loss(got, y))
                adam.zero_grad()
                torch.stack(losses).mean().backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                adam.step()
                updates += 1
    assert curve[-1]["updates"] == updates == 20 * 3 * 3 - 3  # no update from the first 3 stored
    for mine, theirs in zip(fast.weights, weights, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n_tasks", [2, 6])
def test_any_number_of_tasks(n_tasks):
    """Broken: the agent would be made for the paper's five tasks only."""
    table = synthetic_table(n_tasks)
    args = DQNArgs(hidden=8, episodes=4, batch_size=2)
    policy, _ = dqn.train([table, table], args, progress=False)
    assert policy.n_tasks == n_tasks
    assert len(policy.propose([[0.9] * t for t in range(1, n_tasks)], 10)) == n_tasks - 1


def test_same_seed_same_bits():
    """Broken: nobody could reproduce a policy."""
    tables = [synthetic_table(3, seed) for seed in range(4)]
    threads = torch.get_num_threads()
    runs = [dqn.train(tables, SMALL, seed, progress=False) for seed in (3, 3, 4)]
    assert torch.get_num_threads() == threads
    first, second, other = (run[0].weights for run in runs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert [point["episode"] for point in runs[0][1]] == [20, 40, 60]
    assert runs[0][0].config["environments"] == [["synthetic", s] for s in range(4)]
