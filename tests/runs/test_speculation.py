"""Searches that are shared among workers: the sequential rollouts bit for bit, no node trained twice."""

import concurrent.futures as cf
from collections import Counter

import pytest
from small_environment import small
from tree_workers import PROCESSES, bits

from rslib import search
from rslib.learner import Learner
from rslib.runs import grid, speculation
from rslib.runs.grid import Cell, GridError
from rslib.store import Store
from rslib.tree import NotTrained, ScheduleTree


class AtOnce(cf.Executor):
    """As many workers as it says, each done at once; keeps what was handed out between two waits."""

    def __init__(self, n_workers: int):
        self._max_workers = n_workers
        self.nodes: list = []

    def submit(self, fn, /, *args, **options):
        self.nodes.append(args[:2])
        job: cf.Future = cf.Future()
        try:
            job.set_result(fn(*args))
        except Exception as error:
            job.set_exception(error)
        return job


def shared(pool, cells, store) -> list[search.Result]:
    """Each cell's result, in the order of the cells."""
    jobs = {cf.Future(): cell for cell in cells}
    done = list(speculation.share(pool, jobs, store, lambda cell, result: {"result": result}))
    assert set(done) == set(jobs)
    return [job.result()["result"] for job in jobs]


@pytest.fixture(scope="module")
def sequential():
    """A search on one core, and its trainings."""
    tree = ScheduleTree(small())
    return search.mcts(tree, 25), tree.trained


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_the_rollouts_are_the_sequential_ones(n_workers, sequential, tmp_path):
    """Broken: a search gives another schedule on another number of cores."""
    pool, (expected, trainings) = AtOnce(n_workers), sequential
    (result,) = shared(pool, [Cell(small(), "mcts", 25)], Store(tmp_path, shipped=None))
    assert bits(result) == bits(expected)
    assert len(set(pool.nodes)) == len(pool.nodes) == result.trained
    if n_workers == 1:
        assert result.trained == trainings  # one worker has nothing to guess
    assert result.trained < 1.3 * trainings  # most guesses were right


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_workers_that_finish_in_any_order(how, sequential, tmp_path):
    store = Store(tmp_path, shipped=None)
    pools = {
        "threads": lambda: cf.ThreadPoolExecutor(3),
        "processes": lambda: cf.ProcessPoolExecutor(2, mp_context=PROCESSES),
    }
    with pools[how]() as pool:
        (result,) = shared(pool, [Cell(small(), "mcts", 25)], store)
    assert bits(result) == bits(sequential[0]) and store.check() == []


def test_cells_of_one_environment_share_its_nodes(tmp_path, monkeypatch):
    """Broken: six policies on six cores train task 1 six times."""
    learned, learn = Counter(), Learner.learn
    monkeypatch.setattr(
        Learner, "learn", lambda self, counts: learned.update([counts]) or learn(self, counts)
    )
    policies = ["mcts", "random-best", "surrogate", "ets", "heur-gd:0.9", "schedule:10/5,5/4,3,3"]
    cells = [Cell(small(n_tasks=4), policy, 6) for policy in policies]
    pool = AtOnce(6)
    results = shared(pool, cells, Store(tmp_path, shipped=None))
    assert learned[()] == 1  # task 1
    assert learned.total() == len(pool.nodes) == sum(result.trained for result in results)
    for cell, result in zip(cells, results, strict=True):
        alone = search.run(ScheduleTree(cell.environment), cell.policy, cell.rollouts)
        assert bits(result) == bits(alone)


def test_an_interrupted_search_goes_on_where_it_was(sequential, tmp_path):
    """Broken: after Ctrl-C the search is another one, or begins again."""
    cell, store = Cell(small(), "mcts", 25), Store(tmp_path, shipped=None)

    class Interrupted(AtOnce):
        def submit(self, fn, /, *args, **options):
            if len(self.nodes) == 15:
                raise KeyboardInterrupt
            return super().submit(fn, *args)

    with pytest.raises(KeyboardInterrupt):
        shared(Interrupted(3), [cell], store)
    assert len(store.rows(cell.environment.key)) == 15 + 1  # and the untrained network
    again = AtOnce(2)
    (result,) = shared(again, [cell], store)
    assert bits(result) == bits(sequential[0])
    assert len(again.nodes) < 1.3 * sequential[1] - 10


def test_a_grid_shares_what_takes_long(tmp_path, monkeypatch):
    """Broken: sharing changes a row, or the failure of a cell loses another."""
    monkeypatch.setattr(grid, "SHORT", 0)
    cells = [
        Cell(small(), "mcts", 6),
        Cell(small(), "ets"),
        Cell(small(), "no-such-policy"),
        Cell(small(scenario="class", memory_size=4), "ets"),
    ]
    frames, pool = [], AtOnce(3)
    for name, options in {"alone": dict(n_jobs=1), "shared": dict(executor=pool)}.items():
        store = Store(tmp_path / name, shipped=None)
        with pytest.raises(GridError, match=r"2 cell\(s\) failed") as caught:
            grid.run(cells, store=store, progress=False, **options)
        assert "unknown policy" in str(caught.value) and "too small" in str(caught.value)
        frames.append(caught.value.rows.drop(columns=["seconds", "trained"]))
    assert pool.nodes and frames[0].equals(frames[1])


def test_a_worker_that_fails_fails_the_cells_that_need_it(tmp_path, monkeypatch):
    """Broken: a grid waits for ever for a node that cannot be trained, or drops the other cells."""

    def learn(self, counts, whole=Learner.learn):
        if self.environment.seed == 2 and self.n_learned == 2:
            raise MemoryError("no room for task 3")
        whole(self, counts)

    monkeypatch.setattr(Learner, "learn", learn)
    jobs = {cf.Future(): Cell(small(seed=seed), "mcts", 3) for seed in (1, 2)}
    store = Store(tmp_path, shipped=None)
    good, bad = jobs
    assert len(list(speculation.share(AtOnce(4), jobs, store, lambda cell, result: {}))) == 2
    assert good.exception() is None
    with pytest.raises(MemoryError, match="no room"):
        bad.result()


def test_workers_with_a_store_of_their_own_are_an_error(tmp_path):
    """Broken: on a cluster without a common folder the same node is trained again and again."""

    class Elsewhere(AtOnce):
        def submit(self, fn, /, *args, **options):
            return super().submit(fn, *args[:2], Store(tmp_path / "other", shipped=None))

    with pytest.raises(NotTrained, match="let all workers use this folder"):
        shared(Elsewhere(2), [Cell(small(), "mcts", 3)], Store(tmp_path / "own", shipped=None))
