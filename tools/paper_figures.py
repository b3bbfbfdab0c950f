"""`make paper-figures`: run every notebook through papermill.

Shows which notebooks are running, how long each took, and at the end what they wrote. A notebook that
fails does not stop the others; the command fails with their names. Executed copies and their HTML go to
`executed/`; running again is fast, because results are in the store.

Notebooks run beside each other, up to four, and share the cores: starting kernels and drawing figures
keep one core busy each. Long trainings (the paper's settings) have all cores for one notebook.

The paper's settings take hours where nothing is shipped. So `--profile paper --datasets mnist` draws
stored results only, and reports each notebook that it skips because its runs are not stored; a
notebook named by `--notebooks` is run, whatever it takes. Where the data are not on this machine and
cannot be fetched, it is drawn from what is stored.
"""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill

from rslib import data, files
from rslib.files import REPOSITORY, write_atomically
from rslib.runs import params
from rslib.runs.params import SHIPPED
from tools import report

# Skipped where only stored results are drawn: 00 shows no result of the paper, 07 trains schedule
# trees of its own for hours.
NOT_SHIPPED = ("00", "07")
ONCE = ("00", "07", "09")  # these choose their own datasets, or cover all of them
LAST = "09"  # shows what the others have stored
AT_ONCE = 4  # notebooks; a kernel with its data takes up to 1 GB


