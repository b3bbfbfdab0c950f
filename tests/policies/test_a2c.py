"""A2C: GAE by hand, the gradient by autograd, masks, a slow twin, and a known optimum."""

import math

import numpy as np
import pytest
import torch
from synthetic import synthetic_table

from rslib import schedule
from rslib.complete_tree import CompleteTree, tree_shape
from rslib.policies import a2c
from rslib.policies.a2c import FORBIDDEN, A2CArgs, ActorCritic, gae, sample
from rslib.seeding import torch_rng


def test_gae_by_hand():
    """Broken: advantages are not GAE's. gamma = 0.5, lambda = 0.5; the second step ends its episode.

    Step 3: 3 + 0.5 * 4 - 2 = 3. Step 2 (an end): 2 - 1 = 1, nothing after it counts.
    Step 1: 1 + 0.5 * 1 - 0.5 = 1, plus 0.25 * 1 = 1.25.
    """
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values = torch.tensor([[0.5], [1.0], [2.0], [4.0]])
    found = gae(rewards, values, [False, True, False], gamma=0.5, lam=0.5)
    assert found.flatten().tolist() == [1.25, 1.0, 3.0]


def test_gae_with_lambda_one_is_the_return_minus_the_value():
    """Broken: lambda would not interpolate to the plain return (a property, on random numbers)."""
    rewards, values = torch.rand(6, 3), torch.rand(7, 3)
    found = gae(rewards, values, [False] * 6, gamma=0.9, lam=1.0)
    returns = sum(0.9**s * rewards[s] for s in range(6)) + 0.9**6 * values[6]
    torch.testing.assert_close(found[0], returns - values[0])


def agent_with_rollout(n_steps=3, n_envs=4):
    args = A2CArgs(hidden=5, n_steps=n_steps, entropy_coef=0.3, value_coef=0.7)
    agent = ActorCritic(3, 10, n_envs, args, torch.Generator().manual_seed(0))
    with torch.no_grad():
        agent.flat.add_(torch.randn(agent.flat.shape, generator=torch.Generator().manual_seed(1)))
        agent.value.x.uniform_(generator=torch.Generator().manual_seed(2))
        n = n_steps * n_envs
        agent.policy.x.copy_(agent.value.x[:n])
        agent.policy.forward(slice(None))
        agent.policy.out[:4, 3:] = FORBIDDEN  # the first step has 3 actions
        agent.value.forward(slice(None))
    return agent, n


