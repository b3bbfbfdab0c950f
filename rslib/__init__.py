"""rslib: replay scheduling for continual learning, the library below the notebooks.

The names below are imported when they are first used: `python -m rslib.data` need not load torch.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rslib.data import load
    from rslib.environment import Environment
    from rslib.schedule import Schedule
    from rslib.search import Result, bfs, mcts, random_best, run_policy, surrogate
    from rslib.store import Store
    from rslib.tree import Node, ScheduleTree

_HOME = {
    "load": "data",
    "Environment": "environment",
    "Schedule": "schedule",
    "Result": "search",
    "bfs": "search",
    "mcts": "search",
    "random_best": "search",
    "run_policy": "search",
    "surrogate": "search",
    "Store": "store",
    "Node": "tree",
    "ScheduleTree": "tree",
}

__all__ = [
    "Environment",
    "Node",
    "Result",
    "Schedule",
    "ScheduleTree",
    "Store",
    "bfs",
    "load",
    "mcts",
    "random_best",
    "run_policy",
    "surrogate",
]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"rslib.{_HOME[name]}"), name)
    raise AttributeError(f"module 'rslib' has no attribute {name!r}")


def pin_cpu_capability() -> None:
    """Tell a torch that is imported later, here or in a worker process, to use AVX2.

    The shipped rows were trained with AVX2 instructions. A CPU that has AVX-512 would sum in another
    order, and nothing could be compared bit for bit. A value that is already set is kept.
    """
    cpu = Path("/proc/cpuinfo")
    if cpu.exists() and " avx512f" in cpu.read_text():
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")


if "torch" not in sys.modules:  # torch reads the variable once, when it is imported
    pin_cpu_capability()
