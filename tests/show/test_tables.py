"""rslib.show.tables and latex: what a table says, in text, HTML, CSV and TeX."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind, ttest_rel

from rslib.show import latex, tables

pytestmark = pytest.mark.filterwarnings("error")
NAN = float("nan")


def rows(acc: dict[str, list[float]], **settings) -> pd.DataFrame:
    """One row per method and seed, accuracies as fractions; BWT is ACC - 1."""
    common = {"dataset": "mnist", "scenario": "task", "selection": "uniform", "replay": "er"}
    common |= {"memory_size": 10, "samples_per_class": 1, "rollouts": NAN, "subset": None}
    out = []
    for label, values in acc.items():
        for seed, value in enumerate(values, start=1):
            row = common | {"label": label, "policy": label.lower(), "seed": seed, "acc": value}
            row |= {"bwt": value - 1, "converged": not np.isnan(value)}
            out.append(row | {"rollouts": 100 if label == "MCTS" else NAN} | settings)
    return pd.DataFrame(out)


FIVE = rows(
    {
        "Joint": [0.99] * 5,
        "MCTS": [0.95, 0.96, 0.97, 0.98, 0.99],
        "Random": [0.90, 0.91, 0.92, 0.93, 0.94],
        "ETS": [0.94, 0.95, 0.96, 0.94, 0.95],
        "Heur-GD": [0.5, 0.6, 0.99, 0.99, 0.9],
    }
)


def column(table, *head):
    return table.frame[head].to_dict()


def test_cells_are_mean_and_population_std_in_percent():
    """Else the table reports the sample deviation, or fractions."""
    shown = column(tables.summary_table(FIVE), "Split MNIST", "ACC (%)")
    assert shown["MCTS"] == "97.00 ± 1.41"  # sqrt(mean of 4, 1, 0, 1, 4); sample std is 1.58
    assert column(tables.summary_table(FIVE), "Split MNIST", "BWT (%)")["MCTS"] == "-3.00 ± 1.41"


def test_three_best_schedules_are_highlighted_and_bounds_are_not():
    """Else Joint takes the first place from the schedules, or the order of colours is wrong."""
    table = tables.summary_table(FIVE)
    marks = table.marks[("Split MNIST", "ACC (%)")].to_dict()
    assert marks == {
        "Joint": "",
        "Random": "third",
        "ETS": "second",
        "Heur-GD": "",
        "MCTS": "first",
    }
    assert list(table.frame.index) == ["Joint", "Random", "ETS", "Heur-GD", "MCTS"]


def test_highlights_stay_within_a_group_and_share_ties():
    """Else k-means competes with uniform, or two equal means get different colours."""
    both = pd.concat(
        [
            rows({"ETS": [0.9, 0.8], "MCTS": [0.9, 0.8], "Random": [0.1, 0.2]}),
            rows({"ETS": [0.5, 0.4], "MCTS": [0.6, 0.5]}, selection="kmeans"),
            rows({"MCTS": [0.3, 0.4]}, selection="mof"),
        ]
    )
    table = tables.summary_table(both, ["selection", "label"], metrics=("acc",))
    marks = table.marks.iloc[:, 0].to_dict()
    assert marks[("Uniform", "ETS")] == marks[("Uniform", "MCTS")] == "first"
    assert marks[("Uniform", "Random")] == "third"
    assert (marks[("k-means", "MCTS")], marks[("k-means", "ETS")]) == ("first", "second")
    assert marks[("MoF", "MCTS")] == ""  # alone it is the best of nothing


def test_failed_and_missing_runs_show():
    """Else a mean over fewer seeds, or a cell nobody ran, looks like any other."""
    some = pd.concat(
        [
            rows({"ETS": [0.9, 0.8, NAN, 0.7, 0.6], "MCTS": [0.9], "Random": [NAN, NAN]}),
            rows({"ETS": [0.9, 0.8, 0.7]}, dataset="digits"),
        ]
    )
    table = tables.summary_table(some, metrics=("acc",))
    assert column(table, "Split MNIST", "ACC (%)") == {
        "ETS": "75.00 ± 11.18* (4/5)",
        "MCTS": "90.00 (n=1)",  # a single seed has no deviation, 0.00 would be a lie
        "Random": "n/a* (0/2)",
    }
    assert column(table, "Split Digits", "ACC (%)")["MCTS"] == "–"
    assert column(table, "Split Digits", "ACC (%)")["ETS"] == "80.00 ± 8.16 (n=3)"
    alone = table.values.query("label == 'MCTS' and dataset == 'mnist'")
    assert alone["std"].isna().all()  # nor in the CSV, nor in figures made from these numbers
    for word in ("did not converge", "n: seeds where not 5", "–: not run"):
        assert word in table.caption
    assert "converge" not in tables.summary_table(FIVE).caption


def test_the_number_of_a_failed_run_does_not_count():
    """Else a diverged network's 50 % goes into the mean and the t-test."""
    frame = rows({"MCTS": [0.9, 0.8, 0.1], "ETS": [0.7, 0.6, 0.5]})
    frame.loc[2, "converged"] = False
    table = tables.summary_table(frame, metrics=("acc",))
    assert column(table, "Split MNIST", "ACC (%)")["MCTS"] == "85.00 ± 5.00* (2/3)"
    test = tables.welch_table(frame, against=("ETS",))
    assert test.values["n_ours"].tolist() == [2]


