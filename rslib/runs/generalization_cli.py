"""`python -m rslib.generalization`: train scheduling policies on environments, test them on others.

    python -m rslib.generalization --tables mnist.csv.gz --agent dqn a2c --test 40-49 --out folder
    python -m rslib.generalization --live digits --profile quick

The first takes environment tables, such as the authors' released ones, the second trains its own
schedule trees. In `--out` every policy is kept as soon as it is trained, so the same command goes on
after a kill, and only scores again when all are there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from rslib import presets
from rslib.complete_tree import Table
from rslib.env_tables import load_tables, parse_seeds
from rslib.runs.generalization import (
    AGENTS,
    ARGUMENTS,
    Agent,
    first_of_each,
    run,
    run_live,
    training_cost,
    write,
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rslib.generalization",
        description="Train scheduling policies on environments and test them on others.",
    )
    add = parser.add_argument
    add("--tables", type=Path, nargs="+", help="environment tables to train and test on")
    add("--memory-size", type=int, default=10, help="M of the tables, which do not carry it")
    add("--live", metavar="DATASET", help="instead: train the schedule trees of this dataset")
    add("--agent", nargs="+", default=["a2c"], choices=sorted(AGENTS))
    add("--train", type=parse_seeds, help="seeds, such as 0-9,20-39; default: each agent's own")
    add("--test", type=parse_seeds, help="default: 40-49, the last that the authors released")
    add("--train-dataset", nargs="+", help="datasets to train on; default: the tables' only one")
    add("--test-dataset", help="dataset to test on; default: the one trained on")
    add("--experiment", default="new_task_order", choices=presets.EXPERIMENTS)
    add("--profile", default="paper", choices=["paper", "quick"])
    add("--seeds", type=int, help="policy seeds; default: the profile's")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="change an agent's argument")
    add("--store", type=Path, help="with --live: where finished trainings are kept")
    add("--workers", type=int, default=1)
    add("--out", type=Path, help="folder for policies, rows.csv, summary.csv, about.json")
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    if bool(given.tables) == bool(given.live):
        parser.error("give either --tables or --live")
    if given.live:
        ignored = ("train", "test", "train_dataset", "test_dataset", "set")
        for name in (name for name in ignored if getattr(given, name)):
            parser.error(f"--{name.replace('_', '-')} goes with --tables, not with --live")
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
        told = {"tables": ["trained here"], "train": {}, "test": given.live}
    else:
        agents, test, choosing = _from_tables(given, parser)
        result = run(
            given.experiment,
            agents,
            test,
            choosing,
            given.seeds or presets.POLICY_SEEDS,
            given.out,
            given.workers,
        )
        told = {
            "tables": [path.name for path in given.tables],
            "train": {agent.name: _listed(agent.tables) for agent in agents},
            "test": _listed(test),
        }
    seconds = time.perf_counter() - started
    if given.out:
        settings = {"experiment": given.experiment, "profile": given.profile}
        write(result, given.out, settings | told)
    print(as_text(result.summary(), result.curves))
    print(f"{seconds:.0f} s in all")


def _from_tables(
    given: argparse.Namespace, parser: argparse.ArgumentParser
) -> tuple[list[Agent], list[Table], list[Table]]:
    """The agents with their training environments, the test ones, and those that thresholds are
    chosen on."""
    known = {
        (t.dataset, t.seed): t
        for path in given.tables
        for t in load_tables(path, given.memory_size)
    }
    names = sorted({name for name, _ in known})
    on = given.train_dataset or names
    if len(names) > 1 and not (given.train_dataset and given.test_dataset):
        parser.error(f"the tables hold {names}: say --train-dataset and --test-dataset")
    test_name = given.test_dataset or on[0]
    held_out = [(test_name, seed) for seed in given.test or parse_seeds("40-49")]
    settings = {}
    for name in given.agent:
        n, changes = presets.agent_settings(name, given.experiment, test_name, given.profile)
        settings[name] = (n, ARGUMENTS[name](**changes))
    lists = {
        name: [
            (d, seed)
            for d in sorted(on)  # the place decides an environment's draws, typing does not
            for seed in sorted(given.train or presets.TRAIN_SEEDS[: n // len(on)])
        ]
        for name, (n, _) in settings.items()
    }
    wanted = max(lists.values(), key=len)
    missing = [pair for pair in wanted + held_out if pair not in known]
    if missing:
        parser.error(f"not in the tables: {missing}")
    if set(wanted) & set(held_out):
        parser.error(f"both trained and tested on: {sorted(set(wanted) & set(held_out))}")
    agents = [
        Agent(name, _changed(args, given.set, settings, parser), [known[p] for p in lists[name]])
        for name, (_, args) in settings.items()
    ]
    place = (given.experiment, test_name.lower())
    n_tau = presets.TAU_ENVIRONMENTS.get(place, presets.TAU_ENVIRONMENTS_DEFAULT)
    choosing = first_of_each(wanted, n_tau)
    return agents, [known[pair] for pair in held_out], [known[pair] for pair in choosing]


def _changed(
    args: Any, texts: Sequence[str], settings: dict, parser: argparse.ArgumentParser
) -> Any:
    """An agent's arguments with those of `--set` that are its own; a name no agent has is refused."""
    everyone = {name for _, one in settings.values() for name in asdict(one)}
    mine = asdict(args)
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in everyone or not equals:
            parser.error(
                f"--set takes NAME=VALUE with one of {', '.join(sorted(everyone))}: {text!r}"
            )
        if name in mine:
            try:
                mine[name] = type(mine[name])(value)
            except ValueError:
                parser.error(f"--set {text}: not a value like {mine[name]!r}")
    return replace(args, **mine)


def _listed(tables: Sequence[Table]) -> str:
    """Which environments, as `--train` takes them: "MNIST 0-9, 20-39"."""
    parts = []
    for name in dict.fromkeys(table.dataset for table in tables):
        seeds = sorted(table.seed for table in tables if table.dataset == name)
        starts = [s for s in seeds if s - 1 not in seeds]
        ends = [s for s in seeds if s + 1 not in seeds]
        runs = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True)]
        parts.append(f"{name} {', '.join(runs)}")
    return " and ".join(parts)


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
    for agent, cost in training_cost(curves).items():
        updates, seconds = cost["updates"], cost["seconds"]
        lines.append(
            f"{agent}: {cost['policies']} policies, {updates:,.0f} updates and {seconds:.0f} s each, "
            f"{updates / seconds:.0f} updates/s"
        )
    return "\n".join(lines)
