"""`make verify`: rows that are not what training gives must be found, whatever machine made them."""

from dataclasses import replace

import numpy as np
import pytest
from small_environment import small

from rslib import environment
from rslib.complete_tree import load_tables, save_tables
from rslib.schedule import UNTRAINED
from rslib.store import Store, rows
from rslib.store.rows import Row, as_csv, read_rows
from rslib.tree import ScheduleTree
from tools import trees, verify


@pytest.fixture
def results(tmp_path):
    """The shipped rows of one short walk."""
    store = Store(tmp_path / "store", shipped=None)
    ScheduleTree(small(), store).walk([(10,), (5, 5)])
    return store.export(small().key, tmp_path / "results").parents[1]


def edit(results, change):
    (file,) = rows.results_files(results)
    body = as_csv({p: change(row) for p, row in read_rows(file).items()})
    file.write_text(rows.file_text(*rows.read_first_line(file), body))


@pytest.fixture(autouse=True)
def not_ci(monkeypatch):
    """CI asks for more than a person at another machine does."""
    monkeypatch.delenv("CI", raising=False)


def check(results, n=3) -> int:
    return verify.main(["--results", str(results), "--rows", str(n), "--seed", "1"])


def test_rows_as_trained_pass_and_are_counted(results, capsys):
    """Broken: honest results fail, or nobody can tell how much was checked."""
    assert check(results) == 0
    assert (
        "checked 3 rows of 1 files (--seed 1): 3 bit for bit, 0 differ" in capsys.readouterr().out
    )


def test_a_last_bit_is_found_on_the_same_machine(results, capsys):
    """Broken: results that no training gives are called verified."""
    edit(results, lambda row: replace(row, test=np.nextafter(row.test, 0)))
    assert check(results) == 1
    assert "3 differ" in capsys.readouterr().out


def test_another_machine_is_allowed_rounding_and_no_more(results, capsys):
    """Broken: on another CPU the wrong schedule or data would pass, or honest rows would fail."""
    elsewhere = lambda row, gap: replace(row, test=row.test - gap, cpu="another")  # noqa: E731
    edit(results, lambda row: elsewhere(row, 0.01))
    assert check(results) == 0
    assert "3 of them are of another CPU or torch" in capsys.readouterr().out
    edit(results, lambda row: elsewhere(row, 0.04))  # each row within its bound, their mean not
    assert check(results) == 1
    assert "on average they are too far apart" in capsys.readouterr().out
    assert verify.compare(Row(np.ones(2), np.ones(2)), Row(np.ones(2), np.full(2, np.nan))) > 1


def test_a_tolerance_is_not_enough_in_ci(results, monkeypatch, capsys):
    """Broken: on a machine with other instructions CI is green whatever the rows are."""
    monkeypatch.setenv("CI", "true")
    assert check(results) == 0
    edit(results, lambda row: replace(row, cpu="another"))
    assert check(results) == 1
    assert "no row could be compared bit for bit" in capsys.readouterr().out


def test_another_torch_is_checked_with_the_tolerance(results, monkeypatch, capsys):
    """Broken: after an update of torch (which is part of the key) nothing is checked any more."""
    monkeypatch.setattr(environment.torch, "__version__", "9.9.9")
    monkeypatch.setattr(rows, "made_with", lambda: ("9.9.9", "AVX2", "AVX2"))
    assert check(results) == 0
    assert "of another CPU or torch" in capsys.readouterr().out


def test_what_cannot_be_checked_is_said(results, capsys):
    """Broken: rows of other data are compared, or left out without a word."""
    (file,) = rows.results_files(results)
    spec, facts = rows.read_first_line(file)
    other = replace(facts, fingerprint="other")
    file.write_text(rows.file_text(spec, other, file.read_text().partition("\n")[2]))
    assert check(results) == 2
    said = capsys.readouterr()
    assert "1 files left out: digits: made from other data than are here" in said.out
    assert "can be checked here" in said.err


def test_a_file_that_cannot_be_used_does_not_stop_the_others(results, capsys):
    """Broken: somebody's own method, or one damaged file, and nothing is verified; or the damaged file
    passes because no row of it was drawn."""
    (file,) = rows.results_files(results)
    spec, facts = rows.read_first_line(file)
    body = file.read_text().partition("\n")[2]
    own = file.with_name(f"own-{'0' * 20}.csv")
    own.write_text(rows.file_text(spec | {"method": "own"}, facts, body))
    assert check(results) == 0
    said = capsys.readouterr().out
    assert "1 files left out: method must be one of" in said and "got 'own'" in said
    assert "checked 3 rows of 1 files" in said
    damaged = file.with_name(f"damaged-{'1' * 20}.csv")
    damaged.write_text(file.read_text().replace('"seed": 1', '"seed": 2'))
    assert check(results) == 1
    said = capsys.readouterr().out
    assert "3 bit for bit, 0 differ; 1 files are damaged" in said
    assert f"{damaged} is not what was written: its digest differs" in said
    file.unlink()
    assert check(results) == 2 and f"{damaged} is not" in capsys.readouterr().out


def test_rows_that_take_long_are_not_drawn(results, capsys):
    """Broken: the last task of a ConvNet's schedule is drawn, and CI trains for half an hour."""
    edit(results, lambda row: replace(row, seconds=200.0))  # of the three tasks, 10 minutes in all
    assert check(results, n=6) == 0
    assert "took over" not in capsys.readouterr().out
    edit(results, lambda row: replace(row, seconds=201.0))
    assert check(results, n=6) == 0
    assert "\n1 rows of the files drawn took over 10 minutes: left out" in capsys.readouterr().out
    edit(results, lambda row: replace(row, seconds=1e6))
    assert check(results, n=2) == 0
    said = capsys.readouterr().out
    assert "checked 0 rows" in said and "3 rows of the files drawn took over" in said


def test_a_file_of_the_untrained_network_alone_is_no_trouble(tmp_path, capsys):
    """Broken: an export while the first task was trained ends `make verify` with a KeyError."""
    store = Store(tmp_path / "store", shipped=None)
    tree = ScheduleTree(small(), store)
    tree.walk()
    (untrained,) = [row for path, row in tree.rows().items() if path == UNTRAINED]
    other = Store(tmp_path / "other", shipped=None)
    other.put(small().key, small().as_stored(), UNTRAINED, untrained)
    results = other.export(small().key, tmp_path / "results").parents[1]
    assert check(results, n=2) == 0
    assert "checked 0 rows of 1 files" in capsys.readouterr().out


def test_complete_trees_are_drawn_from_too(tmp_path, capsys):
    """Broken: shipped trees are never trained again, or a changed one passes."""
    results = tmp_path / "results"
    table, n_trees = results / "trees" / "digits.csv.gz", 2
    command = ["--dataset", "digits", "--seeds", "0-1", "--n-tasks", "3", "--workers", "1"]
    trees.main([*command, "--store", str(tmp_path / "store"), "--out", str(table)])
    assert check(results, n=4) == 0
    assert f"checked 4 rows of {n_trees} files" in (said := capsys.readouterr().out)
    assert "4 bit for bit, 0 differ" in said
    changed = [replace(tree, test=np.maximum(tree.test - 0.01, 0)) for tree in load_tables(table)]
    save_tables(changed, table)
    verify._tables.cache_clear()
    assert check(results, n=4) == 1
    assert "4 differ" in capsys.readouterr().out
    table.write_bytes(table.read_bytes()[:-20])
    verify._tables.cache_clear()
    assert check(results, n=4) == 2
    assert capsys.readouterr().out.count(f"{table}") == 1  # both trees are in this file
