"""What the README says of the results: its picture with a caption, its table of runs, what came out.

Each is a block between `<!-- name -->` and `<!-- /name -->`. `make ship` rewrites them from shipped rows
alone, and a test compares them: no number of these blocks is typed by hand. A difference whose 95 %
interval holds 0 is called level.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rslib import files, presets
from rslib.files import REPOSITORY, write_atomically
from rslib.runs import generalization, params, scoring, studies
from rslib.runs.grid import Runs
from rslib.runs.params import Parameters
from rslib.runs.studies import Study
from rslib.show import published, schedules, searches, style, tables, verdicts
from tools import reproducibility

README = REPOSITORY / "README.md"
PICTURE = REPOSITORY / "docs" / "readme.png"
Stored = Mapping[Study, Runs]


def rewritten(text: str) -> str:
    """Put every block as it follows from the rows into the text of the README; returns the new text."""
    datasets = reproducibility.run_datasets()
    stored = {study: studies.stored(study, datasets) for study in studies.STUDIES}
    luck, equal = searches.mcts_against_luck(), searches.at_equal_cost()
    out = [agreement(stored), search(stored[studies.SCHEDULE_SEARCH], luck)]
    out += [*transfer(stored[studies.SCHEDULE_TRANSFER]), surrogate(equal)]
    blocks = {
        "picture": picture(stored[studies.SCHEDULE_SEARCH])[1],
        "facts": "\n".join([*out, *policies()]),
        "runs": "\n".join(runs(stored, datasets, luck, equal)),
    }
    for name, block in blocks.items():
        before, start, rest = text.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise ValueError(f"README.md has no block from <!-- {name} --> to <!-- /{name} -->")
        text = f"{before}{start}\n{block}\n{end}{after}"
    return text


# -- the picture -----------------------------------------------------------------------------------


def picture(found: Runs) -> tuple[Figure, str]:
    """Draw no replay, equal shares and MCTS on one seed of Split MNIST; returns it and its caption.

    The seed is the one with the median difference of MCTS to ETS: neither the best nor the worst.
    """
    rows = found.rows[found.rows["dataset"] == "mnist"]
    acc = 100 * rows.pivot(index="seed", columns="label", values="acc")
    gap = (acc["MCTS"] - acc["ETS"]).dropna().sort_values()  # a seed that diverged has no place
    seed, middle = gap.index[len(gap) // 2], gap.iloc[len(gap) // 2]
    (searched,) = (
        cell
        for cell in found.cells
        if (cell.environment.dataset, cell.environment.seed, cell.policy) == ("mnist", seed, "mcts")
    )
    shown = {}
    for policy in ("none", "ets", "mcts"):
        run = found[replace(searched, policy=policy)]
        shown[run.label] = (run.node.test, run.schedule)
    others = ", ".join(f"{x:+.2f}" for x in gap if x != middle)
    caption = (
        f"*Split MNIST, a memory of {searched.environment.memory_size} samples, **one seed** (seed "
        f"{seed}): of {len(gap)} seeds the one where the difference of MCTS to ETS is the median, "
        f"{middle:+.2f} points; on the others it is {others}. Above: each task's test accuracy from "
        "when it was learned on. Below: the schedule; the area of a circle is a task's share of the "
        "memory. ETS gives equal shares; MCTS is the schedule that the paper's search found.*"
    )
    return schedules.accuracy_and_bubbles(shown), caption


# -- what came out ---------------------------------------------------------------------------------


def agreement(stored: Stored) -> str:
    """Say how many means, winners and tests agree with the paper's."""
    compared = [
        verdicts.compare(study, found)
        for study, found in stored.items()
        if study.published and len(found)
    ]
    agree = {}
    for name in ("winners", "tests"):
        judged = [getattr(comparison, name) for comparison in compared]
        said = pd.concat([table.values for table in judged if len(table.frame)])
        said = said.loc[said["verdict"] != verdicts.TOO_FEW]
        if name == "winners":  # Appendix C.9 prints the uniform group of Table 1 again
            said = said.drop_duplicates(["Dataset", "Best here", "Best in the paper"])
        said = said["verdict"]
        agree[name] = f"{(said == 'agrees').sum()} of {len(said)}"
    cells = reproducibility.judged_means(compared)
    return (
        "- **What reproduces.** The method with the highest mean is the paper's in "
        f"{agree['winners']} comparisons; {agree['tests']} significance tests agree. Of {len(cells)} "
        f"mean accuracies beside the paper's: {verdicts.counted(cells['verdict'])}. *Open*: the "
        "seeds decide neither way; *without room*: the paper's five seeds spread so much that no "
        f"number of ours could show agreement. {reproducibility.direction(cells)}"
    )


