"""`python -m tools.carry out|in FOLDER`: go on with unfinished runs on another machine.

Rows travel in results/ and are enough to go on with a search. In the middle of a schedule the network is
needed too, and twenty tasks of convolutions may take longer than one machine is at hand. `out` writes a
file for every schedule that was begun and not finished; `in` puts those files into this machine's store.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from rslib import Environment, Store
from rslib.store.rows import n_learned


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.carry", description=__doc__)
    parser.add_argument("way", choices=("out", "in"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    store = Store()
    moved = carry_out if options.way == "out" else carry_in
    for environment, n in moved(store, options.folder):
        print(f"after task {n} of {environment.n_tasks}: {environment}")
    return 0


def unfinished(store: Store, key: str, n_tasks: int) -> list[str]:
    """The paths that nothing stored goes on from, though they do not reach the last task."""
    rows = store.rows(key)
    goes_on = {path.rpartition("/")[0] for path in rows if path}
    return [path for path in rows if 0 < n_learned(path) < n_tasks and path not in goes_on]


def carry_out(store: Store, folder: Path) -> Iterator[tuple[Environment, int]]:
    """Write the network at the end of every unfinished path that has a snapshot."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, spec in store.environments().items():
        for path in unfinished(store, key, spec["n_tasks"]):
            state = store.load_checkpoint(key, path)
            if state:
                carried = {"spec": spec, "path": path, "state": state}
                torch.save(carried, folder / f"{key}-{n_learned(path)}.pt")
                yield Environment.from_spec(spec), n_learned(path)


def carry_in(store: Store, folder: Path) -> Iterator[tuple[Environment, int]]:
    """Put the networks into the store. One whose environment has another key here is refused."""
    for file in sorted(folder.glob("*.pt")):
        carried = torch.load(file, weights_only=True)
        environment = Environment.from_spec(carried["spec"])
        if not file.name.startswith(environment.key):
            sys.exit(
                f"{file}: {environment} has the key {environment.key} with this torch and data"
            )
        spec = environment.as_stored()
        store.save_checkpoint(environment.key, spec, carried["path"], carried["state"])
        yield environment, n_learned(carried["path"])


if __name__ == "__main__":
    sys.exit(main())
