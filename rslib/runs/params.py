"""Notebook parameters: checked in the first second, with what is allowed in the message.

papermill hands over what the shell gave it: `-p quick false` arrives as the true string "false",
`-p seeds "[1,2]"` as a string, `1e3` as a float, and an unknown name only warns. `check(globals())`,
called once below the parameters cell, turns each into the value that was meant (`rslib.runs.values`) or
stops. It comes before the notebook's other imports, and what takes seconds to import (torch, pandas)
is imported here only where it is used.
"""

from __future__ import annotations

import contextlib
import difflib
import html
import os
import platform
import re
import tempfile
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rslib import data, presets
from rslib.files import REPOSITORY, artefact, in_checkout, revision, write_atomically
from rslib.runs import values
from rslib.runs.values import ParameterError
from rslib.store.rows import Facts, shipped_facts

if TYPE_CHECKING:
    from rslib.environment import Environment
    from rslib.runs.grid import Runs


def dataset_facts(name_or_path: str) -> data.Dataset | Facts:
    """What is known of a dataset: from itself, or from shipped results where it is not here."""
    if data.at_hand(name_or_path):
        return data.load(name_or_path)
    return shipped_facts(data.canonical(name_or_path)) or data.load(name_or_path)


# -- profiles: how much of each experiment is run --------------------------------------------------
#
# `smoke` is for tests (seconds per notebook), `quick` the default (every figure and table from embedded
# data in minutes), `paper` the paper's own settings (but BFS on two of its seeds). A notebook parameter
# that is given beats its profile.


@dataclass(frozen=True)
class Profile:
    seeds: tuple[int, ...]
    rollouts: int
    bfs_seeds: int  # how many of the seeds also get breadth-first search
    memory_sizes: int  # how many of the dataset's ladder of memory sizes
    new_seeds: tuple[int, ...]  # for the transfer of schedules
    rl: dict[str, Any]  # arguments of `generalization.plan` in 07; empty: the paper's
    n_tasks_rl: int | None = None  # tasks of the trees in 07, which grow fast; None: the dataset's
    changes: dict[str, dict] = field(default_factory=dict)  # by notebook number: less where slow
    # Shortens training itself, in tests only.
    environment: dict[str, int] = field(default_factory=dict)


PROFILES = {
    "smoke": Profile(
        seeds=(1, 2),
        rollouts=3,
        bfs_seeds=0,
        memory_sizes=2,
        new_seeds=(10, 11),
        rl=dict(profile="quick", n_train=2, n_test=2, n_seeds=2),
        n_tasks_rl=3,
        environment=dict(epochs=1, first_epochs=1, hidden=16),
    ),
    "quick": Profile(
        seeds=(1, 2, 3),
        rollouts=20,
        bfs_seeds=1,
        memory_sizes=3,
        new_seeds=(10, 11, 12),
        rl=dict(profile="quick", n_test=4, n_seeds=3),
        n_tasks_rl=4,
        changes={"03": dict(seeds=(1, 2)), "05": dict(seeds=(1, 2), rollouts=12)},
    ),
    "paper": Profile(
        seeds=(1, 2, 3, 4, 5),
        rollouts=100,
        bfs_seeds=2,  # the paper: all; a tree is 1,085 trainings, 40 minutes on Split MNIST
        memory_sizes=5,
        new_seeds=(10, 11, 12, 13, 14),
        rl={},
    ),
}


# -- the parameters of a notebook ------------------------------------------------------------------


class KeyValueTable(dict[str, Any]):
    """Names and values, shown as a table that cuts no fingerprint short."""

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th>{html.escape(k)}</th><td style='text-align: left'>{html.escape(str(v))}</td></tr>"
            for k, v in self.items()
        )
        return f"<table>{''.join(cells)}</table>"

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.items())


