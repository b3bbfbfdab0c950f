"""Small versions of `python -m tools.damage`: what is harmed is never used in silence."""

import pytest

from tools import damage


@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_no_flipped_bit_becomes_a_result(n):
    """Broken: a bit that a disk has changed is a number in a table."""
    counts = damage.flips(n, seed=n)
    assert all(found.total() == n // len(counts) for found in counts.values())
    assert not any(found["silent"] for found in counts.values()), counts
    assert counts["policies"]["refused"] and counts["results"]["reported"]


def test_a_silent_change_is_counted(tmp_path):
    """Broken: the command finds nothing because it compares nothing."""
    (tmp_path / "number").write_text("1")
    target = damage.Target("number", lambda folder: (folder / "number").read_text())
    assert damage.outcome(target, tmp_path, "1") == "same"
    assert damage.outcome(target, tmp_path, "2") == "silent"
    assert damage.outcome(target, tmp_path / "nowhere", "1") == "refused"


@pytest.mark.parametrize("n", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_search_killed_from_outside(tmp_path, n):
    """Broken: kill -9 inside a product, a write or a sync costs a row, or gives another result."""
    assert damage.kills(n, tmp_path, seed=n) == (n, True)
