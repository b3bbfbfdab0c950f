"""What a visitor reads: examples run as they stand, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / name for name in ("REPRODUCIBILITY.md", "results/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
WITH_EXAMPLES = ("README.md", "own_data.md", "extend.md", "running.md", "code.md")
BLOCKS = {
    f"{path.name}-{i}": block
    for path in TEXTS
    if path.name in WITH_EXAMPLES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_example(name, tmp_path, monkeypatch):
    """Broken: the first thing a newcomer types does not work."""
    from rslib import memory, methods, models, policies

    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    try:
        exec(compile(BLOCKS[name], name, "exec"), {})
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
    block = next(b for b in BLOCKS.values() if "history" in b)
    said = re.findall(r'load\("([^"]+)"\).*?# \(([\d, ]+)\)', block)
    assert said
    for name, counts in said:
        assert Policy.load(name).propose(history, memory_size=100) == tuple(
            int(n) for n in counts.split(",")
        )


def links(text: str) -> list[str]:
    """The targets of Markdown links and pictures and of HTML pictures, outside code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'<img src="([^"]+)"', prose)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(path):
    """Broken: a reader clicks and gets a page that does not exist (for docs/executed: `make ship`)."""
    dead = []
    for target in links(path.read_text()):
        if re.match("https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            dead.append(target)
    assert not dead


def test_links_are_found():
    """Broken: the test above passes because it looks at nothing."""
    text = 'a [b](c.md#d) ![e](f.png) <img src="g.png" alt=""> `[no](h)`'
    assert links(text) == ["c.md#d", "f.png", "g.png"]
    assert "what-differs-and-why" in anchors(ROOT / "REPRODUCIBILITY.md")
