"""Named datasets, and users' .npz files, as plain arrays.

What it is: `load(name_or_path)` gives a `Dataset`: uint8 images, integer labels, class names, a
fingerprint of the arrays and a sentence on where they came from. `python -m rslib.data` lists what
is there, `python -m rslib.data get mnist` fetches one.
What it is not: tasks (rslib.scenario cuts and permutes), downloads (rslib.fetch) or tensors.

`digits`, `permuteddigits`, `glyphs` and `glyphs2` are embedded: no download, no file to find.
"""

import argparse
import difflib
import functools
import hashlib
import html
import os
import re
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rslib import fetch, glyphs
from rslib.fetch import DataError

__all__ = ["DataError", "Dataset", "load", "names"]

_EMBEDDED = ("digits", "glyphs", "glyphs2")
# The same arrays under a second name, which tells the scenario to permute pixels.
_SAME_ARRAYS = {"permuteddigits": "digits", "permutedmnist": "mnist"}
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MAX_NPZ = 1 << 33  # bytes once unpacked: a small file must not fill the memory unasked


@dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays are read-only, because `load` hands the same ones to every caller."""

    name: str
    x_train: np.ndarray  # (n, channels, height, width) uint8; users' also (n, features), float32
    y_train: np.ndarray  # (n,) int64, 0..n_classes-1
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]
    fingerprint: str  # sha256 over dtype, shape and bytes of the four arrays
    provenance: str  # one sentence: where it came from
    subset: str | None = None  # for captions, such as "subset, 100 images per class"

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x_train.shape[1:]

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.x_train)} + {len(self.x_test)}, "
            f"{self.n_classes} classes, {self.input_shape}, {self.fingerprint[:12]})"
        )

    def _repr_html_(self) -> str:
        rows = {
            "dataset": self.name + (f" ({self.subset})" if self.subset else ""),
            "training / test": f"{len(self.x_train):,} / {len(self.x_test):,}",
            "classes": f"{self.n_classes}: {', '.join(self.class_names[:10])}"
            + (", ..." if self.n_classes > 10 else ""),
            "input": f"{' x '.join(map(str, self.input_shape))}, {self.x_train.dtype}",
            "fingerprint": self.fingerprint[:16],
            "provenance": self.provenance,
        }
        cells = (f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items())
        return f"<table>{''.join(cells)}</table>"


def names() -> list[str]:
    """The names that `load` knows, embedded ones first."""
    return [*_EMBEDDED, "permuteddigits", *fetch.LAYOUTS, "permutedmnist"]


def load(name_or_path: str | Path) -> Dataset:
    """A dataset by name, or from the path of an .npz; fetched if need be, kept in memory."""
    return _load(name_or_path, download=True)


def canonical(name_or_path: str | Path) -> str:
    """A name as we spell it ('Fashion-MNIST' is fashionmnist); a path stays what it is."""
    text = os.fspath(name_or_path)
    return text if _is_path(name_or_path) else _known(text)


def _is_path(name_or_path: str | Path) -> bool:
    text = os.fspath(name_or_path)
    return text.lower().endswith(".npz") or isinstance(name_or_path, Path) or os.sep in text


def _load(name_or_path: str | Path, download: bool) -> Dataset:
    text = os.fspath(name_or_path)
    if _is_path(name_or_path):
        path = Path(text).expanduser().resolve()
        if path.suffix.lower() != ".npz" or not path.is_file():
            raise DataError(f"{text}: there is no such .npz file")
        stat = path.stat()
        return _read_npz(path, (stat.st_mtime_ns, stat.st_size))
    name = _known(text)
    if name in _SAME_ARRAYS:
        return replace(_load(_SAME_ARRAYS[name], download), name=name)
    if name in _EMBEDDED:
        return _read_embedded(name)
    found = fetch.find(name)
    if found is None and not download:
        raise fetch.missing(name, [])
    return _read_found(found or fetch.get(name))


def _known(text: str) -> str:
    """The name as we spell it, or an error that suggests one."""
    name = re.sub(r"[^a-z0-9]", "", text.lower())
    if name in names():
        return name
    close = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise DataError(
        f"{text!r} is no known dataset.{guess} Known: {', '.join(names())}; "
        "or give the path of an .npz file."
    )


def _make(
    name: str,
    arrays: tuple[np.ndarray, ...],
    class_names: tuple[str, ...],
    provenance: str,
    subset: str | None = None,
) -> Dataset:
    x_train, y_train, x_test, y_test = map(np.ascontiguousarray, arrays)
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    digest = hashlib.sha256()
    for part in (x_train, y_train, x_test, y_test):
        part.flags.writeable = False
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(part.data)
    fingerprint = digest.hexdigest()
    return Dataset(
        name, x_train, y_train, x_test, y_test, class_names, fingerprint, provenance, subset
    )


@functools.cache
def _read_embedded(name: str) -> Dataset:
    if name in glyphs.LETTERS:
        letters = glyphs.LETTERS[name]
        said = f"Letters {letters[0]}-{letters[-1]} drawn by rslib.glyphs from matplotlib's fonts."
        return _make(name, glyphs.load(name), tuple(letters), said)
    from sklearn.datasets import load_digits

    pixels, y = map(np.asarray, load_digits(return_X_y=True))  # (1797, 64) in 0..16, (1797,)
    x = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    # An own split, since scikit-learn's splitter may change with its version: every class gives
    # a fifth of its images, drawn from numpy's frozen legacy stream, to the test set.
    random = np.random.RandomState(0)
    test = np.zeros(len(y), bool)
    for label in range(10):
        mine = random.permutation(np.flatnonzero(y == label))
        test[mine[: len(mine) // 5]] = True
    said = "scikit-learn's 8x8 digits (values 0-16 scaled to 0-255), fixed stratified 80/20 split."
    return _make(name, (x[~test], y[~test], x[test], y[test]), tuple("0123456789"), said)


# Keyed by the files' modification times too, so that a changed file is read, and verified, again.
@functools.lru_cache(maxsize=6)
def _read_found(found: fetch.Found) -> Dataset:
    (*arrays, class_names), provenance = fetch.read(found)
    return _make(found.name, tuple(arrays), class_names, provenance, found.layout.subset)


# ------------------------------------------------------------------------------------ users' .npz


@functools.lru_cache(maxsize=6)
def _read_npz(path: Path, stamp: tuple[int, int]) -> Dataset:
    """Check everything that could spoil a run hours later, and say which array is at fault."""
    try:
        arrays = _open_npz(path)
        x_train, x_test, scaling = _check_inputs(arrays["x_train"], arrays["x_test"])
        n_classes = _check_labels(arrays["y_train"], arrays["y_test"])
        for part, x in (("train", x_train), ("test", x_test)):
            if len(x) != len(arrays[f"y_{part}"]):
                raise DataError(f"x_{part} has {len(x)} rows, y_{part} {len(arrays[f'y_{part}'])}")
        class_names = _check_class_names(arrays.get("class_names"), n_classes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    said = f"The user's file {path.name}, {scaling}."
    everything = (x_train, arrays["y_train"], x_test, arrays["y_test"])
    return _make(path.stem, everything, class_names, said)


def _open_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _MAX_NPZ:
            raise DataError(f"it unpacks to {size} bytes, more than the {_MAX_NPZ} allowed")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            if lacking := [key for key in _ARRAYS if key not in npz]:
                raise DataError(f"it lacks {', '.join(lacking)}; it has {', '.join(npz) or 'none'}")
            return {key: npz[key] for key in (*_ARRAYS, "class_names") if key in npz}
    except DataError:
        raise
    # zlib.error and the like have no common base; whatever breaks here, the file is at fault
    except Exception as error:
        raise DataError(f"it cannot be read as an .npz of plain arrays ({error})") from None


def _check_inputs(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    parts = {"x_train": train, "x_test": test}
    for key, x in parts.items():
        if x.dtype.kind not in "buif":
            raise DataError(f"{key} has dtype {x.dtype}; it must hold numbers")
        if x.ndim not in (2, 3, 4) or 0 in x.shape:
            raise DataError(
                f"{key} has shape {x.shape}; it must be (N, F), (N, H, W), (N, H, W, C) or "
                "(N, C, H, W), and not empty"
            )
        if x.dtype.kind == "f" and not (good := np.isfinite(x)).all():
            row = int(np.argwhere(~good)[0][0])
            bad = int(x.size - good.sum())
            raise DataError(f"{key} has {bad} NaN or infinite values, the first in row {row}")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"x_train rows have shape {train.shape[1:]}, x_test rows {test.shape[1:]}")
    if train.dtype != test.dtype and np.uint8 in (train.dtype, test.dtype):
        raise DataError(f"x_train is {train.dtype} but x_test is {test.dtype}; which scale holds?")
    train, test = _channels_first(train), _channels_first(test)
    if train.dtype == np.uint8:
        return train, test, "uint8 kept as it is"
    low, high = float(train.min()), float(train.max())
    if not 0 < high - low < float("inf"):
        raise DataError(f"x_train goes from {low} to {high}, which cannot be scaled to 0..1")
    scaled = [
        np.clip((x.astype(np.float64) - low) / (high - low), 0, 1).astype(np.float32)
        for x in (train, test)
    ]
    said = f"scaled from the training minimum {low:g} and maximum {high:g} to 0..1 (test clipped)"
    return scaled[0], scaled[1], said


def _channels_first(x: np.ndarray) -> np.ndarray:
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1], x.shape[3]
    if last in (1, 3) and first in (1, 3) and x.shape[2] != 1:
        raise DataError(f"shape {x.shape} can be read as (N, H, W, C) and as (N, C, H, W)")
    if last in (1, 3):
        return x.transpose(0, 3, 1, 2)
    if first > min(x.shape[2:]):  # such as (N, 16, 16, 4): more likely four channels at the end
        raise DataError(f"shape {x.shape}: channels last must be 1 or 3; else use (N, C, H, W)")
    return x


def _check_labels(train: np.ndarray, test: np.ndarray) -> int:
    for key, y in (("y_train", train), ("y_test", test)):
        if y.ndim != 1 or len(y) == 0:
            raise DataError(f"{key} has shape {y.shape}; it must be (N,), and not empty")
        if y.dtype.kind not in "ui":
            raise DataError(f"{key} has dtype {y.dtype}; labels must be integers 0, 1, 2, ...")
        if y.min() < 0:
            raise DataError(f"{key} has the label {y.min()}; labels must be integers 0, 1, 2, ...")
    n_classes = int(max(train.max(), test.max())) + 1
    for key, y in (("y_train", train), ("y_test", test)):
        present = np.unique(y)
        if len(present) < n_classes:
            hole = next((i for i, label in enumerate(present) if i != label), len(present))
            raise DataError(
                f"{key} has no example of class {hole}, though labels go up to {n_classes - 1}; "
                "labels must not skip, and every class needs training and test examples"
            )
    return n_classes


def _check_class_names(given: np.ndarray | None, n_classes: int) -> tuple[str, ...]:
    if given is None:
        return tuple(map(str, range(n_classes)))
    if given.shape != (n_classes,):
        raise DataError(f"class_names has shape {given.shape}, but there are {n_classes} classes")
    return tuple(map(str, given.tolist()))


# ------------------------------------------------------------------------------- the command line


def _row(name: str) -> list[str]:
    base = _SAME_ARRAYS.get(name, name)
    found = fetch.find(base) if base in fetch.LAYOUTS else None
    if found is None and base in fetch.LAYOUTS:
        return [name, "no", "", "", "", "", f"python -m rslib.data get {base}"]
    try:
        dataset = _load(name, download=False)
    except DataError as error:
        return [name, "REFUSED", "", "", "", "", str(error)]
    size = sum(getattr(dataset, key).nbytes for key in _ARRAYS)
    counts = f"{len(dataset.x_train)}+{len(dataset.x_test)}"
    shape = "x".join(map(str, dataset.input_shape))
    where = str(found.folder) if found else "embedded"
    where += f" ({dataset.subset})" if dataset.subset else ""
    numbers = [counts, f"{dataset.n_classes} of {shape}", f"{size / 1e6:.1f} MB"]
    return [name, "yes", *numbers, dataset.fingerprint[:16], where]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rslib.data", description="List every dataset, or fetch some."
    )
    commands = parser.add_subparsers(dest="command")
    getter = commands.add_parser("get", help="fetch datasets into data/")
    getter.add_argument("name", nargs="+")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "get":
            for name in map(_known, chosen.name):
                base = _SAME_ARRAYS.get(name, name)
                if base in fetch.LAYOUTS:
                    print(f"{name}: in {fetch.get(base).folder}")
                print(load(name))
            return 0
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    table = [["name", "here", "train+test", "classes", "size", "fingerprint", "where"]]
    for name in names():  # never downloads
        table.append(_row(name))
        _read_found.cache_clear()  # one dataset in memory at a time
    widths = [max(len(row[i]) for row in table) for i in range(6)] + [0]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
