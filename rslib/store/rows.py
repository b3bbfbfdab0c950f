"""Rows, what is known of one node of a schedule tree; and the files in which rows are shipped.

A results file is `<dataset>/<words for people>-<environment key>.csv`. Its first line is JSON: the
number of this layout ("schema"), the environment, under "data" the facts of its dataset that a lookup
needs, and a digest of all of this and of the rows below. So shipped results are drawn where the data are
not; only training asks for them. Files from before the schema had a number are read too: `<key>.csv`,
the environment's fields at the top of the first line, no digest.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rslib import files
from rslib.errors import UserError
from rslib.schedule import UNTRAINED

SCHEMA = 1


class ResultsError(UserError, ValueError):
    """A results file that is not what was written, or that is newer than this program."""


@functools.cache
def made_with() -> tuple[str, str]:
    """The torch version and the CPU capability in force (AVX2, say): others may round otherwise."""
    import torch  # here: parameters of a notebook are checked before torch is loaded

    return torch.__version__.partition("+")[0], torch.backends.cpu.get_cpu_capability()


@dataclass(frozen=True)
class Row:
    """Accuracies of every task at one node; NaN where unseen (validation) or diverged."""

    val: np.ndarray  # (T,)
    test: np.ndarray  # (T,)
    seconds: float = float("nan")
    torch: str = field(default_factory=lambda: made_with()[0])
    cpu: str = field(default_factory=lambda: made_with()[1])

    @property
    def plausible(self) -> bool:
        """Accuracies are fractions; a test row is known as a whole or (diverged) not at all."""
        known = np.concatenate([self.val, self.test])
        known = known[~np.isnan(known)]
        return bool(np.all((known >= 0) & (known <= 1)) and len(set(np.isnan(self.test))) == 1)

    def same_machine(self) -> bool:
        """Made with this torch and CPU capability: training again gives the same bits."""
        return (self.torch, self.cpu) == made_with()

    def same(self, other: Row) -> bool:
        """Bit for bit the same accuracies."""
        return self.val.tobytes() == other.val.tobytes() and (
            self.test.tobytes() == other.test.tobytes()
        )


def as_csv(rows: Mapping[str, Row]) -> str:
    """Rows by path text as CSV, sorted: same rows, same bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    n = len(next(iter(rows.values())).test)
    columns = [f"{kind}_{i}" for kind in ("val", "test") for i in range(1, n + 1)]
    writer.writerow(["path", *columns, "seconds", "torch", "cpu"])
    for path in sorted(rows, key=lambda text: (text != UNTRAINED, text.count("/"), text)):
        row = rows[path]
        numbers = ["" if np.isnan(a) else repr(float(a)) for a in (*row.val, *row.test)]
        writer.writerow([path, *numbers, f"{row.seconds:.3f}", row.torch, row.cpu])
    return out.getvalue()


# -- results files ---------------------------------------------------------------------------------


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


def results_files(folder: Path) -> list[Path]:
    """The files of rows; other CSVs, such as those of results/searches, end with no key."""
    return [f for f in sorted(folder.glob("*/*.csv")) if re.fullmatch("[0-9a-f]{20}", key_of(f))]


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


def file_text(spec: Mapping[str, Any], facts: Facts | None, rows: str) -> str:
    """A whole results file, from its rows as CSV text."""
    head = {"schema": SCHEMA, "environment": dict(spec)}
    head |= {"data": asdict(facts)} if facts else {}
    return "# " + _json(head | {"digest": _digest(head, rows)}) + "\n" + rows


def read_first_line(file: Path) -> tuple[dict[str, Any], Facts | None]:
    """The environment a file's rows belong to, and what is known of its data."""
    with open(file, newline="") as lines:
        head = _head(file, next(lines, ""))
    data = head.pop("data", None)
    return head.get("environment", head), Facts(**data) if data else None


def read_body(file: Path) -> str:
    """The rows of a file as CSV text, once their digest has been compared."""
    with open(file, newline="") as lines:
        first, rows = next(lines, ""), lines.read()
    head = _head(file, first)
    if "schema" in head and head.pop("digest", None) != _digest(head, rows):
        raise ResultsError(f"{file} is not what was written: its digest differs")
    return rows


def read_rows(file: Path) -> dict[str, Row]:
    """The rows of a results file by path text."""
    head, *lines = csv.reader(io.StringIO(read_body(file)))
    first, n = head.index("val_1"), sum(name.startswith("test_") for name in head)
    rows = {}
    for line in lines:
        numbers = np.array([cell or "nan" for cell in line[first : first + 2 * n]], dtype=float)
        *_, seconds, torch_version, cpu = line
        rows[line[0]] = Row(numbers[:n], numbers[n:], float(seconds), torch_version, cpu)
    return rows


def shipped_facts(dataset: str, spec: Mapping[str, Any] | None = None) -> Facts | None:
    """What the shipped results say of a dataset, and of an environment if they have it."""
    folder = files.results() / Path(dataset).stem
    known = _facts_in(folder, dataset, folder.stat().st_mtime_ns) if folder.is_dir() else {}
    if spec is not None and (own := known.get(_json(spec))):
        return own
    other = next(iter(known.values()), None)
    return other and replace(other, class_sizes=())


@functools.lru_cache(maxsize=16)
def _facts_in(folder: Path, dataset: str, changed: int) -> dict[str, Facts]:
    lines = []
    for file in sorted(folder.glob("*.csv")):
        with contextlib.suppress(ResultsError):  # reported when its rows are read
            lines.append(read_first_line(file))
    # A user's file may have the name of a dataset, and then its rows are in the same folder.
    return {_json(spec): facts for spec, facts in lines if facts and facts.name == dataset}


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


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
