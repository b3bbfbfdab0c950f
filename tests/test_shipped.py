"""Shipped results where the data behind them are not: drawn from rows, never trained on a guess."""

from dataclasses import replace

import numpy as np
import pytest
from small_environment import small

from rslib import data, experiments, fetch, params, shipped, studies
from rslib.environment import Environment
from rslib.rows import read_csv
from rslib.store import Store
from rslib.tree import ScheduleTree

FILES = shipped.files(shipped.SHIPPED)


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A clone on a machine that has no dataset but the embedded ones, and no network."""
    monkeypatch.setattr(fetch, "OWN", tmp_path / "data")
    monkeypatch.delenv("RSLIB_DATA", raising=False)
    monkeypatch.setenv("RSLIB_OFFLINE", "1")
    monkeypatch.setenv("RSLIB_RESULTS", str(shipped.SHIPPED))


def test_every_shipped_file_is_found_without_its_data(no_data):
    """Broken: after a clone, notMNIST's results (in no registry) cannot be looked at."""
    assert FILES
    for file in FILES:
        assert Environment.from_spec(shipped.read_spec(file)).key == file.stem


def test_a_study_is_drawn_from_shipped_rows_alone(no_data):
    """Broken: `make paper-figures PROFILE=paper DATASETS=notmnist` asks for images to draw numbers."""
    p = params.check(dict(dataset="notmnist", profile="paper", n_jobs=1), "01")
    found = experiments.look_up(studies.single_task_replay(p), Store())
    assert len(found) == 20
    first = found.iloc[0]
    finals = {
        tuple(row.test) for row in read_csv(shipped.SHIPPED / f"notmnist/{first.key}.csv").values()
    }
    assert any(np.isclose(np.mean(final), first.acc, rtol=0, atol=1e-12) for final in finals)
    assert "notMNIST" in p._repr_html_()
    assert shipped.about("notmnist").fingerprint in p.provenance().to_string()


def test_training_still_asks_for_the_data(no_data):
    """Broken: a search on data that are not here fails in the middle, or trains on something else."""
    file = next(f for f in FILES if f.parent.name == "notmnist")
    tree = ScheduleTree(Environment.from_spec(shipped.read_spec(file)), store=None)
    with pytest.raises(data.DataError, match="notmnist is not here"):
        tree.walk()
    other = Environment("notmnist", seed=987)  # shipped for other seeds, not for this one
    assert experiments.look_up([experiments.Cell(other, "ets")]).empty
    with pytest.raises(data.DataError, match="notmnist is not here"):
        other.class_sizes()
    with pytest.raises(params.ParameterError, match="notmnist is not here"):
        params.check(dict(dataset="notmnist", profile="quick"), "04")  # nothing of it is shipped


def test_other_data_are_not_filed_under_the_shipped_key(no_data, monkeypatch):
    """Broken: data fetched half-way, and not the same, write rows among the shipped ones."""
    file = next(f for f in FILES if f.parent.name == "mnist")
    environment = Environment.from_spec(shipped.read_spec(file))
    assert environment.key == file.stem
    other = replace(data.load("digits"), name="mnist")
    monkeypatch.setattr(data, "load", lambda name: other)
    with pytest.raises(data.DataError, match="not what the shipped results were made from"):
        environment.tasks()


def test_data_that_are_here_come_first(tmp_path, monkeypatch):
    """Broken: a user's changed file is answered with the results of the file as it was."""
    environment = small()
    line = shipped.first_line(environment.spec(), replace(environment.facts(), fingerprint="other"))
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "x.csv").write_text(line)
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path))
    assert shipped.about("digits").fingerprint == "other"
    assert small().facts().fingerprint == data.load("digits").fingerprint
    assert data.about("digits") is data.load("digits")


def test_the_first_line_says_what_a_lookup_needs(tmp_path):
    """Broken: the sizes of pools, and with them the schedules looked up, differ without the data."""
    environment = small()
    store = Store(tmp_path / "store", shipped=None)
    ScheduleTree(environment, store).walk()
    file = store.export(environment.key, tmp_path / "results")
    assert shipped.read_spec(file) == environment.spec()
    (facts,) = shipped._facts_in(file.parent, 0).values()
    assert facts == environment.facts()
    for task, sizes in zip(environment.tasks().tasks, facts.class_sizes, strict=True):
        labels = task.train.y.tolist()
        assert [labels.count(label) for label in sorted(set(labels))] == list(sizes)
