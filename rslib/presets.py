"""The paper's settings as plain data, in one place.

`preset`            how one dataset is learned (Appendix C.1, D.1)
`method_arguments`  the replay methods' hyper-parameters (Appendix C.5)
`tau`, `heuristic`  the thresholds of the heuristics in the search (Appendix B, C.9)
`agent_settings`    the agents' hyper-parameters (Appendix D.1), then the environments and thresholds
                    of policy learning (Appendix B, D.1, D.5)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rslib.errors import BadValue

if TYPE_CHECKING:
    from rslib.data import Dataset


@dataclass(frozen=True)
class Preset:
    """One dataset's protocol. What an `Environment` leaves open is taken from here."""

    title: str  # as printed in tables
    n_tasks: int = 5
    network: str = "mlp"
    scenario: str = "task"  # task | domain | class
    permuted: bool = False  # tasks are pixel permutations of one dataset, not splits of its classes
    epochs: int = 10
    first_epochs: int | None = None  # task 1 only, where it differs (warm-up)
    batch_size: int = 128
    lr: float = 0.001
    hidden: int = 256
    memory_size: int = 10
    tiny_memory_size: int = 2  # Section "Efficiency of replay scheduling"
    memory_sizes: tuple[int, ...] = (8, 24, 40, 80, 200)
    max_train: int | None = None  # a random subset of the training set, for Permuted MNIST


_MEMORY_20 = (95, 285, 475, 950, 2375)
_MEMORY_10 = (90, 270, 450, 900, 2250)

PAPER: dict[str, Preset] = {
    "mnist": Preset("Split MNIST"),
    "fashionmnist": Preset("Split FashionMNIST", epochs=30),
    "notmnist": Preset("Split notMNIST", epochs=50),
    "permutedmnist": Preset(
        "Permuted MNIST",
        n_tasks=10,
        scenario="domain",
        permuted=True,
        epochs=20,
        memory_size=100,
        tiny_memory_size=50,
        memory_sizes=_MEMORY_10,
        max_train=10_000,
    ),
    "cifar100": Preset(
        "Split CIFAR-100",
        network="convnet",
        epochs=25,
        batch_size=256,
        n_tasks=20,
        memory_size=100,
        tiny_memory_size=50,
        memory_sizes=_MEMORY_20,
    ),
    "miniimagenet": Preset(
        "Split miniImagenet",
        network="resnet",
        epochs=1,
        first_epochs=5,
        batch_size=32,
        n_tasks=20,
        memory_size=100,
        tiny_memory_size=50,
        memory_sizes=_MEMORY_20,
    ),
    "cifar10": Preset("Split CIFAR-10", network="convnet", epochs=20, batch_size=256),
}

# The embedded sets are small: high learning rates, so that a task takes a tenth of a second and is
# forgotten all the same. tests/test_presets.py holds what they must show, whoever wins on them.
EMBEDDED: dict[str, Preset] = {
    "digits": Preset("Split Digits", epochs=8, batch_size=20, lr=0.01),
    "glyphs": Preset("Split Glyphs A-J", epochs=2, batch_size=32, lr=0.005),
    "glyphs2": Preset("Split Glyphs K-T", epochs=2, batch_size=32, lr=0.005),
    "permuteddigits": Preset(
        "Permuted Digits",
        n_tasks=10,
        scenario="domain",
        permuted=True,
        epochs=5,
        batch_size=64,
        memory_size=50,
        tiny_memory_size=50,
        memory_sizes=_MEMORY_10,
    ),
}

# Learning policies uses shorter training than the search (Appendix D.1); the rest is the same.
RL_CHANGES = {"fashionmnist": dict(epochs=10), "notmnist": dict(epochs=20)}

CUSTOM = Preset("", epochs=10, batch_size=64)  # a user's own .npz


