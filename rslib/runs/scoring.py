"""Scoring scheduling policies in environments, and the yardstick they are held against.

`play` follows one policy through one environment (a live tree or a table). A long frame of such
runs, one row per (environment, policy seed, label), carries everything the tables need: ranks, ACC,
BWT, Welch tests, and the share of the gap from random to the oracle that a policy closes. Three of
the labels are no policies but the yardstick: the mean over all schedules (what a random schedule
gets on average), the best schedule by validation (the oracle) and the best constant schedule (one
schedule for every environment, chosen on the training environments). Training is not done here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rslib import seeding, stats
from rslib.complete_tree import Table, compositions, nearest_action
from rslib.policies import Policy, Rule
from rslib.schedule import Schedule
from rslib.show import published

MEAN, ORACLE, CONSTANT = "All schedules", "Oracle", "Best constant"
YARDSTICK = (MEAN, CONSTANT, ORACLE)
HEURISTICS = tuple(f"{prefix}heur-{rule}" for prefix in ("", "ets+") for rule in ("gd", "ld", "at"))
LEARNED = ("DQN", "A2C")

COLUMNS = [
    *("experiment", "dataset", "env_seed", "policy_seed", "label"),
    *("acc", "bwt", "val", "schedule", "marked", "reason"),
]


@dataclass(frozen=True)
class Run:
    """One pass of a policy through one environment."""

    acc: float = float("nan")  # mean test accuracy at the end
    bwt: float = float("nan")
    val: float = float("nan")  # mean validation accuracy at the end
    schedule: Schedule | None = None
    marked: int = 0  # steps at which the nearest action of a table stood in
    reason: str = ""  # why there is no result


def play(source: Any, policy: Policy, policy_seed: int = 0) -> Run:
    """Follow a policy to the last task. What a table lacks is replaced by its nearest action and
    marked; no replay at all has no near action, so such a run is n/a there."""
    is_table = isinstance(source, Table)
    about = source.environment
    node, marked = source.walk(()), 0
    while node.depth < source.n_tasks:
        k = node.depth
        if np.isnan(node.val[-1, :k]).any():
            return Run(reason="training did not converge")
        draws = seeding.rng(policy_seed, "play", about.dataset, about.seed, k)
        wanted = policy.propose(node.val, source.budget(k), source.available(k), draws)
        if is_table:
            if not any(wanted):
                return Run(reason="no replay is not in the table")
            action, exact = nearest_action(wanted, source.memory_size)
            marked += not exact
            wanted = tuple(compositions(k, source.memory_size)[action].tolist())
        node = source.walk((*node.path, wanted))
    if np.isnan(node.acc):
        return Run(reason="training did not converge")
    return Run(node.acc, node.bwt, node.reward, node.schedule, marked)


def choose_tau(
    rule: str, sources: Sequence[Any], grid: Iterable[float]
) -> tuple[float | None, dict[float, float]]:
    """The threshold with the best mean validation accuracy at the end (ties to the first), and
    that mean for each. None where every threshold lacks a result in some environment."""
    means = {}
    for tau in grid:
        policy = Policy.load(f"{rule}:{tau}")
        means[tau] = float(np.mean([play(source, policy).val for source in sources]))
    known = [tau for tau, mean in means.items() if not np.isnan(mean)]
    return (max(known, key=lambda tau: means[tau]) if known else None), means


# -- the long frame --------------------------------------------------------------------------------


def score(
    experiment: str,
    sources: Sequence[Any],
    policies: Sequence[Policy | Sequence[Policy]],
    n_seeds: int,
) -> list[dict]:
    """Rows of these policies in these environments. A learned policy comes as one per policy seed;
    Random draws anew for each seed; deterministic rules are copied across seeds."""
    rows = []
    for source in sources:
        for policy in policies:
            if isinstance(policy, Policy):
                drawn = isinstance(policy, Rule) and policy.name.startswith("random")
                runs = [play(source, policy, seed) for seed in range(n_seeds if drawn else 1)]
                runs = runs if drawn else runs * n_seeds
                label = policy.label
            else:
                runs = [play(source, one, seed) for seed, one in enumerate(policy)]
                label = policy[0].label
            rows += [_row(experiment, source, seed, label, run) for seed, run in enumerate(runs)]
    return rows


def not_available(
    experiment: str, sources: Sequence[Any], label: str, n_seeds: int, reason: str
) -> list[dict]:
    """Rows of a method that has no result, so that tables can say n/a and why."""
    run = Run(reason=reason)
    return [_row(experiment, s, seed, label, run) for s in sources for seed in range(n_seeds)]


def _row(experiment: str, source: Any, policy_seed: int, label: str, run: Run) -> dict:
    about = source.environment
    text = run.schedule.to_json() if run.schedule else ""
    values = (experiment, about.dataset, about.seed, policy_seed, label)
    return dict(
        zip(
            COLUMNS,
            (*values, run.acc, run.bwt, run.val, text, run.marked, run.reason),
            strict=True,
        )
    )


# -- the yardstick ---------------------------------------------------------------------------------


def best_constant(training: Sequence[Table]) -> int:
    """The number of the one schedule with the best mean validation accuracy over environments."""
    return int(np.mean([table.final("val") for table in training], axis=0).argmax())


def yardstick(
    experiment: str, tables: Sequence[Table], training: Sequence[Table], n_seeds: int
) -> list[dict]:
    """Rows of the three labels of YARDSTICK, copied across policy seeds."""
    constant = best_constant(training)
    rows = []
    for table in tables:
        test, val = table.final("test"), table.final("val")
        runs = {
            MEAN: Run(float(test.mean()), val=float(val.mean())),
            CONSTANT: _leaf(table, constant),
            ORACLE: _leaf(table, int(val.argmax())),
        }
        for label, run in runs.items():
            rows += [_row(experiment, table, seed, label, run) for seed in range(n_seeds)]
    return rows


def _leaf(table: Table, number: int) -> Run:
    actions = table.shape.path(table.shape.n_inner + number)
    node = table.walk(Schedule.from_actions(actions, table.memory_size).compositions)
    return Run(node.acc, node.bwt, node.reward, node.schedule)


def by_environment(
    rows: pd.DataFrame, metric: str = "acc"
) -> dict[str, dict[tuple[str, int], np.ndarray]]:
    """{label: {(dataset, env_seed): values by policy seed}}, in the order of the rows."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for row in rows.to_dict("records"):
        environments = found.setdefault(row["label"], {})
        environments.setdefault((row["dataset"], row["env_seed"]), []).append(row[metric])
    return {
        label: {key: np.array(values, dtype=float) for key, values in environments.items()}
        for label, environments in found.items()
    }


