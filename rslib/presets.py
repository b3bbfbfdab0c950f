"""The paper's settings as data, in one place; and the profiles of the notebooks.

Preset: how one dataset is learned (Appendix C.1, D.1). METHODS: the replay methods' hyper-parameters
(Appendix C.5). TAU: the thresholds of the heuristics with the grids they were searched on
(Appendix B, C.9). The agents' tables are in `presets_rl`. Nothing here computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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


def fitted(found: Preset, n_classes: int) -> Preset:
    """The settings for a user's data: at most as many tasks as have two classes each, and memory
    sizes that are 1, 3, 5, 10 and 25 samples per class of every past task, as the paper's are."""
    n_tasks = min(found.n_tasks, n_classes // 2)
    past = (n_tasks - 1) * (n_classes // n_tasks)
    return replace(found, n_tasks=n_tasks, memory_sizes=tuple(past * n for n in (1, 3, 5, 10, 25)))


def preset(dataset: str, setting: str = "mcts") -> Preset:
    """The settings for a dataset: as in the search ("mcts") or in policy learning ("rl")."""
    if setting not in ("mcts", "rl"):
        raise ValueError(f"setting must be 'mcts' or 'rl', got {setting!r}")
    found = (PAPER | EMBEDDED).get(dataset)
    if found is None:
        return replace(CUSTOM, title=dataset)
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
_ANY_TAU: dict[str, tuple[float, tuple[float, ...]]] = {
    "task": (0.95, _FIVE),
    "class": (0.5, _CLASS_5),
    "ets+heur": (0.97, _FIVE),
}


def tau(dataset: str, kind: str = "task") -> float:
    """The paper's threshold of Heur-GD ("task", "class") or ETS+Heur-GD ("ets+heur")."""
    return _tau(dataset, kind)[0]


def heuristic(dataset: str, scenario: str = "task") -> str:
    """Name Heur-GD with the paper's threshold for a dataset in a scenario, such as "heur-gd:0.96"."""
    return f"heur-gd:{tau(dataset, 'class' if scenario == 'class' else 'task')}"


def tau_grid(dataset: str, kind: str = "task") -> tuple[float, ...]:
    """The values the paper searched."""
    return _tau(dataset, kind)[1]


def _tau(dataset: str, kind: str) -> tuple[float, tuple[float, ...]]:
    if kind not in TAU:
        raise ValueError(f"kind of threshold must be one of {', '.join(TAU)}, got {kind!r}")
    table = TAU[kind]
    return table[dataset] if dataset in table else _ANY_TAU[kind]
