"""The paper's settings (Appendix B, C.1, C.5, D.1, D.4) as tables, typeset from the presets that the
runs use: what is printed is what was run. (Only policies' thresholds are chosen anew by every run.)"""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from rslib import presets, scenario
from rslib.policies.a2c import A2CArgs
from rslib.policies.dqn import DQNArgs
from rslib.show.published import dataset_name
from rslib.show.tables import Table, plain_table

_TRAINING = ("epochs", "first_epochs", "batch_size", "lr", "memory_size", "n_tasks", "network")
_NOT_SETTINGS = ("log_every",)  # moves no result


def settings_tables() -> dict[str, Table]:
    """Every table by the name of its files."""
    return {
        "settings": training(),
        "methods": replay_methods(),
        "taus": thresholds(),
        "agents_dqn": agents("DQN", presets.DQN, DQNArgs),
        "agents_a2c": agents("A2C", presets.A2C, A2CArgs),
        "taus_policies": policy_thresholds(),
        "task_splits": task_splits(),
    }


def training() -> Table:
    frame = {
        p.title: {name: getattr(p, name) for name in _TRAINING} for p in presets.PAPER.values()
    }
    return plain_table(_upright(frame), "Training settings per dataset (Appendix C.1)")


def replay_methods() -> Table:
    frame = {
        (method, dataset_name(name)): args
        for method, by_dataset in presets.METHODS.items()
        for name, args in by_dataset.items()
        if name
    }
    return plain_table(_upright(frame), "Hyper-parameters of the replay methods (Appendix C.5)")


def thresholds() -> Table:
    frame = {
        (dataset_name(name), kind): {"tau": tau, "grid": ", ".join(map(str, grid))}
        for kind, by_dataset in presets.TAU.items()
        for name, (tau, grid) in by_dataset.items()
    }
    return plain_table(_upright(frame), "Thresholds of the heuristics (Appendix B, C.9)")


def agents(label: str, settings: presets.Agents, arguments: type) -> Table:
    """The hyper-parameters that differ between experiments, then those that do not."""
    columns = {}
    for (experiment, dataset), (n, changes) in settings.items():
        values = {k: v for k, v in asdict(arguments(**changes)).items() if k not in _NOT_SETTINGS}
        columns[_experiment(experiment, dataset)] = {"environments": n} | values
    frame = pd.DataFrame(columns).T
    same = [name for name in frame.columns if len(set(frame[name])) == 1]
    shared = "; ".join(f"{name} {frame[name].iloc[0]:g}" for name in same)
    caption = f"{label}: hyper-parameters (Appendix D.1). In every experiment: {shared}"
    return plain_table(_numbers(frame.drop(columns=same)), caption, digits=4)


def policy_thresholds() -> Table:
    """What the paper chose; our runs choose anew on the training environments, from this grid."""
    frame = {
        rule: {_experiment(*key): tau for key, tau in by_experiment.items()}
        for rule, by_experiment in presets.RL_TAU.items()
    }
    grid = ", ".join(map(str, presets.RL_TAU_GRID))
    return plain_table(
        pd.DataFrame(frame),
        f"Thresholds the paper chose from {grid} (Appendix D); our runs choose anew",
    )


def task_splits(n_environments: int = 20) -> Table:
    splits = {
        seed: [", ".join(map(str, task)) for task in scenario.task_splits(10, 5, seed)]
        for seed in range(n_environments)
    }
    columns = [f"Task {t}" for t in range(1, 6)]
    frame = pd.DataFrame.from_dict(splits, orient="index", columns=pd.Index(columns))
    return plain_table(frame, "Classes of each task by environment seed (Appendix D.4)")


def _experiment(experiment: str, dataset: str) -> str:
    return f"{experiment.replace('_', ' ').capitalize()}, {dataset_name(dataset)}"


def _upright(columns: dict) -> pd.DataFrame:
    return pd.DataFrame(columns).T.fillna("-")


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.map(lambda value: f"{value:g}")
