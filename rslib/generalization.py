"""Do learned scheduling policies generalise? The New Task Order and New Dataset experiments.

`run` trains DQN and A2C on tables, chooses the heuristics' thresholds on the training environments
and scores everything in the test environments; `run_live` first trains the schedule trees (the
embedded data in minutes). Policies are saved one by one, so a killed run goes on where it was.
`python -m rslib.generalization --help` is the same on the command line. Scoring is `rslib.scoring`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from rslib import a2c, dqn, presets_rl, scoring
from rslib.env_tables import from_tree, in_processes, load_tables, parse_seeds, policy_environment
from rslib.profiles import EXPERIMENTS
from rslib.propose import LearnedPolicy, Policy
from rslib.table_tree import Table
from rslib.tree import NotTrained, ScheduleTree

AGENTS = {"dqn": dqn.train, "a2c": a2c.train}


@dataclass(frozen=True)
class Agent:
    """What to train: "dqn" or "a2c", with its arguments, on these environments."""

    name: str
    args: dqn.DQNArgs | a2c.A2CArgs
    tables: Sequence[Table]


@dataclass(frozen=True)
class Result:
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
    return policy.save(path)  # last: a policy on disk is a finished one


def _trained(path: Path, agent: Agent, seed: int) -> bool:
    """Is the file a policy with these arguments on these environments? (Logging moves nothing.)"""
    if not path.exists():
        return False
    policy = LearnedPolicy.from_file(path)
    wanted = {
        "agent": agent.name,
        "seed": seed,
        "arguments": asdict(agent.args),
        "environments": [[t.dataset, t.seed] for t in agent.tables],
    }
    found = {name: policy.config.get(name) for name in wanted}
    for arguments in (wanted["arguments"], found["arguments"] or {}):
        arguments.pop("log_every", None)
    return wanted == found


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
    n_seeds: int = presets_rl.POLICY_SEEDS,
    folder: str | Path | None = None,
    workers: int = 1,
    test_tables: Sequence[Table] | None = None,
) -> Result:
    """Train, choose thresholds, score. `test` and `tau_sources` are tables or live trees; with
    trees, `test_tables` carries the yardstick. `folder` keeps the policies."""
    with tempfile.TemporaryDirectory() as temporary:  # policies go through files in any case
        policies, curves = train_policies(agents, n_seeds, folder or temporary, workers)
    rows, taus = [], []
    rows += scoring.score(experiment, test, [Policy.load("random"), Policy.load("ets")], n_seeds)
    for rule in scoring.HEURISTICS:
        tau, means = scoring.choose_tau(rule, tau_sources, presets_rl.TAU_GRID)
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
    return Result(frame, pd.DataFrame(taus), curves, policies)


def first_of_each(pairs: Sequence[tuple[str, int]], n: int) -> list[tuple[str, int]]:
    """The first of every dataset's environments, n in all: where thresholds are chosen."""
    names = list(dict.fromkeys(name for name, _ in pairs))
    mine = {name: [pair for pair in pairs if pair[0] == name] for name in names}
    return [pair for name in names for pair in mine[name][: n // len(names)]]


def prepare(environment: Any, store: Any, frozen: bool = False) -> Table:
    """Every schedule of a tree, and what the heuristics want beyond the action space: afterwards
    all of it is in the store. One environment per process."""
    tree = ScheduleTree(environment, store, frozen=frozen)
    table = from_tree(tree)
    for rule in scoring.HEURISTICS:
        for tau in presets_rl.TAU_GRID:
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
) -> Result:
    """The whole experiment from live trees: train them, then policies, then score. `n_train` and
    `n_test` environments and `n_seeds` policy seeds; None takes the profile's."""
    quick = profile == "quick"
    settings = {
        name: presets_rl.agent_settings(name, experiment, dataset, profile) for name in agents
    }
    lists = {
        name: presets_rl.training_environments(experiment, dataset, n_train or n)
        for name, (n, _) in settings.items()
    }
    n_test = n_test or (presets_rl.QUICK_TEST if quick else 10)
    held_out = presets_rl.held_out_environments(experiment, dataset, n_test)
    wanted = sorted({pair for pairs in lists.values() for pair in pairs} | set(held_out))
    n_tasks = n_tasks or (presets_rl.QUICK_TASKS if quick else None)
    environments = {(name, seed): policy_environment(name, seed, n_tasks) for name, seed in wanted}
    built = prepare_all(list(environments.values()), store, workers)
    tables = dict(zip(environments, built, strict=True))
    trees = {pair: ScheduleTree(environment, store) for pair, environment in environments.items()}
    n_tau = presets_rl.TAU_ENVIRONMENTS.get(
        (experiment, dataset), presets_rl.TAU_ENVIRONMENTS_DEFAULT
    )
    longest = max(lists.values(), key=len)
    return run(
        experiment,
        [Agent(name, settings[name][1], [tables[p] for p in lists[name]]) for name in agents],
        [trees[pair] for pair in held_out],
        [trees[pair] for pair in first_of_each(longest, n_tau)],
        n_seeds or (presets_rl.QUICK_POLICY_SEEDS if quick else presets_rl.POLICY_SEEDS),
        folder,
        workers,
        [tables[pair] for pair in held_out],
    )


# -- the command line ------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rslib.generalization",
        description="Train scheduling policies on environments and test them on others.",
    )
    add = parser.add_argument
    add("--tables", type=Path, nargs="+", help="environment tables to train and test on")
    add("--live", metavar="DATASET", help="instead: train the schedule trees of this dataset")
    add("--agent", nargs="+", default=["a2c"], choices=sorted(AGENTS))
    add("--train", type=parse_seeds, default=parse_seeds("0-9"), help="seeds, such as 0-9,20-39")
    add("--test", type=parse_seeds, default=parse_seeds("40-49"))
    add("--train-dataset", nargs="+", help="datasets to train on; default: the tables' only one")
    add("--test-dataset", help="dataset to test on; default: the one trained on")
    add("--experiment", default="new_task_order", choices=EXPERIMENTS)
    add("--profile", default="paper", choices=["paper", "quick"])
    add("--seeds", type=int, default=presets_rl.POLICY_SEEDS, help="policy seeds")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="change an agent's argument")
    add("--store", type=Path, help="with --live: where finished trainings are kept")
    add("--workers", type=int, default=1)
    add("--out", type=Path, help="folder for policies, rows.csv, summary.csv, result.json")
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    if bool(given.tables) == bool(given.live):
        parser.error("give either --tables or --live")
    if given.live:
        from rslib import Store

        result = run_live(
            given.experiment,
            given.live,
            Store(given.store),
            given.profile,
            n_seeds=given.seeds,
            folder=given.out,
            workers=given.workers,
            agents=given.agent,
        )
    else:
        result = _run_tables(given, parser)
    table = result.summary()
    seconds = time.perf_counter() - started
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        result.rows.to_csv(given.out / "rows.csv", index=False)
        table.to_csv(given.out / "summary.csv")
        result.welch().to_csv(given.out / "welch.csv", index=False)
        result.curves.to_csv(given.out / "curves.csv", index=False)
        found = {"seconds": seconds, "summary": table.reset_index().to_dict("records")}
        (given.out / "result.json").write_text(json.dumps(found, indent=1))
    print(as_text(table, result.curves))
    print(f"{seconds:.0f} s in all")


