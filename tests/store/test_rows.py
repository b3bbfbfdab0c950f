"""Shipped results where the data behind them are not: drawn from rows, never trained on a guess."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import sklearn
from small_environment import small

from rslib import data, files
from rslib import environment as environment_module
from rslib.data import fetch
from rslib.environment import Environment
from rslib.runs import grid, params, studies
from rslib.schedule import Schedule, path_text
from rslib.store import Store, rows
from rslib.store.rows import read_rows
from rslib.tree import ScheduleTree

FILES = rows.results_files(files.REPOSITORY / "results")


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A clone on a machine that has no dataset but the embedded ones, and no network."""
    monkeypatch.setattr(fetch, "OWN", tmp_path / "data")
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    monkeypatch.setenv("RSLIB_OFFLINE", "1")
    monkeypatch.setenv("RSLIB_RESULTS", str(files.REPOSITORY / "results"))


def test_every_shipped_file_is_found_without_its_data(no_data):
    """Broken: after a clone, notMNIST's results (in no registry) cannot be looked at."""
    assert FILES
    for file in FILES:
        assert Environment.from_spec(rows.read_first_line(file)[0]).key == rows.key_of(file)


def test_a_study_is_drawn_from_shipped_rows_alone(no_data):
    """Broken: `make paper-figures PROFILE=paper DATASETS=notmnist` asks for images to draw numbers."""
    p = params.check(dict(dataset="notmnist", profile="paper", n_jobs=1), "01")
    found = grid.lookup(studies.SINGLE_TASK_REPLAY.cells(p), Store()).rows
    assert len(found) == 20
    first = found.iloc[0]
    path = path_text(Schedule.from_json(first.schedule).compositions)
    final = read_rows(next(f for f in FILES if rows.key_of(f) == first.key))[path].test
    assert first.acc == pytest.approx(np.mean(final), abs=1e-12)
    assert "notMNIST" in p._repr_html_()
    assert rows.shipped_facts("notmnist").fingerprint in p.provenance()._repr_html_()


def test_the_quick_profile_needs_no_data_where_rows_are_shipped(no_data):
    """Broken: `-p dataset mnist` fetches MNIST, or stops offline, to draw numbers that are shipped."""
    p = params.check(dict(dataset="mnist", profile="quick", n_jobs=1), "01")
    cells = studies.SINGLE_TASK_REPLAY.cells(p)
    assert len(grid.lookup(cells)) == len(cells) == 12


def test_training_still_asks_for_the_data(no_data):
    """Broken: a search on data that are not here fails in the middle, or trains on something else."""
    file = next(f for f in FILES if f.parent.name == "notmnist")
    tree = ScheduleTree(Environment.from_spec(rows.read_first_line(file)[0]), store=None)
    with pytest.raises(data.DataError, match="notmnist is not here"):
        tree.walk()
    other = Environment("notmnist", seed=987)  # shipped for other seeds, not for this one
    assert not len(grid.lookup([grid.Cell(other, "ets")]))
    with pytest.raises(data.DataError, match="notmnist is not here"):
        other.class_sizes()
    with pytest.raises(params.ParameterError, match="miniimagenet is not here"):
        params.check(
            dict(dataset="miniimagenet", profile="quick"), "04"
        )  # nothing of it is shipped


def test_other_data_are_not_filed_under_the_shipped_key(no_data, monkeypatch):
    """Broken: data fetched half-way, and not the same, write rows among the shipped ones."""
    file = next(f for f in FILES if f.parent.name == "mnist")
    environment = Environment.from_spec(rows.read_first_line(file)[0])
    assert environment.key == rows.key_of(file)
    other = replace(data.load("digits"), name="mnist")
    monkeypatch.setattr(data, "load", lambda name: other)
    with pytest.raises(data.DataError, match="not what the shipped results were made from"):
        environment.tasks()