@dataclass(frozen=True)
class Job:
    """One notebook on one dataset ("": its own choice)."""

    title: str
    notebook: Path
    dataset: str
    parameters: dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    files.make_absolute()
    notebooks = sorted((REPOSITORY / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    chosen = options.notebooks.split()
    unknown = [c for c in chosen if not any(n.name.startswith(c) for n in notebooks)]
    if unknown:
        names = " ".join(n.stem for n in notebooks)
        print(f"no notebook {' '.join(unknown)}; there are {names}", file=sys.stderr)
        return 2
    if chosen:
        notebooks = [n for n in notebooks if n.name.startswith(tuple(chosen))]
    stored_only = options.profile == "paper" and bool(options.datasets) and not chosen
    pairs = [
        (notebook, dataset)
        for notebook in notebooks
        for dataset in ([] if notebook.name[:2] in ONCE else options.datasets.split()) or [""]
    ]
    trains_long = options.profile == "paper" and not stored_only
    n_beside = sum(not notebook.name.startswith(LAST) for notebook, _ in pairs)
    at_once, n_jobs = share_out(options.n_jobs or os.cpu_count() or 1, n_beside, trains_long)
    if at_once > 1 and not stored_only:  # what trains nothing is the same on every machine
        options.n_jobs = n_jobs
    start, started, failed = time.perf_counter(), time.time(), []
    jobs: list[Job] = []
    for notebook, dataset in pairs:
        title = f"{notebook.stem} {dataset}".strip()
        parameters = _parameters(notebook, dataset, options)
        try:
            if stored_only or (dataset and not data.at_hand(dataset)):
                if not _drawable(title, notebook, dataset, parameters, stored_only):
                    continue
            jobs.append(Job(title, notebook, dataset, parameters))
        except (params.ParameterError, data.DataError) as error:
            print(f"{title}: failed: {error}")
            failed.append(title)
    for part in in_parts(jobs, at_once):
        for job, seconds, error in _run_all(part, Path(options.executed), at_once):
            print(f"{job.title}: {_clock(seconds)}", flush=True)
            if error:
                print(f"    failed: {error}", flush=True)
                failed.append(job.title)
    write_document(Path(options.out_dir) / "tables", shipped=options.profile == "paper")
    _print_written(Path(options.out_dir), started)
    index = report.build(Path(options.executed))
    print(f"total {_clock(time.perf_counter() - start)}; report: {index}")
    if failed:
        print("FAILED: " + ", ".join(sorted(failed)), file=sys.stderr)
    return 1 if failed else 0


def share_out(cores: int, n_notebooks: int, trains_long: bool) -> tuple[int, int]:
    """How many notebooks run beside each other, and how many processes each may start."""
    at_once = 1 if trains_long else max(1, min(cores, n_notebooks, AT_ONCE))
    return at_once, -(-cores // at_once)


def in_parts(jobs: list[Job], at_once: int) -> list[list[Job]]:
    """The jobs in the order to run them, in parts that wait for each other.

    Beside each other the later notebooks go first: the longest are among them, so that no core is idle
    at the end, and 08 trains what 02 and 04 look up.
    """
    last = [job for job in jobs if job.notebook.name.startswith(LAST)]
    others = [job for job in jobs if job not in last]
    return [others if at_once == 1 else others[::-1], last]


def _run_all(jobs: list[Job], executed: Path, at_once: int) -> Iterator[tuple[Job, float, str]]:
    """Run jobs, so many at once; yields each when it has ended, with its seconds and its error or ""."""
    if at_once == 1 or len(jobs) < 2:
        for job in jobs:
            yield _run(job, executed)
        return
    from rslib.runs import workers  # here: it loads torch, which running a notebook does not

    with workers.Processes(at_once) as pool:
        runs = {pool.submit(_run_beside, job, executed): job for job in jobs}
        for run in cf.as_completed(runs):
            try:
                yield run.result()
            except Exception as error:  # its process died, the disk is full, ...: the others go on
                yield runs[run], 0.0, str(error)


def _run_beside(job: Job, executed: Path) -> tuple[Job, float, str]:
    """Run one in a process of its own, which ends without a word when the terminal interrupts all."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # its kernel ends with it
    return _run(job, executed, bar=False)


def _print_written(out_dir: Path, since: float) -> None:
    """List the figures and tables that were written, folder by folder."""
    for folder in sorted(f for kind in ("figures", "tables") for f in out_dir.glob(f"{kind}/*/")):
        names = sorted({f.stem for f in folder.iterdir() if f.stat().st_mtime >= since})
        if names:
            print(textwrap.fill(f"wrote {folder.relative_to(out_dir)}: {', '.join(names)}", 100))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.paper_figures", description=__doc__)
    parser.add_argument("--profile", default="quick", choices=tuple(params.PROFILES))
    parser.add_argument("--datasets", default="", help='for example "mnist notmnist"')
    parser.add_argument("--notebooks", default="", help='for example "01 04"; default: all')
    # Absolute: a notebook runs in its own folder, not in the one this command was typed in.
    where, folder = "where figures/ and tables/ go", os.path.abspath
    parser.add_argument("--out-dir", default=str(REPOSITORY), help=where, type=folder)
    parser.add_argument("--executed", default=str(REPOSITORY / "executed"), type=folder)
    parser.add_argument("--n-jobs", default=None, type=int)
    return parser.parse_args(arguments)


def _parameters(notebook: Path, dataset: str, options: argparse.Namespace) -> dict[str, Any]:
    """The requested parameters, as far as the notebook has them."""
    source = _parameters_cell(notebook)
    wanted = dict(profile=options.profile, out_dir=options.out_dir, n_jobs=options.n_jobs)
    if dataset:
        wanted["dataset"] = dataset
    elif options.datasets and "datasets" in source:
        wanted["datasets"] = options.datasets
    return {k: v for k, v in wanted.items() if v is not None and f"{k}:" in source}


def _parameters_cell(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    return next(c.source for c in cells if "parameters" in c.metadata.get("tags", []))


def _drawable(
    title: str, notebook: Path, dataset: str, parameters: dict[str, Any], stored_only: bool
) -> bool:
    """Whether a notebook can be drawn; prints how to train the missing runs.

    A notebook that can show a part of its runs is given `train=False`, where `stored_only` or where the
    data to train the others cannot be had.
    """
    number = notebook.name[:2]
    if stored_only and number in NOT_SHIPPED:
        print(
            f"{title}: skipped, it shows no shipped result. To run it: papermill "
            f"notebooks/{notebook.name} out.ipynb -p profile paper -p dataset NAME"
        )
        return False
    if not dataset:
        return True
    n_stored, n_runs, in_every_section = stored_runs(dataset, number, parameters["profile"])
    if n_stored == n_runs:
        return True
    some = in_every_section and "train:" in _parameters_cell(notebook)
    if not stored_only and (not some or _fetched(dataset)):
        return True  # it trains the others, or says what it lacks
    if some:
        parameters["train"] = False
    print(
        f"{title}: {'drawn from' if some else 'skipped,'} {n_stored} of its {n_runs} runs"
        f"{'' if some else ' are stored'}. To train the others: make paper-figures "
        f'PROFILE={parameters["profile"]} DATASETS="{dataset}" NOTEBOOKS={number}'
        f"{'' if stored_only else ', once its data are here (`rslib data`)'}"
    )
    return some


def _fetched(dataset: str) -> bool:
    try:
        return bool(data.load(dataset).n_classes)
    except data.DataError:
        return False


def stored_runs(dataset: str, number: str, profile: str = "paper") -> tuple[int, int, bool]:
    """Count the stored runs of a notebook and all its runs; and say whether every study has some.

    The study of searches needs one of MCTS: its figures are about that.
    """
    from rslib.runs import grid, studies  # here: see _run_all

    p = params.check({"dataset": dataset, "profile": profile}, number)
    mine = {study: study.cells(p) for study in studies.STUDIES if study.notebook == number}
    cells = dict.fromkeys(cell for listed in mine.values() for cell in listed)
    needed = mine | {
        study: [cell for cell in listed if cell.policy == "mcts"]
        for study, listed in mine.items()
        if study is studies.SCHEDULE_SEARCH
    }
    in_every_section = all(len(grid.lookup(some)) for some in needed.values())
    return len(grid.lookup(cells)), len(cells), in_every_section


def _run(job: Job, executed: Path, bar: bool = True) -> tuple[Job, float, str]:
    """Execute one notebook; returns the job, the seconds it took, and what went wrong ("": nothing)."""
    folder = Path(job.dataset).stem or "default"
    if data.is_path(job.dataset) and folder in data.names():
        folder = f"own-{folder}"  # a user's mnist.npz is not mnist
    out = executed / folder / job.notebook.name
    out.parent.mkdir(parents=True, exist_ok=True)
    running = out.with_suffix(".failed.ipynb")  # its name until it has gone through
    print(f"{job.title} ...", flush=True)
    start, error = time.time(), ""
    try:
        for attempt in (1, 2):
            try:
                papermill.execute_notebook(
                    job.notebook,
                    running,
                    job.parameters,
                    cwd=str(job.notebook.parent),
                    progress_bar=bar and sys.stderr.isatty(),
                    # Kernels would warn that they talk to this process over plain TCP, and one that
                    # is ended while it is busy reports an error. What fails is raised here anyway.
                    extra_arguments=["--IPKernelApp.log_level=50"],
                )
                break
            except RuntimeError as caught:  # two kernels that start at once may take the same port
                if attempt == 2 or "before replying" not in str(caught):
                    raise
    except papermill.PapermillExecutionError as caught:
        error = f"{caught.ename}: {caught.evalue}"
    except RuntimeError as caught:  # the kernel was killed, or had not enough memory
        error = f"{caught}. Run again: finished trainings are kept"
    if not error:
        os.replace(running, out)
    return job, time.time() - start, error


DOCUMENT = r"""%% Every table of this folder: pdflatex all
\documentclass[10pt]{article}
\usepackage[letterpaper,margin=1in]{geometry}
\usepackage{booktabs,graphicx}
\usepackage[table]{xcolor}
\begin{document}
%s
\end{document}
"""


def write_document(tables: Path, shipped: bool) -> Path:
    """Write a document that inputs every table, one to a page: all.tex, or own.tex of those that are
    not of the shipped results."""
    mine = [path for path in tables.glob("*/*.tex") if (path.parent.name in SHIPPED) == shipped]
    found = sorted(path.relative_to(tables).as_posix() for path in mine)
    body = "\n".join(rf"\input{{{name}}}\clearpage" for name in found)
    target = tables / ("all.tex" if shipped else "own.tex")
    return write_atomically(target, (DOCUMENT % body).encode())


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:04.1f} s"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; what has been trained is kept. Run this again to go on")
