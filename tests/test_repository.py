"""The repository itself: one source of dependencies, all tests in some target, nothing large."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rslib.environment import RECORDED_WITH

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirement(line: str) -> tuple[str, str]:
    """ "scikit-learn>=1.5" -> ("scikit-learn", ">=1.5"), spelt as registries compare names."""
    found = re.fullmatch(r"([A-Za-z0-9._-]+)(\[[a-z,]+\])?\s*([=<>!~].*)?", line.strip())
    assert found, line
    return re.sub(r"[-_.]+", "-", found[1]).lower(), (found[3] or "").replace(" ", "")


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """The files under version control; outside a checkout, all that a checkout would hold."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        names = listed.stdout.split("\0") if listed.returncode == 0 else []
    except FileNotFoundError:  # no git on this machine
        names = []
    if not any(names):
        made = ("data", "executed", "build", "__pycache__", "node_modules")
        inside = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [
            str(path)
            for path in inside
            if not set(made) & set(path.parts)
            and not path.parts[0].endswith(".egg-info")
            and (not path.parts[0].startswith(".") or path.parts[0] in (".ci", ".gitignore"))
        ]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# -- dependencies ----------------------------------------------------------------------------------


def test_constraints_pin_every_dependency():
    """Broken: `make` installs versions that nobody has tested, or pip refuses the file."""
    pins = [
        re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][0-9a-z.]*)", line)
        for line in read("constraints.txt").splitlines()
    ]
    assert all(pins)  # names and versions, nothing else
    versions = {canonicalize_name(pin[1]): Version(pin[2]) for pin in pins if pin}
    assert len(versions) == len(pins)
    project = tomllib.loads(read("pyproject.toml"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for wanted in (Requirement(text) for group in groups for text in group):
        assert versions[canonicalize_name(wanted.name)] in wanted.specifier, wanted
    assert str(versions["torch"]) == RECORDED_WITH
    assert "-c constraints.txt" in read("Makefile")


def test_environment_yml_agrees_with_pyproject():
    """Broken: conda users get other packages or versions than pip users."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    wanted = dict(map(requirement, project["dependencies"]))
    wanted["python"] = project["requires-python"].replace(" ", "")

    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    plain = [entry for entry in entries if isinstance(entry, str)]
    from_pip = [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    found = [requirement(line) for line in plain + from_pip]
    assert len(found) == len(dict(found)), "a package is listed twice"
    packages = dict(found)
    packages.pop("pip", None)  # the tool, not a package we import
    assert packages == wanted


def test_the_extras_that_the_makefile_installs_exist():
    """Broken: `make test` or `make test-all` fails while installing."""
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert {"dev", "cluster", "rl-extra"} <= set(extras)
    asked = {
        name
        for group in re.findall(r'-e "\.\[(.*?)\]"', read("Makefile"))
        for name in group.split(",")
    }
    assert asked and asked <= set(extras)


def test_torch_is_pinned_to_one_version_everywhere():
    """Broken: the Makefile installs another torch first than pyproject asks for."""
    pins = {
        name: set(re.findall(r"torch==[\d.]+", read(name)))
        for name in ("pyproject.toml", "environment.yml", "Makefile")
    }
    assert all(len(found) == 1 for found in pins.values()), pins
    assert len(set.union(*pins.values())) == 1, pins


# -- make ------------------------------------------------------------------------------------------


def test_every_target_is_phony():
    """Broken: `make data` does nothing as soon as a folder data/ exists."""
    (phony,) = re.findall(r"^\.PHONY: (.*)$", read("Makefile"), flags=re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE)
    assert set(phony.split()) == set(targets)


def test_make_test_and_test_all_leave_no_marker_out():
    """Broken: tests with some marker run in neither target, so CI never runs them."""
    settings = tomllib.loads(read("pyproject.toml"))["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in settings["markers"]}
    recipes = dict(
        re.findall(r'^(test|test-all):.*\n\t.*-m "(.*)"', read("Makefile"), re.MULTILINE)
    )
    assert recipes["test"] == " and ".join(f"not {m}" for m in recipes["test-all"].split(" or "))
    assert set(recipes["test-all"].split(" or ")) == markers
    assert settings["filterwarnings"][0] == "error"


# -- all tracked files -----------------------------------------------------------------------------


def test_no_registry_host_is_named(tracked):
    """Broken: an installation behind a mirror, which is configured and never typed, stops working."""
    hosts = [
        *[("pypi", "org"), ("pythonhosted", "org"), ("registry", "npmjs"), ("npmjs", "org")],
        *[("npmjs", "com"), ("deb", "debian"), ("download", "pytorch"), ("conda", "anaconda")],
    ]
    words = [".".join(pair).encode() for pair in hosts]
    named = [
        f"{path.relative_to(ROOT)}: {word.decode()}"
        for path in tracked
        for word in words
        if word in path.read_bytes()
    ]
    assert not named


def test_no_large_or_generated_file_is_committed(tracked):
    """Broken: a clone carries data, environments or caches."""
    for path in tracked:
        parts = path.relative_to(ROOT).parts
        assert parts[0] not in (".venv", "data", "executed") and "__pycache__" not in parts, path
        assert path.stat().st_size < 6 * 2**20, path


def test_notebooks_are_committed_without_outputs(tracked):
    """Broken: diffs are full of pictures, and a reader cannot tell old results from new ones."""
    shipped = ROOT / "docs" / "executed"  # copies that `make ship` writes, with outputs on purpose
    sources = [path for path in tracked if path.suffix == ".ipynb" and shipped not in path.parents]
    assert sources
    for path in sources:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                where = f"{path.name}: {''.join(cell['source'])[:60]!r}"
                assert cell["outputs"] == [], where
                assert cell["execution_count"] is None, where
