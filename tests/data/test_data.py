"""The public API of the data room: what `load` promises, and what it refuses to train on."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rslib import Environment, ScheduleTree, data
from rslib.data import __main__ as data_command
from rslib.data import fetch, glyphs, npz

N_CLASSES = 3


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No files, no network: what everybody has after the installation."""
    monkeypatch.setattr(fetch, "OWN", tmp_path / "data")
    monkeypatch.setenv("RSLIB_OFFLINE", "1")
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    return tmp_path


def arrays(shape: tuple[int, ...] = (5,), dtype: Any = np.uint8, **changes: Any) -> Any:
    """A small sound dataset, with some arrays replaced."""
    random = np.random.RandomState(0)
    made = {
        "x_train": (random.rand(9, *shape) * 200).astype(dtype),
        "y_train": np.arange(9) % N_CLASSES,
        "x_test": (random.rand(6, *shape) * 250).astype(dtype),
        "y_test": np.arange(6) % N_CLASSES,
    }
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def load_npz(folder, **contents) -> data.Dataset:
    np.savez(folder / "mine.npz", **contents)
    data._read_npz.cache_clear()  # two files written within one tick of the clock
    return data.load(folder / "mine.npz")


# -------------------------------------------------------------------------------------- embedded


@pytest.mark.parametrize("name", ["digits", "permuteddigits", "glyphs", "glyphs2"])
def test_embedded_datasets_keep_the_promises_of_the_interface(alone, name):
    """Broken: the quickstart fails on a machine without network."""
    dataset = data.load(name)
    assert dataset.name == name and dataset.n_classes == 10 and dataset.subset is None
    for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
        assert x.dtype == np.uint8 and y.dtype == np.int64 and x.shape[1:] == dataset.input_shape
        assert len(x) == len(y) and (np.bincount(y, minlength=10) > 0).all()
        assert x.max() == 255 or name.startswith("glyphs")
    assert re.fullmatch("[0-9a-f]{64}", dataset.fingerprint)
    assert data.load(name.upper()) is not None and dataset.provenance.endswith(".")


def test_digits_are_the_real_digits_each_once(alone):
    """Broken: a test image is also a training image, or a fixed split moves."""
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    assert len(digits.x_train) == 1442 and len(digits.x_test) == 355
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    rows = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64)
    ours = np.column_stack([rows / (255 / 16), np.r_[digits.y_train, digits.y_test]]).round()
    theirs = np.column_stack([pixels, labels])
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    share = np.bincount(digits.y_test) / np.bincount(np.asarray(labels))
    assert (np.abs(share - 0.2) < 0.01).all()
    assert digits.fingerprint.startswith("d9caa09d6b249113"), "results recorded so far would move"


def test_permuted_names_share_the_arrays(alone):
    """Broken: the permuted scenario starts from other images, or memory doubles."""
    digits, permuted = data.load("digits"), data.load("permuteddigits")
    assert permuted.x_train is digits.x_train and permuted.fingerprint == digits.fingerprint
    assert permuted.name == "permuteddigits"


@pytest.fixture
def few(monkeypatch):
    """Fewer letters, drawn in a tenth of the time."""
    monkeypatch.setattr(glyphs, "N_TRAIN", 30)
    monkeypatch.setattr(glyphs, "N_TEST", 20)


def test_glyphs_are_drawn_the_same_twice(alone, few):
    """Broken: runs on glyphs cannot be repeated."""
    first, second = glyphs.render("glyphs"), glyphs.render("glyphs")
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert len(np.unique(first[0], axis=0)) == 300, "two examples are the same"


def test_glyphs_can_be_told_apart(alone):
    """Broken: the letters are noise, or so easy that nothing is ever forgotten."""
    from sklearn.neighbors import KNeighborsClassifier

    letters = data.load("glyphs")
    x, y, x_test, y_test = letters.x_train, letters.y_train, letters.x_test, letters.y_test
    assert (np.bincount(y) == 400).all() and (np.bincount(y_test) == 100).all()
    judge = KNeighborsClassifier(3).fit(x.reshape(len(x), -1), y)
    accuracy = judge.score(x_test.reshape(len(x_test), -1), y_test)
    assert 0.7 < accuracy < 0.97, "hard enough to forget, easy enough to learn"
    assert data.load("glyphs2").class_names == tuple("KLMNOPQRST")


