"""The README's numbers: those of the shipped rows, and what its sentences conclude from them."""

import re

import pandas as pd
import pytest

from rslib import files
from tools import facts


@pytest.fixture
def only_shipped(monkeypatch):
    monkeypatch.setenv("RSLIB_RESULTS", str(files.REPOSITORY / "results"))


@pytest.mark.slow  # every search of the shipped rows is walked again
def test_the_readme_says_what_the_rows_say(only_shipped):
    """Broken: results/ has changed and the README has not: run `make ship`."""
    text = facts.README.read_text()
    assert facts.rewritten(text) == text


def block(name: str) -> str:
    text = facts.README.read_text()
    return re.search(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, flags=re.S)[1]


def test_the_conclusions_above_the_numbers_follow_from_them():
    """Broken: people's sentences above the block claim what its numbers no longer show."""
    search, surrogate, policies = re.split(r"\n- \*\*", block("facts"))[1:]
    shares, luck, transfer = search.split("\n")[1:]
    ahead, _, level = shares.partition("**ahead** on ")[2].partition("; **level** on ")
    assert "behind" not in shares
    assert ahead.count("[") == level.count("[")  # "half of the datasets": a difference each
    assert set(re.findall(r"\*\*(ahead|level|behind)\*\*", luck)) == {"level"}
    assert "**level**: -" in transfer  # "its lead is gone"
    assert set(re.findall(r"\*\*(ahead|level|behind)\*\*", surrogate)) == {"ahead", "level"}
    (same_places,) = re.findall(r"MCTS in the same places: (.*)", surrogate)
    level, one_ahead = same_places.split("**ahead**")
    assert (level.count("["), one_ahead.count("[")) == (3, 1)  # "in one of four places"
    assert set(re.findall(r"\*\*(ahead|level|behind)\*\*", policies)) == {"level"}


@pytest.mark.parametrize(
    ("low", "high", "side"), [(0.1, 2, "ahead"), (-2, -0.1, "behind"), (-1, 1, "level")]
)
def test_a_difference_is_level_unless_its_interval_leaves_zero_out(low, high, side):
    """Broken: the README calls a winner where the seeds show none."""
    found = dict(paired_difference=(low + high) / 2, paired_low=low, paired_high=high)
    text = facts._difference(found | dict(ahead=3, pairs=5), "seeds")
    assert text.startswith(f"**{side}**: ") and text.endswith("ahead on 3 of 5 seeds")


def test_one_seed_is_not_judged():
    """Broken: a difference without an interval is called level."""
    nan = float("nan")
    found = dict(paired_difference=2.5, paired_low=nan, paired_high=nan, ahead=1, pairs=1)
    assert facts._difference(found, "seeds") == "too few seeds to judge: +2.50, ahead on 1 of 1"


def test_the_picture_is_of_the_median_seed():
    """Broken: the README shows the seed that flatters the search."""
    middle, others = re.search(
        r"median, (\S+) points; on the others it is ([^A]+)\. A", block("picture")
    ).groups()
    gaps = pd.Series([middle, *others.split(", ")], dtype=float)
    assert float(middle) == gaps.median()


def test_a_readme_without_the_marks_is_refused(monkeypatch):
    """Broken: `make ship` drops the numbers in silence because someone removed a comment."""
    for name in ("agreement", "search", "surrogate", "runs"):
        monkeypatch.setattr(facts, name, lambda *_: "")
    monkeypatch.setattr(facts, "policies", lambda: [])
    monkeypatch.setattr(facts, "picture", lambda _: (None, ""))
    with pytest.raises(ValueError, match="<!-- picture -->"):
        facts.rewritten("no marks")
