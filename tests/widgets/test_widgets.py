"""The panels without a browser: what they know, what their controls do, and what they draw."""

import base64
import re
import sqlite3
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_environment import small

from rslib import widgets
from rslib.environment import Environment
from rslib.errors import BadValue
from rslib.schedule import Schedule, ScheduleError
from rslib.search import bfs, mcts, random_best, run_policy, surrogate
from rslib.store import Store
from rslib.tree import Node, ScheduleTree
from rslib.widgets import pictures
from rslib.widgets.game import Cancelled, Game, share_out
from rslib.widgets.known import KnownSchedules, SearchTree, StoreIndex, replayed, shares_text
from rslib.widgets.panel import change, percent, step_table

THREE = dict(n_tasks=3)  # 1 + 1 + 3 nodes: a whole tree in a moment
BOUND = 60  # seconds to wait for a training, which takes a tenth of one


def walked(store, rollouts=6, **changes) -> ScheduleTree:
    tree = ScheduleTree(small(**changes), store)
    for policy in ("ets", "none"):
        run_policy(tree, policy)
    mcts(tree, rollouts)
    return tree


# -- sharing out -----------------------------------------------------------------------------------


@given(st.data())
def test_shares_always_sum_to_the_total_and_fit_their_pools(data):
    """The promise of the controls: whatever is moved wherever, they sum to M."""
    k = data.draw(st.integers(1, 6))
    available = data.draw(st.lists(st.integers(0, 12), min_size=k, max_size=k))
    total = data.draw(st.integers(0, sum(available)))
    counts = share_out((0,) * k, 0, 0, available, total)
    for _ in range(3):
        i, value = data.draw(st.integers(0, k - 1)), data.draw(st.integers(-3, 15))
        counts = share_out(counts, i, value, available, total)
        assert sum(counts) == total
        assert all(0 <= n <= a for n, a in zip(counts, available, strict=True))
        room = sum(available) - available[i]
        assert counts[i] == min(max(value, total - room, 0), available[i], total)


@pytest.mark.parametrize(
    "counts, changed, value, after",
    [
        ((5, 5), 0, 8, (8, 2)),
        ((4, 4, 2), 2, 4, (3, 3, 4)),  # the others keep their proportions
        ((10, 0, 0), 0, 4, (4, 3, 3)),  # all zero: they share equally
        ((10,), 0, 3, (10,)),  # one task: nothing to share out
        ((6, 2, 2), 0, 0, (0, 5, 5)),
    ],
)
def test_shares_by_hand(counts, changed, value, after):
    assert share_out(counts, changed, value, [10] * len(counts), 10) == after


# -- what is known ---------------------------------------------------------------------------------


def test_all_complete_schedules_are_known_with_their_ranks():
    tree = walked(Store(), **THREE)
    bfs(tree)
    known = KnownSchedules.of(tree)
    paths = [((10,), c) for c in tree.compositions(2)]
    assert {*paths} < {*known.nodes} and ((0,), (0, 0)) in known.nodes
    rewards = [node.reward for node in known.nodes.values()]
    assert rewards == sorted(rewards, reverse=True)
    accs = {path: tree.walk(path).acc for path in known.nodes}
    for path, node in known.nodes.items():
        assert node.acc == accs[path]
        assert known.rank(node) == 1 + sum(a > accs[path] for a in accs.values())
    assert known.names["ETS"] == Schedule.ets(3, 10).compositions
    assert any(name.startswith("MCTS") for name in known.names)
    assert all(path in known.nodes for _, path in known.choices())


def test_both_searches_are_named():
    """Broken: the best schedule of a surrogate search is in the list without its name."""
    tree = ScheduleTree(small(), Store())
    assert KnownSchedules.of(tree).names == {}
    found = [mcts(tree, 6), surrogate(tree, 4)]
    names = KnownSchedules.of(tree).names
    assert names["MCTS (6 rollouts)"] == found[0].node.path
    assert names["Surrogate (4 rollouts)"] == found[1].node.path