def test_the_papers_value_and_the_difference_stand_beside():
    """Else readers cannot see how far a reproduction is off, or see it with the wrong sign."""
    table = tables.summary_table(FIVE, ["selection", "label"], paper_table="memory_selection")
    at = ("Uniform", "MCTS")
    cells = [column(table, "Split MNIST", "ACC (%)", k)[at] for k in ("ours", "paper", "diff.")]
    assert cells == ["97.00 ± 1.41", "97.93 ± 0.56", "-0.93"]
    ets = table.values.query("label == 'ETS' and metric == 'bwt'").iloc[0]
    assert ets["difference"] == pytest.approx(-5.2 - ets["paper_mean"])


@pytest.mark.parametrize(
    "other", [{"scenario": "class"}, {"memory_size": 8}, {"dataset": "digits"}]
)
def test_no_paper_column_for_another_setting(other):
    """Else a Class-IL result is compared with a Task-IL one."""
    plain = FIVE[FIVE["label"] != "Joint"].assign(**other)
    table = tables.summary_table(plain, paper_table="memory_selection")
    assert table.frame.columns.nlevels == 2 and "paper" not in table.frame.columns.levels[1]


def test_rows_that_would_be_averaged_by_accident_are_an_error():
    """Else two thresholds of one heuristic, or two memory sizes, melt into one mean."""
    twice = pd.concat([FIVE, FIVE.assign(memory_size=20)])
    with pytest.raises(ValueError, match=r"2 rows for the one run .*differ in \['memory_size'\]"):
        tables.summary_table(twice)
    tables.summary_table(twice, ["memory_size", "label"])
    with pytest.raises(ValueError, match="lack the columns"):
        tables.summary_table(FIVE.drop(columns="label"))
    with pytest.raises(ValueError, match="no result rows"):
        tables.summary_table(FIVE[:0])


def test_caption_names_what_the_rows_hold():
    """Else a figure of a subset passes for one of the dataset."""
    frame = FIVE.assign(subset="subset, 100 images per class")
    assert tables.caption(frame, "Schedules compared.") == (
        "Schedules compared. Split MNIST (subset, 100 images per class); Task-IL; M = 10; "
        "5 seeds (1–5); 100 rollouts."
    )
    one = rows({"ETS": [0.9]}, dataset="my data", memory_size=0)
    assert tables.caption(one, "One") == "One. my data; Task-IL; seed 1."
    assert tables.caption(one, "One", n_requested=len(one)) == tables.caption(one, "One")
    partly = tables.caption(one, "One", n_requested=len(one) + 7)
    assert partly.endswith(f"; {len(one)} of {len(one) + 7} runs, the others were not run.")
    two = pd.concat([frame, frame.assign(dataset="notmnist")])
    assert "Split MNIST, Split notMNIST (each: subset, 100 images" in tables.caption(two, "x")
    bfs = pd.concat([frame, frame.head(1).assign(label="BFS", rollouts=1050)])
    assert tables.caption(bfs, "x").endswith("; 100 rollouts.")  # BFS tries all: no setting
    assert tables.caption(frame.assign(changed=""), "x") == tables.caption(frame, "x")
    wide = tables.caption(frame.assign(changed="network = wide"), "x")
    assert "; M = 10; network = wide; 5 seeds" in wide