def test_data_that_are_here_come_first(tmp_path, monkeypatch):
    """Broken: a user's changed file is answered with the results of the file as it was."""
    environment = small()
    other = replace(environment.facts(), fingerprint="other")
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "x.csv").write_text(rows.file_text(environment.spec(), other, ""))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path))
    assert rows.shipped_facts("digits").fingerprint == "other"
    assert small().facts().fingerprint == data.load("digits").fingerprint
    assert params.dataset_facts("digits") is data.load("digits")


def test_the_first_line_says_what_a_lookup_needs(tmp_path):
    """Broken: the sizes of pools, and with them the schedules looked up, differ without the data."""
    environment = small()
    store = Store(tmp_path / "store", shipped=None)
    ScheduleTree(environment, store).walk()
    file = store.export(environment.key, tmp_path / "results")
    assert rows.read_first_line(file)[0] == environment.spec()
    (facts,) = rows._facts_in(file.parent, "digits", 0).values()
    assert facts == environment.facts()
    for task, sizes in zip(environment.tasks().tasks, facts.class_sizes, strict=True):
        labels = task.train.y.tolist()
        assert [labels.count(label) for label in sorted(set(labels))] == list(sizes)


def test_an_export_keeps_what_is_known_of_data_that_are_not_here(tmp_path, monkeypatch):
    """Broken: exporting again, with another torch or a method not registered now, strips the facts
    or stops half-way."""
    environment = small()
    store = Store(tmp_path / "store", shipped=None)
    ScheduleTree(environment, store).walk()
    file = store.export(environment.key, tmp_path / "results")
    before = file.read_bytes()
    monkeypatch.setattr(environment_module.torch, "__version__", "9.9.9")  # now the key is another
    again = Store(tmp_path / "empty", shipped=tmp_path / "results")
    assert again.export(rows.key_of(file), tmp_path / "results").read_bytes() == before
    monkeypatch.setattr(environment_module, "METHODS", {})
    assert store.export(rows.key_of(file), tmp_path / "elsewhere").exists()


def test_a_users_file_of_the_same_name_says_nothing_of_a_dataset(no_data, tmp_path, monkeypatch):
    """Broken: rows of a user's mnist.npz give Split MNIST a wrong fingerprint."""
    facts = replace(small().facts(), name="/home/me/mnist.npz")
    (tmp_path / "mnist").mkdir()
    spec = small().spec() | {"dataset": facts.name}
    (tmp_path / "mnist" / "x.csv").write_text(rows.file_text(spec, facts, ""))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path))
    assert rows.shipped_facts("mnist") is None
    assert rows.shipped_facts(facts.name, spec) == facts


def exported(tmp_path):
    environment = small(seed=3, samples_per_class=4)
    store = Store(tmp_path / "store", shipped=None)
    ScheduleTree(environment, store).walk([(8,)])
    return environment, store, store.export(environment.key, tmp_path / "results")


def test_rows_remember_the_code_that_trained_them(tmp_path):
    """Broken: nobody can say which revision made a number; or an upgrade of scikit-learn, which is in
    no key, moves pools of k-means unseen."""
    made = {}
    for selection in ("uniform", "kmeans"):
        environment = small(selection=selection, n_tasks=2)
        tree = ScheduleTree(environment, Store(tmp_path, shipped=None))
        tree.walk()
        file = Store(tmp_path, shipped=None).export(environment.key, tmp_path / "results")
        made[selection] = {row.code for row in read_rows(file).values()}
        frame = Store(tmp_path, shipped=None).frame()
        assert made[selection] <= set(frame["code"])
        runs = grid.run([grid.Cell(environment, "ets")], 1, store=tree.store, progress=False)
        assert {
            f"torch {rows.made_with()[0]} with {rows.made_with()[1]}, {environment.code()}"
        } == (runs.made_with())
    assert made["uniform"] == {f"rslib {files.revision()}"}
    assert made["kmeans"] == {f"rslib {files.revision()}, scikit-learn {sklearn.__version__}"}


def test_a_person_can_read_what_a_file_is(tmp_path):
    """Broken: a folder of hashes, in which nobody finds a run."""
    environment, _, file = exported(tmp_path)
    assert file.name == f"er-uniform-M10-4perclass-seed3-{environment.key}.csv"
    assert rows.key_of(file) == environment.key
    assert '"schema": 2' in file.read_text().splitlines()[0]


