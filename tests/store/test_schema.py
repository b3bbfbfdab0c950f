"""The database's schema number: stores of before, newer ones, older programs; and how it is written."""

import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_environment import small
from tree_workers import bits, outcome, put_rows, start

from rslib.store import SCHEMA, Store, StoreError, __main__
from rslib.store.rows import Facts, as_csv, file_text, read_first_line, read_rows
from rslib.tree import ScheduleTree

BEFORE = Path(__file__).with_name("before")  # written by the code before the schema had a number
SMALLEST = dict(hidden=2, n_tasks=2)
FACTS = Facts("digits", "0" * 16, 10, "embedded", None)

# What that code did to open a store and to write into it.
OLD_TABLES = (
    "CREATE TABLE IF NOT EXISTS environments (key TEXT PRIMARY KEY, spec TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rows (key TEXT NOT NULL, path TEXT NOT NULL, val BLOB NOT NULL, "
    "test BLOB NOT NULL, seconds REAL, torch TEXT, cpu TEXT, PRIMARY KEY (key, path)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS checkpoints (key TEXT NOT NULL, path TEXT NOT NULL, file TEXT NOT NULL, "
    "bytes INTEGER NOT NULL, used REAL NOT NULL, PRIMARY KEY (key, path)) WITHOUT ROWID",
)
OLD_WRITES = (
    "INSERT OR IGNORE INTO rows VALUES ('k', 'p', x'00', x'00', 1.0, '2', 'AVX2')",
    "INSERT OR REPLACE INTO checkpoints VALUES ('k', 'p', 'f', 1, 1.0)",
    "INSERT INTO environments VALUES ('k', '{}') ON CONFLICT (key) DO UPDATE SET spec = excluded.spec",
    "DELETE FROM checkpoints WHERE key = 'k'",
)


@pytest.fixture
def before(tmp_path):
    shutil.copytree(BEFORE, tmp_path / "before")
    return tmp_path / "before"


def take_over(folder: Path) -> Store:
    with pytest.warns(UserWarning, match="4 rows are used and marked unverified; its 1 snapshots"):
        return Store(folder, shipped=None)


def test_a_store_of_before_is_taken_over(before, capsys):
    """Broken: an update costs a user all results; or rows that nobody has checked look checked."""
    environment = small(**SMALLEST)
    db = sqlite3.connect(before / "rows.sqlite")
    ((key,),) = db.execute("SELECT key FROM environments").fetchall()
    old = {path: values for path, *values in db.execute("SELECT path, val, test FROM rows")}
    db.close()
    store = take_over(before)
    rows = store.rows(key)
    assert {p: [r.val.tobytes(), r.test.tobytes()] for p, r in rows.items()} == old
    assert store.n_unverified() == 4 and store.check() == []
    assert store.environments()[key] == environment.spec()
    assert list(store.snapshots.iterdir()) == [] and store.checkpoint_bytes() == 0
    again = Store(before, shipped=None)  # says nothing a second time
    store.put(key, environment.as_stored(), "10", rows["10"])  # the first row stays, as it is
    assert again.n_unverified() == 4
    __main__.main(["--store", str(before)])
    assert "4 rows (4 unverified, from before rows had a digest)" in capsys.readouterr().out


def test_a_store_without_the_code_of_its_rows_is_taken_over(tmp_path):
    """Broken: an update costs a user all results of the schema before, or the old program goes on."""
    environment = small(**SMALLEST)
    store = Store(tmp_path, shipped=None)
    tree = ScheduleTree(environment, store)
    tree.walk(((10,),))
    db = sqlite3.connect(store.file, isolation_level=None)
    for path, row in tree.rows().items():  # as schema 1 wrote them
        before = replace(row, code="").digest(environment.key, path)
        db.execute("UPDATE rows SET digest = ? WHERE path = ?", (before, path))
    db.execute("ALTER TABLE rows DROP COLUMN code")
    db.execute("PRAGMA user_version = 1")
    again = ScheduleTree(environment, Store(tmp_path, shipped=None))
    assert bits(again.walk(((10,),))) == bits(tree.walk(((10,),))) and again.trained == 0
    assert {row.code for row in again.rows().values()} == {""} and again.store.check() == []
    with pytest.raises(sqlite3.OperationalError, match="9 columns but 8 values"):
        db.execute("INSERT INTO rows VALUES ('k', 'p', x'00', x'00', 1.0, '2', 'AVX2', 'digest')")
    db.close()


