"""The paper's settings for learning policies, as data: Appendix B, D.1 and D.5.

Which environments an experiment trains and tests on, the agents' hyper-parameters (tables of
Appendix D.1), the thresholds of the heuristics with their search range, and the quick profile for
the embedded datasets. An experiment is ("new_task_order", dataset) or ("new_dataset", dataset
tested on).
"""

from __future__ import annotations

from rslib.policies.a2c import A2CArgs
from rslib.policies.dqn import DQNArgs
from rslib.runs.profiles import EXPERIMENTS

# Environment seeds in the order in which an experiment takes its training environments.
TRAIN_SEEDS = (*range(10), *range(20, 50))
TEST_SEEDS = {"new_task_order": tuple(range(10, 20)), "new_dataset": tuple(range(10))}
POLICY_SEEDS = 5
MOST_TASKS = 6  # 132,300 schedules; seven tasks have 61 million

# New Dataset: what is trained on, by what is tested on; half of the environments from each.
TRAIN_DATASETS = {
    "notmnist": ("fashionmnist", "mnist"),  # sorted: the place decides an environment's draws
    "fashionmnist": ("mnist", "notmnist"),
    "digits": ("glyphs", "glyphs2"),
    "glyphs": ("digits", "glyphs2"),
    "glyphs2": ("digits", "glyphs"),
}

# (training environments, what differs from DQNArgs' defaults)
DQN: dict[tuple[str, str], tuple[int, DQNArgs]] = {
    ("new_task_order", "mnist"): (30, DQNArgs()),
    ("new_task_order", "fashionmnist"): (20, DQNArgs(lr=3e-4)),
    ("new_task_order", "notmnist"): (30, DQNArgs()),
    ("new_task_order", "cifar10"): (10, DQNArgs(lr=3e-4)),
    ("new_dataset", "notmnist"): (30, DQNArgs()),
    ("new_dataset", "fashionmnist"): (20, DQNArgs(buffer_size=100_000, epsilon_final=0.2)),
}

A2C: dict[tuple[str, str], tuple[int, A2CArgs]] = {
    ("new_task_order", "mnist"): (10, A2CArgs()),
    ("new_task_order", "fashionmnist"): (40, A2CArgs(entropy_coef=0.005, n_steps=4)),
    ("new_task_order", "notmnist"): (10, A2CArgs()),
    ("new_task_order", "cifar10"): (10, A2CArgs(lr=3e-4)),
    ("new_dataset", "notmnist"): (10, A2CArgs()),
    ("new_dataset", "fashionmnist"): (30, A2CArgs(lr=3e-4, entropy_coef=0.005, n_steps=4)),
}

# -- the heuristics' thresholds: search range, and what the paper chose ----------------------------

TAU_GRID = (0.90, 0.95, 0.999)
_CHOSEN = (
    ("new_task_order", "mnist"),
    ("new_task_order", "fashionmnist"),
    ("new_task_order", "notmnist"),
    ("new_task_order", "cifar10"),
    ("new_dataset", "notmnist"),
    ("new_dataset", "fashionmnist"),
)
TAU: dict[str, dict[tuple[str, str], float]] = {
    name: dict(zip(_CHOSEN, values, strict=True))
    for name, values in {
        "heur-gd": (0.9, 0.95, 0.999, 0.9, 0.9, 0.9),
        "heur-ld": (0.9, 0.999, 0.999, 0.999, 0.95, 0.999),
        "heur-at": (0.9, 0.999, 0.999, 0.9, 0.9, 0.95),
        "ets+heur-gd": (0.999, 0.999, 0.999, 0.999, 0.95, 0.999),
        "ets+heur-ld": (0.999, 0.9, 0.95, 0.9, 0.95, 0.9),
        "ets+heur-at": (0.9, 0.9, 0.9, 0.95, 0.999, 0.95),
    }.items()
}
# Environments that chose the threshold: Heur-*, 10 (20 for New Task Order on FashionMNIST);
# ETS+Heur-*, always 10.
TAU_ENVIRONMENTS = {("new_task_order", "fashionmnist"): 20}
TAU_ENVIRONMENTS_DEFAULT = 10

# -- the quick profile: embedded data, trees of 4 tasks, minutes on two cores ----------------------

QUICK_TASKS = 4
QUICK_TRAIN, QUICK_TEST = 6, 4  # environments
QUICK_POLICY_SEEDS = 3
# The learning rates are higher because there are 30 times fewer updates; nothing else moves.
QUICK_DQN = DQNArgs(lr=3e-4, episodes=250, anneal_episodes=100, hidden=128, log_every=5)
QUICK_A2C = A2CArgs(lr=1e-3, updates=4_000, log_every=50)


def agent_settings(
    agent: str, experiment: str, dataset: str, profile: str = "paper"
) -> tuple[int, DQNArgs | A2CArgs]:
    """(training environments, arguments) of "dqn" or "a2c"; other datasets take MNIST's."""
    if agent not in ("dqn", "a2c"):
        raise ValueError(f"agent must be 'dqn' or 'a2c', got {agent!r}")
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {EXPERIMENTS}, got {experiment!r}")
    if profile == "quick":
        return QUICK_TRAIN, QUICK_DQN if agent == "dqn" else QUICK_A2C
    table = DQN if agent == "dqn" else A2C
    return table.get((experiment, dataset.lower()), table[("new_task_order", "mnist")])


def training_environments(experiment: str, dataset: str, n: int) -> list[tuple[str, int]]:
    """(dataset, seed) of n training environments, as the protocol lists them."""
    if experiment == "new_task_order":
        return [(dataset, seed) for seed in TRAIN_SEEDS[:n]]
    sources = TRAIN_DATASETS.get(dataset.lower())
    if sources is None:
        raise ValueError(
            f"New Dataset on {dataset!r} has no datasets to train on; it is there for "
            f"{', '.join(TRAIN_DATASETS)}. New Task Order needs none: experiment=new_task_order"
        )
    share = n // len(sources)
    return [(source, seed) for source in sources for seed in TRAIN_SEEDS[:share]]


def experiments_on(dataset: str, asked: str) -> tuple[str, ...]:
    """The experiments there are on a dataset of "both", or the one asked for; told before anything
    is trained if it cannot be."""
    if asked != "both":
        training_environments(asked, dataset, 1)
        return (asked,)
    return EXPERIMENTS if dataset in TRAIN_DATASETS else EXPERIMENTS[:1]


def held_out_environments(experiment: str, dataset: str, n: int = 10) -> list[tuple[str, int]]:
    """(dataset, seed) of the first n test environments."""
    return [(dataset, seed) for seed in TEST_SEEDS[experiment][:n]]