def test_a_file_that_was_edited_is_refused_by_name_and_the_others_are_used(tmp_path):
    """Broken: a changed accuracy becomes a result of ours without a word."""
    environment, store, file = exported(tmp_path)
    other = small(seed=4)
    ScheduleTree(other, store).walk()
    store.export(other.key, tmp_path / "results")
    text = file.read_text()
    file.write_text(text[:-40] + text[-40:].replace("2.13.0", "2.13.1"))
    fresh = Store(tmp_path / "fresh", shipped=tmp_path / "results")
    with pytest.warns(UserWarning, match=f"{file.name} is not what was written"):
        assert fresh.rows(environment.key) == {}
    assert len(fresh.rows(other.key)) == 2
    first, rest = text.split("\n", 1)
    file.write_text(first.replace('"schema": 2', '"schema": 99') + "\n" + rest)
    with pytest.raises(rows.ResultsError, match="newer layout"):
        rows.read_first_line(file)


def test_a_file_of_the_old_layout_is_read_and_exported_anew(tmp_path):
    """Broken: results that somebody exported before the layout had a number are lost."""
    environment, _, file = exported(tmp_path)
    spec, facts = rows.read_first_line(file)
    old = file.with_name(f"{environment.key}.csv")
    head = json.dumps({**spec, "data": asdict(facts)}, sort_keys=True)
    body = file.read_text().partition("\n")[2]
    old.write_text(f"# {head}\n{body}")
    now = read_rows(file)
    file.unlink()
    fresh = Store(tmp_path / "fresh", shipped=tmp_path / "results")
    assert {p: r.test.tobytes() for p, r in fresh.rows(environment.key).items()} == {
        p: r.test.tobytes() for p, r in now.items()
    }
    assert fresh.environments()[environment.key] == spec
    assert fresh.export(environment.key, tmp_path / "results") == file
    assert not old.exists() and file.exists()


# -- damaged files: with a digest, and as they were before files had one ------------------------------


def replaced(line: int, old: str, new: str):
    def edit(lines: list[str]) -> None:
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new)

    return edit


def cell(line: int, column: str, value: str):
    def edit(lines: list[str]) -> None:
        (*cells,) = lines[line - 1].split(",")
        cells[lines[1].split(",").index(column)] = value
        lines[line - 1] = ",".join(cells)

    return edit


EDITS = {  # line 1 the environment, 2 the columns, 3 the untrained network, then after task 1, task 2
    "7.5": (cell(5, "test_2", "7.5"), "line 5 has an accuracy outside"),
    "-3": (cell(4, "val_1", "-3"), "line 4 has an accuracy outside"),
    "inf": (cell(5, "test_1", "inf"), "line 5 has an accuracy outside"),
    "NaN": (cell(5, "val_1", "NaN"), "line 5 lacks accuracies"),
    "blank": (cell(5, "val_2", ""), "line 5 lacks accuracies"),
    "blank test": (cell(3, "test_4", ""), "line 3 lacks accuracies"),
    "unseen task": (cell(4, "val_3", "0.5"), "line 4 lacks accuracies, or has accuracies beyond"),
    "word": (cell(5, "test_1", "high"), "line 5 has a cell that is no number"),
    "seconds": (cell(5, "seconds", "long"), "line 5 has a cell that is no number"),
    "one more cell": (cell(5, "test_1", "0,9"), "line 5 has 16 cells instead of 15"),
    "cut": (replaced(5, ",AVX2", ""), "line 5 has 14 cells"),
    "twice": (lambda lines: lines.append(lines[4]), "line 6 is a second row of the path '8'"),
    "twice, another": (
        lambda lines: lines.append(lines[4].replace("0.", "0.0")),
        "line 6 is a second row of the path '8'",
    ),
    "renamed column": (replaced(2, "test_2", "test_9"), "line 2 does not name the columns"),
    "columns swapped": (replaced(2, "val_1,val_2", "val_2,val_1"), "line 2 does not name"),
    "no columns": (lambda lines: lines.pop(1), "line 2 does not name the columns"),
    "no rows": (
        lambda lines: lines.__delitem__(slice(1, None)),
        "line 2 does not name the columns",
    ),
    "tasks": (replaced(1, '"n_tasks": 5', '"n_tasks": 4'), "line 2 does not name the columns"),
    "no tasks": (replaced(1, '"n_tasks"', '"n_task"'), "line 1 names no environment"),
    "no JSON": (replaced(1, "{", "("), "line 1 is not JSON"),
    "no environment": (lambda lines: lines.__setitem__(0, "# 3"), "line 1 is not JSON"),
    "seed": (
        replaced(1, '"seed": 3', '"seed": 2'),
        "line 1 has seed 2, but its key is that of seed 3",
    ),
}


