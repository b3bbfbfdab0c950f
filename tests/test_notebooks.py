"""The notebooks: conventions by reading them, results by running every one through papermill."""

import ast
import dis
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
import seaborn as sns
from nbconvert.filters import markdown2html

from rslib.runs import params
from rslib.schedule import n_schedules
from rslib.show import style, verdicts
from tools import paper_figures

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))  # start.ipynb has rules and tests of its own
NAMES = [
    *("00_quickstart", "01_single_task_replay", "02_schedule_search", "03_memory_size"),
    *("04_memory_selection", "05_replay_methods", "06_tiny_memory", "07_generalization"),
    *("08_schedule_transfer", "09_paper"),
]
# What each must leave behind; {d} is the dataset it ran on.
ARTEFACTS = {
    "00": [
        *("figures/{d}/quickstart.pdf", "figures/{d}/quickstart_bubbles.png"),
        "figures/{d}/quickstart_matrices.png",
    ],
    "01": [
        *("figures/{d}/single_task_replay.pdf", "tables/{d}/single_task_replay.tex"),
        "figures/{d}/single_task_gain.png",
    ],
    "02": [
        *("figures/{d}/schedule_tree.png", "figures/{d}/search_progress.pdf"),
        *("figures/{d}/bubbles.png", "tables/{d}/schedule_search_welch.tex"),
    ],
    "03": ["figures/{d}/memory_size.png", "tables/{d}/memory_size.tex"],
    "04": [
        *("tables/{d}/memory_selection.tex", "tables/{d}/forward_transfer.csv"),
        *("figures/{d}/memory_selection.png", "figures/{d}/selection_by_hand.png"),
        "figures/{d}/forward_transfer.pdf",
    ],
    "05": [
        *("tables/{d}/replay_methods.tex", "tables/{d}/replay_methods_welch.csv"),
        "figures/{d}/replay_methods.pdf",
    ],
    "06": ["figures/{d}/memory_usage.pdf", "tables/{d}/tiny_memory.tex"],
    "07": [
        *("tables/{d}/new_task_order.tex", "figures/{d}/policy_schedules.png"),
        *("figures/{d}/ranks_new_task_order.pdf", "tables/{d}/time_cost.csv"),
        "figures/{d}/learning_curves_new_task_order.png",
    ],
    "08": [
        *("tables/{d}/schedule_transfer.tex", "tables/{d}/ets_heuristic.csv"),
        *("figures/{d}/schedule_transfer.png", "figures/{d}/transferred_schedules.pdf"),
    ],
    "09": [
        "tables/paper-smoke/settings.tex",
        "tables/paper-smoke/task_splits.csv",
        "tables/paper-smoke/coverage.tex",
    ],
}


def code_cells(notebook):
    return [c for c in nbformat.read(notebook, as_version=4).cells if c.cell_type == "code"]


def test_all_notebooks_are_there():
    """Broken: a section of the paper has no notebook, or the numbering has a hole."""
    assert [n.stem for n in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem[:2])
def test_conventions(notebook):
    """Broken: outputs in git, a cell of many ideas, parameters that papermill cannot set, or a variable
    of the notebook's own that the check, run a second time, takes for a parameter."""
    node = nbformat.read(notebook, as_version=4)
    cells = code_cells(notebook)
    nbformat.validate(node)
    tagged = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1 and cells[0] == tagged[0]
    for line in tagged[0].source.splitlines():
        assert re.fullmatch(r"\w+: \w+ = .+  # .+", line), f"not typed and commented: {line}"
    first, check, *_ = cells[1].source.split("\n\n")  # before the imports that take seconds
    assert re.search(r"^from rslib.runs import params\b", first, re.MULTILINE)
    assert check.startswith("p = params.check(") and f'notebook="{notebook.stem[:2]}"' in check
    for cell in cells:
        assert not cell.outputs and cell.execution_count is None
        assert len(cell.source.splitlines()) <= 30
        assert not any(isinstance(n, ast.ClassDef) for n in ast.walk(ast.parse(cell.source)))
    steps = [s for c in cells[1:] for s in dis.get_instructions(compile(c.source, "", "exec"))]
    own = {step.argval for step in steps if step.opname == "STORE_NAME"}
    assert not own & set(re.findall(r"^\w+", tagged[0].source, re.MULTILINE))
    words = [c for c in node.cells if c.cell_type == "markdown"]
    assert words[0].source.startswith(f"# {notebook.stem[:2]} · ")
    text = " ".join(c.source for c in words)
    assert "**Runs**" in text and "**Writes**" in text and "## Provenance" in text