def test_joint_training_has_no_other_name():
    """Broken: the one schedule of joint training is listed as MCTS, ETS and Fine-tuning."""
    tree = ScheduleTree(small(method="joint"), Store())
    run_policy(tree, "none")
    assert list(KnownSchedules.of(tree).names) == ["Joint"]


def test_names_and_images_are_of_the_rows_shown(tmp_path):
    """Broken: after the data or torch changed, a search's name stands on the old page beside a schedule
    that today's rows would make it choose."""
    environment, store = small(**THREE), Store(tmp_path, shipped=None)
    tree = ScheduleTree(environment, store)
    found = bfs(tree)
    old = {text: replace(row, val=1 - row.val) for text, row in tree.rows().items()}
    known = KnownSchedules(environment, old, store, key="another")
    name = next(name for name in known.names if name.startswith("Surrogate"))
    worst = found.schedules[int(np.argmin(found.rewards))].compositions
    assert known.names[name] == worst  # which the old rows call the best
    assert "other data" in known.replayed_images(((10,), (5, 5)), 3)


def test_pictures_of_odd_numbers():
    """Broken: a game that diverges at once ends in matplotlib's words; images of floats are white."""
    nothing = np.full((2, 3), np.nan)
    assert pictures.lowest([Node(small(**THREE), (), nothing, nothing)]) == 0
    ramp = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    shown = pictures.images_as_html(ramp, "a ramp")
    same = pictures.images_as_html((ramp + 3) / 6, "a ramp")
    assert shown == same


def test_schedules_are_written_as_shares():
    """Broken: a schedule reads 10/10,0/7,3,0, which says nothing without M and a key."""
    assert shares_text(((10,), (10, 0), (7, 3, 0))) == "100 | 100:0 | 70:30:0"
    assert shares_text(((0,), (0, 0), (1, 1, 1))) == "none | none | 33:33:33"
    known = KnownSchedules.of(walked(Store(), **THREE))
    for i, (label, path) in enumerate(known.choices()[len(known.names) :], start=1):
        assert label == f"#{i} of {len(known)} by validation: {shares_text(path)}"


def test_half_a_schedule_is_not_ranked():
    tree = ScheduleTree(small(), Store())
    tree.walk(((10,),))
    assert len(KnownSchedules.of(tree)) == 0


def test_a_step_is_two_rows_of_the_accuracy_matrix():
    node = walked(None, **THREE).walk(((10,), (3, 7)))
    for task, samples in ((1, ["new"]), (2, ["10", "new"]), (3, ["3", "7", "new"])):
        before, after = node.test[task - 1, :task], node.test[task, :task]
        cells = re.findall(r"<td[^>]*>(.*?)</td>", step_table(node, task, "caption"))
        assert cells == [
            *("replayed", *samples, "before", *map(percent, before)),
            *("after", *map(percent, after), "change", *map(change, after - before)),
        ]


@pytest.mark.parametrize("selection", ["uniform", "kmeans", "mof"])
def test_replayed_images_are_those_the_learner_was_given(selection, monkeypatch):
    """Broken: the images that are shown are not those that were replayed."""
    from rslib import learner as module

    given_memories, fill = [], module.fill
    monkeypatch.setattr(module, "fill", lambda *a: given_memories.append(fill(*a)) or fill(*a))
    tree = ScheduleTree(small(selection=selection, n_tasks=3), Store())
    path = ((4,), (2, 5))
    tree.walk(path)
    memory = given_memories[-1]
    found = KnownSchedules.of(tree).replayed_images(path, 3)
    assert [task for task, _ in found] == [1, 2]
    for task, images in found:
        assert np.array_equal(images, memory.x[memory.task == task - 1].numpy())


