"""`make verify`: draws random rows from `results/`, trains them again and compares.

Bit for bit where torch and the CPU capability equal the recorded ones; elsewhere the mean accuracy of
the tasks seen must agree within a stated tolerance, because other instructions round otherwise and
training amplifies that. Says how many rows it checked and what differed; fails if anything did.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from rslib import data
from rslib.environment import Environment
from rslib.rows import CPU, TORCH, UNTRAINED, Row, path_from_text, read_csv
from rslib.seeding import rng
from rslib.shipped import SHIPPED, files, read_spec
from rslib.tree import ScheduleTree

TOLERANCE = 0.10  # of mean accuracy, on another CPU or torch: rounding moves single runs by points


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rslib.verify", description=__doc__)
    parser.add_argument("--results", type=Path, default=SHIPPED)
    parser.add_argument("--rows", type=int, default=6, help="how many rows to train again")
    parser.add_argument("--seed", type=int, default=0, help="which rows are drawn")
    options = parser.parse_args(arguments)
    found = [f for f in files(options.results) if _at_hand(f)]
    if not found:
        print(f"no result file in {options.results} whose dataset is here", file=sys.stderr)
        return 2
    draws = rng(options.seed, "verify")
    exact, close, differ = 0, 0, []
    for _ in tqdm(range(options.rows), "rows"):
        file = found[draws.integers(len(found))]
        rows = {path: row for path, row in read_csv(file).items() if path != UNTRAINED}
        path = sorted(rows)[draws.integers(len(rows))]
        again = train_again(Environment.from_spec(read_spec(file)), path)
        verdict = compare(rows[path], again)
        exact, close = exact + (verdict == "exact"), close + (verdict == "close")
        if verdict == "differs":
            differ.append(f"{file.name} {path!r}: {rows[path].test} became {again.test}")
    print(f"checked {options.rows} rows of {len(found)} files: {exact} bit for bit, {close} within")
    print(f"the tolerance of {TOLERANCE} (other CPU or torch than recorded), {len(differ)} differ")
    print("\n".join(differ), end="\n" if differ else "")
    return 1 if differ else 0


def train_again(environment: Environment, path: str) -> Row:
    """The row of a path, trained from the beginning with nothing looked up."""
    node = ScheduleTree(environment, store=None).walk(path_from_text(path))
    return Row(node.val[-1], node.test[-1])


def compare(shipped: Row, again: Row) -> str:
    """ "exact", "close" (allowed only on another CPU or torch) or "differs"."""
    if shipped.same(again):
        return "exact"
    if (shipped.torch, shipped.cpu) == (TORCH, CPU):
        return "differs"
    seen = ~np.isnan(shipped.val)
    gap = abs(shipped.test[seen].mean() - again.test[seen].mean())
    return "close" if gap <= TOLERANCE else "differs"


def _at_hand(file: Path) -> bool:
    """Whether the file's dataset can be loaded here and is the one its rows were made from."""
    environment = Environment.from_spec(read_spec(file))
    try:
        environment.load()  # fetched if need be
        return environment.key == file.stem
    except data.DataError:
        return False


if __name__ == "__main__":
    sys.exit(main())
