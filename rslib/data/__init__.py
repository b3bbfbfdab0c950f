"""Named datasets, and users' .npz files, as plain arrays.

What it is: `load(name_or_path)` gives a `Dataset`: uint8 images, integer labels, class names, a
fingerprint of the arrays and a sentence on where they came from. `python -m rslib.data` lists what
is there, `python -m rslib.data get mnist` fetches one.
What it is not: tasks (rslib.scenario cuts and permutes), downloads (rslib.data.fetch) or tensors.

`digits`, `permuteddigits`, `glyphs` and `glyphs2` are embedded: no download, no file to find.
"""

import difflib
import functools
import hashlib
import html
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rslib.data import fetch, glyphs, npz
from rslib.data.fetch import DataError

__all__ = ["DataError", "Dataset", "at_hand", "load", "names"]

_EMBEDDED = ("digits", "glyphs", "glyphs2")
# The same arrays under a second name, which tells the scenario to permute pixels.
SAME_ARRAYS = {"permuteddigits": "digits", "permutedmnist": "mnist"}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays are read-only, because `load` hands the same ones to every caller."""

    name: str
    x_train: np.ndarray  # (n, channels, height, width) uint8; users' also (n, features), floats
    y_train: np.ndarray  # (n,) int64, 0..n_classes-1
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]
    fingerprint: str  # sha256 over dtype, shape and bytes of the arrays, scale and task_sizes
    provenance: str  # one sentence: where it came from
    subset: str | None = None  # for captions, such as "subset, 100 images per class"
    scale: str | None = None  # of users' floats: "features" or "none" (rslib.scenario scales)
    task_sizes: tuple[tuple[int, int], ...] = ()  # of a folder: (train, test) samples of every file

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


def load(name_or_path: str | Path, download: bool = True) -> Dataset:
    """Load a dataset and keep it in memory.

    name_or_path: a name (`rslib.data.names()` lists them), or the path of an .npz or of a folder of them
    download: fetch the files if they are not on this machine; False raises DataError instead
    """
    text = os.fspath(name_or_path)
    if is_path(name_or_path):
        try:
            path = Path(text).expanduser().resolve()
            exists = path.is_dir() or (path.suffix.lower() == ".npz" and path.is_file())
            stats = [file.stat() for file in (*path.glob("*.npz"), path)] if exists else []
        except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL, of no user
            raise DataError(
                f"{text[:80]!r} is no path that this system can open ({error})"
            ) from None
        if not exists:
            raise DataError(
                f"{text[:80]}: no such .npz file and no such folder of .npz files exists"
            )
        return _read_npz(path, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))
    name = _known(text)
    if name in SAME_ARRAYS:
        return replace(load(SAME_ARRAYS[name], download), name=name)
    if name in _EMBEDDED:
        return _read_embedded(name)
    found = fetch.find(name)
    if found is None and not download:
        raise fetch.missing(name, [])
    return read_found(found or fetch.get(name))


def at_hand(name_or_path: str | Path) -> bool:
    """Whether it is on this machine, as far as can be told without reading it."""
    if is_path(name_or_path):
        return True  # or else `load` says what is wrong with the path
    name = _known(os.fspath(name_or_path))
    base = SAME_ARRAYS.get(name, name)
    return base in _EMBEDDED or fetch.find(base) is not None


def canonical(name_or_path: str | Path) -> str:
    """A name as we spell it ('Fashion-MNIST' is fashionmnist); a path stays what it is."""
    text = os.fspath(name_or_path)
    if not is_path(name_or_path):
        return _known(text)
    return os.path.join(os.curdir, text) if is_name(text) else text  # Path("mnist") is no name


def is_path(name_or_path: str | Path) -> bool:
    """Whether it is a user's .npz or folder; a known name is never taken for a folder beside us."""
    text = os.fspath(name_or_path)
    if text.lower().endswith(".npz") or isinstance(name_or_path, Path) or os.sep in text:
        return True
    return not is_name(text) and os.path.isdir(text)


def is_name(text: str) -> bool:
    """Whether `load` knows this name, in any spelling."""
    return _spelt(text) in names()


def is_folder(name_or_path: str | Path) -> bool:
    """Whether it is a folder of .npz files, each of them a task."""
    text = os.fspath(name_or_path)
    return is_path(name_or_path) and (not text.lower().endswith(".npz") or os.path.isdir(text))


def _spelt(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _known(text: str) -> str:
    """The name as we spell it, or an error that suggests one."""
    name = _spelt(text)
    if name in names():
        return name
    close = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise DataError(
        f"{text!r} is no known dataset.{guess} Known: {', '.join(names())}; "
        "or give the path of an .npz file or of a folder of them."
    )


def _make(
    name: str,
    arrays: tuple[np.ndarray, ...],
    class_names: tuple[str, ...],
    provenance: str,
    scale: str | None = None,
    task_sizes: tuple[tuple[int, int], ...] = (),
    subset: str | None = None,
) -> Dataset:
    x_train, y_train, x_test, y_test = map(np.ascontiguousarray, arrays)
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    digest = hashlib.sha256()
    for part in (x_train, y_train, x_test, y_test):
        part.flags.writeable = False
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(part.data)
    if scale or task_sizes:
        digest.update(repr((scale, task_sizes)).encode())
    about = (class_names, digest.hexdigest(), provenance, subset, scale, task_sizes)
    return Dataset(name, x_train, y_train, x_test, y_test, *about)


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
def _read_npz(path: Path, stamp: tuple[tuple[int, int], ...]) -> Dataset:
    return _make(path.name.removesuffix(".npz"), *npz.read(path))


@functools.lru_cache(maxsize=6)
def read_found(found: fetch.Found) -> Dataset:
    (*arrays, class_names), provenance = fetch.read(found)
    return _make(found.name, tuple(arrays), class_names, provenance, subset=found.layout.subset)
