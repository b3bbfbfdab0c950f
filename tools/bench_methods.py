"""What a training step of each replay method costs, relative to ER in the same run.

Split MNIST's shape: 128 current samples and a memory of 10 (3, 3, 2, 2 of four past tasks), MLP
784-256-256, random pixels. The methods take turns and processor time is counted, since the machine is
shared; a step is the update alone, on a batch that is there. `begin` is what a method does once per
task before the first step (HAL learns its anchors); an epoch of Split MNIST has about 80 steps.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import numpy as np

from rslib.environment import Environment
from rslib.learner import Learner
from rslib.memory import fill
from rslib.methods import Batch

ASKED = {"der": 1.5, "derpp": 1.5, "er-ring": 1.5, "agem": 3.0, "mer": 3.0, "hal": 6.0}  # at most
DEAREST = {"mer": dict(beta=0.1)}  # of the paper's settings: at 1 there is nothing to go back to
SCHEDULE = ((), (10,), (5, 5), (4, 3, 3))  # to get to task 5
LAST = (3, 3, 2, 2)


def run(rounds: int = 25, steps: int = 8) -> list[dict]:
    """One row per method; printed as well."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.npz"
        _write_noise(file)
        ready = {method: _at_task_5(str(file), method) for method in ("er", *ASKED)}
    times: dict[str, list[float]] = {method: [] for method in ready}
    for _ in range(rounds):
        for method, (learner, batches, _) in ready.items():
            for _ in range(steps):
                batch = next(batches)
                start = process_time()
                learner.method.step(learner, batch)
                times[method].append(process_time() - start)
    typical = {method: statistics.median(values) for method, values in times.items()}
    rows = [
        {
            "method": method,
            "step_ms": 1e3 * typical[method],
            "ratio": typical[method] / typical["er"],
            "asked": ASKED.get(method),
            "begin_ms": 1e3 * begin,
        }
        for method, (_, _, begin) in ready.items()
    ]
    print("replay methods, a training step relative to ER:")
    for row in rows:
        limit = f" (at most {row['asked']})" if row["method"] in ASKED else ""
        print(
            f"  {row['method']:8} {row['ratio']:.2f}{limit}; "
            f"{row['step_ms']:.2f} ms, once per task {row['begin_ms']:.0f} ms"
        )
    return rows


def _write_noise(file: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for part, n in (("train", 2000), ("test", 100)):
        parts[f"x_{part}"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        parts[f"y_{part}"] = np.arange(n) % 10
    np.savez(file, **parts)


def _at_task_5(dataset: str, method: str) -> tuple[Learner, Iterator[Batch], float]:
    """A learner in the middle of task 5, its batches, and the seconds its beginning took."""
    learner = Learner(
        Environment(
            dataset,
            method=method,
            method_args=DEAREST.get(method),
            memory_size=10,
            batch_size=128,
            epochs=1,
            lr=0.001,
        )
    )
    for counts in SCHEDULE:
        learner.learn(counts)
    learner.n_learned = 5
    learner.net.train()
    memory = fill(learner.scenario.tasks, learner.pools, LAST)
    start = process_time()
    learner.method.begin(learner, memory)
    return learner, _endless(learner, memory), process_time() - start


def _endless(learner: Learner, memory) -> Iterator[Batch]:
    while True:
        for batch in learner._batches(5, memory):
            if len(batch.y) == 128 + len(memory):
                yield batch


if __name__ == "__main__":
    run()
