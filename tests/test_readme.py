"""The README's examples are run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block, tmp_path, monkeypatch):
    """Broken: the first thing a newcomer types does not work."""
    from rslib import memory, methods, models, policies

    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    try:
        exec(compile(block, "README.md", "exec"), {})
    finally:  # what an example registers must not outlive it
        for registry in (
            *(memory.SELECTIONS, methods.METHODS),
            *(models.NETWORKS, policies.POLICIES),
        ):
            registry.replace_own({})


def test_readme_says_what_the_proposals_are():
    """Broken: the counts in the README's comments are not what the call returns."""
    from rslib.policies import Policy

    history = [[0.99], [0.90, 0.98], [0.85, 0.97, 0.99]]
    block = next(b for b in BLOCKS if "history" in b)
    for name, counts in re.findall(r'load\("([^"]+)"\).*?# \(([\d, ]+)\)', block):
        assert Policy.load(name).propose(history, memory_size=100) == tuple(
            int(n) for n in counts.split(",")
        )