def test_a_damaged_glyph_cache_is_drawn_again(alone, few):
    """Broken: a torn cache file stops every run, or worse, is used."""
    drawn = glyphs.load("glyphs")
    path = glyphs.cache_file("glyphs")
    assert path.is_relative_to(alone / "store") and path.is_file()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for wrong in (whole[:1000], bytes(flipped), b""):
        path.write_bytes(wrong)
        assert all((a == b).all() for a, b in zip(drawn, glyphs.load("glyphs"), strict=True))
        assert path.stat().st_size == len(whole), "the cache was not repaired"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "temporary files stayed"


def test_a_cache_that_cannot_be_written_is_only_slower(alone, few, monkeypatch):
    """Broken: a read-only home folder forbids the embedded datasets."""
    (alone / "file").write_text("")
    monkeypatch.setenv("RSLIB_STORE", str(alone / "file"))
    assert glyphs.load("glyphs2")[0].shape == (300, 1, 28, 28)


def test_datasets_are_shared_and_therefore_read_only(alone):
    """Broken: one notebook cell that scales in place changes the data of all later runs."""
    digits = data.load("digits")
    assert data.load("digits") is digits
    with pytest.raises(ValueError, match="read-only"):
        digits.x_train[0] = 0


# ------------------------------------------------------------------------------------------ names


def test_an_unknown_name_lists_the_names_and_the_closest(alone):
    """Broken: a typing mistake costs a search through the documentation."""
    with pytest.raises(data.DataError, match=r"Did you mean 'fashionmnist'.*cifar10, cifar100"):
        data.load("fashonmnist")
    with pytest.raises(data.DataError, match="Known: digits"):
        data.load("???")
    assert data._known("Fashion-MNIST") == "fashionmnist"


def test_a_path_that_leads_nowhere_says_so(alone):
    """Broken: a wrong path is taken for a name, or gives a traceback from numpy."""
    for path in ("a.npz", alone / "a.npz", "folder/mnist", alone, "..", "/tmp/.."):
        with pytest.raises(data.DataError, match=r"no such .npz file|two .npz files"):
            data.load(path)


# ------------------------------------------------------------------------------------ users' .npz


def test_data_that_change_under_an_environment_are_refused(tmp_path):
    """Broken: networks of the new file are stored for good under the key of the old one."""
    random = np.random.default_rng(0)
    labels = {"y_train": np.arange(80) % 4, "y_test": np.arange(8) % 4}
    pixels = [random.integers(0, 256, (88, 5), dtype=np.uint8) for _ in range(2)]
    for x in pixels:
        load_npz(tmp_path, x_train=x[:80], x_test=x[80:], **labels)
        if x is pixels[0]:
            environment = Environment(str(tmp_path / "mine.npz"), epochs=1)
            key = environment.key
    with pytest.raises(data.DataError, match=r"mine.npz has changed .*Make the Environment anew"):
        ScheduleTree(environment).walk()
    assert Environment(str(tmp_path / "mine.npz"), epochs=1).key != key == environment.key


@pytest.mark.parametrize(
    "shape, want",
    [
        ((5,), (5,)),
        ((4, 6), (1, 4, 6)),
        ((4, 6, 3), (3, 4, 6)),
        ((4, 6, 1), (1, 4, 6)),
        ((3, 4, 6), (3, 4, 6)),
        ((1, 4, 6), (1, 4, 6)),
        ((2, 8, 8), (2, 8, 8)),
    ],
)
def test_every_documented_shape_arrives_channels_first(tmp_path, shape, want):
    """Broken: height, width and channels change places silently."""
    given_arrays = arrays(shape)
    dataset = load_npz(tmp_path, **given_arrays)
    assert dataset.input_shape == want and dataset.x_train.dtype == np.uint8
    x = given_arrays["x_train"]
    if len(shape) == 3 and shape[-1] in (1, 3):
        x = np.moveaxis(x, -1, 1)
    assert (dataset.x_train == x.reshape(dataset.x_train.shape)).all()
    assert dataset.name == "mine" and dataset.class_names == ("0", "1", "2")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
