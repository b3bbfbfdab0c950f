"""Shipped results are drawn with any torch, and training never goes on from them with another."""

import os
import subprocess
import sys

from small_environment import small

from rslib import environment as environment_module
from rslib import files
from rslib.environment import RECORDED_WITH
from rslib.runs.grid import Cell, lookup
from rslib.store import Store
from rslib.store.rows import Row, read_rows, results_files
from rslib.tree import ScheduleTree

# Run in a process of its own, since keys are made of the torch that is imported.
LOOK_UP = """
import sys
import torch
torch.__version__ = sys.argv[1]

import rslib
from rslib.runs import grid, params, studies

p = params.check(dict(dataset="mnist", profile="paper", n_jobs=1, seeds=[1]), "04")
cells = studies.memory_selection(p)
permuted = rslib.Environment("permuteddigits", seed=1, n_tasks=20)
cells += [grid.Cell(permuted, name) for name in ("ets", "mcts")]
runs = grid.lookup(cells)
print(len(runs), "of", len(cells))
print(runs.rows[["policy", "selection", "acc", "bwt", "schedule"]].to_csv())
print(len(rslib.ScheduleTree(cells[0].environment, rslib.Store()).rows()), file=sys.stderr)
"""


def looked_up(version: str, folder) -> tuple[str, int]:
    """What another torch finds in results/, without data; and how many rows it would go on from."""
    own = dict(RSLIB_STORE=str(folder), RSLIB_RESULTS=str(files.REPOSITORY / "results"))
    own |= dict(RSLIB_DATA="", RSLIB_OFFLINE="1", PYTHONPATH=str(files.REPOSITORY))
    command = [sys.executable, "-c", LOOK_UP, version]
    done = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.split()[-1])


def test_every_torch_draws_the_shipped_results(tmp_path):
    """Broken: a reader with a newer torch waits for hours for numbers that are in the repository."""
    recorded, _ = looked_up(RECORDED_WITH, tmp_path / "one")
    other, n_rows = looked_up("2.99.1+cpu", tmp_path / "two")
    assert other == recorded
    found, _, requested = recorded.splitlines()[0].split()
    assert int(found) == int(requested) > 15
    assert n_rows == 0  # an unfrozen tree of another torch has none of them


def test_all_shipped_rows_are_of_the_torch_that_keys_are_made_with():
    """Broken: a file in results/ was recorded with a torch under which nothing looks it up."""
    for file in results_files(files.REPOSITORY / "results"):
        assert {row.torch for row in read_rows(file).values()} == {RECORDED_WITH}, file.name


def test_a_result_has_rows_of_one_torch_only(tmp_path, monkeypatch):
    """Broken: with another torch, a schedule begins with own rows and ends with shipped rows."""
    recorded = Store(tmp_path / "recorded", shipped=None)
    before = ScheduleTree(small(), recorded).walk(((10,), (5, 5), (4, 3, 3), (0, 0, 0, 10)))
    recorded.export(small().key, tmp_path / "results")
    first = recorded.rows(small().key)["-"]
    monkeypatch.setattr(environment_module, "RECORDED_WITH", first.torch)
    monkeypatch.setattr(environment_module.torch, "__version__", "9.9.9")
    own, store = small(), Store(tmp_path / "own", shipped=tmp_path / "results")
    store.put(own.key, own.as_stored(), "-", Row(first.val, 0 * first.test))
    cell = Cell(own, "schedule:10/5,5/4,3,3/0,0,0,10")
    found = lookup([cell], store)[cell].node
    assert (found.test == before.test).all() and before.test[0].any()
    assert set(ScheduleTree(own, store).rows()) == {"-"}