def fitted(found: Preset, dataset: Dataset, n_tasks: int | None = None) -> Preset:
    """The settings for a user's data, which follow from its classes, its files and its images.

    The number of tasks (3 to 7, of two classes or more) is the one that leaves out the fewest
    classes, then the nearest to five: 12 classes make 4 tasks of 3. A folder has a domain task per
    file. RGB images get the ConvNet, as in the paper, whose MLP learns grey images. Memory sizes are
    1, 3, 5, 10 and 25 samples per class of every past task, as the paper's are.
    """
    n_classes, n_files = dataset.n_classes, len(dataset.task_sizes)
    if n_classes < 4 and not (n_tasks or n_files):
        raise BadValue(
            f"{dataset.name!r} has {n_classes} classes: too few to cut into two tasks of two. Give "
            "n_tasks, or a folder with a file for every task"
        )
    most = max(1, min(7, n_classes // 2))
    choices = range(min(3, most), most + 1)
    n_tasks = n_tasks or n_files or min(choices, key=lambda n: (n_classes % n, abs(n - 5)))
    past = (n_tasks - 1) * (n_classes if n_files else n_classes // n_tasks)
    is_rgb = len(dataset.input_shape) == 3 and dataset.input_shape[0] == 3
    return replace(
        found,
        n_tasks=n_tasks,
        scenario="domain" if n_files else found.scenario,
        network="convnet" if is_rgb else found.network,
        memory_sizes=tuple(past * n for n in (1, 3, 5, 10, 25)),
    )


def preset(dataset: str, setting: str = "mcts") -> Preset:
    """The settings for a dataset: as in the search ("mcts") or in policy learning ("rl")."""
    if setting not in ("mcts", "rl"):
        raise BadValue(f"setting must be 'mcts' or 'rl', got {setting!r}")
    found = (PAPER | EMBEDDED).get(dataset)
    if found is None:  # a user's: its name, not its path, is what captions and headers carry
        return replace(
            CUSTOM, title=os.path.basename(os.path.abspath(dataset)).removesuffix(".npz")
        )
    return replace(found, **RL_CHANGES.get(dataset, {})) if setting == "rl" else found


# -- replay methods (Appendix C.5, Table of hyper-parameters) --------------------------------------

_HAL = dict(optimizer="sgd", lr=0.1, strength=0.1, embedding=0.1, decay=0.5, anchor_steps=100)

METHODS: dict[str, dict[str, dict]] = {
    # strength = lambda, embedding = gamma (mean-embedding strength), decay = beta, anchor_steps = k
    "hal": {
        "mnist": _HAL | dict(embedding=0.5, decay=0.7),
        "fashionmnist": _HAL,
        "notmnist": _HAL,
        "permutedmnist": _HAL,
        "cifar100": _HAL | dict(lr=0.03, strength=1.0),
        "miniimagenet": _HAL | dict(lr=0.03, strength=0.03),
        "": _HAL,
    },
    # gamma = across batches, beta = within a batch
    "mer": {
        "fashionmnist": dict(gamma=1.0, beta=0.01),
        "cifar100": dict(gamma=1.0, beta=0.1),
        "miniimagenet": dict(gamma=1.0, beta=0.1),
        "": dict(gamma=1.0, beta=1.0),
    },
    "der": {
        "mnist": dict(alpha=0.2),
        "fashionmnist": dict(alpha=0.2),
        "notmnist": dict(alpha=0.1),
        "permutedmnist": dict(alpha=1.0),
        "cifar100": dict(alpha=1.0),
        "miniimagenet": dict(alpha=0.1),
        "": dict(alpha=0.2),
    },
}
METHODS["derpp"] = {name: args | dict(beta=1.0) for name, args in METHODS["der"].items()}


def method_arguments(method: str, dataset: str) -> dict:
    """The paper's hyper-parameters of a replay method on a dataset ("" = any other dataset)."""
    table = METHODS.get(method, {})
    return dict(table.get(dataset, table.get("", {})))


# -- thresholds of the heuristics: (value, grid it was searched on) ---------------------------------

_FIVE = (0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99)
_CLASS_5 = (0.2, 0.3, 0.5, 0.75, 0.9)
_CLASS_20 = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
_ETS_LONG = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.99)

TAU: dict[str, dict[str, tuple[float, tuple[float, ...]]]] = {
    "task": {  # Heur-GD, Task-IL and Domain-IL (Appendix B)
        "mnist": (0.96, _FIVE),
        "fashionmnist": (0.97, _FIVE),
        "notmnist": (0.98, _FIVE),
        "permutedmnist": (0.75, (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 0.95, 0.97, 0.99)),
        "cifar100": (
            0.5,
            (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99),
        ),
        "miniimagenet": (0.75, (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)),
    },
    "class": {  # Heur-GD, Class-IL (Appendix B)
        "mnist": (0.75, _CLASS_5),
        "fashionmnist": (0.5, _CLASS_5),
        "notmnist": (0.5, _CLASS_5),
        "cifar100": (0.01, _CLASS_20),
        "miniimagenet": (0.01, _CLASS_20),
    },
    "ets+heur": {  # ETS+Heur-GD (Appendix C.9)
        "mnist": (0.99, _FIVE),
        "fashionmnist": (0.99, _FIVE),
        "notmnist": (0.93, _FIVE),
        "permutedmnist": (0.7, _ETS_LONG),
        "cifar100": (0.6, (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)),
        "miniimagenet": (0.7, _ETS_LONG),
    },
}

# Where the paper has no value (embedded and users' data): a middle of its five-task grid.
_ANY_TAU = {"task": 0.95, "class": 0.5, "ets+heur": 0.97}


def tau(dataset: str, kind: str = "task") -> float:
    """The paper's threshold of Heur-GD ("task", "class") or ETS+Heur-GD ("ets+heur")."""
    if kind not in TAU:
        raise BadValue(f"kind of threshold must be one of {', '.join(TAU)}, got {kind!r}")
    return TAU[kind][dataset][0] if dataset in TAU[kind] else _ANY_TAU[kind]


def heuristic(dataset: str, scenario: str = "task") -> str:
    """Name Heur-GD with the paper's threshold, such as "heur-gd:0.96" on Split MNIST."""
    return f"heur-gd:{tau(dataset, 'class' if scenario == 'class' else 'task')}"


# -- learning policies: the agents ------------------------------------------------------------------

EXPERIMENTS = ("new_task_order", "new_dataset")

# By (experiment, dataset tested on): training environments, and what differs from the agent's
# defaults (DQNArgs and A2CArgs in rslib.policies).
Agents = dict[tuple[str, str], tuple[int, dict[str, float]]]

DQN: Agents = {
    ("new_task_order", "mnist"): (30, {}),
    ("new_task_order", "fashionmnist"): (20, dict(lr=3e-4)),
    ("new_task_order", "notmnist"): (30, {}),
    ("new_task_order", "cifar10"): (10, dict(lr=3e-4)),
    ("new_dataset", "notmnist"): (30, {}),
    ("new_dataset", "fashionmnist"): (20, dict(buffer_size=100_000, epsilon_final=0.2)),
}
A2C: Agents = {
    ("new_task_order", "mnist"): (10, {}),
    ("new_task_order", "fashionmnist"): (40, dict(entropy_coef=0.005, n_steps=4)),
    ("new_task_order", "notmnist"): (10, {}),
    ("new_task_order", "cifar10"): (10, dict(lr=3e-4)),
    ("new_dataset", "notmnist"): (10, {}),
    ("new_dataset", "fashionmnist"): (30, dict(lr=3e-4, entropy_coef=0.005, n_steps=4)),
}

# The quick profile: embedded data, trees of 4 tasks, minutes on two cores. The learning rates are
# higher because there are 30 times fewer updates; the other settings are the paper's.
QUICK_TRAIN = 6  # environments
QUICK_DQN = dict(lr=3e-4, episodes=250, anneal_episodes=100, hidden=128, log_every=5)
QUICK_A2C = dict(lr=1e-3, updates=4_000, log_every=50)


def agent_settings(
    agent: str, experiment: str, dataset: str, profile: str = "paper"
) -> tuple[int, dict[str, float]]:
    """Look up the number of training environments of "dqn" or "a2c", and its arguments that differ
    from the defaults. Datasets that the paper did not use take MNIST's."""
    if experiment not in EXPERIMENTS:
        raise BadValue(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}")
    if profile == "quick":
        return QUICK_TRAIN, dict(QUICK_DQN if agent == "dqn" else QUICK_A2C)
    table = DQN if agent == "dqn" else A2C
    n, changes = table.get((experiment, dataset), table["new_task_order", "mnist"])
    return n, dict(changes)


# -- learning policies: environments and thresholds -------------------------------------------------

# Environment seeds in the order in which an experiment takes its training environments.
TRAIN_SEEDS = (*range(10), *range(20, 50))
TEST_SEEDS = {"new_task_order": tuple(range(10, 20)), "new_dataset": tuple(range(10))}
MOST_TASKS = 6  # 132,300 schedules; seven tasks have 61 million

# New Dataset: by the dataset tested on, the datasets trained on; half of the environments from each.
TRAIN_DATASETS = {
    "notmnist": ("fashionmnist", "mnist"),  # sorted: the place decides an environment's draws
    "fashionmnist": ("mnist", "notmnist"),
    "digits": ("glyphs", "glyphs2"),
    "glyphs": ("digits", "glyphs2"),
    "glyphs2": ("digits", "glyphs"),
}

# Thresholds of the heuristics: what the paper searched, and by experiment what it chose.
RL_TAU_GRID = (0.90, 0.95, 0.999)
RL_TAU: dict[str, dict[tuple[str, str], float]] = {
    name: dict(zip(DQN, values, strict=True))
    for name, values in {
        "heur-gd": (0.9, 0.95, 0.999, 0.9, 0.9, 0.9),
        "heur-ld": (0.9, 0.999, 0.999, 0.999, 0.95, 0.999),
        "heur-at": (0.9, 0.999, 0.999, 0.9, 0.9, 0.95),
        "ets+heur-gd": (0.999, 0.999, 0.999, 0.999, 0.95, 0.999),
        "ets+heur-ld": (0.999, 0.9, 0.95, 0.9, 0.95, 0.9),
        "ets+heur-at": (0.9, 0.9, 0.9, 0.95, 0.999, 0.95),
    }.items()
}
# Environments on which a threshold is chosen: 10, but 20 for Heur-* (without ETS) here.
TAU_ENVIRONMENTS_DEFAULT = 10
TAU_ENVIRONMENTS = {("new_task_order", "fashionmnist"): 20}


def training_datasets(experiment: str, dataset: str) -> tuple[str, ...]:
    """Look up the datasets that policies are trained on; each gives an equal share of environments."""
    if experiment == "new_task_order":
        return (dataset,)
    if dataset not in TRAIN_DATASETS:
        raise BadValue(
            f"New Dataset on {dataset!r} has no datasets to train on; it is available for "
            f"{', '.join(TRAIN_DATASETS)}. New Task Order needs none: experiment=new_task_order"
        )
    return TRAIN_DATASETS[dataset]


def experiments_on(dataset: str, requested: str) -> tuple[str, ...]:
    """Experiments available for this dataset; raises before training if the requested one is not."""
    if requested != "both":
        training_datasets(requested, dataset)
        return (requested,)
    return EXPERIMENTS if dataset in TRAIN_DATASETS else EXPERIMENTS[:1]
