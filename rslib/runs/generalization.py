"""Do learned scheduling policies generalise? The New Task Order and New Dataset experiments.

`run` trains DQN and A2C on tables, chooses the heuristics' thresholds on the training environments
and scores everything in the test environments; `run_live` first trains the schedule trees (the
embedded data in minutes). Policies are saved one by one, so a killed run goes on where it was.
`python -m rslib.generalization --help` is the same on the command line. Scoring is `rslib.scoring`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rslib import data, presets
from rslib.complete_tree import Table
from rslib.env_tables import from_tree, policy_environment
from rslib.files import REPOSITORY
from rslib.policies import Policy, a2c, dqn
from rslib.policies.learned import LearnedPolicy
from rslib.runs import scoring
from rslib.runs.workers import in_processes
from rslib.tree import NotTrained, ScheduleTree

AGENTS = {"dqn": dqn.train, "a2c": a2c.train}
ARGUMENTS = {"dqn": dqn.DQNArgs, "a2c": a2c.A2CArgs}


@dataclass(frozen=True)
class Agent:
    """What to train: "dqn" or "a2c", with its arguments, on these environments."""

    name: str
    args: dqn.DQNArgs | a2c.A2CArgs
    tables: Sequence[Table]


@dataclass(frozen=True)
class Findings:
    """Everything an experiment found; the notebook's tables are made from `rows`."""

    rows: pd.DataFrame  # one per (environment, policy seed, label): scoring.COLUMNS
    taus: pd.DataFrame  # rule, tau, mean validation accuracy on training environments, chosen
    curves: pd.DataFrame  # learning curves: agent, policy_seed, updates, final, seconds, ...
    policies: dict[str, list[LearnedPolicy]]  # by label, one per policy seed

    def summary(self) -> pd.DataFrame:
        return scoring.summary(self.rows)

    def welch(self) -> pd.DataFrame:
        return scoring.welch_tests(self.rows)

    def _repr_html_(self) -> str:
        return self.summary().round(2).to_html(na_rep="n/a")


# -- training --------------------------------------------------------------------------------------


def train_policy(agent: Agent, seed: int, path: str | Path, progress: bool = True) -> Path:
    """Train one policy and save it with its learning curve; one that is there is kept."""
    path = Path(path)
    if _trained(path, agent, seed):
        return path
    policy, curve = AGENTS[agent.name](agent.tables, agent.args, seed, progress)  # type: ignore
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(curve, indent=1))
    policy.config["tables"] = _digest(agent.tables)
    return policy.save(path)  # last: a policy on disk is a finished one


def _trained(path: Path, agent: Agent, seed: int) -> bool:
    """Is the file a policy with these arguments on these tables? (Logging moves nothing.)"""
    if not path.exists():
        return False
    policy = LearnedPolicy.from_file(path)
    wanted = {
        "agent": agent.name,
        "seed": seed,
        "arguments": asdict(agent.args),
        "environments": [[t.dataset, t.seed] for t in agent.tables],
        "memory_size": agent.tables[0].memory_size,
        "tables": _digest(agent.tables),
    }
    found = {name: policy.config.get(name) for name in wanted}
    for arguments in (wanted["arguments"], found["arguments"] or {}):
        arguments.pop("log_every", None)
    return wanted == found


def _digest(tables: Sequence[Table]) -> str:
    """What the policy saw: trees trained anew with another torch or other data are other trees."""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(np.ascontiguousarray(table.val).tobytes())
    return digest.hexdigest()


def train_policies(
    agents: Sequence[Agent], n_seeds: int, folder: str | Path, workers: int = 1
) -> tuple[dict[str, list[LearnedPolicy]], pd.DataFrame]:
    """n_seeds policies of every agent, by label, with all learning curves."""
    jobs = [
        (agent, seed, Path(folder) / f"{agent.name}_{seed}.pt")
        for agent in agents
        for seed in range(n_seeds)
    ]
    left = [(*job, workers <= 1) for job in jobs if not _trained(job[2], job[0], job[1])]
    in_processes(train_policy, left, workers, "policies")
    policies: dict[str, list[LearnedPolicy]] = {}
    curves = []
    for _, seed, path in jobs:
        policy = LearnedPolicy.from_file(path)
        policies.setdefault(policy.label, []).append(policy)
        for point in json.loads(path.with_suffix(".json").read_text()):
            curves.append({"agent": policy.label, "policy_seed": seed} | point)
    return policies, pd.DataFrame(curves)


