"""Scoring, the yardstick, and the generalization experiment as a whole."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from small_environment import small
from synthetic import synthetic_table

from rslib import presets_rl, schedule
from rslib.complete_tree import tree_shape
from rslib.env_tables import save_tables
from rslib.policies import Policy
from rslib.policies.a2c import A2CArgs
from rslib.policies.dqn import DQNArgs
from rslib.runs import generalization, generalization_cli, scoring
from rslib.runs.generalization import Agent
from rslib.runs.scoring import CONSTANT, MEAN, ORACLE, play
from rslib.store import Store

TINY_A2C = A2CArgs(updates=30, hidden=8)
TINY_DQN = DQNArgs(episodes=5, hidden=8, batch_size=4)


class Tree:
    """A live tree that can train any composition: what the table lacks gets accuracy 0.25."""

    def __init__(self, table):
        self.table, self.environment, self.n_tasks = table, table, table.n_tasks
        self.asked = []

    def budget(self, k):
        return 10

    def available(self, k):
        return [10] * k

    def walk(self, path):
        self.asked.append(tuple(path))
        try:
            return self.table.walk(path)
        except KeyError:
            t = len(path) + 1
            val = np.where(np.tri(t + 1, self.n_tasks, -1), 0.25, np.nan)
            node = type("Node", (), {})()
            node.path, node.depth, node.val, node.test = tuple(path), t, val, val
            node.schedule = schedule.Schedule(tuple(path))
            node.acc, node.bwt, node.reward = 0.25, 0.0, 0.25
            return node


def frame(acc):
    """{label: (environments, seeds)} -> the long frame."""
    rows = []
    for label, values in acc.items():
        for seed, row in enumerate(np.atleast_2d(values)):
            for policy_seed, value in enumerate(row):
                rows.append(("x", "d", seed, policy_seed, label, value, -0.1, 0.5, "", 0, ""))
    return pd.DataFrame(rows, columns=pd.Index(scoring.COLUMNS))


def test_playing_on_a_table_is_the_tables_own_schedule():
    """Broken: ETS, which is in the action space, would be scored with something else."""
    table = synthetic_table(5, 3)
    run = play(table, Policy.load("ets"))
    node = table.walk([(10,), (5, 5), (4, 3, 3), (3, 3, 2, 2)])
    assert (run.acc, run.bwt, run.val) == (node.acc, node.bwt, node.reward)
    assert run.marked == 0 and run.schedule == node.schedule


def test_stand_ins_are_the_nearest_action_and_marked():
    """Broken: a composition that was never trained would pass for one that was."""
    table = synthetic_table(3, 0)
    table.val[0, 0], table.val[1, :2] = 0.9, (0.5, 0.8)  # task 1 fell: it gets 2 of 3 shares
    policy = Policy.load("ets+heur-gd:0.9")
    assert policy.propose(table.walk([(10,)]).val, 10) == (7, 3)
    run = play(table, policy)
    assert run.marked == 1 and run.schedule is not None
    assert run.schedule.compositions == ((10,), (5, 5))  # 4 away; (10, 0) is 6 away


def test_no_replay_has_no_stand_in():
    """Broken: Heur-GD, which replays nothing at task 2, would be scored as if it replayed."""
    run = play(synthetic_table(4), Policy.load("heur-gd:0.9"))
    assert np.isnan(run.acc) and "no replay" in run.reason and run.schedule is None


def test_a_live_tree_trains_what_the_action_space_lacks():
    """Broken: heuristics would be judged by stand-ins although the tree can train them."""
    table = synthetic_table(3, 0)
    tree = Tree(table)
    run = play(tree, Policy.load("heur-gd:0.9"))
    assert tree.asked[1] == ((0,),) and run.acc == 0.25 and run.marked == 0


def test_not_converged_is_not_a_crash():
    """Broken: one diverged training would stop the whole experiment."""
    table = synthetic_table(3, 0)
    table.val[1, 0] = np.nan
    assert play(table, Policy.load("ets")).reason == "training did not converge"


def test_random_draws_per_seed_and_environment():
    """Broken: Random would be one schedule, or differ from run to run."""
    tables = [synthetic_table(5, s) for s in (0, 1)]
    rows = pd.DataFrame(scoring.score("x", tables, [Policy.load("random")], 5))
    assert rows.groupby("env_seed")["schedule"].nunique().min() > 1
    one, two = (rows[rows.env_seed == s]["schedule"].tolist() for s in (0, 1))
    assert one != two
    again = pd.DataFrame(scoring.score("x", tables, [Policy.load("random")], 5))
    assert again.equals(rows)


def test_deterministic_rules_are_copied_across_seeds():
    """Broken: ranks per seed would lack ETS."""
    rows = pd.DataFrame(scoring.score("x", [synthetic_table(4)], [Policy.load("ets")], 3))
    assert rows["policy_seed"].tolist() == [0, 1, 2] and rows["acc"].nunique() == 1
    assert json.loads(rows["schedule"][0])["compositions"][0] == [10]


def test_tau_is_chosen_by_validation_on_the_given_environments():
    """Broken: thresholds would be tuned on test accuracies, or on one environment."""
    tables = [synthetic_table(5, s) for s in range(4)]
    tau, means = scoring.choose_tau("ets+heur-at", tables, (0.6, 0.75, 0.9))
    slow = {
        t: np.mean([play(x, Policy.load(f"ets+heur-at:{t}")).val for x in tables])
        for t in (0.6, 0.75, 0.9)
    }
    assert means == pytest.approx(slow) and tau == max(slow, key=slow.__getitem__)
    for table in tables:
        table.test[:] = 0  # moves nothing
    assert scoring.choose_tau("ets+heur-at", tables, (0.6, 0.75, 0.9))[0] == tau
    assert scoring.choose_tau("heur-gd", tables, (0.9,)) == (
        None,
        {0.9: pytest.approx(np.nan, nan_ok=True)},
    )


def test_the_yardstick_against_every_schedule():
    """Broken: policies would be held against a wrong floor or a wrong ceiling. Slowly: walk all 30
    schedules of 4 tasks."""
    train, test = [synthetic_table(4, s) for s in (0, 1)], synthetic_table(4, 7)
    shape = tree_shape(4)
    leaves = range(shape.n_inner, shape.first[-1])
    paths = [schedule.Schedule.from_actions(shape.path(r), 10).compositions for r in leaves]
    nodes = [test.walk(p) for p in paths]
    rows = pd.DataFrame(scoring.yardstick("x", [test], train, 1)).set_index("label")
    assert rows.acc[MEAN] == pytest.approx(np.mean([n.acc for n in nodes]))
    best = max(nodes, key=lambda n: n.reward)
    assert rows.acc[ORACLE] == pytest.approx(best.acc)  # its test accuracy, chosen by validation
    trained = [np.mean([t.walk(p).reward for t in train]) for p in paths]
    assert rows.acc[CONSTANT] == pytest.approx(nodes[int(np.argmax(trained))].acc)


def test_gap_closed_by_hand():
    """Broken: the headline number. Gaps 0.2 and 0.1, closed 0.1 and 0.0: 0.1 / 0.3."""
    rows = frame(
        {
            "A2C": [[0.75, 0.85], [0.6, 0.6]],
            MEAN: [[0.7, 0.7], [0.6, 0.6]],
            ORACLE: [[0.9, 0.9], [0.7, 0.7]],
        }
    )
    gap = scoring.gap_closed(rows, "A2C")
    assert gap.value == pytest.approx(1 / 3) and gap.n == 2
    assert (gap.low, gap.high) == pytest.approx((0.0, 0.5))  # one environment drawn twice
    assert scoring.gap_closed(rows, ORACLE).value == 1.0
    assert scoring.gap_closed(rows, MEAN).value == 0.0
    flat = frame({"A2C": [[0.5]], MEAN: [[0.5]], ORACLE: [[0.5]]})
    assert scoring.gap_closed(flat, "A2C").reason == "no gap to close"
    assert np.isnan(scoring.gap_closed(frame({"A2C": [[0.5]]}), "A2C").value)


def test_ranks_are_the_papers_example():
    """Broken: Appendix D.2's own example would come out differently: 4, 2.75, 2.25, 1."""
    rows = frame(
        {
            "ETS": [[0.90, 0.90]],
            "Heur": [[0.95, 0.95]],
            "DQN": [[0.95, 0.97]],
            "A2C": [[0.99, 0.98]],
            ORACLE: [[1.0, 1.0]],  # no method, so it takes no rank
            "Heur-GD": [[np.nan, np.nan]],  # n/a, so it takes none either
        }
    )
    assert scoring.average_ranks(rows) == {"ETS": 4, "Heur": 2.75, "DQN": 2.25, "A2C": 1}


