"""`make verify`: draws random rows from `results/`, its trees included, trains them again and compares.

Bit for bit where torch and the CPU capability equal the recorded ones. Elsewhere other instructions
round otherwise and training amplifies that: a single row may be off by points, but the rows drawn
must agree on average. Says how many rows it checked, what differed and what it had to leave out;
fails if anything differed, or if a file is not what was written.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from rslib import files
from rslib.complete_tree import TableError, load_tables
from rslib.environment import Environment
from rslib.runs.generalization import policy_environment
from rslib.schedule import UNTRAINED, Schedule, path_from_text, path_text
from rslib.seeding import rng
from rslib.store.rows import ResultsError, Row, read_first_line, read_rows, results_files
from rslib.tree import ScheduleTree
from tools import trees
from tools.carry import way_to

# Of mean accuracy, on another CPU or torch: of a single row, and of the mean over the rows drawn.
TOLERANCE, TOLERANCE_OF_MEAN = 0.10, 0.03


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.verify", description=__doc__)
    parser.add_argument("--results", type=Path, default=files.results())
    parser.add_argument("--rows", type=int, default=6, help="how many rows to train again")
    parser.add_argument("--seed", type=int, help="which rows are drawn; default: others each time")
    parser.add_argument(
        "--minutes", type=float, default=10, help="draw no row that took longer, its path included"
    )
    options = parser.parse_args(arguments)
    good, left_out, damaged = _split(_sources(options.results))
    for reason, n in left_out.items():
        print(f"{n} files left out: {reason}")
    if not good:
        print("\n".join(damaged), end="\n" if damaged else "")
        print(f"no result file in {options.results} can be checked here", file=sys.stderr)
        return 2
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    draws, gaps, exact, differ, n_checked = rng(seed, "verify"), [], 0, damaged, 0
    n_long: dict[str, int] = {}  # by source: rows that take too long
    n_damaged = len(damaged)
    for _ in tqdm(range(options.rows), "rows"):
        source = good[draws.integers(len(good))]
        rows = source.rows()
        short = [p for p in sorted(rows) if seconds_to(p, rows) <= 60 * options.minutes]
        n_long[source.name] = len(rows) - len(short)
        if not short:  # or only the untrained network is known
            continue
        path = short[draws.integers(len(short))]
        n_checked += 1
        again = source.as_recorded(train_again(source.environment, path), path)
        gap = compare(rows[path], again)
        exact += gap == 0
        if rows[path].same_machine() and _same_sklearn(rows[path], again):
            differ += [f"{source.name} {path!r}: {rows[path].test} became {again.test}"] * (gap > 0)
        else:
            gaps.append(gap)
            differ += [f"{source.name} {path!r}: {gap:.3f} apart"] * (gap > TOLERANCE)
    print(
        f"checked {n_checked} rows of {len(good)} files (--seed {seed}): {exact} bit for bit, "
        f"{len(differ) - n_damaged} differ" + (f"; {n_damaged} files are damaged" * bool(n_damaged))
    )
    if n := sum(n_long.values()):
        print(f"{n} rows of the files drawn took over {options.minutes:g} minutes: left out")
    if os.environ.get("CI") and len(gaps) == n_checked:
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


@dataclass(frozen=True)
class Rows:
    """A file of rows: one environment."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def environment(self) -> Environment:
        return Environment.from_spec(read_first_line(self.file)[0])

    @property
    def fingerprint(self) -> str | None:
        """Of the data it was made from, if the file says it."""
        facts = read_first_line(self.file)[1]
        return facts.fingerprint if facts else None

    def rows(self) -> dict[str, Row]:
        return {path: row for path, row in read_rows(self.file).items() if path != UNTRAINED}

    def as_recorded(self, row: Row, path: str) -> Row:
        return row


@dataclass(frozen=True)
class TreeOf:
    """One complete tree of results/trees, which holds six decimals, and only of tasks learned."""

    file: Path
    number: int

    @property
    def name(self) -> str:
        return f"{self.file.name}, environment {self.number},"

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(trees.facts_file(self.file).read_text())

    @property
    def environment(self) -> Environment:
        return policy_environment(self.facts["dataset"], self.number, self.facts["n_tasks"])

    @property
    def fingerprint(self) -> str:
        return self.facts["data"]

    def rows(self) -> dict[str, Row]:
        (tree,) = [tree for tree in _tables(self.file) if tree.seed == self.number]
        found, facts = {}, self.facts
        for node, k in enumerate(tree.shape.depth):
            schedule = Schedule.from_actions(tree.shape.path(node), tree.memory_size)
            val, test = (_of_tasks(table[node], k) for table in (tree.val, tree.test))
            row = Row(val, test, torch=facts["torch"], cpu=facts["cpu"])
            found[path_text(schedule.compositions)] = row
        return found

    def as_recorded(self, row: Row, path: str) -> Row:
        k = len(path_from_text(path)) + 1
        return Row(_of_tasks(row.val, k), _of_tasks(row.test, k))


_tables = functools.cache(load_tables)


def _of_tasks(accuracies: np.ndarray, k: int) -> np.ndarray:
    """Keep the first k accuracies, as a table has them."""
    return np.where(np.arange(len(accuracies)) < k, accuracies.round(6), np.nan)


def _sources(results: Path) -> list[Rows | TreeOf]:
    sources: list[Rows | TreeOf] = [Rows(file) for file in results_files(results)]
    for file in sorted((results / "trees").glob("*.csv.gz")):
        numbers = json.loads(trees.facts_file(file).read_text())["environments"]
        sources += [TreeOf(file, number) for number in numbers]
    return sources


def train_again(environment: Environment, path: str) -> Row:
    """The row of a path, trained from the beginning with nothing looked up."""
    node = ScheduleTree(environment, store=None).walk(path_from_text(path))
    return Row(node.val[-1], node.test[-1])


def seconds_to(path: str, rows: Mapping[str, Row]) -> float:
    """How long training took down to a row, where that is known."""
    return float(np.nansum([rows[text].seconds for text in way_to(path) if text in rows]))


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


def _split(
    sources: list[Rows | TreeOf],
) -> tuple[list[Rows | TreeOf], Counter[str], list[str]]:
    """The sources whose rows can be trained here, why others cannot, and which are damaged."""
    good, left_out, damaged = [], Counter(), []
    for source in sources:
        try:  # every file is read, drawn or not: a damaged one may not stay unseen
            _ = _tables(source.file) if isinstance(source, TreeOf) else source.rows()
            reason = _trouble(source)
        except (ResultsError, TableError) as error:
            damaged += [str(error)] * (str(error) not in damaged)  # once, of all trees of a file
            continue
        if reason:
            left_out[reason] += 1
        else:
            good.append(source)
    return good, left_out, damaged


def _trouble(source: Rows | TreeOf) -> str:
    """Why rows cannot be trained again here; the data are fetched if need be."""
    try:
        environment = source.environment
    except ResultsError:
        raise
    except (ValueError, TypeError) as error:  # somebody's own method, not registered here
        return str(error).splitlines()[0]
    dataset = environment.dataset
    try:
        fingerprint = environment.load().fingerprint
    except ValueError as error:  # DataError is one
        return f"{dataset}: {str(error).splitlines()[0]}"
    if source.fingerprint is None:
        return f"{dataset}: the file does not say what data it was made from"
    if source.fingerprint != fingerprint:
        return f"{dataset}: made from other data than are here"
    return ""


if __name__ == "__main__":
    sys.exit(main())