# -- experiments -----------------------------------------------------------------------------------


def run(
    experiment: str,
    agents: Sequence[Agent],
    test: Sequence[Any],
    tau_sources: Sequence[Any],
    n_seeds: int = presets.POLICY_SEEDS,
    folder: str | Path | None = None,
    workers: int = 1,
    test_tables: Sequence[Table] | None = None,
) -> Findings:
    """Train, choose thresholds, score. `test` and `tau_sources` are tables or live trees; with
    trees, `test_tables` carries the yardstick. `folder` keeps the policies. Rules combined with ETS
    choose theirs on the default number of environments, as in the paper."""
    with tempfile.TemporaryDirectory() as temporary:  # policies go through files in any case
        policies, curves = train_policies(agents, n_seeds, folder or temporary, workers)
    rows, taus = [], []
    rows += scoring.score(experiment, test, [Policy.load("random"), Policy.load("ets")], n_seeds)
    for rule in scoring.HEURISTICS:
        sources = tau_sources
        if rule.startswith("ets+"):
            sources = _first_of_each(tau_sources, presets.TAU_ENVIRONMENTS_DEFAULT)
        tau, means = scoring.choose_tau(rule, sources, presets.RL_TAU_GRID)
        taus += [
            {"rule": rule, "tau": value, "val": mean, "chosen": value == tau}
            for value, mean in means.items()
        ]
        if tau is None:
            label = Policy.load(f"{rule}:1").label
            reason = "no threshold has a result in every training environment"
            rows += scoring.not_available(experiment, test, label, n_seeds, reason)
        else:
            rows += scoring.score(experiment, test, [Policy.load(f"{rule}:{tau}")], n_seeds)
    rows += scoring.score(experiment, test, list(policies.values()), n_seeds)
    tables = test if test_tables is None else test_tables
    training = list({(t.dataset, t.seed): t for agent in agents for t in agent.tables}.values())
    rows += scoring.yardstick(experiment, tables, training or list(tau_sources), n_seeds)
    frame = pd.DataFrame(rows, columns=pd.Index(scoring.COLUMNS))
    return Findings(frame, pd.DataFrame(taus), curves, policies)


