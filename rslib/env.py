"""Replay scheduling as a Gymnasium environment, over live or complete schedule trees.

    import rslib.env  # registers it

    env = gymnasium.make("rslib/ReplaySchedule-v0", sources="environments.csv.gz")
    observation, info = env.reset(seed=0, options={"environment": 3})

A step chooses what to replay while the next task is learned: over a live tree it trains (unless the
tree knows the node), over a complete tree it looks up. Observation: validation accuracies of the first
T-1 tasks, 0 for tasks not seen. Reward: mean validation accuracy of the tasks seen. Action: an index
into the action space with the tasks seen so far; `info["action_mask"]` and `action_masks()` say which
exist. The agents of this library do not use it (they step arrays); it is for everyone else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rslib import schedule
from rslib.complete_tree import load_tables

ID = "rslib/ReplaySchedule-v0"
PENALTY = -1.0  # reward of an invalid action: below anything a valid one can give
MAX_INVALID = 100  # an agent that ignores the mask is cut off, or it would try for ever
MAX_ACTIONS = 2_000_000  # a mask longer than this is no use: 13 tasks have 1.35 million actions


class ReplayScheduleEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One or more continual-learning environments; `reset` picks one.

    sources: a complete tree, a schedule tree, a list of either, or the path of a table file.

    An action that the mask forbids has reward -1; nothing is learned and the state stays.
    """

    metadata = {"render_modes": []}

    def __init__(self, sources: Any, render_mode: None = None):
        if isinstance(sources, str | Path):
            sources = load_tables(sources)
        self.sources = list(sources) if isinstance(sources, Sequence) else [sources]
        sizes = sorted({source.n_tasks for source in self.sources})
        if len(sizes) != 1 or sizes[0] < 2:
            raise ValueError(f"environments of one number of tasks (2 or more) needed, got {sizes}")
        self.n_tasks: int = sizes[0]
        n_actions = schedule.n_actions(self.n_tasks - 1)
        if n_actions > MAX_ACTIONS:
            raise ValueError(f"{self.n_tasks} tasks have {n_actions:,} actions: too many to mask")
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 1, (self.n_tasks - 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(n_actions)
        self._source, self._n_invalid = self.sources[0], 0
        self._node: Any = None  # before the first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Task 1 learned in an environment drawn at random, or as the options say:
        {"environment": index} or {"dataset": name, "env_seed": seed} (either alone will do if it
        is enough)."""
        super().reset(seed=seed)
        self._source = self._pick(options or {})
        self._node, self._n_invalid = self._source.walk(()), 0
        return self._observation(), self._info()

    def _pick(self, options: dict[str, Any]) -> Any:
        unknown = set(options) - {"environment", "dataset", "env_seed"}
        if unknown:
            raise ValueError(f"unknown reset options {sorted(unknown)}")
        if "environment" in options:
            index = int(options["environment"])
            if not 0 <= index < len(self.sources):
                raise ValueError(f"environment {index} of {len(self.sources)} (counted from 0)")
            return self.sources[index]
        fits = []
        for source in self.sources:
            known = {"dataset": source.environment.dataset, "env_seed": source.environment.seed}
            if known | options == known:
                fits.append(source)
        if not fits:
            raise ValueError(f"no environment with {options}")
        return fits[int(self.np_random.integers(len(fits)))] if len(fits) > 1 else fits[0]

    def step(self, action) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._node is None or self._node.depth == self.n_tasks:
            raise RuntimeError("the episode is over: call reset")
        if np.isnan(self._node.reward):
            return self._diverged()
        k, action = self._node.depth, int(action)
        if not 0 <= action < schedule.n_actions(k):
            self._n_invalid += 1
            cut_off = self._n_invalid >= MAX_INVALID
            return self._observation(), PENALTY, False, cut_off, self._info() | {"invalid": True}
        composition = self._source.counts(schedule.action_shares(k, action), k)
        self._node = self._source.walk((*self._node.path, composition))
        done = self._node.depth == self.n_tasks
        info = self._info() | {"invalid": False}
        if done:
            info |= {
                "schedule": self._node.schedule,
                # (T+1, T), row t = after task t; 0 where nothing is known, as in the observation
                # (NaN is unequal to itself, and Gymnasium's checker compares infos)
                "val": np.nan_to_num(self._node.val),
                "test": np.nan_to_num(self._node.test),
                "acc": self._node.acc,
                "bwt": self._node.bwt,
            }
        if np.isnan(self._node.reward):
            return self._diverged()
        return self._observation(), self._node.reward, done, False, info

    def _diverged(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Training did not converge: the episode ends without a reward, since NaN would spread."""
        return self._observation(), 0.0, True, False, self._info() | {"diverged": True}

    def action_masks(self) -> np.ndarray:
        """(actions,) bool, the name under which sb3-contrib looks for it. All false at the end."""
        mask = np.zeros(schedule.n_actions(self.n_tasks - 1), dtype=bool)
        if self._node is not None and self._node.depth < self.n_tasks:
            mask[: schedule.n_actions(self._node.depth)] = True
        return mask

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.n_tasks - 1, dtype=np.float32)
        seen = min(self._node.depth, self.n_tasks - 1)
        observation[:seen] = np.nan_to_num(self._node.val[-1, :seen])
        return observation

    def _info(self) -> dict[str, Any]:
        environment = self._source.environment
        return {
            "action_mask": self.action_masks().astype(np.int8),  # as Discrete.sample takes it
            "dataset": environment.dataset,
            "env_seed": environment.seed,
            "task": self._node.depth,  # tasks learned
        }


if ID not in gymnasium.registry:  # a reloaded module must not warn
    gymnasium.register(ID, entry_point="rslib.env:ReplayScheduleEnv")
