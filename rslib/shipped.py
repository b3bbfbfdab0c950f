"""Shipped results: where their files are, and what their first lines say.

A file is `<dataset>/<environment key>.csv`. Its first line is the environment, and under "data" the
facts of the dataset that a study asks for without training. So what is shipped can be drawn where
the data are not; only training asks for them.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Facts:
    """A dataset without its arrays; and of one environment, how many training samples it takes."""

    name: str
    fingerprint: str
    n_classes: int
    provenance: str
    subset: str | None
    class_sizes: tuple[tuple[int, ...], ...] = ()  # of every class of every task; empty: not known

    def __post_init__(self):
        object.__setattr__(self, "class_sizes", tuple(map(tuple, self.class_sizes)))


def folder() -> Path:
    """`$RSLIB_RESULTS`, else `results/` of the checkout."""
    return Path(os.environ.get("RSLIB_RESULTS") or SHIPPED)


def files(where: Path) -> list[Path]:
    return sorted(where.glob("*/*.csv"))


def first_line(spec: Mapping[str, Any], facts: Facts | None) -> str:
    """The first line of a result file."""
    data = {"data": asdict(facts)} if facts else {}
    return "# " + json.dumps({**spec, **data}, sort_keys=True) + "\n"


def read_first_line(file: Path) -> tuple[dict[str, Any], Facts | None]:
    """The environment a file's rows belong to, and what is known of its data."""
    with open(file) as lines:
        spec = json.loads(next(lines).removeprefix("# "))
    data = spec.pop("data", None)
    return spec, Facts(**data) if data else None


def about(dataset: str, spec: Mapping[str, Any] | None = None) -> Facts | None:
    """What the shipped results of a dataset say of it, and of the environment if that is there."""
    where = folder() / Path(dataset).stem
    known = _facts_in(where, dataset, where.stat().st_mtime_ns) if where.is_dir() else {}
    if spec is not None and (own := known.get(_text(spec))):
        return own
    other = next(iter(known.values()), None)
    return other and replace(other, class_sizes=())


@functools.lru_cache(maxsize=16)
def _facts_in(where: Path, dataset: str, changed: int) -> dict[str, Facts]:
    lines = map(read_first_line, sorted(where.glob("*.csv")))
    # A user's file may have the name of a dataset, and then its rows are in the same folder.
    return {_text(spec): facts for spec, facts in lines if facts and facts.name == dataset}


def _text(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)