def _run_tables(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Result:
    known = {(t.dataset, t.seed): t for path in given.tables for t in load_tables(path)}
    names = sorted({name for name, _ in known})
    on = given.train_dataset or names
    if len(names) > 1 and not (given.train_dataset and given.test_dataset):
        parser.error(f"the tables hold {names}: say --train-dataset and --test-dataset")
    test_name = given.test_dataset or on[0]
    wanted = [(name, seed) for name in on for seed in given.train]
    held_out = [(test_name, seed) for seed in given.test]
    missing = [pair for pair in wanted + held_out if pair not in known]
    if missing:
        parser.error(f"not in the tables: {missing}")
    if set(wanted) & set(held_out):
        parser.error(f"both trained and tested on: {sorted(set(wanted) & set(held_out))}")
    training, n_tau = [known[pair] for pair in wanted], presets_rl.TAU_ENVIRONMENTS_DEFAULT
    choosing = [known[pair] for pair in first_of_each(wanted, n_tau)]
    agents = []
    for name in given.agent:
        _, args = presets_rl.agent_settings(name, given.experiment, test_name, given.profile)
        changes = {k: v for k, _, v in (text.partition("=") for text in given.set)}
        types = {k: type(v) for k, v in asdict(args).items()}
        mine = {k: types[k](v) for k, v in changes.items() if k in types}
        agents.append(Agent(name, replace(args, **mine), training))
    test = [known[pair] for pair in held_out]
    return run(given.experiment, agents, test, choosing, given.seeds, given.out, given.workers)


def as_text(table: pd.DataFrame, curves: pd.DataFrame) -> str:
    """The summary for a terminal, with how long training took."""
    lines = [f"{'':22}{'rank':>6}{'ACC %':>14}{'BWT %':>15}{'gap closed (95 % interval)':>30}"]
    for row in table.reset_index().to_dict("records"):
        label = f"{row['label']:22}"
        if row["missing"]:
            lines.append(f"{label}   n/a ({row['missing']} of {row['runs']} runs)")
            continue
        rank = "" if isnan(row["rank"]) else f"{row['rank']:.2f}"
        acc = f"{row['acc']:.2f} ± {row['acc_std']:.2f}"
        bwt = "" if isnan(row["bwt"]) else f"{row['bwt']:.2f} ± {row['bwt_std']:.2f}"
        gap = f"{row['gap_closed']:.2f} [{row['gap_low']:.2f}, {row['gap_high']:.2f}]"
        mark = f"  * {row['marked']} runs with a stand-in" if row["marked"] else ""
        lines.append(f"{label}{rank:>6}{acc:>14}{bwt:>15}{gap:>30}{mark}")
    last = {(point["agent"], point["policy_seed"]): point for point in curves.to_dict("records")}
    for agent in sorted({agent for agent, _ in last}):
        ends = [point for (name, _), point in last.items() if name == agent]
        updates, seconds = (sum(point[x] for point in ends) for x in ("updates", "seconds"))
        lines.append(
            f"{agent}: {len(ends)} policies, {updates / len(ends):,.0f} updates and "
            f"{seconds / len(ends):.0f} s each, {updates / seconds:.0f} updates/s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
