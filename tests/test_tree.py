"""The schedule tree: a cached walk equals a fresh one bit for bit, and nothing is trained twice."""

import io
import itertools
import random

import numpy as np
import pytest
import torch
from small_environment import small
from tree_workers import bits, counted_search, outcome, start, walk

from rslib import tree as tree_module
from rslib.environment import Environment
from rslib.schedule import UNTRAINED, Schedule, ScheduleError, path_text
from rslib.search import bfs, mcts
from rslib.store import Store
from rslib.tree import NotTrained, ScheduleTree

KINDS = {
    "uniform": small(),
    "kmeans": small(selection="kmeans"),
    "kcenter": small(selection="kcenter"),
    "mof": small(selection="mof"),
    "class": small(scenario="class", memory_size=14),
    "domain": small(scenario="domain", selection="mof"),
    "large memory": small(memory_size=40, batch_size=16),
    "tiny memory": small(samples_per_class=1, memory_size=6),
    "batch norm": small(network="convnet"),
    "permuted": small("permuteddigits", scenario="domain", batch_size=256),
}


def some_paths(environment: Environment) -> list[tuple]:
    """Schedules that share prefixes, and an inner node."""
    tree = ScheduleTree(environment)
    a, b, c = ([1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 2])

    def path_of(*shares) -> tuple:
        return tuple(tree.counts(share[:k], k) for k, share in enumerate(shares, start=1))

    return [
        path_of(a, a, b, b),
        path_of(a, a, b, c),
        path_of(a, b, c, a),
        path_of(b, b, b, a),
        path_of(a, b),
    ]


def fresh(environment: Environment, paths) -> dict:
    """Every path in a tree of its own: what all else is compared with."""
    return {path: bits(ScheduleTree(environment).walk(path)) for path in paths}


@pytest.fixture(scope="module", params=KINDS)
def reference(request):
    environment = KINDS[request.param]
    paths = some_paths(environment)
    if environment.network == "convnet":
        paths = paths[1:3]  # as slow as all others together
    return environment, paths, fresh(environment, paths)


# -- exact -----------------------------------------------------------------------------------------


def test_cached_walks_equal_fresh_ones_in_any_order_and_any_room(reference, tmp_path):
    """The claim the whole project stands on: with snapshots in memory, on disk, or hardly any."""
    environment, paths, expected = reference
    shuffled = random.Random(0).sample(paths, len(paths))
    store = Store(tmp_path, shipped=None)
    for order, make in (
        (paths, lambda: ScheduleTree(environment)),
        (shuffled[::-1], lambda: ScheduleTree(environment, ram_limit=1)),
        (shuffled, lambda: ScheduleTree(environment, store, ram_limit=1)),
        (paths[::-1], lambda: ScheduleTree(environment, store)),
    ):
        tree = make()
        assert {path: bits(tree.walk(path)) for path in order} == {p: expected[p] for p in order}
    assert tree.trained == 0  # the last one found it all in the store