def test_other_numbers_arrive_unscaled_and_exact(tmp_path, dtype):
    """Broken: a reader that knows no tasks scales by data of the future, or rounds large numbers."""
    base = arrays(dtype=np.float64)
    huge = 2**40 if dtype == np.int64 else 0
    parts = {key: (base[key] + huge).astype(dtype) for key in ("x_train", "x_test")}
    dataset = load_npz(tmp_path, **base | parts)
    assert dataset.x_train.dtype == (np.float32 if dtype == np.float32 else np.float64)
    assert (dataset.x_train == parts["x_train"]).all() and (dataset.x_test == parts["x_test"]).all()
    assert dataset.scale == "features" and "training split of task 1" in dataset.provenance
    plain = load_npz(tmp_path, **base | parts, scale="none")
    assert plain.scale == "none" and "without scaling" in plain.provenance
    assert plain.fingerprint != dataset.fingerprint, "scaled and unscaled rows would mix"


def folder_of(folder, **files):
    folder.mkdir()
    for name, contents in files.items():
        np.savez(folder / f"{name}.npz", **contents)
    return data.load(f"{folder}/")


def test_a_folder_is_a_sequence_of_files(tmp_path):
    """Broken: tasks come in another order than the file names', or two folders share rows."""
    few = {key: a[:6] for key, a in arrays().items()}
    weeks = folder_of(tmp_path / "v1.2", b=few, a=arrays())
    (tmp_path / "v1.2" / "._a.npz").write_bytes(b"a Mac leaves such files")
    assert weeks.name == "v1.2" and weeks.task_sizes == ((9, 6), (6, 6))
    assert (weeks.x_train[:9] == arrays()["x_train"]).all() and "a.npz, b.npz" in weeks.provenance
    assert data.load(tmp_path / "v1.2").fingerprint == weeks.fingerprint
    turned = folder_of(tmp_path / "w", a=few, b=arrays())
    assert turned.task_sizes == ((6, 6), (9, 6)) and turned.fingerprint != weeks.fingerprint


def test_files_of_a_folder_stand_in_the_order_a_person_counts_in(tmp_path):
    """Broken: week 10 is learned before week 2, and nobody is told."""
    for week in (1, 2, 3, 10):
        y = np.arange(60) % 2
        x = np.full((60, 1), week, dtype=np.uint8)
        np.savez(tmp_path / f"week{week}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    loaded = data.load(tmp_path)
    assert "week1.npz, week2.npz, week3.npz, week10.npz" in loaded.provenance
    assert loaded.x_test[::60].ravel().tolist() == [1, 2, 3, 10]
    names = ["a", "a2b10", "a2b9", "a02b1", "2", "10", "b"]
    ordered = sorted((tmp_path / name for name in names), key=npz._in_order)
    assert [file.name for file in ordered] == ["2", "10", "a", "a02b1", "a2b9", "a2b10", "b"]


def test_a_folder_is_taken_for_what_it_is(tmp_path, monkeypatch):
    """Broken: `Path("digits")`, a user's folder, trains on the embedded digits; a folder whose name ends
    in .npz counts as one file."""
    monkeypatch.chdir(tmp_path)
    y = np.arange(60) % 2
    for file in ("digits/a.npz", "digits/b.npz", "w.npz/a.npz", "w.npz/b.npz"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / file, x_train=y[:, None], y_train=y, x_test=y[:, None], y_test=y)
    own = Environment(Path("digits"))
    assert own.load().n_classes == 2 and (own.n_tasks, own.scenario) == (2, "domain")
    assert Environment("digits").load().n_classes == 10
    tiny = Environment("w.npz", samples_per_class=3)
    assert (tiny.classes_per_task, tiny.pool_size) == (2, 6)


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: arrays((6,)), r"b.npz: the shape of an input is \(6,\), but \(5,\) in a.npz"),
        (lambda: arrays(dtype=np.float64), "b.npz: scale is features, but that of uint8 in a.npz"),
        (lambda: arrays(class_names=np.array(["x", "y", "z"])), "b.npz: class_names is"),
        (lambda: arrays(y_test=np.zeros(5, int)), "b.npz: x_test has 6 rows, y_test 5"),
        (lambda: arrays(y_train=np.full(9, 4)), "bad: y_train has no example of class 3"),
    ],
)
def test_files_of_a_folder_must_fit_together(tmp_path, other, message):
    """Broken: tasks of different inputs or classes are trained as one sequence."""
    with pytest.raises(data.DataError, match=message):
        folder_of(tmp_path / "bad", a=arrays(), b=other())


