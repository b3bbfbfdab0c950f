"""`make paper-figures`: run every notebook through papermill, one after the other.

Shows which notebook is running, how long it took and what it wrote. A notebook that fails does not
stop the others; at the end the command fails with their names. Executed copies and their HTML go to
`executed/`; running again is fast, because results are in the store.

The paper's settings take hours where nothing is shipped. So `--profile paper --datasets mnist` draws
stored results only, and reports each notebook that it skips because its runs are not stored; a
notebook named by `--notebooks` is run, whatever it takes. Where the data are not on this machine and
cannot be fetched, it is drawn from what is stored.
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

from rslib import data
from rslib.files import REPOSITORY, write_atomically
from rslib.runs import params
from tools import report

# Skipped where only stored results are drawn: 00 shows no result of the paper, 07 trains schedule
# trees of its own for hours.
NOT_SHIPPED = ("00", "07")
ONCE = ("00", "07", "09")  # these choose their own datasets, or cover all of them


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
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
    failed, start = [], time.perf_counter()
    for notebook in notebooks:
        datasets = [] if notebook.name[:2] in ONCE else options.datasets.split()
        for dataset in datasets or [""]:
            title = f"{notebook.stem} {dataset}".strip()
            parameters = _parameters(notebook, dataset, options)
            try:
                if stored_only or (dataset and not data.at_hand(dataset)):
                    if not _drawable(title, notebook, dataset, parameters, stored_only):
                        continue
                passed = _run(title, notebook, dataset, parameters, options)
            except (params.ParameterError, data.DataError) as error:
                print(f"{title}: failed: {error}")
                passed = False
            if not passed:
                failed.append(title)
    write_document(Path(options.out_dir) / "tables")
    index = report.build(Path(options.executed))
    print(f"total {_clock(time.perf_counter() - start)}; report: {index}")
    if failed:
        print("FAILED: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


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

    A study of searches needs one of MCTS: its figures are about that.
    """
    from rslib.runs import grid, studies  # here: it loads torch, which running a notebook does not

    p = params.check({"dataset": dataset, "profile": profile}, number)
    mine = [study.cells(p) for study in studies.STUDIES if study.notebook == number]
    cells = dict.fromkeys(cell for study in mine for cell in study)
    searches = ([cell for cell in study if cell.policy == "mcts"] or study for study in mine)
    return len(grid.lookup(cells)), len(cells), all(len(grid.lookup(some)) for some in searches)


def _run(
    title: str,
    notebook: Path,
    dataset: str,
    parameters: dict[str, Any],
    options: argparse.Namespace,
) -> bool:
    """Execute one notebook, print what it wrote, and return whether it went through."""
    out = Path(options.executed) / (Path(dataset).stem or "default") / notebook.name
    out.parent.mkdir(parents=True, exist_ok=True)
    running = out.with_suffix(".failed.ipynb")  # its name until it has gone through
    print(f"{title} ...", flush=True)
    start, error = time.time(), ""
    try:
        papermill.execute_notebook(
            notebook,
            running,
            parameters,
            cwd=str(notebook.parent),
            progress_bar=sys.stderr.isatty(),
            # Each kernel would warn that it talks to this process over plain TCP.
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
    except papermill.PapermillExecutionError as caught:
        error = f"{caught.ename}: {caught.evalue}"
    except RuntimeError as caught:  # the kernel was killed, or had not enough memory
        error = f"{caught}. Run again: finished trainings are kept"
    if not error:
        os.replace(running, out)
    artefacts = [
        f for kind in ("figures", "tables") for f in Path(options.out_dir, kind).glob("*/*")
    ]
    written = sorted(f for f in artefacts if f.stat().st_mtime >= start)
    print(f"{title}: {_clock(time.time() - start)}, wrote {len(written)} files", flush=True)
    for path in written:
        print(f"    {os.path.relpath(path, options.out_dir)}")
    if error:
        print(f"    failed: {error}", flush=True)
    return not error


DOCUMENT = r"""%% Every table of this folder: pdflatex all
\documentclass[10pt]{article}
\usepackage[letterpaper,margin=1in]{geometry}
\usepackage{booktabs,graphicx}
\usepackage[table]{xcolor}
\begin{document}
%s
\end{document}
"""


def write_document(tables: Path) -> Path:
    """Write all.tex, the document that inputs every table of a folder, one to a page."""
    found = sorted(path.relative_to(tables).as_posix() for path in tables.glob("*/*.tex"))
    body = "\n".join(rf"\input{{{name}}}\clearpage" for name in found)
    return write_atomically(tables / "all.tex", (DOCUMENT % body).encode())


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:04.1f} s"


if __name__ == "__main__":
    sys.exit(main())
