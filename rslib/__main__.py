"""`rslib`, or `python -m rslib`: the library on the command line.

    rslib data                      list every dataset, or fetch one (`data get mnist`)
    rslib store                     list, export, prune, forget or check stored results
    rslib propose heur-gd:0.96 accuracies.csv --memory 100

`propose` is what an engineer calls once per retraining. Line t of the CSV holds the validation
accuracies of the tasks 1..t after learning task t, as fractions of 1; the answer is how many samples of
each old task to replay next. The policy is a rule or the file of a trained policy.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words else ""
    if command == "data":
        from rslib.data.__main__ import main as data

        return data(words[1:])
    if command == "store":
        from rslib.store.__main__ import main as store

        return store(words[1:])
    if command == "propose":
        return propose(words[1:])
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    print(__doc__, file=sys.stderr)
    if command:
        print(f"rslib has no command {command!r}", file=sys.stderr)
    return 2


def propose(arguments: Sequence[str]) -> int:
    """Print how many samples of each old task to replay next."""
    from rslib.policies import Policy

    parser = argparse.ArgumentParser(prog="rslib propose", description=propose.__doc__)
    parser.add_argument("policy", help="a rule such as ets or heur-gd:0.96, or a policy's file")
    parser.add_argument("history", type=Path, help="CSV: line t has the accuracies after task t")
    parser.add_argument("--memory", type=int, required=True, metavar="M", help="samples to replay")
    parser.add_argument("--available", help="the most samples of each task, such as 50,50,20")
    given = parser.parse_args(arguments)
    try:
        # Excel begins a file with a mark, which utf-8-sig leaves out.
        with open(given.history, newline="", encoding="utf-8-sig") as lines:
            rows = [_numbers(line, n) for n, line in enumerate(csv.reader(lines), start=1)]
        available = [int(n) for n in given.available.split(",")] if given.available else None
        history = [row for row in rows if row]
        counts = Policy.load(given.policy).propose(history, given.memory, available)
    except (ValueError, OSError) as error:
        print(f"propose: {error}", file=sys.stderr)
        return 1
    for task, n in enumerate(counts, start=1):
        print(f"task {task}: {n}")
    return 0


def _numbers(line: list[str], number: int) -> list[float]:
    """The numbers of a line without empty cells at its end; an empty one in between is an error."""
    while line and not line[-1].strip():
        line = line[:-1]
    try:
        return [float(cell) for cell in line]
    except ValueError as error:
        raise ValueError(f"line {number}: {error}. The file holds accuracies only, and no header")


if __name__ == "__main__":
    sys.exit(main())
