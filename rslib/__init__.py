"""rslib: replay scheduling for continual learning, the library below the notebooks."""

from rslib.data import load
from rslib.environment import Environment
from rslib.schedule import Schedule
from rslib.search import Result, bfs, mcts, random_best, run_policy
from rslib.store import Store
from rslib.tree import Node, ScheduleTree

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
]
