"""Grids of runs: the same rows wherever the cells run, and nothing lost when something goes wrong."""

import concurrent.futures as cf
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from small_environment import small
from tree_workers import PROCESSES, job_that_dies

import rslib
from rslib import environment as environment_module
from rslib import search, widgets
from rslib.complete_tree import load_tables
from rslib.environment import Environment
from rslib.errors import UserError
from rslib.policies import Policy, Rule
from rslib.runs import grid, params, studies, workers
from rslib.runs.grid import Cell, GridError, forecast, lookup
from rslib.schedule import UNTRAINED
from rslib.store import Store
from rslib.store.rows import ResultsError
from rslib.tree import NotTrained, ScheduleTree


def every(environments, policies, rollouts=100):
    """Every policy in every environment."""
    policies = list(policies)
    return [Cell(e, p, rollouts) for e in environments for p in policies]


CELLS = every(
    [small(seed=1), small(seed=2), small(seed=1, selection="mof")],
    ["none", "ets", "random", "heur-gd:0.9", "mcts", "random-best"],
    rollouts=4,
)
MOVES = ["seconds", "trained"]  # what may differ between two runs of the same grid


def same_rows(one: pd.DataFrame, two: pd.DataFrame) -> None:
    """Every column but the timing, exactly."""
    left, right = (frame.drop(columns=MOVES) for frame in (one, two))
    pd.testing.assert_frame_equal(left, right, check_exact=True)


def quiet(cells, store, **options) -> pd.DataFrame:
    return grid.run(cells, store=store, progress=False, **options).rows


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("serial"), shipped=None)
    return quiet(CELLS, store, n_jobs=1), store


# -- the same rows everywhere ----------------------------------------------------------------------


def test_rows_are_those_of_each_cell_run_alone(serial):
    """One row per cell in the cells' order, equal to the run without any grid."""
    rows, _ = serial
    assert len(rows) == len(CELLS) == 18
    for cell, (_, row) in zip(CELLS, rows.iterrows()):
        assert (row.policy, row.seed, row.selection) == (
            cell.policy,
            cell.environment.seed,
            cell.environment.selection,
        )
        assert row.key == cell.environment.key and row.converged
    for i in (1, 9, 16):
        alone = search.run(ScheduleTree(CELLS[i].environment), CELLS[i].policy, 4)
        found = rows.iloc[i]
        assert found[["acc", "bwt", "fwt", "reward"]].tolist() == [
            alone.acc,
            alone.bwt,
            alone.fwt,
            alone.reward,
        ]
        assert found.schedule == alone.schedule.to_json()
    assert rows.rollouts.dropna().tolist() == [4.0] * 6
    assert set(rows.label) == {"Fine-tuning", "ETS", "Random", "Heur-GD", "MCTS", "Random-best"}


def test_a_row_says_what_is_not_the_presets(serial):
    """Broken: a table of `-p network wide` or `-p epochs 1` has the caption of the preset's."""
    result = lookup(CELLS[:1], serial[1])[CELLS[0]]
    two = Cell(small(network="convnet", n_tasks=2), "none")
    assert grid.row(CELLS[0], result)["changed"] == "epochs = 1, hidden = 16"
    changed = "n_tasks = 2, network = convnet, epochs = 1, hidden = 16"
    assert grid.row(two, result)["changed"] == changed
    longer = Cell(Environment("digits", first_epochs=9), "none")
    assert grid.row(longer, result)["changed"] == "first_epochs = 9"
    assert grid.row(Cell(Environment("digits"), "none"), result)["changed"] == ""


