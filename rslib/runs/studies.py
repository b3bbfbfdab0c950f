"""The paper's experiments: which policies run in which environments, and the table they belong to.

A `Study` is a figure or table of the paper: the function that lists its cells, the name of the published
table, what its lines are keyed by, and whom MCTS is tested against. Notebooks, 09_paper and
REPRODUCIBILITY.md all take it from here. Nothing here trains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pandas as pd

from rslib import data, presets, search
from rslib.environment import Environment
from rslib.policies import Policy
from rslib.runs import grid
from rslib.runs.grid import Cell
from rslib.runs.params import Parameters, dataset_facts
from rslib.schedule import n_actions, n_schedules, path_text
from rslib.store import Store

SELECTIONS = ("uniform", "kmeans", "kcenter", "mof")  # of Table 1
REPLAY_METHODS = ("hal", "mer", "der", "derpp")
BASELINES = ("Random", "ETS", "Heur-GD")


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper."""

    name: str  # of its files: tables/<dataset>/<name>.tex
    notebook: str  # "04"
    place: str  # in the paper: "Table 1, App. C.4"
    title: str  # of its caption
    list_cells: Callable[[Parameters], list[Cell]]
    published: str | None = None  # the paper's table with its numbers
    row_keys: tuple[str, ...] = ("label",)  # what a line of the table is
    against: tuple[str, ...] = BASELINES  # whom MCTS is tested against; empty: no tests
    metrics: tuple[str, ...] = ("acc", "bwt")
    note: str = ""  # what a reader of the comparison should know

    def cells(self, p: Parameters) -> list[Cell]:
        """The runs of this study on one dataset, with the profile of the study's own notebook."""
        mine = p if p.notebook == self.notebook else p.on(p.dataset, p.profile_name, self.notebook)
        return list(dict.fromkeys(self.list_cells(mine)))  # `-p policies bfs` names some twice


# -- the cells of each study -----------------------------------------------------------------------


def _schedulers(p: Parameters, scenario: str | None = None) -> list[str]:
    """The paper's four, and what `-p policies` adds."""
    heuristic = presets.heuristic(p.dataset, scenario or p.preset.scenario)
    return ["random", "ets", heuristic, "mcts", *p.policies]


def _each(
    p: Parameters, policies: Iterable[str], seeds: Iterable[int] = (), **changes: Any
) -> list[Cell]:
    """Every policy once in the environment of every seed, by default of the notebook's seeds."""
    labelled, cells = [(name, p.rollouts, own) for name, own in _labels(policies).items()], []
    for seed in seeds or p.seeds:
        environment = p.environment(seed, **changes)
        cells += [Cell(environment, *policy) for policy in labelled]
    return cells


def _labels(policies: Iterable[str]) -> dict[str, str | None]:
    """By policy: its label, where an earlier one has the same, such as "Heur-GD 0.9"; else None."""
    labels: dict[str, str | None] = {}
    taken = set()
    for name in dict.fromkeys(policies):
        own = name if name in search.SEARCHES else Policy.load(name).label
        parameter = name.partition(":")[2] or Path(name).stem
        labels[name] = f"{own} {parameter}" if own in taken else None
        taken.add(own)
    return labels


def _joint(p: Parameters) -> list[Cell]:
    return [Cell(p.environment(s, method="joint"), "none", label="Joint") for s in p.seeds]


def _breadth_first(p: Parameters) -> list[Cell]:
    """BFS where the tree is small enough to be visited whole."""
    n = p.environment(p.seeds[0]).n_tasks or 0
    if n > 5 or n_actions(n - 1) > 35:
        return []
    return [Cell(p.environment(s), "bfs", p.rollouts) for s in p.seeds[: p.profile.bfs_seeds]]


def single_task_replay(p: Parameters) -> list[Cell]:
    """Task 1's memory, replayed while learning one later task only."""
    n, M = p.environment(p.seeds[0]).n_tasks or 0, p.memory_size
    cells = []
    for moment in range(2, n + 1):
        # With k tasks seen, the memory is replayed while learning task k + 1.
        path = tuple((M if k + 1 == moment else 0, *(0,) * (k - 1)) for k in range(1, n))
        cells += [
            Cell(p.environment(s), f"schedule:{path_text(path)}", label=f"at task {moment}")
            for s in p.seeds
        ]
    return cells


def schedule_search(p: Parameters) -> list[Cell]:
    """MCTS beside everything it is compared with."""
    searches = _each(p, ["none", *_schedulers(p), "random-best"])
    return searches + _joint(p) + _breadth_first(p)