def test_unverified_rows_are_used_and_those_that_cannot_be_are_named(before):
    """Broken: a user trains everything again; or damage from before is used for good."""
    environment = small(**SMALLEST)
    tree = ScheduleTree(environment, take_over(before))
    if environment.key not in tree.store.environments():
        pytest.skip("the fixture was made with another torch")
    assert bits(tree.walk(((10,),))) == bits(ScheduleTree(environment).walk(((10,),)))
    assert tree.trained == 0
    tree.store._db.execute(
        "UPDATE rows SET test = ? WHERE path = '10'", (np.full(2, 7.5).tobytes(),)
    )
    again = Store(before, shipped=None)
    with pytest.warns(UserWarning, match="row '10' .* outside"):
        tree = ScheduleTree(environment, again)
        assert bits(tree.walk(((10,),))) == bits(ScheduleTree(environment).walk(((10,),)))
    assert tree.trained and again.n_unverified() == 3 and again.check() == []


def test_rows_without_a_digest_are_marked_wherever_they_go(before, tmp_path):
    """Broken: an export makes rows that nobody has checked look checked; or they hide shipped ones."""
    store = take_over(before)
    (key,) = store.environments()
    file = store.export(key, tmp_path / "results", FACTS)
    assert {row.code for row in read_rows(file).values()} == {"unverified"}
    verified = {path: replace(row, code="rslib 1") for path, row in store.rows(key).items()}
    spec, _ = read_first_line(file)
    file.write_text(file_text(spec, FACTS, as_csv(verified)))
    above = Store(before, shipped=tmp_path / "results")
    assert {row.code for row in above.rows(key).values()} == {"rslib 1"}
    assert above.row(key, "10").code == "rslib 1"


def test_a_newer_store_is_refused_in_words(tmp_path, monkeypatch):
    """Broken: this program writes rows that a newer one cannot tell from its own."""
    store = Store(tmp_path, shipped=None)
    store._db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    store.close()
    before = store.file.read_bytes()
    monkeypatch.setenv("RSLIB_JOURNAL", "delete")
    with pytest.raises(StoreError, match=r"written by a newer rslib.*update rslib"):
        Store(tmp_path, shipped=None)
    assert store.file.read_bytes() == before


def test_a_database_cut_to_nothing_is_not_a_new_one(tmp_path):
    """Broken: all results are gone and nothing is said; or a process that was killed before it made
    its tables leaves a folder that cannot be used."""
    (tmp_path / "rows.sqlite").write_bytes(b"")
    Store(tmp_path, shipped=None).close()
    (tmp_path / "rows.sqlite").write_bytes(b"")
    with pytest.raises(StoreError, match="empty or gone, but has held results"):
        Store(tmp_path, shipped=None)
    (tmp_path / ".begun").unlink()
    assert Store(tmp_path, shipped=None).sizes() == ({}, {})