def test_why_there_are_no_images(tmp_path):
    tree = ScheduleTree(small(selection="mof", n_tasks=3), Store())
    tree.walk(((4,), (0, 0)))
    known = KnownSchedules.of(tree)
    assert "nothing" in known.replayed_images(((4,), (0, 0)), 1)
    assert "nothing" in known.replayed_images(((4,), (0, 0)), 3)
    Store().prune()  # the snapshots, and with them what Mean-of-Features chose
    assert "snapshot" in known.replayed_images(((4,), (0, 0)), 2)
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 7), dtype=np.float32), np.arange(80) % 4
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    tree = ScheduleTree(small(str(tmp_path / "mine.npz"), n_tasks=2), Store())
    tree.walk(((4,),))
    known = KnownSchedules.of(tree)
    assert "not images" in known.replayed_images(((4,),), 2)
    (tmp_path / "mine.npz").unlink()
    panel = widgets.inspect_schedule(Store())  # rows without their dataset are still shown
    panel.dataset.value = next(d for d in panel.dataset.options if "mine" in d.lower())
    assert f"{known.nodes[((4,),)].acc:.2%}" in panel.summary.value


@pytest.mark.parametrize(
    "changes",
    [
        dict(scenario="class"),
        dict(n_tasks=3),
        dict(class_order_seed=1),
        dict(memory_size=20),
        dict(samples_per_class=3),
        dict(selection="mof"),
        dict(method="mer"),
        dict(epochs=2),
        dict(hidden=8),
        dict(lr=0.02),
        dict(method_args={"optimizer": "sgd"}),
    ],
)
def test_settings_that_differ_read_differently(changes):
    """Broken: two lines of the list read the same, or differ in a hash only."""
    assert small(**changes).settings != small().settings
    assert small(**changes, seed=2).settings == small(**changes).settings
    for name, value in changes.get("method_args", {}).items():
        assert f"{name}={value}" in small(**changes).settings


def test_settings_by_hand():
    """Broken: the paper's own training is spelt out, another one is not, or the two texts differ."""
    assert Environment("mnist").settings == "task-IL, 5 tasks, M=10, uniform selection, er"
    mine = Environment("mnist", seed=3, selection="kcenter", epochs=2, first_epochs=10)
    assert mine.settings == "task-IL, 5 tasks, M=10, kcenter selection, er, epochs=2"
    assert str(mine) == f"Split MNIST, {mine.settings}, seed 3"


def test_the_index_keeps_environments_apart():
    store = Store()
    for changes in (dict(seed=1), dict(seed=2), dict(seed=1, epochs=2), dict(selection="mof")):
        run_policy(ScheduleTree(small(**THREE | changes), store), "ets")
    index = StoreIndex(store)
    (by_settings,) = index.keys.values()
    assert len(by_settings) == 3  # uniform, uniform with other epochs, mof
    keys = {key for by_seed in by_settings.values() for key in by_seed.values()}
    assert keys == set(store.environments())
    assert all(index.schedules(key).environment.key == key for key in keys)
    assert sum("epochs=2" in settings for settings in by_settings) == 1


def test_rows_of_another_torch_are_one_line_for_all_seeds(monkeypatch):
    """Broken: results of another torch hide those of this one, or take a line per seed."""
    store = Store()
    for seed in (1, 2):
        run_policy(ScheduleTree(small(**THREE, seed=seed), store), "ets")
    monkeypatch.setattr("torch.__version__", "0.0.1")
    for seed in (1, 2):
        run_policy(ScheduleTree(small(**THREE, seed=seed), store), "ets")
    (by_settings,) = StoreIndex(store).keys.values()
    settings = small(**THREE).settings
    assert set(by_settings) == {settings, f"{settings}, other data, protocol or torch"}
    assert all(set(seeds) == {1, 2} for seeds in by_settings.values())


