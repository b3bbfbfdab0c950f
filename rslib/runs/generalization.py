"""Do learned scheduling policies generalise? The New Task Order and New Dataset experiments.

`plan` says which environments policies are trained and tested in, `load_trees` or `train_trees` gets
their schedule trees (from table files such as the authors', or trained here), and `run` trains DQN and
A2C, chooses the heuristics' thresholds on the training environments and scores everything in the test
environments. Policies are saved one by one, so a killed run goes on where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rslib import data, files, presets
from rslib.complete_tree import CompleteTree, complete, load_tables
from rslib.environment import Environment
from rslib.errors import BadValue
from rslib.policies import Policy, a2c, dqn
from rslib.policies.learned import LearnedPolicy, training_config
from rslib.runs import grid, scoring
from rslib.runs.workers import in_processes
from rslib.search import Tree
from rslib.store import Store
from rslib.tree import NotTrained, ScheduleTree

_HEURISTICS = [f"{rule}:{tau}" for rule in scoring.HEURISTICS for tau in presets.RL_TAU_GRID]
AGENTS = {"dqn": (dqn.train, dqn.DQNArgs), "a2c": (a2c.train, a2c.A2CArgs)}

Place = tuple[str, int]  # an environment: its dataset and its number


# -- which environments ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """Where policies are trained and tested, and with which arguments."""

    name: str  # "new_task_order" or "new_dataset"
    dataset: str  # tested on
    agents: dict[str, Any]  # arguments by agent
    train: dict[str, list[Place]]  # training environments by agent
    test: list[Place]
    n_tau: int  # environments on which the heuristics' thresholds are chosen
    n_seeds: int  # policies per agent
    profile: str = "paper"

    @property
    def longest(self) -> list[Place]:
        """The longest list of training environments: thresholds are chosen on its first environments."""
        return max(self.train.values(), key=len)

    @property
    def places(self) -> list[Place]:
        """Every environment that is needed."""
        return sorted(
            {place for places in self.train.values() for place in places} | set(self.test)
        )


def plan(
    name: str,
    dataset: str,
    profile: str = "paper",
    train: Sequence[int] | None = None,
    test: Sequence[int] | None = None,
    train_datasets: Sequence[str] | None = None,
    n_train: int | None = None,
    n_test: int = 10,
    n_seeds: int = 5,
) -> Experiment:
    """The environments of an experiment as the paper lists them, or as they are given.

    train, test: numbers of environments; None takes the paper's (the first `n_train` of them, or as
        many as each agent's table says; the first `n_test`).
    train_datasets: for New Dataset; None takes the paper's two.
    """
    settings = {agent: presets.agent_settings(agent, name, dataset, profile) for agent in AGENTS}
    # Sorted, because the place in the list decides an environment's draws.
    sources = sorted(train_datasets or presets.training_datasets(name, dataset))
    lists = {}
    for agent, (n, _) in settings.items():
        numbers = sorted(train or presets.TRAIN_SEEDS[: (n_train or n) // len(sources)])
        lists[agent] = [(source, number) for source in sources for number in numbers]
    held_out = [(dataset, number) for number in test or presets.TEST_SEEDS[name][:n_test]]
    both = sorted(set(held_out) & {place for places in lists.values() for place in places})
    if both:
        raise BadValue(f"environments are both trained and tested on: {both}")
    arguments = {agent: AGENTS[agent][1](**changes) for agent, (_, changes) in settings.items()}
    n_tau = presets.TAU_ENVIRONMENTS.get((name, dataset), presets.TAU_ENVIRONMENTS_DEFAULT)
    return Experiment(name, dataset, arguments, lists, held_out, n_tau, n_seeds, profile)


# -- their trees -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trees:
    """Complete trees by environment, and live trees where compositions in between can be trained."""

    complete: dict[Place, CompleteTree]
    live: dict[Place, ScheduleTree] = field(default_factory=dict)
    source: str = "trained here"

    def __getitem__(self, place: Place) -> Tree:
        return self.live.get(place) or self.complete[place]


def load_trees(paths: Iterable[str | Path]) -> Trees:
    """The complete trees in table files; their datasets by the names of `rslib.data`."""
    paths = [Path(path) for path in paths]
    found: dict[Place, CompleteTree] = {}
    for path in paths:
        for tree in load_tables(path):
            place = (tree.dataset.lower(), tree.seed)
            if place in found:
                raise BadValue(
                    f"{path}: {place[0]} {place[1]} is a second tree of this environment"
                )
            found[place] = tree
    if len(sizes := {tree.memory_size for tree in found.values()}) > 1:
        raise BadValue(f"the trees need the same memory size, got {sorted(sizes)}")
    return Trees(found, source=", ".join(path.name for path in paths))


def policy_environment(dataset: str, number: int, n_tasks: int | None = None) -> Environment:
    """An environment of policy learning: its own weights and its own order of classes."""
    whole = presets.preset(dataset, "rl").permuted or data.is_folder(dataset)
    order = 0 if whole else number  # in these all tasks have all classes
    return Environment(dataset, number, class_order_seed=order, n_tasks=n_tasks, setting="rl")


def train_trees(
    places: Sequence[Place], store: Store, n_tasks: int | None = None, workers: int = 1
) -> Trees:
    """The schedule trees of these environments, trained where the store lacks them.

    Killed and started again, it goes on: finished nodes are rows of the store.
    """
    environments = {place: policy_environment(*place, n_tasks) for place in places}
    for environment in environments.values():
        if (environment.n_tasks or 0) > presets.MOST_TASKS:
            raise BadValue(
                f"{environment.dataset}: policies are learned on whole schedule trees, and those of "
                f"more than {presets.MOST_TASKS} tasks are too large"
            )
    found: dict[Place, CompleteTree] = {}
    for place, environment in environments.items():
        # Looked up here: a process takes longer to start.
        with contextlib.suppress(NotTrained):
            found[place] = _complete(environment, store, frozen=True)
    left = [place for place in environments if place not in found]
    ways = ("bfs", *_HEURISTICS)
    cells = [grid.Cell(environments[place], way) for place in left for way in ways]
    print(grid.forecast(cells, workers))
    jobs = [(environments[place], store) for place in left]
    found |= zip(left, in_processes(_complete, jobs, workers, "trees"), strict=True)
    live = {place: ScheduleTree(environments[place], store) for place in environments}
    return Trees(found, live)


def _complete(environment: Environment, store: Store, frozen: bool = False) -> CompleteTree:
    """Every schedule of a tree, and what the heuristics want beyond the action space."""
    tree = ScheduleTree(environment, store, frozen=frozen)
    whole = complete(tree)
    for policy in _HEURISTICS:
        scoring.follow(tree, Policy.load(policy))
    return whole


# -- training policies -----------------------------------------------------------------------------


def train_policy(
    agent: str, args: Any, trees: Sequence[CompleteTree], seed: int, path: Path, progress: bool
) -> None:
    """Train one policy and save it with its learning curve."""
    policy, curve = AGENTS[agent][0](trees, args, seed, progress)
    content = json.dumps(curve, indent=1).encode()
    files.write_atomically(path.with_suffix(".json"), content)
    policy.config["tables"] = _digest(trees)
    policy.config["curve"] = hashlib.sha256(content).hexdigest()
    policy.save(path)  # last: a policy on disk is a finished one


def _is_trained(
    agent: str, args: Any, trees: Sequence[CompleteTree], seed: int, path: Path
) -> bool:
    """Whether the file is a policy with these arguments on these trees. (Logging moves nothing.)"""
    if not path.exists():
        return False
    wanted = training_config(agent, seed, args, trees) | {"tables": _digest(trees)}
    try:
        found = LearnedPolicy.from_file(path).config
        curve = hashlib.sha256(path.with_suffix(".json").read_bytes()).hexdigest()
        if found.get("curve", curve) != curve:  # policies from before do not say
            raise BadValue(f"{path.with_suffix('.json')} is not what was written")
    except (BadValue, OSError) as error:
        warnings.warn(f"{error}. The policy is trained again", stacklevel=2)
        return False
    # With defaults filled in: an argument that came later does not train old policies again.
    given = asdict(AGENTS[agent][1]()) | found.get("arguments", {}) | {"log_every": args.log_every}
    found |= {"arguments": given, "torch": wanted["torch"]}
    return all(found.get(name) == value for name, value in wanted.items())


def _digest(trees: Sequence[CompleteTree]) -> str:
    """What the policy saw: trees trained anew with another torch or other data are other trees."""
    digest = hashlib.sha256()
    for tree in trees:
        digest.update(tree.val.tobytes())
    return digest.hexdigest()


def train_policies(
    experiment: Experiment, trees: Trees, folder: Path, workers: int = 1
) -> tuple[dict[str, list[LearnedPolicy]], pd.DataFrame]:
    """The policies of every agent by label, one per policy seed, with all learning curves."""
    jobs = []
    for agent, args in experiment.agents.items():
        mine = [trees.complete[place] for place in experiment.train[agent]]
        for seed in range(experiment.n_seeds):
            jobs.append((agent, args, mine, seed, folder / f"{agent}_{seed}.pt"))
    left = [(*job, workers <= 1) for job in jobs if not _is_trained(*job)]
    in_processes(train_policy, left, workers, "policies")
    policies: dict[str, list[LearnedPolicy]] = {}
    curves = []
    for *_, seed, path in jobs:
        policy = LearnedPolicy.from_file(path)
        policies.setdefault(policy.label, []).append(policy)
        for point in json.loads(path.with_suffix(".json").read_text()):
            curves.append({"agent": policy.label, "policy_seed": seed} | point)
    return policies, pd.DataFrame(curves)


# -- experiments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """Everything an experiment found; the notebook's tables are made from `rows`."""

    rows: pd.DataFrame  # experiment and scoring.COLUMNS, by (environment, policy seed, label)
    taus: pd.DataFrame  # rule, tau, mean validation accuracy on training environments, chosen
    curves: pd.DataFrame  # learning curves: agent, policy_seed, updates, final, seconds, ...
    policies: dict[str, list[LearnedPolicy]]  # by label, one per policy seed

    def _repr_html_(self) -> str:
        return scoring.summary(self.rows).round(2).to_html(na_rep="n/a")