def test_a_users_rule_does_not_take_the_papers_label():
    """Broken: with `-p policies ets+heur-gd:0.5` that rule is tested as if it were the paper's."""
    given = {"dataset": "digits", "policies": "ets+heur-gd:0.5 heur-gd:0.9", "seeds": [1]}
    cells = studies.ETS_HEURISTIC.cells(params.check(given, "08"))
    labels = {cell.policy: cell.label for cell in cells}
    assert labels["ets+heur-gd:0.97"] is None and labels["heur-gd:0.95"] is None
    assert labels["ets+heur-gd:0.5"] == "ETS+Heur-GD 0.5" and labels["heur-gd:0.9"] == "Heur-GD 0.9"


def test_what_a_notebook_is_about_must_be_stored(serial):
    """Broken: 02 without a search ends in "No objects to concatenate"."""
    runs = lookup(CELLS, serial[1])
    assert runs.first("mcts").label == "MCTS"
    with pytest.raises(NotTrained, match="about 'bfs', and none of its runs is stored"):
        runs.first("bfs")


def test_a_second_run_trains_nothing(serial):
    rows, store = serial
    again = quiet(CELLS, store, n_jobs=1)
    same_rows(again, rows)
    assert again.trained.sum() == 0 < rows.trained.sum()
    afresh = Store(store.folder, shipped=None)
    found = lookup(CELLS, afresh).rows
    same_rows(found.assign(seconds=0.0), rows)
    assert "nothing to train" in forecast([])


def test_the_forecast_bounds_the_disk_that_training_takes(tmp_path, monkeypatch):
    """Broken: a laptop's disk is full after a notebook promised a few megabytes, or said nothing."""
    cells, store = every([small(hidden=256)], ["mcts", "ets"], 6), Store(tmp_path, shipped=None)
    said = forecast(cells)
    promised = int(re.search(r"at most (\d+) MB of disk", said)[1])
    quiet(cells, store, n_jobs=1)
    assert promised / 4 < store.checkpoint_bytes() / 2**20 < promised
    monkeypatch.setenv(
        "RSLIB_CHECKPOINT_GB", "0.002"
    )  # the store keeps no more, whatever is trained
    assert "at most 3 MB of disk" in forecast(cells)


def test_looking_up_reads_each_environment_once_and_cuts_no_images(serial, monkeypatch):
    """Broken: 09_paper asks for 1,400 cells, and reading or cutting anew for each takes minutes."""
    rows, store = serial
    read = []
    rows_of = Store.rows
    monkeypatch.setattr(
        Store, "rows", lambda self, key, *spec: read.append(key) or rows_of(self, key)
    )
    monkeypatch.setattr(environment_module, "_scenario", lambda *cut: pytest.fail("cut again"))
    same_rows(lookup(CELLS, store).rows.assign(seconds=0.0), rows)
    assert sorted(read) == sorted({cell.environment.key for cell in CELLS})
    nowhere = [
        Cell(small(seed=s), "mcts") for s in (77, 78)
    ]  # not even their class sizes are known
    assert not len(lookup(nowhere, store))


def test_a_notebook_can_show_what_is_there_and_train_nothing(serial, capsys):
    """Broken: drawing a grid of which some runs are shipped starts hours of training."""
    rows, store = serial
    more = [*CELLS, Cell(small(seed=99), "ets")]
    same_rows(grid.run(more, train=False, store=store).rows.assign(seconds=0.0), rows)
    assert "18 of 19 runs are stored; nothing is trained" in capsys.readouterr().out
    assert not store.rows(small(seed=99).key)
    with pytest.raises(NotTrained, match="No stored results for these 1 runs"):
        grid.run(more[-1:], train=False, store=store)
    assert len(grid.run(CELLS, 1, store=store)) == 18
    assert "nothing to train" in capsys.readouterr().out


def test_a_results_file_that_cannot_be_read_is_not_called_missing(serial, monkeypatch):
    """Broken: results that a newer program wrote look like "not stored", and a table lacks them."""

    def refused(*_):
        raise ResultsError("mnist.csv has a newer layout")

    monkeypatch.setattr(Store, "rows", refused)
    with pytest.raises(ResultsError, match="newer layout"):
        grid.run(CELLS, train=False, store=serial[1])