def gap_closed(
    rows: pd.DataFrame, label: str, n_resamples: int = 10_000, confidence: float = 0.95
) -> stats.Estimate:
    """(ACC - mean of all schedules) / (oracle - mean of all schedules), each summed over
    environments: a ratio of means, so that an environment where nothing can be gained does not
    blow it up. The interval resamples environments."""
    acc = by_environment(rows)
    if not {label, MEAN, ORACLE} <= set(acc):
        return stats.Estimate(float("nan"), reason="no yardstick")
    mine, floor, oracle = (
        np.array([acc[name][key].mean() for key in acc[label]]) for name in (label, MEAN, ORACLE)
    )
    closed, gap = mine - floor, oracle - floor
    if np.isnan(closed).any() or gap.sum() <= 0:
        reason = "no gap to close" if gap.sum() <= 0 else "n/a in some environment"
        return stats.Estimate(float("nan"), reason=reason)
    value = float(closed.sum() / gap.sum())
    if len(gap) < 2:
        return stats.Estimate(value, n=1, reason="one environment")
    drawn = np.random.default_rng(0).integers(len(gap), size=(n_resamples, len(gap)))
    gaps = gap[drawn].sum(axis=1)
    shares = closed[drawn].sum(axis=1)[gaps > 0] / gaps[gaps > 0]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(shares, [tail, 100 - tail])
    return stats.Estimate(value, float(low), float(high), len(gap))


# -- tables ----------------------------------------------------------------------------------------