def run(
    experiment: Experiment, trees: Trees, folder: str | Path | None = None, workers: int = 1
) -> Findings:
    """Train policies, choose thresholds, score everything in the test environments.

    folder: keeps the policies; None keeps nothing.
    """
    missing = [place for place in experiment.places if place not in trees.complete]
    if missing:
        raise BadValue(f"environments that the trees lack: {missing}")
    sizes = {trees.complete[place].n_tasks for place in experiment.places}
    if len(sizes) > 1:
        raise BadValue(
            f"the trees of one experiment need the same number of tasks, got {sorted(sizes)}"
        )
    with tempfile.TemporaryDirectory() as temporary:  # policies go through files in any case
        policies, curves = train_policies(experiment, trees, Path(folder or temporary), workers)
    n_seeds = experiment.n_seeds
    test = [trees[place] for place in experiment.test]
    rows = scoring.score(test, [Policy.load("random"), Policy.load("ets")], n_seeds)
    taus = []
    for rule in scoring.HEURISTICS:
        # Rules combined with ETS choose on the default number of environments, as in the paper.
        n = presets.TAU_ENVIRONMENTS_DEFAULT if rule.startswith("ets+") else experiment.n_tau
        choosing = [trees[place] for place in _first_of_each(experiment.longest, n)]
        tau, means = scoring.choose_tau(rule, choosing, presets.RL_TAU_GRID)
        taus += [
            {"rule": rule, "tau": value, "val": mean, "chosen": value == tau}
            for value, mean in means.items()
        ]
        if tau is None:
            label = Policy.load(f"{rule}:1").label
            reason = "no threshold has a result in every training environment"
            rows += scoring.not_available(test, label, n_seeds, reason)
        else:
            rows += scoring.score(test, [Policy.load(f"{rule}:{tau}")], n_seeds)
    rows += scoring.score(test, list(policies.values()), n_seeds)
    trained_on = dict.fromkeys(place for places in experiment.train.values() for place in places)
    rows += scoring.references(
        [trees.complete[place] for place in experiment.test],
        [trees.complete[place] for place in trained_on],
        n_seeds,
    )
    frame = pd.DataFrame(rows, columns=pd.Index(scoring.COLUMNS))
    frame.insert(0, "experiment", experiment.name)
    return Findings(frame, pd.DataFrame(taus), curves, policies)


