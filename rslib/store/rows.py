"""Rows, what is known of one node of a schedule tree; and the files in which rows are shipped.

A results file is `<dataset>/<words for people>-<environment key>.csv`. Its first line is JSON: the
number of this layout ("schema"), the environment, under "data" the facts of its dataset that a lookup
needs, and a digest of all of this and of the rows below. So shipped results are drawn where the data are
not; only training asks for them. Files from before the schema had a number are read too: `<key>.csv`,
the environment's fields at the top of the first line, no digest. Every row is checked for what can be
seen without a digest: its columns, its range, its tasks, and that its path comes once.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rslib import files
from rslib.errors import UserError
from rslib.schedule import UNTRAINED

SCHEMA = 2  # 1 had no `code`


class ResultsError(UserError, ValueError):
    """A results file that is not what was written, or that is newer than this program."""


@functools.cache
def made_with() -> tuple[str, str, str]:
    """The torch version, and what rounds: the CPU instructions, with convolutions the processor too.

    Convolutions are oneDNN's. It takes the best instructions that the CPU has, whatever
    ATEN_CPU_CAPABILITY says (with AVX2 alone a step would take half as long again), and cuts its sums
    to the CPU's caches: an AMD and an Intel processor with the same instructions give other bits.
    """
    import torch  # here: parameters of a notebook are checked before torch is loaded

    cpu, most = torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")
    own = f"{processor()}, {most.upper()}" if most else processor()
    return torch.__version__.partition("+")[0], cpu, f"{cpu} (convolutions on {own})"


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor by its maker, family and model; its marketing name may be any of many."""
    lines = cpuinfo.read_text().partition("\n\n")[0].splitlines() if cpuinfo.exists() else []
    about = {name.strip(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
    names = [about.get(name) for name in ("vendor_id", "cpu family", "model")]
    return " ".join(filter(None, names)) or platform.machine()


def code(by_sklearn: bool) -> str:
    """Name the code that trains now; with scikit-learn, which no key has, where it chooses samples."""
    own = f"rslib {files.revision()}"
    return f"{own}, scikit-learn {version('scikit-learn')}" if by_sklearn else own


@dataclass(frozen=True)
class Row:
    """Accuracies of every task at one node; NaN where unseen (validation) or diverged."""

    val: np.ndarray  # (T,)
    test: np.ndarray  # (T,)
    seconds: float = float("nan")
    torch: str = field(default_factory=lambda: made_with()[0])
    cpu: str = field(default_factory=lambda: made_with()[1])
    code: str = ""  # rslib's revision, and scikit-learn's version where it chose; "": from before

    def digest(self, key: str, path: str) -> str:
        """Compute a digest of the row and its place, which moves with any bit of either."""
        about = [key, path, repr(float(self.seconds)), self.torch, self.cpu, self.code]
        content = "\n".join(about).encode() + self.val.tobytes() + self.test.tobytes()
        return hashlib.sha256(content).hexdigest()[:32]

    def made_with(self) -> str:
        """Name the torch, the CPU capability and the code that trained the row."""
        return f"torch {self.torch} with {self.cpu}" + (f", {self.code}" if self.code else "")

    def same_machine(self) -> bool:
        """Made with this torch and these instructions: training again gives the same bits."""
        here, *instructions = made_with()
        return self.torch == here and self.cpu in instructions

    def same(self, other: Row) -> bool:
        """Bit for bit the same accuracies."""
        return self.val.tobytes() == other.val.tobytes() and (
            self.test.tobytes() == other.test.tobytes()
        )


def n_learned(path: str) -> int:
    """Count the tasks that the network at the end of a path has learned."""
    return 0 if path == UNTRAINED else path.count("/") + 1 + (path != "")


def faults(rows: Mapping[str, Row], n_tasks: int) -> dict[str, str]:
    """Find the rows that no training gives, and say what is wrong with each of them, by path.

    Accuracies are fractions: validation of the tasks learned, test of all tasks, or NaN everywhere after
    training has diverged. All rows are compared at once, because a notebook reads tens of thousands.
    """
    wrong = {
        path: f"has {len(row.val)} and {len(row.test)} accuracies of {n_tasks} tasks"
        for path, row in rows.items()
        if not len(row.val) == len(row.test) == n_tasks
    }
    paths = [path for path in rows if path not in wrong]
    if not paths:
        return wrong
    val, test = (np.array([getattr(rows[p], kind) for p in paths]) for kind in ("val", "test"))
    outside: np.ndarray = np.any((val < 0) | (val > 1) | (test < 0) | (test > 1), axis=1)
    learned = np.array([n_learned(p) for p in paths])
    as_learned = np.isnan(val) == (np.arange(n_tasks) >= learned[:, None])
    known = as_learned.all(axis=1) & ~np.isnan(test).any(axis=1)
    diverged = np.isnan(val).all(axis=1) & np.isnan(test).all(axis=1)
    for i in np.flatnonzero(outside | ~(known | diverged)):
        lacks = f"lacks accuracies, or has accuracies beyond the {learned[i]} tasks learned"
        wrong[paths[i]] = "has an accuracy outside [0, 1]" if outside[i] else lacks
    return wrong


def columns(n_tasks: int) -> list[str]:
    tasks = [f"{kind}_{i}" for kind in ("val", "test") for i in range(1, n_tasks + 1)]
    return ["path", *tasks, "seconds", "torch", "cpu", "code"]


def as_csv(rows: Mapping[str, Row]) -> str:
    """Rows by path text as CSV, sorted: same rows, same bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns(len(next(iter(rows.values())).test)))
    for path in sorted(rows, key=lambda text: (text != UNTRAINED, text.count("/"), text)):
        row = rows[path]
        numbers = ["" if np.isnan(a) else repr(float(a)) for a in (*row.val, *row.test)]
        writer.writerow([path, *numbers, f"{row.seconds:.3f}", row.torch, row.cpu, row.code])
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
    return f"{words(spec)}-{key}.csv"


def words(spec: Mapping[str, Any]) -> str:
    """Name an environment within its dataset, such as er-uniform-M10-seed3."""
    parts = [spec["method"], spec["selection"]]
    parts += [f"{spec['scenario']}il"] if spec["scenario"] != "task" else []
    parts += [f"M{spec['memory_size']}"]
    parts += [f"{spec['samples_per_class']}perclass"] if spec["samples_per_class"] else []
    parts += [f"order{spec['class_order_seed']}"] if spec["class_order_seed"] else []
    return "-".join([*parts, f"seed{spec['seed']}"])


def key_of(file: Path) -> str:
    """The environment key in a file's name, in the form of today or of before."""
    return file.stem.rpartition("-")[2]


def file_text(spec: Mapping[str, Any], facts: Facts | None, rows: str) -> str:
    """A whole results file, from its rows as CSV text."""
    head = {"schema": SCHEMA, "environment": dict(spec)}
    head |= {"data": asdict(facts)} if facts else {}
    return "# " + _json(head | {"digest": _digest(head, rows.encode())}) + "\n" + rows


def read_first_line(file: Path) -> tuple[dict[str, Any], Facts | None]:
    """The environment a file's rows belong to, and what is known of its data."""
    head, rows = _parts(file)
    _compare_digest(file, head, rows)
    try:
        return _environment(file, head), Facts(**head["data"]) if head.get("data") else None
    except TypeError as error:
        raise ResultsError(f"{file}: line 1: {error}") from None


def read_rows(file: Path) -> dict[str, Row]:
    """The rows of a results file by path text; refused with the first line that is wrong."""
    head, body = _parts(file)
    n = _environment(file, head)["n_tasks"]

    def refuse(line: int, why: str) -> ResultsError:
        return ResultsError(f"{file}: line {line} {why}; the file is not used")

    try:
        header, *lines = list(csv.reader(io.StringIO(body.decode()))) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultsError(f"{file} cannot be read to its end: {error}") from None
    if header == columns(n)[:-1]:
        header, lines = columns(n), [[*line, ""] for line in lines]
    if header != columns(n):
        raise refuse(2, f"does not name the columns of {n} tasks")
    about, numbers = {}, []
    for number, line in enumerate(lines, start=3):
        if len(line) != len(header):
            raise refuse(number, f"has {len(line)} cells instead of {len(header)}")
        path, *cells, seconds, torch_version, cpu, code = line
        if path in about:
            raise refuse(number, f"is a second row of the path {path!r}")
        try:
            numbers += [float(cell) if cell else np.nan for cell in cells]
            about[path] = float(seconds), torch_version, cpu, code
        except ValueError as error:
            raise refuse(number, f"has a cell that is no number: {error}") from None
    accuracies = np.array(numbers).reshape(len(about), 2 * n)
    rows = {p: Row(a[:n], a[n:], *about[p]) for p, a in zip(about, accuracies, strict=True)}
    for path, why in faults(rows, n).items():
        raise refuse(3 + list(rows).index(path), why)
    _compare_digest(file, head, body)
    return rows


def count_rows(file: Path) -> int:
    """Count the rows of a results file by its lines; nothing is checked."""
    return file.read_bytes().count(b"\n") - 2


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


def _parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """The first line of a results file, and the bytes below it."""
    try:
        line, _, rows = file.read_bytes().partition(b"\n")
    except OSError as error:  # a folder, a link to nothing
        raise ResultsError(f"{file} cannot be read: {error.strerror}") from None
    try:
        head = json.loads(line.removeprefix(b"# "))
        newer = head.get("schema", SCHEMA) > SCHEMA
    except (ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"{file}: line 1 is not JSON of a results file: {error}") from None
    if newer:
        raise ResultsError(
            f"{file} has a newer layout than {SCHEMA}: update this program to read it"
        )
    return head, rows


def _environment(file: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    spec = head.get("environment", {k: v for k, v in head.items() if k != "data"})
    if not isinstance(spec, dict) or not isinstance(spec.get("n_tasks"), int):
        raise ResultsError(f"{file}: line 1 names no environment; the file is not used")
    return spec


def _compare_digest(file: Path, head: Mapping[str, Any], rows: bytes) -> None:
    rest = {name: value for name, value in head.items() if name != "digest"}
    if {"schema", "digest", "environment"} & set(head) and head.get("digest") != _digest(
        rest, rows
    ):
        raise ResultsError(f"{file} is not what was written: its digest differs")


def _digest(head: Mapping[str, Any], rows: bytes) -> str:
    return hashlib.sha256(_json(head).encode() + b"\n" + rows).hexdigest()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
