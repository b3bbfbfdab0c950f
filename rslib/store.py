"""The store: result rows in SQLite, snapshots of inner nodes in files, shipped rows below.

A row is one node of a schedule tree: (environment key, path) -> accuracies after its last task. Rows
are small, exact and never change, so several processes may write at once: the first wins and the
others wrote the same. Order of writing is snapshot file (temporary name, fsync, rename), then row: a
process killed anywhere leaves nothing half done. Below the database lies a read-only layer of CSV
files (`results/` in a checkout), so that shipped results are used instead of trained again.

`python -m rslib.store` lists, exports, prunes and checks.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import sqlite3
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rslib.environment import Environment
from rslib.schedule import Composition

Path_ = tuple[Composition, ...]
UNTRAINED = "-"  # the path text of the network before task 1; "" is the network after task 1

TORCH = torch.__version__.partition("+")[0]
CPU = torch.backends.cpu.get_cpu_capability()  # e.g. AVX2: another one may round otherwise
SHIPPED = Path(__file__).resolve().parents[1] / "results"  # or `$RSLIB_RESULTS`
CHECKPOINT_LIMIT = int(float(os.environ.get("RSLIB_CHECKPOINT_GB", 20)) * 2**30)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS environments (key TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    key TEXT NOT NULL, path TEXT NOT NULL, val BLOB NOT NULL, test BLOB NOT NULL,
    seconds REAL, torch TEXT, cpu TEXT, PRIMARY KEY (key, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
    key TEXT NOT NULL, path TEXT NOT NULL, file TEXT NOT NULL, bytes INTEGER NOT NULL,
    used REAL NOT NULL, PRIMARY KEY (key, path)) WITHOUT ROWID;
"""


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

    def same(self, other: Row) -> bool:
        """Bit for bit the same accuracies."""
        return self.val.tobytes() == other.val.tobytes() and (
            self.test.tobytes() == other.test.tobytes()
        )


