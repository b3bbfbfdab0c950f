"""The store: result rows in SQLite, snapshots of inner nodes in files, shipped rows below.

A row is one node of a schedule tree: (environment key, path) -> accuracies after its last task. Rows
are small, exact and never change, so several processes may write at once: the first wins and the
others wrote the same. Order of writing is snapshot file (temporary name, fsync, rename), then row: a
process killed anywhere leaves nothing half done. Below the database lies a read-only layer of CSV
files (`results/` in a checkout), so that shipped results are used instead of trained again.

Nothing damaged is used. A row has a digest of itself and its place; a row that fails it is named in a
warning and trained again. A snapshot carries its key and path under a digest, and one that is not what
was written counts as absent. File names follow from key and path: the database holds none.

`rslib.store.database` opens the file; `rslib store` lists, exports, prunes, forgets and checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sqlite3
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rslib import files
from rslib.store.database import SCHEMA, UNVERIFIED, Database, StoreError
from rslib.store.rows import (
    Facts,
    ResultsError,
    Row,
    as_csv,
    faults,
    file_name,
    file_text,
    key_of,
    n_learned,
    read_first_line,
    read_rows,
    results_files,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "Store", "StoreError"]

SHIPPED = "the results in results/"  # what a store lies above unless it is told otherwise


class Store(Database):
    """Rows and snapshots in a folder. Cheap to open; safe from several processes at once."""

    def __init__(self, folder: str | Path | None = None, shipped: str | Path | None = SHIPPED):
        super().__init__(Path(folder) if folder is not None else files.store())
        if shipped == SHIPPED:
            shipped = files.results()
        self.shipped = Path(shipped).absolute() if shipped is not None else None
        # By key: a results file, the environment in its first line, its rows.
        self._shipped: dict[str, tuple[Path | None, dict[str, Any], dict[str, Row]]] = {}

    def __reduce__(self):
        return Store, (self.folder, self.shipped)  # workers open their own connection

    # -- rows --------------------------------------------------------------------------------------

    def rows(self, key: str, spec: Mapping[str, Any] | None = None) -> dict[str, Row]:
        """All rows of an environment by path text, shipped rows included.

        Shipped rows of another environment than `spec`, where it is given, are not used.
        """
        shipped, own = self.shipped_rows(key, spec), self._sound(key)
        return own | {p: row for p, row in shipped.items() if p not in own or _unverified(own[p])}

    def row(self, key: str, path: str) -> Row | None:
        own, shipped = self._sound(key, path).get(path), self.shipped_rows(key).get(path)
        return own if own and not (shipped and _unverified(own)) else shipped

    def _sound(self, key: str, path: str | None = None) -> dict[str, Row]:
        rows, wrong = self._own(key, path)
        if wrong:
            named = [f"row {path!r} of {key} {why}" for path, why in list(wrong.items())[:5]]
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            warnings.warn(
                f"{self.file}: {'; '.join(named)}{more}: not used, trained again where it is needed",
                stacklevel=3,
            )
        return rows

    def _own(self, key: str, path: str | None = None) -> tuple[dict[str, Row], dict[str, str]]:
        """The store's own rows of an environment, or one of them; and what is wrong with others."""
        query = "SELECT path, val, test, seconds, torch, cpu, code, digest FROM rows WHERE key = ?"
        values = (key,) if path is None else (key, path)
        rows, wrong = {}, {}
        for place, *cells, digest in self._read(
            query + " AND path = ?" * (len(values) - 1), values
        ):
            try:
                row = _row(*cells)
                if digest == UNVERIFIED:
                    rows[place] = replace(row, code=UNVERIFIED)
                elif digest == row.digest(key, place):
                    rows[place] = row
                else:
                    wrong[place] = "is not what was written: its digest differs"
            except (TypeError, ValueError, AttributeError) as error:  # cells of another type
                wrong[place] = f"cannot be read: {error}"
        if rows:
            query = "SELECT key, spec, digest FROM environments WHERE key = ?"
            specs = [_spec(*line) or {} for line in self._read(query, (key,))]
            n_tasks = [spec["n_tasks"] for spec in specs if "n_tasks" in spec]
            wrong |= faults(rows, *n_tasks or [len(next(iter(rows.values())).test)])
        return {place: row for place, row in rows.items() if place not in wrong}, wrong

    def put(self, key: str, spec: Mapping[str, Any], path: str, row: Row) -> None:
        """Keep a row. `spec` describes the environment, and under "data" what is known of its data."""
        values = (row.val.tobytes(), row.test.tobytes(), row.seconds, row.torch, row.cpu, row.code)
        values = (key, path, *values, row.digest(key, path))
        # Named: a store that was taken over has its columns in another order.
        columns = "key, path, val, test, seconds, torch, cpu, code, digest"
        with self._write() as db:
            self._put_environment(db, key, spec)
            if path not in self._own(key, path)[0]:  # the first stays, unless it is damaged
                marks = ", ".join("?" * len(values))
                db.execute(f"INSERT OR REPLACE INTO rows ({columns}) VALUES ({marks})", values)

    @staticmethod
    def _put_environment(db: sqlite3.Connection, key: str, spec: Mapping[str, Any]) -> None:
        text = _json(spec)
        update = "ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, digest = excluded.digest"
        changed = "spec IS NOT excluded.spec OR digest IS NOT excluded.digest"
        query = f"INSERT INTO environments VALUES (?, ?, ?) {update} WHERE {changed}"
        db.execute(query, (key, text, _digest(f"{key} {text}")))

    def forget(self, key: str) -> int:
        """Delete the store's own rows and snapshots of an environment; returns how many rows."""
        with self._write() as db:
            n = db.execute("DELETE FROM rows WHERE key = ?", (key,)).rowcount
            self._drop(db, self._read("SELECT key, path FROM snapshots WHERE key = ?", (key,)))
            db.execute("DELETE FROM environments WHERE key = ?", (key,))
        return n

    def environments(self) -> dict[str, dict[str, Any]]:
        """The specification of every environment the store has a row of, by key."""
        return {key: spec for key, (spec, _) in self._known().items()}

    def _known(self) -> dict[str, tuple[dict[str, Any], Facts | None]]:
        """By key: the environment, and what is known of its data."""
        known = {}
        for file in results_files(self.shipped) if self.shipped else ():
            try:
                known[key_of(file)] = read_first_line(file)
            except ResultsError as error:
                warnings.warn(str(error), stacklevel=3)
        for key, *values in self._read("SELECT key, spec, digest FROM environments"):
            spec = _spec(key, *values)
            if spec is None:
                warnings.warn(f"{self.file}: environment {key} is damaged: not used", stacklevel=3)
                continue
            data, shipped = spec.pop("data", None), known.get(key, (None, None))[1]
            known[key] = spec, Facts(**data) if data else shipped
        return known

    def frame(self) -> pd.DataFrame:
        """Collect all shipped and stored results, a line for every trained node of every environment.

        The columns are the environment's settings, `path`, `tasks` (how many are learned; a path with
        all `n_tasks` is a whole schedule), `acc` and `reward` over those tasks, and what trained them.
        """
        import pandas as pd  # here: parameters of a notebook are checked before pandas is loaded

        lines = []
        for key, spec in self.environments().items():
            about = spec | {"method_args": _json(spec["method_args"]), "key": key}
            for path, row in self.rows(key).items():
                if k := n_learned(path):
                    means = {"acc": row.test[:k].mean(), "reward": row.val[:k].mean()}
                    made = {"seconds": row.seconds, "torch": row.torch, "cpu": row.cpu}
                    made |= {"code": row.code}
                    lines.append(about | {"path": path, "tasks": k} | means | made)
        return pd.DataFrame(lines)

    def sizes(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Per environment: own rows; snapshots and their bytes."""
        rows = self._read("SELECT key, COUNT(*) FROM rows GROUP BY key")
        kept = self._read("SELECT key, COUNT(*), SUM(bytes) FROM snapshots GROUP BY key")
        return dict(rows), {key: (n, size) for key, n, size in kept}

    # -- the shipped layer -------------------------------------------------------------------------

    def shipped_rows(self, key: str, spec: Mapping[str, Any] | None = None) -> dict[str, Row]:
        """The rows in results/; a warning and none where their file is damaged or of another `spec`."""
        if key not in self._shipped:
            file = next(self.shipped.glob(f"*/*{key}.csv"), None) if self.shipped else None
            try:
                rows = read_rows(file) if file else {}  # first: it names the line that is wrong
                self._shipped[key] = file, read_first_line(file)[0] if file else {}, rows
            except ResultsError as error:  # refused by name; the other files are used
                warnings.warn(str(error), stacklevel=2)
                self._shipped[key] = file, {}, {}
        file, named, rows = self._shipped[key]
        for name in set(named) & set(spec or {}) - {"dataset", "setting"}:  # the key has neither
            if spec and _json(named[name]) != _json(spec[name]):
                self._shipped[key] = file, {}, (rows := {})
                warnings.warn(
                    f"{file}: line 1 has {name} {named[name]!r}, but its key is that of {name} "
                    f"{spec[name]!r}; the file is not used",
                    stacklevel=2,
                )
        return rows

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

        buffer, file = io.BytesIO(), self._snapshot_file(key, path)
        torch.save(state, buffer)
        content = files.seal(_owner(key, path), buffer.getvalue())
        try:
            files.write_atomically(file, content)
        except IsADirectoryError:  # not ours to delete; the row is kept all the same
            warnings.warn(f"{file} is a folder: this snapshot is not kept", stacklevel=2)
            return
        with self._write() as db:
            self._put_environment(db, key, spec)
            if file.exists():  # else another process has pruned it just now
                db.execute("DELETE FROM snapshots WHERE key = ? AND path = ?", (key, path))
                values = (key, path, len(content), time.time())
                db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", values)
            self._keep_within(db, files.snapshot_limit())

    def load_checkpoint(self, key: str, path: str) -> dict[str, Any] | None:
        """The snapshot, or None where there is none or its file is gone, damaged or another's."""
        query = "SELECT 1 FROM snapshots WHERE key = ? AND path = ?"
        if not self._read(query, (key, path)):
            return None
        try:
            state = self._read_snapshot(key, path)
        except Exception:  # torch raises many kinds; whatever it was, the prefix is trained again
            with self._write() as db:
                self._drop(db, [(key, path)])
            return None
        with self._write() as db:
            stamp = "UPDATE snapshots SET used = ? WHERE key = ? AND path = ?"
            db.execute(stamp, (time.time(), key, path))
        return state

    def _snapshot_file(self, key: str, path: str) -> Path:
        return self.snapshots / f"{_digest(f'{key} {path}')}.snapshot"

    def _read_snapshot(self, key: str, path: str) -> dict[str, Any]:
        import torch

        content = files.unseal(_owner(key, path), self._snapshot_file(key, path).read_bytes())
        return torch.load(io.BytesIO(content), weights_only=True)

    def checkpoint_bytes(self) -> int:
        return self._read("SELECT bytes FROM total")[0][0]

    def _keep_within(self, db: sqlite3.Connection, limit: int) -> None:
        """Drop the snapshots longest unused; a walk that needs one trains its prefix again."""
        oldest = "SELECT key, path FROM snapshots ORDER BY used LIMIT 1"
        while self.checkpoint_bytes() > limit and (old := self._read(oldest)):
            self._drop(db, old)

    def _drop(self, db: sqlite3.Connection, checkpoints: Iterable[tuple[str, str]]) -> None:
        """Within a transaction, so that no file goes that another process has just made a row of."""
        for key, path in checkpoints:
            db.execute("DELETE FROM snapshots WHERE key = ? AND path = ?", (key, path))
            with contextlib.suppress(IsADirectoryError, PermissionError):  # not a file of ours
                self._snapshot_file(key, path).unlink(missing_ok=True)

    def prune(self, limit: int = 0) -> int:
        """Drop snapshots until at most `limit` bytes are left, and files no row knows."""
        with self._write() as db:
            before = self.checkpoint_bytes()
            self._keep_within(db, limit)
            known = {self._snapshot_file(*r) for r in self._read("SELECT key, path FROM snapshots")}
            for file in set(self.snapshots.glob("*.snapshot*")) - known:
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a temporary name may go at any moment
                    # A young unknown file may be another process's, on its way to its row.
                    if not file.is_dir() and time.time() - file.stat().st_mtime > 3600:
                        file.unlink()
            return before - self.checkpoint_bytes()

    def check(self) -> list[str]:
        """What is wrong with the store: nothing, if it is as it should be."""
        trouble = [r for (r,) in self._read("PRAGMA integrity_check") if r != "ok"]
        lines = self._read("SELECT key, spec, digest FROM environments")
        known = {key for key, *values in lines if _spec(key, *values) is not None}
        trouble += [f"environment {key} is damaged" for key, *_ in lines if key not in known]
        for (key,) in self._read("SELECT DISTINCT key FROM rows"):
            rows, wrong = self._own(key)
            lost = {} if key in known else dict.fromkeys(rows, "is of no known environment")
            trouble += [f"row {key} {path!r} {why}" for path, why in (wrong | lost).items()]
        for key, path in self._read("SELECT key, path FROM snapshots"):
            try:
                self._read_snapshot(key, path)
            except Exception as error:
                name = self._snapshot_file(key, path).name
                trouble.append(f"snapshot {name} of {key} {path!r}: {error}")
        for file in results_files(self.shipped) if self.shipped else ():
            try:
                read_rows(file)
            except ResultsError as error:
                trouble.append(str(error))
        return trouble


def _unverified(row: Row) -> bool:
    return row.code == UNVERIFIED


def _owner(key: str, path: str) -> str:
    return f"snapshot {key} {path}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _spec(key: str, text: str, digest: str) -> dict[str, Any] | None:
    """An environment as the store has it; None where it is damaged."""
    try:
        return json.loads(text) if digest in (UNVERIFIED, _digest(f"{key} {text}")) else None
    except ValueError:
        return None


def _row(val: bytes, test: bytes, seconds: float | None, *made: str) -> Row:
    seconds = float("nan") if seconds is None else seconds  # SQLite keeps NaN as NULL
    return Row(np.frombuffer(val), np.frombuffer(test), seconds, *made)