@pytest.mark.parametrize("path", ["a\0b.npz", "a" * 300 + ".npz", "/" + "a/" * 3000])
def test_a_path_no_system_can_open_is_refused_in_words(path):
    """Broken: a traceback from the operating system instead of a message."""
    with pytest.raises(data.DataError, match="is no path that this system can open"):
        data.load(path)


def nan() -> np.ndarray:
    x = arrays(dtype=np.float32)["x_test"]
    x[4, 2] = np.nan
    return x


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y_test": None}, "lacks y_test; it has x_train"),
        ({"x_train": np.zeros((9,), np.uint8)}, r"x_train has shape \(9,\)"),
        ({"x_train": np.zeros((9, 1, 2, 3, 4))}, "x_train has shape"),
        ({"x_train": np.zeros((0, 5), np.uint8)}, "not empty"),
        ({"x_train": np.zeros((9, 4), np.uint8)}, r"rows have shape \(4,\), x_test rows \(5,\)"),
        ({"x_train": np.zeros((8, 5), np.uint8)}, "x_train has 8 rows, y_train 9"),
        ({"x_train": np.zeros((9, 5), np.float32)}, "which scale holds"),
        ({"x_train": np.full((9, 5), "a")}, "must hold numbers"),
        ({"x_train": np.zeros((9, 5), complex)}, "must hold numbers"),
        ({"x_train": np.zeros((9, 5), object)}, "cannot be read as an .npz of plain arrays"),
        ({"x_train": np.ones((9, 5)), "x_test": np.ones((6, 5))}, "is 1.0 everywhere"),
        ({"scale": "best"}, "scale must be one of features, none, got 'best'"),
        ({"scale": "none"}, "uint8 is divided by 255"),
        ({"x_train": np.ones((9, 5)), "x_test": nan()}, "x_test has 1 NaN.*first in row 4"),
        ({"x_train": np.full((9, 5), -np.inf), "x_test": nan()}, "x_train has 45 NaN or infinite"),
        ({"y_train": np.arange(9) % 3 + 0.5}, "y_train has dtype float64; labels must be integers"),
        ({"y_train": np.arange(9) % 3 == 0}, "y_train has dtype bool"),
        ({"y_train": np.arange(9) % 3 - 1}, "y_train has the label -1"),
        ({"y_train": np.zeros((9, 1), int)}, r"y_train has shape \(9, 1\)"),
        ({"y_train": np.arange(9) % 3 * 2}, "y_train has no example of class 1"),
        ({"y_train": np.full(9, 2**62)}, "y_train has no example of class 0"),
        ({"y_test": np.zeros(6, int)}, "y_test has no example of class 1"),
        ({"y_test": np.arange(6) % 4}, "y_train has no example of class 3"),
        ({"class_names": np.array(["a", "b"])}, "class_names has shape"),
    ],
)
def test_unsound_arrays_are_refused_with_the_reason(tmp_path, changes, message):
    """Broken: hours of training on data that cannot be right."""
    with pytest.raises(data.DataError, match=f"mine.npz: .*{message}"):
        load_npz(tmp_path, **arrays(**changes))


@pytest.mark.parametrize("shape", [(3, 5, 3), (1, 8, 3), (16, 16, 4)])
def test_a_shape_with_two_readings_is_refused(tmp_path, shape):
    """Broken: we guess where the channels are, and guess wrong."""
    with pytest.raises(data.DataError, match="shape"):
        load_npz(tmp_path, **arrays(shape))


