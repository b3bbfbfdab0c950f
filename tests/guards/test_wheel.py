"""What an installed package needs beside its modules: an editable install hides its loss."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


WALK = """
import rslib
print(rslib.__file__)
print(rslib.run_policy(rslib.ScheduleTree(rslib.Environment("digits", n_tasks=2, epochs=1)), "ets"))
"""


@pytest.mark.network  # pip fetches setuptools to build with
def test_a_built_wheel_holds_the_published_numbers_and_the_style(tmp_path):
    """Broken: `pip install` gives a library that cannot compare with the paper, or draw; or one that
    runs only beside its checkout."""
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

    unpacked, empty = tmp_path / "unpacked", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(unpacked)
    empty.mkdir()
    alone = {"PYTHONPATH": str(unpacked), "XDG_CACHE_HOME": str(empty), "RSLIB_OFFLINE": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RSLIB_")}
    said = {}
    for words in (["-m", "rslib", "store"], ["-m", "rslib", "data"], ["-c", WALK]):
        run = subprocess.run(
            [sys.executable, *words],
            cwd=empty, env=kept | alone, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        said[words[-1]] = run.stdout
    assert str(empty / "rslib") in said["store"] and "digits" in said["data"]
    assert said[WALK].startswith(str(unpacked)) and "ETS on Split Digits" in said[WALK]
