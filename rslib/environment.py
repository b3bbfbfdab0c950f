"""The environment: everything that fixes what training along a schedule gives, except the schedule.

`Environment("mnist", seed=1)` is the paper's Split MNIST; what is not given comes from `presets`.
Its `key` is a hash of all that moves results, the dataset's own bytes included, and is what result
rows are filed under. PROTOCOL stands here and only here: raise the number of every kind of network
whose results a change moves.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from rslib import data, presets
from rslib.errors import BadValue, UserError
from rslib.memory import OVER_ALL_CLASSES, SELECTIONS
from rslib.methods import METHODS
from rslib.models import NETWORKS
from rslib.scenario import KINDS, Scenario, make_scenario
from rslib.store.rows import Facts, code, made_with, shipped_facts

# 2: channels last in memory; 3: convolutions without bias. Others have 1.
PROTOCOL = {"mlp": 1, "convnet": 3, "resnet": 2}
RECORDED_WITH = "2.13.0"  # the torch that trained results/


class DeviceError(UserError, ValueError):
    """`$RSLIB_DEVICE` names a device that torch cannot use."""


def device() -> torch.device:
    """Where networks train: `$RSLIB_DEVICE`, by default the CPU; raises where torch cannot use it."""
    name = os.environ.get("RSLIB_DEVICE") or "cpu"
    kind, _, number = name.partition(":")
    found = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.mps.is_available())}
    if not found.get(kind) or (number and not (number.isdigit() and int(number) < found[kind])):
        usable = ", ".join(known for known, n in found.items() if n)
        raise DeviceError(
            f"RSLIB_DEVICE is {name!r}, which this torch does not find. It finds: {usable}"
        )
    return torch.device(name)


@dataclass(frozen=True)
class Environment:
    """One continual-learning problem with one seed; frozen and hashable. All arguments are optional:

    the tasks      dataset, scenario, n_tasks, class_order_seed
    the replay     memory_size, selection, samples_per_class, method, method_args
    the training   network, hidden, epochs, first_epochs, batch_size, lr
    the rest       seed (of all random draws), setting (whose defaults: the search's or the agents')

    What is None takes the paper's value for the dataset (`presets.preset(dataset, setting)`).
    """

    dataset: str = "digits"  # a name from rslib.data, a path to an .npz or to a folder of them
    seed: int = 1  # of the validation split, the weights, the batches and the pools
    memory_size: int | None = None  # M, the samples replayed at every task
    selection: str = "uniform"  # how candidates are picked, a name from rslib.memory
    method: str = "er"  # the replay method, a name from rslib.methods
    scenario: str | None = None  # task, domain or class: Task-IL, Domain-IL or Class-IL
    class_order_seed: int = 0  # shuffles which classes make up which task; 0: the dataset's order
    # Candidates kept of every class (where one has fewer, the others fill up); None: M of every task.
    samples_per_class: int | None = None
    n_tasks: int | None = None  # T
    network: str | None = None  # mlp, convnet, resnet or your own, a name from rslib.models
    hidden: int | None = None  # units in each hidden layer of the MLP
    epochs: int | None = None  # passes over the training data of every task
    first_epochs: int | None = None  # those of task 1; None: the preset's, else as `epochs`
    batch_size: int | None = None  # current samples per step, to which the memory is added
    lr: float | None = None  # of the optimizer, where the method has no lr of its own
    method_args: Any = None  # the method's arguments, a mapping; kept as sorted pairs
    setting: str = "mcts"  # whose presets fill in what is None: "mcts" (search) or "rl" (agents)

    def __post_init__(self):
        object.__setattr__(self, "dataset", data.canonical(self.dataset))
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, np.generic):  # from an array or a DataFrame: take the number
                object.__setattr__(self, name, value.item())
        preset = self.preset
        if data.is_path(self.dataset) and None in (self.n_tasks, self.scenario, self.network):
            preset = presets.fitted(preset, data.load(self.dataset), self.n_tasks)
        for name in ("memory_size", "scenario", "n_tasks", "network", "hidden", "epochs"):
            self._default(name, getattr(preset, name))
        for name in ("batch_size", "lr", "first_epochs"):
            self._default(name, getattr(preset, name))
        self._default("first_epochs", self.epochs)
        given = {
            name: value.item() if isinstance(value, np.generic) else value  # numpy's are no JSON
            for name, value in dict(self.method_args or {}).items()
        }
        # Hashable, and equal to what comes back from JSON.
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        arguments = presets.method_arguments(self.method, self.dataset) | given
        object.__setattr__(self, "method_args", tuple(sorted(arguments.items())))
        self._check()

    def _default(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        for name, allowed in (
            ("selection", SELECTIONS),
            ("method", METHODS),
            ("scenario", KINDS),
            ("network", NETWORKS),
        ):
            if getattr(self, name) not in allowed:
                raise BadValue(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        lowest = dict(seed=0, class_order_seed=0, memory_size=0, n_tasks=2, hidden=1)
        lowest |= dict(epochs=1, first_epochs=1, batch_size=1, samples_per_class=1)
        for name, least in lowest.items():
            value = getattr(self, name)
            if name == "samples_per_class" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadValue(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.class_order_seed >= 2**32:
            raise BadValue(f"class_order_seed must be below 2**32, got {self.class_order_seed}")
        if self.batch_size == 1 and self.network != "mlp":
            raise BadValue(
                f"batch_size must be at least 2 for {self.network!r}: batch norm has no variance of a "
                "single sample"
            )
        if self.scenario == "class" and self.selection in OVER_ALL_CLASSES:
            raise BadValue(
                f"selection {self.selection!r} may miss a class, and Class-IL keeps one sample of each: "
                "choose another selection"
            )
        if (
            isinstance(self.lr, bool)
            or not isinstance(self.lr, int | float)
            or not 0 < self.lr < float("inf")
        ):
            raise BadValue(f"lr must be a positive number, got {self.lr!r}")
        object.__setattr__(self, "lr", float(self.lr))  # 1 and 1.0 are one key
        try:
            METHODS[self.method](**self.arguments)
        except TypeError as error:  # an unknown argument, or a text where a number is needed
            raise BadValue(f"method_args of {self.method!r}: {error}")

    # -- what the rest of the library uses ---------------------------------------------------------

    @property
    def arguments(self) -> dict[str, Any]:
        """The replay method's hyper-parameters."""
        return dict(self.method_args)

    @property
    def preset(self) -> presets.Preset:
        return presets.preset(self.dataset, self.setting)

    @functools.cached_property
    def recorded_facts(self) -> Facts | None:
        """What shipped results record about the data; None where the data are on this machine."""
        return None if data.at_hand(self.dataset) else shipped_facts(self.dataset, self.spec())

    def load(self) -> data.Dataset:
        """Load the data for training, fetching the files if they are not on this machine."""
        dataset = data.load(self.dataset)
        if self.__dict__.setdefault("_loaded", dataset.fingerprint) != dataset.fingerprint:
            raise data.DataError(
                f"{self.dataset} has changed since this environment read it. Make the Environment anew"
            )
        if self.recorded_facts and self.recorded_facts.fingerprint != dataset.fingerprint:
            raise data.DataError(
                f"the {self.dataset} that has just been fetched is not what the shipped results "
                "were made from. Restart Python to use the results for this data."
            )
        return dataset

    def facts(self) -> Facts:
        """Collect what results record about the data; trains nothing."""
        sizes, found = self.class_sizes(), self.recorded_facts or self.load()
        about = (self.dataset, found.fingerprint, found.n_classes, found.provenance, found.subset)
        return Facts(*about, class_sizes=sizes)

    @property
    def subset(self) -> str | None:
        """Which part of the dataset is used, for captions; None: all of it."""
        return (self.recorded_facts or self.load()).subset

    def tasks(self) -> Scenario:
        """Cut the data into tasks, once for all trees of one environment and its variants."""
        return _scenario(*self.scenario_key)

    def class_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Count the training samples of every class of every task. These numbers stay cached and a
        scenario does not: looking up what a search found needs them and no image."""
        known = self.recorded_facts.class_sizes if self.recorded_facts else ()
        return known or _class_sizes(*self.scenario_key)

    @property
    def scenario_key(self) -> tuple:
        """What the sequence of tasks depends on."""
        preset = self.preset
        return (
            *(self.dataset, self.load().fingerprint, self.scenario, self.n_tasks, self.seed),
            *(self.class_order_seed, preset.permuted, preset.max_train),
        )

    @property
    def classes_per_task(self) -> int:
        """Classes of one task, found without cutting the data: policies plan before training."""
        n_classes = (self.recorded_facts or self.load()).n_classes
        whole = self.preset.permuted or data.is_folder(self.dataset)
        return n_classes if whole else n_classes // (self.n_tasks or 1)

    @property
    def samples_kept_per_task(self) -> int:
        """Samples every past task gives before anything is scheduled: one per class in Class-IL."""
        scheduled = self.scenario == "class" and self.method != "joint"
        return self.classes_per_task if scheduled else 0

    def budget(self, k: int) -> int:
        """How many samples a schedule may divide among the k tasks seen; joint training replays none."""
        kept = k * self.samples_kept_per_task
        return 0 if self.method == "joint" else (self.memory_size or 0) - kept

    @property
    def pool_size(self) -> int:
        """How many candidates of a past task are kept (a small task may have fewer samples)."""
        if self.samples_per_class is not None:
            return self.samples_per_class * self.classes_per_task
        return max(self.memory_size or 0, self.samples_kept_per_task)

    @property
    def key(self) -> str:
        """A hash of everything that moves results; result rows are filed under it.

        A user's own method, network and selection count as they are registered now, so it may change.
        """
        chosen = (METHODS, self.method), (NETWORKS, str(self.network)), (SELECTIONS, self.selection)
        own = {r.kind: r.fingerprint(name) for r, name in chosen if name not in r.built_in}
        kind = device().type
        if kind not in self._keys:
            self._keys[kind] = self._hash(torch.__version__.partition("+")[0])
        text = self._keys[kind] + json.dumps(own, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20] if own else self._keys[kind]

    @property
    def recorded_key(self) -> str:
        """The key that this environment has with the torch of results/, to look up whole results."""
        return self._hash(RECORDED_WITH)

    @functools.cached_property
    def _keys(self) -> dict[str, str]:
        """The hashes of all settings, by the kind of device, which a notebook may change."""
        return {}

    def _hash(self, torch_version: str) -> str:
        """`setting` is left out: it only chose defaults, and those are listed themselves."""
        ingredients = {
            "protocol": PROTOCOL.get(str(self.network), 1),
            "torch": torch_version,
            "dataset": (self.recorded_facts or self.load()).fingerprint,  # its bytes, not its name
            "permuted": self.preset.permuted,
            "max_train": self.preset.max_train,
            "scenario": self.scenario,
            "n_tasks": self.n_tasks,
            "class_order_seed": self.class_order_seed,
            "seed": self.seed,
            "memory_size": self.memory_size,
            "selection": self.selection,
            "samples_per_class": self.samples_per_class,
            "method": self.method,
            "method_args": self.method_args,
            "network": self.network,
            "hidden": self.hidden,
            "epochs": self.epochs,
            "first_epochs": self.first_epochs,
            "batch_size": self.batch_size,
            "lr": self.lr,
        }
        if (kind := device().type) != "cpu":  # other arithmetic, other bits
            ingredients["device"] = kind
        text = json.dumps(ingredients, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached key: a worker with other data or another torch must compute its own."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def spec(self) -> dict[str, Any]:
        """The fields as plain JSON values; `Environment.from_spec` is the inverse."""
        return asdict(self) | {"method_args": self.arguments}

    def code(self) -> str:
        """Name the code that trains this environment now."""
        return code(by_sklearn=self.selection in ("kmeans", "kmeans++"))

    def cpu(self) -> str:
        """Name the CPU instructions that train this environment now."""
        return made_with()[1 if self.network == "mlp" else 2]

    def as_stored(self) -> dict[str, Any]:
        """What the store keeps beside rows: `spec`, and under "data" what is known of the data."""
        return self.spec() | {"data": asdict(self.facts())}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Environment:
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in spec.items() if name in known})

    @property
    def settings(self) -> str:
        """Describe all but dataset and seed; of the training, what differs from the paper's."""
        parts = [f"{self.scenario}-IL", f"{self.n_tasks} tasks"]
        if self.class_order_seed:
            parts.append(f"class order {self.class_order_seed}")
        parts.append(f"M={self.memory_size}")
        if self.samples_per_class is not None:
            parts.append(f"{self.samples_per_class} per class")
        parts += [f"{self.selection} selection", self.method]
        given = ("n_tasks", "scenario", "network") if data.is_path(self.dataset) else ()
        parts += [str(self.network)] if given else []
        # A user's data decide these defaults, and may be gone.
        known = {name: getattr(self, name) for name in given}
        usual = Environment(self.dataset, **known)
        training = ("network", "hidden", "epochs", "first_epochs", "batch_size", "lr")
        own, paper = ({n: getattr(e, n) for n in training} for e in (self, usual))
        own |= self.arguments
        paper |= presets.method_arguments(self.method, self.dataset)
        return ", ".join(parts + [f"{n}={v}" for n, v in own.items() if paper.get(n) != v])

    def __str__(self) -> str:
        return f"{self.preset.title}, {self.settings}, seed {self.seed}"


@functools.lru_cache(maxsize=2)  # two: a scenario of MNIST's size is 50 MB
def _scenario(name, fingerprint, kind, n_tasks, seed, class_order_seed, permuted, max_train):
    return make_scenario(
        data.load(name), kind, n_tasks, seed, class_order_seed, permuted, max_train
    )


@functools.cache
def _class_sizes(*cut) -> tuple[tuple[int, ...], ...]:
    labels = [task.train.y for task in _scenario(*cut).tasks]
    return tuple(tuple(y.unique(return_counts=True)[1].tolist()) for y in labels)
