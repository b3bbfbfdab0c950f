"""Finding good schedules: Monte Carlo tree search, breadth-first search, and the honest controls.

Everything here walks a `ScheduleTree` and reports a `Result`: the best schedule by validation with
the test accuracies of that same run. `run_policy` follows one policy, `random_best` is the control
for the search (as many random schedules as MCTS has rollouts), `search_tau` the heuristics' grid
search, and `run` does any of them by name. A search with fewer rollouts is a prefix of one with more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from rslib.policies import Policy
from rslib.schedule import (
    Composition,
    Schedule,
    ScheduleError,
    n_actions,
    path_from_text,
    sample_action,
)
from rslib.seeding import rng as derived_rng
from rslib.tree import Node, ScheduleTree

EXPLORATION = 0.1  # C in the paper's UCT
ENUMERABLE = 5_000  # above so many children they are drawn lazily instead of listed


@dataclass(frozen=True)
class Result:
    """What a policy or a search came to: its final node, and the way there."""

    policy: str  # "ets", "mcts", ...
    label: str  # as printed in tables
    node: Node  # the schedule that is reported, with its accuracies
    rewards: np.ndarray  # (rollouts,) mean validation accuracy at the end of each rollout
    accs: np.ndarray  # (rollouts,) test ACC of the same
    schedules: tuple[Schedule, ...]  # the rollouts' schedules, in order
    trained: int = 0  # task trainings this took

    @property
    def schedule(self) -> Schedule:
        return self.node.schedule

    @property
    def acc(self) -> float:
        return self.node.acc

    @property
    def bwt(self) -> float:
        return self.node.bwt

    @property
    def fwt(self) -> float:
        return self.node.fwt

    @property
    def reward(self) -> float:
        return self.node.reward

    @property
    def best_so_far(self) -> np.ndarray:
        """Test ACC of the best schedule by validation after each rollout."""
        leaders = [leader(self.rewards[: i + 1]) for i in range(len(self.rewards))]
        return self.accs[leaders]

    def __str__(self) -> str:
        rollouts = f", {len(self.rewards)} rollouts" if len(self.rewards) > 1 else ""
        return f"{self.label} on {self.node.environment}{rollouts}: ACC {self.acc:.2%}"

    def _repr_html_(self) -> str:
        caption = f"{self.label}: ACC {self.acc:.2%}, BWT {self.bwt:+.2%}"
        return f"<p>{caption}</p>{self.schedule._repr_html_()}"


def leader(rewards: ArrayLike) -> int:
    """Find the first of the highest rewards; a run that did not converge (NaN) never leads."""
    return int(np.argmax(np.nan_to_num(rewards, nan=-1.0)))


def _best(policy: str, label: str, nodes: Sequence[Node], trained: int) -> Result:
    """Report the leader of the nodes, beside the rewards and test accuracies of all."""
    rewards = np.array([node.reward for node in nodes])
    accs = np.array([node.acc for node in nodes])
    schedules = tuple(node.schedule for node in nodes)
    return Result(policy, label, nodes[leader(rewards)], rewards, accs, schedules, trained)


# -- following a policy ----------------------------------------------------------------------------


def run_policy(tree: ScheduleTree, policy: str | Policy | Schedule) -> Result:
    """Walk to a leaf, asking the policy for the composition at every task."""
    before = tree.trained
    if isinstance(policy, Schedule):
        if policy.n_tasks != tree.n_tasks:
            raise ScheduleError(f"a schedule for {policy.n_tasks} tasks, but {tree.n_tasks} tasks")
        return _best("fixed", "Fixed", [tree.walk(policy)], tree.trained - before)
    policy = Policy.load(policy)
    node = tree.walk()
    while not node.complete:
        k = node.depth
        if not node.converged:
            proposal: Composition = (0,) * k  # no accuracies to go by; the rest is NaN anyway
        elif tree.environment.method == "joint":
            proposal = (0,) * k
        else:
            draws = policy.draws(tree.environment.seed, k)
            proposal = policy.propose(node.val, tree.budget(k), tree.available(k), draws)
        node = tree.walk((*node.path, proposal))
    return _best(policy.name, policy.label, [node], tree.trained - before)


def random_best(tree: ScheduleTree, iterations: int = 100, progress: bool = False) -> Result:
    """The best by validation of so many random schedules: what the search has to beat."""
    if iterations < 1:
        raise ValueError(f"Random-best needs at least one schedule, got {iterations}")
    before = tree.trained
    runs = tqdm(range(iterations), "Random-best", disable=not progress)
    nodes = [run_policy(tree, f"random:{i}").node for i in runs]
    return _best("random-best", "Random-best", nodes, tree.trained - before)


def search_tau(
    trees: Sequence[ScheduleTree], name: str, grid: Sequence[float]
) -> tuple[float, dict[float, float]]:
    """The threshold with the highest mean validation reward over the trees (first wins a tie)."""
    scores = {
        tau: float(np.mean([run_policy(tree, f"{name}:{tau}").reward for tree in trees]))
        for tau in grid
    }
    # A threshold whose runs did not converge has the score NaN, and never wins.
    return max(scores, key=lambda tau: np.nan_to_num(scores[tau], nan=-1.0)), scores


# -- breadth-first search --------------------------------------------------------------------------


def bfs(tree: ScheduleTree, progress: bool = False) -> Result:
    """Every schedule of the action space. For 5 tasks 1,050; beyond 6 tasks it is refused."""
    n_leaves = math.prod(n_actions(k) for k in range(1, tree.n_tasks))
    if n_leaves > 200_000:
        raise ValueError(f"BFS would train {n_leaves:,} schedules for {tree.n_tasks} tasks")
    levels = [tree.compositions(k) for k in range(1, tree.n_tasks)]
    paths = list(product(*levels))
    before = tree.trained
    nodes = [tree.walk(path) for path in tqdm(paths, "BFS", disable=not progress)]
    return _best("bfs", "BFS", nodes, tree.trained - before)


# -- Monte Carlo tree search -----------------------------------------------------------------------


@dataclass
class SearchNode:
    """A node of the search: visits and the best reward seen below it."""

    visits: int = 0
    best: float = -math.inf
    children: dict[Composition, SearchNode] = field(default_factory=dict)

    def uct(self, child: SearchNode) -> float:
        """The paper's Equation for UCT, with q the best reward below the child."""
        return child.best + EXPLORATION * math.sqrt(2 * math.log(self.visits) / child.visits)