def test_rank_array_and_words_leave_out_what_is_not_ranked():
    """Broken: the rank figure and the notebook's closing sentence would count the yardstick, or a
    method without results."""
    rows = frame(
        {
            "ETS": [[0.8, 0.8], [0.6, 0.6]],
            "DQN": [[0.85, 0.85], [0.65, 0.65]],
            "Heur-GD": [[np.nan] * 2] * 2,
            MEAN: [[0.8, 0.8], [0.6, 0.6]],
            ORACLE: [[0.9, 0.9], [0.7, 0.7]],
        }
    )
    acc, labels = scoring.rank_array(rows)
    assert labels == ["ETS", "DQN"] and acc.shape == (2, 2, 2)
    words = scoring.in_words("new_task_order", rows)
    assert "DQN 1.00, ETS 2.00" in words and "DQN closes 50% [50%, 50%]" in words


def test_summary_says_what_is_missing():
    """Broken: an average over what happened to run would pass for the method's."""
    table = scoring.summary(frame({"ETS": [[0.9], [0.8]], "Heur-AT": [[0.9], [np.nan]]}))
    assert table.loc["ETS", "acc"] == pytest.approx(85.0)
    assert table.loc["ETS", "acc_std"] == pytest.approx(5.0)  # population deviation
    assert np.isnan(table.loc["Heur-AT", "acc"]) and table.loc["Heur-AT", "missing"] == 1


