"""Environment tables: the layout, the node arithmetic, and that damage is found and named."""

import gzip
import itertools
from dataclasses import replace

import numpy as np
import pytest
from small_environment import small
from synthetic import synthetic_table

from rslib import complete_tree, schedule
from rslib.complete_tree import (
    TableError,
    complete,
    load_tables,
    nearest_action,
    save_tables,
    stack,
    tree_shape,
)
from rslib.errors import BadValue
from rslib.runs.generalization import train_trees
from rslib.tree import NotTrained, ScheduleTree


class FakeTree:
    """A schedule tree whose trainings are a table's rows; counts what it had to train."""

    def __init__(self, table, known=None):
        self.environment, self.n_tasks = table, table.n_tasks
        self.known = set() if known is None else known  # the "store"
        self.trained = 0

    def budget(self, k):
        return self.environment.memory_size

    def available(self, k):
        return [self.environment.memory_size] * k

    def counts(self, proportions, k):
        return schedule.counts(list(proportions), self.budget(k), self.available(k))

    def walk(self, path=()):
        path = tuple(path)
        for i in range(len(path) + 1):
            self.trained += path[:i] not in self.known
            self.known.add(path[:i])
        return self.environment.walk(path)


def every_path(n_tasks):
    """Breadth-first, written the slow way."""
    for k in range(1, n_tasks + 1):
        yield from itertools.product(*(range(schedule.n_actions(s)) for s in range(1, k)))


@pytest.mark.parametrize("n_tasks", [2, 3, 4, 5])
def test_rows_are_breadth_first_and_children_follow_their_parents(n_tasks):
    """Broken: an agent would land in another schedule's row."""
    shape, paths = tree_shape(n_tasks), list(every_path(n_tasks))
    assert [shape.path(row) for row in range(len(paths))] == paths
    assert shape.first[-1] == len(paths)
    row_of = {path: row for row, path in enumerate(paths)}
    for row in range(shape.n_inner):
        n = schedule.n_actions(len(paths[row]) + 1)
        for action, child in enumerate(shape.child[row]):
            assert child == (row_of[(*paths[row], action)] if action < n else -1)


def test_five_tasks_are_the_released_layout():
    """Broken: our tables could not hold the authors' (1 + 1 + 3 + 30 + 1,050 rows)."""
    assert np.bincount(tree_shape(5).depth).tolist() == [0, 1, 1, 3, 30, 1050]


def test_too_many_tasks_are_refused_not_enumerated():
    """Broken: seven tasks would fill the memory before anyone could stop it."""
    with pytest.raises(ValueError, match="live tree"):
        tree_shape(7)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_action_shares_is_the_protocol_order(k):
    """Broken: action indices would mean other proportions than in the released tables."""
    slow = itertools.combinations_with_replacement(range(k), k)
    for action, multiset in enumerate(slow):
        assert schedule.action_shares(k, action) == [multiset.count(task) for task in range(k)]
    with pytest.raises(ValueError):
        schedule.action_shares(k, schedule.n_actions(k))


def test_action_shares_needs_no_list():
    """Broken: one step with 19 tasks seen would list 17.7 billion actions."""
    last = schedule.n_actions(19) - 1
    assert schedule.action_shares(19, last) == [0] * 18 + [19]
    assert schedule.action_shares(19, 1) == [18, 1] + [0] * 17