def memory_sizes(p: Parameters, sizes: Sequence[int] = ()) -> list[Cell]:
    """The schedulers over memory sizes (by default the ladder) in every scenario of the dataset."""
    cells = []
    for scenario in scenarios(p):
        for M in sizes or memory_ladder(p):
            cells += _each(p, _schedulers(p, scenario), memory_size=M, scenario=scenario)
    return cells


def memory_ladder(p: Parameters) -> tuple[int, ...]:
    """The dataset's memory sizes, thinned out evenly to as many as the profile has."""
    sizes = p.preset.memory_sizes
    n = min(p.profile.memory_sizes, len(sizes))
    return tuple(sizes[round(i * (len(sizes) - 1) / max(n - 1, 1))] for i in range(n))


def scenarios(p: Parameters) -> tuple[str, ...]:
    """Task-IL and Class-IL, or the scenario given; permuted tasks and folders are Domain-IL only."""
    only = p.scenario or p.preset.scenario == "domain"
    return (p.preset.scenario,) if only else ("task", "class")


def memory_selection(p: Parameters) -> list[Cell]:
    """Selection methods x schedules, with the Joint and BFS rows."""
    cells = _joint(p) + _breadth_first(p)
    for selection in p.selections or SELECTIONS:
        cells += _each(p, _schedulers(p), selection=selection)
    return cells


def pools(p: Parameters) -> list[Cell]:
    """ETS and Random with pools balanced over classes, and drawn over all classes at once."""
    seeds, cells = range(1, 11) if p.profile_name == "paper" else p.seeds, []
    for selection in ("uniform", "unbalanced", "kmeans", "kmeans++"):
        cells += _each(p, ["random", "ets"], seeds, selection=selection)
    return cells


def replay_methods(p: Parameters) -> list[Cell]:
    """Replay methods x schedules."""
    cells = []
    for method in REPLAY_METHODS:
        cells += _each(p, _schedulers(p), method=method)
    return cells


def tiny_memory(p: Parameters) -> list[Cell]:
    """One sample per class is kept; MCTS replays M of them, the baselines all."""
    cells = []
    for seed in p.seeds:
        cells += _each(p, ["random", "mcts", *p.policies], [seed], samples_per_class=1)
        small = cells[-1].environment
        n_all = ((small.n_tasks or 0) - 1) * small.classes_per_task
        for method, label in (("agem", "A-GEM"), ("er-ring", "ER-Ring"), ("er", "Uniform")):
            everything = p.environment(seed, memory_size=n_all, samples_per_class=1, method=method)
            cells.append(Cell(everything, "ets", label=label))
    return cells


def schedulers(p: Parameters) -> list[Cell]:
    """The four schedulers with uniform selection, or the first one given."""
    return _each(p, _schedulers(p), selection=(p.selections or SELECTIONS)[0])


def search_cells(p: Parameters) -> list[Cell]:
    """The searches whose schedules are transferred: MCTS's own, one per seed."""
    return _each(p, ["mcts"])


def transfer_cells(p: Parameters) -> list[Cell]:
    """Each found schedule applied to new seeds, beside the baselines there.

    The schedules come from the store; there are no cells until every search is stored.
    """
    searches = grid.lookup(search_cells(p))
    if len(searches) < len(searches.cells):
        return []
    found = {cell.environment.seed: searches[cell].schedule for cell in searches.cells}
    cells = []
    numbers = (seed for seed in count(p.profile.new_seeds[0]) if seed not in p.seeds)
    for seed in islice(numbers, len(p.profile.new_seeds)):
        cells += _each(p, [name for name in _schedulers(p) if name != "mcts"], [seed])
        for searched, schedule in found.items():
            policy = f"schedule:{path_text(schedule.compositions)}"
            label = f"MCTS Seed {searched}"
            cells.append(Cell(p.environment(seed), policy, p.rollouts, label))
    return cells


def ets_heuristic(p: Parameters) -> list[Cell]:
    """ETS combined with Heur-GD, beside the others."""
    combined = f"ets+heur-gd:{presets.tau(p.dataset, 'ets+heur')}"
    papers = _schedulers(replace(p, policies=()))  # first: of equal labels the first stays as it is
    return _each(p, [*papers, combined, *p.policies])


# -- the studies -----------------------------------------------------------------------------------

_BFS = "BFS on two of the paper's five seeds"

