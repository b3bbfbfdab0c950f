"""`python -m tools.carry`: unfinished runs go on elsewhere, with the same bits."""

import numpy as np

from rslib import Environment, ScheduleTree, Store
from tools import carry

PATH = ((10,), (5, 5), (3, 4, 3), (2, 3, 2, 3))


def test_a_run_goes_on_on_another_machine(tmp_path, monkeypatch, capsys):
    """Broken: a run that is carried over trains its first tasks again, or ends otherwise."""
    environment = Environment("digits", epochs=1, hidden=16)
    whole = ScheduleTree(environment).walk(PATH)
    results, networks = tmp_path / "results", tmp_path / "networks"
    here = Store(tmp_path / "here", shipped=None)
    ScheduleTree(environment, here).walk(PATH[:2])
    ScheduleTree(Environment("digits", epochs=1, hidden=16, seed=2), here).walk(PATH)  # finished
    here.export(environment.key, results)

    monkeypatch.setattr(carry, "Store", lambda: here)
    assert carry.main(["out", str(networks)]) == 0
    assert [file.name for file in networks.iterdir()] == [f"{environment.key}-3.pt"]
    there = Store(tmp_path / "there", shipped=results)
    monkeypatch.setattr(carry, "Store", lambda: there)
    assert carry.main(["in", str(networks)]) == 0
    assert "after task 3 of 5: " in capsys.readouterr().out
    tree = ScheduleTree(environment, there)
    assert np.array_equal(tree.walk(PATH).test, whole.test)
    assert tree.trained == 2