def test_the_first_thing_shown_is_what_most_is_known_of(tmp_path):
    """Broken: after a clone the inspector opens on eight schedules instead of a whole tree."""
    store, results = Store(), tmp_path / "results"
    for seed, policies in ((1, ["ets"]), (2, ["ets", "none"]), (3, ["ets"])):
        for policy in policies:
            run_policy(ScheduleTree(small(**THREE, seed=seed), store), policy)
        store.export(small(**THREE, seed=seed).key, results)
    assert StoreIndex(store).start[-1] == 2
    clone = Store(tmp_path / "clone", shipped=results)
    assert StoreIndex(clone).start[-1] == 2  # nothing of its own: most of what is shipped
    run_policy(ScheduleTree(small(**THREE, seed=9), clone), "ets")
    assert StoreIndex(clone).start[-1] == 9


# -- a search --------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [mcts, surrogate])
def test_a_replayed_search_is_the_search_itself(search):
    """Broken: the panels show another search than the one that was run, or train for it."""
    tree, name = ScheduleTree(small(), Store()), search.__name__
    assert replayed(tree, name) is None
    result = search(tree, 10)
    before = tree.trained
    for rollouts in (10, 4):
        again = replayed(tree, name, rollouts)
        assert again.schedules == result.schedules[:rollouts]
        assert np.array_equal(again.rewards, result.rewards[:rollouts])
    everything = replayed(tree, name)  # a later rollout may be known by chance
    assert everything.schedules[:10] == result.schedules and tree.trained == before


@pytest.mark.parametrize("search", [mcts, surrogate, random_best])
def test_a_node_has_the_best_of_all_rollouts_through_it(search):
    """Broken: rollouts from before a node entered the tree are missing in it, so that the leader's own
    node has the colour of a worse schedule."""
    result = search(ScheduleTree(small()), 14)
    grown = SearchTree(result)
    for i in range(1, 15):
        tried = [(s.compositions, r) for s, r in zip(result.schedules[:i], result.rewards)]
        for node, (n, best) in grown.nodes(i).items():
            through = [reward for path, reward in tried if path[: len(node)] == node]
            assert (n, best) == (len(through), max(through))
        leader = result.schedules[grown.leader(i)].compositions
        for k in range(5):  # from task 1 to task 5
            assert grown.nodes(i)[leader[:k]][1] == max(result.rewards[:i])


def test_which_nodes_are_in_the_tree():
    """Broken: the part of a rollout that MCTS drew at random is shown as chosen, or a schedule that
    the surrogate search chose as drawn."""
    chosen_by_search = []
    result = mcts(
        ScheduleTree(small()),
        14,
        on_rollout=lambda i, leaf, depth: chosen_by_search.append(leaf.path[:depth]),
    )
    grown = SearchTree(result)
    for i in range(1, 15):
        assert grown.chosen(i) == {(), *chosen_by_search[:i]}
        leader = grown.paths[grown.leader(i)]
        assert set(grown.nodes(i)) == grown.chosen(i) | {leader[:k] for k in range(5)}
    result = surrogate(ScheduleTree(small()), 6)
    every = {s.compositions[:k] for s in result.schedules for k in range(5)}
    assert SearchTree(result).chosen(6) == set(SearchTree(result).nodes(6)) == every


def test_only_the_search_moves_in_its_picture():
    """Broken: colours, areas or places mean something else after every rollout, or the leader's path
    ends before the last task."""
    panel = widgets.explore_tree(mcts(ScheduleTree(small()), 14))
    scales, size_of_one, places = set(), set(), {}
    for i in range(1, 15):
        panel.rollout.value = i
        ax, shares = panel.figure.axes[:2]
        (circles,) = ax.collections
        scales.add(circles.get_clim())
        for node, at in zip(panel.search.nodes(i), circles.get_offsets(), strict=True):
            assert places.setdefault(node, tuple(at)) == tuple(at)
        size_of_one |= {
            round(size - 12, 6) / n
            for size, (n, _) in zip(circles.get_sizes(), panel.search.nodes(i).values())
        }
        black = [line.get_ydata() for line in ax.lines if line.get_color() == "black"]
        assert sorted({y for line in black for y in line}) == [-4, -3, -2, -1, 0]
        leader = panel.search.result.schedules[panel.search.leader(i)]
        widths = np.array([bar.get_width() for bar in shares.patches]).reshape(4, 4).T
        assert np.allclose(widths, 100 * leader.proportions())
    rewards = 100 * panel.search.result.rewards
    assert scales == {(rewards.min(), rewards.max())}
    assert max(size_of_one) - min(size_of_one) < 1e-5 and len(set(places.values())) == len(places)