def search(found: Runs, luck: tables.Table) -> str:
    """Say how the paper's search does beside equal shares and beside luck."""
    shares = []
    good = found.rows[found.rows["converged"].astype(bool)]
    for title, rows in good.groupby("dataset", sort=False):
        acc = 100 * rows.pivot(index="seed", columns="label", values="acc")
        name = published.dataset_name(str(title))
        if {"MCTS", "ETS"} <= {*acc} and len(acc[["MCTS", "ETS"]].dropna()) >= verdicts.FEWEST:
            shares.append((name, "MCTS", tables.paired(acc["MCTS"], acc["ETS"])))
    parts = [
        f"{line['Dataset']} ({line['Tasks']} tasks) {line['MCTS']} against {line['Random-best']} %, "
        f"{_difference(numbers, 'seeds')}"
        for line, numbers in _lines(luck)
    ]
    return (
        "- **The paper's search, MCTS**\n"
        f"  - beside equal shares (ETS): {_by_side(shares, 'MCTS')}\n"
        f"  - beside luck, the best of as many random schedules (100): {'; '.join(parts)}"
    )


def surrogate(equal: tables.Table) -> str:
    """Say what the search with a model adds, and what MCTS does in the same places."""
    places, model = (
        [(_place_of(found), found["label"], found) for found in table.values.to_dict("records")]
        for table in (equal, searches.model_alone())
    )
    trees = [
        (f"Split {numbers['tree'].partition(',')[0]}", line["Search"], numbers)
        for line, numbers in _lines(searches.on_complete_trees())
        if numbers["tree"].endswith(", 100 rollouts")
    ]
    return (
        "- **What the surrogate search adds** (ours, not the paper's)\n"
        f"  - beside luck at equal cost: {_by_side(places, 'Surrogate')}\n"
        f"  - beside its own candidates without the model: {_by_side(model, 'Surrogate')}\n"
        f"  - MCTS in the same places: {_by_side(places, 'MCTS')}\n"
        "  - on the authors' complete trees, 100 rollouts each: "
        f"{_by_side(trees, 'Surrogate')}; MCTS {_by_side(trees, 'MCTS, C = 0.1')}"
    )


def _place_of(numbers: Mapping[str, Any]) -> str:
    """Name a setting: two may differ in trainings alone."""
    name, _, size = numbers["tree"].partition(", ")
    return f"{name} ({size}, {numbers['pairs']} environments)"


def transfer(found: Runs) -> list[str]:
    """Say what the schedules that searches found gain over equal shares on new seeds."""
    lines = []
    for dataset, rows in found.rows.groupby("dataset", sort=False) if len(found) else ():
        acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc")
        searched = acc.filter(like="MCTS Seed ")
        gap = tables.paired(searched.mean(axis=1), acc["ETS"])
        gain = int((searched.sub(acc["ETS"], axis=0).mean() > 0).sum())
        lines.append(
            f"  - what it found, beside equal shares on new seeds: "
            f"{published.dataset_name(str(dataset))} {_difference(gap, 'new seeds')}; {gain} of "
            f"{searched.shape[1]} schedules gain in the mean"
        )
    return lines


def policies() -> list[str]:
    """Say how learned policies do beside luck, in every experiment that is shipped.

    Luck is the mean over all schedules of a tree: what a random schedule gets, without the chance of
    the few that were drawn.
    """
    lines = [
        "- **Policies and rules beside luck** (the mean of all schedules), where every schedule is known"
    ]
    for what, rows in generalization.finished():
        acc = 100 * rows.pivot_table(index=["dataset", "env_seed"], columns="label", values="acc")
        parts = [
            f"{name} {_difference(tables.paired(acc[name], acc[scoring.MEAN]), 'environments')}"
            for name in (*scoring.LEARNED, "ETS", scoring.CONSTANT)
            if name in acc
        ]
        experiment, tested = what.split(";")[0].split(": tested on ")
        lines.append(f"  - {experiment.lower()} ({tested}): {'; '.join(parts)}")
    rules: dict[str, list[str]] = {}
    for found in reproducibility.rules_on_trees().values.to_dict("records"):
        text = f"{found['label']} {_difference(found, 'environments')}"
        rules.setdefault(found["tree"], []).append(text)
    lines += [f"  - our own trees ({tree}): {'; '.join(texts)}" for tree, texts in rules.items()]
    return lines


def _lines(table: tables.Table) -> list[tuple[dict, dict]]:
    """The lines of a table of searches as printed and as numbers."""
    return list(zip(table.frame.to_dict("records"), table.values.to_dict("records"), strict=True))


