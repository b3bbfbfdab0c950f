"""Where the files of the downloadable datasets come from, and why their bytes can be believed.

What it is: the search for the files of `rslib.data.known` along `$RSLIB_DATA` and `data/`, and the
fetching of what is missing from `rslib.data.sources`, one process at a time.
What it is not: the public API (rslib.data), nor a place that trusts anything. A file is read once
into memory, its sum is compared, and only those same bytes are parsed.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from rslib import files
from rslib.data import sources
from rslib.data.known import LAYOUTS, MAX_BYTES, Arrays, DataError, Layout, gunzip

OWN = files.downloads()

# ------------------------------------------------------------------------------ finding, verifying


class Found(NamedTuple):
    """A complete set of files, not yet verified; hashable, and different when a file changes."""

    name: str
    layout: Layout
    folder: Path
    stamp: tuple[int, ...]  # modification times


def roots() -> list[Path]:
    return [*files.data_roots(), OWN]


def _folders(root: Path, below: str) -> list[Path]:
    """The folders under `root` whose path is `below` in any mixture of upper and lower case."""
    level = [root]
    for part in below.split("/"):
        level = [
            child
            for folder in level
            if folder.is_dir()
            for child in sorted(folder.iterdir())
            if child.name.lower() == part.lower() and child.is_dir()
        ]
    return level


def _path(folder: Path, name: str) -> Path | None:
    choices = [folder / name] + ([] if name.endswith(".gz") else [folder / f"{name}.gz"])
    return next((path for path in choices if path.is_file()), None)


def find(name: str, places: list[Path] | None = None) -> Found | None:
    """The first complete set of files along the search path; a subset only if nothing is whole."""
    best: Found | None = None
    for root in roots() if places is None else places:
        for layout in LAYOUTS[name]:
            for folder in (f for below in layout.folders for f in _folders(root, below)):
                paths = [_path(folder, file) for file in layout.sums]
                if None in paths:
                    continue
                if best is None or (best.layout.subset and not layout.subset):
                    stamp = tuple(path.stat().st_mtime_ns for path in paths if path)
                    best = Found(name, layout, folder, stamp)
    return best


def _verified(folder: Path, name: str, digest: str) -> bytes:
    """The content of one file, if its sum is right; a wrong file is refused by name.

    Only a file in our own folder is removed: what lies in `$RSLIB_DATA` is the user's.
    """
    path = _path(folder, name)
    if path is None:
        raise DataError(f"{folder / name} has just disappeared; try again")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"it has more than {MAX_BYTES} bytes")
        raw = path.read_bytes()
        if path != folder / name:
            raw = gunzip(raw)
        kind = "md5" if len(digest) == 32 else "sha256"
        got = hashlib.new(kind, raw, usedforsecurity=False).hexdigest()
        if got != digest:
            raise DataError(f"its {kind} is {got}, not {digest}")
    except DataError as error:
        ours = path.resolve().is_relative_to(OWN.resolve())
        if ours:
            path.unlink(missing_ok=True)
        end = "removed; ask again to fetch it anew" if ours else "not deleted, since it is yours"
        raise DataError(f"{path} is refused: {error}. It was {end}.") from None
    return raw


def read(found: Found) -> tuple[Arrays, str]:
    """Verify every file, then parse the verified bytes. Returns the arrays and the provenance."""
    contents: dict[str, bytes] = {}
    for name, digest in found.layout.sums.items():
        raw = _verified(found.folder, name, digest)
        contents[name.removesuffix(".gz")] = gunzip(raw) if name.endswith(".gz") else raw
    note = found.folder / _SOURCE
    source = f"from {note.read_text()[:200].strip()}, " if note.is_file() else ""
    return found.layout.read(contents), f"{found.layout.says}; {source}checksums verified."


# -------------------------------------------------------------------------------------- fetching

# What a source may fail with; then the next one is tried. (DataError is a ValueError.)
_FAILURES = (ValueError, OSError, ImportError, RuntimeError, subprocess.SubprocessError)
_SOURCE = "SOURCE.txt"  # one line beside fetched files: where they came from


def missing(name: str, tried: list[str]) -> DataError:
    wanted = "\n".join(
        f"  {layout.folders[0]}/ with {', '.join(layout.sums)}" for layout in LAYOUTS[name]
    )
    places = "\n".join(
        f"  {root}{'' if root.is_dir() else ' (no such folder)'}" for root in roots()
    )
    attempts = "".join(f"\n  {line}" for line in tried) or " nothing"
    return DataError(
        f"{name} is not here. Looked in:\n{places}\nTried:{attempts}\nPut one of these into a "
        f"folder listed in $RSLIB_DATA, or into {OWN}:\n{wanted}\n"
        "or give the path of an .npz with x_train, y_train, x_test, y_test instead of a name."
    )


def get(name: str) -> Found:
    """Fetch a dataset into `data/`, unless it is already complete somewhere on the search path."""
    if (found := find(name)) and not found.layout.subset:
        return found
    if os.environ.get("RSLIB_OFFLINE", "") not in ("", "0"):
        raise missing(name, ["no download, because RSLIB_OFFLINE is set"])
    tried = []
    try:
        OWN.mkdir(parents=True, exist_ok=True)
        with FileLock(OWN / f".{name}.lock"):  # one process fetches, the others wait
            for leftover in OWN.glob(f".{name}-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            # Whoever held the lock before us may have fetched it.
            if (found := find(name)) and not found.layout.subset:
                return found
            for source in (sources.from_torchvision, sources.from_registry):
                with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=OWN) as folder:
                    try:
                        note = source(name, Path(folder))
                        return _install(name, Path(folder), note)
                    except _FAILURES as error:
                        tried.append(str(error))
    except OSError as error:  # a read-only checkout, for example
        tried.append(str(error))
    raise missing(name, tried)


def _install(name: str, staging: Path, note: str) -> Found:
    """Move verified files from the staging folder to where `find` sees them, each in one step."""
    staged = find(name, [staging])
    if staged is None:
        raise DataError(f"{note}: the files are not there after unpacking")
    contents = {_SOURCE: f"{note}\n".encode()}
    for file, digest in staged.layout.sums.items():
        contents[file] = _verified(staged.folder, file, digest)
    target = OWN / staged.layout.folders[0]
    for file, raw in contents.items():
        files.write_atomically(target / file, raw)
    found = find(name, [OWN])
    assert found is not None
    return found
