"""Tables as files, the same bytes from every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rslib import files

if TYPE_CHECKING:
    from rslib.show.tables import Table


def save_table(table: Table, name: str, dataset: str, out_dir: str | Path = ".") -> list[Path]:
    """Write a table as LaTeX (label tab:<dataset>-<name>) and its numbers as CSV."""
    tex, csv = (
        files.artefact(out_dir, "tables", dataset, f"{name}.{kind}") for kind in ("tex", "csv")
    )
    label = f"tab:{tex.parent.name}-{tex.stem}"
    files.write_atomically(tex, table.to_latex(label=label).encode())
    files.write_atomically(csv, table.to_csv().encode())
    return [tex, csv]