def _first_of_each(places: Sequence[Place], n: int) -> list[Place]:
    """The first of every dataset's environments, n in all: where thresholds are chosen."""
    names = list(dict.fromkeys(name for name, _ in places))
    mine = {name: [place for place in places if place[0] == name] for name in names}
    return [place for name in names for place in mine[name][: n // len(names)]]


# -- finished experiments in a folder --------------------------------------------------------------


def write(experiment: Experiment, trees: Trees, found: Findings, folder: Path) -> None:
    """Write rows.csv and about.json: what `finished` reads."""
    files.write_atomically(folder / "rows.csv", found.rows.to_csv(index=False).encode())
    ends = found.curves.groupby(["agent", "policy_seed"], sort=False)[["updates", "seconds"]].last()
    training = {
        str(agent): {"policies": len(part)} | {str(k): float(v) for k, v in part.mean().items()}
        for agent, part in ends.groupby("agent")
    }
    about = {
        "experiment": experiment.name,
        "profile": experiment.profile,
        "tables": [trees.source],
        "train": {agent: _ranges(places) for agent, places in experiment.train.items()},
        "test": _ranges(experiment.test),
        "training": training,  # by agent: how many policies, mean updates and seconds of one
    }
    files.write_atomically(folder / "about.json", (json.dumps(about, indent=1) + "\n").encode())


def _ranges(places: Sequence[Place]) -> str:
    """Environments in few words: "mnist 0-9, 20-39"."""
    parts = []
    for name in dict.fromkeys(name for name, _ in places):
        numbers = sorted(number for dataset, number in places if dataset == name)
        starts = [n for n in numbers if n - 1 not in numbers]
        ends = [n for n in numbers if n + 1 not in numbers]
        runs = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True)]
        parts.append(f"{name} {', '.join(runs)}")
    return " and ".join(parts)


def facts(folder: Path | None = None) -> list[dict[str, Any]]:
    """What was run in the experiments of a folder (by default the shipped ones), and its cost."""
    where = folder or files.results() / "policies"
    return [json.loads(path.read_text()) for path in sorted(where.glob("*/about.json"))]


def finished(folder: Path | None = None) -> list[tuple[str, pd.DataFrame]]:
    """Every experiment of a folder (by default the shipped ones): a description and its rows."""
    where, found = folder or files.results() / "policies", []
    for path in sorted(where.glob("*/about.json")):
        about = json.loads(path.read_text())
        trained = [f"{agent.upper()} trained on {text}" for agent, text in about["train"].items()]
        parts = [f"tested on {about['test']}", *trained, f"{about['profile']} settings"]
        what = about["experiment"].replace("_", " ").capitalize()
        rows = pd.read_csv(path.with_name("rows.csv"))
        found.append((f"{what}: {'; '.join(parts)}", rows))
    return found