def test_the_slider_has_the_rollouts_that_were_run():
    """Broken: after a cell that ran 4 rollouts the panel shows all that anyone has stored."""
    tree = ScheduleTree(small(), Store())
    mcts(tree, 12)
    assert widgets.explore_tree(mcts(tree, 4)).rollout.max == 4
    assert widgets.explore_tree(tree, rollouts=5).rollout.max == 5
    assert widgets.explore_tree(tree).rollout.max >= 12
    found = surrogate(tree, 3)
    assert widgets.explore_tree(tree, "surrogate", 3).search.result.schedules == found.schedules


def test_exploring_before_any_search():
    for name in ("mcts", "surrogate"):
        panel = widgets.explore_tree(ScheduleTree(small(), Store()), name)
        assert f"rslib.{name}(tree, 20)" in panel.summary.value and panel.rollout.disabled
        assert panel.figure.axes
    with pytest.raises(ValueError, match="mcts, surrogate, got 'bfs'"):
        widgets.explore_tree(ScheduleTree(small(), Store()), "bfs")


# -- the game --------------------------------------------------------------------------------------


def moved(game: Game, *path) -> None:
    game.train().result(BOUND)
    for composition in path:
        game.train(composition).result(BOUND)


def test_a_game_is_a_walk_in_the_tree():
    game = Game(small(), Store())
    moved(game, (10,), (3, 7), (0, 0, 10), (1, 2, 3, 4))
    assert game.over and game.path == ((10,), (3, 7), (0, 0, 10), (1, 2, 3, 4))
    expected = ScheduleTree(small()).walk(game.path)
    assert np.array_equal(game.node.test, expected.test)
    standings = {s.name: s for s in game.standings().result(BOUND)}
    assert standings["You"].node.acc == expected.acc
    assert standings["ETS"].node.acc == run_policy(ScheduleTree(small()), "ets").acc
    assert list(standings) == ["You", "ETS", "MCTS", "Surrogate", "Best known"]
    for label in ("MCTS", "Surrogate"):
        assert standings[label].node is None
        assert f"rslib.{label.lower()}(tree, 20)" in standings[label].note
    best = max(expected.acc, standings["ETS"].node.acc)
    assert standings["Best known"].node.acc == best


def test_a_game_is_scored_against_both_searches():
    """Broken: a search that has been run is not among the opponents."""
    tree = ScheduleTree(small(**THREE), Store())
    found = {"MCTS": mcts(tree, 4), "Surrogate": surrogate(tree, 2)}
    game = Game(small(**THREE), Store())
    moved(game, (10,), (3, 7))
    standings = {s.name: s for s in game.standings().result(BOUND)}
    for label, result in found.items():
        known = replayed(ScheduleTree(small(**THREE), Store()), result.policy)
        assert standings[label].node.path == known.node.path and known.reward >= result.reward
        assert standings[label].note.endswith(f"{len(known.rewards)} rollouts")