def _difference(found: Mapping[str, Any], pairs: str) -> str:
    """A paired difference: its side, its size, its interval, and on how many pairs it is ahead."""
    shown = tables.paired_texts(pd.DataFrame([found]))
    gap, interval, ahead = (shown[name][0] for name in ("difference", "95 % CI", "ahead on"))
    if found["pairs"] < verdicts.FEWEST:
        return f"too few {pairs} to judge: {gap}, ahead on {ahead}"
    return f"{_side(found)}: {gap} {interval}, ahead on {ahead} {pairs}"


def _side(found: Mapping[str, Any]) -> str:
    if found["pairs"] < verdicts.FEWEST:  # such as a setting of which few environments are done
        return "too few to judge"
    if found["paired_low"] > 0:
        return "**ahead**"
    return "**behind**" if found["paired_high"] < 0 else "**level**"


def _by_side(lines: list[tuple[str, str, dict]], search: str) -> str:
    """Where a search is ahead of luck, level with it or behind, with differences and intervals."""
    sides: dict[str, list[str]] = {}
    for place, name, found in lines:
        if name == search:
            (interval,) = tables.intervals([found["paired_low"]], [found["paired_high"]])
            text = f"{place} {found['paired_difference']:+.2f} {interval}"
            sides.setdefault(_side(found), []).append(text)
    return "; ".join(f"{side} on {', '.join(texts)}" for side, texts in sides.items())


# -- what was run ----------------------------------------------------------------------------------


def runs(
    stored: Stored, datasets: list[Parameters], luck: tables.Table, equal: tables.Table
) -> list[str]:
    """List per dataset what was run, on how many seeds, and what was not run."""
    lines = ["| dataset | whole, with the paper's settings | in part |", "|---|---|---|"]
    titles = []
    for q in datasets:
        whole: dict[int, list[str]] = {}
        part = []
        for study, found in stored.items():
            rows = found.rows[found.rows["dataset"] == q.dataset] if len(found) else found.rows
            place, wanted = _place(study), len(study.cells(q))
            n_seeds = len(set(rows["seed"])) if len(rows) else 0
            if len(rows) == wanted > 0:
                n_bfs = int((rows["label"] == "BFS").sum())
                if 0 < n_bfs < n_seeds:  # our profile asks for no more, the paper has all
                    place += f" (BFS on {n_bfs} seeds)"
                whole.setdefault(n_seeds, []).append(place)
            elif len(rows):
                seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds"
                part.append(f"{place} ({len(rows)} of {wanted} runs, {seeds})")
        full = [f"{', '.join(places)} ({n} seeds)" for n, places in whole.items()]
        if full or part:  # rows of unfinished schedules alone are no run
            titles.append(q.title)
            lines.append(f"| {q.title} | {'; '.join(full)} | {', '.join(part)} |")
    embedded = [
        f"{line['Dataset']}, {line['Tasks']} tasks (MCTS and 100 random schedules, "
        f"{numbers['pairs']} seeds)"
        for line, numbers in _lines(luck)
        if line["Dataset"] not in titles
    ]
    embedded += [
        f"{numbers['tree']} (searches at equal cost, {numbers['pairs']} environments)"
        for line, numbers in _lines(equal)
        if line["Search"] == "Surrogate"
    ]
    for file in sorted((files.results() / "trees").glob("*.json")):
        about = json.loads(file.read_text())
        embedded.append(
            f"{published.dataset_name(about['dataset'])}, {about['n_tasks']} tasks (every schedule "
            f"of {len(about['environments'])} environments, {about['trainings']:,} trainings)"
        )
    absent = [preset.title for preset in presets.PAPER.values() if preset.title not in titles]
    absent += [
        f"{_place(study)} (notebook {study.notebook})"
        for study, found in stored.items()
        if not len(found)
    ]
    absent += ["trees of our own with the paper's settings for Tables 4 and 5"]
    return [
        *lines,
        "",
        f"**On embedded data:** {'; '.join(embedded)}.",
        "",
        f"**Not run:** {', '.join(absent)}. [What is left](REPRODUCIBILITY.md#what-is-left) says what "
        "it would cost.",
    ]


def _place(study: Study) -> str:
    """A study in few words; the rest of Appendix C.4 belongs to Table 1."""
    first = study.place.split(",")[0]
    return f"{first} (forward transfer)" if study is studies.FORWARD_TRANSFER else first


def main() -> int:
    mnist = params.check(dict(dataset="mnist", profile="paper", n_jobs=1), "02")
    figure, _ = picture(studies.stored(studies.SCHEDULE_SEARCH, [mnist]))
    drawn = io.BytesIO()
    with style.context():
        figure.savefig(drawn, format="png", metadata={"Software": None}, dpi=style.DPI)
    write_atomically(PICTURE, drawn.getvalue())
    print("wrote", write_atomically(README, rewritten(README.read_text()).encode()))
    return 0
