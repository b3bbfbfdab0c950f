"""The store: rows that several processes write, snapshots, the shipped layer, the command line."""

import os
import pickle
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
from small_environment import small
from tree_workers import bits, outcome, put_rows, start

from rslib import files
from rslib import store as store_module
from rslib.schedule import UNTRAINED, path_from_text, path_text
from rslib.search import mcts
from rslib.store import Store, __main__
from rslib.store.rows import Row, key_of, made_with, read_rows
from rslib.tree import ScheduleTree

PATH = ((10,), (5, 5), (4, 3, 3), (3, 3, 2, 2))


def random_row(draws, path: str = "") -> Row:
    val = draws.rand(5)
    val[0 if path == UNTRAINED else len(path_from_text(path)) + 1 :] = np.nan
    return Row(val, draws.rand(5), seconds=float(draws.rand()))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", shipped=None)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The files of a store with one short search in it, to be copied and harmed."""
    folder = tmp_path_factory.mktemp("filled")
    made = Store(folder, shipped=None)
    mcts(ScheduleTree(small(), made), 4)
    made.close()
    return folder


@pytest.fixture
def copy(filled, tmp_path):
    subprocess.run(["cp", "-r", str(filled), str(tmp_path / "copy")], check=True)
    return Store(tmp_path / "copy", shipped=None)


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_in_a_sqlite_file_and_come_back_bit_for_bit(store):
    """Any tool can read it; NaN and all bits survive."""
    draws, environment = np.random.RandomState(0), small()
    rows = {f"{i}": random_row(draws, f"{i}") for i in range(20)}
    for path, row in rows.items():
        store.put(environment.key, environment.as_stored(), path, row)
    db = sqlite3.connect(store.folder / "rows.sqlite")
    assert db.execute("SELECT COUNT(*) FROM rows").fetchone() == (20,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
    again = Store(store.folder, shipped=None)
    found = again.rows(environment.key)
    assert set(found) == set(rows) and all(found[p].same(rows[p]) for p in rows)
    one = again.row(environment.key, "7")
    assert one is not None and one.same(rows["7"]) and one.seconds == rows["7"].seconds
    assert (one.torch, one.cpu) == made_with()[:2]
    assert again.row(environment.key, "nowhere") is None and again.rows("other") == {}
    assert again.environments() == {environment.key: environment.spec()}


def test_two_processes_may_make_a_store_at_once(tmp_path, monkeypatch):
    """Broken: of two processes that start with a new store, now and then one dies of a lock that
    SQLite does not wait for."""

    class Busy(sqlite3.Connection):
        left = 3

        def execute(self, sql, *values):
            if "journal_mode = wal" in sql and Busy.left:
                Busy.left -= 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Busy, **k))
    made = Store(tmp_path / "made", shipped=None)
    assert Busy.left == 0 and made._read("PRAGMA journal_mode") == [("wal",)]
    made.close()


def test_the_first_row_stays(store):
    """Rows never change: a second writer cannot move a result that somebody has already used."""
    draws, environment = np.random.RandomState(0), small()
    first, second = random_row(draws), random_row(draws)
    store.put(environment.key, environment.as_stored(), "", first)
    store.put(environment.key, environment.as_stored(), "", second)
    kept = store.row(environment.key, "")
    assert kept.same(first) and not kept.same(second)


def test_two_processes_writing_at_once_lose_nothing(tmp_path):
    """Neither a lost row nor "database is locked"."""
    writers = [start(put_rows, small().spec(), str(tmp_path / "s"), w, 150) for w in (1, 2, 3)]
    assert max(outcome(*writer) for writer in writers) == 600
    store = Store(tmp_path / "s", shipped=None)
    rows = store.rows(small().key)
    expected = {f"{kind}-{i}" for kind in ("shared", "1", "2", "3") for i in range(150)}
    assert set(rows) == expected and store.check() == []
    assert all(rows[path].val[0] == int(path.split("-")[1]) / 150 for path in rows)


def test_an_interrupt_in_the_middle_of_writing_leaves_the_store_open_for_all(store):
    """A transaction left open would lock every other process out until this one ends."""
    with pytest.raises(KeyboardInterrupt), store._write() as db:
        db.execute("INSERT INTO environments VALUES ('half', '{}', 'unverified')")
        raise KeyboardInterrupt
    other = Store(store.folder, shipped=None)
    for each in (other, store):
        path = path_text(PATH[: each is store])
        row = random_row(np.random.RandomState(0), path)
        each.put(small().key, small().as_stored(), path, row)
    assert "half" not in other.environments() and len(other.rows(small().key)) == 2


