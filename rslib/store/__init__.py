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
import hashlib
import io
import json
import os
import sqlite3
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rslib import files
from rslib.store.rows import (
    Facts,
    ResultsError,
    Row,
    as_csv,
    file_name,
    file_text,
    key_of,
    read_first_line,
    read_rows,
    results_files,
)

SHIPPED = "the results in results/"  # what a store lies above unless it is told otherwise
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


class Store:
    """Rows and snapshots in a folder. Cheap to open; safe from several processes at once."""

    def __init__(self, folder: str | Path | None = None, shipped: str | Path | None = SHIPPED):
        # Absolute: workers that are handed a store may stand in another folder.
        self.folder = (Path(folder) if folder is not None else files.store()).absolute()
        if shipped == SHIPPED:
            shipped = files.results()
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
        """All rows of an environment by path text, shipped rows included."""
        found = dict(self.shipped_rows(key))
        query = "SELECT path, val, test, seconds, torch, cpu FROM rows WHERE key = ?"
        for path, *values in self._db.execute(query, (key,)):
            found[path] = _row(*values)
        return found

    def row(self, key: str, path: str) -> Row | None:
        query = "SELECT val, test, seconds, torch, cpu FROM rows WHERE key = ? AND path = ?"
        values = self._db.execute(query, (key, path)).fetchone()
        return _row(*values) if values else self.shipped_rows(key).get(path)

    def put(self, key: str, spec: Mapping[str, Any], path: str, row: Row) -> None:
        """Keep a row. `spec` describes the environment, and under "data" what is known of its data."""
        values = (row.val.tobytes(), row.test.tobytes(), row.seconds, row.torch, row.cpu)
        with self._write() as db:
            self._put_environment(db, key, spec)
            db.execute(
                "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", (key, path, *values)
            )

    @staticmethod
    def _put_environment(db: sqlite3.Connection, key: str, spec: Mapping[str, Any]) -> None:
        text = json.dumps(spec, sort_keys=True)
        update = "ON CONFLICT (key) DO UPDATE SET spec = excluded.spec WHERE spec != excluded.spec"
        db.execute(f"INSERT INTO environments VALUES (?, ?) {update}", (key, text))

    def environments(self) -> dict[str, dict[str, Any]]:
        """The specification of every environment the store has a row of, by key."""
        return {key: spec for key, (spec, _) in self._known().items()}

    def _known(self) -> dict[str, tuple[dict[str, Any], Facts | None]]:
        """By key: the environment, and what is known of its data."""
        known = {}
        for file in results_files(self.shipped) if self.shipped else ():
            with contextlib.suppress(ResultsError):  # reported when its rows are read
                known[key_of(file)] = read_first_line(file)
        for key, text in self._db.execute("SELECT key, spec FROM environments"):
            spec = json.loads(text)
            data, shipped = spec.pop("data", None), known.get(key, (None, None))[1]
            known[key] = spec, Facts(**data) if data else shipped
        return known

    def sizes(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Per environment: own rows; snapshots and their bytes."""
        rows = self._db.execute("SELECT key, COUNT(*) FROM rows GROUP BY key")
        kept = self._db.execute("SELECT key, COUNT(*), SUM(bytes) FROM checkpoints GROUP BY key")
        return dict(rows.fetchall()), {key: (n, size) for key, n, size in kept}

    # -- the shipped layer -------------------------------------------------------------------------

    def _shipped_file(self, key: str) -> Path | None:
        return next(self.shipped.glob(f"*/*{key}.csv"), None) if self.shipped else None

    def shipped_rows(self, key: str) -> dict[str, Row]:
        if key not in self._shipped:
            file = self._shipped_file(key)
            try:
                self._shipped[key] = read_rows(file) if file else {}
            except ResultsError as error:  # refused by name; the other files are used
                warnings.warn(str(error), stacklevel=2)
                self._shipped[key] = {}
        return self._shipped[key]

    def export(self, key: str, folder: str | Path, facts: Facts | None = None) -> Path:
        """Write an environment's rows as `folder/<dataset>/<words>-<key>.csv`: same rows, same bytes.

        `facts` replace what is known of the data, where a store from before has kept nothing.
        """
        rows = self.rows(key)
        if not rows:
            raise ValueError(f"the store has no rows of environment {key!r}")
        spec, kept = self._known()[key]
        target = Path(folder) / Path(str(spec["dataset"])).stem / file_name(spec, key)
        files.write_atomically(target, file_text(spec, kept or facts, as_csv(rows)).encode())
        for older in set(target.parent.glob(f"*{key}.csv")) - {target}:
            older.unlink()  # the same environment under the name it had before
        return target

    # -- snapshots ---------------------------------------------------------------------------------

    def save_checkpoint(
        self, key: str, spec: Mapping[str, Any], path: str, state: dict[str, Any]
    ) -> None:
        import torch  # here: lookups and the parameters of a notebook need none

        buffer = io.BytesIO()
        torch.save(state, buffer)
        name = f"{hashlib.sha256(f'{key} {path}'.encode()).hexdigest()[:32]}.pt"
        files.write_atomically(self.folder / "checkpoints" / name, buffer.getvalue())
        with self._write() as db:
            self._put_environment(db, key, spec)
            values = (key, path, name, buffer.tell(), time.time())
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
            elif not Row(np.frombuffer(val), np.frombuffer(test)).plausible:
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


def _read_checkpoint(file: Path) -> dict[str, Any]:
    """A snapshot, or an error if a single bit of it has changed (torch itself does not look)."""
    import torch

    content = io.BytesIO(file.read_bytes())
    damaged = zipfile.ZipFile(content).testzip()
    if damaged:
        raise ValueError(f"{damaged} does not have its checksum")
    content.seek(0)
    return torch.load(content, weights_only=True)
