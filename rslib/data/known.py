"""The known file layouts of the downloadable datasets: names, checksums, and bytes to arrays.

What it is: one table, `LAYOUTS`, of the files each dataset may come as, with a checksum for every file
and the function that parses their bytes. What it is not: it finds and fetches nothing, which is the task
of `rslib.data.fetch`, and a reader is only ever handed bytes whose sum has been compared. Archives are
opened without trusting them: no pickle but of plain arrays, no member by its own path, and a bound on
every size.
"""

import gzip
import io
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rslib.errors import UserError

MAX_BYTES = 1 << 28  # no file of any dataset below, packed or unpacked, is larger than 256 MiB


class DataError(UserError, ValueError):
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


def _read_cifar100_sheets(files: Files) -> Arrays:
    """Lossless pictures of 50 x 50 images each, in the authors' order."""
    from PIL import Image

    def images(part: str) -> np.ndarray:
        sheets = []
        for name in sorted(name for name in files if name.startswith(f"sheets/{part}_")):
            with Image.open(io.BytesIO(files[name]), formats=["WEBP"]) as picture:
                pixels = np.asarray(picture.convert("RGB")).reshape(50, 32, 50, 32, 3)
            sheets.append(pixels.transpose(0, 2, 4, 1, 3).reshape(2500, 3, 32, 32))
        return np.concatenate(sheets)

    names = json.loads(files["labels.json"])["fine_label_names"]
    with np.load(io.BytesIO(files["sheets/labels.npz"]), allow_pickle=False) as npz:
        labels = npz["y_train"], npz["y_test"]
    return Arrays(images("train"), labels[0], images("test"), labels[1], tuple(names))


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
SUMS = """
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
868b09c1a39e0abc91c3f6d764ec5a98c7cbc3de7906bfa3059d8d34d04f096d cifar100/sheets/labels.npz
f2adc9b94f84d0afb1a65c7b845465d189d5736b87d5d5fea9b1f5b135d5df30 cifar100/sheets/test_00.webp
5ff825f31700771a5895d3ed7d7508f1936df34a57bbfceb283d4f5b38669022 cifar100/sheets/test_01.webp
41d611b9b5c4f81e16ba15cbb8af0f6fc24a5bd356ab013f1df41edc047480cb cifar100/sheets/test_02.webp
d307fb510e08e4da95027de023325dff04f77bd361b6510993d90db8ad94bb10 cifar100/sheets/test_03.webp
66ceb015720cd0eff6005f23b8bb77bca4646d9f38ce3c97c86730a241150e21 cifar100/sheets/train_00.webp
27b3ea512196d54f7a380ce8d6814d31b5c6491d14919f70781a48af8a5372e0 cifar100/sheets/train_01.webp
4d52e3af0471b617874ef1dc74d66e67999d3f211bf9f5d24c89c95e65cd222d cifar100/sheets/train_02.webp
dcde0090ad8589791bc5e0e19ecbec1d88617432dbbb005ce0f829c2d58ffd8f cifar100/sheets/train_03.webp
b6b04d7d13b52b3f55b088dab0e9f6d452e3b41e96d53640f94d963d98180407 cifar100/sheets/train_04.webp
ee9bc9aa6fe7ad2f50c7b3cd94bd1ee5b722286b9778179b8db4c9adfa6f5ab8 cifar100/sheets/train_05.webp
75b678d3fe884e13528ccd73a027e8c980c86c1e6e444d5c60a57b38d9ffe48a cifar100/sheets/train_06.webp
cca59da42f3173f4cf81de32a10180ea01d7e454651b7ddb55b116f81100ff62 cifar100/sheets/train_07.webp
d7f61e79c12d0311d2190556c34a96bae76a7ef62efe88346af6c4ffc8520824 cifar100/sheets/train_08.webp
11f41e06ac39f9b1d6f40b15f4d20f3b9672e5856860596e96971d187d301102 cifar100/sheets/train_09.webp
97289f1645cefb1466dd252ae568c12427528ede32172a3df98603afb1c1ca63 cifar100/sheets/train_10.webp
09ab29c41e61b15520f6526321a3981e9c4ef984d7d501523655753a0f0d805a cifar100/sheets/train_11.webp
4fa79fd35e1af39fae1cf5a9d249d02fa58d5cafd5507e5af70519ae73926eb0 cifar100/sheets/train_12.webp
562ea7e28cfeb5268045991470bb1b04ed79600f28e98e0f6eb9cbce23fca107 cifar100/sheets/train_13.webp
76cc4518b9af523c48b47ff9b0bdb90a2f8efa4c44f85e1c91827632cdc41f09 cifar100/sheets/train_14.webp
f47209187802b5719c4ec2d4ac01aa75f826b9e968f65a8e296f35cdf87b4305 cifar100/sheets/train_15.webp
7b22797adba021d6acf96be2ecb1e11627a79bf0d3accaa711a396c58fb6540e cifar100/sheets/train_16.webp
3c70fb86a4a2209c6ec3dbea52c57c3da1a4fb5d0fca58f23f578a7b8aef7780 cifar100/sheets/train_17.webp
3eaafa0f28e81e0a0b852f8245001cc3dc73800a3ce89457df5f56994300eec3 cifar100/sheets/train_18.webp
c0215eccab9984b93b4b7652f8a6641cfed85e26e686a903d85faf84338f3189 cifar100/sheets/train_19.webp
a6ed614a94ca39f672dd5401ed63bbcae21fc5567b36da10fea629c1890302c3 miniImagenet/miniimagenet84_train100_test20_per_class.zip
"""  # noqa: E501


class Layout(NamedTuple):
    """A set of files in a folder below a root; the folder in any upper or lower case."""

    folders: tuple[str, ...]  # the first is the one in SUMS, and where fetched files go
    read: Callable[[Files], Arrays]
    says: str  # for the provenance
    subset: str | None = None
    # Those of SUMS that belong to it, as a pattern: a folder may hold two layouts.
    files: str = "[^/]+"

    @property
    def sums(self) -> dict[str, str]:
        """File name to checksum."""
        pairs = (line.split() for line in SUMS.split("\n") if line)
        start = f"{self.folders[0]}/"
        below = {file.removeprefix(start): s for s, file in pairs if file.startswith(start)}
        return {file: s for file, s in below.items() if re.fullmatch(self.files, file)}


_SUBSET = "subset, 100 images per class"
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(",")
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
IDX = tuple(f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))
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
            _read_cifar100_sheets,
            "CIFAR-100, all of it as lossless pictures of 2,500 images, fine labels",
            files=r"sheets/.+|labels\.json",
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