def test_welch_per_environment_and_overall():
    """Broken: the tests would compare the wrong samples."""
    from scipy.stats import ttest_ind, ttest_rel

    draws = np.random.default_rng(0)
    a, b = draws.uniform(size=(4, 5)), draws.uniform(size=(4, 5))
    tests = scoring.welch_tests(frame({"Random": b, "A2C": a, MEAN: b}))
    assert len(tests) == 5 and set(tests["other"]) == {"Random"}
    for row, x, y in zip(tests.itertuples(), a, b, strict=False):
        assert row.p == pytest.approx(ttest_ind(x, y, equal_var=False).pvalue)
    overall = tests.iloc[-1]
    means = a.mean(axis=1), b.mean(axis=1)
    assert overall["p"] == pytest.approx(ttest_ind(*means, equal_var=False).pvalue)
    assert overall["paired_p"] == pytest.approx(ttest_rel(*means).pvalue)


def test_time_cost_adds_up():
    """Broken: the time-cost table would not be of one run."""
    cost = scoring.time_cost(lambda: Tree(synthetic_table(4)), Policy.load("ets"), repeats=3)
    assert len(cost) == 3 and (cost["difference"] > 0).all()
    assert np.allclose(cost["with"] - cost["without"], cost["difference"])


def test_a_whole_experiment_and_its_resumption(tmp_path):
    """Broken: the experiment as a whole; or a killed one would train its policies again."""
    tables = [synthetic_table(4, s) for s in range(5)]
    agents = [Agent("a2c", TINY_A2C, tables[:3]), Agent("dqn", TINY_DQN, tables[:3])]
    arguments = ("new_task_order", agents, tables[3:], tables[:3], 2, tmp_path)
    result = generalization.run(*arguments)
    labels = ["Random", "ETS", "Heur-GD", "Heur-LD", "Heur-AT"]
    labels += ["ETS+Heur-GD", "ETS+Heur-LD", "ETS+Heur-AT", "A2C", "DQN", MEAN, CONSTANT, ORACLE]
    assert list(result.summary().index) == labels
    assert (result.rows.groupby("label").size() == 4).all()  # 2 environments x 2 policy seeds
    assert set(result.rows["env_seed"]) == {3, 4}
    chosen = result.taus.groupby("rule")["chosen"].sum()
    assert chosen["heur-gd"] == chosen["heur-ld"] == 0  # they replay nothing at task 2
    assert (chosen[["ets+heur-gd", "ets+heur-ld", "ets+heur-at"]] == 1).all()
    assert set(result.curves["agent"]) == {"A2C", "DQN"}
    assert "<table" in result._repr_html_()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.pt")}
    assert len(before) == 4
    (tmp_path / "a2c_1.pt").unlink()
    again = generalization.run(*arguments)
    after = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.pt")}
    assert [p.name for p in before if before[p] != after[p]] == ["a2c_1.pt"]
    assert again.rows.equals(result.rows)