def test_a_folder_that_is_none_is_one_line_in_a_notebook(tmp_path):
    """Broken: RSLIB_STORE on a file is fifty lines of our code."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        StoreError, match=r"cannot be used: .*RSLIB_STORE names another folder"
    ) as e:
        Store(tmp_path / "file", shipped=None)
    assert len(e.value._render_traceback_()) == 1


@pytest.mark.parametrize("kind", ["new", "taken over", "taken over while it is open"])
def test_an_older_program_never_writes_into_this_store(tmp_path, before, kind):
    """Broken: rows without a digest, and snapshots that do not say whose they are, come in again."""
    folder = tmp_path / "new" if kind == "new" else before
    if kind == "taken over while it is open":
        db = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
        db.execute("SELECT COUNT(*) FROM checkpoints").fetchall()
    store = Store(folder, shipped=None) if kind == "new" else take_over(folder)
    n_rows = store.sizes()
    if kind != "taken over while it is open":
        db = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="already an index named checkpoints"):
            for statement in OLD_TABLES:
                db.execute(statement)
        db.execute("ROLLBACK")
    for statement in OLD_WRITES:
        with pytest.raises(sqlite3.OperationalError):
            db.execute(statement)
    db.close()
    assert store.sizes() == n_rows and "k" not in store.environments() and store.check() == []


def test_nothing_outside_the_folder_is_deleted(before, tmp_path):
    """Broken: a file name in the database, ../../thesis.tex, is deleted with a snapshot."""
    mine = tmp_path / "thesis.tex"
    mine.write_text("mine")
    db = sqlite3.connect(before / "rows.sqlite")
    db.execute("UPDATE checkpoints SET file = '../../thesis.tex'")
    db.commit()
    db.close()
    store = take_over(before)
    store.save_checkpoint("../../k", {"n_tasks": 2}, "../../thesis.tex", {"x": torch.zeros(1)})
    assert [f.parent for f in store.snapshots.iterdir()] == [store.snapshots]
    own_model = store.snapshots / "my_model.ckpt"  # the store is in a project's folder
    own_model.write_text("mine")
    os.utime(own_model, (0, 0))
    store.prune()
    store.forget("../../k")
    assert mine.read_text() == "mine" and list(store.snapshots.iterdir()) == [own_model]
    columns = {
        row[1] for t in ("rows", "snapshots") for row in store._read(f"PRAGMA table_info({t})")
    }
    assert columns == {*"key path val test seconds torch cpu code digest bytes used".split()}


# -- how it is written -----------------------------------------------------------------------------


def test_six_writers_without_a_wal(tmp_path, monkeypatch):
    """Broken: on a network drive, where a WAL does not work, rows are lost or writers locked out."""
    monkeypatch.setenv("RSLIB_JOURNAL", "delete")
    Store(tmp_path / "s", shipped=None).close()
    monkeypatch.delenv("RSLIB_JOURNAL")  # the store itself remembers: workers need no variable
    writers = [start(put_rows, small().spec(), str(tmp_path / "s"), w, 20) for w in range(6)]
    assert max(outcome(*writer) for writer in writers) == 140
    store = Store(tmp_path / "s", shipped=None)
    assert store._read("PRAGMA journal_mode") == [("delete",)] and store.check() == []
    assert store._read("PRAGMA synchronous") == [(2,)]  # FULL
    assert not list(store.folder.glob("rows.sqlite-*"))


def test_a_store_with_a_wal_moves_to_a_network_drive(tmp_path, monkeypatch):
    """Broken: the variable is set, and nothing happens; or a slip in it is taken for the default."""
    store = Store(tmp_path, shipped=None)
    assert store._read("PRAGMA journal_mode") == [("wal",)]
    store.close()
    monkeypatch.setenv("RSLIB_JOURNAL", "delete")
    assert Store(tmp_path, shipped=None)._read("PRAGMA journal_mode") == [("delete",)]
    monkeypatch.setenv("RSLIB_JOURNAL", "off")
    with pytest.raises(ValueError, match="RSLIB_JOURNAL must be wal or delete"):
        Store(tmp_path, shipped=None)


def steps_of_a_save(store: Store) -> int:
    """How many instructions SQLite takes to save a snapshot."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    store._db.set_progress_handler(count, 1)
    store.save_checkpoint("k", {"n_tasks": 2}, "new", {"x": torch.zeros(1)})
    store._db.set_progress_handler(None, 1)
    return steps