def test_welch_table_tests_and_corrects():
    """Else a difference, t, p or Holm in the table is not scipy's, or bold is on the wrong p."""
    rng = np.random.default_rng(0)
    drawn = rows({label: rng.uniform(0.8, 1, 5) for label in ("MCTS", "Random", "ETS", "Heur-GD")})
    table = tables.welch_table(drawn, group_keys=["dataset"], paper_table="memory_selection")
    values = table.values.set_index("comparison")
    mcts, ets = (100 * drawn.loc[drawn["label"] == m, "acc"].to_numpy() for m in ("MCTS", "ETS"))
    expected, by_seed = ttest_ind(mcts, ets, equal_var=False), ttest_rel(mcts, ets)
    line = values.loc["MCTS vs ETS"]
    assert (line["t"], line["p"]) == pytest.approx((expected.statistic, expected.pvalue))
    ends = expected.confidence_interval(), by_seed.confidence_interval()
    assert (line["ci_low"], line["ci_high"]) == pytest.approx((ends[0].low, ends[0].high))
    assert (line["paired_low"], line["paired_high"]) == pytest.approx((ends[1].low, ends[1].high))
    assert line["paired_p"] == pytest.approx(by_seed.pvalue)
    assert (line["ahead"], line["pairs"]) == ((mcts > ets).sum(), 5)
    assert line["paper_t"] == 1.82 and line["paper_difference"] == pytest.approx(97.93 - 94.02)
    bold = table.marks[tables.WELCH, "p"].to_numpy() == "bold"
    assert bold.tolist() == (table.values["p"] < 0.05).tolist()


def test_holm_corrects_within_one_dataset():
    """Broken: toy data in the store change whether a test on Split MNIST is significant."""
    rng = np.random.default_rng(1)
    acc = {label: rng.uniform(0.8, 1, 5) for label in ("MCTS", "Random", "ETS", "Heur-GD")}
    alone = tables.welch_table(rows(acc))
    beside = tables.welch_table(pd.concat([rows(acc), rows(acc, dataset="digits")]))
    p = alone.values["paired_p"].sort_values()
    assert alone.values["holm_p"][p.index[0]] == pytest.approx(3 * p.iloc[0])
    both = beside.values.set_index(["dataset", "comparison"])["holm_p"]
    assert both["mnist"].tolist() == alone.values["holm_p"].tolist()
    assert "on one dataset (Split MNIST: 3, Split Digits: 3)" in beside.caption


def test_welch_table_says_why_there_is_no_test():
    """Else a single seed or a missing method empties the row without a word."""
    table = tables.welch_table(rows({"MCTS": [0.9, 0.8], "ETS": [0.7]}))
    assert table.frame[tables.WELCH, "why n/a"].tolist() == ["not run", "one seed", "not run"]
    assert table.frame[tables.WELCH, "t"].tolist() == ["n/a"] * 3
    bounds = tables.welch_table(rows({"Joint": [0.9, 0.8]}))  # a grid that has just begun
    assert bounds.frame[tables.WELCH, "why n/a"].tolist() == ["not run"] * 3


def test_groups_stay_together_however_rows_come():
    """Else a grid that runs M before scenario prints "Task-IL" again for every M."""
    grid = [(m, s) for m in (8, 24) for s in ("task", "class")]
    frame = pd.concat([FIVE.assign(memory_size=m, scenario=s) for m, s in grid])
    expected = ["Task-IL"] * 2 + ["Class-IL"] * 2
    table = tables.summary_table(frame, ["scenario", "memory_size", "label"])
    groups = list(dict.fromkeys((s, m) for s, m, _ in table.frame.index))
    assert [s for s, _ in groups] == expected and [m for _, m in groups] == ["M = 8", "M = 24"] * 2
    tests = tables.welch_table(frame, against=("ETS",), group_keys=["scenario", "memory_size"])
    assert list(tests.frame.index.get_level_values(0)) == expected


def test_an_empty_table_is_still_a_table():
    """Else a notebook on a dataset the paper does not have stops where nothing is published."""
    for frame in (pd.DataFrame(), pd.DataFrame({"a": [], "b": []})):
        table = tables.plain_table(frame, "Nothing")
        assert r"\caption{Nothing}" in table.to_latex() and "Nothing" in table._repr_html_()


