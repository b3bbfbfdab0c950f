"""What the processes do that test_tree and test_store start, kill and compare.

They are forked from a server that has imported torch once (`PROCESSES`), because importing it takes
longer than what is tested. Functions here, because a process can only be handed importable ones.
"""

import multiprocessing
import os
import random
import signal
import sys

import numpy as np

from rslib.environment import Environment
from rslib.search import Result, mcts
from rslib.store import Store
from rslib.store.rows import Row
from rslib.tree import Node, ScheduleTree

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rslib.search", "torch._dynamo", "sklearn.datasets"])


def bits(found: Node | Result) -> tuple:
    """All that a walk or a search says, to be compared exactly."""
    if isinstance(found, Node):
        return found.path, found.val.tobytes(), found.test.tobytes()
    return (
        bits(found.node),
        found.rewards.tobytes(),
        found.accs.tobytes(),
        tuple(schedule.compositions for schedule in found.schedules),
    )


def start(work, *arguments):
    """A process at work and the end of the pipe it reports to."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def outcome(process, pipe, seconds: float = 120):
    """The last thing the process reports before it ends by itself."""
    last = None
    try:
        while True:
            if not pipe.poll(seconds):
                raise TimeoutError(f"process {process.pid} said nothing for {seconds} s")
            last = pipe.recv()
    except EOFError:
        process.join(seconds)
    finally:
        process.kill()
        pipe.close()
    assert process.exitcode == 0, f"process ended with {process.exitcode}"
    return last


def search(pipe, spec: dict, folder: str, rollouts: int) -> None:
    """MCTS in a store. Reports the number of every rollout that trained something, then all."""
    tree = ScheduleTree(Environment.from_spec(spec), Store(folder, shipped=None))
    trained = 0

    def report(i: int, node: Node, depth: int) -> None:
        nonlocal trained
        if tree.trained > trained:
            pipe.send(i)
        trained = tree.trained

    result = mcts(tree, rollouts, on_rollout=report)
    pipe.send((bits(result), tree.trained))


def counted_search(pipe, spec: dict, folder: str, rollouts: int, last: int | None) -> None:
    """MCTS that kills itself at its `last`-th call of any function; reports how many there were.

    Calls count from the first training on, calls of C functions too: death comes between any two of a
    training step, a write, a sync, a rename, a statement of SQL.
    """
    calls = 0

    def count(frame, event, argument) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)

    class Counted(ScheduleTree):
        def _train(self, path, missing) -> None:
            sys.setprofile(count)
            super()._train(path, missing)

    tree = Counted(Environment.from_spec(spec), Store(folder, shipped=None))
    result = mcts(tree, rollouts)
    sys.setprofile(None)
    pipe.send((bits(result), calls, tree.trained))


def walk(pipe, spec: dict, folder: str | None, paths: list, seed: int) -> None:
    """The paths in an order of its own; reports nodes by path and the number of trainings."""
    store = None if folder is None else Store(folder, shipped=None)
    tree = ScheduleTree(Environment.from_spec(spec), store)
    paths = list(paths)
    random.Random(seed).shuffle(paths)
    pipe.send("ready")
    pipe.send(({path: bits(tree.walk(path)) for path in paths}, tree.trained))


def put_rows(pipe, spec: dict, folder: str, worker: int, n: int) -> None:
    """Many rows, half of them also written by the others."""
    store = Store(folder, shipped=None)
    environment = Environment.from_spec(spec)
    for i in range(n):
        for text in (f"shared-{i}", f"{worker}-{i}"):
            store.put(
                environment.key,
                environment.as_stored(),
                text,
                Row(np.full(5, i / n), np.full(5, i / n / 2)),
            )
    pipe.send(len(store.rows(environment.key)))


def job_that_dies(name: str, folder) -> str:
    """Job "a" ends its process the first time, "b" every time."""
    begun = folder / name
    if name == "b" or (name == "a" and not begun.exists()):
        begun.touch()
        os._exit(9)
    return name