def test_nearest_action_by_hand():
    """Broken: a heuristic on a table would be scored with another action than it asked for.

    With 2 tasks seen and M = 10 the actions are (10, 0), (5, 5), (0, 10): from (3, 7) they are
    14, 4 and 6 away. (8, 2) is 4 and 6 away; from (7, 3) both are 6 and 4; a tie goes to the lower.
    """
    assert nearest_action((3, 7), 10) == (1, False)
    assert nearest_action((8, 2), 10) == (0, False)
    assert nearest_action((5, 5), 10) == (1, True)
    assert nearest_action((3, 3, 4), 10)[1] is False  # ETS' thirds are (4, 3, 3)
    assert nearest_action((0, 1), 2)[0] == 1  # (1, 1) and (0, 2) are both 1 away


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("n_tasks", [2, 3, 4])
def test_round_trip(tmp_path, n_tasks, suffix):
    """Broken: a saved table would not be the table."""
    tables = [synthetic_table(n_tasks, seed) for seed in (3, 0, 11)]
    path = save_tables(tables, tmp_path / f"t{suffix}")
    back = load_tables(path)
    assert [t.seed for t in back] == [0, 3, 11] and back[0].memory_size == 10
    for table in tables:
        twin = next(t for t in back if t.seed == table.seed)
        assert np.array_equal(twin.val, table.val) and np.array_equal(twin.test, table.test)
    assert save_tables(back, tmp_path / f"again{suffix}").read_bytes() == path.read_bytes()


def test_a_file_says_its_memory_size(tmp_path):
    """Broken: trees of M = 50, as `make environments` builds for permuteddigits, are read as M = 10;
    or the authors' files, which do not say M, can no longer be read."""
    path = save_tables([replace(synthetic_table(3), memory_size=50)], tmp_path / "t.csv")
    text = path.read_text()
    assert load_tables(path)[0].memory_size == load_tables(path, 7)[0].memory_size == 50
    path.write_text(text.replace("memory_size 50", "memory_size 51"))
    with pytest.raises(TableError, match="not what was written"):
        load_tables(path)
    path.write_text(text[: text.index("# memory_size")])
    assert [load_tables(path, *M)[0].memory_size for M in ((), (7,))] == [10, 7]
    empty = save_tables([replace(synthetic_table(3), memory_size=0)], tmp_path / "empty.csv")
    assert load_tables(empty)[0].memory_size == 0


def test_a_dataset_may_be_a_path_with_commas(tmp_path):
    """Broken: the tree of a user's file is written and cannot be read again."""
    name = '/data/one, "two"/mine.npz'
    path = save_tables([replace(synthetic_table(3), dataset=name)], tmp_path / "t.csv")
    assert load_tables(path)[0].dataset == name


@pytest.mark.parametrize("changes", [dict(scenario="class"), dict(memory_size=2000)])
def test_a_tree_that_replays_otherwise_than_its_table_would_say_is_refused(changes):
    """Broken: in Class-IL, or where pools are small, a table names compositions that nobody trained."""
    with pytest.raises(BadValue, match="needs the whole memory and pools"):
        complete(ScheduleTree(small(n_tasks=3, **changes)))


def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Broken: 7 MB of a .csv.gz that somebody sent take 9 GB."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"0" * 100_000))
    monkeypatch.setattr(complete_tree, "HARMLESS_BYTES", 10_000)
    with pytest.raises(TableError, match="unpacks to more than the 10000 bytes allowed"):
        load_tables(path)
    save_tables([synthetic_table(5)], path)  # grows to more than that, but not twentyfold
    assert len(gzip.decompress(path.read_bytes())) > 10_000 and load_tables(path)


def test_rows_may_come_in_any_order(tmp_path):
    """Broken: a table sorted by a spreadsheet would be read as another one."""
    path = save_tables([synthetic_table(3, 0), synthetic_table(3, 1)], tmp_path / "t.csv")
    header, *lines, _ = path.read_text().splitlines()  # without our digest
    path.write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert np.array_equal(load_tables(path)[1].val, synthetic_table(3, 1).val)


def test_saving_refuses_what_cannot_be_read_back(tmp_path):
    """Broken: one file could hold two sizes, or one environment twice."""
    other_size = replace(synthetic_table(3, 1), memory_size=7)
    mixed = [[synthetic_table(3), other] for other in (synthetic_table(4), other_size)]
    for tables in ([], *mixed, [synthetic_table(3)] * 2):
        with pytest.raises(ValueError):
            save_tables(tables, tmp_path / "t.csv")


def damaged(tmp_path, edit):
    path = save_tables([synthetic_table(3, 0), synthetic_table(3, 8)], tmp_path / "t.csv")
    # Line 1 header, 2-6 environment 0, 7-11 environment 8; without our digest, as the authors' files.
    *lines, digest = path.read_text().splitlines()
    assert digest.startswith("# sha256 ")
    edit(lines)
    path.write_text("\n".join(lines) + "\n")
    return path


