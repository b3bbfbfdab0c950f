"""The paper's experiments as lists of cells: one function per notebook, and nothing that trains.

A study says which policies run in which environments; `experiments.run_cells` runs them, and 09_paper
asks the store which of them are there. Every study takes the notebook's `Parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from rslib import data, presets
from rslib.environment import Environment
from rslib.runs import grid
from rslib.runs.grid import Cell
from rslib.runs.params import Parameters, dataset_facts
from rslib.schedule import n_actions, path_text
from rslib.store import Store
from rslib.tree import NotTrained

SELECTIONS = ("uniform", "kmeans", "kcenter", "mof")
REPLAY_METHODS = ("hal", "mer", "der", "derpp")


def _schedulers(p: Parameters, kind: str = "task") -> list[str]:
    return ["random", "ets", presets.heuristic(p.dataset, kind), "mcts"]


def _cells(environments: list[Environment], policies: list[str], rollouts: int) -> list[Cell]:
    return [Cell(e, policy, rollouts) for e in environments for policy in policies]


def _joint(p: Parameters, **changes) -> list[Cell]:
    return [Cell(p.environment(s, method="joint", **changes), "none") for s in p.seeds]


def single_task_replay(p: Parameters) -> list[Cell]:
    """01, Figure 1: task 1's memory, replayed while learning one later task only."""
    n, M = p.environment(p.seeds[0]).n_tasks or 0, p.memory_size
    cells = []
    for moment in range(2, n + 1):
        path = tuple(
            (M if k + 1 == moment else 0, *(0,) * (k - 1)) for k in range(1, n)
        )  # k tasks seen: replayed while learning task k + 1
        cells += [
            Cell(p.environment(s), f"schedule:{path_text(path)}", label=f"at task {moment}")
            for s in p.seeds
        ]
    return cells


def schedule_search(p: Parameters) -> list[Cell]:
    """02, Appendix C.2, C.3: MCTS beside everything it is compared with."""
    environments = [p.environment(s) for s in p.seeds]
    policies = ["none", *_schedulers(p), "random-best"]
    cells = _cells(environments, policies, p.rollouts) + _joint(p)
    return cells + breadth_first(p)


def breadth_first(p: Parameters) -> list[Cell]:
    """BFS where the tree is small enough to be visited whole."""
    n = p.environment(p.seeds[0]).n_tasks or 0
    if n > 5 or n_actions(n - 1) > 35:
        return []
    return [Cell(p.environment(s), "bfs") for s in p.seeds[: p.profile.bfs_seeds]]


def memory_size(p: Parameters, sizes: tuple[int, ...], kinds: tuple[str, ...]) -> list[Cell]:
    """03, Figure 3: ACC over memory sizes in Task-IL (or Domain-IL) and Class-IL."""
    cells = []
    for kind in kinds:
        for M in sizes:
            environments = [p.environment(s, memory_size=M, scenario=kind) for s in p.seeds]
            cells += _cells(environments, _schedulers(p, kind), p.rollouts)
    return cells


def memory_ladder(p: Parameters) -> tuple[int, ...]:
    """The dataset's memory sizes, thinned out evenly to as many as the profile asks for."""
    sizes = p.preset.memory_sizes
    n = min(p.profile.memory_sizes, len(sizes))
    return tuple(sizes[round(i * (len(sizes) - 1) / max(n - 1, 1))] for i in range(n))


def scenarios(p: Parameters) -> tuple[str, ...]:
    """Task-IL and Class-IL; permuted tasks have all classes each, so they are Domain-IL only."""
    return (p.preset.scenario,) if p.preset.permuted else ("task", "class")


def memory_sizes(p: Parameters) -> list[Cell]:
    """The whole of Figure 3 for a dataset."""
    return memory_size(p, memory_ladder(p), scenarios(p))


def memory_selection(p: Parameters) -> list[Cell]:
    """04, Table 1: selection methods x schedules, with the Joint and BFS rows."""
    cells = _joint(p) + breadth_first(p)
    for selection in SELECTIONS:
        environments = [p.environment(s, selection=selection) for s in p.seeds]
        cells += _cells(environments, _schedulers(p), p.rollouts)
    return cells


def replay_methods(p: Parameters) -> list[Cell]:
    """05, Table 2: replay methods x schedules."""
    cells = []
    for method in REPLAY_METHODS:
        environments = [p.environment(s, method=method) for s in p.seeds]
        cells += _cells(environments, _schedulers(p), p.rollouts)
    return cells


