"""`rslib data`: every dataset and where it is; `... get mnist` fetches one."""

import argparse
import sys

from rslib import data
from rslib.data import fetch, npz, sources


def _row(name: str) -> list[str]:
    base = data.SAME_ARRAYS.get(name, name)
    found = fetch.find(base) if base in fetch.LAYOUTS else None
    if found is None and base in fetch.LAYOUTS:
        folder = f"put its files into {fetch.OWN / fetch.LAYOUTS[base][0].folders[0]}"
        how = f"rslib data get {base}" if base in sources.TORCHVISION else folder
        return [name, "no", "", "", "", "", how]
    try:
        dataset = data.load(name, download=False)
    except data.DataError as error:
        return [name, "REFUSED", "", "", "", "", str(error)]
    size = sum(getattr(dataset, key).nbytes for key in npz.ARRAYS)
    counts = f"{len(dataset.x_train)}+{len(dataset.x_test)}"
    shape = "x".join(map(str, dataset.input_shape))
    where = str(found.folder) if found else "embedded"
    where += f" ({dataset.subset})" if dataset.subset else ""
    numbers = [counts, f"{dataset.n_classes} of {shape}", f"{size / 1e6:.1f} MB"]
    return [name, "yes", *numbers, dataset.fingerprint[:16], where]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="rslib data", description="List every dataset, or fetch some."
    )
    commands = parser.add_subparsers(dest="command")
    getter = commands.add_parser("get", help="fetch datasets into data/")
    getter.add_argument("name", nargs="+")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "get":
            for name in map(data.canonical, chosen.name):
                base = data.SAME_ARRAYS.get(name, name)
                if base in fetch.LAYOUTS:
                    print(f"{name}: in {fetch.get(base).folder}")
                print(data.load(name))
            return 0
    except data.DataError as error:
        print(error, file=sys.stderr)
        return 1
    table = [["name", "here", "train+test", "classes", "size", "fingerprint", "where"]]
    for name in data.names():  # never downloads
        table.append(_row(name))
        data.read_found.cache_clear()  # one dataset in memory at a time
    widths = [max(len(row[i]) for row in table) for i in range(6)] + [0]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