SINGLE_TASK_REPLAY = Study(
    "single_task_replay",
    "01",
    "Figure 1",
    "One memory of task 1, replayed at one task only",
    single_task_replay,
    note="the paper prints means of five seeds without deviations: in numbers below",
)
SCHEDULE_SEARCH = Study(
    "schedule_search",
    "02",
    "Figure 4, App. C.2, C.3",
    "Schedule search",
    schedule_search,
    against=(*BASELINES, "Random-best"),
    metrics=("acc", "bwt", "reward"),
    note=_BFS,
)
MEMORY_SIZE = Study(
    "memory_size",
    "03",
    "Figure 3, App. C.7",
    "Schedules over memory sizes",
    memory_sizes,
    "memory_size_domain_il",
    ("scenario", "memory_size", "label"),
    note="of the numbers only those of Permuted MNIST are in the paper's source",
)
MEMORY_SELECTION = Study(
    "memory_selection",
    "04",
    "Table 1, App. C.4",
    "Memory selection methods",
    memory_selection,
    "memory_selection",
    ("selection", "label"),
    note=_BFS,
)
FORWARD_TRANSFER = Study(
    "forward_transfer",
    "04",
    "App. C.4",
    "Forward transfer",
    schedulers,
    "forward_transfer",
    against=(),
    metrics=("fwt",),
)
# Not in the paper, so not one of STUDIES: why our baselines differ from its own.
POOLS = Study(
    "pools",
    "04",
    "Table 1 (pools)",
    "Pools balanced over classes, and drawn over all classes at once as in the released code",
    pools,
    row_keys=("selection", "label"),
    against=(),
    metrics=("acc",),
)
REPLAY_METHOD = Study(
    "replay_methods",
    "05",
    "Table 2, App. C.5",
    "Replay methods",
    replay_methods,
    "replay_methods",
    ("replay", "label"),
    note="methods as published, not as released: expected to differ",
)
TINY_MEMORY = Study(
    "tiny_memory",
    "06",
    "Table 3, App. C.6",
    "One sample per class",
    tiny_memory,
    "tiny_memory",
    against=("Random", "A-GEM", "ER-Ring", "Uniform"),
)
SCHEDULE_TRANSFER = Study(
    "schedule_transfer",
    "08",
    "App. C.8",
    "MCTS schedules applied to new seeds",
    transfer_cells,
    "schedule_transfer",
    against=(),
    note="our own schedules and draws",
)
ETS_HEURISTIC = Study(
    "ets_heuristic",
    "08",
    "App. C.9",
    "ETS combined with Heur-GD",
    ets_heuristic,
    "ets_heuristic",
    against=(*BASELINES, "ETS+Heur-GD"),
)
STUDIES = (
    SINGLE_TASK_REPLAY,
    SCHEDULE_SEARCH,
    MEMORY_SIZE,
    MEMORY_SELECTION,
    FORWARD_TRANSFER,
    REPLAY_METHOD,
    TINY_MEMORY,
    SCHEDULE_TRANSFER,
    ETS_HEURISTIC,
)


# -- all datasets side by side (09_paper) ----------------------------------------------------------


def each_dataset(p: Parameters, names: Sequence[str] | None = None) -> list[Parameters]:
    """The parameters for every dataset named, or for every one that has stored rows.

    The paper's datasets are looked up with the paper's profile, others with the notebook's.
    """
    if names is None:
        stored = {str(spec["dataset"]) for spec in Store().environments().values()}
        names = []
        for name in presets.PAPER | presets.EMBEDDED:
            with contextlib.suppress(data.DataError):  # rows of a dataset that is nowhere
                if name in stored and dataset_facts(name):
                    names.append(name)
    return [p.on(name, "paper" if name in presets.PAPER else p.profile_name) for name in names]


def stored(study: Study, datasets: Sequence[Parameters]) -> grid.Runs:
    """The stored runs of a study over datasets; nothing is trained."""
    return grid.lookup([cell for q in datasets for cell in study.cells(q)])


def luck_pairs(rollouts: int = 100) -> pd.DataFrame:
    """ACC of MCTS and of Random-best wherever the store has both, with plain replay, by tree size."""
    store, lines = Store(), []
    runs = grid.Runs([], pd.DataFrame(), store)
    plain: dict[Environment, None] = {}  # with the preset's settings; one under several keys is one
    for spec in store.environments().values():
        # Raised where a user's own code is not registered here, or data are gone.
        with contextlib.suppress(ValueError, TypeError):
            environment = Environment(spec["dataset"], seed=spec["seed"], n_tasks=spec["n_tasks"])
            if Environment.from_spec(spec) == environment:
                plain[environment] = None
    for environment in plain:
        if n_schedules(environment.n_tasks or 0) <= rollouts:
            continue  # both would try every schedule
        pair = [Cell(environment, policy, rollouts) for policy in ("mcts", "random-best")]
        if all(cell in runs for cell in pair):
            accs = [runs[cell].acc for cell in pair]
            lines.append((environment.dataset, environment.n_tasks, environment.seed, *accs))
    columns = pd.Index(["dataset", "n_tasks", "seed", "MCTS", "Random-best"])
    return pd.DataFrame(lines, columns=columns).sort_values(["n_tasks", "dataset", "seed"])
