"""`make verify`: draws random rows from `results/`, trains them again and compares.

Bit for bit where torch and the CPU capability equal the recorded ones. Elsewhere other instructions
round otherwise and training amplifies that: a single row may be off by points, but the rows drawn
must agree on average. Says how many rows it checked, what differed and what it had to leave out;
fails if anything differed.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from rslib import files
from rslib.environment import Environment
from rslib.schedule import UNTRAINED, path_from_text
from rslib.seeding import rng
from rslib.store.rows import Row, read_first_line, read_rows, results_files
from rslib.tree import ScheduleTree

# Of mean accuracy, on another CPU or torch: of a single row, and of the mean over the rows drawn.
TOLERANCE, TOLERANCE_OF_MEAN = 0.10, 0.03


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.verify", description=__doc__)
    parser.add_argument("--results", type=Path, default=files.results())
    parser.add_argument("--rows", type=int, default=6, help="how many rows to train again")
    parser.add_argument("--seed", type=int, help="which rows are drawn; default: others each time")
    options = parser.parse_args(arguments)
    good, left_out = _split(results_files(options.results))
    for reason, n in left_out.items():
        print(f"{n} files left out: {reason}")
    if not good:
        print(f"no result file in {options.results} can be checked here", file=sys.stderr)
        return 2
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    draws, gaps, exact, differ = rng(seed, "verify"), [], 0, []
    for _ in tqdm(range(options.rows), "rows"):
        file = good[draws.integers(len(good))]
        rows = {path: row for path, row in read_rows(file).items() if path != UNTRAINED}
        path = sorted(rows)[draws.integers(len(rows))]
        again = train_again(Environment.from_spec(read_first_line(file)[0]), path)
        gap = compare(rows[path], again)
        exact += gap == 0
        if rows[path].same_machine() and _same_sklearn(rows[path], again):
            differ += [f"{file.name} {path!r}: {rows[path].test} became {again.test}"] * (gap > 0)
        else:
            gaps.append(gap)
            differ += [f"{file.name} {path!r}: {gap:.3f} apart"] * (gap > TOLERANCE)
    print(
        f"checked {options.rows} rows of {len(good)} files (--seed {seed}): {exact} bit for bit, "
        f"{len(differ)} differ"
    )
    if os.environ.get("CI") and len(gaps) == options.rows:
        differ.append("no row could be compared bit for bit, and in CI a tolerance is not enough")
    if gaps:
        mean = float(np.mean(gaps))
        print(
            f"{len(gaps)} of them are of another CPU or torch than this, so they need not be equal: "
            f"{mean:.4f} apart on average ({TOLERANCE_OF_MEAN} allowed), a single row {TOLERANCE}"
        )
        if not mean <= TOLERANCE_OF_MEAN:
            differ.append("on average they are too far apart")
    print("\n".join(differ), end="\n" if differ else "")
    return 1 if differ else 0


def train_again(environment: Environment, path: str) -> Row:
    """The row of a path, trained from the beginning with nothing looked up."""
    node = ScheduleTree(environment, store=None).walk(path_from_text(path))
    return Row(node.val[-1], node.test[-1])


def _same_sklearn(row: Row, again: Row) -> bool:
    """Whether the same scikit-learn chose both rows' samples; shipped rows from before do not say."""
    versions = (re.findall(r"scikit-learn (\S+)", one.code) for one in (row, again))
    return len(set(filter(None, map(tuple, versions)))) < 2


def compare(recorded: Row, again: Row) -> float:
    """How far the mean accuracy of the tasks seen is off; 0 only if every bit is the same."""
    if recorded.same(again):
        return 0.0
    seen = ~np.isnan(recorded.val)
    gap = abs(recorded.test[seen].mean() - again.test[seen].mean())
    return max(float(gap), 1e-9) if np.isfinite(gap) else float("inf")


def _split(files: list[Path]) -> tuple[list[Path], Counter[str]]:
    """The files whose rows can be trained here, and why the others cannot."""
    good, left_out = [], Counter()
    for file in files:
        if reason := _trouble(file):
            left_out[reason] += 1
        else:
            good.append(file)
    return good, left_out


def _trouble(file: Path) -> str:
    """Why a file's rows cannot be trained again here; the data are fetched if need be."""
    spec, facts = read_first_line(file)
    try:
        fingerprint = Environment.from_spec(spec).load().fingerprint
    except ValueError as error:  # DataError is one
        return f"{spec['dataset']}: {str(error).splitlines()[0]}"
    if facts is None:
        return f"{spec['dataset']}: the file does not say what data it was made from"
    if facts.fingerprint != fingerprint:
        return f"{spec['dataset']}: made from other data than are here"
    return ""


if __name__ == "__main__":
    sys.exit(main())