def first_of_each(pairs: Sequence[tuple[str, int]], n: int) -> list[tuple[str, int]]:
    """The first of every dataset's environments, n in all: where thresholds are chosen."""
    names = list(dict.fromkeys(name for name, _ in pairs))
    mine = {name: [pair for pair in pairs if pair[0] == name] for name in names}
    return [pair for name in names for pair in mine[name][: n // len(names)]]


def _first_of_each(sources: Sequence[Any], n: int) -> list[Any]:
    about = {(s.environment.dataset, s.environment.seed): s for s in sources}
    return [about[pair] for pair in first_of_each(list(about), n)]


def prepare(environment: Any, store: Any, frozen: bool = False) -> Table:
    """Every schedule of a tree, and what the heuristics want beyond the action space: afterwards
    all of it is in the store. One environment per process."""
    tree = ScheduleTree(environment, store, frozen=frozen)
    table = from_tree(tree)
    for rule in scoring.HEURISTICS:
        for tau in presets.RL_TAU_GRID:
            scoring.play(tree, Policy.load(f"{rule}:{tau}"))
    return table


def prepare_all(environments: Sequence[Any], store: Any, workers: int) -> list[Table]:
    """`prepare` for each. What is in the store is looked up here: starting processes for it would
    take longer than reading it."""
    found: dict[int, Table] = {}
    for i, environment in enumerate(environments):
        with contextlib.suppress(NotTrained):
            found[i] = prepare(environment, store, frozen=True)
    left = [i for i in range(len(environments)) if i not in found]
    jobs = [(environments[i], store) for i in left]
    found |= zip(left, in_processes(prepare, jobs, workers, "trees"), strict=True)
    return [found[i] for i in range(len(environments))]


def run_live(
    experiment: str,
    dataset: str,
    store: Any,
    profile: str = "quick",
    n_tasks: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    n_seeds: int | None = None,
    folder: str | Path | None = None,
    workers: int = 1,
    agents: Sequence[str] = ("dqn", "a2c"),
) -> Findings:
    """The whole experiment from live trees: train them, then policies, then score. `n_train` and
    `n_test` environments and `n_seeds` policy seeds; None takes the profile's."""
    quick, dataset = profile == "quick", data.canonical(dataset)
    settings = {name: presets.agent_settings(name, experiment, dataset, profile) for name in agents}
    lists = {
        name: presets.training_environments(experiment, dataset, n_train or n)
        for name, (n, _) in settings.items()
    }
    n_test = n_test or (presets.QUICK_TEST if quick else 10)
    held_out = presets.held_out_environments(experiment, dataset, n_test)
    wanted = sorted({pair for pairs in lists.values() for pair in pairs} | set(held_out))
    n_tasks = n_tasks or (presets.QUICK_TASKS if quick else None)
    if (n_tasks or presets.preset(dataset).n_tasks) > presets.MOST_TASKS:
        raise ValueError(
            f"{dataset}: policies are learned on whole schedule trees, and those of more than "
            f"{presets.MOST_TASKS} tasks are too large"
        )
    environments = {(name, seed): policy_environment(name, seed, n_tasks) for name, seed in wanted}
    built = prepare_all(list(environments.values()), store, workers)
    tables = dict(zip(environments, built, strict=True))
    trees = {pair: ScheduleTree(environment, store) for pair, environment in environments.items()}
    n_tau = presets.TAU_ENVIRONMENTS.get((experiment, dataset), presets.TAU_ENVIRONMENTS_DEFAULT)
    longest = max(lists.values(), key=len)
    return run(
        experiment,
        [
            Agent(name, ARGUMENTS[name](**settings[name][1]), [tables[p] for p in lists[name]])
            for name in agents
        ],
        [trees[pair] for pair in held_out],
        [trees[pair] for pair in first_of_each(longest, n_tau)],
        n_seeds or (presets.QUICK_POLICY_SEEDS if quick else presets.POLICY_SEEDS),
        folder,
        workers,
        [tables[pair] for pair in held_out],
    )


# -- finished experiments in a folder --------------------------------------------------------------


def training_cost(curves: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By agent: how many policies, and the mean updates and seconds of one."""
    ends = curves.groupby(["agent", "policy_seed"], sort=False)[["updates", "seconds"]].last()
    return {
        str(agent): {"policies": len(part)} | {str(k): float(v) for k, v in part.mean().items()}
        for agent, part in ends.groupby("agent")
    }


def write(result: Findings, folder: Path, settings: Mapping[str, Any]) -> None:
    """rows.csv and about.json, what `finished` reads, and the tables made from them."""
    folder.mkdir(parents=True, exist_ok=True)
    result.rows.to_csv(folder / "rows.csv", index=False)
    result.summary().to_csv(folder / "summary.csv")
    result.welch().to_csv(folder / "welch.csv", index=False)
    result.curves.to_csv(folder / "curves.csv", index=False)
    about = dict(settings) | {"training": training_cost(result.curves)}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")


SHIPPED = REPOSITORY / "results" / "policies"


def abouts(folder: Path = SHIPPED) -> list[dict[str, Any]]:
    """What was run in `folder`'s folders: environments, settings, and what training cost."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/about.json"))]


def finished(folder: Path = SHIPPED) -> list[tuple[str, pd.DataFrame]]:
    """Every experiment in `folder`'s folders: a sentence that says what was run, and its rows."""
    rows = [pd.read_csv(path.with_name("rows.csv")) for path in sorted(folder.glob("*/about.json"))]
    return list(zip(map(_sentence, abouts(folder)), rows, strict=True))


def _sentence(about: Mapping[str, Any]) -> str:
    trained = [f"{agent.upper()} trained on {text}" for agent, text in about["train"].items()]
    facts = [f"tested on {about['test']}", *trained, f"{about['profile']} settings"]
    what = about["experiment"].replace("_", " ").capitalize()
    return f"{what}: {'; '.join(facts)}. Environments: {', '.join(about['tables'])}"


if __name__ == "__main__":
    from rslib.runs.generalization_cli import main

    main()
