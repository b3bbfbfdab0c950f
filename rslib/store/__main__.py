"""`python -m rslib.store`: what is in the store, rows out as CSV files, snapshots away, all checked.

    python -m rslib.store                                 list environments, rows, snapshots, bytes
    python -m rslib.store export results --dataset digits rows as results/<dataset>/...-<key>.csv
    python -m rslib.store prune --gb 5                    drop the snapshots longest unused
    python -m rslib.store check                           read every row and snapshot

Rows are never dropped: they are small, and they are the results. A snapshot that is gone costs time
when its node is trained on from, nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rslib.environment import Environment
from rslib.store import Store
from rslib.store.rows import Facts


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    store = Store(chosen.store)
    if chosen.command == "export":
        return _export(store, chosen.folder, chosen.dataset, chosen.key)
    if chosen.command == "prune":
        print(f"dropped {_size(store.prune(int(chosen.gb * 2**30)))} of snapshots")
        return 0
    if chosen.command == "check":
        trouble = store.check()
        for line in trouble:
            print(line)
        print(f"{len(trouble)} fault(s) in {store.folder}")
        return 1 if trouble else 0
    _list(store)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rslib.store", description="List, export, prune or check the store."
    )
    parser.add_argument("--store", metavar="FOLDER", help="default: $RSLIB_STORE or the cache")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="environments with rows, snapshots and bytes (the default)")
    export = commands.add_parser("export", help="write rows as CSV files")
    export.add_argument("folder", type=Path)
    export.add_argument("--dataset", help="only environments of this dataset")
    export.add_argument("--key", help="only this environment (its key, or the start of it)")
    prune = commands.add_parser("prune", help="drop snapshots; rows stay")
    prune.add_argument("--gb", type=_gigabytes, default=0.0, help="how much may stay (default: 0)")
    commands.add_parser("check", help="read everything, say what is damaged")
    return parser


def _gigabytes(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _list(store: Store) -> None:
    rows, snapshots = store.sizes()
    table = [["key", "rows", "shipped", "snapshots", "size", "environment"]]
    for key, spec in sorted(store.environments().items(), key=lambda kv: (kv[1]["dataset"], kv[0])):
        n, size = snapshots.get(key, (0, 0))
        shipped = len(store.shipped_rows(key))
        counts = [str(rows.get(key, 0)), str(shipped), str(n), _size(size)]
        table.append([key, *counts, _title(spec)])
    widths = [max(len(line[i]) for line in table) for i in range(5)] + [0]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    print(
        f"{sum(rows.values())} rows, {sum(n for n, _ in snapshots.values())} snapshots, "
        f"{_size(store.checkpoint_bytes())} in {store.folder}"
    )


def _title(spec: dict) -> str:
    try:
        return str(Environment.from_spec(spec))
    except ValueError:  # from a version with other words: its rows are still there
        return str(spec["dataset"])


def _export(store: Store, folder: Path, dataset: str | None, key: str | None) -> int:
    wanted = [
        k
        for k, spec in store.environments().items()
        if (dataset is None or spec["dataset"] == dataset)
        and (key is None or k.startswith(key))
        and store.rows(k)  # a killed run may have left an environment without any
    ]
    if not wanted:
        print("nothing to export: no such environment in the store", file=sys.stderr)
        return 1
    for k in sorted(wanted):
        print(store.export(k, folder, _facts(k, store.environments()[k])))
    return 0


def _facts(key: str, spec: dict) -> Facts | None:
    """What is known of the data now, for rows of a store that has kept nothing of them."""
    try:
        environment = Environment.from_spec(spec)
        return environment.facts() if environment.key == key else None
    except ValueError:  # no data here (DataError), or a user's method that is not registered now
        return None


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MB" if n < 2**30 else f"{n / 2**30:.2f} GB"


if __name__ == "__main__":
    sys.exit(main())
