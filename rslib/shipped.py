"""Shipped results: their files, what the first lines say, and whether the rest is what was written.

A file is `<dataset>/<words for people>-<environment key>.csv`. Its first line is JSON: the number of
this layout ("schema"), the environment, under "data" the facts of the dataset that a study asks for
without training, and a digest of all of this and of the rows below. So what is shipped can be drawn
where the data are not; only training asks for them. Files from before the schema had a number are read
too: `<key>.csv`, the environment's fields at the top of the first line, no digest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SCHEMA = 1
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


class ResultsError(ValueError):
    """A results file that is not what was written, or that is newer than this program."""


def file_name(spec: Mapping[str, Any], key: str) -> str:
    """Such as er-uniform-M10-seed3-<key>.csv: what differs most often, then the key, which decides."""
    words = [spec["method"], spec["selection"]]
    words += [f"{spec['scenario']}il"] if spec["scenario"] != "task" else []
    words += [f"M{spec['memory_size']}"]
    words += [f"{spec['samples_per_class']}perclass"] if spec["samples_per_class"] else []
    words += [f"order{spec['class_order_seed']}"] if spec["class_order_seed"] else []
    return "-".join([*words, f"seed{spec['seed']}", key]) + ".csv"


def key_of(file: Path) -> str:
    """The environment key in a file's name, in the form of today or of before."""
    return file.stem.rpartition("-")[2]


def content(spec: Mapping[str, Any], facts: Facts | None, rows: str) -> str:
    """A whole results file from its rows as CSV text."""
    head = {"schema": SCHEMA, "environment": dict(spec)}
    head |= {"data": asdict(facts)} if facts else {}
    return "# " + _json(head | {"digest": _digest(head, rows)}) + "\n" + rows


def read_first_line(file: Path) -> tuple[dict[str, Any], Facts | None]:
    """The environment a file's rows belong to, and what is known of its data."""
    with open(file, newline="") as lines:
        head = _head(file, next(lines, ""))
    data = head.pop("data", None)
    return head.get("environment", head), Facts(**data) if data else None


def read_rows(file: Path) -> str:
    """The rows of a file as CSV text, once their digest has been compared."""
    with open(file, newline="") as lines:
        first, rows = next(lines, ""), lines.read()
    head = _head(file, first)
    if "schema" in head and head.pop("digest", None) != _digest(head, rows):
        raise ResultsError(f"{file} is not what was written: its digest differs")
    return rows


def _head(file: Path, line: str) -> dict[str, Any]:
    try:
        head = json.loads(line.removeprefix("# "))
    except json.JSONDecodeError as error:
        raise ResultsError(f"{file}: line 1 is not JSON: {error}") from None
    if not isinstance(head, dict) or head.get("schema", SCHEMA) > SCHEMA:
        raise ResultsError(
            f"{file} has a newer layout than {SCHEMA}: update this program to read it"
        )
    return head


def _digest(head: Mapping[str, Any], rows: str) -> str:
    return hashlib.sha256(f"{_json(head)}\n{rows}".encode()).hexdigest()


def about(dataset: str, spec: Mapping[str, Any] | None = None) -> Facts | None:
    """What the shipped results of a dataset say of it, and of the environment if that is there."""
    where = folder() / Path(dataset).stem
    known = _facts_in(where, dataset, where.stat().st_mtime_ns) if where.is_dir() else {}
    if spec is not None and (own := known.get(_json(spec))):
        return own
    other = next(iter(known.values()), None)
    return other and replace(other, class_sizes=())


@functools.lru_cache(maxsize=16)
def _facts_in(where: Path, dataset: str, changed: int) -> dict[str, Facts]:
    lines = []
    for file in sorted(where.glob("*.csv")):
        with contextlib.suppress(ResultsError):  # said when its rows are asked for
            lines.append(read_first_line(file))
    # A user's file may have the name of a dataset, and then its rows are in the same folder.
    return {_json(spec): facts for spec, facts in lines if facts and facts.name == dataset}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