def test_csv_holds_full_numbers():
    """Else whoever computes with a table computes with rounded numbers."""
    back = pd.read_csv(io.StringIO(tables.summary_table(FIVE).to_csv()))
    mcts = back[(back["label"] == "MCTS") & (back["metric"] == "acc")].iloc[0]
    assert mcts["mean"] == pytest.approx(97) and mcts["std"] == pytest.approx(2**0.5)
    assert mcts["n"] == 5


def test_a_table_colours_no_other_table_of_the_page():
    """Broken: in a notebook with two tables the second's best cells are marked in the first too."""
    one, two = (tables.summary_table(FIVE.assign(acc=FIVE["acc"] + x)) for x in (0, 0.01))
    cells = [set(re.findall(r'id="(T_\w+?_row\d+_col\d+)"', t._repr_html_())) for t in (one, two)]
    assert cells[0] and cells[1] and not cells[0] & cells[1]
    assert one._repr_html_() == tables.summary_table(FIVE)._repr_html_()  # the same every time


def test_html_shows_colours_and_escapes():
    """Else a dataset called <b> breaks the notebook, or HTML and LaTeX disagree."""
    html = tables.summary_table(FIVE.assign(dataset="<b>x"))._repr_html_()
    assert "&lt;b&gt;x" in html and "<b>x" not in html
    for colour in latex.HIGHLIGHT.values():
        assert f"background-color: {colour};" in html
    for also in ("font-weight: bold", "text-decoration: underline"):  # a grey print shows them too
        assert f"{also};\n  color: black" in html


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("50 % & a_b #1", r"50 \% \& a\_b \#1"),
        ("-3.10", "$-$3.10"),
        ("1–5 and k-means", "1--5 and k-means"),
        ("τ < 1", r"$\tau$ \textless{} 1"),
        (r"a\b{c}", r"a\textbackslash{}b\{c\}"),
        ("naïve 数", "naïve ?"),
    ],
)
def test_text_becomes_tex(text, tex):
    """Else a caption stops LaTeX, or prints a hyphen for a minus."""
    assert latex.tex(text) == tex


def test_latex_has_rules_colours_and_no_multirow():
    """Else the conventions of the paper's tables are lost."""
    tex = tables.summary_table(FIVE, ["selection", "label"]).to_latex(label="tab:x")
    for part in (
        r"\toprule",
        r"\bottomrule",
        r"\label{tab:x}",
        r"\caption{ACC and BWT by selection",
    ):
        assert tex.count(part) == 1
    for colour in latex.HIGHLIGHT.values():
        assert rf"\cellcolor[HTML]{{{colour[1:]}}}" in tex
    assert r"\textbf{" in tex and r"\underline{" in tex
    assert "multirow" not in tex


def test_numbers_line_up():
    """Else ± stands at another place where a deviation has more digits or a star follows."""
    cells = ["90.00 ± 1.00", "80.00 ± 11.00* (4/5)", "70.00", "–"]
    tex = tables.plain_table(pd.DataFrame({"ACC": cells}), "Results").to_latex().splitlines()
    first = tex.index(r"\midrule") + 1
    assert tex[first].startswith(r"90.00\,$\pm$\,\phantom{0}1.00\phantom{")
    assert tex[first + 1].startswith(r"80.00\,$\pm$\,11.00\rlap{$^{*}$ (4/5)}\phantom{")
    assert tex[first + 2].startswith(r"70.00\phantom{\,$\pm$\,11.00}")
    assert tex[first + 3] == r"\multicolumn{1}{c}{--} \\"


def test_names_of_keys_and_of_columns_share_a_line_and_groups_are_ruled():
    """Else a table has one line of headings more than it needs, or its groups run together."""
    both = pd.concat([FIVE, FIVE.assign(selection="kmeans")])
    table = tables.summary_table(both, ["selection", "label"], metrics=("acc",))
    lines = table.to_latex().splitlines()
    top = lines.index(r"\toprule")
    assert lines[top + 1 : top + 4] == [
        r" &  & Split MNIST \\",
        r"\cmidrule(lr){3-3}",
        r"Selection & Schedule & ACC (\%) \\",
    ]
    body = lines[top + 4 : lines.index(r"\bottomrule")]
    assert [i for i, line in enumerate(body) if line == r"\midrule"] == [0, 6]
    assert [line.split(" & ")[0] for line in body if line != r"\midrule"] == (
        ["Uniform", *[""] * 4, "k-means", *[""] * 4]
    )