def tiny_memory(p: Parameters) -> list[Cell]:
    """06, Table 3: one sample per class; MCTS replays M of them, the baselines all."""
    cells = []
    for seed in p.seeds:
        small = p.environment(seed, samples_per_class=1)
        n_all = ((small.n_tasks or 0) - 1) * small.classes_per_task
        cells += [Cell(small, policy, p.rollouts) for policy in ("random", "mcts")]
        for method, label in (("agem", "A-GEM"), ("er-ring", "ER-Ring"), ("er", "Uniform")):
            everything = p.environment(seed, memory_size=n_all, samples_per_class=1, method=method)
            cells.append(Cell(everything, "ets", label=label))
    return cells


def searched(p: Parameters) -> list[Cell]:
    """08, first half: the schedules to transfer are MCTS's own, one per seed."""
    return [Cell(p.environment(s), "mcts", p.rollouts) for s in p.seeds]


def transfer(p: Parameters, schedules: dict[int, str]) -> list[Cell]:
    """08, Appendix C.8: each found schedule (by the seed it was found on) applied to new seeds."""
    cells = []
    for seed in p.profile.new_seeds:
        environment = p.environment(seed)
        cells += _cells([environment], ["random", "ets", presets.heuristic(p.dataset)], p.rollouts)
        cells += [
            Cell(environment, f"schedule:{path}", label=f"MCTS Seed {found_on}")
            for found_on, path in schedules.items()
        ]
    return cells


def transferred(p: Parameters) -> list[Cell]:
    """The same for the schedules that are in the store; none until every search is there."""
    try:
        found = {c.environment.seed: grid.result(c).schedule for c in searched(p)}
    except NotTrained:
        return []
    return transfer(p, {seed: path_text(s.compositions) for seed, s in found.items()})


def ets_heuristic(p: Parameters) -> list[Cell]:
    """08, Appendix C.9: ETS combined with Heur-GD, beside the others."""
    combined = f"ets+heur-gd:{presets.tau(p.dataset, 'ets+heur')}"
    policies = [*_schedulers(p), combined]
    return _cells([p.environment(s) for s in p.seeds], policies, p.rollouts)


# -- all datasets side by side (09_paper) ----------------------------------------------------------

STUDIES = {  # by what the coverage table calls them, which begins with the notebook
    "01 single task": single_task_replay,
    "02 search": schedule_search,
    "03 memory sizes": memory_sizes,
    "04 selection": memory_selection,
    "05 methods": replay_methods,
    "06 tiny memory": tiny_memory,
    "08 transfer": transferred,
    "08 ETS+heuristic": ets_heuristic,
}


def each_dataset(p: Parameters, names: Sequence[str] | None) -> list[Parameters]:
    """The parameters for every dataset named, or every one there are rows of.

    The paper's datasets are asked for with the paper's profile, others with the notebook's.
    """
    if names is None:
        known = list(presets.PAPER | presets.EMBEDDED)
        stored = {str(spec["dataset"]) for spec in Store().environments().values()}
        names = [name for name in known if name in stored and _at_hand(name)]
    return [p.on(name, "paper" if name in presets.PAPER else p.profile_name) for name in names]


def _at_hand(name: str) -> bool:
    try:
        dataset_facts(name)
    except data.DataError:
        return False
    return True


def there(study: Callable[[Parameters], list[Cell]], datasets: list[Parameters]) -> pd.DataFrame:
    """The rows of a study that are in the store, over datasets; nothing is trained."""
    frames = [grid.look_up(asked(study, q)) for q in datasets]
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def asked(study: Callable[[Parameters], list[Cell]], q: Parameters) -> list[Cell]:
    """The study's cells for a dataset, with the profile of the study's own notebook."""
    number = next(name[:2] for name, known in STUDIES.items() if known is study)
    return study(q.on(q.dataset, q.profile_name, number))


def coverage(datasets: list[Parameters]) -> pd.DataFrame:
    """How many of the asked-for runs there are, per study and dataset."""
    found = {}
    for q in datasets:
        column = {}
        for name, study in STUDIES.items():
            cells = asked(study, q)
            column[name] = f"{len(grid.look_up(cells))} of {len(cells)}"
        found[q.title] = column
    return pd.DataFrame(found)


def progress(q: Parameters, notebook: str) -> tuple[int, int]:
    """How many of a notebook's runs on this dataset are in the store, and of how many."""
    mine = [study for name, study in STUDIES.items() if name.startswith(notebook)]
    cells = [cell for study in mine for cell in asked(study, q)]
    return len(grid.look_up(cells)), len(cells)
