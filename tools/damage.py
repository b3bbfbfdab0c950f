"""Harm what rslib keeps, and see that no result becomes another one without a word.

    python -m tools.damage flips --n 1000   flip bits of rows, results, snapshots, policies, tables
    python -m tools.damage kills --n 400    kill -9 one MCTS run so many times, and compare its bits

A flipped bit may do nothing (the value is the same, perhaps trained again), or be refused (an error), or
be reported (a warning, and the value is left out). Another value without a warning is silent, and fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rslib.complete_tree import CompleteTree, load_tables, save_tables, tree_shape
from rslib.environment import Environment
from rslib.policies import Policy
from rslib.policies.learned import LearnedPolicy
from rslib.search import Result, mcts
from rslib.store import Store
from rslib.tree import Node, ScheduleTree

PATH = ((10,), (5, 5))
ROLLOUTS = 3


def environment(dataset: str = "digits", n_tasks: int = 5) -> Environment:
    """Real digits, a tiny network, one epoch: a training takes milliseconds."""
    return Environment(dataset, memory_size=10, n_tasks=n_tasks, hidden=4, epochs=1, first_epochs=1)


def bits(found: Node | Result) -> tuple:
    """All that a walk or a search says, to be compared exactly."""
    if isinstance(found, Node):
        return found.path, found.val.tobytes(), found.test.tobytes()
    schedules = tuple(schedule.compositions for schedule in found.schedules)
    return bits(found.node), found.rewards.tobytes(), found.accs.tobytes(), schedules


# -- flipped bits ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Files of one kind, and what a user gets who reads them."""

    files: str  # a pattern below the folder
    read: Callable[[Path], Any]  # the value, from the folder


def _searched(folder: Path) -> Any:
    return bits(mcts(ScheduleTree(environment(), Store(folder / "store", None)), ROLLOUTS))


def _known(folder: Path) -> Any:
    return Store(folder / "store", None).environments()


def _shipped(folder: Path) -> Any:
    store = Store(folder / "empty", folder / "results")
    rows = ScheduleTree(environment(), store, frozen=True).rows()
    values = {p: (r.val.tobytes(), r.test.tobytes(), r.torch, r.cpu) for p, r in rows.items()}
    return values, store.environments()


def _walked(folder: Path) -> Any:
    """A path whose last row is not stored, so that it is trained from a snapshot."""
    return bits(
        ScheduleTree(environment(), Store(folder / "store", None)).walk((*PATH, (0, 0, 10)))
    )


def _policy(folder: Path) -> Any:
    policy = Policy.load(folder / "policy.pt")
    assert isinstance(policy, LearnedPolicy)
    return policy.scores(torch.eye(3)).tolist(), policy.config, policy.label


def _tables(folder: Path) -> Any:
    found = [tree for name in ("t.csv", "t.csv.gz") for tree in load_tables(folder / name)]
    return [(t.dataset, t.seed, t.val.tobytes(), t.test.tobytes()) for t in found]


TARGETS = {
    "rows": Target("store/rows.sqlite", _searched),
    "environments": Target("store/rows.sqlite", _known),
    "results": Target("results/*/*.csv", _shipped),
    "snapshots": Target("store/checkpoints/*", _walked),
    "policies": Target("policy.pt", _policy),
    "tables": Target("t.csv*", _tables),
}


def sample(folder: Path) -> None:
    """Write one file of every kind: a search, its rows exported, a policy, tables of a complete tree."""
    store = Store(folder / "store", shipped=None)
    tree = ScheduleTree(environment(), store)
    mcts(tree, ROLLOUTS)
    tree.walk(PATH)
    store.export(environment().key, folder / "results")
    store.close()
    draws = np.random.RandomState(0)
    weights = [
        torch.from_numpy(draws.rand(*shape)).float() for shape in ((3, 8), (8,), (8, 35), (35,))
    ]
    LearnedPolicy(weights, "relu", {"seed": 1}, "DQN").save(folder / "policy.pt")
    shape = tree_shape(3)
    known = np.arange(3) < shape.depth[:, None]
    table = CompleteTree("digits", 1, *(draws.rand(2, *known.shape) * known))
    for name in ("t.csv", "t.csv.gz"):
        save_tables([table], folder / name)


