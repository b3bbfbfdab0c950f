"""Rows of results as a table wants them: checked, in the paper's order, named in its words.

What `rslib.tables` needs for every kind of table: an error for rows that would be averaged by
accident, captions made from what the rows say, and the order and names of a table's lines.
"""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from rslib.show import published

_NAMES = {
    "dataset": published.dataset_name,
    "selection": lambda v: published.SELECTIONS.get(v, v),
    "replay": lambda v: published.REPLAY_METHODS.get(v, v),
    "scenario": lambda v: published.SCENARIOS.get(v, v),
    "memory_size": lambda v: f"M = {v:.0f}",
}
HEADS = {"selection": "Selection", "replay": "Replay", "label": "Schedule", "dataset": "Dataset"}
HEADS |= {"memory_size": "Memory", "scenario": "Scenario", "comparison": "Comparison"}
_METHOD_ORDER = ["Joint", "Fine-tuning", "BFS", "Random", "A-GEM", "ER-Ring", "Uniform", "ETS"]
_METHOD_ORDER += [e + h for e in ("", "ETS+") for h in ("Heur-GD", "Heur-LD", "Heur-AT")]
_METHOD_ORDER += ["DQN", "A2C", "Random-best", "MCTS"]


def checked(rows, keys, metrics, over) -> pd.DataFrame:
    """The rows, or an error: what is missing, or which rows would be averaged by accident."""
    missing = [c for c in [*keys, *metrics, *over] if c not in rows]
    if missing:
        raise ValueError(f"result rows lack the columns {missing}; they have {list(rows.columns)}")
    if not len(rows):
        raise ValueError("no result rows: run or load the experiment first")
    twice = rows[rows.duplicated([*keys, *over], keep=False)]
    if len(twice):
        key, same = next(iter(twice.groupby([*keys, *over], sort=False, dropna=False)))
        settings = [c for c in rows if same[c].dtype.kind not in "fb" or c == "memory_size"]
        differ = [c for c in settings if same[c].astype(str).nunique() > 1]
        raise ValueError(
            f"{len(same)} rows for the one run {key}, which differ in {differ or 'numbers only'}: "
            "filter them, or name the column in the keys"
        )
    if "converged" in rows:  # whatever number a failed run left is not a result
        failed = ~rows["converged"].astype(bool)
        rows = rows.assign(**{m: rows[m].mask(failed) for m in metrics})
    return rows


def caption(rows: pd.DataFrame, what: str, asked: int = 0) -> str:
    """`what`, then what the rows say: dataset, subset, scenario, M, seeds, rollouts; and where fewer
    runs are there than were `asked` for, how many."""
    names, subsets = [], []
    for dataset, part in rows.groupby("dataset", sort=False):
        names.append(published.dataset_name(str(dataset)))
        subsets.append(", ".join(_distinct(part, "subset")))
    if len(names) > 1 and len(set(subsets)) == 1 and subsets[0]:
        facts = [f"{', '.join(names)} (each: {subsets[0]})"]
    else:
        facts = [", ".join(f"{n} ({s})" if s else n for n, s in zip(names, subsets, strict=True))]
    facts += [published.SCENARIOS.get(s, s) for s in _distinct(rows, "scenario")]
    sizes = [s for s in _distinct(rows, "memory_size") if s > 0]
    if sizes:
        facts.append("M = " + _listed(sizes))
    seeds = _distinct(rows, "seed")
    if seeds:
        noun = "seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
        facts.append(f"{noun} ({_listed(seeds)})" if len(seeds) > 1 else f"{noun} {seeds[0]:.0f}")
    tried = rows[rows["label"] != "BFS"] if "label" in rows else rows  # BFS tries all there are
    rollouts = _distinct(tried, "rollouts")
    if rollouts:
        facts.append(f"{_listed(rollouts)} rollout" + ("s" if rollouts != [1] else ""))
    if len(rows) < asked:
        facts.append(f"{len(rows)} of {asked} runs, the others were not run")
    return f"{what.rstrip('. ')}. " + "; ".join(map(str, facts)) + "."


def joined(text: str, notes: Iterable[str]) -> str:
    sentence = "; ".join(notes)
    return f"{text.rstrip()} {sentence[0].upper()}{sentence[1:]}." if sentence else text


def ordered_index(rows, row_keys) -> list[tuple]:
    """Groups together as they first come, methods in the paper's order (bounds, baselines, ours)."""
    keys = grouped(tuples(rows, row_keys))
    groups = {g: i for i, g in enumerate(dict.fromkeys(k[:-1] for k in keys))}
    order = {m: i for i, m in enumerate(_METHOD_ORDER)}
    return sorted(keys, key=lambda k: (groups[k[:-1]], order.get(k[-1], len(order) - 1.5)))


def grouped(keys: Iterable[tuple]) -> list[tuple]:
    """Distinct keys, equal beginnings side by side, otherwise in order of appearance."""
    keys = list(dict.fromkeys(keys))
    first: dict[tuple, int] = {}
    for i, key in enumerate(keys):
        for length in range(1, len(key) + 1):
            first.setdefault(key[:length], i)
    return sorted(keys, key=lambda k: [first[k[:n]] for n in range(1, len(k) + 1)])


def with_index(frame, index, keys) -> pd.DataFrame:
    names = [tuple(str(named(k, v)) for k, v in zip(keys, row, strict=True)) for row in index]
    heads = [HEADS.get(k, k) for k in keys]
    if len(keys) == 1:
        frame.index = pd.Index([n[0] for n in names], name=heads[0])
    else:
        frame.index = pd.MultiIndex.from_tuples(names, names=heads)
    return frame


def named(key: str, value: Any) -> Any:
    return _NAMES[key](value) if key in _NAMES and pd.notna(value) else value


def _distinct(rows: pd.DataFrame, column: str) -> list:
    if column not in rows:
        return []
    found = rows[column].dropna().drop_duplicates().tolist()
    return sorted(found) if found and not isinstance(found[0], str) else found


def _listed(numbers: Sequence[float]) -> str:
    """1, 2, 3, 4, 5 as 1-5; others one by one."""
    whole = [int(n) for n in numbers]
    if len(whole) > 2 and whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}–{whole[-1]}"
    return ", ".join(map(str, whole))


def as_tuple(key: Any) -> tuple:
    return key if isinstance(key, tuple) else (key,)


def tuples(frame: pd.DataFrame, keys: Sequence[str]) -> Iterable[tuple]:
    return frame[list(keys)].itertuples(index=False, name=None)