def cell(line, column, value):
    def edit(lines):
        cells = lines[line - 1].split(",")
        cells[lines[0].split(",").index(column)] = value
        lines[line - 1] = ",".join(cells)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (cell(9, "val_acc_1", "1.000001"), "line 9: val_acc_1 is .* outside"),
        (cell(4, "test_acc_2", "-0.1"), "line 4: test_acc_2 is -0.1, outside"),
        (cell(3, "val_acc_2", "nan"), "line 3: val_acc_2 is 'nan'"),
        (cell(3, "val_acc_2", "inf"), "line 3: val_acc_2 is 'inf'"),
        (cell(3, "val_acc_2", "0,9"), "line 3: 12 cells instead of 11"),
        (cell(3, "val_acc_2", "high"), "line 3: val_acc_2 is 'high'"),
        (cell(3, "val_acc_2", ""), "line 3: val_acc_2 is ''"),
        (cell(3, "val_acc_3", "0.5"), "line 3: val_acc_3 is 0.5 before that task is learned"),
        (cell(2, "test_acc_2", "0.5"), "line 2: test_acc_2 is 0.5 before"),
        (cell(3, "k", "9"), "line 3: k is 9, not 1..3"),
        (cell(3, "k", "1.5"), "line 3: k is 1.5"),
        (cell(10, "a2", "3"), "line 10: a2 is 3 at k=3; it must be 0..2"),
        (cell(10, "a2", "0.5"), "line 10: a2 is 0.5"),
        (cell(2, "a1", "0"), "line 2: a1 is 0 at k=1"),
        (cell(6, "a2", "-1"), "line 6: a2 is -1 at k=3"),
        (cell(5, "env_seed", "-2"), "line 5: env_seed is -2"),
        (lambda lines: lines.pop(9), r"environment 8: the row k=3, actions \(0, 1\) is missing$"),
        (lambda lines: lines.pop(1), r"environment 0: the row k=1, actions \(\) is missing"),
        (lambda lines: lines.__delitem__(slice(7, 11)), r"environment 8: .* \(and 3 more\)"),
        (lambda lines: lines.append(lines[3]), "environment 0: line 12 is the same node as line 4"),
        (lambda lines: lines.insert(4, ""), "line 5: 0 cells"),
        (lambda lines: lines.__delitem__(slice(1, None)), "line 2: no rows"),
        (cell(1, "val_acc_1", "val_acc_9"), "line 1: the columns"),
        (lambda lines: lines.__setitem__(10, lines[10][:30]), "line 11: . cells instead of 11"),
    ],
)
def test_damage_is_refused_with_the_row_named(tmp_path, edit, message):
    """Broken: an agent would learn from a damaged table, or nobody could find the damage."""
    with pytest.raises(TableError, match=message):
        load_tables(damaged(tmp_path, edit))


def test_an_accuracy_that_was_changed_is_refused_though_it_is_possible(tmp_path):
    """Broken: one digit of a table of ours changes, and agents learn from another environment."""
    path = save_tables([synthetic_table(3)], tmp_path / "t.csv")
    text = path.read_text()
    last = text.rindex("\n# sha256") - 1
    path.write_text(text[:last] + str((int(text[last]) + 1) % 10) + text[last + 1 :])
    with pytest.raises(TableError, match=r"t\.csv is not what was written"):
        load_tables(path)
    path.write_text(text[: last + 2])  # the authors' files have no digest
    assert np.array_equal(load_tables(path)[0].test, synthetic_table(3).test)


