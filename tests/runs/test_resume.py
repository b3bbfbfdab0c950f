"""`make paper-figures` when something goes wrong: killed in the middle, it goes on where it was."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient.exceptions import DeadKernelError

from rslib.data import fetch
from rslib.files import REPOSITORY
from rslib.runs import grid, params, studies
from rslib.schedule import UNTRAINED
from tools import paper_figures

NOTEBOOK = REPOSITORY / "notebooks" / "04_memory_selection.ipynb"
PATIENCE = 300  # seconds that anything may take on a busy machine


def rows(store: Path) -> dict[tuple[str, str], tuple]:
    """Every row as it lies in the store, with the seconds its training took."""
    file = store / "rows.sqlite"
    if not file.exists():
        return {}
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60) as db:
        try:
            found = db.execute("SELECT key, path, val, test, seconds FROM rows").fetchall()
        except sqlite3.OperationalError:  # its tables are just being made
            found = []
    db.close()
    return {(key, path): tuple(values) for key, path, *values in found}


def n_trained(found) -> int:
    """The network before task 1 has a row too, but takes no training."""
    return sum(path != UNTRAINED for _, path in found)


def start(notebook: Path, folder: Path, n_jobs: int = 1) -> subprocess.Popen:
    """The notebook through papermill's own command line, with its own store."""
    wanted = dict(profile="smoke", rollouts=6, n_jobs=n_jobs, out_dir=folder / "out")
    parameters = [word for name, value in wanted.items() for word in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", str(notebook), str(folder / "executed.ipynb")]
    environment = os.environ | {"RSLIB_STORE": str(folder / "store")}
    folder.mkdir(exist_ok=True)
    with open(folder / "log", "w") as log:
        return subprocess.Popen([*command, *parameters], env=environment, stdout=log, stderr=log)


def finish(run: subprocess.Popen, folder: Path) -> int:
    """Wait for its end and say how many trainings it did; whatever it started is ended with it."""
    try:
        assert run.wait(PATIENCE) == 0, (folder / "log").read_text()[-3000:]
    finally:
        end(run)
    cells = nbformat.read(folder / "executed.ipynb", as_version=4).cells
    (said,) = [o.text for o in cells[-1].outputs if o.output_type == "stream"]
    return int(said)


def end(run: subprocess.Popen) -> None:
    if run.poll() is None:
        for process in [*psutil.Process(run.pid).children(recursive=True), run]:
            process.kill()
        run.wait(PATIENCE)


def kill_kernel(run: subprocess.Popen, store: Path, at_least: int) -> list[psutil.Process]:
    """`kill -9` the kernel once so many rows are there; returns the workers it had."""
    deadline = time.monotonic() + PATIENCE
    while n_trained(rows(store)) < at_least:
        assert run.poll() is None and time.monotonic() < deadline, "ended before it was killed"
        time.sleep(0.005)
    (kernel,) = [
        child for child in psutil.Process(run.pid).children() if "ipykernel" in str(child.cmdline())
    ]
    workers = kernel.children(recursive=True)
    os.kill(kernel.pid, signal.SIGKILL)
    return workers


def tables(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((folder / "out" / "tables").glob("*/*"))}


COUNT = 'print(rows["trained"].sum() + pools.rows["trained"].sum())'  # both grids of notebook 04


@pytest.mark.slow
def test_a_killed_kernel_loses_nothing_and_the_next_run_goes_on(tmp_path):
    """Broken: a crash at night costs the whole run; or the second run gives other tables."""
    node = nbformat.read(NOTEBOOK, as_version=4)
    node.cells.append(nbformat.v4.new_code_cell(COUNT))
    notebook = tmp_path / "notebook.ipynb"
    nbformat.write(node, notebook)

    whole = tmp_path / "whole"
    trained = finish(start(notebook, whole), whole)
    total = rows(whole / "store")
    assert trained == n_trained(total) > 100

    folder = tmp_path / "killed"
    run = start(notebook, folder, n_jobs=2)  # workers must die with it
    try:
        workers = kill_kernel(run, folder / "store", at_least=20)
        assert run.wait(PATIENCE) != 0, "a dead kernel must be a failure"
        _, alive = psutil.wait_procs(workers, timeout=60)
        for worker in alive:
            worker.kill()
        assert not alive, "workers outlive the kernel and go on training"
    finally:
        end(run)
    before = rows(folder / "store")
    assert 20 <= n_trained(before) < n_trained(total), "it was not killed in the middle"

    # One process now: two may train a node at the same time, and trainings are counted.
    trained_again = finish(start(notebook, folder), folder)
    after = rows(folder / "store")
    assert {which: after[which] for which in before} == before  # the seconds too: not trained again
    assert trained_again == n_trained(after) - n_trained(before)
    accuracies = [{k: v[:2] for k, v in found.items()} for found in (after, total)]
    assert accuracies[0] == accuracies[1]
    assert tables(folder) == tables(whole) != {}


def test_paper_figures_goes_on_after_a_dead_kernel(tmp_path, monkeypatch, capsys):
    """Broken: one notebook out of memory stops all that follow, or the command says it went well."""
    run = []

    def dies(notebook, out, *arguments, **options):
        run.append(notebook.name[:2])
        raise DeadKernelError("Kernel died")

    monkeypatch.setattr(paper_figures.papermill, "execute_notebook", dies)
    out = ["--out-dir", str(tmp_path), "--executed", str(tmp_path / "executed")]
    assert paper_figures.main(["--notebooks", "01 04", "--n-jobs", "1", *out]) == 1
    said = capsys.readouterr()
    assert run == ["01", "04"] and "Kernel died. Run again: finished trainings" in said.out
    assert "FAILED: 01_single_task_replay, 04_memory_selection" in said.err


@pytest.mark.parametrize(
    ("cores", "n_notebooks", "trains_long", "expected"),
    [(2, 9, False, (2, 1)), (8, 9, False, (4, 2)), (6, 9, False, (4, 2)), (1, 9, False, (1, 1))]
    + [(8, 1, False, (1, 8)), (8, 0, False, (1, 8)), (8, 9, True, (1, 8))],
)
def test_notebooks_share_the_cores(cores, n_notebooks, trains_long, expected):
    """Broken: a single notebook gets a part of the cores, or hours of training do, or some are idle."""
    assert paper_figures.share_out(cores, n_notebooks, trains_long) == expected


def test_09_waits_for_the_others():
    """Broken: 09 is drawn before the notebooks whose results it shows have stored them."""
    jobs = [
        paper_figures.Job(name, Path(f"{name}.ipynb"), "", {})
        for name in ("00_a", "02_b", "08_c", "09_paper")
    ]
    ordered = [
        [[job.title[:2] for job in part] for part in paper_figures.in_parts(jobs, at_once)]
        for at_once in (1, 2)
    ]
    assert ordered == [[["00", "02", "08"], ["09"]], [["08", "02", "00"], ["09"]]]


def test_paper_figures_refuses_a_notebook_that_is_not_there(tmp_path, monkeypatch, capsys):
    """Broken: `NOTEBOOKS="04 5"` runs 04 and says that all went well."""
    monkeypatch.setattr(paper_figures.papermill, "execute_notebook", None)  # runs nothing
    assert paper_figures.main(["--notebooks", "04 5"]) == 2
    assert "no notebook 5; there are 00_quickstart" in capsys.readouterr().err


def test_folders_are_those_of_the_command_line(tmp_path, monkeypatch):
    """Broken: `--out-dir out` writes to notebooks/out, because that is where notebooks run."""
    asked = {}
    monkeypatch.chdir(tmp_path)

    def execute(notebook, out, parameters, **_):
        asked.update(parameters)
        shutil.copy(notebook, out)

    monkeypatch.setattr(paper_figures.papermill, "execute_notebook", execute)
    assert paper_figures.main(["--notebooks", "04", "--out-dir", "out", "--executed", "e"]) == 0
    assert asked["out_dir"] == str(tmp_path / "out") and (tmp_path / "e" / "index.html").exists()


def test_the_papers_settings_draw_what_is_there_and_train_only_what_is_named(
    tmp_path, monkeypatch, capsys
):
    """Broken: after a clone, redrawing the shipped results starts hours of training; or naming a
    notebook does not."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path / "results"))
    there = {"01": 8, "02": 5, "04": 6}

    def counts(dataset, number, profile):
        params.check({"dataset": dataset, "profile": profile}, number)  # a misspelt dataset raises
        return there.get(number, 0), 8, number in there

    monkeypatch.setattr(paper_figures, "stored_runs", counts)
    run, trains = [], {}

    def execute(notebook, out, parameters, **_):
        run.append(notebook.name[:2])
        trains[run[-1]] = parameters.get("train", True)
        shutil.copy(notebook, out)

    monkeypatch.setattr(paper_figures.papermill, "execute_notebook", execute)
    out = ["--out-dir", str(tmp_path), "--executed", str(tmp_path / "executed")]
    command = ["--profile", "paper", "--datasets", "digits", "--n-jobs", "1", *out]
    assert paper_figures.main(command) == 0
    assert run == ["01", "02", "04", "09"]
    assert trains["01"] and not trains["02"] and not trains["04"]  # drawn from the rows there are
    said = capsys.readouterr().out
    assert "02_schedule_search digits: drawn from 5 of its 8 runs." in said
    assert "04_memory_selection digits: drawn from 6 of its 8 runs." in said
    assert "05_replay_methods digits: skipped, 0 of its 8 runs are stored." in said
    assert 'make paper-figures PROFILE=paper DATASETS="digits" NOTEBOOKS=02' in said
    assert "07_generalization: skipped" in said
    run.clear()
    assert paper_figures.main([*command, "--notebooks", "02"]) == 0
    assert run == ["02"] and trains["02"]
    run.clear()
    both = ["--profile", "paper", "--datasets", "digits minst", "--n-jobs", "1", *out]
    assert paper_figures.main(both) == 1  # what is misspelt is told, the other drawn all the same
    assert (
        run == ["01", "02", "04", "09"]
        and "FAILED: 01_single_task_replay minst" in capsys.readouterr().err
    )


def test_without_its_data_a_named_notebook_is_drawn_from_what_is_stored(
    tmp_path, monkeypatch, capsys
):
    """Broken: `NOTEBOOKS="01 04"` of the README ends with "notmnist is not here" beside its rows."""
    monkeypatch.setattr(fetch, "OWN", tmp_path / "data")
    monkeypatch.setenv("RSLIB_DATA", "")
    monkeypatch.setenv("RSLIB_OFFLINE", "1")
    stored = {"01": 8, "02": 5, "04": 6}
    monkeypatch.setattr(
        paper_figures, "stored_runs", lambda _, number, profile: (stored[number], 8, True)
    )
    trains = {}

    def execute(notebook, out, parameters, **_):
        trains[notebook.name[:2]] = parameters.get("train", True)
        nbformat.write(nbformat.v4.new_notebook(), out)

    monkeypatch.setattr(paper_figures.papermill, "execute_notebook", execute)
    command = ["--profile", "paper", "--datasets", "notmnist", "--notebooks", "01 02 04"]
    out = ["--out-dir", str(tmp_path), "--executed", str(tmp_path / "executed")]
    assert paper_figures.main([*command, *out]) == 0
    assert trains == {"01": True, "02": False, "04": False}
    said = capsys.readouterr().out
    assert "04_memory_selection notmnist: drawn from 6 of its 8 runs." in said
    assert "once its data are here" in said


def test_what_a_notebook_lacks_is_counted(tmp_path, monkeypatch):
    """Broken: a notebook is called complete while some of its runs would have to be trained."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    assert paper_figures.stored_runs("digits", "01") == (0, 20, False)
    paper = params.check({"dataset": "digits", "profile": "paper", "n_jobs": 1}, "01")
    grid.run(studies.SINGLE_TASK_REPLAY.cells(paper)[:2], 1, progress=False)
    assert paper_figures.stored_runs("digits", "01") == (2, 20, True)
    assert paper_figures.stored_runs("digits", "04") == (0, 87, False)  # FWT has the same runs
    grid.run(studies.ETS_HEURISTIC.cells(replace(paper, seeds=(1,)))[:1], 1, progress=False)
    assert paper_figures.stored_runs("digits", "02") == (
        1,
        37,
        False,
    )  # Random's: no search to draw
    assert paper_figures.stored_runs("digits", "04") == (1, 87, True)  # Table 1 needs no search
    n_stored, _, in_every_section = paper_figures.stored_runs("digits", "08")
    assert n_stored == 1 and not in_every_section  # no schedule to transfer: 08 cannot be drawn
