"""What an installed package needs beside its modules: an editable install hides its loss."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.network  # pip fetches setuptools to build with
def test_a_built_wheel_holds_the_published_numbers_and_the_style(tmp_path):
    """Broken: `pip install` gives a library that cannot compare with the paper, or draw."""
    source = tmp_path / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=REPOSITORY, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, timeout=300, cwd=tmp_path)
    (wheel,) = tmp_path.glob("rslib-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "rslib"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.endswith(".mplstyle") for name in tracked)
    assert sum(name.endswith(".csv") for name in tracked) >= 3
    assert not set(tracked) - packed, f"not in the wheel: {sorted(set(tracked) - packed)}"
    assert not any(
        name.split("/")[0] not in ("rslib",) for name in packed if "dist-info" not in name
    )