def test_gradient_is_autograds():
    """Broken: the hand-written gradient would be of another loss than the paper's A2C."""
    agent, n = agent_with_rollout()
    actions = torch.arange(n).remainder(3).unsqueeze(1)
    returns = torch.randn(n, 1, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        advantages = returns - agent.value.out[:n]
        agent.backward(torch.log_softmax(agent.policy.out, 1), actions, advantages)
    weights = [
        w.detach().clone().requires_grad_() for w in agent.policy.weights + agent.value.weights
    ]

    def forward(x, w):
        return torch.tanh(torch.tanh(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]

    x = agent.policy.x
    logits = forward(x, weights[:6])
    blocked = torch.zeros_like(logits, dtype=torch.bool)
    blocked[:4, 3:] = True
    logits = logits.masked_fill(blocked, FORBIDDEN)
    loss = a2c.loss(logits, forward(x, weights[6:]), actions, returns, agent.args)
    mine = agent.policy.gradients + agent.value.gradients
    for a, b in zip(mine, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(a, b)


def test_the_loss_by_hand():
    """Broken: the formula would not be the paper's. One step: V = 1, R = 3, so A = 2; two allowed
    actions of equal logits: log p = -log 2, H = log 2. 2 log 2 + 0.7 * 4 - 0.3 log 2."""
    args = A2CArgs(value_coef=0.7, entropy_coef=0.3)
    logits = torch.tensor([[0.5, 0.5, FORBIDDEN]])
    values, actions, returns = torch.tensor([[1.0]]), torch.tensor([[1]]), torch.tensor([[3.0]])
    expected = 1.7 * math.log(2) + 2.8
    assert float(a2c.loss(logits, values, actions, returns, args)) == pytest.approx(expected)


def test_masked_actions_have_no_share_in_the_entropy():
    """Broken: the bonus would reward spreading over actions that do not exist. Two allowed actions
    of equal logits: entropy log 2, at its maximum, so with no advantage the gradient is zero."""
    agent, n = agent_with_rollout()
    with torch.no_grad():
        agent.policy.out.fill_(FORBIDDEN)
        agent.policy.out[:, :2] = 0.5
        log_p = torch.log_softmax(agent.policy.out, 1)
        assert float(-(log_p.exp() * log_p).sum(1)[0]) == pytest.approx(math.log(2))
        agent.backward(log_p, torch.zeros(n, 1, dtype=torch.long), torch.zeros(n, 1))
    assert float(agent.gradient.abs().max()) < 1e-7


def test_sampling_keeps_to_the_mask_and_the_softmax():
    """Broken: rollouts would take forbidden actions, or not follow the policy."""
    logits = torch.tensor([0.0, math.log(3), 50.0]).repeat(8000, 1)
    generator = torch.Generator().manual_seed(0)
    gumbel = torch.empty(8000, 3).exponential_(generator=generator).log().neg()
    drawn = torch.bincount(sample(logits, 2, gumbel), minlength=3)
    assert drawn.tolist() == pytest.approx([2000, 6000, 0], abs=150)


def test_rmsprop_and_clipping_by_hand():
    """Broken: the step is not RMSProp's. A gradient (3, 4) has norm 5 and is clipped to (0.3, 0.4);
    the first step is lr * g / (sqrt(0.01 g^2) + eps), about 10 lr against the sign."""
    args = A2CArgs(hidden=2, n_steps=1, lr=0.01)
    agent = ActorCritic(1, 2, 1, args, torch.Generator())
    before = agent.flat.clone()
    with torch.no_grad():
        agent.gradient.zero_()
        agent.gradient[:2] = torch.tensor([3.0, 4.0])
        agent.step()
    g = np.array([0.3, 0.4])
    expected = 0.01 * g / (np.sqrt(0.01 * g**2) + 1e-5)
    assert (before - agent.flat)[:2].tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert torch.equal(before[2:], agent.flat[2:])


def test_initialisation_is_orthogonal():
    """Broken: the networks would start elsewhere than the paper's."""
    agent = ActorCritic(4, 35, 2, A2CArgs(), torch.Generator().manual_seed(0))
    w1, b1, w2, _, w3, _ = agent.policy.weights
    torch.testing.assert_close(w2 @ w2.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(w3.T @ w3, 1e-4 * torch.eye(35), atol=1e-7, rtol=0)
    assert not b1.any() and not torch.equal(w1, agent.value.weights[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_finds_the_optimum_of_a_known_tree(seed):
    """Broken: it does not learn. Two environments, told apart by task 1's accuracy; what pays more
    at task 3 costs more at task 4, and the other way round in the other one."""
    shape, tables = tree_shape(4), []
    for environment in range(2):
        val = np.where(np.arange(4) < shape.depth[:, None], 0.5, 0.0)
        val[shape.depth <= 2, 0] = (0.1, 0.9)[environment]
        trap, good = (0, 2) if environment else (2, 0)
        for row in range(shape.first[-1]):
            actions = shape.path(row)
            if len(actions) == 2:
                val[row, :3] = {trap: 0.6, good: 0.5}.get(actions[1], 0.3)
            if len(actions) == 3:
                val[row] = (1.0 if actions[1] == good else 0.2) * (1.0 if actions[2] == 5 else 0.1)
        tables.append(CompleteTree("known", environment, val, val))
    args = A2CArgs(lr=3e-3, updates=1000, n_steps=3, log_every=1000)
    policy, _ = a2c.train(tables, args, seed, progress=False)
    for environment, table in enumerate(tables):
        row, taken = 0, []
        for k in (1, 2, 3):
            state = torch.from_numpy(table.val[row, :3]).float().unsqueeze(0)
            taken.append(int(policy.greedy(state, k)[0]))
            row = shape.child[row, taken[-1]]
        assert taken == [0, (0, 2)[environment], 5]


def test_a_slow_twin_learns_the_same():
    """Broken: stepping as arrays, keeping the rollout's activations or the flat parameters would
    change the algorithm. The twin steps environment by environment with autograd and torch's
    RMSprop; 5 steps per update and episodes of 3 make episodes run across updates."""
    tables = [synthetic_table(4, seed) for seed in range(2)]
    args = A2CArgs(hidden=6, n_steps=5, updates=30, lr=0.01, gamma=0.9)
    fast, _ = a2c.train(tables, args, seed=5, progress=False)
    generator, shape, E = torch_rng(5, "a2c"), tree_shape(4), 2
    weights = []
    for n_out, head in ((10, 0.01), (1, 2**0.5)):
        for n_in, n, gain in ((3, 6, 2**0.5), (6, 6, 2**0.5), (6, n_out, head)):
            weights.append(torch.zeros(n_in, n))
            torch.nn.init.orthogonal_(weights[-1], gain, generator=generator)
            weights.append(torch.zeros(n))
    weights = [w.requires_grad_() for w in weights]
    optimizer = torch.optim.RMSprop(weights, lr=0.01, alpha=0.99, eps=1e-5)

    def forward(state, w):
        return torch.tanh(torch.tanh(state @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]

    def state_of(e, row):
        return torch.from_numpy(tables[e].val[row, :3]).float()

    rows = [0] * E
    for _ in range(30):
        noise = torch.empty(5, E, 10).exponential_(generator=generator).log().neg()
        losses = []
        for e in range(E):
            steps = []
            for s in range(5):
                allowed = schedule.n_actions(int(shape.depth[rows[e]]))
                state = state_of(e, rows[e])
                logits = forward(state, weights[:6])[:allowed]
                action = int((logits + noise[s, e, :allowed]).argmax())
                after = int(shape.child[rows[e], action])
                seen = int(shape.depth[after])
                reward = float(tables[e].val[after, :seen].mean())
                chances = torch.distributions.Categorical(logits=logits)
                value = forward(state, weights[6:])[0]
                steps.append((chances, action, reward, value, seen == 4))
                rows[e] = 0 if seen == 4 else after
            following = forward(state_of(e, rows[e]), weights[6:])[0].detach()
            advantage = torch.tensor(0.0)
            for chances, action, reward, value, end in reversed(steps):
                v = value.detach()
                delta = reward - v if end else reward + 0.9 * following - v
                advantage = delta if end else delta + 0.9 * 0.95 * advantage
                following = v
                losses.append(
                    -advantage * chances.log_prob(torch.tensor(action))
                    + 0.5 * (advantage + v - value) ** 2
                    - 0.01 * chances.entropy()
                )
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
    for mine, theirs in zip(fast.weights, weights[:6], strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("n_tasks", [2, 6])
def test_any_number_of_tasks(n_tasks):
    """Broken: the agent would be made for the paper's five tasks only."""
    args = A2CArgs(hidden=8, updates=4)
    policy, _ = a2c.train([synthetic_table(n_tasks)] * 2, args, progress=False)
    assert policy.n_tasks == n_tasks
    assert len(policy.propose([[0.9] * t for t in range(1, n_tasks)], 10)) == n_tasks - 1


def test_same_seed_same_bits():
    """Broken: nobody could reproduce a policy."""
    tables = [synthetic_table(3, seed) for seed in range(4)]
    args = A2CArgs(hidden=16, updates=50, log_every=20)
    threads = torch.get_num_threads()
    runs = [a2c.train(tables, args, seed, progress=False) for seed in (3, 3, 4)]
    assert torch.get_num_threads() == threads
    first, second, other = (run[0].weights for run in runs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert [point["updates"] for point in runs[0][1]] == [20, 40, 50]