def test_moves_are_taken_back_and_known_ones_train_nothing():
    game = Game(small(), Store())
    moved(game, (10,), (3, 7))
    assert game.back() == (3, 7) and game.path == ((10,),) and game.next_task == 3
    assert game.node.test.shape == (3, 5)
    game.train((7, 3)).result(BOUND)
    game.back()
    trained = game._tree.trained
    node = game.train((3, 7)).result(BOUND)
    assert game._tree.trained == trained  # nothing was trained for it
    assert np.array_equal(node.test, ScheduleTree(small()).walk(((10,), (3, 7))).test)
    with pytest.raises(ScheduleError, match="room for 10"):
        game.train((9, 9, 9)).result(BOUND)
    assert game.path == ((10,), (3, 7))


def test_a_cancelled_training_leaves_no_trace_and_can_be_done_again():
    game = Game(small(epochs=500, first_epochs=1), Store())
    moved(game)
    job = game.train((10,))
    end = time.monotonic() + BOUND
    while not job.running() and time.monotonic() < end:
        time.sleep(0.001)
    game.cancel()
    with pytest.raises(Cancelled):
        job.result(BOUND)
    assert game.path == () and "10" not in Store().rows(game.environment.key)
    again = Game(small(epochs=2, first_epochs=1), Store())
    moved(again)
    again.cancel()  # with nothing going on: the next training is not stopped by it
    assert again.train((10,)).result(BOUND).depth == 2


def finish(panel) -> None:
    """Wait until nothing is pending; without a running loop, callbacks come in the game's thread."""
    end = time.monotonic() + BOUND
    while panel.pending is not None and time.monotonic() < end:
        time.sleep(0.005)
    assert panel.pending is None, "still busy"


def test_playing_with_the_controls():
    panel = widgets.play(small(**THREE))
    finish(panel)
    assert panel.composition == (10,) and panel.shares[0].disabled
    panel.train.click()
    finish(panel)
    assert panel.composition == (5, 5)
    panel.shares[0].value = 8
    assert panel.composition == (8, 2)
    panel.shares[1].value = 10
    assert panel.composition == (0, 10)
    panel.equal.click()
    assert panel.composition == (5, 5)
    panel.shares[1].value = 4
    panel.train.click()
    finish(panel)
    node = ScheduleTree(small(**THREE)).walk(((10,), (6, 4)))
    assert f"{node.acc:.2%}" in panel.step.value and f"{node.acc:.2%}" in panel.score.value
    assert eval(panel.copied.value, {"rslib": __import__("rslib")}) == panel.schedule
    assert panel.train.disabled and not panel.back.disabled
    panel.back.click()
    assert panel.composition == (6, 4) and panel.score.value == ""  # ready to be tried otherwise


def test_training_does_not_hold_up_the_page():
    """The click returns while the training goes on, and Cancel is the one thing to press."""
    panel = widgets.play(small(epochs=500, first_epochs=1, **THREE))
    finish(panel)
    panel.train.click()
    assert panel.pending is not None and not panel.cancel.disabled and panel.train.disabled
    panel.cancel.click()
    finish(panel)
    assert "Stopped" in panel.message.value and not panel.train.disabled


# -- inspecting ------------------------------------------------------------------------------------


def test_inspecting_a_tree():
    tree = walked(Store())
    panel = widgets.inspect_schedule(tree)
    known = KnownSchedules.of(tree)
    ets = tree.walk(Schedule.ets(5, 10))
    assert panel.right.label == "ETS" and f"{ets.acc:.2%}" in panel.summary.value
    worst = list(known.nodes)[-1]
    panel.left.value = worst
    node = known.nodes[worst]
    assert f"{node.acc:.2%}" in panel.summary.value
    assert f"{known.rank(node)} of {len(known)}" in panel.summary.value
    panel.task.value = 4
    assert f"{node.test[4, 0]:.2%}" in panel.step.value and "<img" in panel.step.value


