"""The recipes in docs/recipes.md are run as they stand, on three tasks of the digits."""

import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.colors import to_hex
from scipy.stats import t as student

from rslib.policies import POLICIES, Policy
from rslib.show.tables import METRICS

matplotlib.use("Agg")
TEXT = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
RECIPES = {
    heading: re.findall(r"```python\n(.*?)```", text, flags=re.S)
    for heading, text in (part.split("\n", 1) for part in TEXT.split("\n## "))
}


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """Run every recipe in turn; returns what each left behind, by its heading."""
    folder, namespace, found = tmp_path_factory.mktemp("recipes"), {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RSLIB_STORE", str(folder / "store"))
        # What a recipe registers does not stay.
        patch.setattr("rslib.policies.POLICIES", dict(POLICIES))
        patch.setattr("rslib.show.tables.METRICS", dict(METRICS))
        for heading, blocks in RECIPES.items():
            assert blocks, f"{heading} has no code"
            for block in blocks:
                exec(compile(block, heading, "exec"), namespace)
            found[heading] = dict(namespace)
        proposed = Policy.load("weakest").propose([[0.9], [0.6, 0.9]], memory_size=10)
    return found | {"folder": folder, "proposed": proposed}


def test_the_palette_is_the_one_that_is_drawn(after):
    """Broken: a reader's colours do not reach the figure."""
    ax = after["Another palette"]["ax"]
    drawn = {to_hex(color) for dots in ax.collections for color in dots.get_facecolor()}
    assert to_hex("black") in drawn and len(drawn) == 2
    assert (after["folder"] / "mine/figures/digits/my_palette.png").is_file()


def test_the_table_has_the_new_columns(after):
    """Broken: a table knows its own metrics only, or a new column is not its rows' mean."""
    recipe = after["Another column in a table"]
    rows, values = recipe["rows"], recipe["table"].values
    assert values["metric"].unique().tolist() == ["acc", "bwt", "reward", "lost"]
    ours = values[(values["metric"] == "lost") & (values["label"] == "ETS")]["mean"].item()
    assert ours == pytest.approx(100 * rows.loc[rows["label"] == "ETS", "lost"].mean())
    assert "Lost" in (after["folder"] / "mine/tables/digits/my_table.tex").read_text()


def test_the_axis_is_logarithmic(after):
    """Broken: the style or seaborn takes the scale back."""
    ax = after["A logarithmic axis"]["ax"]
    assert ax.get_xscale() == "log"
    assert ax.get_lines()[0].get_xdata().tolist() == [2, 8, 32]


def test_the_policy_runs_beside_the_others_and_does_what_it_says(after):
    """Broken: ten lines are not enough for a policy of one's own."""
    labels = after["A new policy"]["compared"].values["label"]
    assert set(labels) == {"ETS", "Weakest first"}
    assert after["proposed"] == (10, 0)


def test_a_policy_is_scored_where_every_schedule_is_known(after):
    """Broken: the benchmark is scored on other trees than it says, or the recipe's words are wrong."""
    recipe = after["Is it better than equal shares?"]
    acc, found = recipe["acc"], recipe["found"]
    assert found["pairs"] == 50 and acc.notna().all(axis=None)
    for other in ("ets", "luck"):  # "both intervals hold 0"
        gap = acc["weakest"] - acc[other]
        assert abs(gap.mean()) < student.ppf(0.975, 49) * gap.std() / 50**0.5
    assert found["paired_difference"] == pytest.approx(gap.mean())


def test_the_loop_of_ones_own_forgets_less_than_without_replay(after):
    """Broken: an engineer copies a loop that replays nothing, or learns nothing."""
    loop = after["In your own training loop"]
    history, counts = loop["history"], loop["counts"]
    assert [len(row) for row in history] == [1, 2, 3, 4, 5] and counts == (5, 5, 5, 5)
    assert len(loop["memory_y"]) == 20 and min(row[-1] for row in history) > 0.7
    assert sum(history[-1]) / 5 > 0.5  # the last task alone would be 0.2, of ten classes
