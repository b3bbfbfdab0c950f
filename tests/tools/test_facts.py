"""The README's numbers: those of the shipped rows, and what its sentences conclude from them."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from rslib import files
from rslib.runs import params, studies
from rslib.runs.grid import Cell, Runs
from rslib.show.tables import plain_table
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
    assert "new seeds: Split MNIST **level**: " in transfer  # "no lead is seen"
    assert set(re.findall(r"\*\*(ahead|level|behind)\*\*", surrogate)) == {"ahead", "level"}
    (same_places,) = re.findall(r"MCTS in the same places: (.*)", surrogate)
    level, one_ahead = same_places.split("**ahead**")
    assert (level.count("["), one_ahead.count("[")) == (4, 1)  # "in one of five places"
    (beside_luck,) = re.findall(r"beside luck at equal cost: \*\*ahead\*\* on (.*)", surrogate)
    ahead, level = beside_luck.split("; **level** on ")
    gains = dict(re.findall(r"\((\d+ tasks, \d+) trainings.*?\) ([+-][\d.]+) \[", ahead))
    assert len(gains) == 4 and level.count("[") == 1  # "in four of them"
    longest = max(gains, key=lambda place: int(place.split()[-1]))
    assert longest.startswith("20 tasks") and max(map(float, gains.values())) == float(
        gains[longest]
    )
    assert "behind" not in policies
    found = re.findall(r"(?:: |; )([\w+ ]+) \*\*(\w+)\*\*: ", policies)
    sides = {name: [side for who, side in found if who == name] for name, _ in found}
    assert sides["DQN"] == sides["A2C"] == ["level"] * 2
    assert (sides["ETS"].count("ahead"), sides["Best constant"].count("ahead")) == (1, 2)
    assert len(sides["ETS"]) == len(sides["Best constant"]) == 4  # "of four places"
    assert sides["Oracle"] == ["ahead"] * 2


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


def test_a_seed_that_diverged_is_not_counted_towards_the_median(monkeypatch):
    """Broken: two of five searches diverged, and the README shows the best seed as the median one."""
    gaps = {1: 0.01, 2: 0.02, 3: 0.03, 4: float("nan"), 5: float("nan")}
    policies = {"none": "Fine-tuning", "ets": "ETS", "mcts": "MCTS"}
    environments = {
        seed: SimpleNamespace(dataset="mnist", seed=seed, memory_size=10) for seed in gaps
    }
    lines = [
        {"dataset": "mnist", "seed": seed, "label": label, "acc": 0.9 + gap * (label == "MCTS")}
        for seed, gap in gaps.items()
        for label in policies.values()
    ]

    class Found:
        rows = pd.DataFrame(lines)
        cells = tuple(Cell(environments[seed], "mcts") for seed in gaps)

        def __getitem__(self, cell):
            node = SimpleNamespace(test=cell.environment.seed)
            return SimpleNamespace(label=policies[cell.policy], node=node, schedule=None)

    monkeypatch.setattr(facts.schedules, "accuracy_and_bubbles", lambda shown: shown)
    shown, caption = facts.picture(Found())
    assert shown["MCTS"][0] == 2 and "of 3 seeds" in caption and "nan" not in caption


def test_a_comparison_that_the_paper_prints_twice_is_counted_once(monkeypatch):
    """Broken: "13 of 14 comparisons" counts the uniform group of Split MNIST for Table 1 and for C.9."""
    line = {"Dataset": "Split MNIST", "Best here": "MCTS 98.28", "Best in the paper": "MCTS 97.93"}
    other = line | {"Best here": "MCTS 98.29", "Best in the paper": "ETS 98.20"}
    one, both = (
        plain_table(frame, "", frame)
        for frame in (
            pd.DataFrame([line]).assign(verdict="agrees"),
            pd.DataFrame([line, other]).assign(verdict=["agrees", "another"]),
        )
    )
    tests = pd.DataFrame({"verdict": ["agrees"] * 3})
    cells = pd.DataFrame({"label": ["MCTS"], "difference": [1.0], "verdict": ["same"]})
    compared = iter((both, one))
    monkeypatch.setattr(
        facts.verdicts,
        "compare",
        lambda *_: SimpleNamespace(winners=next(compared), tests=plain_table(tests, "", tests)),
    )
    monkeypatch.setattr(facts.reproducibility, "judged_means", lambda _: cells)
    said = facts.agreement(
        {study: [1] for study in (studies.MEMORY_SELECTION, studies.TINY_MEMORY)}
    )
    assert "in 1 of 2 comparisons; 6 of 6 significance tests agree" in " ".join(said.split())


def test_what_is_whole_says_what_our_profile_leaves_out():
    """Broken: BFS on two of the paper's five seeds is called whole, or two experiments have one name."""
    q = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "02")
    labels = {"MCTS": 5, "BFS": 2}
    rows = pd.DataFrame(
        {"dataset": "mnist", "label": label, "seed": seed}
        for label, n in labels.items()
        for seed in range(n)
    )
    search = studies.Study("s", "02", "Figure 4, App. C.2", "Search", lambda p: list(range(7)))
    nothing = Runs([], pd.DataFrame(), None)
    stored = {search: Runs([], rows, None), studies.FORWARD_TRANSFER: nothing}
    empty = plain_table(pd.DataFrame(), "")
    text = "\n".join(facts.runs(stored, [q], empty, empty))
    assert "| Split MNIST | Figure 4 (BFS on 2 seeds) (5 seeds) |" in text
    assert "App. C.4 (forward transfer) (notebook 04)" in text


def test_a_readme_without_the_marks_is_refused(monkeypatch):
    """Broken: `make ship` drops the numbers in silence because someone removed a comment."""
    for name in ("agreement", "search", "surrogate", "runs"):
        monkeypatch.setattr(facts, name, lambda *_: "")
    monkeypatch.setattr(facts, "policies", lambda: [])
    monkeypatch.setattr(facts, "picture", lambda _: (None, ""))
    with pytest.raises(ValueError, match="<!-- picture -->"):
        facts.rewritten("no marks")
