"""Finding good schedules: MCTS, surrogate search, breadth-first search, and the honest controls.

Everything here walks a `ScheduleTree` and reports a `Result`: the best schedule by validation with
the test accuracies of that same run. `run_policy` follows one policy, `random_best` is the control
for the search (as many random schedules as MCTS has rollouts), and `run` does any of them by name.
A search with fewer rollouts is a prefix of one with more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from rslib.complete_tree import CompleteTree
from rslib.errors import BadValue
from rslib.gaussian_process import expected_improvement
from rslib.policies import Policy
from rslib.schedule import (
    Composition,
    Path,
    Schedule,
    ScheduleError,
    n_actions,
    n_schedules,
    path_from_text,
    sample_action,
)
from rslib.seeding import rng as derived_rng
from rslib.tree import Node, ScheduleTree

Tree = ScheduleTree | CompleteTree
OnRollout = Callable[[int, Node, int], None]

EXPLORATION = 0.1  # C in the paper's UCT
ENUMERABLE = 5_000  # a node with more children draws them one by one instead of listing them


@dataclass(frozen=True)
class Result:
    """The outcome of a policy or a search: the node it reports, and its rollouts."""

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
        return self.accs[[leader(self.rewards[: i + 1]) for i in range(len(self.rewards))]]

    def __str__(self) -> str:
        rollouts = f", {len(self.rewards)} rollouts" if len(self.rewards) > 1 else ""
        return f"{self.label} on {self.node.environment}{rollouts}: ACC {self.acc:.2%}"

    def _repr_html_(self) -> str:
        caption = f"{self.label}: ACC {self.acc:.2%}, BWT {self.bwt:+.2%}"
        return f"<p>{caption}</p>{self.schedule._repr_html_()}"


def leader(rewards: ArrayLike) -> int:
    """The first of the highest rewards; a run that did not converge (NaN) never leads."""
    return int(np.argmax(np.nan_to_num(rewards, nan=-1.0)))


def _best(policy: str, label: str, nodes: Sequence[Node], trained: int) -> Result:
    """The result of having tried these nodes: the leader by validation, and all of them."""
    if not nodes:
        raise BadValue("trainings must allow one schedule: at least as many as there are tasks")
    rewards, accs = (
        np.array([getattr(node, kind) for node in nodes]) for kind in ("reward", "acc")
    )
    schedules = tuple(node.schedule for node in nodes)
    return Result(policy, label, nodes[leader(rewards)], rewards, accs, schedules, trained)


# -- following a policy ----------------------------------------------------------------------------


def follow(
    tree: Tree,
    policy: Policy,
    draws: Callable[[int], np.random.Generator] | None = None,
    fit: Callable[[Composition], Composition] | None = None,
) -> Node:
    """Walk to a leaf, asking the policy for the composition at every task.

    draws: the random numbers of the decision with k tasks seen; None takes the policy's own, from the
        environment's seed.
    fit: turns a proposal into a composition that the tree has, where it has not all of them.
    """
    node = tree.walk()
    while not node.complete:
        k = node.depth
        proposal: Composition = (0,) * k  # a network that has diverged gives nothing to decide by
        if node.converged:
            rng = draws(k) if draws else policy.draws(tree.environment.seed, k)
            proposal = policy.propose(node.val, tree.budget(k), tree.available(k), rng)
        node = tree.walk((*node.path, fit(proposal) if fit else proposal))
    return node


def run_policy(tree: Tree, policy: str | Policy | Schedule) -> Result:
    """The result of one policy, or of one fixed schedule.

    tree: where to walk; tasks that its store lacks are trained.
    policy: a name such as "ets" or "heur-gd:0.96", a `Policy`, or a `Schedule` for all tasks.
    """
    before = tree.trained
    if isinstance(policy, Schedule):
        if policy.n_tasks != tree.n_tasks:
            raise ScheduleError(f"a schedule for {policy.n_tasks} tasks, but {tree.n_tasks} tasks")
        return _best("fixed", "Fixed", [tree.walk(policy.compositions)], tree.trained - before)
    policy = Policy.load(policy)
    return _best(policy.name, policy.label, [follow(tree, policy)], tree.trained - before)


# -- what a search may cost -------------------------------------------------------------------------


class Budget:
    """How far a search may go: a number of rollouts, or of trainings, or both.

    A training is a node that this search has not visited before, whatever the store already knows: so
    that searches are compared at equal cost, and a search with less is a prefix of one with more.
    """

    def __init__(self, iterations: int | None, trainings: int | None):
        for name, value in (("iterations", iterations), ("trainings", trainings)):
            if value is not None and value < 1:
                raise BadValue(f"{name} must be at least 1, got {value}")
        self.rollouts = 100 if iterations is None and trainings is None else iterations
        self.trainings = trainings
        self.visited: set[Path] = set()
        self.n_free = 0  # rollouts in a row that cost nothing

    def cost(self, path: Path) -> int:
        """How many nodes on the way to a leaf are new."""
        return sum(path[:k] not in self.visited for k in range(len(path) + 1))

    def allows(self, path: Path) -> bool:
        """Whether this rollout fits; if it does, it is counted."""
        cost = self.cost(path)
        if self.trainings is not None and len(self.visited) + cost > self.trainings:
            return False
        self.n_free = 0 if cost else self.n_free + 1
        self.visited |= {path[:k] for k in range(len(path) + 1)}
        return True

    def numbers(self, title: str, progress: bool) -> Iterator[int]:
        """Rollouts from 0 on, with a bar; 1,000 that cost nothing end a search that counts trainings."""
        some = range(self.rollouts) if self.rollouts is not None else itertools.count()
        for i in tqdm(some, title, disable=not progress):
            if self.trainings is not None and self.n_free >= 1000:
                return
            yield i


def random_best(
    tree: Tree,
    iterations: int | None = None,
    progress: bool = False,
    trainings: int | None = None,
    first: int = 0,
) -> Result:
    """The best by validation of some random schedules: what a search has to beat.

    tree: where to walk. iterations: how many schedules are drawn; 100 unless `trainings` bounds the
        cost. progress: show a bar. first: the number of the first draw; others give other schedules.
    """
    budget, nodes, before = Budget(iterations, trainings), [], tree.trained
    for i in budget.numbers("Random-best", progress):
        path = _random_schedule(tree, first + i)
        if not budget.allows(path):
            break
        nodes.append(tree.walk(path))
    return _best("random-best", "Random-best", nodes, tree.trained - before)


def _random_schedule(tree: Tree, draw: int) -> Path:
    """The schedule that the policy "random:<draw>" follows, known before anything is trained."""
    policy, path = Policy.load(f"random:{draw}"), []
    for k in range(1, tree.n_tasks):
        rng = policy.draws(tree.environment.seed, k)
        assert rng is not None  # a rule that draws
        path.append(tree.counts(sample_action(k, rng), k))
    return tuple(path)


# -- breadth-first search --------------------------------------------------------------------------


def bfs(tree: Tree, progress: bool = False) -> Result:
    """The best by validation of every schedule in the action space: 1,050 for 5 tasks.

    tree: where to walk; more than 200,000 schedules (7 tasks) are refused. progress: show a bar.
    """
    n_leaves = n_schedules(tree.n_tasks)
    if n_leaves > 200_000:
        raise BadValue(
            f"BFS would train {n_leaves:,} schedules for {tree.n_tasks} tasks. Use rslib.mcts(tree)"
        )
    before, paths = tree.trained, _all_schedules(tree)
    nodes = [tree.walk(path) for path in tqdm(paths, "BFS", disable=not progress)]
    return _best("bfs", "BFS", nodes, tree.trained - before)


# -- Monte Carlo tree search -----------------------------------------------------------------------


@dataclass
class SearchNode:
    """A node of the search: visits and the best reward seen below it."""

    visits: int = 0
    best: float = -math.inf
    children: dict[Composition, SearchNode] = field(default_factory=dict)

    def uct(self, child: SearchNode, exploration: float = EXPLORATION) -> float:
        """UCT (Section 3.2 of the paper), with q the best reward below the child."""
        return child.best + exploration * math.sqrt(2 * math.log(self.visits) / child.visits)


def mcts(
    tree: Tree,
    iterations: int | None = None,
    seed: int | None = None,
    progress: bool = False,
    on_rollout: OnRollout | None = None,
    trainings: int | None = None,
    exploration: float = EXPLORATION,
) -> Result:
    """Monte Carlo tree search for a schedule (paper Section 3.2 and Appendix A.1).

    tree: where to walk; its environment's seed also seeds the search unless `seed` is given.
    iterations: rollouts, each of which walks one schedule to its end; 100 unless `trainings` bounds
        the cost. progress: show a bar.
    on_rollout: called after every rollout with its number from 0, its leaf, and how many compositions
        of the path the search chose itself (the rest was drawn).
    exploration: C of UCT.
    """
    draws = derived_rng(tree.environment.seed if seed is None else seed, "mcts")
    budget, root, nodes, before = Budget(iterations, trainings), SearchNode(), [], tree.trained
    for i in budget.numbers("MCTS", progress):
        visited, path = _select(tree, root, draws, exploration)
        schedule = _roll_out(tree, path, draws)
        if not budget.allows(schedule):
            break
        node = tree.walk(schedule)
        reward = node.reward if node.converged else 0.0  # a diverged run is as bad as it gets
        for search_node in visited:
            search_node.visits += 1
            search_node.best = max(search_node.best, reward)
        nodes.append(node)
        if on_rollout:
            on_rollout(i, node, len(visited) - 1)
    return _best("mcts", "MCTS", nodes, tree.trained - before)


def _select(
    tree: Tree, root: SearchNode, draws: np.random.Generator, exploration: float
) -> tuple[list[SearchNode], Path]:
    """Down the search tree by UCT until a new child is added or a leaf is reached."""
    visited, path = [root], ()
    while len(path) < tree.n_tasks - 1:
        node, k = visited[-1], len(path) + 1
        new = _unvisited_child(tree, node, k, draws)
        if new is not None:
            node.children[new] = SearchNode()
            return [*visited, node.children[new]], (*path, new)
        best = max(node.children, key=lambda c: node.uct(node.children[c], exploration))
        visited.append(node.children[best])
        path = (*path, best)
    return visited, path


def _unvisited_child(
    tree: Tree, node: SearchNode, k: int, draws: np.random.Generator
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


def _roll_out(tree: Tree, path: Path, draws: np.random.Generator) -> Path:
    """To a leaf by uniformly drawn actions."""
    for k in range(len(path) + 1, tree.n_tasks):
        path = (*path, tree.counts(sample_action(k, draws), k))
    return path


# -- surrogate search ------------------------------------------------------------------------------

LISTABLE = 5_000  # a tree with more schedules draws candidates instead of weighing all of them
Score = Callable[[Sequence[Path], np.ndarray, Sequence[Path]], np.ndarray]


def surrogate(
    tree: Tree,
    iterations: int | None = None,
    seed: int | None = None,
    progress: bool = False,
    on_rollout: OnRollout | None = None,
    trainings: int | None = None,
    score: Score = expected_improvement,
) -> Result:
    """Search with a model of what untried schedules will give (`rslib.gaussian_process`).

    After a few random schedules, the next one is always the candidate with the highest expected
    improvement over the best so far. Where all schedules can be listed they are all candidates;
    elsewhere some are drawn, near the best ones and far from them, and the improvement is divided by
    the number of new trainings, because the tree keeps every prefix that it has been along.

    tree, iterations, seed, progress, on_rollout, trainings: as for `mcts`; the search chooses all
        compositions of a path itself. score: what replaces the expected improvement, for controls.
    """
    draws = derived_rng(tree.environment.seed if seed is None else seed, "surrogate")
    every = _all_schedules(tree) if n_schedules(tree.n_tasks) <= LISTABLE else None
    budget, nodes, before = Budget(iterations, trainings), [], tree.trained
    rewards: dict[Path, float] = {}
    for i in budget.numbers("Surrogate", progress):
        if every is not None:
            candidates = [path for path in every if path not in rewards]
        elif i < 4:
            candidates = [_roll_out(tree, (), draws)]
        else:
            candidates = _near_and_far(tree, rewards, draws)
        if not candidates:
            break  # every schedule has been tried
        if i < (8 if every is not None else 4):
            path = candidates[draws.integers(len(candidates))]
        else:
            values = score(list(rewards), _as_numbers(rewards), candidates)
            if every is None:
                values = values / [max(budget.cost(path), 1) for path in candidates]
            path = candidates[int(np.argmax(values))]
        if not budget.allows(path):
            break
        node = tree.walk(path)
        rewards[path] = node.reward if node.converged else np.nan
        nodes.append(node)
        if on_rollout:
            on_rollout(i, node, tree.n_tasks - 1)
    return _best("surrogate", "Surrogate", nodes, tree.trained - before)


def _as_numbers(rewards: Mapping[Path, float]) -> np.ndarray:
    """A run that diverged is as bad as the worst of the others; 0 would drown every difference."""
    values = np.array(list(rewards.values()))
    return np.where(np.isnan(values), np.nanmin(values, initial=1.0), values)


def _all_schedules(tree: Tree) -> list[Path]:
    return list(product(*(tree.compositions(k) for k in range(1, tree.n_tasks))))


def _near_and_far(tree: Tree, rewards: dict[Path, float], draws: np.random.Generator) -> list[Path]:
    """Untried schedules: 150 random, and of each of the four best 40 with a new end (they share its
    first trainings) and 40 with one task changed."""
    drawn = [_roll_out(tree, (), draws) for _ in range(150)]
    for best in sorted(rewards, key=lambda path: -np.nan_to_num(rewards[path]))[:4]:
        for _ in range(40):
            kept = int(draws.integers(1, len(best)))
            drawn.append(_roll_out(tree, best[:kept], draws))
        for _ in range(40):
            k = int(draws.integers(2, len(best) + 1))  # with one task seen there is no choice
            changed = tree.counts(sample_action(k, draws), k)
            drawn.append((*best[: k - 1], changed, *best[k:]))
    return [path for path in dict.fromkeys(drawn) if path not in rewards]


# -- by name ---------------------------------------------------------------------------------------

BOUNDED = {"mcts": mcts, "random-best": random_best, "surrogate": surrogate}  # by rollouts
SEARCHES = (*BOUNDED, "bfs")


def run(tree: Tree, name: str, rollouts: int = 100) -> Result:
    """Any policy or search by name: what grids of experiments are made of.

    "schedule:10/5,5/..." is a fixed schedule, its compositions written out.
    """
    if name in BOUNDED:
        return BOUNDED[name](tree, rollouts)
    if name == "bfs":
        return bfs(tree)
    if name.startswith("schedule:"):
        return run_policy(tree, Schedule(path_from_text(name.removeprefix("schedule:"))))
    return run_policy(tree, name)