@pytest.mark.parametrize("harm", ["deleted", "flipped", "cut", "empty", "rubbish"])
def test_missing_and_damaged_snapshots_are_trained_again(harm, tmp_path):
    """One changed bit in a snapshot must not become a result."""
    environment = KINDS["mof"]
    paths = some_paths(environment)
    expected = fresh(environment, paths)
    store = Store(tmp_path, shipped=None)
    ScheduleTree(environment, store).walk(paths[0])
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 4
    draws = random.Random(0)
    for file in files:
        content = bytearray(file.read_bytes())
        if harm == "deleted":
            file.unlink()
        elif harm == "flipped":  # one bit of one weight
            state = torch.load(io.BytesIO(content.partition(b"\n")[2]))
            place = content.find(state["net"]["output.weight"].numpy().tobytes())
            assert place > 0
            content[place + draws.randrange(16)] ^= 1 << draws.randrange(8)
            file.write_bytes(content)
        else:
            cut = content[: len(content) // 2]
            file.write_bytes({"cut": cut, "empty": b"", "rubbish": b"snapshot" * 100}[harm])
    tree = ScheduleTree(environment, Store(tmp_path, shipped=None))
    assert {path: bits(tree.walk(path)) for path in paths} == expected
    assert tree.trained > 0 and store.check() == []


def test_in_another_process(tmp_path):
    """Nothing may depend on this process: order of visits, hashes, generators."""
    environment = KINDS["mof"]
    paths = some_paths(environment)
    expected = fresh(environment, paths)
    ScheduleTree(environment, Store(tmp_path, shipped=None)).walk(paths[1])
    alone, _ = outcome(*start(walk, environment.spec(), None, paths, 1))
    shared, trained = outcome(*start(walk, environment.spec(), str(tmp_path), paths, 2))
    assert alone == expected and shared == expected
    nodes = {path[:i] for path in paths for i in range(5) if i <= len(path)}
    assert trained == len(nodes) - 5


def test_two_processes_on_one_store_lose_nothing(tmp_path):
    environment = small()
    tree = ScheduleTree(environment)
    levels = [tree.compositions(k) for k in (1, 2, 3)]
    paths = [(*path, (3, 3, 2, 2)) for path in itertools.product(*levels)]
    both = [start(walk, environment.spec(), str(tmp_path), paths, seed) for seed in (1, 2)]
    for _, pipe in both:
        assert pipe.poll(120) and pipe.recv() == "ready"  # at the same time from here on
    (one, n_one), (two, n_two) = (outcome(*process) for process in both)
    assert one == two and len(one) == 30
    store = Store(tmp_path, shipped=None)
    after = ScheduleTree(environment, store)
    assert {path: bits(after.walk(path)) for path in paths} == one
    assert after.trained == 0 and store.check() == []
    assert len(store.rows(environment.key)) == 1 + 1 + 1 + 3 + 30 + 30
    assert n_one + n_two >= 65  # what both trained at once was trained twice, never lost
    assert bits(ScheduleTree(environment).walk(paths[7])) == one[paths[7]]


def test_environments_in_one_store_do_not_mix(tmp_path):
    """Rows are filed by a hash of everything that matters."""
    store = Store(tmp_path, shipped=None)
    kinds = [small(), small(seed=2), small(lr=0.02), small(selection="mof"), small(memory_size=12)]
    path = ((10,), (5, 5))
    for environment in kinds:
        ScheduleTree(environment, store).walk(path)
    assert len({environment.key for environment in kinds}) == len(kinds)
    for environment in kinds:
        tree = ScheduleTree(environment, store)
        assert bits(tree.walk(path)) == fresh(environment, [path])[path] and tree.trained == 0


# -- killed ----------------------------------------------------------------------------------------

ROLLOUTS = 25


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A whole search: what it found, how many calls it took and how many trainings."""
    folder = str(tmp_path_factory.mktemp("whole"))
    return outcome(*start(counted_search, small().spec(), folder, ROLLOUTS, None))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_search_killed_twelve_times_between_any_two_calls(uninterrupted, tmp_path, seed):
    """kill -9 between any two calls: steps, writes, renames, statements. No clock involved."""
    expected, calls, trainings = uninterrupted
    draws = random.Random(seed)
    for _ in range(12):  # together at most 80 % of the search, so that each is hit in the middle
        last = draws.randrange(1, calls * 8 // 120)
        process, pipe = start(counted_search, small().spec(), str(tmp_path), ROLLOUTS, last)
        process.join(60)
        pipe.close()
        assert process.exitcode == -9
        assert Store(tmp_path, shipped=None).check() == []
    found, _, trained = outcome(
        *start(counted_search, small().spec(), str(tmp_path), ROLLOUTS, None)
    )
    assert found == expected == bits(mcts(ScheduleTree(small()), ROLLOUTS))
    assert 0 < trained < trainings  # it went on from where the killed ones had got to


def test_a_stop_between_snapshot_and_row_harms_nothing(tmp_path, monkeypatch):
    """The order of writes is snapshot, then row; whichever is missing, the walk is the same."""
    environment, path = small(), ((10,), (5, 5), (4, 3, 3), (3, 3, 2, 2))
    expected = fresh(environment, [path])[path]
    put = Store.put
    for depth in range(5):
        store = Store(tmp_path / str(depth), shipped=None)

        def stopped(self, key, spec, text, row, depth=depth):
            if text == path_text(path[:depth]):
                raise KeyboardInterrupt
            put(self, key, spec, text, row)

        monkeypatch.setattr(Store, "put", stopped)
        with pytest.raises(KeyboardInterrupt):
            ScheduleTree(environment, store).walk(path)
        monkeypatch.setattr(Store, "put", put)
        assert len(store.rows(environment.key)) == depth + 1  # the untrained network's too
        again = ScheduleTree(environment, store)
        assert bits(again.walk(path)) == expected
        assert again.trained == 5 - depth and store.check() == []


def test_interrupted_in_the_middle_of_training_or_restoring(monkeypatch):
    """Ctrl-C in a notebook, then the same tree again: it must not stand on half a network."""
    environment = small()
    paths = [((10,), (5, 5), (4, 3, 3)), ((10,), (10, 0), (0, 5, 5)), ((10,), (5, 5), (0, 0, 10))]
    expected = fresh(environment, paths)
    tree = ScheduleTree(environment)
    tree.walk(paths[0][:2])
    learner = tree._learner
    assert learner is not None
    restore, step = learner.restore, learner.method.step

    def half(state):
        restore(state)
        with torch.no_grad():
            next(learner.net.parameters()).zero_()
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "restore", half)
    with pytest.raises(KeyboardInterrupt):
        tree.walk(paths[1])  # leaves the node the learner stands at
    monkeypatch.setattr(learner, "restore", restore)
    assert bits(tree.walk(paths[0])) == expected[paths[0]]
    steps = iter(range(100))

    def third(learner, batch):
        if next(steps) == 2:
            raise KeyboardInterrupt
        return step(learner, batch)

    monkeypatch.setattr(learner.method, "step", third)
    with pytest.raises(KeyboardInterrupt):
        tree.walk(paths[1])
    monkeypatch.setattr(learner.method, "step", step)
    assert {path: bits(tree.walk(path)) for path in paths} == expected


# -- no training twice -----------------------------------------------------------------------------


class Stub:
    """A learner that learns nothing but writes down what it was asked to."""

    asked: list[tuple]

    def __init__(self, environment):
        self.n_tasks = environment.n_tasks
        self.reset()

    def reset(self):
        self.path: list[list[int]] = []

    @property
    def n_learned(self) -> int:
        return len(self.path)

    def learn(self, counts):
        self.path = [*self.path, list(counts)]
        self.asked.append(tuple(map(tuple, self.path)))

    def accuracies(self):
        draws = np.random.RandomState(hash(str(self.path)) % 2**32)
        test = draws.rand(self.n_tasks)
        return np.where(np.arange(self.n_tasks) < self.n_learned, test, np.nan), test

    def snapshot(self):
        return {"path": self.path}

    def restore(self, state):
        self.path = state["path"]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(tree_module, "Learner", Stub)
    Stub.asked = []
    return Stub


@pytest.mark.parametrize("memory_size, trainings, leaves", [(10, 1085, 1050), (2, 203, 180)])
def test_bfs_trains_every_node_exactly_once(stub, tmp_path, memory_size, trainings, leaves):
    """1 + 1 + 3 + 30 + 1,050 nodes; with M = 2 many actions are the same composition."""
    environment, store = small(memory_size=memory_size), Store(tmp_path, shipped=None)
    tree = ScheduleTree(environment, store, ram_limit=0)
    result = bfs(tree)
    assert tree.trained == trainings == len(stub.asked) == len(set(stub.asked)) == result.trained
    assert len(result.rewards) == leaves == len(set(result.schedules))
    assert len(store.rows(environment.key)) == trainings + 1
    again = bfs(tree)
    elsewhere = ScheduleTree(environment, Store(tmp_path, shipped=None))
    assert bits(bfs(elsewhere)) == bits(result) == bits(again)
    assert (tree.trained, again.trained, elsewhere.trained) == (trainings, 0, 0)
    assert len(stub.asked) == trainings


def test_leaves_are_never_stored_and_snapshots_in_memory_are_bounded(tmp_path):
    """35 inner nodes of 1,085: storing the leaves would take 30 times the room."""
    environment, store = small(), Store(tmp_path, shipped=None)
    size = tree_module.nbytes(ScheduleTree(environment)._learner_above((), 1).snapshot())
    tree = ScheduleTree(environment, store, ram_limit=10 * size)
    mcts(tree, 12)
    inner = {s for s in store.rows(environment.key) if s != UNTRAINED and s.count("/") < 3}
    kept = {path for (path,) in store._db.execute("SELECT path FROM snapshots")}
    assert kept == inner and len(inner) > 10
    assert 0 < tree._snapshots.size <= 10 * size
    assert tree._snapshots.size == sum(n for _, n in tree._snapshots._states.values())


def test_second_run_trains_nothing(tmp_path):
    """Running all again is a no-op, for whatever walks the tree."""
    environment = small(selection="mof")
    first = mcts(ScheduleTree(environment, Store(tmp_path, shipped=None)), 10)
    tree = ScheduleTree(environment, Store(tmp_path, shipped=None))
    assert bits(mcts(tree, 10)) == bits(first) and tree.trained == 0 < first.trained


def test_store_none_is_this_process_alone(tmp_path, monkeypatch):
    """Neither disk nor shipped results: what a test of training needs."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path))
    monkeypatch.setattr(tree_module.Store, "row", None)
    monkeypatch.setattr(tree_module.Store, "rows", None)
    tree = ScheduleTree(small())
    tree.walk([(10,)])
    assert tree.trained == 2 and list(tmp_path.iterdir()) == []
    assert ScheduleTree(small()).known([(10,)]) is False


def test_a_frozen_tree_looks_up_and_never_trains(tmp_path):
    store = Store(tmp_path, shipped=None)
    ScheduleTree(small(), store).walk([(10,)])
    tree = ScheduleTree(small(), store, frozen=True)
    assert tree.walk([(10,)]).depth == 2
    with pytest.raises(NotTrained, match="10/5,5"):
        tree.walk([(10,), (5, 5)])
    assert tree.trained == 0


# -- nodes -----------------------------------------------------------------------------------------


def test_a_node_has_the_matrices_the_metrics_need():
    """Row 0 is the untrained network; test knows every task, val only those seen."""
    node = ScheduleTree(small()).walk([(10,), (5, 5)])
    assert node.val.shape == node.test.shape == (4, 5) and node.depth == 3
    assert not np.isnan(node.test).any()
    seen = np.arange(5) < np.arange(4)[:, None]
    assert np.array_equal(~np.isnan(node.val), seen)
    assert node.acc == node.test[3, :3].mean() and node.reward == node.val[3, :3].mean()
    assert node.bwt == np.mean([node.test[3, i] - node.test[i + 1, i] for i in (0, 1)])
    assert node.fwt == np.mean([node.test[i, i] - node.test[0, i] for i in (1, 2)])
    assert not node.complete and node.converged and "after task 3 of 5" in str(node)


def test_replay_does_something():
    """If the memory never reached the loss, all of the above would hold all the same."""
    tree = ScheduleTree(small(epochs=4, first_epochs=4))
    some = tree.walk([(10,), (5, 5), (4, 3, 3), (3, 3, 2, 2)])
    none = tree.walk([(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)])
    assert not np.array_equal(some.test[2:], none.test[2:])
    assert np.array_equal(some.test[:2], none.test[:2])  # nothing is replayed at task 1


def test_a_diverged_run_is_reported_and_its_children_too(tmp_path):
    store = Store(tmp_path, shipped=None)
    environment = small(lr=1e30, epochs=3, first_epochs=3)
    for tree in (ScheduleTree(environment, store), ScheduleTree(environment, store)):
        node = tree.walk([(10,), (5, 5)])
        assert not node.converged and np.isnan(node.acc) and np.isnan(node.reward)
        assert "did not converge" in str(node) and np.isfinite(node.test[0]).all()
    assert tree.trained == 0 and store.check() == []


# -- what is refused -------------------------------------------------------------------------------

CLASS_IL = small(scenario="class", memory_size=10)


@pytest.mark.parametrize(
    "environment, path, message",
    [
        (small(), [(10,), (5,)], r"composition 2 \(for task 3\) needs 2 counts"),
        (small(), [(5, 5)], r"composition 1 \(for task 2\) needs 1 counts"),
        (small(), [(-1,)], r"composition 1 has a negative count: \(-1,\)"),
        (small(), [(11,)], r"composition 1 \(11,\) asks for 11 samples; .* room for 10"),
        (small(), [(10,), (6, 5)], r"composition 2 \(6, 5\) asks for 11 samples"),
        (small(), [(2.5,)], "composition 1 needs whole numbers"),
        (small(), [10], "composition 1 must be a list of counts"),
        (small(), [(0,)] + [(0,) * k for k in range(2, 6)], "5 compositions, but only 5 tasks"),
        (small(samples_per_class=1), [(3,)], r"3 samples of task 1; its pool holds 2"),
        (small(method="joint"), [(1,)], "room for 0"),
        (CLASS_IL, [(9,)], r"asks for 9 samples; the memory has room for 8"),
        (CLASS_IL, [(8,), (4, 4)], r"composition 2 \(4, 4\) asks for 8 .* room for 6"),
    ],
)
def test_compositions_that_cannot_be_meant_are_refused_by_name(environment, path, message):
    """Trained silently, they would be rows that no schedule of the paper has."""
    tree = ScheduleTree(environment)
    for refuse in (tree.walk, tree.known):
        with pytest.raises(ScheduleError, match=message):
            refuse(path)
    assert tree.trained == 0


@pytest.mark.parametrize("memory_size", [0, 7])
def test_class_il_with_too_small_a_memory_is_refused(memory_size):
    message = f"memory size {memory_size} is too small: Class-IL .* 8 before the last task"
    with pytest.raises(ScheduleError, match=message):
        ScheduleTree(small(scenario="class", memory_size=memory_size))
    assert ScheduleTree(small(scenario="class", memory_size=8)).budget(4) == 0


def test_numbers_of_any_kind_name_the_same_node():
    """Lists from JSON, arrays from tables and schedules are one path, trained once."""
    tree = ScheduleTree(small())
    node = tree.walk(Schedule(((10,), (5, 5))))
    assert node.schedule == Schedule(((10,), (5, 5)))
    for path in ([[10], [5, 5]], [np.array([10]), np.array([5, 5])], [(10.0,), (5.0, 5.0)]):
        assert tree.known(path) and bits(tree.walk(path)) == bits(node)
    assert tree.known(node.schedule) and tree.trained == 3


def test_numbers_from_arrays_are_the_numbers():
    """Broken: settings taken from a DataFrame are refused, or filed under another key."""
    numpys = small(
        seed=np.int64(3), epochs=np.int32(1), lr=np.float64(0.01), selection=np.str_("mof")
    )
    assert numpys.key == small(seed=3, selection="mof").key


def test_what_is_not_stored_is_not_known(tmp_path, monkeypatch):
    """Broken: after a full disk or an interrupt, a row stays in memory only, and is never stored."""
    tree = ScheduleTree(small(), Store(tmp_path, shipped=None))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tree.walk()
    assert tree.walk().depth == 1
    assert set(Store(tmp_path, shipped=None).rows(small().key)) == {UNTRAINED, ""}
