"""The README's examples are run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block, tmp_path, monkeypatch):
    """Broken: the first thing a newcomer types does not work."""
    from rslib.methods import METHODS
    from rslib.policies import POLICIES

    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    before = dict(METHODS), dict(POLICIES)  # what an example registers must not outlive it
    try:
        exec(compile(block, "README.md", "exec"), {})
    finally:
        for registry, old in zip((METHODS, POLICIES), before, strict=True):
            registry.clear()
            registry.update(old)


def test_readme_says_what_the_proposals_are():
    """Broken: the counts in the README's comments are not what the call returns."""
    from rslib.policies import Policy

    history = [[0.99], [0.90, 0.98], [0.85, 0.97, 0.99]]
    block = next(b for b in BLOCKS if "history" in b)
    for name, counts in re.findall(r'load\("([^"]+)"\).*?# \(([\d, ]+)\)', block):
        assert Policy.load(name).propose(history, memory_size=100) == tuple(
            int(n) for n in counts.split(",")
        )


def test_every_module_has_a_line_in_the_readme():
    """Broken: a newcomer cannot find out what a file is for."""
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| file of `rslib/`") :]
    for file in (ROOT / "rslib").glob("*.py"):
        if not file.stem.startswith("_"):
            assert f"`{file.stem}`" in table, file.stem


def test_core_hours_are_those_of_the_account():
    """Broken: the README promises other run times than REPRODUCIBILITY.md has measured."""
    spent = {}
    for line in (ROOT / "REPRODUCIBILITY.md").read_text().splitlines():
        if found := re.match(
            r"\| `(\d\d)_.*\| Split MNIST \| [\d,]+ \| [\d,]+ \| ([\d.]+) \|", line
        ):
            spent[found[1]] = spent.get(found[1], 0.0) + float(found[2])
    said = re.findall(
        r"thumbnails/(\d\d)\.png.*\| (\d+\.\d\d) \|", (ROOT / "README.md").read_text()
    )
    assert len(said) >= 5
    for notebook, hours in said:
        assert float(hours) == pytest.approx(spent[notebook], abs=0.011), notebook