def test_a_store_travels_to_workers_by_its_folder(store, monkeypatch, tmp_path):
    """A connection cannot be pickled, and a relative folder would be another one elsewhere."""
    monkeypatch.chdir(tmp_path)
    here = Store("relative", shipped="shipped")
    sent = pickle.dumps(here)
    monkeypatch.chdir("/")
    there = pickle.loads(sent)
    assert there.folder == tmp_path / "relative" and there.shipped == tmp_path / "shipped"
    assert pickle.loads(pickle.dumps(store)).shipped is None


def test_default_folder(monkeypatch, tmp_path):
    """Results outlive a checkout: the user's cache, unless told otherwise."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "mine"))
    assert Store(shipped=None).folder == tmp_path / "mine"
    monkeypatch.delenv("RSLIB_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert files.store() == files.cache() == tmp_path / "cache" / "rslib"


def test_paths_as_text_and_back():
    for path in ((), ((10,),), PATH, ((0,), (12, 3))):
        assert path_from_text(path_text(path)) == path
    assert path_text(()) == "" != UNTRAINED and path_from_text(UNTRAINED) == ()


# -- the shipped layer -----------------------------------------------------------------------------


def test_export_and_csv_round_trip_bit_for_bit(store, tmp_path):
    """Shipped results must be the results, to the last bit; the same rows give the same bytes."""
    draws, environment = np.random.RandomState(1), small()
    paths = [UNTRAINED, *(path_text(PATH[:i]) for i in range(5))]
    rows = {path: random_row(draws, path) for path in paths}
    rows["10/0,10"] = Row(np.full(5, np.nan), np.full(5, np.nan))  # diverged
    rows["10/10,0"] = Row(np.array([0.1, 1 / 3, 1 / 7, np.nan, np.nan]), np.array([2 / 3] * 5))
    for path, row in rows.items():
        store.put(environment.key, environment.as_stored(), path, row)
    file = store.export(environment.key, tmp_path / "out")
    assert file.parent == tmp_path / "out" / "digits" and file.stem.endswith(environment.key)
    found = read_rows(file)
    assert list(found)[:3] == [UNTRAINED, "", "10"]
    assert set(found) == set(rows) and all(found[p].same(rows[p]) for p in rows)
    backwards = Store(tmp_path / "backwards", shipped=None)
    for path in reversed(rows):
        backwards.put(environment.key, environment.as_stored(), path, rows[path])
    assert backwards.export(environment.key, tmp_path / "b").read_bytes() == file.read_bytes()
    through = Store(tmp_path / "empty", shipped=tmp_path / "out")
    assert through.export(environment.key, tmp_path / "c").read_bytes() == file.read_bytes()


def test_shipped_results_are_used_instead_of_trained(copy, tmp_path):
    """What `results/` is for: the tables of the paper without training."""
    environment = small()
    expected = mcts(ScheduleTree(environment, copy), 4)
    assert expected.trained == 0
    shipped = tmp_path / "results"
    copy.export(environment.key, shipped)
    reader = Store(tmp_path / "reader", shipped=shipped)
    tree = ScheduleTree(environment, reader)
    assert bits(mcts(tree, 4)) == bits(expected) and tree.trained == 0
    assert reader.environments() == {environment.key: environment.spec()}
    assert reader.sizes() == ({}, {})  # shipped rows are read, not copied
    longer = mcts(tree, 8)  # goes on below shipped nodes, which have no snapshot
    assert tree.trained > 0 and bits(longer) == bits(mcts(ScheduleTree(environment), 8))
    alone = ScheduleTree(environment, Store(tmp_path / "alone", shipped=None))
    assert not alone.known(expected.schedule)
    assert not ScheduleTree(environment).known(expected.schedule)


def test_export_of_what_is_not_there_is_refused_by_name(store, tmp_path):
    """An environment may be known without a row: its run was killed before the first."""
    store.save_checkpoint(small().key, small().as_stored(), "", {"x": torch.zeros(1)})
    for key in ("0" * 20, small().key):
        with pytest.raises(ValueError, match=f"no rows of environment '{key}'"):
            store.export(key, tmp_path / "out")


# -- snapshots -------------------------------------------------------------------------------------


def state(n: int = 100) -> dict:
    return {"x": torch.arange(n, dtype=torch.float32), "n": 3, "list": [torch.ones(2)]}


def test_snapshots_come_back(store):
    store.save_checkpoint(small().key, small().as_stored(), "10", state())
    found = Store(store.folder, shipped=None).load_checkpoint(small().key, "10")
    assert found is not None
    torch.testing.assert_close(found, state(), rtol=0, atol=0)
    assert store.load_checkpoint(small().key, "elsewhere") is None
    assert store.load_checkpoint(small(seed=2).key, "10") is None


def test_every_single_changed_byte_of_a_snapshot_is_seen(store):
    """torch.load alone takes changed tensors for good; a wrong network would be trained on from."""
    reference = state()
    for place in range(0, 1600, 23):
        store.save_checkpoint(small().key, small().as_stored(), "10", reference)
        (file,) = (store.folder / "checkpoints").iterdir()
        content = bytearray(file.read_bytes())
        content[place % len(content)] ^= 0x10
        file.write_bytes(content)
        assert store.load_checkpoint(small().key, "10") is None
        assert list((store.folder / "checkpoints").iterdir()) == []  # dropped for good


def test_snapshots_stay_within_the_limit_the_longest_unused_go_first(store, monkeypatch):
    """A week of searches must not fill the disk; rows stay."""
    clock = iter(range(1000))
    monkeypatch.setattr(store_module.time, "time", lambda: float(next(clock)))
    store.save_checkpoint(small().key, small().as_stored(), "0", state(1000))
    one = store.checkpoint_bytes()
    monkeypatch.setenv("RSLIB_CHECKPOINT_GB", str(3 * one / 2**30))
    for name in ("1", "2"):
        store.save_checkpoint(small().key, small().as_stored(), name, state(1000))
    assert store.load_checkpoint(small().key, "0") is not None  # used just now
    store.save_checkpoint(small().key, small().as_stored(), "3", state(1000))
    left = [n for n in "0123" if store.load_checkpoint(small().key, n) is not None]
    assert left == ["0", "2", "3"] and store.checkpoint_bytes() == 3 * one
    assert len(list((store.folder / "checkpoints").iterdir())) == 3


def test_prune_drops_snapshots_and_strays_but_no_row(copy):
    """And not the young file of another process that is on its way to its row."""
    expected = copy.rows(small().key)
    folder = copy.folder / "checkpoints"
    (folder / "young.snapshot").write_bytes(b"x")
    (folder / ".torn.snapshot.1.2").write_bytes(b"x")
    os.utime(folder / ".torn.snapshot.1.2", (0, 0))
    total = copy.checkpoint_bytes()
    assert total > 0 and copy.prune(total) == 0
    assert (folder / "young.snapshot").exists() and not (folder / ".torn.snapshot.1.2").exists()
    assert copy.prune() == total and copy.checkpoint_bytes() == 0
    assert [f.name for f in folder.iterdir()] == ["young.snapshot"]
    assert copy.rows(small().key).keys() == expected.keys()
    tree = ScheduleTree(small(), copy)
    assert mcts(tree, 4).trained == 0
    assert bits(tree.walk(PATH)) == bits(ScheduleTree(small()).walk(PATH))


# -- check -----------------------------------------------------------------------------------------


def test_check_is_silent_about_a_sound_store(copy):
    assert copy.check() == []


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_check_finds_a_damaged_snapshot(copy, harm):
    file = max((copy.folder / "checkpoints").iterdir(), key=lambda f: f.name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(content if harm == "flipped" else content[:-100])
    (trouble,) = copy.check()
    assert file.name in trouble and small().key in trouble


@pytest.mark.parametrize(
    "column, value",
    [
        ("val", np.full(5, 1.5).tobytes()),
        ("test", np.full(5, -0.5).tobytes()),
        ("test", np.full(5, np.inf).tobytes()),
        ("test", np.array([0.5, np.nan, 0.5, 0.5, 0.5]).tobytes()),
        ("test", b"\x00" * 13),
        ("test", np.zeros(4).tobytes()),
        ("val", b""),
        ("key", "0" * 20),
    ],
)
def test_check_finds_a_damaged_row(copy, column, value):
    copy._db.execute(f"UPDATE rows SET {column} = ? WHERE path = '10'", (value,))
    (trouble,) = copy.check()
    assert "row" in trouble and "'10'" in trouble


# -- the command line ------------------------------------------------------------------------------


def test_command_line_in_a_process_of_its_own(copy, tmp_path):
    """`python -m rslib.store` as a user types it: lists, and says where."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "rslib.store"],
        env={**os.environ, "RSLIB_STORE": str(copy.folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    line = next(text for text in done.stdout.splitlines() if text.startswith(small().key))
    n_rows = len(copy.rows(small().key))
    n_files = len(list((copy.folder / "checkpoints").iterdir()))
    assert line.split()[1:4] == [str(n_rows), "0", str(n_files)]
    assert line.split()[-2:] == ["digits", "er-uniform-M10-seed1"]
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"{n_rows} rows in ") and f", {n_files} snapshots in " in last
    assert "of at most 5.00 GB (RSLIB_CHECKPOINT_GB)" in last and str(copy.folder) in last


def test_command_line_exports_prunes_and_checks(copy, tmp_path, capsys):
    def run(*arguments: str) -> tuple[int, str]:
        code = __main__.main(["--store", str(copy.folder), *map(str, arguments)])
        out = capsys.readouterr()
        return code, out.out + out.err

    ScheduleTree(small("glyphs", seed=2), copy).walk()
    out = tmp_path / "results"
    assert run("export", out, "--dataset", "glyphs")[0] == 0
    assert [f.parent.name for f in out.glob("*/*.csv")] == ["glyphs"]
    assert run("export", out, "--key", small().key[:6])[0] == 0
    assert sorted(map(key_of, out.glob("*/*.csv"))) == sorted(copy.environments())
    assert run("export", tmp_path / "all")[0] == 0
    for file in out.glob("*/*.csv"):
        assert (tmp_path / "all" / file.relative_to(out)).read_bytes() == file.read_bytes()
    assert run("export", out, "--dataset", "mnist") == (1, run("export", out, "--key", "?")[1])
    assert run("check") == (0, f"0 fault(s) in {copy.folder}\n")
    assert "glyphs" in run("list")[1]
    next((copy.folder / "checkpoints").iterdir()).write_bytes(b"torn")
    code, text = run("check")
    assert code == 1 and "1 fault(s)" in text and "snapshot" in text
    assert run("prune", "--gb", "1")[1] == "dropped 0.0 MB of snapshots\n"
    assert copy.checkpoint_bytes() > 0
    assert run("prune")[0] == 0 and copy.checkpoint_bytes() == 0
    assert run("check")[0] == 0
    with pytest.raises(SystemExit):
        run("prune", "--gb", "-1")


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that stops before the rename leaves the old file as it was."""
    target = tmp_path / "file"
    files.write_atomically(target, b"old")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(target, b"new")
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


def test_all_results_are_one_frame(tmp_path, store):
    """Broken: somebody's own plot lacks shipped or stored nodes, or averages tasks not yet learned."""
    draws, one, two = np.random.RandomState(0), small(seed=1), small(seed=2, method="der")
    shipped = Store(tmp_path / "elsewhere", shipped=None)
    kept = {"": random_row(draws), "10": random_row(draws, "10")}
    for path, row in kept.items():
        shipped.put(one.key, one.as_stored(), path, row)
    shipped.put(one.key, one.as_stored(), UNTRAINED, random_row(draws, UNTRAINED))
    shipped.export(one.key, tmp_path / "results")
    own = Store(tmp_path / "own", shipped=tmp_path / "results")
    own.put(two.key, two.as_stored(), "", random_row(draws))
    frame = own.frame().set_index(["seed", "path"])
    assert set(frame.index) == {(1, ""), (1, "10"), (2, "")}  # the untrained network has no ACC
    assert frame.loc[(1, "10"), "acc"] == pytest.approx(kept["10"].test[:2].mean())
    assert frame.loc[(1, "10"), "reward"] == pytest.approx(kept["10"].val[:2].mean())
    assert frame["tasks"].to_dict() == {(1, ""): 1, (1, "10"): 2, (2, ""): 1}
    assert frame.loc[(2, ""), "method"] == "der" and set(frame["torch"]) == {made_with()[0]}
    assert store.frame().empty