def mcts(
    tree: ScheduleTree,
    iterations: int = 100,
    seed: int | None = None,
    progress: bool = False,
    on_rollout: Callable[[int, Node, int], None] | None = None,
) -> Result:
    """Monte Carlo tree search for a schedule (paper Section 3.2 and Appendix A.1).

    `on_rollout` hears of every rollout: its number from 0, its leaf, and how many compositions of
    the way there the search chose itself (the rest was drawn).
    """
    if iterations < 1:
        raise ValueError(f"MCTS needs at least one rollout, got {iterations}")
    draws = derived_rng(tree.environment.seed if seed is None else seed, "mcts")
    root, nodes, before = SearchNode(), [], tree.trained
    for i in tqdm(range(iterations), "MCTS", disable=not progress):
        visited, path = _select(tree, root, draws)
        node = tree.walk(_roll_out(tree, path, draws))
        reward = node.reward if node.converged else 0.0  # a diverged run is as bad as it gets
        for search_node in visited:
            search_node.visits += 1
            search_node.best = max(search_node.best, reward)
        nodes.append(node)
        if on_rollout:
            on_rollout(i, node, len(visited) - 1)
    return _best("mcts", "MCTS", nodes, tree.trained - before)


def _select(
    tree: ScheduleTree, root: SearchNode, draws: np.random.Generator
) -> tuple[list[SearchNode], list[Composition]]:
    """Down the search tree by UCT until a new child is added or a leaf is reached."""
    visited, path = [root], []
    while len(path) < tree.n_tasks - 1:
        node, k = visited[-1], len(path) + 1
        new = _unvisited_child(tree, node, k, draws)
        if new is not None:
            node.children[new] = SearchNode()
            return [*visited, node.children[new]], [*path, new]
        best = max(node.children, key=lambda c: node.uct(node.children[c]))
        visited.append(node.children[best])
        path.append(best)
    return visited, path


def _unvisited_child(
    tree: ScheduleTree, node: SearchNode, k: int, draws: np.random.Generator
) -> Composition | None:
    """A composition not tried here yet, uniformly at random; None when all have been."""
    if n_actions(k) <= ENUMERABLE:
        untried = [c for c in tree.compositions(k) if c not in node.children]
        return untried[draws.integers(len(untried))] if untried else None
    # Too many to list: draw actions until one is new. Where rounding leaves few distinct
    # compositions the draws may all be old, and the search goes on with what it has.
    for _ in range(100):
        drawn = tree.counts(sample_action(k, draws), k)
        if drawn not in node.children:
            return drawn
    return None


def _roll_out(
    tree: ScheduleTree, path: list[Composition], draws: np.random.Generator
) -> list[Composition]:
    """To a leaf by uniformly drawn actions."""
    path = list(path)
    while len(path) < tree.n_tasks - 1:
        k = len(path) + 1
        path.append(tree.counts(sample_action(k, draws), k))
    return path


# -- by name ---------------------------------------------------------------------------------------

SEARCHES = ("mcts", "random-best", "bfs")


def run(tree: ScheduleTree, name: str, rollouts: int = 100, progress: bool = False) -> Result:
    """Any policy or search by name: what grids of experiments are made of.

    "schedule:10/5,5/..." is a fixed schedule, its compositions written out.
    """
    if name == "mcts":
        return mcts(tree, rollouts, progress=progress)
    if name == "random-best":
        return random_best(tree, rollouts, progress=progress)
    if name == "bfs":
        return bfs(tree, progress=progress)
    if name.startswith("schedule:"):
        return run_policy(tree, Schedule(path_from_text(name.removeprefix("schedule:"))))
    return run_policy(tree, name)