def test_lists_and_figures_say_what_they_rank_by():
    """Broken: "#8 of 104" in the list and "2 of 104" in the figure are one schedule, and neither says
    by what."""
    tree = walked(Store())
    panel = widgets.inspect_schedule(tree)
    panel.left.index = len(panel.left.options) - 1
    node, known = (
        panel.nodes[f"A: #{len(panel.known)} of {len(panel.known)} by validation"],
        panel.known,
    )
    n = len(known)
    for figure in (panel.figure, pictures.ranking(known, panel.nodes)):
        labels = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
        assert labels[0] == f"A: {known.rank(node)} of {n} by test, {n} by validation"
    assert "by test" in panel.summary.value and "by validation" in panel.summary.value


def test_the_task_slider_starts_where_two_schedules_differ():
    """Broken: the first thing shown of two schedules is a task at which they are the same run."""
    tree = ScheduleTree(small(), Store())
    equal = Schedule.ets(5, 10).compositions
    late, early = (*equal[:3], (0, 0, 0, 10)), ((10,), (0, 10), *equal[2:])
    for path in (equal, late, early):
        tree.walk(path)
    panel = widgets.inspect_schedule(tree)
    assert panel.right.label == "ETS"
    panel.left.value, panel.task.value = early, 3
    assert "learning task 3" in panel.step.value
    panel.left.value = late  # the same until task 5
    assert panel.task.value == 5 and "learning task 5" in panel.step.value
    panel.left.value = early
    assert panel.task.value == 5  # a reader's task stays where the two can differ
    panel.task.value = 2
    assert "learning task 2" in panel.step.value  # and may go where they cannot
    for first, task in ((early, 3), (late, 5)):
        apart = ScheduleTree(small(seed=task), Store())
        run_policy(apart, "ets")
        apart.walk(first)
        panel = widgets.inspect_schedule(apart)
        panel.left.value = first
        assert panel.task.value == task


def test_words_are_explained_where_they_stand():
    """Broken: a reader meets ACC, BWT, a rollout or 100 | 70:30 and finds no word about it."""
    tree = walked(Store(), rollouts=2, **THREE)
    inspector, explorer = widgets.inspect_schedule(tree), widgets.explore_tree(tree)
    words = {
        inspector: ("ACC is", "BWT is", "ETS gives", "100 | 70:30 is", "M is", "a search sees"),
        explorer: ("A rollout is", "100 | 70:30 is", "A circle is", "ACC is"),
    }
    for panel, explained in words.items():
        shown = " ".join(w.value for w in controls(panel) if type(w).__name__ == "HTML")
        assert all(each in shown for each in explained)


def test_changing_the_seed_changes_everything_below_it():
    store = Store()
    trees = [walked(store, rollouts=2, seed=s) for s in (1, 2)]
    panel = widgets.inspect_schedule(store)
    for tree in trees:
        panel.seed.value = tree.environment.seed
        assert panel.known.environment == tree.environment
        assert f"{run_policy(tree, 'ets').acc:.2%}" in panel.summary.value


def test_inspecting_a_result_that_is_in_no_store():
    result = run_policy(
        ScheduleTree(small()), Schedule([(10,), (0, 10), (0, 0, 10), (0, 0, 0, 10)])
    )
    panel = widgets.inspect_schedule(result)
    assert panel.left.label == "Fixed" and f"{result.acc:.2%}" in panel.summary.value
    assert "ETS not run" in panel.summary.value


def test_an_empty_store_says_what_to_do():
    panel = widgets.inspect_schedule()
    assert "empty" in panel.summary.value
    assert panel.figure.axes


def test_a_tree_that_has_not_been_walked_says_so():
    """Broken: another environment of the same store is shown instead of the tree's."""
    store = Store()
    run_policy(ScheduleTree(small(seed=2), store), "ets")
    panel = widgets.inspect_schedule(ScheduleTree(small(), store))
    assert panel.seed.value == 1 and "No schedule" in panel.summary.value
    panel.seed.value = 2
    assert "ETS" in panel.summary.value