def test_a_group_longer_than_a_page_is_cut_wherever_it_stands():
    """Broken: only a last group was cut, so any other ran off the foot of the page."""
    names = [("short", 0), *[("long", i) for i in range(60)], ("short again", 0)]
    index = pd.MultiIndex.from_tuples(names, names=["group", "line"])
    tex = tables.plain_table(pd.DataFrame({"a": range(62)}, index), "Long").to_latex()
    floats = tex.split(r"\begin{table}")[1:]
    assert all(part.count(r"\\") <= latex.LINES_PER_FLOAT for part in floats)
    assert sum(part.count(r"\\") for part in floats) == 62 + tex.count(r"\toprule")


def test_wide_tables_fold_and_long_ones_continue():
    """Else six datasets run off the page, and 72 tests off its foot."""
    names = ("mnist", "fashionmnist", "notmnist", "digits", "cifar100", "miniimagenet")
    wide = pd.concat([FIVE.assign(dataset=d) for d in names])
    tex = tables.summary_table(wide).to_latex()
    assert tex.count(r"\begin{table}") == 1 and tex.count(r"\begin{tabular}") == 2
    long = pd.concat([wide.assign(selection=f"s{i}") for i in range(4)])
    table = tables.welch_table(long, group_keys=["dataset", "selection"])
    tex = table.to_latex(label="tab:long")
    # The paired and the Welch columns do not fit beside each other: two panels of 72 lines.
    assert len(table.frame) == 72 and tex.count(r"\begin{table}") == 4
    assert tex.count("(continued)") == 3 and tex.count(r"\label{tab:long}") == 1
    assert tex.count("MCTS vs ETS") == 2 * 24  # nothing lost at the seam


def test_plain_table_prints_what_it_gets():
    """Else hyper-parameters are rounded away or a counter is printed as if it meant something."""
    frame = pd.DataFrame({"dataset": ["a", "a"], "lr": [0.001, 0.03], "epochs": [1000, None]})
    table = tables.plain_table(frame, "Settings")
    assert table.frame["lr"].tolist() == ["0.001", "0.03"]
    assert table.frame["epochs"].tolist() == ["1000", "–"]  # of floats, because one is missing
    assert "a & 0.001 & 1000" in table.to_latex()
    splits = tables.plain_table(frame.set_index("dataset"), "Settings")
    assert "dataset & lr & epochs" in splits.to_latex() and ">dataset<" in splits._repr_html_()
    assert pd.read_csv(io.StringIO(table.to_csv()))["lr"].tolist() == [0.001, 0.03]


def test_save_writes_tex_and_csv(tmp_path):
    """Else notebooks and the LaTeX document look in different places."""
    paths = tables.summary_table(FIVE).save("main_results", "mnist", tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == [
        "tables/mnist/main_results.tex",
        "tables/mnist/main_results.csv",
    ]
    assert r"\label{tab:mnist-main_results}" in paths[0].read_text()
    first = [p.read_bytes() for p in paths]
    again = tables.summary_table(FIVE).save("main_results", "mnist", tmp_path)
    assert first == [p.read_bytes() for p in again]


def test_a_failed_save_leaves_the_old_files_and_nothing_else(tmp_path):
    """Else an interrupted notebook leaves half a table for LaTeX to choke on."""

    class Broken(tables.Table):
        def to_csv(self):
            raise KeyboardInterrupt

    [tex, _] = tables.summary_table(FIVE).save("t", "mnist", tmp_path)
    before = tex.read_bytes()
    other = tables.summary_table(FIVE[:10])
    with pytest.raises(KeyboardInterrupt):
        Broken(other.frame, "Other", other.marks, other.values).save("t", "mnist", tmp_path)
    assert tex.read_bytes() == before and len(list(tex.parent.iterdir())) == 2


def test_file_names_stay_inside_the_folder(tmp_path):
    """Else a dataset given as a path writes next to the data."""
    table = tables.plain_table(pd.DataFrame({"a": [1]}), "x")
    [tex, _] = table.save("a b/c", "/data/my set.npz", tmp_path)
    assert tex.relative_to(tmp_path).as_posix() == "tables/my-set/a-b-c.tex"
    with pytest.raises(ValueError, match="must name a file"):
        table.save("..", "mnist", tmp_path)
