"""The environment in someone else's hands: sb3-contrib's MaskablePPO (extra `rl-extra`)."""

import numpy as np
import pytest
from synthetic import synthetic_table

from rslib.env import ReplayScheduleEnv

pytestmark = pytest.mark.rl_extra


def test_maskable_ppo_never_chooses_an_invalid_action():
    """Broken: the masks are not where, or not what, the ecosystem expects."""
    pytest.importorskip("stable_baselines3")
    from sb3_contrib import MaskablePPO

    tables = [synthetic_table(5, seed) for seed in range(3)]
    env = ReplayScheduleEnv(tables)
    step, steps = env.step, []
    env.step = lambda action: (steps.append(step(action)), steps[-1])[1]
    model = MaskablePPO("MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=2, seed=0)
    model.learn(2_000)
    assert model.num_timesteps >= 2_000
    assert not any(info.get("invalid") for *_, info in steps)
    observation, info = env.reset(seed=1)
    done = False
    while not done:
        action, _ = model.predict(observation, action_masks=env.action_masks(), deterministic=True)
        assert info["action_mask"][int(action)]
        observation, reward, done, _, info = env.step(action)
        assert 0 < reward <= 1
    assert np.isfinite(info["acc"])
