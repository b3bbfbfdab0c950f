"""Where ours and the paper's differ: every mean and test that is off, and what is likely behind it."""
# pandas annotates most results as unions of Series, DataFrame and scalars, which says nothing.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

from rslib.runs import grid, studies
from rslib.runs.params import Parameters
from rslib.show import published, verdicts
from rslib.show.tables import printed_name as named
from rslib.store import Store
from tools.judged import Judged

# What is likely behind a difference, by words of its place. Numbers stand in the rows, not here.
REASONS: dict[tuple[str, ...], str] = {
    (
        "Split MNIST",
        "k-means",
        "Random",
    ): "Not known. Choosing by k-means++ seeds only, with or without balanced "
    "classes (as the released code does), was tried, and training for two more epochs (its baselines "
    "see more data): none of them brings ours down. In the paper ETS is as low with k-means.",
    ("Split MNIST", "HAL", "Heur-GD"): "Likely the rule with few seeds: while the first tasks are "
    "learned it replays nothing, and at the last one only task 2 or nothing, because the others are "
    "still above the threshold; they drop then (most of all task 1 on one seed). The paper's runs lie "
    "unusually close together.",
    (
        "Split MNIST",
        "DER",
        "MCTS",
    ): "Likely the method, not the search: ETS with DER is lower too. DER is "
    "trained as its paper defines it, not as the released code does (see 05), and the paper's "
    "deviation is small.",
    ("Split MNIST", "App. C.8", "Heur-GD"): "Likely chance: the rule replays what has already been "
    "forgotten. On two seeds every task was above its threshold before the last one was learned, "
    "so nothing was replayed then: without harm on the one, while on the other two tasks fell to little "
    "above chance. The median is level with the paper.",
    (
        "Split MNIST",
        "App. C.8",
        "MCTS Seed 2",
    ): "Likely the schedule itself: it replays nothing of task 2 "
    "while tasks 4 and 5 are learned, and that task ends as the weakest on most new seeds. On the seed "
    "it was found on, it did so too, but lost little. A found schedule does not always carry over.",
}


def of_means(judgements: list[Judged]) -> list[str]:
    """Every mean (ACC; BWT goes with it) that is off, seed by seed."""
    lines = []
    for judged in judgements:
        metric = judged.item.metrics[0]
        values = judged.values[judged.values["metric"] == metric]
        for value in values.to_dict("records"):
            numbers = (value[k] for k in ("mean", "paper_mean", "paper_std", "n"))
            verdict = verdicts.verdict(*numbers)
            if verdict in ("reproduced", "-"):
                continue
            keys = ["dataset", *judged.item.row_keys]
            mine = judged.rows[(judged.rows[keys] == [value[k] for k in keys]).all(axis=1)]
            place = [str(named(key, value[key])) for key in keys]
            converged = mine["converged"].astype(bool)
            acc = 100 * mine.loc[converged, metric]
            seeds = ", ".join(f"{x:.2f}" for x in acc)
            n_failed = len(mine) - len(acc)
            seeds += f" ({n_failed} did not converge)" if n_failed else ""
            lines.append(
                f"- **{', '.join(place)}** ({judged.item.what.split(':')[0]}): {verdict} than the "
                f"paper's {value['paper_mean']:.2f}. Ours by seed: {seeds}; median "
                f"{acc.median():.2f}. {_reason([judged.item.what.split(':')[0], *place])}"
            )
    return ["## Means that differ, and the likely reason\n", *lines, ""] if lines else []


def of_tests(judgements: list[Judged]) -> list[str]:
    """Every Welch test that answers otherwise: which of the two means, or which spread, moved."""
    lines = []
    for judged in judgements:
        if not len(judged.tests):
            continue
        keys = ["dataset", *judged.item.row_keys[:-1]]
        acc = judged.values[judged.values["metric"] == "acc"].to_dict("records")
        at = {tuple(str(named(k, v[k])) for k in keys) + (v["label"],): v for v in acc}
        for test in judged.tests.to_dict("records"):
            if test["verdict"] in ("reproduced", "-"):
                continue
            place = tuple(str(test[k]) for k in keys)
            pair = [at[(*place, label)] for label in test["comparison"].split(" vs ")]
            gap, theirs = (pair[0][m] - pair[1][m] for m in ("mean", "paper_mean"))
            moved = ", ".join(
                f"{v['label']} is {v['mean'] - v['paper_mean']:+.2f} from the paper's mean (standard "
                f"deviation {v['std']:.2f}, there {v['paper_std']:.2f})"
                for v in pair
            )
            lines.append(
                f"- **{', '.join(place)}, {test['comparison']}** ({judged.item.what.split(':')[0]}): "
                f"{test['verdict']}. {gap:+.2f} points here, {theirs:+.2f} in the paper: {moved}."
            )
    return ["## Tests that differ, and what moved\n", *lines, ""] if lines else []


def figure_1(datasets: list[Parameters], store: Store) -> list[str]:
    """Figure 1 in numbers. The paper has one run and so no deviation to judge by: both are shown."""
    (q,) = [q for q in datasets if q.dataset == "mnist"] or [None]
    rows = grid.look_up(studies.asked(studies.single_task_replay, q), store) if q else ()
    if not len(rows):
        return []
    acc = 100 * rows.pivot_table(index="seed", columns="label", values="acc", sort=False)
    theirs = {f"at task {t}": 100 * m[-1].mean() for t, m in published.single_task_replay().items()}
    lines = ["| replayed | ours | n | the paper's one run | difference |", "|---|---|---|---|---|"]
    for moment in acc:
        mean, std = acc[moment].mean(), acc[moment].std(ddof=0)
        gap = mean - theirs[moment]
        lines.append(
            f"| {moment} | {mean:.2f} ± {std:.2f} | {len(acc)} | {theirs[moment]:.2f} | {gap:+.2f} |"
        )
    spread = max(theirs.values()) - min(theirs.values())
    best = max(theirs, key=lambda moment: theirs[moment])
    words = (
        f"{verdicts.moments(rows)} In the paper's run {spread:.2f} points lie between the best moment, "
        f"{best}, and the worst."
    )
    return ["## Figure 1 in numbers: ACC on Split MNIST\n", *lines, "", words, ""]


def _reason(place: list[str]) -> str:
    found = [text for words, text in REASONS.items() if set(words) <= set(place)]
    return f"*{found[0]}*" if found else "*Not looked into yet.*"