def test_a_save_costs_the_same_however_many_snapshots_there_are(tmp_path, monkeypatch):
    """Broken: with 100,000 snapshots every training waits 74 ms for a sum."""
    few, many = (Store(tmp_path / name, shipped=None) for name in ("few", "many"))
    for store, n in ((few, 10), (many, 5000)):
        values = [("k", str(i), 100, float(i)) for i in range(n)]
        with store._write() as db:
            db.executemany("INSERT INTO snapshots VALUES (?, ?, ?, ?)", values)
        assert store.checkpoint_bytes() == 100 * n
    assert steps_of_a_save(many) == steps_of_a_save(few) > 10
    # At the limit one snapshot goes for each that comes; the longest unused is found by its index.
    room = [store.checkpoint_bytes() / 2**30 for store in (few, many)]
    costs = []
    for store, gigabytes in zip((few, many), room, strict=True):
        monkeypatch.setenv("RSLIB_CHECKPOINT_GB", str(gigabytes - 50 / 2**30))
        costs.append(steps_of_a_save(store))
        paths = {path for (path,) in store._read("SELECT path FROM snapshots")}
        assert "0" not in paths and {"1", "new"} <= paths
    assert costs[0] == costs[1]
    for store in (few, many):
        ((total,),) = store._read("SELECT SUM(bytes) FROM snapshots")
        assert store.checkpoint_bytes() == total


def test_the_limit_is_a_number(monkeypatch, tmp_path):
    """Broken: a slip in a variable ends in a traceback without its name."""
    monkeypatch.setenv("RSLIB_CHECKPOINT_GB", "5 GB")
    with pytest.raises(ValueError, match="RSLIB_CHECKPOINT_GB must be a number, got '5 GB'"):
        Store(tmp_path, shipped=None).save_checkpoint("k", {}, "", {})


def test_prune_and_a_writer_at_once(tmp_path, monkeypatch):
    """Broken: prune falls over a temporary file that is gone, or leaves a row without its snapshot."""
    store, pruner = (Store(tmp_path, shipped=None) for _ in range(2))
    state = {"x": torch.zeros(1)}
    store.save_checkpoint("k", {}, "0", state)
    gone = store.snapshots / ".gone.snapshot.1.2"
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [*listed(folder), gone])
    assert pruner.prune() > 0
    monkeypatch.undo()
    put = Store._put_environment

    def prune_first(db, key, spec):
        for file in store.snapshots.iterdir():  # what a prune between the file and its row does
            file.unlink()
        put(db, key, spec)

    monkeypatch.setattr(Store, "_put_environment", staticmethod(prune_first))
    store.save_checkpoint("k", {}, "1", state)
    monkeypatch.undo()
    assert store.sizes()[1] == {} and store.check() == []
    store.save_checkpoint("k", {}, "1", state)
    assert pruner.load_checkpoint("k", "1") is not None
    assert pruner.prune() > 0 and store.load_checkpoint("k", "1") is None


def test_rows_are_forgotten_by_name_and_no_others(tmp_path, capsys):
    """Broken: a bad run of one's own method stays for good; or a slip deletes everything."""
    store = Store(tmp_path, shipped=None)
    kinds = [small(**SMALLEST), small(**SMALLEST, seed=2), small(**SMALLEST, method="er-ring")]
    for environment in kinds:
        ScheduleTree(environment, store).walk(((10,),))

    def forget(*words: str) -> set[str]:
        code = __main__.main(["--store", str(tmp_path), "forget", *words])
        assert code == (0 if words else 2)
        return set(store.environments())

    first, second, ring = (environment.key for environment in kinds)
    assert forget() == {first, second, ring}
    assert forget("--method", "none") == {first, second, ring}
    assert forget("--method", "er-ring") == {first, second}
    assert forget("--key", first[:8]) == {second}
    assert f"{first}: 3 rows forgotten" in capsys.readouterr().out
    assert store.sizes()[0] == {second: 3} and store.rows(first) == {}
    assert len(list(store.snapshots.iterdir())) == 1 and store.check() == []
    assert forget("--dataset", "digits") == set()


def test_the_command_answers_in_one_line_what_is_wrong(tmp_path, capsys):
    """Broken: a traceback where a sentence would do."""
    Store(tmp_path, shipped=None)._db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    assert __main__.main(["--store", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("store: ") and "newer rslib" in said and said.count("\n") == 1


def test_a_list_needs_no_torch(tmp_path):
    """Broken: `rslib store` takes ten seconds to say what is stored."""
    code = "import sys; from rslib.__main__ import main; main(['store']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("False\n"), done