@pytest.mark.parametrize("layout", ["with a digest", "of before"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_by_name_and_line(tmp_path, shipped_file, edit, layout):
    """Broken: 8 of 22 edits of a results file changed the result without a word."""
    environment, content = shipped_file
    lines = content.splitlines()
    if layout == "of before":
        head = json.loads(lines[0].removeprefix("# "))
        lines[0] = "# " + json.dumps({**head["environment"], "data": head["data"]}, sort_keys=True)
    change, message = EDITS[edit]
    if layout == "with a digest" and edit == "seed":
        message = "is not what was written"
    change(lines)
    file = tmp_path / "results" / "digits" / f"x-{environment.key}.csv"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(lines) + "\n")
    store = Store(tmp_path / "store", shipped=tmp_path / "results")
    with pytest.warns(UserWarning, match=f"{file}:? {message}"):
        assert store.rows(environment.key, environment.spec()) == {}
    assert store.row(environment.key, "8") is None
    if edit != "seed" or layout == "with a digest":
        assert len(store.check()) == 1


@pytest.fixture(scope="module")
def shipped_file(tmp_path_factory):
    environment, _, file = exported(tmp_path_factory.mktemp("exported"))
    return environment, file.read_text()


def test_a_file_under_the_key_of_another_seed_is_not_used(tmp_path, shipped_file):
    """Broken: a file is copied under the wrong name, and seed 3 is reported as seed 4."""
    _, content = shipped_file
    other = small(seed=4, samples_per_class=4)
    file = tmp_path / "results" / "digits" / f"er-uniform-M10-4perclass-seed4-{other.key}.csv"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.warns(UserWarning, match=f"{file}: line 1 has seed 3, but .* seed 4"):
        tree = ScheduleTree(other, Store(tmp_path / "store", shipped=tmp_path / "results"))
    assert not tree.known(()) and tree.rows() == {}


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path, shipped_file):
    """Broken: a flipped bit ends in an error without a file's name."""
    environment, content = shipped_file
    file = tmp_path / f"{environment.key}.csv"
    for place in (5, len(content) - 5):
        harmed = bytearray(content.encode())
        harmed[place] = 0xFF
        file.write_bytes(harmed)
        with pytest.raises(rows.ResultsError, match=str(file)):
            read_rows(file)


def test_rows_of_convolutions_name_the_processor(tmp_path):
    """Broken: rows of an Intel and of an AMD processor, which round convolutions otherwise, are compared
    bit for bit, and honest rows are called false."""
    cpuinfo = tmp_path / "cpuinfo"
    core = "vendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: Some CPU\n\n"
    cpuinfo.write_text(core.format("AuthenticAMD", 25, 17) + core.format("other core", 0, 0))
    assert rows.processor(cpuinfo) == "AuthenticAMD 25 17"
    assert rows.processor(tmp_path / "of another system")  # its name for the machine
    torch, cpu, with_convolutions = rows.made_with()
    assert rows.processor() in with_convolutions and rows.processor() not in cpu
    row = rows.Row(np.zeros(2), np.zeros(2), torch=torch, cpu=with_convolutions)
    assert row.same_machine()
    assert not replace(row, cpu=f"{cpu} (convolutions AVX512)").same_machine()