def test_results_come_with_their_rows(serial):
    """Broken: a figure is drawn from other runs than the table beside it."""
    rows, store = serial
    runs = lookup([*CELLS, Cell(small(seed=99), "ets")], store)
    assert len(runs) == 18 and Cell(small(seed=99), "ets") not in runs
    for cell, acc in zip(CELLS, rows.acc, strict=True):
        assert runs[cell].acc == acc and runs[cell].node.environment == cell.environment
    assert [found.acc for found in runs.of("mcts")] == rows[rows.policy == "mcts"].acc.tolist()
    with pytest.raises(NotTrained):
        runs[Cell(small(seed=99), "ets")]


def test_threads_give_the_same_rows(serial, tmp_path):
    """A tree, its learner and its connection belong to one thread: shared, they would mix runs."""
    with cf.ThreadPoolExecutor(4) as threads:
        rows = quiet(CELLS, Store(tmp_path, shipped=None), executor=threads)
    same_rows(rows, serial[0])
    assert Store(tmp_path, shipped=None).check() == []


@pytest.mark.parametrize("how", ["forked", pytest.param("default", marks=pytest.mark.slow)])
def test_processes_give_the_same_rows(serial, tmp_path, how):
    """The default starts fresh interpreters: nothing may hang on this one's state or hash seed."""
    store = Store(tmp_path, shipped=None)
    cells = CELLS[:6] + CELLS[12:]
    if how == "forked":  # from a server that has imported torch once: seconds less
        with cf.ProcessPoolExecutor(2, mp_context=PROCESSES) as processes:
            rows = quiet(cells, store, executor=processes)
    else:
        rows = quiet(cells, store, n_jobs=2)
    same_rows(rows, serial[0].iloc[[*range(6), *range(12, 18)]].reset_index(drop=True))
    assert store.check() == [] and quiet(cells, store, n_jobs=1).trained.sum() == 0


def test_equal_cells_have_a_row_each(tmp_path):
    """A user may list a policy twice; rows are counted against cells."""
    store = Store(tmp_path, shipped=None)
    cells = [Cell(small(), "ets"), Cell(small(), "ets"), Cell(small(), "ets", label="again")]
    rows = quiet(cells, store, n_jobs=1)
    assert rows.label.tolist() == ["ETS", "ETS", "again"] and rows.acc.nunique() == 1
    assert rows.trained.tolist() == [5, 0, 0]


def test_no_cells_is_an_empty_frame(tmp_path):
    assert len(quiet([], Store(tmp_path, shipped=None))) == 0