@dataclass(frozen=True)
class Parameters:
    """What a notebook runs with; what was not given comes from the profile and the presets."""

    notebook: str  # "04"
    dataset: str
    profile_name: str
    profile: Profile
    seeds: tuple[int, ...]
    rollouts: int
    memory_size: int
    n_jobs: int
    out_dir: Path
    policies: tuple[str, ...] = ()  # more rows of the tables
    selections: tuple[str, ...] = ()  # those of Table 1; empty: the paper's four
    n_tasks: int | None = None  # None, here and below: the preset's
    scenario: str | None = None
    network: str | None = None
    epochs: int | None = None
    as_shipped: bool = False  # the paper's profile, and nothing else given

    def environment(self, seed: int, **changes: Any) -> Environment:
        """The environment of this notebook's dataset, with the profile's shortenings."""
        from rslib.environment import Environment

        preset = self.preset
        settings: dict[str, Any] = {"memory_size": self.memory_size, "n_tasks": preset.n_tasks}
        settings |= {"scenario": preset.scenario, "network": preset.network}
        settings |= self.profile.environment
        if self.epochs:
            settings |= {"epochs": self.epochs, "first_epochs": None}
        return Environment(self.dataset, seed=seed, **(settings | changes))

    def on(self, dataset: str, profile_name: str, notebook: str | None = None) -> Parameters:
        """The same for another dataset, profile or notebook, everything else at its default."""
        given = dict(dataset=dataset, profile=profile_name, n_jobs=self.n_jobs)
        return check(given | {"out_dir": str(self.out_dir)}, notebook or self.notebook)

    @property
    def n_tasks_rl(self) -> int:
        """How many tasks the trees of policy learning have."""
        n = self.preset.n_tasks
        return min(self.profile.n_tasks_rl or n, n)

    @property
    def preset(self) -> presets.Preset:
        found = presets.preset(self.dataset)
        if data.is_path(self.dataset):
            found = presets.fitted(found, data.load(self.dataset), self.n_tasks)
        given = {name: getattr(self, name) for name in ("n_tasks", "scenario", "network", "epochs")}
        return replace(found, **{name: value for name, value in given.items() if value})

    @property
    def title(self) -> str:
        return self.preset.title

    @property
    def name(self) -> str:
        """The dataset as a folder name: figures/<name>/. A user's mnist.npz is not mnist."""
        if not data.is_path(self.dataset):
            return self._beside_shipped(self.dataset) if self.dataset in SHIPPED else self.dataset
        return f"own-{self.title}" if self.title in {*data.names(), *SHIPPED} else self.title

    @property
    def overview(self) -> str:
        """The folder of what shows all datasets together."""
        return self._beside_shipped(OVERVIEW)

    def _beside_shipped(self, folder: str) -> str:
        """The folder that `make ship` fills; anything else goes beside it, never over it."""
        if self.as_shipped:
            return folder
        return f"{folder}-{'changed' if self.profile_name == 'paper' else self.profile_name}"

    def provenance(self, *runs: Runs) -> KeyValueTable:
        """What a stranger needs to get the same numbers again; of `runs`, what trained their rows."""
        import torch

        from rslib.environment import PROTOCOL

        dataset = dataset_facts(self.dataset)
        facts = {
            "git revision": revision(),
            "protocol": PROTOCOL.get(self.preset.network, "of your own network"),
            "Python": platform.python_version(),
            "torch, NumPy here": f"{torch.__version__}, {np.__version__}",
            "CPU capability here": torch.backends.cpu.get_cpu_capability(),
            "dataset": f"{dataset.name}: {dataset.provenance}",
            "data fingerprint": dataset.fingerprint,
            "seeds": ", ".join(map(str, self.seeds)),
            "profile": self.profile_name,
        }
        if runs:
            seeds = {int(seed) for some in runs if len(some) for seed in some.rows["seed"]}
            facts["seeds"] = ", ".join(map(str, sorted(seeds)))  # not those that were asked for
            made = sorted(set().union(*(some.made_with() for some in runs)))
            facts["rows shown, trained with"] = "; ".join(made) or "no rows"
        return KeyValueTable(facts)

    def _tasks(self) -> str:
        """How the classes are cut, and how many are left over."""
        n, there = self.preset.n_tasks, dataset_facts(self.dataset).n_classes
        if self.preset.permuted:
            return f"{n}, each a permutation of the pixels"
        if data.is_folder(self.dataset):
            return f"{n}, each a file of the folder, with {there} classes"
        left = there - n * (there // n)
        return f"{n} of {there // n} classes" + (f" ({left} of {there} not used)" if left else "")

    def _repr_html_(self) -> str:
        first = self.environment(self.seeds[0])
        rows = {
            "dataset": f"{self.title} ({dataset_facts(self.dataset).provenance})",
            "tasks": self._tasks(),
            "profile": self.profile_name,
            "seeds": ", ".join(map(str, self.seeds)),
            "rollouts": self.rollouts,
            "memory size M": self.memory_size,
            "scenario, network, epochs": f"{first.scenario}-IL, {first.network}, {first.epochs}",
            **({"more policies": ", ".join(self.policies)} if self.policies else {}),
            "processes": self.n_jobs,
            "figures and tables under": self.out_dir,
        }
        return KeyValueTable(rows)._repr_html_()


OVERVIEW = "paper"
SHIPPED = (*presets.PAPER, OVERVIEW)  # figures and tables that are committed
KNOWN = ("dataset", "profile", "seeds", "rollouts", "memory_size", "n_jobs", "out_dir")
KNOWN += ("policies", "selections", "n_tasks", "scenario", "network", "epochs")


def check(namespace: dict[str, Any], notebook: str, extra: Mapping[str, Any] = {}) -> Parameters:
    """The parameters in a notebook's `globals()`, or an error that lists what is allowed.

    `extra` names further parameters of this notebook with their checks: a type, a tuple of allowed
    values, or a function; their values are turned into the right type in `namespace` itself.
    """
    # A notebook's parameters are typed, so it has their names. It may lack some of KNOWN, and what it
    # lacks would be ignored without a word.
    mine = tuple(namespace.get("__annotations__", ())) or (*KNOWN, *extra)
    injected = _injected(namespace)
    if "_checked" not in namespace:  # run again, the notebook's own variables are there too
        _refuse_unknown(namespace, mine, injected)
    given: dict[str, Any] = dict.fromkeys(KNOWN)
    for name in set(KNOWN) & set(mine):
        value = namespace.get(name)
        if isinstance(value, types.ModuleType):  # `from rslib import policies` hides what was given
            value = values.parse(injected.get(name))
        # "none" is a policy, Fine-tuning.
        given[name] = value if (name, value) == ("policies", "none") else values.parse(value)
    profile_name = values.one_of("profile", given["profile"] or "quick", tuple(PROFILES))
    profile = PROFILES[profile_name]
    profile = replace(profile, **profile.changes.get(notebook, {}))
    amounts: dict[str, Any] = {
        "seeds": values.distinct_seeds(given["seeds"], profile.seeds),
        "rollouts": values.whole("rollouts", given["rollouts"], profile.rollouts, least=1),
        "memory_size": values.whole("memory_size", given["memory_size"], 0, least=1),
        "n_jobs": values.whole("n_jobs", given["n_jobs"], os.cpu_count() or 1, least=1),
        "out_dir": _folder(given["out_dir"]),
    }
    chosen = {
        "policies": values.names("policies", given["policies"]),
        "selections": values.names("selections", given["selections"]),
        "n_tasks": values.whole("n_tasks", given["n_tasks"], 0, least=2) or None,
        "scenario": given["scenario"],
        "network": given["network"],
        "epochs": values.whole("epochs", given["epochs"], 0, least=1) or None,
    }
    for name, wanted in extra.items():
        namespace[name] = values.checked(name, values.parse(namespace.get(name)), wanted)
    # Last: it may be fetched, and that takes a while. Where results are shipped, training fetches it.
    dataset = _dataset(given["dataset"])
    if data.is_path(dataset) and not data.is_folder(dataset):
        if (n_classes := data.load(dataset).n_classes) < 4:
            raise ParameterError(
                f"dataset {dataset!r}: two tasks need four classes, it has {n_classes}"
            )
    namespace["_checked"] = True
    preset = presets.preset(dataset)
    if not amounts["memory_size"]:
        tiny = notebook == "06"
        amounts["memory_size"] = preset.tiny_memory_size if tiny else preset.memory_size
    changed = {*given} - {"dataset", "profile", "n_jobs", "out_dir"}
    shipped = profile_name == "paper" and not any(given[name] for name in changed)
    p = Parameters(
        notebook, dataset, profile_name, profile, **amounts, **chosen, as_shipped=shipped
    )
    if any(chosen.values()):
        _try_choices(p)
    if data.is_path(dataset):
        _claim_figures(p)
    return p


def _try_choices(p: Parameters) -> None:
    """Cut the tasks, look up the policies and build the network now: what cannot be raises here."""
    from rslib.learner import Learner
    from rslib.policies import Policy
    from rslib.search import SEARCHES

    hint = ""
    try:
        for selection in p.selections or ("uniform",):
            p.environment(p.seeds[0], selection=selection).class_sizes()
        if p.network and data.at_hand(p.dataset):
            Learner(p.environment(p.seeds[0]))
        hint = ". Register a policy of your own in a cell above this check"
        for policy in p.policies:
            if policy not in SEARCHES:
                Policy.load(policy)
    except (ValueError, RuntimeError) as error:  # torch's, of shapes that do not fit, is the latter
        raise ParameterError(f"{error}{hint}") from None


def _claim_figures(p: Parameters) -> None:
    """Note whose figures/<name>/ it is, so that another file of the same name does not overwrite it."""
    try:
        note = artefact(p.out_dir, "figures", p.name, "dataset.txt")
    except ValueError:
        raise ParameterError(
            f"dataset {p.dataset!r} names the folder of its figures: give it a name with a-z or 0-9"
        ) from None
    own = Path(p.dataset).expanduser().resolve()
    other = Path(note.read_text().strip()) if note.is_file() else own
    if other != own and other.exists():
        raise ParameterError(
            f"{note.parent} holds the figures of {other}, and {own} has the same name. Rename one of "
            "them, or set out_dir"
        )
    write_atomically(note, f"{own}\n".encode())


def _injected(namespace: Mapping[str, Any]) -> dict[str, str]:
    """What papermill set, as source text: its cell, kept in `In`, begins with "# Parameters"."""
    cells = [cell for cell in namespace.get("In", ()) if cell.startswith("# Parameters")]
    return dict(re.findall(r"^(\w+) *= *(.*)$", "\n".join(cells), re.MULTILINE))


def _refuse_unknown(
    namespace: Mapping[str, Any], known: tuple[str, ...], injected: Mapping[str, str]
) -> None:
    """Raise on a name that was meant as a parameter and is none.

    That is every name in a plain dict, and in a notebook what papermill injected. Variables above the
    check are the user's own; one whose name looks like a misspelt parameter is only warned of.
    """
    meant = injected if "__name__" in namespace else namespace
    plain = str | int | float | list | tuple | dict | bool | types.NoneType
    for name, value in namespace.items():
        if name.startswith("_") or name in known or not isinstance(value, plain):
            continue
        close = difflib.get_close_matches(name, known, 1)
        if name in meant:
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"unknown parameter {name[:80]!r}.{hint} Allowed: {', '.join(known)}"
            )
        if close := difflib.get_close_matches(name, known, 1, cutoff=0.85):
            warnings.warn(f"{name!r} is no parameter. Did you mean {close[0]!r}?", stacklevel=3)


