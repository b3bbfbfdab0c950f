"""Users' .npz files, and folders of them, checked before anything is trained on them.

Everything that could spoil a run hours later is looked at when a file is read, and the message says
which array is at fault. A folder is a sequence of tasks: one file per task, sorted by name, numbers in
names by their size.
"""

import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rslib.data.known import DataError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
MAX_BYTES = 1 << 33  # once unpacked: a small file must not fill the memory unasked
# An archive that grows this much, to more than this many bytes, is taken for a bomb.
MAX_RATIO, HARMLESS_BYTES = 200, 1 << 28
SCALES = {
    "features": "every feature (of images: every channel) scaled to mean 0 and deviation 1 by the "
    "training split of task 1, and cut at 10 deviations",
    "none": "used as it is, without scaling (scale = none)",
}


class Contents(NamedTuple):
    """What a user's file or folder holds, in the form `rslib.data` keeps it."""

    arrays: tuple[np.ndarray, ...]
    class_names: tuple[str, ...]
    provenance: str
    scale: str | None  # a key of SCALES; None: uint8, which is divided by 255
    task_sizes: tuple[tuple[int, int], ...]  # of a folder: training and test samples per file


def read(path: Path) -> Contents:
    """Read and check a user's .npz, or all .npz files of a folder."""
    if not path.is_dir():
        files, said = [path], f"The user's file {path.name}"
    else:
        found = (file for file in path.glob("*.npz") if not file.name.startswith("."))
        files = sorted(found, key=_in_order)
        names = ", ".join(file.name for file in files)
        said = f"The user's folder {path.name}, one task per file ({names})"
        if len(files) < 2:
            raise DataError(
                f"{path}: a folder is a sequence of tasks and needs two .npz files or more; this "
                f"folder has {names or 'none'}"
            )
    parts = [_read_file(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        for what, here in _kind(part).items():
            if here != (first := _kind(parts[0])[what]):
                raise DataError(f"{file}: {what} is {here}, but {first} in {files[0].name}")
    try:
        x_train, y_train, x_test, y_test = (np.concatenate([p[a] for p in parts]) for a in ARRAYS)
        n_classes = _check_classes(y_train, y_test)
        class_names = _check_class_names(parts[0]["class_names"], n_classes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    scale = str(parts[0]["scale"]) or None
    sizes = tuple((len(part["y_train"]), len(part["y_test"])) for part in parts)
    return Contents(
        (x_train, y_train, x_test, y_test),
        class_names,
        f"{said}, {SCALES[scale] if scale else 'uint8 kept as it is'}.",
        scale,
        sizes if path.is_dir() else (),
    )


def _in_order(file: Path) -> tuple[list, str]:
    """Sort week2 before week10: the words and the numbers of a name in turn."""
    parts = re.split(r"([0-9]+)", file.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], file.name


def _read_file(path: Path) -> dict[str, np.ndarray]:
    """Read one file: the four arrays, `class_names` (empty: none) and `scale` (empty: uint8)."""
    try:
        found = _open_npz(path)
        found["x_train"], found["x_test"] = _check_inputs(found["x_train"], found["x_test"])
        for part in ("train", "test"):
            x, y = found[f"x_{part}"], _check_labels(f"y_{part}", found[f"y_{part}"])
            if len(x) != len(y):
                raise DataError(f"x_{part} has {len(x)} rows, y_{part} {len(y)}")
        floats = found["x_train"].dtype != np.uint8
        scale = str(found.get("scale", "features" if floats else ""))
        if scale not in SCALES and (floats or scale):
            raise DataError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        if scale and not floats:
            raise DataError("scale is for floats; uint8 is divided by 255. Leave scale out")
        return {"class_names": np.array([])} | found | {"scale": np.array(scale)}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _kind(part: dict[str, np.ndarray]) -> dict[str, object]:
    """What the files of a folder must have in common."""
    return {
        "the shape of an input": part["x_train"].shape[1:],
        "scale": str(part["scale"]) or "that of uint8",
        "class_names": part["class_names"].tolist(),
    }


def _open_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise DataError(f"it unpacks to {size} bytes, more than the {MAX_BYTES} allowed")
        if size > max(HARMLESS_BYTES, MAX_RATIO * path.stat().st_size):
            raise DataError(
                f"it unpacks to {size} bytes, more than {MAX_RATIO} times its own size. If you "
                "trust it, save it with np.savez instead of np.savez_compressed"
            )
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            if lacking := [key for key in ARRAYS if key not in npz]:
                raise DataError(f"it lacks {', '.join(lacking)}; it has {', '.join(npz) or 'none'}")
            return {key: npz[key] for key in (*ARRAYS, "class_names", "scale") if key in npz}
    except DataError:
        raise
    # zlib.error and the like have no common base; whatever breaks here, the file is at fault
    except Exception as error:
        raise DataError(f"it cannot be read as an .npz of plain arrays ({error})") from None


def _check_inputs(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with the channels first, as uint8 or as floats in which large whole numbers stay exact."""
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
        return train, test
    if train.min() == train.max():
        raise DataError(f"x_train is {train.flat[0]} everywhere: nothing can be learned from it")
    if train.dtype == test.dtype == np.float32:
        return train, test
    return train.astype(np.float64), test.astype(np.float64)


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


def _check_labels(key: str, y: np.ndarray) -> np.ndarray:
    if y.ndim != 1 or len(y) == 0:
        raise DataError(f"{key} has shape {y.shape}; it must be (N,), and not empty")
    if y.dtype.kind not in "ui":
        raise DataError(f"{key} has dtype {y.dtype}; labels must be integers 0, 1, 2, ...")
    if y.min() < 0:
        raise DataError(f"{key} has the label {y.min()}; labels must be integers 0, 1, 2, ...")
    return y


def _check_classes(train: np.ndarray, test: np.ndarray) -> int:
    """Count the classes; no label may be skipped."""
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


def _check_class_names(given: np.ndarray, n_classes: int) -> tuple[str, ...]:
    if given.shape == (0,):
        return tuple(map(str, range(n_classes)))
    if given.shape != (n_classes,):
        raise DataError(f"class_names has shape {given.shape}, but there are {n_classes} classes")
    return tuple(map(str, given.tolist()))