def test_files_that_are_no_npz_are_refused(tmp_path, monkeypatch):
    """Broken: a pickle runs code, a bomb fills the memory, a cut file gives a traceback."""
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    for wrong in (b"", b"PK not a zip", path.read_bytes()[:300]):
        path.write_bytes(wrong)
        with pytest.raises(data.DataError, match=r"cannot be read as an .npz"):
            data.load(path)
    np.savez_compressed(path, **arrays((100,)))
    flipped = bytearray(path.read_bytes())
    flipped[200] ^= 255
    path.write_bytes(flipped)
    with pytest.raises(data.DataError, match=r"cannot be read as an .npz"):
        data.load(path)
    np.savez_compressed(path, **arrays() | {"x_train": np.zeros((9, 10**5), np.uint8)})
    monkeypatch.setattr(npz, "HARMLESS_BYTES", 1000)
    with pytest.raises(data.DataError, match="more than 200 times its own size"):
        data.load(path)
    np.savez(path, **arrays())
    monkeypatch.setattr(npz, "MAX_BYTES", 100)
    with pytest.raises(data.DataError, match="unpacks to"):
        data.load(path)


def test_class_names_and_labels_of_any_integer_type(tmp_path):
    """Broken: figures carry numbers although the file has names."""
    names = np.array(["cat", "<dog>", "owl"])
    labels = {key: arrays()[key].astype(np.uint8) for key in ("y_train", "y_test")}
    dataset = load_npz(tmp_path, **arrays(**labels, class_names=names))
    assert dataset.class_names == ("cat", "<dog>", "owl") and dataset.y_train.dtype == np.int64
    assert "&lt;dog&gt;" in dataset._repr_html_() and "9 / 6" in dataset._repr_html_()
    plain = load_npz(tmp_path, **arrays())
    assert plain.fingerprint == dataset.fingerprint, "names and label types are not the data"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 44), key=st.sampled_from(["x_train", "x_test", "y_train"]))
def test_the_fingerprint_sees_every_byte(tmp_path, place, key):
    """Broken: results of two datasets are mixed in the store."""
    changed = arrays()
    row = changed[key].reshape(-1)
    if key == "y_train":
        i = place % len(row)
        row[[i, (i + 1) % len(row)]] = row[[(i + 1) % len(row), i]]
    else:
        row[place % len(row)] ^= 1
    assert load_npz(tmp_path, **changed).fingerprint != load_npz(tmp_path, **arrays()).fingerprint


def test_an_npz_is_read_again_when_it_changes(tmp_path):
    """Broken: the weekly retraining runs on last week's file."""
    path = tmp_path / "week.npz"
    np.savez(path, **arrays())
    first = data.load(str(path))
    assert data.load(path) is first
    np.savez(path, **arrays((6,)))
    os.utime(path, ns=(1, 1))
    assert data.load(path).input_shape == (6,)


# ----------------------------------------------------------------------------------- command line


def test_the_list_names_every_dataset_and_fetches_nothing(alone, capsys, monkeypatch):
    """Broken: looking at what is there starts downloads, or one bad file hides the rest."""
    monkeypatch.delenv("RSLIB_OFFLINE")
    monkeypatch.setattr(fetch, "get", lambda name: pytest.fail(f"fetched {name}"))
    sums = fetch.LAYOUTS["mnist"][0].sums
    (alone / "data" / "mnist").mkdir(parents=True)
    for file in sums:
        (alone / "data" / "mnist" / file).write_bytes(b"junk")
    assert data_command.main([]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(data.names()) <= set(lines)
    assert "1442+355" in lines["digits"] and "d9caa09d6b249113" in lines["digits"]
    assert "REFUSED" in lines["mnist"] and "get cifar10" in lines["cifar10"]
    for name in ("notmnist", "miniimagenet"):  # `get` has no source of them
        assert " get " not in lines[name] and "put its files into" in lines[name]


def test_the_command_line_answers_mistakes_with_a_message(alone, capsys):
    """Broken: `python -m rslib.data get mnst` ends in a traceback or in success."""
    assert data_command.main(["get", "mnst"]) == 1
    assert "Did you mean 'mnist'" in capsys.readouterr().err
    assert data_command.main(["get", "cifar100"]) == 1
    assert "cifar-100-python/ with train, test, meta" in capsys.readouterr().err
    assert data_command.main(["get", "digits"]) == 0