def dataset_names(value: Any) -> list[str] | None:
    """A check for `extra`: datasets in one string, or None for every dataset with stored rows."""
    names = values.words(value)
    return names and [_dataset(name) for name in names]


def _dataset(value: Any) -> str:
    """A known name, a readable .npz or a folder; it is looked at here, so that trouble shows."""
    name = "digits" if value is None else value
    if not isinstance(name, str | Path):
        raise ParameterError(f"dataset must be a name or a path, got {value!r}")
    name = str(name)
    with contextlib.suppress(OSError, ValueError):  # `load` says what is wrong with the path
        # Typed from the repository root, run from notebooks/: both are meant to work.
        elsewhere = REPOSITORY / name
        if not Path(name).exists() and data.is_path(elsewhere) and not data.is_name(name):
            name = str(elsewhere) if elsewhere.exists() else name
    try:
        dataset_facts(name)
    except (data.DataError, RuntimeError) as error:  # as in `_folder`
        message, short = f"dataset {name!r}: {error}", f"...{name[-80:]}"
        raise ParameterError(message.replace(name, short) if name[80:] else message) from None
    return data.canonical(name)  # as presets and published numbers spell it


def _folder(value: Any) -> Path:
    """Where figures/ and tables/ are written: the repository, or the working folder outside one."""
    default = REPOSITORY if in_checkout() else Path.cwd()
    if not isinstance(value, str | Path | None):
        raise ParameterError(f"out_dir must be the name of a folder, got {value!r}")
    try:
        folder = default if value is None else Path(value).expanduser().resolve()
        if folder.is_dir() or not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # better now than after hours of training
                return folder
    except (OSError, ValueError, RuntimeError) as error:  # the last: ~ of a user that is not here
        where, why = str(value or default)[:80], getattr(error, "strerror", None) or error
        raise ParameterError(f"out_dir {where!r} cannot be written ({why}). Name another") from None
    raise ParameterError(f"out_dir must be a folder, but {folder} is a file")