def test_another_setting_is_not_resumed(tmp_path):
    """Broken: a policy trained with other arguments would be taken for this one."""
    tables = [synthetic_table(3, 0)]
    path = tmp_path / "p.pt"
    generalization.train_policy(Agent("a2c", TINY_A2C, tables), 0, path, progress=False)
    first = path.stat().st_mtime_ns
    same = A2CArgs(updates=30, hidden=8, log_every=7)  # how often it logs moves nothing
    generalization.train_policy(Agent("a2c", same, tables), 0, path, progress=False)
    assert path.stat().st_mtime_ns == first
    other = A2CArgs(updates=31, hidden=8)
    generalization.train_policy(Agent("a2c", other, tables), 0, path, progress=False)
    assert path.stat().st_mtime_ns > first


def test_a_policy_of_other_trees_is_not_resumed(tmp_path):
    """Broken: trees trained anew (another torch, other data) are scored with policies of the old."""
    table = synthetic_table(3, 1)
    agent = Agent("a2c", TINY_A2C, [table])
    path = generalization.train_policy(agent, 0, tmp_path / "p.pt", progress=False)
    assert generalization._trained(path, agent, 0)
    others = [
        replace(table, val=table.val * 0.99),
        replace(table, memory_size=50),
        synthetic_table(4, 1),
    ]
    for other in others:
        assert not generalization._trained(path, replace(agent, tables=[other]), 0)


def test_ets_with_a_heuristic_chooses_on_ten_environments(monkeypatch):
    """Broken: Appendix D.5's ten environments are twenty where the plain rule has twenty."""
    asked = {}

    def choose(rule, sources, grid):
        asked[rule] = [s.seed for s in sources]
        return 0.9, {0.9: 0.5}

    monkeypatch.setattr(scoring, "choose_tau", choose)
    tables = [replace(synthetic_table(3, seed), seed=seed) for seed in range(20)]
    generalization.run("new_task_order", [], tables[:1], tables, n_seeds=1)
    assert asked["heur-gd"] == list(range(20)) and asked["ets+heur-gd"] == list(range(10))


def test_an_experiment_that_cannot_be_is_told_before_training():
    """Broken: 07 on Split MNIST trains for 19 hours and then finds no dataset for Table 5."""
    assert presets_rl.experiments_on("digits", "both") == ("new_task_order", "new_dataset")
    assert presets_rl.experiments_on("mnist", "both") == ("new_task_order",)
    assert presets_rl.experiments_on("mnist", "new_task_order") == ("new_task_order",)
    with pytest.raises(ValueError, match="experiment=new_task_order"):
        presets_rl.experiments_on("mnist", "new_dataset")
    with pytest.raises(ValueError, match="more than 6 tasks are too large"):
        generalization.run_live("new_task_order", "permuteddigits", None, profile="paper")


def test_environments_are_listed_in_order():
    """Broken: which random draws an environment gets depends on how a list was written."""
    for tested in presets_rl.TRAIN_DATASETS:
        pairs = presets_rl.training_environments("new_dataset", tested, 20)
        assert pairs == sorted(pairs) and len(pairs) == 20


def test_what_is_known_starts_no_process(tmp_path, monkeypatch):
    """Broken: running 07 again starts eight processes to look up what this one can read."""
    environments = [small(seed=seed, n_tasks=3) for seed in (1, 2)]
    store = Store(tmp_path / "s", shipped=None)
    first = generalization.prepare_all(environments, store, workers=1)
    agents = [Agent("a2c", TINY_A2C, first)]
    _, curves = generalization.train_policies(agents, 2, tmp_path)

    def no_work(work, jobs, workers, title):
        assert not jobs
        return []

    monkeypatch.setattr(generalization, "in_processes", no_work)
    again = generalization.prepare_all(environments, store, workers=2)
    for one, two in zip(first, again, strict=True):
        assert np.array_equal(one.val, two.val) and np.array_equal(one.test, two.test)
    assert generalization.train_policies(agents, 2, tmp_path, workers=2)[1].equals(curves)