def test_a_changed_file_is_not_answered_from_an_old_tree(tmp_path):
    """New data under the old name, in a kernel that still runs: last week's rows are not an answer."""
    file, store, accs = tmp_path / "weekly.npz", Store(tmp_path / "s", shipped=None), []
    for week in (1, 2):
        draws = np.random.RandomState(week)
        x, y = draws.rand(160, 6).astype(np.float32), np.arange(160) % 4
        x[np.arange(160), y] += week
        np.savez(file, x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
        os.utime(file, (week, week))
        environment = small(str(file), n_tasks=2)
        (row,) = quiet([Cell(environment, "ets")], store, n_jobs=1).to_dict("records")
        alone = search.run(ScheduleTree(small(str(file), n_tasks=2)), "ets")
        assert row["acc"] == alone.acc and row["key"] == environment.key
        accs.append((row["acc"], row["key"], row["trained"]))
    assert accs[0][1] != accs[1][1] and accs[1][2] == 2


# -- what goes wrong -------------------------------------------------------------------------------

BROKEN = [
    Cell(small(), "ets"),
    Cell(small(seed=2), "no-such-policy"),
    Cell(small(scenario="class", memory_size=4), "ets"),
    Cell(small(seed=3), "none"),
]


@pytest.mark.parametrize("how", ["serial", "threads"])
def test_a_failed_cell_is_named_and_does_not_lose_the_others(how, tmp_path):
    """One bad cell in a night of runs costs its own row and no more."""
    store = Store(tmp_path, shipped=None)
    with cf.ThreadPoolExecutor(2) as threads:
        options = dict(executor=threads) if how == "threads" else dict(n_jobs=1)
        with pytest.raises(GridError) as caught:
            quiet(BROKEN, store, **options)
        with pytest.raises(GridError) as again:
            quiet(BROKEN, store, **options)
    error, rows = caught.value, again.value.rows
    assert sorted(cell.policy for cell, _ in error.failed) == ["ets", "no-such-policy"]
    assert "2 cell(s) failed" in str(error)
    for words in ("no-such-policy on Split Digits", "seed 2", "unknown policy 'no-such-policy'"):
        assert words in str(error)
    assert "class-IL" in str(error) and "memory size 4 is too small" in str(error)
    assert error.rows.policy.tolist() == ["ets", "none"] == rows.policy.tolist()
    assert rows.trained.sum() == 0  # the rows of the first attempt were kept


def test_a_diverged_cell_is_a_row_that_says_so(tmp_path):
    environment = small(lr=1e30, epochs=3, first_epochs=3)
    cells = [Cell(environment, "ets"), Cell(environment, "mcts", 3), Cell(small(), "ets")]
    rows = quiet(cells, Store(tmp_path, shipped=None), n_jobs=1)
    assert rows.converged.tolist() == [False, False, True]
    assert rows.acc.isna().tolist() == [True, True, False]


def test_interrupting_keeps_what_is_done(tmp_path, monkeypatch):
    """Ctrl-C in the third cell keeps two rows, and the nodes of the third as far as it got; a notebook
    stops, instead of drawing two of its four runs over a complete figure."""
    store, original, begun = Store(tmp_path, shipped=None), search.run, []

    def interrupted(tree, name, rollouts):
        if tree.frozen:  # only looking what is there already
            return original(tree, name, rollouts)
        begun.append(name)
        if len(begun) == 3:
            tree.walk([(10,)])
            raise KeyboardInterrupt
        return original(tree, name, rollouts)

    monkeypatch.setattr(grid.search, "run", interrupted)
    cells = [Cell(small(seed=s), "ets") for s in (1, 2, 3, 4)]
    with pytest.raises(KeyboardInterrupt, match="2 of 4 cells are done and kept"):
        quiet(cells, store, n_jobs=1)
    assert lookup(cells, store).rows.seed.tolist() == [1, 2] and len(begun) == 3
    monkeypatch.setattr(grid.search, "run", original)
    whole = quiet(cells, store, n_jobs=1)
    assert whole.trained.tolist() == [0, 0, 3, 5]


def test_a_cancelled_job_is_a_failed_cell(tmp_path):
    """A cluster that goes away cancels its jobs; the rows that came back are still ours."""

    class Cancels(cf.Executor):
        def submit(self, fn, /, cell, store):
            job: cf.Future = cf.Future()
            if cell.environment.seed == 2:
                job.cancel()
                job.set_running_or_notify_cancel()
            else:
                job.set_result(fn(cell, store))
            return job

    cells = [Cell(small(seed=s), "none") for s in (1, 2, 3)]
    with pytest.raises(GridError, match="CancelledError") as caught:
        quiet(cells, Store(tmp_path, shipped=None), executor=Cancels())
    assert sorted(caught.value.rows.seed) == [1, 3]


SCRIPT = """
    import os, signal, sys, threading
    from rslib.environment import Environment
    from rslib.runs import grid
    from rslib.runs.grid import Cell
    from rslib.store import Store

    if __name__ == "__main__":
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        settings = dict(memory_size=10, scenario="task", n_tasks=5, network="mlp", hidden=16,
                        first_epochs=1, batch_size=64, lr=0.01)
        quick, endless = (Environment("digits", epochs=e, **settings) for e in (1, 10**6))
        store = Store(sys.argv[1], shipped=None)
        cells = [Cell(quick, "ets"), Cell(endless, "ets")]
        try:
            grid.run(cells, 2, store=store)
        except KeyboardInterrupt as stopped:
            print(stopped, "kept", grid.lookup(cells, store).rows.policy.tolist())
"""


@pytest.mark.slow
def test_interrupting_processes_does_not_wait_for_them(tmp_path):
    """Jupyter's stop button reaches this process only; a cell of hours must not go on behind it."""
    script = tmp_path / "grid.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(tmp_path / "store")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    shown = ""
    try:
        store = Store(tmp_path / "store", shipped=None)
        for _ in range(600):  # until the endless cell is in the middle of its second task
            if len(store.environments()) == 2:
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        assert process.stderr
        while "1/2" not in shown:  # the progress bar: the quick cell has come back
            assert select.select([process.stderr], [], [], 120)[0], shown
            shown += os.read(process.stderr.fileno(), 1000).decode() or pytest.fail(shown)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: only what this test began
    assert process.returncode == 0, errors
    assert "1 of 2 cells are done and kept" in out and "kept ['ets']" in out


ENDLESS = """
    import pathlib, signal, sys, time
    from rslib.runs import workers

    def work(name):
        pathlib.Path(sys.argv[1], name).touch()
        time.sleep(10**6)

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            workers.in_processes(work, [("a",), ("b",), ("c",)], 2, "trees")
        except workers.Interrupted as stopped:
            print(stopped)
"""


@pytest.mark.slow
def test_interrupting_jobs_ends_their_processes(tmp_path):
    """Broken: notebook 07 answers the stop button when all its trees and policies are trained."""
    script = tmp_path / "jobs.py"
    script.write_text(textwrap.dedent(ENDLESS))
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for _ in range(600):
            if (tmp_path / "a").exists() and (tmp_path / "b").exists():
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "what was done is kept" in out and process.returncode == 0
    assert not (tmp_path / "c").exists()  # what was waiting for a process has not begun


def test_a_worker_that_dies_costs_only_its_own_job(tmp_path):
    """Broken: one process that runs out of memory loses the eleven jobs beside and behind it."""
    with workers.Processes(2) as pool:
        jobs = {name: pool.submit(job_that_dies, name, tmp_path) for name in "abcdef"}
        assert [jobs[name].result(120) for name in "acdef"] == list("acdef")  # a died once
        with pytest.raises(RuntimeError, match="ended twice"):
            jobs["b"].result(120)


USER_ERRORS = {
    "unknown policy 'wrost'": lambda tree: Policy.load("wrost"),
    "needs tau": lambda tree: Policy.load("heur-gd"),
    "takes no parameter": lambda tree: Policy.load("ets:1"),
    "is not a number": lambda tree: Policy.load("heur-gd:x"),
    "tau is a fraction": lambda tree: Policy.load("heur-gd:96"),
    "is not a policy saved by rslib": lambda tree: Policy.load(rslib.__file__),
    "the history is empty": lambda tree: Policy.load("ets").propose([], 10),
    "0 weights for 1": lambda tree: Rule("short", "Short", lambda val, rng, parameter: []).propose(
        [[1.0]], 10
    ),
    "iterations must be at least 1": lambda tree: rslib.mcts(tree, 0),
    "Use rslib.mcts": lambda tree: rslib.bfs(
        rslib.ScheduleTree(small(dataset="permuteddigits", n_tasks=8))
    ),
    "no environment table at nowhere.csv": lambda tree: load_tables("nowhere.csv"),
    "are not those of an environment table": lambda tree: load_tables(rslib.__file__),
    "play takes": lambda tree: widgets.play(17),
    "inspect_schedule takes": lambda tree: widgets.inspect_schedule(17),
    "search must be one of": lambda tree: widgets.explore_tree(tree, "bfs"),
}


@pytest.mark.parametrize("message", USER_ERRORS)
def test_an_argument_that_is_not_allowed_is_said_in_a_line(message):
    """Broken: a notebook shows twenty lines of our code around the sentence that helps."""
    with pytest.raises(UserError) as caught:
        USER_ERRORS[message](ScheduleTree(small()))
    assert message in str(caught.value) and str(caught.value).count("\n") <= 1


def test_errors_a_user_can_cause_are_short_in_a_notebook(capsys):
    """Broken: a misspelt dataset fills the screen with sixty lines of our code."""
    InteractiveShell().run_cell("from rslib import data; data.load('mnits')")
    shown = capsys.readouterr().out.strip().splitlines()
    assert shown[0].startswith("DataError: 'mnits' is no known dataset. Did you mean 'mnist'?")
    assert len(shown) == 1


def test_luck_is_compared_only_where_a_search_cannot_try_everything(tmp_path, monkeypatch):
    """Broken: trees of three tasks, of which both try all schedules, stand as +0.00 among results."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    small_tree, large_tree = (Environment("digits", n_tasks=n) for n in (3, 4))  # 3, 30 schedules
    for environment in (small_tree, large_tree):
        quiet(
            [Cell(environment, policy, 5) for policy in ("mcts", "random-best")], Store(), n_jobs=1
        )
    assert studies.luck_pairs(rollouts=5)["n_tasks"].tolist() == [4]


def test_luck_is_compared_under_one_setting(tmp_path, monkeypatch):
    """Broken: the same seed with another M or scenario counts as a second seed, or somebody's network
    that is not registered in this kernel ends the notebook."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    plain = Environment("digits", n_tasks=4)
    others = replace(plain, memory_size=12), replace(plain, scenario="class", memory_size=20)
    for environment in (plain, *others):
        quiet(
            [Cell(environment, policy, 5) for policy in ("mcts", "random-best")], Store(), n_jobs=1
        )
    untrained = Store().rows(plain.key)[UNTRAINED]
    Store().put("0" * 20, plain.as_stored() | {"network": "wide"}, UNTRAINED, untrained)
    pairs = studies.luck_pairs(rollouts=5)
    assert pairs[["n_tasks", "seed"]].to_numpy().tolist() == [[4, 1]]


def test_luck_names_a_dataset_by_more_than_its_title(tmp_path, monkeypatch):
    """Broken: two users' files called mine.npz count as seeds of one dataset."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    draws, y = np.random.default_rng(0), np.arange(160) % 8
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        x = draws.random((160, 6)).astype(np.float32)
        file = tmp_path / folder / "mine.npz"
        np.savez(file, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
        environment = Environment(str(file), n_tasks=4)
        quiet(
            [Cell(environment, policy, 5) for policy in ("mcts", "random-best")], Store(), n_jobs=1
        )
    assert studies.luck_pairs(rollouts=5)["dataset"].nunique() == 2


def test_a_label_stands_for_its_policy():
    """Broken: Joint training, whose policy is "none", is drawn as a run without replay."""
    cells = [Cell(small(), "none"), Cell(small(method="joint"), "none", label="Joint")]
    runs = grid.run(cells, n_jobs=1, progress=False)
    (fine_tuning,), (joint,) = runs.of("none"), runs.of("Joint")
    assert (fine_tuning.node.environment.method, joint.node.environment.method) == ("er", "joint")


def test_a_cell_that_cannot_be_built_does_not_lose_the_others():
    """Broken: the forecast before training ends the grid at the first bad cell, without its name."""
    bad, good = Cell(Environment("digits", n_tasks=6), "ets"), Cell(small(), "ets")
    with pytest.raises(GridError, match="ets on Split Digits, task-IL, 6 tasks") as caught:
        grid.run([bad, good], n_jobs=1)
    assert caught.value.rows["policy"].tolist() == ["ets"]