def test_files_that_are_no_tables(tmp_path):
    """Broken: a torn download would end in a stack trace instead of a sentence."""
    path = save_tables([synthetic_table(4)], tmp_path / "t.csv.gz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TableError, match="cannot be read to its end"):
        load_tables(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(TableError):
        load_tables(path)
    empty = tmp_path / "empty.csv"
    empty.touch()
    with pytest.raises(TableError, match="line 1"):
        load_tables(empty)
    with pytest.raises(TableError, match="no environment table at"):
        load_tables(tmp_path / "nothing.csv")


def test_walk_gives_the_rows_of_the_path():
    """Broken: matrices, ACC and BWT of a table's schedule would be another schedule's."""
    table, shape = synthetic_table(4, 5), tree_shape(4)
    node = table.walk([(10,), (0, 10), (4, 3, 3)])
    actions = (0, 2, 4)  # thirds of each of three tasks come after 000, 001, 002, 011
    rows = [0]
    for action in actions:
        rows.append(shape.child[rows[-1], action])
    assert shape.path(rows[-1]) == actions and node.depth == 4
    for t, row in enumerate(rows, start=1):
        assert np.array_equal(node.val[t, :t], table.val[row, :t])
        assert np.isnan(node.val[t, t:]).all() and np.isnan(node.test[t, t:]).all()
    final, test = table.test[rows[-1]], table.test
    assert node.acc == pytest.approx(final.mean())
    forgot = [final[0] - test[rows[0], 0], final[1] - test[rows[1], 1], final[2] - test[rows[2], 2]]
    assert node.bwt == pytest.approx(np.mean(forgot))
    assert node.reward == pytest.approx(table.val[rows[-1]].mean())
    assert node.schedule.compositions == ((10,), (0, 10), (4, 3, 3))
    with pytest.raises(NotTrained):
        table.walk([(10,), (3, 7)])


def test_stack_is_states_and_rewards():
    """Broken: agents would see another state, or be paid for tasks they have not learned."""
    tables = [synthetic_table(4, 1), synthetic_table(4, 2)]
    arrays = stack(tables)
    assert arrays.state.shape == (2, 5, 3) and arrays.reward.shape == (2, 35)
    for e, table in enumerate(tables):
        for row, depth in enumerate(tree_shape(4).depth):
            assert arrays.reward[e, row] == pytest.approx(table.val[row, :depth].mean())
        assert np.array_equal(arrays.state[e], table.val[:5, :3].astype(np.float32))
    with pytest.raises(ValueError, match="one number of tasks"):
        stack([synthetic_table(3), synthetic_table(4)])


def test_a_tree_becomes_its_table_and_each_node_is_trained_once():
    """Broken: `make environments` would write wrong rows, or train more than 35 of 4 tasks."""
    table = synthetic_table(4, 5)
    tree = FakeTree(table)
    built = complete(tree)
    assert np.array_equal(built.val, table.val) and np.array_equal(built.test, table.test)
    assert tree.trained == 35


def test_not_converged_is_said_not_written():
    """Broken: NaN would be written, and every agent trained on the table would be NaN."""
    table = synthetic_table(3)
    table.val[3, 1] = np.nan
    with pytest.raises(TableError, match="did not converge"):
        complete(FakeTree(table))


@pytest.mark.slow
def test_processes_build_the_same(tmp_path):
    """Broken: parallel building would give other tables than building in turn."""
    from rslib import Store

    places = [("permuteddigits", seed) for seed in (0, 1)]
    both = [train_trees(places, Store(tmp_path / str(n)), 3, n).complete for n in (1, 2)]
    for place in places:
        one, two = (trees[place] for trees in both)
        assert np.array_equal(one.val, two.val) and np.array_equal(one.test, two.test)


def test_a_search_runs_on_a_complete_tree():
    """Broken: what a search would have found on the authors' trees cannot be measured."""
    from rslib.search import bfs, mcts

    tree = synthetic_table(4, 3)
    found = bfs(tree)
    assert len(found.rewards) == 30 and found.reward == pytest.approx(tree.final("val").max())
    assert found.node.path == tree.leaf(int(tree.final("val").argmax())).path
    assert mcts(tree, 300).reward == pytest.approx(found.reward)


def test_gz_and_plain_hold_the_same(tmp_path):
    """Broken: packing would change the table."""
    plain = save_tables([synthetic_table(3)], tmp_path / "t.csv")
    packed = save_tables([synthetic_table(3)], tmp_path / "t.csv.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