def flip(file: Path, draws: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    file.write_bytes(content)


def flips(n: int, seed: int = 1) -> dict[str, Counter]:
    """Flip n bits, one at a time, each kind in turn; count what came of them."""
    draws, counts = random.Random(seed), {name: Counter() for name in TARGETS}
    with tempfile.TemporaryDirectory() as place:
        whole, harmed = Path(place) / "whole", Path(place) / "harmed"
        sample(whole)
        expected = {}
        for name, target in TARGETS.items():
            shutil.copytree(whole, harmed)
            expected[name] = target.read(harmed)
            shutil.rmtree(harmed)
        for i in range(n):
            name = list(TARGETS)[i % len(TARGETS)]
            shutil.copytree(whole, harmed)
            flip(draws.choice(sorted(harmed.glob(TARGETS[name].files))), draws)
            counts[name][outcome(TARGETS[name], harmed, expected[name])] += 1
            shutil.rmtree(harmed)
    return counts


def outcome(target: Target, folder: Path, expected: Any) -> str:
    """Read what was harmed: the same, refused, reported or silent."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            if target.read(folder) == expected:
                return "same"
        except Exception:  # whatever it is, it is no silence
            return "refused"
    return "reported" if said else "silent"


# -- kills -----------------------------------------------------------------------------------------


def wide() -> Environment:
    """So many schedules that a search still trains something new after hundreds of rollouts."""
    return environment("permuteddigits", n_tasks=6)


def search(pipe, folder: str, rollouts: int) -> None:
    """MCTS in a store. Reports the number of every rollout that trained something, then all."""
    tree = ScheduleTree(wide(), Store(folder, shipped=None))
    trained = 0

    def report(i: int, node: Node, depth: int) -> None:
        nonlocal trained
        if tree.trained > trained:
            pipe.send(i)
        trained = tree.trained

    result = mcts(tree, rollouts, on_rollout=report)
    pipe.send((bits(result), tree.trained))


def kills(n: int, folder: Path, seed: int = 1) -> tuple[int, bool]:
    """Kill a search n times, each time a moment after it has got on; how many landed, and whether the
    run that is left alone at last finds the bits of an undisturbed run in a sound store."""
    draws, landed, rollouts = random.Random(seed), 0, 20 + 3 * n
    # Forked from a server that has imported torch once: importing it takes longer than a search.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["rslib.search", "torch._dynamo", "sklearn.datasets"])
    last: Any = None
    while last is None:
        ours, theirs = processes.Pipe(duplex=False)
        arguments = (theirs, str(folder), rollouts)
        process = processes.Process(target=search, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            for _ in range(draws.randrange(2) if landed < n else rollouts + 1):
                if not ours.poll(300):
                    raise TimeoutError(f"process {process.pid} said nothing for five minutes")
                said = ours.recv()
                last = said if isinstance(said, tuple) else None
        except EOFError:
            pass  # it has ended
        if landed < n:
            process.join(draws.random() * 0.02)  # a moment: in the middle of anything
            process.kill()
        process.join(60)
        ours.close()
        landed += process.exitcode == -9
        if process.exitcode not in (0, -9):
            raise RuntimeError(f"the search ended with {process.exitcode}")
    whole = mcts(ScheduleTree(wide()), rollouts)
    sound = Store(folder, shipped=None).check() == []
    return landed, sound and last[0] == bits(whole) and last[1] <= whole.trained


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.damage", description=__doc__)
    parser.add_argument("what", choices=("flips", "kills"))
    parser.add_argument("--n", type=int, default=100, help="how many (default: 100)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the moments and places (default: 1)"
    )
    given = parser.parse_args()
    if given.what == "kills":
        with tempfile.TemporaryDirectory() as folder:
            landed, same = kills(given.n, Path(folder), given.seed)
        print(f"{landed} kills in one run; {'the same bits' if same else 'ANOTHER RESULT'}")
        return 0 if same and landed == given.n else 1
    counts = flips(given.n, given.seed)
    for name, found in counts.items():
        print(f"{name:13}", ", ".join(f"{n} {word}" for word, n in sorted(found.items())))
    silent = sum(found["silent"] for found in counts.values())
    print(f"{given.n} flipped bits, {silent} silently different results")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
