"""`python -m tools.carry`: unfinished runs go on elsewhere, with the same bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rslib import Environment, ScheduleTree, Store
from tools import carry

TINY = Environment("digits", epochs=1, hidden=16)
PATHS = ((10,), (5, 5), (3, 4, 3), (2, 3, 2, 3)), ((10,), (10, 0), (3, 4, 3), (2, 3, 2, 3))


def test_runs_go_on_on_another_machine(tmp_path, monkeypatch, capsys):
    """Broken: a run that is carried over trains its first tasks again, or ends otherwise; or two
    unfinished runs of one environment become one."""
    whole = [ScheduleTree(TINY).walk(path).test for path in PATHS]
    networks, stores = tmp_path / "networks", [Store(tmp_path / n, shipped=None) for n in "ab"]
    here = ScheduleTree(TINY, stores[0])
    for path in PATHS:
        here.walk(path[:3])
    ScheduleTree(replace(TINY, seed=2), stores[0]).walk(PATHS[0])  # finished
    for store, way in zip(stores, ("out", "in"), strict=True):
        monkeypatch.setattr(carry, "Store", lambda store=store: store)
        assert carry.main([way, str(networks)]) == 0
    assert capsys.readouterr().out.count("digits, seed 1, after task 4: carried") == 2
    there = ScheduleTree(TINY, stores[1])
    for path, test in zip(PATHS, whole, strict=True):
        assert np.array_equal(there.walk(path).test, test)
    assert there.trained == 2  # the last task of both


def test_what_cannot_be_carried_is_named(tmp_path, monkeypatch, capsys):
    """Broken: one run without its network, of another torch, or another program's file keeps the others
    from being carried."""
    store, networks = Store(tmp_path / "a", shipped=None), tmp_path / "networks"
    monkeypatch.setattr(carry, "Store", lambda: store)
    ScheduleTree(TINY, store).walk(PATHS[0][:2])
    store.prune()
    ScheduleTree(replace(TINY, seed=2), store).walk()  # task 1 only
    assert carry.main(["out", str(networks)]) == 1
    assert "seed 1, after task 3: its network is not stored" in capsys.readouterr().out
    (file,) = networks.iterdir()
    torch.save(torch.load(file) | {"key": "another"}, networks / "another-0.pt")
    torch.save({"a": torch.ones(2)}, networks / "a-foreign-0.pt")  # the first by name
    assert carry.main(["in", str(networks)]) == 1
    said = capsys.readouterr().out
    assert "another-0.pt: " in said and "with this torch" in said
    assert "a-foreign-0.pt: cannot be read: KeyError('key')" in said
    assert f"{file.name}: carried" in said
    file.write_bytes(file.read_bytes()[:1000])
    assert carry.main(["in", str(networks)]) == 1
    said = capsys.readouterr().out
    assert f"{file.name}: cannot be read" in said and "another-0.pt: " in said
    with pytest.raises(SystemExit):
        carry.main(["in", str(tmp_path / "nowhere")])


def test_carrying_out_again_overwrites_no_other_path(tmp_path, monkeypatch):
    """Broken: of two unfinished schedules one file is left, and both are called carried."""
    store, networks = Store(tmp_path / "a", shipped=None), tmp_path / "networks"
    monkeypatch.setattr(carry, "Store", lambda: store)
    for path in PATHS:
        ScheduleTree(TINY, store).walk(path[:3])
    assert carry.main(["out", str(networks)]) == 0
    first, _ = sorted(networks.iterdir())
    first.unlink()
    assert carry.main(["out", str(networks)]) == 0
    assert len({torch.load(file)["path"] for file in networks.iterdir()}) == 2