def test_refreshing_shows_what_was_evaluated_since():
    """Broken: the list stays as it was, or another environment is shown after Refresh."""
    store = Store()
    panel = widgets.inspect_schedule(store)
    run_policy(ScheduleTree(small(), store), "ets")
    panel.refresh.click()
    assert panel.seed.value == 1 and panel.left.label == "ETS"
    for seed in (1, 2):
        for policy in ("ets", "none", "random"):
            run_policy(ScheduleTree(small(seed=seed), store), policy)
    panel.refresh.click()
    assert list(panel.seed.options) == [1, 2] and panel.seed.value == 1
    assert len(panel.known) == 3


def test_a_store_that_was_emptied_or_damaged_can_still_be_inspected():
    """Broken: Refresh after `rslib store forget`, or one damaged row in the middle of the tree, ends
    in an IndexError or a KeyError."""
    store = Store()
    tree = ScheduleTree(small(), store)
    run_policy(tree, "ets")
    run_policy(tree, "none")
    panel = widgets.inspect_schedule(store)
    with sqlite3.connect(store.file) as db:
        db.execute("UPDATE rows SET val = zeroblob(24) WHERE path = '10'")  # below it stands ETS
    with pytest.warns(UserWarning, match="damaged|changed|differs"):
        panel.refresh.click()
        assert len(panel.known) == 1
    store.forget(small().key)
    panel.refresh.click()
    assert panel.dataset.options == () and len(panel.known) == 0


def test_a_result_without_a_store_stands_at_its_rank():
    """Broken: the best schedule of all is listed as "#4 of 4 by validation"."""
    store, apart = Store(), ScheduleTree(small(**THREE))  # apart keeps nothing
    nodes = bfs(apart)
    best, *others = sorted(zip(-nodes.rewards, nodes.schedules, strict=True), key=lambda x: x[0])
    for _, schedule in others:
        run_policy(ScheduleTree(small(**THREE), store), schedule)
    panel = widgets.inspect_schedule(run_policy(apart, best[1]))
    ranked = [path for label, path in panel.left.options if label.startswith("#1 of 3")]
    assert ranked == [best[1].compositions]


def test_wrong_arguments_are_named():
    for function in (widgets.inspect_schedule, widgets.explore_tree, widgets.play):
        with pytest.raises(BadValue, match="17"):
            function(17)
    with pytest.raises(BadValue, match="joint"):
        widgets.play(small(method="joint"))


# -- all of them -----------------------------------------------------------------------------------


@pytest.fixture(params=["inspect", "play", "explore"])
def panel(request):
    tree = walked(Store(), rollouts=2)
    made = {
        "inspect": widgets.inspect_schedule,
        "play": widgets.play,
        "explore": widgets.explore_tree,
    }[request.param](tree)
    if request.param == "play":
        finish(made)
    return made


def test_the_figure_stands_beside_the_widget(panel):
    """GitHub's preview and the offline report show the picture; JupyterLab takes the widget."""
    bundle = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")


def controls(widget):
    for child in getattr(widget, "children", ()):
        yield child
        yield from controls(child)


def test_every_control_has_a_label_and_every_picture_words(panel):
    for widget in controls(panel):
        if hasattr(widget, "description") and type(widget).__name__ != "HTML":
            assert widget.description
        if getattr(widget, "continuous_update", None) is not None and "Slider" in str(type(widget)):
            assert widget.continuous_update is False
        if type(widget).__name__ == "HTML" and "<img" in widget.value:
            assert 'alt=""' not in widget.value


def test_twenty_tasks_are_drawn():
    rng = np.random.default_rng(0)
    path = tuple(tuple(int(n) for n in rng.multinomial(40, np.ones(k) / k)) for k in range(1, 20))
    many = replace(small(), n_tasks=20, memory_size=40)
    node = Node(many, path, rng.random((21, 20)), rng.random((21, 20)))
    figure = pictures.run("A", node, task=7)
    bubbles = figure.axes[1].collections[0]
    assert len(bubbles.get_offsets()) == sum(n > 0 for c in path for n in c)
