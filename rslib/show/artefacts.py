"""Figures as files: the same bytes from every run, and never half a file.

`savefig` writes figures/<dataset>/<name>.pdf and .png. Each is written beside its target and
moved over it, so a reader (or LaTeX) sees the old file or the new one. Nothing that changes between
runs (dates, random ids) goes in.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import matplotlib.style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("rslib.mplstyle")
DPI = 200  # 1300 pixels for a figure as wide as the text


def savefig(fig: Figure, name: str, dataset: str, out_dir: str | Path = ".") -> list[Path]:
    """Write a figure as vector PDF and as PNG; returns the paths."""
    target = _target(out_dir, "figures", dataset, name)
    pdf, png = target.with_name(f"{target.name}.pdf"), target.with_name(f"{target.name}.png")
    with matplotlib.style.context(STYLE):  # font embedding is decided when saving
        dates = {"CreationDate": None, "ModDate": None}
        _write(pdf, lambda f: fig.savefig(f, format="pdf", metadata=dates))
        _write(png, lambda f: fig.savefig(f, format="png", dpi=DPI, metadata={"Software": None}))
    return [pdf, png]


def _target(out_dir: str | Path, kind: str, dataset: str, name: str) -> Path:
    """A dataset may be the path of an .npz: its stem names the folder, in characters TeX takes."""
    folder, stem = (re.sub(r"[^A-Za-z0-9._+-]+", "-", s) for s in (Path(dataset).stem, name))
    if not folder.strip(".-") or not stem.strip(".-"):
        raise ValueError(f"dataset and name must name a file, got {dataset!r} and {name!r}")
    return Path(out_dir) / kind / folder / stem


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.chmod(temporary, 0o644)  # mkstemp's private mode would hide the file from others
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