def average_ranks(rows: pd.DataFrame) -> dict[str, float]:
    """Average rank of every method with a result everywhere (n/a somewhere would mean ranks among
    fewer); the yardstick is not ranked."""
    acc = {
        label: np.array(list(environments.values()))  # (environments, policy seeds)
        for label, environments in by_environment(rows).items()
        if label not in YARDSTICK
    }
    acc = {label: values for label, values in acc.items() if not np.isnan(values).any()}
    if not acc:
        return {}
    ranks = stats.average_ranks(np.stack(list(acc.values()), axis=-1))
    return dict(zip(acc, ranks.tolist(), strict=True))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per label: rank, ACC and BWT in % (population std), gap closed with its interval."""
    ranks = average_ranks(rows)
    metrics = {
        name: {
            label: np.concatenate(list(environments.values()))
            for label, environments in by_environment(rows, name).items()
        }
        for name in ("acc", "bwt", "marked")
    }
    lines = []
    for label, acc in metrics["acc"].items():
        gap, bwt = gap_closed(rows, label), metrics["bwt"][label]
        lines.append(
            {
                "label": label,
                "rank": ranks.get(label, float("nan")),
                "acc": 100 * float(acc.mean()),
                "acc_std": 100 * float(acc.std()),
                "bwt": 100 * float(bwt.mean()),
                "bwt_std": 100 * float(bwt.std()),
                "gap_closed": gap.value,
                "gap_low": gap.low,
                "gap_high": gap.high,
                "marked": int((metrics["marked"][label] > 0).sum()),
                "missing": int(np.isnan(acc).sum()),
                "runs": len(acc),
            }
        )
    return pd.DataFrame(lines).set_index("label")


def welch_tests(rows: pd.DataFrame, ours: Sequence[str] = LEARNED) -> pd.DataFrame:
    """Welch's test of our policies against every other method: per environment over policy seeds,
    and overall over the environments' means, where the paired test is the sharper one."""
    acc = {k: v for k, v in by_environment(rows).items() if k not in YARDSTICK}
    lines = []
    for mine in (label for label in ours if label in acc):
        for other in (label for label in acc if label != mine):
            a, b = acc[mine], acc[other]
            for dataset, seed in a:
                test = stats.welch(a[dataset, seed], b[dataset, seed])
                lines.append((mine, other, dataset, seed, test.difference, test.t, test.p, np.nan))
            means_a, means_b = ([x.mean() for x in side.values()] for side in (a, b))
            test, paired = stats.welch(means_a, means_b), stats.paired_difference(means_a, means_b)
            lines.append((mine, other, "all", -1, test.difference, test.t, test.p, paired.p))
    names = ["ours", "other", "dataset", "env_seed", "difference", "t", "p", "paired_p"]
    return pd.DataFrame(lines, columns=pd.Index(names))


def time_cost(make_tree: Callable[[], Any], policy: Policy, repeats: int = 10) -> pd.DataFrame:
    """Seconds of a whole run with and without asking a policy (the paper's time-cost table). Both
    come from the same run, so the difference is what the policy took and not the machine's mood."""
    lines = []
    for repeat in range(repeats):
        tree, asking, started = make_tree(), 0.0, time.perf_counter()
        node = tree.walk(())
        while node.depth < tree.n_tasks:
            k, asked = node.depth, time.perf_counter()
            wanted = policy.propose(node.val, tree.budget(k), tree.available(k))
            asking += time.perf_counter() - asked
            node = tree.walk((*node.path, wanted))
        total = time.perf_counter() - started
        lines.append((repeat, total, total - asking, asking))
    return pd.DataFrame(lines, columns=pd.Index(["repeat", "with", "without", "difference"]))


def rank_array(rows: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """(environments, policy seeds, methods) ACC of the methods that are ranked, and their labels."""
    labels = list(average_ranks(rows))
    acc = by_environment(rows)
    return np.stack([np.array(list(acc[label].values())) for label in labels], axis=-1), labels


def in_words(experiment: str, rows: pd.DataFrame) -> str:
    """Who ranks where, and how much of the gap to the oracle each learned policy closes."""
    ranks = sorted(average_ranks(rows).items(), key=lambda item: item[1])
    order = ", ".join(f"{label} {rank:.2f}" for label, rank in ranks[:4])
    closed = []
    for label in (label for label in LEARNED if label in by_environment(rows)):
        gap = gap_closed(rows, label)
        share = f"{gap.value:.0%} [{gap.low:.0%}, {gap.high:.0%}]" if gap.reason is None else "n/a"
        closed.append(f"{label} closes {share} of the gap from the mean schedule to the oracle")
    return f"- {experiment.replace('_', ' ')}: best ranks {order}. " + "; ".join(closed) + "."


def printable(experiment: str, rows: pd.DataFrame) -> pd.DataFrame:
    """`summary` as a table is read, with the paper's values where it has this dataset."""
    dataset = str(rows["dataset"].iloc[0])
    lines = []
    for line in summary(rows).reset_index().to_dict("records"):
        label = line["label"] + (" *" if line["marked"] else "")
        found = {
            name: published.published(
                f"policy_{experiment}_10_methods", dataset, "", line["label"], name
            )
            for name in ("rank", "acc")
        }
        known = not line["missing"]
        lines.append(
            {
                "Method": label,
                "Rank": _number(line["rank"]),
                "ACC (%)": f"{line['acc']:.2f} ± {line['acc_std']:.2f}" if known else "n/a",
                "BWT (%)": f"{line['bwt']:.2f} ± {line['bwt_std']:.2f}"
                if known and not np.isnan(line["bwt"])
                else "-",
                "Gap closed": f"{line['gap_closed']:.2f} [{line['gap_low']:.2f}, {line['gap_high']:.2f}]"
                if known
                else "-",
                "Paper: rank": _number(found["rank"].mean_percent if found["rank"] else np.nan),
                "Paper: ACC (%)": _number(found["acc"].mean_percent if found["acc"] else np.nan),
            }
        )
    frame = pd.DataFrame(lines)
    return frame.loc[:, [c for c in frame if not c.startswith("Paper") or set(frame[c]) != {"-"}]]


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"
