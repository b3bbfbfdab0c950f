"""The paper's rules: no replay, equal shares, random shares, and heuristics on what has dropped.

GD (global drop), LD (local drop) and AT (accuracy threshold) replay the tasks they select in equal
shares (Section 4.2, Appendix B); each also comes combined with equal shares (Appendix C.9).
"""

from __future__ import annotations

import numpy as np

from rslib import schedule
from rslib.policies import POLICIES, RuleFunction, register


@register("none", "Fine-tuning")
def no_replay(val, rng, parameter):
    return [0] * len(val)


@register("ets", "ETS")
def equal_task_shares(val, rng, parameter):
    return [1] * len(val)


@register("random", "Random", needs="the number of the draw", default=0)
def random_action(val, rng, parameter):
    return schedule.sample_action(len(val), rng)


@register("heur-gd", "Heur-GD", needs="tau")
def global_drop(val, rng, tau):
    """Replay what has fallen below tau times its best so far, now included."""
    return val[-1] < tau * np.nanmax(val, axis=0)


@register("heur-ld", "Heur-LD", needs="tau")
def local_drop(val, rng, tau):
    """Replay what has fallen below tau times its previous value; a new task has none."""
    previous = val[-2] if len(val) > 1 else np.full(1, np.nan)
    return val[-1] < tau * previous  # a comparison with NaN is False


@register("heur-at", "Heur-AT", needs="tau")
def accuracy_threshold(val, rng, tau):
    """Replay what is below tau."""
    return val[-1] < tau


def _with_ets(rule: RuleFunction) -> RuleFunction:
    """One share for every past task and one more for those the heuristic selects."""
    return lambda val, rng, tau: 1 + np.asarray(rule(val, rng, tau), dtype=int)


for _name in ("gd", "ld", "at"):
    _heuristic = POLICIES[f"heur-{_name}"]
    register(f"ets+heur-{_name}", f"ETS+{_heuristic.label}", needs="tau")(
        _with_ets(_heuristic.rule)
    )
