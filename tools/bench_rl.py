"""How fast the agents learn, as ratios to the released code; `make bench` prints them.

The released code was measured on one core of a 2.8 GHz server CPU: 28.5 A2C updates per second with
10 environments (50 steps each), 111 DQN updates per second with 30 (batch 32, 2 x 512 units). Made-up
tables do, since a step is a lookup whatever the numbers are.

What limits ours: DQN takes three products with the 512 x 512 matrix (forward, and backward to the
weights and to the layer below: 50 MFLOP, 55 to 60 % of the time) and Adam over 282,000 parameters
(15 to 20 %); no target pass, as its values are looked up. A2C is bound by the number of calls, about
100 per update, not by arithmetic.
"""

from __future__ import annotations

from time import process_time

import numpy as np

from rslib.complete_tree import Table, tree_shape
from rslib.policies import a2c, dqn

RELEASED = {"a2c": 28.5, "dqn": 111.0}  # updates per second
ASKED = {"a2c": 15.0, "dqn": 5.0}  # times that


def synthetic_table(n_tasks: int = 5, seed: int = 0, dataset: str = "synthetic") -> Table:
    """A table of the right shape with random accuracies; also what the tests use."""
    shape = tree_shape(n_tasks)
    draws = np.random.default_rng((n_tasks, seed))
    accuracies = draws.uniform(0.5, 1, (2, shape.first[-1], n_tasks)).round(6)
    accuracies[:, np.arange(n_tasks) >= shape.depth[:, None]] = 0
    return Table(dataset, seed, accuracies[0], accuracies[1])


def bench(repeats: int = 8) -> list[dict]:
    """The best of some short runs of each agent, in seconds of processor time. Other work takes
    turns with us on the core, which are not ours, and crowds the cache, which only slows us."""
    tables = [synthetic_table(seed=seed) for seed in range(30)]
    short_a2c, short_dqn = a2c.A2CArgs(updates=300), dqn.DQNArgs(episodes=4)
    runs = {
        "a2c": lambda seed: a2c.train(tables[:10], short_a2c, seed, progress=False),
        "dqn": lambda seed: dqn.train(tables, short_dqn, seed, progress=False),
    }
    speeds = dict.fromkeys(runs, 0.0)
    for repeat in range(repeats):
        for name, train in runs.items():
            started = process_time()
            _, curve = train(repeat)
            speeds[name] = max(speeds[name], curve[-1]["updates"] / (process_time() - started))
    return [
        {
            "what": f"{name} updates/s",
            "ours": speed,
            "released": RELEASED[name],
            "ratio": speed / RELEASED[name],
            "asked": ASKED[name],
        }
        for name, speed in speeds.items()
    ]


def run() -> None:
    """Print one line per agent; `make bench` calls this."""
    for row in bench():
        verdict = "ok" if row["ratio"] >= row["asked"] else "TOO SLOW"
        print(
            f"{row['what']:16}{row['ours']:8.0f}   released {row['released']:6.1f}   "
            f"ratio {row['ratio']:5.1f}   asked {row['asked']:4.0f}   {verdict}"
        )


if __name__ == "__main__":
    run()
