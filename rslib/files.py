"""The folders that rslib reads and writes, the one way it writes a file, and seals that show damage.

`$RSLIB_STORE`, `$RSLIB_RESULTS`, `$RSLIB_DATA`, `$XDG_CACHE_HOME`, `$RSLIB_JOURNAL` and
`$RSLIB_CHECKPOINT_GB` are read here and nowhere else, each time they are needed, so that a notebook or a
test may set them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import time
from pathlib import Path

from rslib.errors import BadValue

# The checkout; of an installed package, site-packages.
REPOSITORY = Path(__file__).resolve().parents[1]


def in_checkout() -> bool:
    """Whether this is a checkout, with notebooks/ and results/, and not an installed package."""
    return (REPOSITORY / "notebooks").is_dir()


@functools.cache  # at the first call: what runs now may be edited later
def revision() -> str:
    """The checkout's git revision, marked where rslib has been edited since; else why there is none."""
    if not in_checkout():  # git would find the repository around the user's virtual environment
        return "not a git checkout"
    git = ["git", "-C", str(REPOSITORY)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True)
        edited = subprocess.run([*git, "status", "--porcelain", "rslib"], capture_output=True)
    except OSError:
        return "no git here"
    if found.returncode:
        return "not a git checkout"
    return found.stdout.decode().strip() + (" (edited)" if edited.stdout.strip() else "")


def cache() -> Path:
    """The user's cache folder for rslib."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "rslib"


def make_absolute() -> None:
    """Make the folders of $RSLIB_STORE, _DATA and _RESULTS absolute: a kernel runs in another folder."""
    for name in ("RSLIB_STORE", "RSLIB_DATA", "RSLIB_RESULTS"):
        if given := os.environ.get(name):
            folders = (_expanded(folder).absolute() for folder in given.split(os.pathsep) if folder)
            os.environ[name] = os.pathsep.join(map(str, folders))


def store() -> Path:
    """`$RSLIB_STORE`, else the cache folder: results outlive a checkout."""
    given = os.environ.get("RSLIB_STORE")
    return _expanded(given) if given else cache()


def journal() -> str | None:
    """`$RSLIB_JOURNAL`: "delete" for a store on a network drive, "wal"; None: as the store has it."""
    given = os.environ.get("RSLIB_JOURNAL") or None
    if given not in (None, "wal", "delete"):
        raise BadValue(f"RSLIB_JOURNAL must be wal or delete, got {given!r}")
    return given


def snapshot_limit() -> int:
    """Bytes that snapshots may take: `$RSLIB_CHECKPOINT_GB`, else 5 GB, which a laptop has to spare."""
    given = os.environ.get("RSLIB_CHECKPOINT_GB") or "5"
    try:
        return int(float(given) * 2**30)
    except (ValueError, OverflowError):
        raise BadValue(f"RSLIB_CHECKPOINT_GB must be a number, got {given!r}") from None


def results() -> Path:
    """`$RSLIB_RESULTS`, else `results/` of the checkout: the rows that are shipped."""
    given = os.environ.get("RSLIB_RESULTS")
    return _expanded(given) if given else REPOSITORY / "results"


def downloads() -> Path:
    """Where fetched datasets are kept: `data/` of the checkout, else a folder in the cache."""
    return REPOSITORY / "data" if in_checkout() else cache() / "data"


def data_roots() -> list[Path]:
    """The folders in `$RSLIB_DATA`, in their order."""
    listed = os.environ.get("RSLIB_DATA", "").split(os.pathsep)
    return [_expanded(folder) for folder in listed if folder]


def _expanded(folder: str) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise BadValue(f"{folder!r} begins with the name of no user here") from None


def artefact(out_dir: str | Path, kind: str, dataset: str, name: str) -> Path:
    """`<out_dir>/<kind>/<dataset>/<name>`, in characters that TeX takes: where a figure or table goes.

    A dataset may be the path of an .npz or of a folder; its name then names the folder.
    """
    own = Path(dataset).name.removesuffix(".npz")
    folder, file = (re.sub(r"[^A-Za-z0-9._+-]+", "-", s) for s in (own, name))
    if not folder.strip(".-") or not Path(file).stem.strip(".-"):
        raise BadValue(f"dataset and name must name a file, got {dataset!r} and {name!r}")
    return Path(out_dir) / kind / folder / file


def write_atomically(target: Path, content: bytes) -> Path:
    """Write all of it or nothing, even if the machine stops in between; returns the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def seal(owner: str, content: bytes) -> bytes:
    """Put a line before the content that names its owner and holds a digest of both."""
    return _seal_line(owner, content) + content


def unseal(owner: str, content: bytes) -> bytes:
    """Take the line of `seal` off; raises ValueError after any change and for another owner."""
    line, _, rest = content.partition(b"\n")
    if line + b"\n" != _seal_line(owner, rest):
        raise ValueError(f"this is not the {owner} that was written; it begins with {line[:120]!r}")
    return rest


def _seal_line(owner: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{owner}\n".encode())
    digest.update(content)
    return f"rslib {owner} {digest.hexdigest()}\n".encode()
