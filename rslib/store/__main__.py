"""`rslib store`: what is in the store, rows out as CSV files, snapshots or rows away, all checked.

    rslib store                                 list environments, rows, snapshots, bytes
    rslib store export results --dataset digits write rows as results/<dataset>/...-<key>.csv
    rslib store prune --gb 5                    drop the snapshots longest unused
    rslib store forget --method mine            delete the rows and snapshots of environments
    rslib store check                           read every row, snapshot and results file

A snapshot that is gone costs time when its node is trained on from, nothing else. Rows are the results:
they stay until `forget` names them. The same commands are `python -m rslib.store ...`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rslib import files
from rslib.store import Store, StoreError
from rslib.store.rows import Facts, count_rows, key_of, results_files, words


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, *_: print(f"store: {text}", file=sys.stderr)
        try:
            return _run(chosen, Store(chosen.store))
        except (StoreError, ValueError, OSError) as error:
            print(f"store: {error}", file=sys.stderr)
            return 1


def _run(chosen: argparse.Namespace, store: Store) -> int:
    if chosen.command == "export":
        return _export(store, chosen.folder, _wanted(store, chosen))
    if chosen.command == "forget":
        return _forget(store, _wanted(store, chosen), chosen)
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
        prog="rslib store", description="List, export, prune, forget or check what is stored."
    )
    parser.add_argument("--store", metavar="FOLDER", help="default: $RSLIB_STORE or the cache")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="environments with rows, snapshots and bytes (the default)")
    export = commands.add_parser("export", help="write rows as CSV files")
    export.add_argument("folder", type=Path)
    forget = commands.add_parser("forget", help="delete rows and snapshots of environments")
    for command in (export, forget):
        command.add_argument("--dataset", help="only environments of this dataset")
        command.add_argument("--key", help="only this environment (its key, or the start of it)")
        command.add_argument("--method", help="only environments with this replay method")
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
    shipped = {key_of(f): count_rows(f) for f in results_files(store.shipped or Path())}
    table = [["key", "rows", "shipped", "snapshots", "size", "dataset", "environment"]]
    for key, spec in sorted(store.environments().items(), key=lambda kv: (kv[1]["dataset"], kv[0])):
        n, size = snapshots.get(key, (0, 0))
        counts = [str(rows.get(key, 0)), str(shipped.get(key, 0)), str(n), _size(size)]
        table.append([key, *counts, str(spec["dataset"]), words(spec)])
    widths = [max(len(line[i]) for line in table) for i in range(6)] + [0]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    unverified = store.n_unverified()
    before = f" ({unverified} unverified, from before rows had a digest)" if unverified else ""
    print(
        f"{sum(rows.values())} rows{before} in {_size(store.file.stat().st_size)}, "
        f"{sum(n for n, _ in snapshots.values())} snapshots in {_size(store.checkpoint_bytes())} of at "
        f"most {_size(files.snapshot_limit())} (RSLIB_CHECKPOINT_GB), in {store.folder}"
    )


def _wanted(store: Store, chosen: argparse.Namespace) -> list[str]:
    """The keys of the environments that were named, or of all."""
    return sorted(
        key
        for key, spec in store.environments().items()
        if chosen.dataset in (None, spec["dataset"])
        and chosen.method in (None, spec["method"])
        and key.startswith(chosen.key or "")
    )


def _export(store: Store, folder: Path, keys: list[str]) -> int:
    keys = [key for key in keys if store.rows(key)]  # a killed run may have left one without any
    if not keys:
        print("nothing to export: no such environment in the store", file=sys.stderr)
        return 1
    specs, unverified = store.environments(), store.n_unverified()
    for key in keys:
        print(store.export(key, folder, _facts(key, specs[key])))
    if unverified:
        print(
            f"the store has {unverified} unverified rows, exported and marked so", file=sys.stderr
        )
    return 0


def _forget(store: Store, keys: list[str], chosen: argparse.Namespace) -> int:
    if not (chosen.dataset or chosen.key or chosen.method):
        print("forget what? Name it with --dataset, --key or --method", file=sys.stderr)
        return 2
    own = store.sizes()
    keys = [key for key in keys if key in own[0] or key in own[1]]
    for key in keys:
        print(f"{key}: {store.forget(key)} rows forgotten")
    print(f"{len(keys)} environment(s) forgotten; rows in {store.shipped} stay")
    return 0


def _facts(key: str, spec: dict) -> Facts | None:
    """What is known of the data now, for rows of a store that has kept nothing of them."""
    from rslib.environment import Environment  # here: it loads torch, and a list needs none

    try:
        environment = Environment.from_spec(spec)
        return environment.facts() if environment.key == key else None
    except ValueError:  # no data here (DataError), or a user's method that is not registered now
        return None


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MB" if n < 2**30 else f"{n / 2**30:.2f} GB"


if __name__ == "__main__":
    sys.exit(main())
