"""`python -m tools.carry out|in FOLDER`: go on with unfinished runs on another machine.

Shipped rows are enough to go on with a search. In the middle of a schedule the network is needed too,
and twenty tasks of convolutions may take longer than one machine is at hand. `out` writes a file for
every schedule that was begun and not finished, with its network and the rows on its way; `in` puts
those files into this machine's store. What cannot be carried is named, and the others go on.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from rslib import Environment, Store
from rslib.errors import UserError
from rslib.files import write_atomically
from rslib.schedule import UNTRAINED, path_from_text, path_text
from rslib.store.rows import Row, n_learned


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.carry", description=__doc__)
    parser.add_argument("way", choices=("out", "in"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.way == "in" and not any(options.folder.glob("*.pt")):
        parser.error(f"{options.folder} holds no .pt file to carry in")
    moved = carry_out if options.way == "out" else carry_in
    failed = 0
    for what, trouble in moved(Store(), options.folder):
        failed += bool(trouble)
        print(f"{what}: {trouble or 'carried'}")
    return min(failed, 1)


def carry_out(store: Store, folder: Path) -> Iterator[tuple[str, str]]:
    """Write every unfinished path; yields what it is, and why it could not be carried ("": it was)."""
    for key, spec in store.environments().items():
        rows = store.rows(key)
        for path in unfinished(rows, spec["n_tasks"]):
            what = f"{spec['dataset']}, seed {spec['seed']}, after task {n_learned(path)}"
            state = store.load_checkpoint(key, path)
            if state is None:
                yield what, "its network is not stored"
                continue
            if missing := [text for text in way_to(path) if text not in rows]:
                yield what, f"the store has no row of {missing[0]!r} on its way"
                continue
            way = {text: as_plain(rows[text]) for text in way_to(path)}
            carried = {"key": key, "spec": spec, "path": path, "rows": way, "state": state}
            content = io.BytesIO()
            torch.save(carried, content)
            name = hashlib.sha256(path.encode()).hexdigest()[
                :8
            ]  # of its own: nothing is overwritten
            write_atomically(folder / f"{key}-{name}.pt", content.getvalue())
            yield what, ""


def carry_in(store: Store, folder: Path) -> Iterator[tuple[str, str]]:
    """Put networks and rows into the store; yields the file, and why it was refused ("": it was not)."""
    for file in sorted(folder.glob("*.pt")):
        try:
            carried = torch.load(file, weights_only=True)
            old_key, spec, path, state = (carried[k] for k in ("key", "spec", "path", "state"))
            rows = {text: from_plain(row) for text, row in carried["rows"].items()}
        except Exception as error:  # cut, damaged or another program's: torch raises many kinds
            yield file.name, f"cannot be read: {error!r}"
            continue
        try:
            environment = Environment.from_spec(spec)
            key, spec = environment.key, environment.as_stored()
        except (
            UserError,
            TypeError,
        ) as error:  # data that are not here, a method that is not registered
            yield file.name, str(error)
            continue
        if key != old_key:
            yield file.name, f"{environment} has the key {key} with this torch and data"
            continue
        for text, row in rows.items():
            store.put(key, spec, text, row)
        store.save_checkpoint(key, spec, path, state)
        yield file.name, ""


def unfinished(rows: dict[str, Row], n_tasks: int) -> list[str]:
    """The paths that no row goes on from, though they do not reach the last task."""
    goes_on = {path.rpartition("/")[0] for path in rows if path not in ("", UNTRAINED)}
    return [path for path in rows if 0 < n_learned(path) < n_tasks and path not in goes_on]


def way_to(path: str) -> list[str]:
    """The untrained network, and every node down to the end of a path."""
    whole = path_from_text(path)
    return [UNTRAINED, *(path_text(whole[:k]) for k in range(len(whole) + 1))]


def as_plain(row: Row) -> dict:
    """A row as values that torch.load takes without trusting the file."""
    return asdict(row) | {name: torch.tensor(getattr(row, name)) for name in ("val", "test")}


def from_plain(row: dict) -> Row:
    return Row(**row | {name: row[name].numpy() for name in ("val", "test")})


if __name__ == "__main__":
    sys.exit(main())