def default_folder() -> Path:
    """`$RSLIB_STORE`, else the user's cache folder: results outlive a checkout."""
    if os.environ.get("RSLIB_STORE"):
        return Path(os.environ["RSLIB_STORE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rslib"


class Store:
    """Rows and snapshots in a folder. Cheap to open; safe from several processes at once."""

    def __init__(self, folder: str | Path | None = None, shipped: str | Path | None = SHIPPED):
        # Absolute: workers that are handed a store may stand in another folder.
        self.folder = (Path(folder) if folder is not None else default_folder()).absolute()
        if shipped == SHIPPED:
            shipped = os.environ.get("RSLIB_RESULTS") or SHIPPED
        self.shipped = Path(shipped).absolute() if shipped is not None else None
        (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._db = _connect(self.folder / "rows.sqlite")
        with self._write() as db:
            for statement in _SCHEMA.strip().split(";\n"):
                db.execute(statement)
        self._shipped: dict[str, dict[str, Row]] = {}

    def close(self) -> None:
        self._db.close()

    def __reduce__(self):
        return Store, (self.folder, self.shipped)  # workers open their own connection

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that takes the write lock at its start, so that waiting works."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:  # Ctrl-C too: an open transaction would lock everybody out
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # -- rows --------------------------------------------------------------------------------------

    def rows(self, key: str) -> dict[str, Row]:
        """All rows of an environment by path text, shipped ones included."""
        found = dict(self.shipped_rows(key))
        query = "SELECT path, val, test, seconds, torch, cpu FROM rows WHERE key = ?"
        for path, *values in self._db.execute(query, (key,)):
            found[path] = _row(*values)
        return found

    def row(self, key: str, path: str) -> Row | None:
        query = "SELECT val, test, seconds, torch, cpu FROM rows WHERE key = ? AND path = ?"
        values = self._db.execute(query, (key, path)).fetchone()
        return _row(*values) if values else self.shipped_rows(key).get(path)

    def put(self, environment: Environment, path: str, row: Row) -> None:
        values = (row.val.tobytes(), row.test.tobytes(), row.seconds, row.torch, row.cpu)
        with self._write() as db:
            self._put_environment(db, environment)
            db.execute(
                "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)",
                (environment.key, path, *values),
            )

    @staticmethod
    def _put_environment(db: sqlite3.Connection, environment: Environment) -> None:
        spec = json.dumps(environment.spec(), sort_keys=True)
        db.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (environment.key, spec))

    def environments(self) -> dict[str, dict[str, Any]]:
        """The specification of every environment there is a row of, by key."""
        specs = {}
        for file in self._shipped_files():
            specs[file.stem] = read_spec(file)
        for key, spec in self._db.execute("SELECT key, spec FROM environments"):
            specs[key] = json.loads(spec)
        return specs

    def sizes(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Per environment: own rows; snapshots and their bytes."""
        rows = self._db.execute("SELECT key, COUNT(*) FROM rows GROUP BY key")
        files = self._db.execute("SELECT key, COUNT(*), SUM(bytes) FROM checkpoints GROUP BY key")
        return dict(rows.fetchall()), {key: (n, size) for key, n, size in files}

    # -- the shipped layer -------------------------------------------------------------------------

    def _shipped_files(self) -> list[Path]:
        return sorted(self.shipped.glob("*/*.csv")) if self.shipped else []

    def shipped_rows(self, key: str) -> dict[str, Row]:
        if key not in self._shipped:
            files = list(self.shipped.glob(f"*/{key}.csv")) if self.shipped else []
            self._shipped[key] = read_csv(files[0]) if files else {}
        return self._shipped[key]

    def export(self, key: str, folder: str | Path) -> Path:
        """Write an environment's rows as `folder/<dataset>/<key>.csv`, sorted: same rows, same bytes."""
        rows = self.rows(key)
        if not rows:
            raise ValueError(f"the store has no rows of environment {key!r}")
        spec = self.environments()[key]
        n = len(next(iter(rows.values())).test)
        out = io.StringIO()
        out.write("# " + json.dumps(spec, sort_keys=True) + "\n")
        writer = csv.writer(out, lineterminator="\n")
        columns = [f"{kind}_{i}" for kind in ("val", "test") for i in range(1, n + 1)]
        writer.writerow(["path", *columns, "seconds", "torch", "cpu"])
        for path in sorted(rows, key=lambda text: (text != UNTRAINED, text.count("/"), text)):
            row = rows[path]
            numbers = ["" if np.isnan(a) else repr(float(a)) for a in (*row.val, *row.test)]
            writer.writerow([path, *numbers, f"{row.seconds:.3f}", row.torch, row.cpu])
        name = Path(str(spec["dataset"])).stem
        target = Path(folder) / name / f"{key}.csv"
        write_atomically(target, out.getvalue().encode())
        return target

    # -- snapshots ---------------------------------------------------------------------------------

    def save_checkpoint(self, environment: Environment, path: str, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        name = f"{hashlib.sha256(f'{environment.key} {path}'.encode()).hexdigest()[:32]}.pt"
        write_atomically(self.folder / "checkpoints" / name, buffer.getvalue())
        with self._write() as db:
            self._put_environment(db, environment)
            values = (environment.key, path, name, buffer.tell(), time.time())
            db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)", values)
        self._keep_within(CHECKPOINT_LIMIT)

    def load_checkpoint(self, key: str, path: str) -> dict[str, Any] | None:
        """The snapshot, or None where there is none or its file is gone or damaged."""
        query = "SELECT file FROM checkpoints WHERE key = ? AND path = ?"
        found = self._db.execute(query, (key, path)).fetchone()
        if not found:
            return None
        try:
            state = _read_checkpoint(self.folder / "checkpoints" / found[0])
        except Exception:  # torch raises many kinds; whatever it was, the prefix is trained again
            self._drop([(key, path, found[0])])
            return None
        with self._write() as db:
            stamp = "UPDATE checkpoints SET used = ? WHERE key = ? AND path = ?"
            db.execute(stamp, (time.time(), key, path))
        return state

    def checkpoint_bytes(self) -> int:
        return self._db.execute("SELECT COALESCE(SUM(bytes), 0) FROM checkpoints").fetchone()[0]

    def _keep_within(self, limit: int) -> None:
        """Drop the snapshots longest unused; a walk that needs one trains its prefix again."""
        excess = self.checkpoint_bytes() - limit
        query = "SELECT key, path, file, bytes FROM checkpoints ORDER BY used"
        old = []
        for *which, size in self._db.execute(query):
            if excess <= 0:
                break
            old.append(tuple(which))
            excess -= size
        self._drop(old)

    def _drop(self, checkpoints: list[tuple[str, str, str]]) -> None:
        if not checkpoints:
            return
        with self._write() as db:
            query = "DELETE FROM checkpoints WHERE key = ? AND path = ?"
            db.executemany(query, [which[:2] for which in checkpoints])
        for _, _, name in checkpoints:
            (self.folder / "checkpoints" / name).unlink(missing_ok=True)

    def prune(self, limit: int = 0) -> int:
        """Drop snapshots until at most `limit` bytes are left, and files no row knows."""
        before = self.checkpoint_bytes()
        self._keep_within(limit)
        known = {name for (name,) in self._db.execute("SELECT file FROM checkpoints")}
        for file in (self.folder / "checkpoints").iterdir():
            # A young unknown file may be another process's, on its way to its row.
            if file.name not in known and time.time() - file.stat().st_mtime > 3600:
                file.unlink(missing_ok=True)
        return before - self.checkpoint_bytes()

    def check(self) -> list[str]:
        """What is wrong with the store: nothing, if it is as it should be."""
        trouble = [r for (r,) in self._db.execute("PRAGMA integrity_check") if r != "ok"]
        specs = self.environments()
        for key, path, val, test in self._db.execute("SELECT key, path, val, test FROM rows"):
            if key not in specs:
                trouble.append(f"row {key} {path!r}: no such environment")
            elif not len(val) == len(test) == 8 * specs[key]["n_tasks"]:
                trouble.append(f"row {key} {path!r}: {len(val)} and {len(test)} bytes")
            elif not _plausible(np.frombuffer(val), np.frombuffer(test)):
                trouble.append(f"row {key} {path!r}: accuracies {np.frombuffer(val + test)}")
        for key, path, name in self._db.execute("SELECT key, path, file FROM checkpoints"):
            try:
                _read_checkpoint(self.folder / "checkpoints" / name)
            except Exception as error:
                trouble.append(f"snapshot {name} of {key} {path!r}: {error}")
        return trouble


def _connect(file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(file, timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def _row(val: bytes, test: bytes, seconds: float | None, torch_version: str, cpu: str) -> Row:
    seconds = float("nan") if seconds is None else seconds  # SQLite keeps NaN as NULL
    return Row(np.frombuffer(val), np.frombuffer(test), seconds, torch_version, cpu)


def _plausible(val: np.ndarray, test: np.ndarray) -> bool:
    """Accuracies are fractions; a test row is known as a whole or (diverged) not at all."""
    known = np.concatenate([val, test])
    known = known[~np.isnan(known)]
    return bool(np.all((known >= 0) & (known <= 1)) and len(set(np.isnan(test))) == 1)


def _read_checkpoint(file: Path) -> dict[str, Any]:
    """A snapshot, or an error if a single bit of it has changed (torch itself does not look)."""
    content = io.BytesIO(file.read_bytes())
    damaged = zipfile.ZipFile(content).testzip()
    if damaged:
        raise ValueError(f"{damaged} does not have its checksum")
    content.seek(0)
    return torch.load(content, weights_only=True)


def read_csv(file: Path) -> dict[str, Row]:
    """The rows of a shipped file by path text."""
    with open(file, newline="") as lines:
        next(lines)  # the specification
        reader = csv.DictReader(lines)
        n = sum(name.startswith("test_") for name in reader.fieldnames or [])
        return {line["path"]: _csv_row(line, n) for line in reader}


def _csv_row(line: dict[str, str], n: int) -> Row:
    def numbers(kind: str) -> np.ndarray:
        return np.array([float(line[f"{kind}_{i}"] or "nan") for i in range(1, n + 1)])

    seconds = float(line["seconds"])
    return Row(numbers("val"), numbers("test"), seconds, line["torch"], line["cpu"])


def read_spec(file: Path) -> dict[str, Any]:
    with open(file) as lines:
        return json.loads(next(lines).removeprefix("# "))


def write_atomically(target: Path, content: bytes) -> None:
    """All of it or nothing, even if the machine stops in between."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    from rslib.store_cli import main

    sys.exit(main())
