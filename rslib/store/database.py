"""The store's database: one SQLite file that several processes open, write and survive.

Which tables it has and how one of an earlier schema is taken over, transactions that wait for the lock,
the journal, and errors that name the file. What the rows mean is the business of `rslib.store`.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from rslib import files
from rslib.errors import UserError

SCHEMA = 2  # of the database; older ones are taken over (1: rows without `code`; 0: no number)
UNVERIFIED = "unverified"  # in place of a digest: the row is from before rows had one

# The index has the name of a table of schema 0, so that a program which knows no schema fails when it
# opens the store ("there is already an index named checkpoints") and writes nothing. The total of bytes
# is kept by triggers: adding them up at every save would take longer with every snapshot.
_TABLES = """
CREATE TABLE IF NOT EXISTS environments (key TEXT PRIMARY KEY, spec TEXT NOT NULL, digest TEXT);
CREATE TABLE IF NOT EXISTS rows (
    key TEXT NOT NULL, path TEXT NOT NULL, val BLOB NOT NULL, test BLOB NOT NULL,
    seconds REAL, torch TEXT, cpu TEXT, digest TEXT, code TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (key, path)) WITHOUT ROWID;
CREATE TABLE snapshots (
    key TEXT NOT NULL, path TEXT NOT NULL, bytes INTEGER NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (key, path)) WITHOUT ROWID;
CREATE INDEX checkpoints ON snapshots (used);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER added AFTER INSERT ON snapshots BEGIN UPDATE total SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER dropped AFTER DELETE ON snapshots BEGIN UPDATE total SET bytes = bytes - OLD.bytes; END;
"""


class StoreError(UserError, RuntimeError):
    """A store that cannot be used; the message names its file."""


class Database:
    """The file rows.sqlite in a folder, beside the folder of snapshots. One connection."""

    def __init__(self, folder: Path):
        # Absolute: workers that are handed a store may stand in another folder.
        self.folder = folder.absolute()
        self.file, self.snapshots = self.folder / "rows.sqlite", self.folder / "checkpoints"
        with self._named_errors():
            self.snapshots.mkdir(parents=True, exist_ok=True)
            self._db = _connect(self.file, self.snapshots)
        if self._version() < SCHEMA:
            self._take_over()
        with self._named_errors():  # last: a process may be killed before its tables exist
            if not _begun(self.file).exists():
                files.write_atomically(_begun(self.file), b"rows.sqlite has been made\n")

    def _version(self) -> int:
        return self._read("PRAGMA user_version")[0][0]

    def _take_over(self) -> None:
        """Make the tables of a new store, or those of this schema from those of before."""
        with self._write() as db:
            if (version := self._version()) == SCHEMA:
                return  # another process has just done it
            if self._read("SELECT 1 FROM sqlite_master WHERE name = 'rows'"):
                db.execute("ALTER TABLE rows ADD COLUMN code TEXT NOT NULL DEFAULT ''")
            db.execute(f"PRAGMA user_version = {SCHEMA}")
            if version == 1:
                return
            before = self._read("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints'")
            if before:
                for table in ("environments", "rows"):
                    db.execute(f"ALTER TABLE {table} ADD COLUMN digest TEXT")
                    db.execute(f"UPDATE {table} SET digest = ?", (UNVERIFIED,))
                db.execute("DROP TABLE checkpoints")
            for statement in _TABLES.strip().split(";\n"):
                db.execute(statement)
        if before:
            old = [file for file in self.snapshots.glob("*.pt") if file.is_file()]
            for file in old:
                file.unlink(missing_ok=True)
            warnings.warn(
                f"{self.folder} is from an earlier rslib: its {self.n_unverified()} rows are used and "
                f"marked unverified; its {len(old)} snapshots, which do not say whose they are, are "
                "removed and trained again where they are needed",
                stacklevel=4,
            )

    def n_unverified(self) -> int:
        """Count the rows from before rows had a digest."""
        return self._read("SELECT COUNT(*) FROM rows WHERE digest = ?", (UNVERIFIED,))[0][0]

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that takes the write lock at its start, so that waiting works."""
        with self._named_errors():
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:  # Ctrl-C too: an open transaction would lock everybody out
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, query: str, values: Iterable = ()) -> list[tuple]:
        """All answers at once: an open cursor would hold a lock where the journal is not a WAL."""
        with self._named_errors():
            return self._db.execute(query, tuple(values)).fetchall()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:  # locked, full, not allowed
            raise StoreError(
                f"{self.file} cannot be used: {error}. RSLIB_STORE names another folder"
            ) from error
        except sqlite3.ProgrammingError:
            raise  # values of a wrong type: no fault of the file
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self.file} is damaged ({error}): put a copy of it back, or delete {self.folder} to "
                "begin anew"
            ) from error


def _connect(file: Path, snapshots: Path) -> sqlite3.Connection:
    begun = _begun(file).exists()  # before `new`: another process may be making the store right now
    new = not file.exists() or not file.stat().st_size
    wal = file.with_name(f"{file.name}-wal")
    left = any(snapshots.glob("*.snapshot")) or (wal.exists() and wal.stat().st_size)
    if new and left and not (file.exists() and file.stat().st_size):  # still: not made just now
        # SQLite would make an empty database of it, and delete the rows that lie in the -wal.
        raise StoreError(
            f"{file} is empty or gone, but snapshots or rows in {wal.name} are left: put a copy of it "
            f"back, or delete {file.parent} to begin anew"
        )
    if new and begun:
        raise StoreError(
            f"{file} is empty or gone, but has held results: put a copy of it back, or delete "
            f"{_begun(file)} to begin anew"
        )
    db = sqlite3.connect(file, timeout=60, isolation_level=None)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        raise StoreError(
            f"{file} was written by a newer rslib (schema {version}; this program has {SCHEMA}): "
            "update rslib, or set RSLIB_STORE to another folder"
        )
    # A damaged letter must not hide the other rows; the digest sees it.
    db.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
    mode = _set_journal(db, files.journal() or ("wal" if new else None))
    db.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
    return db


def _set_journal(db: sqlite3.Connection, mode: str | None, seconds: float = 5) -> str:
    """Set the journal's mode (None: leave it) and return it.

    SQLite does not wait for another process that sets it at the same moment, as two do that start with
    a new store.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return db.execute(f"PRAGMA journal_mode{f' = {mode}' if mode else ''}").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _begun(file: Path) -> Path:
    """A note that the database has been made, so that one cut to nothing is not taken for a new one."""
    return file.with_name(".begun")
