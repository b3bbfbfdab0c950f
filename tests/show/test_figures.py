"""rslib.show: that figures show the numbers they are given, legibly, in the same bytes."""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.image
import matplotlib.pyplot
import nbformat
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from rslib.files import REPOSITORY
from rslib.schedule import Schedule, counts, sample_action
from rslib.show import figures, published, schedules, style, tables

mpl.use("Agg")
pytestmark = pytest.mark.filterwarnings("error")
NAN = float("nan")
BASE = {"Joint": 0.99, "BFS": 0.98, "Random": 0.92, "ETS": 0.94, "Heur-GD": 0.95, "MCTS": 0.97}


def rows(labels=tuple(BASE), seeds=5, datasets=("mnist",), sizes=(10,)) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    out = [
        {"dataset": d, "scenario": "task", "selection": "uniform", "replay": "er", "seed": s}
        | {"memory_size": m, "label": label, "acc": BASE[label] - 0.3 / m + rng.normal(0, 0.01)}
        | {"bwt": -0.1, "converged": True, "rollouts": NAN, "subset": None}
        for d, label, m, s in itertools.product(datasets, labels, sizes, range(1, seeds + 1))
    ]
    return pd.DataFrame(out)


def matrix(n_tasks: int, seeds: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(n_tasks)
    values = rng.uniform(0.5, 1, (seeds or 1, n_tasks + 1, n_tasks))
    return values if seeds else values[0]


def schedule(n_tasks: int, M: int = 10) -> Schedule:
    rng = np.random.default_rng(n_tasks)
    return Schedule(tuple(counts(sample_action(k, rng), M) for k in range(1, n_tasks)))


def with_paper(**kwargs):
    return tables.summary_table(rows(**kwargs), paper_table="memory_selection")


def compared_by_seed(**kwargs):
    return tables.welch_table(rows(**kwargs), paper_table="memory_selection")


def selections(**kwargs) -> pd.DataFrame:
    """The rows of Table 1: every schedule under every selection; Joint and BFS once."""
    parts = [rows(**kwargs).assign(selection=name) for name in published.SELECTIONS]
    frame = pd.concat(parts, ignore_index=True)
    bounds = frame["label"].isin(["Joint", "BFS"]) & (frame["selection"] != "uniform")
    return frame[~bounds]


def drawn_by(name: str, cells: tuple[str, ...], **namespace):
    """Draw a notebook's figure: those of its cells that do it, with what they find there."""
    notebook = nbformat.read(REPOSITORY / "notebooks" / f"{name}.ipynb", as_version=4)
    namespace |= dict(np=np, pd=pd, sns=sns, style=style, tables=tables)
    with tempfile.TemporaryDirectory() as folder:
        about = dict(title="Split MNIST", name="mnist", memory_size=2, n_jobs=1)
        namespace["p"] = SimpleNamespace(out_dir=folder, **about)
        for source in [c.source for c in notebook.cells if c.id in cells]:
            exec(source, namespace)
    return namespace["figure"]


def table_1(frame: pd.DataFrame):
    """Draw Table 1 as a picture: the cells of notebook 04 that do it, on these rows."""
    table = tables.summary_table(frame, ("selection", "label"), paper_table="memory_selection")
    study = SimpleNamespace(name="memory_selection")
    cells = ("04-15", "04-bounds")
    return drawn_by("04_memory_selection", cells, rows=frame, table=table, study=study)


FIGURES = {
    "bubbles, 5 tasks": lambda: schedules.bubble(schedule(5)),
    "bubbles, 20 tasks": lambda: schedules.bubble(schedule(20), title="MCTS"),
    "panels, 5 tasks": lambda: schedules.accuracy_and_bubbles(
        {"Fine-tuning": (matrix(5), Schedule.ets(5, 0)), "ETS": (matrix(5), Schedule.ets(5, 10))}
    ),
    "panels, 10 tasks": lambda: schedules.accuracy_and_bubbles(
        {n: (matrix(10), schedule(10)) for n in ("Fine-tuning", "ETS", "MCTS")}
    ),
    "panels, 20 tasks": lambda: schedules.accuracy_and_bubbles(
        {n: (matrix(20), schedule(20)) for n in ("Fine-tuning", "ETS", "MCTS")}
    ),
    "selections": lambda: table_1(selections()),
    "selections, one seed": lambda: table_1(selections(seeds=1, labels=("ETS", "MCTS"))),
    "ours and paper": lambda: figures.ours_vs_paper(with_paper(datasets=("mnist", "notmnist"))),
    "forest": lambda: figures.forest(compared_by_seed(datasets=("mnist", "notmnist"))),
    "forest, no paper": lambda: figures.forest(compared_by_seed(datasets=("digits",))),
    "ours and paper, one seed": lambda: figures.ours_vs_paper(with_paper(seeds=1)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_legible_inside_the_figure_and_does_not_collide(name):
    """Else a label is below 7 pt on paper, cut off at the edge, or written over another."""
    fig = FIGURES[name]()
    fig.draw_without_rendering()
    page, boxes = fig.bbox, []
    for text in printed(fig):
        box = text.get_window_extent()
        assert text.get_fontsize() >= 7, text.get_text()
        assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1, f"{text.get_text()!r} is cut off"
        assert box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1, f"{text.get_text()!r} is cut off"
        boxes.append((text.get_text(), box.padded(-0.5)))
    assert len(boxes) > 5
    for (one, box), (other, another) in itertools.combinations(boxes, 2):
        assert not box.overlaps(another), f"{one!r} collides with {other!r}"
    assert fig.get_figwidth() <= style.PAGE


def printed(fig) -> list[Text]:
    """Every text that reaches the page: matplotlib also keeps labels of ticks out of view."""
    texts = [t for legend in fig.legends for t in legend.get_texts()]
    for ax in fig.axes:
        texts += ax.texts
        if not ax.axison:
            continue
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            inside = [t for t in axis.get_major_ticks() if low - 1e-9 <= t.get_loc() <= high + 1e-9]
            texts += [label for tick in inside for label in (tick.label1, tick.label2)]
    return [t for t in texts if t.get_visible() and t.get_text().strip()]


def test_accuracies_are_drawn_for_each_task_from_when_it_was_learned():
    """Else the untrained row shifts time by one, or tasks are drawn before they exist."""
    stack = matrix(5, 4)
    _, (ax,) = style.panels(1, 1, style.COLUMN, 2)
    schedules.draw_accuracies(ax, stack, "late replay")
    for i, line in enumerate(ax.get_lines()):
        assert line.get_xdata().tolist() == list(range(i + 1, 6))
        np.testing.assert_allclose(line.get_ydata(), 100 * stack[:, i + 1 :, i].mean(axis=0))
    acc = 100 * stack[:, -1].mean()
    assert ax.get_title() == f"late replay\nACC {acc:.2f} %"


def test_a_seed_that_diverged_is_no_zero():
    """Broken: one seed at 85 % and one that diverged read "ACC 42.50 %"."""
    stack = matrix(5, 3)
    stack[1, 2:] = np.nan  # from task 2 on
    _, (ax, alone) = style.panels(2, 2, style.PAGE, 2)
    schedules.draw_accuracies(ax, stack, "two of three")
    rest = stack[[0, 2]]
    assert ax.get_title() == f"two of three\nACC {100 * rest[:, -1].mean():.2f} %"
    drawn = ax.get_lines()[0].get_ydata()
    np.testing.assert_allclose(drawn, 100 * rest[:, 1:, 0].mean(axis=0))
    schedules.draw_accuracies(alone, stack[1], "lost")
    assert alone.get_title() == "lost\ndid not converge"


def test_figure_1_of_the_paper_can_be_drawn_from_its_curves():
    """Else published curves, which have no untrained row and no value before learning, break."""
    curves = published.single_task_replay()
    _, axes = style.panels(len(curves), 4, style.PAGE, 2)
    for ax, (task, matrices) in zip(axes, curves.items(), strict=True):
        schedules.draw_accuracies(ax, matrices, str(task))
    assert [ax.get_title().split()[-2] for ax in axes] == ["89.66", "93.85", "93.17", "94.49"]


def test_bubble_areas_are_shares_of_the_memory():
    """Else big memories look bigger, or a circle's diameter is read as its share."""
    plan = Schedule(((8,), (2, 6), (0, 0, 0), (1, 3, 0, 4)))
    (circles,) = schedules.bubble(plan).axes[0].findobj(EllipseCollection)
    areas = {}
    for (x, y), size in zip(circles.get_offsets(), circles.get_widths(), strict=True):
        areas[(int(x), int(y))] = size**2
    whole = areas[(2, 1)]
    share = {at: area / whole for at, area in areas.items()}
    assert share == pytest.approx(
        {(2, 1): 1, (3, 1): 0.25, (3, 2): 0.75, (5, 1): 0.125, (5, 2): 0.375, (5, 4): 0.5}
    )


def test_table_1_draws_seeds_means_deviations_and_the_papers_value():
    """Else a mark is not its cell of Table 1, or stands over the wrong setting."""
    frame = selections(labels=("MCTS", "ETS", "Joint", "BFS"))
    lost = (frame["label"] == "ETS") & (frame["selection"] == "mof")
    frame.loc[lost, "acc"] = NAN  # did not converge: no mark
    ax = table_1(frame).axes[0]
    settings = [t.get_text() for t in ax.get_xticklabels()]
    assert settings == ["Uniform", "k-means", "k-center", "MoF"]
    ours, theirs = [], []
    for c in ax.containers:
        point = (round(float(c[0].get_xdata()[0])), c[0].get_color(), float(c[0].get_ydata()[0]))
        half = np.ptp(c[2][0].get_segments()[0][:, 1]) / 2
        (theirs if c[0].get_markerfacecolor() == "white" else ours).append((*point, half))
    dots = {
        (round(float(x.get_xdata()[0])), x.get_color()): np.sort(x.get_ydata())
        for x in ax.get_lines()
        if x.get_marker() == "."
    }
    assert len(ours) == len(theirs) == len(dots) == 7
    for i, color, mean, half in ours:
        label = next(m for m in ("MCTS", "ETS") if style.method(m).color == color)
        own = (
            100
            * frame[(frame.label == label) & (frame.selection == [*published.SELECTIONS][i])].acc
        )
        assert (mean, half) == pytest.approx((own.mean(), own.std(ddof=0)))
        np.testing.assert_allclose(dots[i, color], np.sort(own))
    cell = published.published("memory_selection", "mnist", "Uniform", "MCTS", "acc")
    (drawn,) = [point[2:] for point in theirs if point[:2] == (0, style.method("MCTS").color)]
    assert cell and drawn == pytest.approx(cell[:2])
    spans = {
        style.method(m).color: [
            line.get_xdata().tolist() for line in ax.get_lines()
            if line.get_color() == style.method(m).color and len(line.get_xdata()) == 2
        ]
        for m in ("Joint", "BFS")
    }  # fmt: skip
    assert list(spans.values()) == [[[-0.5, 3.5]], [[-0.5, 0.5]]]  # BFS ran with uniform only


def test_ours_vs_paper_draws_both_means():
    """Else what is drawn as the paper's is not what it published."""
    table = with_paper(labels=("ETS", "MCTS"))
    ax = figures.ours_vs_paper(table).axes[0]
    drawn = [c[0].get_xdata()[0] for c in ax.containers]
    cells = table.values[table.values["metric"] == "acc"]
    expected = cells.set_index("label")[["mean", "paper_mean"]].to_numpy().ravel()
    np.testing.assert_allclose(drawn, expected)
    assert 97.93 in drawn and 94.02 in drawn
    with pytest.raises(ValueError, match="no published numbers"):
        figures.ours_vs_paper(tables.summary_table(rows()))


def test_a_mean_of_fewer_seeds_than_the_papers_says_so():
    """Broken: one seed of ours stands beside the paper's five as if it were a mean, with deviation 0."""
    frame = rows(labels=("ETS", "MCTS"))
    table = tables.summary_table(
        frame[(frame["label"] == "ETS") | (frame["seed"] == 1)], paper_table="memory_selection"
    )
    ax = figures.ours_vs_paper(table).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["ETS", "MCTS (n=1)"]
    colors = [container[0].get_color() for container in ax.containers]
    assert colors == [style.method(label).color for label in ("ETS", "ETS", "MCTS", "MCTS")]
    assert np.isnan(table.values.query("label == 'MCTS'")["std"]).all()


def test_forest_draws_paired_differences_and_the_papers():
    """Else an interval crosses zero in the figure and not in its table, or stands at another name."""
    table = compared_by_seed()
    ax = figures.forest(table).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["Random", "ETS", "Heur-GD"]
    drawn = [c[0].get_xdata()[0] for c in ax.containers]
    expected = table.values[["paired_difference", "paper_difference"]].to_numpy().ravel()
    np.testing.assert_allclose(drawn, expected)
    ends = ax.containers[0][2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx(table.values[["paired_low", "paired_high"]].iloc[0].to_numpy())
    without = replace(table, values=table.values.drop(columns="dataset"))
    assert figures.forest(without).axes[0].get_title() == ""  # not the name of a folder


def test_bounds_of_fewer_seeds_say_so():
    """Broken: BFS on two seeds is drawn as if it were a mean over five."""
    frame = selections()
    few = frame[~((frame["label"] == "BFS") & (frame["seed"] > 2))]
    said = [t.get_text() for t in table_1(few).legends[0].get_texts()]
    assert "BFS (2 of 5 seeds)" in said and "Joint" in said


def test_replay_methods_say_what_is_drawn_and_where_seeds_are_fewer():
    """Broken: MCTS on two seeds stands beside three of the others, and nobody is told."""
    labels = ("Random", "ETS", "Heur-GD", "MCTS")
    frame = pd.concat(
        [rows(labels=labels, seeds=3).assign(replay=name) for name in ("hal", "der")],
        ignore_index=True,
    )
    frame = frame.drop(frame.query("replay == 'hal' and label == 'MCTS' and seed == 3").index)
    table = tables.summary_table(frame, ("replay", "label"), paper_table="replay_methods")
    study = SimpleNamespace(name="replay_methods")
    cells = ("05-19", "05-paper")
    fig = drawn_by("05_replay_methods", cells, rows=frame, table=table, study=study)
    assert [text.get_text() for text in fig.axes[0].texts] == ["n=2"]
    (legend,) = fig.legends
    assert "dots: seeds" in legend.get_title().get_text()
    assert [t.get_text() for t in legend.get_texts()] == [*labels, "paper"]


def test_what_replays_all_is_named():
    """Broken: "Baselines" replay 20 samples, and Random, a baseline, replays 8."""
    labels = ("Random", "A-GEM", "ER-Ring", "Uniform", "MCTS")
    small, large = Schedule.ets(5, 2), Schedule.ets(5, 8)
    frame = pd.concat(
        [rows(labels=("ETS",), seeds=2).assign(label=label) for label in labels], ignore_index=True
    )
    frame["schedule"] = small.to_json()
    found = {"mcts": SimpleNamespace(schedule=small), "Uniform": SimpleNamespace(schedule=large)}
    runs = SimpleNamespace(rows=frame, first=found.get)
    namespace = dict(
        grid=SimpleNamespace(run=lambda *_: runs),
        studies=SimpleNamespace(TINY_MEMORY=SimpleNamespace(cells=lambda _: [])),
        schedule=SimpleNamespace(Schedule=Schedule),
        train=False,
    )
    fig = drawn_by("06_tiny_memory", ("06-09", "06-12", "06-13"), **namespace)
    said = [t.get_text() for t in fig.legends[0].get_texts()]
    assert said == ["A-GEM, ER-Ring, Uniform", "MCTS"]


def test_titles_with_users_own_names_fit(tmp_path):
    """Broken: a long name of a dataset runs over the edge of its figure."""
    name = "measurements of the second campaign, cleaned by hand and relabelled twice since then"
    fig, (ax, _) = style.panels(2, 2, style.PAGE, 2)
    ax.set_title(name)
    style.savefig(fig, "named", "mine", tmp_path)
    assert ax.title.get_window_extent().x0 >= 0 and ax.get_title().replace("\n", " ") == name


def test_every_figure_has_one_size_of_text():
    """Broken: ticks, titles and legends of one figure are set in different sizes."""
    for make in FIGURES.values():
        assert len({text.get_fontsize() for text in printed(make())}) == 1


def test_error_bars_of_seaborn_show_the_population_std():
    """Else a figure's bars are wider than the deviations of its table (seaborn's "sd" is)."""
    frame = pd.DataFrame({"x": [1, 1, 1, 2, 2, 2], "acc": [1.0, 2.0, 6.0, 3.0, 5.0, 7.0]})
    _, (ax,) = style.panels(1, 1, style.COLUMN, 2)
    sns.pointplot(frame, x="x", y="acc", errorbar=style.spread, ax=ax)
    bars = [line.get_ydata() for line in ax.get_lines()[1:]]
    half = [np.ptp(bar) / 2 for bar in bars]
    np.testing.assert_allclose(half, np.sqrt([14 / 3, 8 / 3]))  # of 1, 2, 6 and of 3, 5, 7


def test_a_method_looks_the_same_everywhere():
    """Else blue is MCTS in one figure and ETS in the next, when a method is missing."""
    few, many = style.hues(["Random", "MCTS"]), style.hues(BASE)
    assert few["hue_order"] == ["Random", "MCTS"]
    assert style.in_order(["paper", "MCTS", "my own rule"]) == ["my own rule", "MCTS", "paper"]
    assert few["palette"]["MCTS"] == many["palette"]["MCTS"] == style.method("MCTS").color
    assert style.method("my own rule") == style.method("my own rule")


def test_one_legend_stands_below_all_panels():
    """Else seaborn's legends cover the curves, or a method is listed once per panel."""
    fig, axes = style.panels(2, 2, style.PAGE, 2)
    frame = pd.DataFrame(
        {"x": [1, 2, 1, 2], "acc": [1, 2, 3, 4], "label": ["ETS"] * 2 + ["MCTS"] * 2}
    )
    for ax in axes:
        sns.lineplot(frame, x="x", y="acc", hue="label", ax=ax, **style.hues(frame["label"]))
    style.legend_below(fig, axes, 4)
    assert [ax.get_legend() for ax in axes] == [None, None]
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["ETS", "MCTS"]


def test_main_methods_are_told_apart_by_the_colour_blind():
    """Else red-green blind readers see two methods of one figure as one.

    Deuteranopia and protanopia after Machado, Oliveira and Fernandes (2009), severity 1.
    """
    blind = {
        "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    }
    names = ("MCTS", "ETS", "Heur-GD", "Random", "BFS", "Fine-tuning")
    for kind in blind.values():
        seen = [np.array(kind) @ np.array(to_rgb(style.method(n).color)) ** 2.2 for n in names]
        seen = [np.clip(c, 0, 1) ** (1 / 2.2) for c in seen]
        for (one, a), (other, b) in itertools.combinations(zip(names, seen, strict=True), 2):
            same_line = style.method(one)[1:] == style.method(other)[1:]
            assert np.linalg.norm(a - b) > 0.15 and not same_line, (one, other)


@pytest.mark.parametrize("n_tasks", [2, 5, 9, 10, 11, 19, 20, 50])
def test_ticks_name_both_ends_and_stay_few(n_tasks):
    """Else the last task has no label, or labels run into each other."""
    ticks = style.task_ticks(1, n_tasks)
    assert ticks[0] == 1 and ticks[-1] == n_tasks and len(ticks) <= 11
    assert ticks == sorted(set(ticks))


def test_figures_do_not_pile_up_in_pyplot():
    """Else a notebook shows every figure twice and warns after twenty."""
    schedules.bubble(schedule(5))
    assert not mpl.pyplot.get_fignums()


def test_the_users_style_does_not_leak_in_or_out():
    """Else a notebook's own rcParams change the paper's figures, or ours change the notebook."""
    with mpl.rc_context({"font.size": 3, "xtick.labelsize": 3}):
        before = dict(mpl.rcParams)
        fig = schedules.bubble(schedule(5))
        assert dict(mpl.rcParams) == before
    assert {t.get_fontsize() for t in fig.axes[0].get_xticklabels()} == {7.5}


TWICE = """
import sys
import matplotlib; matplotlib.use("Agg")
import pandas as pd
from rslib.schedule import Schedule
from rslib.show import figures, schedules, style, tables
frame = pd.DataFrame([
    dict(dataset="mnist", scenario="task", selection="uniform", replay="er", memory_size=m, seed=s,
         label=l, acc=0.9 + s / 100, bwt=-0.1, converged=True, rollouts=100, subset=None)
    for m in (2, 10) for s in (1, 2) for l in ("ETS", "MCTS", "my rule")])
out = sys.argv[1]
tests = tables.welch_table(frame, ["ETS"], ["dataset", "memory_size"])
style.savefig(figures.forest(tests), "forest", "mnist", out)
style.savefig(schedules.bubble(Schedule.ets(4, 8)), "bubbles", "mnist", out)
tables.summary_table(frame, ["memory_size", "label"]).save("main", "mnist", out)
"""


def test_two_processes_write_the_same_bytes(tmp_path):
    """Else figures change in git at every run: dates, random ids, or the order of sets."""
    command = [sys.executable, "-W", "error", "-c", TWICE]
    runs = [
        subprocess.Popen(
            [*command, str(tmp_path / seed)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
        )
        for seed in ("1", "2")
    ]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    files = [
        {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        for out in (tmp_path / "1", tmp_path / "2")
    ]
    assert files[0].keys() == files[1].keys() and len(files[0]) == 6
    for name, content in files[0].items():
        assert content == files[1][name], name
        assert b"Date" not in content


def test_savefig_writes_vector_text_at_printed_size(tmp_path):
    """Else PDFs hold outlines instead of text (Type 3), or PNGs are blurred or rescaled."""
    pdf, png = style.savefig(schedules.bubble(schedule(5)), "bubble_plot", "mnist", tmp_path)
    assert pdf == tmp_path / "figures/mnist/bubble_plot.pdf" and png.suffix == ".png"
    content = pdf.read_bytes()
    assert b"/Type3" not in content and b"CIDFontType2" in content
    width = 0.75 * style.COLUMN
    media = re.search(rb"/MediaBox \[([^]]*)\]", content)
    assert media and [float(v) for v in media[1].split()] == [0, 0, width * 72, width * 72]
    assert mpl.image.imread(png).shape[:2] == (int(width * 200), int(width * 200))