def test_the_command(tmp_path, capsys):
    """Broken: the command in the README; or testing where it trained."""
    tables = save_tables([synthetic_table(4, s) for s in range(4)], tmp_path / "t.csv.gz")
    command = ["--tables", str(tables), "--train", "0-1", "--seeds", "2", "--set", "updates=20"]
    out = tmp_path / "out"
    generalization_cli.main([*command, "--test", "2-3", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "Oracle" in printed and "gap closed" in printed and "20 updates" in printed
    assert {"rows.csv", "summary.csv", "about.json", "a2c_1.pt"} <= {p.name for p in out.iterdir()}
    assert len(pd.read_csv(out / "rows.csv")) == 2 * 2 * 12
    ((words, rows),) = generalization.finished(tmp_path)
    assert "2-3; A2C trained on" in words and "0-1; paper settings" in words and "t.csv.gz" in words
    assert scoring.summary(rows).equals(pd.read_csv(out / "summary.csv", index_col="label"))
    for more, message in (
        (["--test", "1-2"], "both trained and tested"),
        (["--test", "2-9"], "not in the tables"),
        (["--test", "2-3", "--set", "udpates=9"], "NAME=VALUE with one of alpha"),
        (["--test", "2-3", "--set", "updates=few"], "not a value like"),
    ):
        with pytest.raises(SystemExit):
            generalization_cli.main([*command, *more])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        generalization_cli.main(["--live", "digits", "--set", "updates=20"])
    assert "--set goes with --tables" in capsys.readouterr().err


def test_each_agent_trains_on_the_environments_the_paper_gives_it(tmp_path, capsys):
    """Broken: without --train, DQN does not get its 30 environments or A2C its first 10."""
    seeds = (*range(10), *range(20, 50))
    tables = save_tables([synthetic_table(3, s) for s in seeds], tmp_path / "t.csv.gz")
    short = ["updates=2", "episodes=2", "anneal_episodes=1", "hidden=8"]
    command = ["--tables", str(tables), "--agent", "dqn", "a2c", "--seeds", "1", "--set", *short]
    generalization_cli.main([*command, "--test", "40-41", "--out", str(tmp_path / "out")])
    trained = json.loads((tmp_path / "out" / "about.json").read_text())["train"]
    assert trained["dqn"].endswith(" 0-9, 20-39") and trained["a2c"].endswith(" 0-9")
    with pytest.raises(SystemExit):
        generalization_cli.main([*command, "--test", "20-21"])
    assert "both trained and tested" in capsys.readouterr().err


def test_the_papers_settings():
    """Broken: an experiment would not be the paper's (Appendix D.1 tables, protocol)."""
    n, args = presets_rl.agent_settings("dqn", "new_dataset", "fashionmnist")
    assert (n, args.buffer_size, args.epsilon_final, args.lr) == (20, 100_000, 0.2, 1e-4)
    n, args = presets_rl.agent_settings("a2c", "new_task_order", "fashionmnist")
    assert (n, args.n_steps, args.entropy_coef, args.updates) == (40, 4, 0.005, 100_000)
    seeds = [s for _, s in presets_rl.training_environments("new_task_order", "mnist", 30)]
    assert seeds == [*range(10), *range(20, 40)]
    pairs = presets_rl.training_environments("new_dataset", "notmnist", 10)
    assert pairs == [(d, s) for d in ("fashionmnist", "mnist") for s in range(5)]
    assert presets_rl.held_out_environments("new_task_order", "mnist")[0] == ("mnist", 10)
    assert presets_rl.held_out_environments("new_dataset", "notmnist")[-1] == ("notmnist", 9)
    assert presets_rl.TAU["heur-ld"]["new_dataset", "notmnist"] == 0.95
    for agent, experiment in (("ppo", "new_dataset"), ("dqn", "new")):
        with pytest.raises(ValueError):
            presets_rl.agent_settings(agent, experiment, "mnist")


def test_thresholds_are_chosen_on_every_training_dataset():
    """Broken: in New Dataset the heuristics would be tuned on one of the two datasets."""
    pairs = [(name, seed) for name in ("a", "b") for seed in range(9)]
    assert generalization.first_of_each(pairs, 4) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert generalization.first_of_each(pairs[:9], 4) == pairs[:4]


def test_training_and_test_environments_never_meet():
    """Broken: policies would be tested on what they were trained on."""
    for experiment, dataset in presets_rl.A2C:
        train = set(presets_rl.training_environments(experiment, dataset, 40))
        assert not train & set(presets_rl.held_out_environments(experiment, dataset))


@pytest.mark.slow
def test_live_trees_of_the_embedded_data(tmp_path):
    """Broken: the quick profile from scratch: trees, thresholds, policies, scores."""
    result = generalization.run_live(
        "new_task_order", "digits", Store(tmp_path / "s"), n_train=2, n_test=2, n_seeds=1
    )
    table = result.summary()
    assert not table["missing"].any() and not table["marked"].any()
    assert table.loc[ORACLE, "acc"] > table.loc[MEAN, "acc"]
