"""Rows: what is known of one node of a schedule tree, and rows as CSV files.

A row is filed under an environment key and a path; the path is written as the compositions along it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rslib.schedule import Composition
from rslib.shipped import read_rows

Path_ = tuple[Composition, ...]
UNTRAINED = "-"  # the path text of the network before task 1; "" is the network after task 1

TORCH = torch.__version__.partition("+")[0]
CPU = torch.backends.cpu.get_cpu_capability()  # e.g. AVX2: another one may round otherwise


def path_text(path: Path_) -> str:
    return "/".join(",".join(map(str, composition)) for composition in path)


def path_from_text(text: str) -> Path_:
    if not text or text == UNTRAINED:
        return ()
    return tuple(tuple(int(n) for n in part.split(",")) for part in text.split("/"))


@dataclass(frozen=True)
class Row:
    """Accuracies of every task at one node; NaN where unseen (validation) or diverged."""

    val: np.ndarray  # (T,)
    test: np.ndarray  # (T,)
    seconds: float = float("nan")
    torch: str = TORCH
    cpu: str = CPU

    @property
    def plausible(self) -> bool:
        """Accuracies are fractions; a test row is known as a whole or (diverged) not at all."""
        known = np.concatenate([self.val, self.test])
        known = known[~np.isnan(known)]
        return bool(np.all((known >= 0) & (known <= 1)) and len(set(np.isnan(self.test))) == 1)

    def same_machine(self) -> bool:
        """Made with this torch on a CPU like this one: training again gives the same bits."""
        return (self.torch, self.cpu) == (TORCH, CPU)

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


def read_csv(file: Path) -> dict[str, Row]:
    """The rows of a shipped file by path text."""
    reader = csv.DictReader(io.StringIO(read_rows(file)))
    n = sum(name.startswith("test_") for name in reader.fieldnames or [])
    return {line["path"]: _csv_row(line, n) for line in reader}


def _csv_row(line: dict[str, str], n: int) -> Row:
    def numbers(kind: str) -> np.ndarray:
        return np.array([float(line[f"{kind}_{i}"] or "nan") for i in range(1, n + 1)])

    seconds = float(line["seconds"])
    return Row(numbers("val"), numbers("test"), seconds, line["torch"], line["cpu"])
