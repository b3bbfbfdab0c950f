"""`make paper-figures`: every notebook through papermill, one after the other.

Shows which notebook is running, how long it took and what it wrote. A notebook that fails does not
stop the others; at the end the command fails with their names. Executed copies and their HTML go to
`executed/`; running again is fast, because results are in the store.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError

from rslib.params import REPOSITORY
from rslib.profiles import PROFILES
from rslib.report import write_html, write_index

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
    failed, start = [], time.perf_counter()
    for notebook in notebooks:
        number = notebook.name[:2]
        for dataset in [""] if number in ONCE else options.datasets.split() or [""]:
            if not _run(notebook, dataset, options):
                failed.append(f"{notebook.stem} {dataset}".strip())
    index = write_index(Path(options.executed), Path(options.out_dir))
    print(f"total {_clock(time.perf_counter() - start)}; report: {index}")
    if failed:
        print("FAILED: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rslib.paper_figures", description=__doc__)
    parser.add_argument("--profile", default="quick", choices=tuple(PROFILES))
    parser.add_argument("--datasets", default="", help='for example "mnist notmnist"')
    parser.add_argument("--notebooks", default="", help='for example "01 04"; default: all')
    # Absolute: a notebook runs in its own folder, not in the one this command was typed in.
    where, folder = "where figures/ and tables/ go", os.path.abspath
    parser.add_argument("--out-dir", default=str(REPOSITORY), help=where, type=folder)
    parser.add_argument("--executed", default=str(REPOSITORY / "executed"), type=folder)
    parser.add_argument("--n-jobs", default=None, type=int)
    return parser.parse_args(arguments)


def _run(notebook: Path, dataset: str, options: argparse.Namespace) -> bool:
    """Execute one notebook; True if it went through."""
    title = f"{notebook.stem} {dataset}".strip()
    out = Path(options.executed) / (Path(dataset).stem or "default") / notebook.name
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{title} ...", flush=True)
    parameters = _parameters(notebook, dataset, options)
    start, before = time.perf_counter(), time.time()
    try:
        papermill.execute_notebook(
            notebook, out, parameters, cwd=str(notebook.parent), progress_bar=sys.stderr.isatty()
        )
        error = None
    except papermill.PapermillExecutionError as caught:
        error = f"{caught.ename}: {caught.evalue}"
    except DeadKernelError:
        error = "its kernel died (killed, or out of memory). Run again: finished trainings are kept"
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
    cells = nbformat.read(notebook, as_version=4).cells
    source = next(c.source for c in cells if "parameters" in c.metadata.get("tags", []))
    wanted = dict(profile=options.profile, out_dir=options.out_dir, n_jobs=options.n_jobs)
    if dataset:
        wanted["dataset"] = dataset
    elif options.datasets and "datasets" in source:
        wanted["datasets"] = options.datasets
    return {k: v for k, v in wanted.items() if v is not None and f"{k}:" in source}


def _written(out_dir: Path, since: float) -> list[Path]:
    files = [f for kind in ("figures", "tables") for f in (out_dir / kind).glob("*/*")]
    return sorted(f for f in files if f.stat().st_mtime >= since)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:04.1f} s"


if __name__ == "__main__":
    sys.exit(main())
