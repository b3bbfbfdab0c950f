"""Nothing damaged is used: rows, snapshots and databases that are not what was written."""

import shutil
import warnings

import numpy as np
import pytest
import torch
from small_environment import small
from tree_workers import bits

from rslib.schedule import path_text
from rslib.store import Store, StoreError
from rslib.store.rows import Row
from rslib.tree import ScheduleTree

PATH = ((10,), (5, 5), (4, 3, 3))
TEXT = path_text(PATH[:2])


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A store with one walk, and what the walk found."""
    folder = tmp_path_factory.mktemp("walked")
    store = Store(folder, shipped=None)
    node = ScheduleTree(small(), store).walk(PATH)
    store.close()
    return folder, bits(node)


@pytest.fixture
def copy(walked, tmp_path):
    shutil.copytree(walked[0], tmp_path / "copy")
    return Store(tmp_path / "copy", shipped=None)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *("val = test", "test = val", "test = zeroblob(40)", "val = x'00'", "val = 'text'"),
        *("torch = '9.9'", "cpu = 'AVX9'", "cpu = NULL", "seconds = 7", "seconds = 'long'"),
        *("digest = NULL", "digest = 'x'", "torch = CAST(x'ff32' AS TEXT)"),
    ],
)
def test_a_changed_row_is_named_and_trained_again(copy, walked, change):
    """Broken: one flipped bit of an accuracy was used 12 times of 12."""
    copy._db.execute(f"UPDATE rows SET {change} WHERE path = ?", (TEXT,))
    with pytest.warns(UserWarning, match=f"rows.sqlite: row '{TEXT}' of {small().key} ") as said:
        tree = ScheduleTree(small(), copy)
        assert bits(tree.walk(PATH)) == walked[1]
    assert tree.trained and str(copy.file) in str(said[0].message)
    assert TEXT in Store(copy.folder, shipped=None).rows(small().key)  # warnings are errors here
    assert copy.check() == []


def test_a_row_in_the_place_of_another_is_named(copy, walked):
    """Broken: the accuracies of one schedule are reported as those of its sibling."""
    copy._db.execute("DELETE FROM rows WHERE path = ?", (path_text(PATH),))
    copy._db.execute("UPDATE rows SET path = ? WHERE path = ?", (path_text(PATH), TEXT))
    with pytest.warns(UserWarning, match="is not what was written"):
        assert bits(ScheduleTree(small(), copy).walk(PATH)) == walked[1]


def test_a_row_that_no_training_gives_is_not_used_though_its_digest_is_right(copy):
    """Broken: a method with a slip fills the store with accuracies above 1."""
    for path, val, test in (
        ("1", [0.5, 0.5, np.nan, np.nan, np.nan], [0.5, 7.5, 0.5, 0.5, 0.5]),
        ("2", [0.5, -3.0, np.nan, np.nan, np.nan], [0.5] * 5),
        ("3", [0.5, np.nan, np.nan, np.nan, np.nan], [0.5] * 5),  # two tasks are learned
        ("4", [0.5, 0.5, 0.5, np.nan, np.nan], [0.5] * 5),
        ("5", [0.5, 0.5, np.nan, np.nan, np.nan], [0.5, np.inf, 0.5, 0.5, 0.5]),
        ("6", [0.5, 0.5, np.nan, np.nan, np.nan], [0.5, np.nan, 0.5, 0.5, 0.5]),
        ("7", [0.5, 0.5, np.nan], [0.5] * 3),
    ):
        copy.put(small().key, small().as_stored(), path, Row(np.array(val), np.array(test)))
        with pytest.warns(UserWarning, match=f"row '{path}' .* (outside|lacks|3 and 3 accuracies)"):
            assert copy.row(small().key, path) is None
    assert len(copy.check()) == 7


def test_a_changed_environment_is_named_and_written_anew(copy):
    """Broken: rows are listed and exported under another seed."""
    spec = copy._read("SELECT spec FROM environments")[0][0]
    copy._db.execute("UPDATE environments SET spec = ?", (spec.replace('"seed": 1', '"seed": 2'),))
    with pytest.warns(UserWarning, match=f"environment {small().key} is damaged"):
        assert copy.environments() == {}
    assert len(copy.rows(small().key)) == 5  # rows have digests of their own
    ScheduleTree(small(), copy).walk((*PATH, (3, 3, 2, 2)))
    assert copy.environments() == {small().key: small().spec()} and copy.check() == []


# -- snapshots -------------------------------------------------------------------------------------


def below(copy: Store) -> tuple:
    """Walk a path that has to be trained from the snapshot of TEXT."""
    return bits(ScheduleTree(small(), copy).walk((*PATH[:2], (0, 0, 10))))


EXPECTED: dict[str, tuple] = {}


@pytest.fixture
def expected(walked):
    if not EXPECTED:
        EXPECTED["below"] = bits(ScheduleTree(small()).walk((*PATH[:2], (0, 0, 10))))
    return EXPECTED["below"]


@pytest.mark.parametrize("other", ["sibling", "parent", "seed"])
def test_a_snapshot_in_the_place_of_another_counts_as_absent(copy, expected, other):
    """Broken: a swapped snapshot was trained on, and the wrong rows were stored for good."""
    places = {
        "sibling": (small(), (*PATH[:1], (10, 0))),
        "parent": (small(), PATH[:1]),
        "seed": (small(seed=2), PATH[:2]),
    }
    environment, path = places[other]
    ScheduleTree(environment, copy).walk(path)
    theirs = copy._snapshot_file(environment.key, path_text(path))
    shutil.copyfile(theirs, copy._snapshot_file(small().key, TEXT))
    assert below(copy) == expected and copy.check() == []


@pytest.mark.parametrize(
    "state",
    [
        {"odd": 1},
        {"net": {}, "optimizer": {}, "pools": [], "method": {}, "n_learned": 3, "diverged": False},
        [torch.zeros(3)],
    ],
)
def test_a_snapshot_of_another_shape_counts_as_absent(copy, expected, state):
    """Broken: a method whose state has changed stops every search with an error of torch."""
    copy.save_checkpoint(small().key, small().as_stored(), TEXT, state)
    with pytest.warns(UserWarning, match="a snapshot of Split .* is not used"):
        assert below(copy) == expected
    assert below(copy) == expected and copy.check() == []


def test_a_folder_in_the_place_of_a_snapshot_counts_as_absent_and_stays(copy, expected):
    """Broken: training stops, or something that is not ours is deleted."""
    file = copy._snapshot_file(small().key, TEXT)
    file.unlink()
    file.mkdir()
    with pytest.warns(UserWarning, match="is a folder: this snapshot is not kept"):
        assert below(copy) == expected
    copy.prune()
    assert file.is_dir() and copy.checkpoint_bytes() == 0


# -- the database ----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 100, 4096, 8192])
def test_a_database_that_was_cut_short_is_refused_by_name(copy, left):
    """Broken: an empty database takes the place of a week of results."""
    copy.close()
    with open(copy.file, "r+b") as file:
        file.truncate(left)
    with pytest.raises(StoreError, match=r"rows.sqlite is (empty or gone|damaged).* put a copy"):
        Store(copy.folder, shipped=None).rows(small().key)
    assert copy.file.stat().st_size == left


def test_rows_in_a_wal_are_not_thrown_away_with_an_empty_database(tmp_path):
    """Broken: SQLite deletes the -wal of an empty database, and the last rows with it."""
    (tmp_path / "rows.sqlite").touch()
    Store(tmp_path, shipped=None).close()  # a process was killed when it began: nothing is lost
    (tmp_path / "rows.sqlite").write_bytes(b"")
    (tmp_path / "rows.sqlite-wal").write_bytes(b"frames")
    with pytest.raises(StoreError, match="-wal"):
        Store(tmp_path, shipped=None)
    assert (tmp_path / "rows.sqlite-wal").read_bytes() == b"frames"


def test_a_damaged_page_is_an_error_that_names_the_file(copy):
    """Broken: "database disk image is malformed", and nobody knows which."""
    copy.close()
    content = bytearray(copy.file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    copy.file.write_bytes(content)
    with pytest.raises(StoreError, match=f"{copy.file} is damaged"):
        Store(copy.folder, shipped=None).rows(small().key)


def test_a_sound_store_says_nothing(copy, walked):
    """Broken: warnings that mean nothing, until nobody reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = ScheduleTree(small(), copy)
        assert bits(tree.walk(PATH)) == walked[1] and tree.trained == 0