def test_the_start_page_takes_parameters_too():
    """Broken: papermill cannot set its dataset, or what is mistyped is not refused."""
    parameters, check, *_ = code_cells(FOLDER / "start.ipynb")
    assert parameters.metadata["tags"] == ["parameters"]
    for line in parameters.source.splitlines():
        assert re.fullmatch(r"\w+: \w+ = .+  # .+", line), f"not typed and commented: {line}"
    with pytest.raises(params.ParameterError, match=r"unknown parameter 'sed'.*'seed'"):
        exec(f"{parameters.source}\nsed = 2\n{check.source}", {})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for all notebooks of this module, as a user has one."""
    return tmp_path_factory.mktemp("store")


# 07 trains agents; the others together stay within the quick suite.
@pytest.mark.parametrize(
    "notebook",
    [pytest.param(n, marks=[pytest.mark.slow] * (n.stem[:2] in ("05", "07"))) for n in NOTEBOOKS],
    ids=lambda n: n.stem[:2],
)
def test_runs_through_papermill_with_other_parameters(notebook, tmp_path, store, monkeypatch):
    """Broken: the notebook, or an artefact it promises."""
    monkeypatch.setenv("RSLIB_STORE", str(store))
    number = notebook.stem[:2]
    parameters = dict(profile="smoke", out_dir=str(tmp_path), n_jobs=1, dataset="glyphs")
    parameters |= dict(rollouts=2, seeds="[3, 4]")
    source = code_cells(notebook)[0].source
    wanted = {k: v for k, v in parameters.items() if f"{k}: " in source}
    if number == "07":
        wanted |= dict(dataset="digits", experiment="new_task_order")
    executed = papermill.execute_notebook(
        notebook, None, wanted, progress_bar=False, cwd=str(FOLDER), execution_timeout=600
    )
    dataset = wanted.get("dataset", "")
    for name in ARTEFACTS[number]:
        path = tmp_path / name.format(d=dataset)
        assert path.stat().st_size > 60, f"{path} is missing or empty"
    outputs = [o for cell in executed.cells for o in cell.get("outputs", [])]
    assert not any(o.output_type == "error" for o in outputs)
    pictures = sum("image/png" in o.get("data", {}) for o in outputs)
    assert pictures >= sum("/figures/" in f"/{name}" for name in ARTEFACTS[number]), "not shown"


def test_the_figure_of_all_schedules_has_a_panel_per_seed(tmp_path):
    """Broken: 02 mixes seeds in one panel, or draws bounds among the schedules.

    The cell runs on made-up results, because no smoke run has BFS.
    """
    source = next(
        c.source for c in code_cells(FOLDER / "02_schedule_search.ipynb") if "histplot" in c.source
    )
    found = {
        seed: SimpleNamespace(
            accs=np.array([0.8, 0.9]),
            node=SimpleNamespace(environment=SimpleNamespace(seed=seed)),
        )
        for seed in (1, 2)
    }
    done = [(1, "ETS", 0.9), (2, "ETS", 0.8), (2, "MCTS", 0.85), (2, "Joint", 0.99)]
    shown = []
    namespace = dict(
        runs=SimpleNamespace(of=lambda policy: list(found.values())),
        rows=pd.DataFrame(done, columns=["seed", "label", "acc"]),
        p=SimpleNamespace(name="digits", out_dir=tmp_path),
        display=shown.append,
        **dict(sns=sns, style=style, verdicts=verdicts),
    )
    exec(source, namespace)
    one, two = shown[0].axes
    assert "seed 1" in one.get_title() and "seed 2" in two.get_title()
    assert [line.get_xdata()[0] for line in one.lines] == pytest.approx([90])
    assert sorted(line.get_xdata()[0] for line in two.lines) == pytest.approx([80, 85])
    assert sum(bar.get_height() for bar in one.patches) == 2
    assert (tmp_path / "figures/digits/all_schedules.png").is_file()


@pytest.mark.parametrize("n_tasks", [2, 3, 5, 20])
def test_figure_2_has_the_papers_schedules_as_paths_of_the_whole_tree(n_tasks, tmp_path):
    """Broken: 02's tree lacks a memory, a path leaves the tree, or 20 tasks hang it.

    The first cells of 02 run on an environment that has nothing but its number of tasks.
    """
    check, *cells = code_cells(FOLDER / "02_schedule_search.ipynb")[1:]
    imports = [line for line in check.source.splitlines() if line.startswith(("from", "import"))]
    drawn = next(i for i, c in enumerate(cells) if '"schedule_tree"' in c.source)
    namespace: dict[str, Any] = dict(
        p=SimpleNamespace(
            environment=lambda seed: SimpleNamespace(n_tasks=n_tasks),
            **dict(seeds=(1,), name="digits", out_dir=tmp_path),
        )
    )
    for source in ("\n".join(imports), *(c.source for c in cells[drawn - 1 : drawn + 1])):
        exec(source, namespace)
    T = min(n_tasks, 4)
    assert len(namespace["leaves"]) == n_schedules(T)
    ax = namespace["figure"].axes[0]
    for line, last in zip(ax.lines[:3], namespace["paths"].values(), strict=True):
        assert line.get_ydata().tolist() == list(range(1, T + 1))
        leaf = namespace["leaves"].index(last)
        assert line.get_xdata()[-1] == pytest.approx(leaf, abs=0.3)  # in the leaf's own box
    widths = Counter(round(bar.get_y() + 0.5) for bar in ax.patches if bar.get_width())
    assert len(ax.lines) == 3 + sum(n_schedules(k) for k in range(2, T + 1))
    assert set(widths) == set(range(2, T + 1))


def test_a_wrong_parameter_stops_the_notebook_before_it_trains(tmp_path):
    """Broken: papermill only warns about an unknown name, and the wrong experiment runs."""
    with pytest.raises(papermill.PapermillExecutionError, match="Did you mean 'dataset'"):
        papermill.execute_notebook(
            FOLDER / "04_memory_selection.ipynb",
            str(tmp_path / "out.ipynb"),
            dict(datset="mnist"),
            progress_bar=False,
            cwd=str(FOLDER),
        )


def test_help_reads_well():
    """Broken: `papermill --help-notebook` lists parameters without type, default or meaning."""
    found = papermill.inspect_notebook(str(FOLDER / "04_memory_selection.ipynb"))
    assert set(found) == {*params.KNOWN, "train"}
    for parameter in found.values():
        assert parameter["inferred_type_name"] in ("str", "int", "list", "bool")
        assert parameter["help"]


def test_the_contents_of_09_lead_to_all_of_its_sections():
    """Broken: a link of the contents leads nowhere, or a section is not in it."""
    cells = nbformat.read(FOLDER / "09_paper.ipynb", as_version=4).cells
    pages = [markdown2html(c.source) for c in cells if c.cell_type == "markdown"]
    links = re.findall(r'href="#([^"]+)"', next(page for page in pages if "Contents" in page))
    sections = re.findall(r'<h2 id="([^"]+)"', "".join(pages))
    assert [unquote(link) for link in links] == [unquote(name) for name in sections[1:]]


@pytest.mark.slow
def test_make_paper_figures_reports_the_one_that_fails(tmp_path, monkeypatch, capsys):
    """Broken: one notebook that fails, or whose process dies, hides or stops the others that run beside
    it, or the command succeeds."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    good = FOLDER / "01_single_task_replay.ipynb"
    repository = tmp_path / "repository"
    (repository / "notebooks").mkdir(parents=True)
    node = nbformat.read(good, as_version=4)
    nbformat.write(node, repository / "notebooks" / good.name)
    node.cells[-3].source = "raise RuntimeError('on purpose')"
    node.cells[-3].cell_type = "code"
    node.cells[-3] = nbformat.v4.new_code_cell("raise RuntimeError('on purpose')")
    nbformat.write(node, repository / "notebooks" / "00_broken.ipynb")
    node.cells[-3].source = "import os; os.kill(os.getppid(), 9)"
    nbformat.write(node, repository / "notebooks" / "02_deadly.ipynb")
    monkeypatch.setattr(paper_figures, "REPOSITORY", repository)
    out = ["--out-dir", str(tmp_path / "out"), "--executed", str(tmp_path / "executed")]
    code = paper_figures.main(["--profile", "smoke", "--n-jobs", "2", *out])  # both at once
    said = capsys.readouterr()
    assert code == 1 and "FAILED: 00_broken, 02_deadly" in said.err
    assert "on purpose" in said.out and "its worker process was ended twice" in said.out
    assert "01_single_task_replay: 0 min" in said.out
    assert "wrote figures/digits: single_task_gain, single_task_replay\n" in said.out
    executed = tmp_path / "executed" / "default"
    assert not (executed / "00_broken.ipynb").exists()
    assert (executed / "00_broken.failed.ipynb").exists()
    page = (tmp_path / "executed" / "index.html").read_text()
    assert "default/01_single_task_replay.html" in page and "data:image/png" in page
    body = (tmp_path / "executed" / "default" / "01_single_task_replay.html").read_text()
    assert "https://cdnjs" not in body and 'src="http' not in body
