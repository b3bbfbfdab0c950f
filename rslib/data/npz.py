"""Users' .npz files, checked before anything is trained on them.

Everything that could spoil a run hours later is looked at when the file is read, and the message says
which array is at fault.
"""

import zipfile
from pathlib import Path

import numpy as np

from rslib.data.known import DataError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
MAX_BYTES = 1 << 33  # once unpacked: a small file must not fill the memory unasked


def read(path: Path) -> tuple[tuple[np.ndarray, ...], tuple[str, ...], str]:
    """The four arrays in the form `rslib.data` keeps them, the class names, and where it is from."""
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
    everything = (x_train, arrays["y_train"], x_test, arrays["y_test"])
    return everything, class_names, f"The user's file {path.name}, {scaling}."


def _open_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise DataError(f"it unpacks to {size} bytes, more than the {MAX_BYTES} allowed")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            if lacking := [key for key in ARRAYS if key not in npz]:
                raise DataError(f"it lacks {', '.join(lacking)}; it has {', '.join(npz) or 'none'}")
            return {key: npz[key] for key in (*ARRAYS, "class_names") if key in npz}
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
