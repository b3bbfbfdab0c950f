"""`make paper-figures`: every notebook through papermill, one after the other.

Shows which notebook is running, how long it took and what it wrote. A notebook that fails does not
stop the others; at the end the command fails with their names. Executed copies and their HTML go to
`executed/`; running again is fast, because results are in the store.

The paper's settings take hours where nothing is shipped. So `--profile paper --datasets mnist` draws
what is there and skips notebooks whose runs are not, saying so; those named by `--notebooks` are run,
whatever they take.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync

from rslib.files import REPOSITORY
from rslib.runs import params
from rslib.runs.profiles import PROFILES
from tools.report import write_html, write_index

# Skipped where only what is shipped is drawn: the first is no result of the paper, the other trains
# schedule trees of its own for hours.
NOT_SHIPPED = ("00", "07")
ONCE = ("00", "07", "09")  # not one run per dataset: they choose their own, or cover them all


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    folder = REPOSITORY / "notebooks"
    notebooks = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    chosen = options.notebooks.split()
    unknown = [c for c in chosen if not any(n.name.startswith(c) for n in notebooks)]
    if unknown:
        there = " ".join(n.stem for n in notebooks)
        print(f"no notebook {' '.join(unknown)}; there are {there}", file=sys.stderr)
        return 2
    if chosen:
        notebooks = [n for n in notebooks if n.name.startswith(tuple(chosen))]
    runs = [
        (notebook, dataset, "all")
        for notebook in notebooks
        for dataset in ([] if notebook.name[:2] in ONCE else options.datasets.split()) or [""]
    ]
    failed, start = [], time.perf_counter()
    if options.profile == "paper" and options.datasets and not chosen:
        runs = [(n, d, there) for n, d, _ in runs if (there := _there(n, d, failed))]
    kernel = following = Kernel()
    if runs:
        kernel = following = kernel.begin(folder)
    try:
        for i, (notebook, dataset, there) in enumerate(runs, start=1):
            if i < len(runs):
                following = Kernel().begin(folder)
            if not _run(notebook, dataset, there, options, kernel):
                failed.append(f"{notebook.stem} {dataset}".strip())
            kernel.end()
            kernel = following
    finally:  # interrupted: neither may stay behind
        kernel.end()
        following.end()
    index = write_index(Path(options.executed), Path(options.out_dir))
    print(f"total {_clock(time.perf_counter() - start)}; report: {index}")
    if failed:
        print("FAILED: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _there(notebook: Path, dataset: str, failed: list[str]) -> str:
    """Can it be drawn without training: "all" of it, "some", or not (""); what it lacks is said."""
    number, title = notebook.name[:2], f"{notebook.stem} {dataset}".strip()
    if number in NOT_SHIPPED:
        print(
            f"{title}: skipped, it shows no shipped result. To run it: papermill "
            f"notebooks/{notebook.name} out.ipynb -p profile paper -p dataset NAME"
        )
        return ""
    if not dataset:
        return "all"
    from rslib.runs import studies  # here: torch is loaded by the kernels, not by this process

    try:
        asked = params.check({"dataset": dataset, "profile": "paper"}, number)
        n, of = studies.progress(asked, number)
    except params.ParameterError as error:
        print(f"{title}: failed: {error}")
        failed.append(title)
        return ""
    if n == of:
        return "all"
    partly = n > 0 and "train:" in _parameters_cell(notebook)  # a grid shows the rows there are
    print(
        f"{title}: {'drawn from' if partly else 'skipped,'} {n} of its {of} runs"
        f"{'' if partly else ' are there'}. To train the others: make paper-figures "
        f'PROFILE=paper DATASETS="{dataset}" NOTEBOOKS={number}'
    )
    return "some" if partly else ""


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.paper_figures", description=__doc__)
    parser.add_argument("--profile", default="quick", choices=tuple(PROFILES))
    parser.add_argument("--datasets", default="", help='for example "mnist notmnist"')
    parser.add_argument("--notebooks", default="", help='for example "01 04"; default: all')
    # Absolute: a notebook runs in its own folder, not in the one this command was typed in.
    where, folder = "where figures/ and tables/ go", os.path.abspath
    parser.add_argument("--out-dir", default=str(REPOSITORY), help=where, type=folder)
    parser.add_argument("--executed", default=str(REPOSITORY / "executed"), type=folder)
    parser.add_argument("--n-jobs", default=None, type=int)
    return parser.parse_args(arguments)


class Kernel(AsyncKernelManager):
    """A kernel that loads the library while the notebook before it still runs: half of the time a
    notebook takes whose results are all there."""

    connected: Any = None

    def begin(self, folder: Path) -> Kernel:
        load = "[__import__(f'rslib.{name}') for name in ('runs.studies', 'show.verdicts')]"
        arguments = ["--HistoryManager.hist_file=:memory:", f"--IPKernelApp.exec_lines={load}"]
        arguments += ["--IPKernelApp.log_level=40"]  # plain TCP on loopback is no news
        run_sync(self.start_kernel)(extra_arguments=arguments, cwd=str(folder))
        return self

    def client(self, **options: Any) -> Any:
        self.connected = super().client(**options)
        return self.connected

    def end(self) -> None:
        if self.connected:
            self.connected.stop_channels()  # papermill leaves that to whoever made the kernel
        if self.has_kernel:
            run_sync(self.shutdown_kernel)(now=True)


def _run(
    notebook: Path, dataset: str, there: str, options: argparse.Namespace, kernel: Kernel
) -> bool:
    """Execute one notebook; True if it went through."""
    title = f"{notebook.stem} {dataset}".strip()
    out = Path(options.executed) / (Path(dataset).stem or "default") / notebook.name
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{title} ...", flush=True)
    parameters = _parameters(notebook, dataset, options)
    parameters |= {"train": False} if there == "some" else {}
    start, before = time.perf_counter(), time.time()
    try:
        papermill.execute_notebook(
            notebook,
            out,
            parameters,
            cwd=str(notebook.parent),
            progress_bar=sys.stderr.isatty(),
            km=kernel,
            start_timeout=600,  # it answers when the library is loaded
        )
        error = None
    except papermill.PapermillExecutionError as caught:
        error = f"{caught.ename}: {caught.evalue}"
    except RuntimeError as caught:  # killed, or out of memory; before its first cell or after
        error = f"{caught}. Run again: finished trainings are kept"
    if out.exists():
        write_html(out)
    written = _written(Path(options.out_dir), before)
    print(f"{title}: {_clock(time.perf_counter() - start)}, wrote {len(written)} files", flush=True)
    for path in written:
        print(f"    {os.path.relpath(path, options.out_dir)}")
    if error:
        print(f"    failed: {error}", flush=True)
    return error is None


def _parameters(notebook: Path, dataset: str, options: argparse.Namespace) -> dict:
    """What was asked for, as far as the notebook has it."""
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


def _written(out_dir: Path, since: float) -> list[Path]:
    files = [f for kind in ("figures", "tables") for f in (out_dir / kind).glob("*/*")]
    return sorted(f for f in files if f.stat().st_mtime >= since)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:04.1f} s"


if __name__ == "__main__":
    sys.exit(main())
