"""`make environments`: the command that trains whole schedule trees and saves them."""

import json

import pytest

from rslib import ScheduleTree, Store
from rslib.complete_tree import load_tables
from rslib.runs.generalization import policy_environment
from tools import trees


def test_a_real_tree(tmp_path, capsys):
    """Broken: the command behind `make environments` would not build from live trees, or a second
    call would train again (its store has all rows)."""
    out, name = tmp_path / "digits.csv.gz", "permuteddigits"
    command = ["--dataset", name, "--seeds", "2", "--n-tasks", "3", "--workers", "1"]
    command += ["--store", str(tmp_path / "store"), "--out", str(out)]
    trees.main(command)
    assert "1 environments of 3 tasks, M = 50: permuteddigits 2" in capsys.readouterr().out
    first = out.read_bytes()
    trees.main(command)
    assert out.read_bytes() == first
    about = json.loads((tmp_path / "digits.json").read_text())
    assert (about["dataset"], about["n_tasks"], about["environments"]) == (name, 3, [2])
    assert (
        about["trainings"] >= 1 + 1 + 3
    )  # the nodes; heuristics may add compositions of their own
    tree = ScheduleTree(policy_environment(name, 2, 3), Store(tmp_path / "store"))
    table, path = load_tables(out)[0], [(50,), (25, 25)]
    node, row = tree.walk(path), table.walk(path)
    assert tree.trained == 0
    assert node.acc == pytest.approx(row.acc, abs=1e-6)
    assert node.bwt == pytest.approx(row.bwt, abs=1e-6)
