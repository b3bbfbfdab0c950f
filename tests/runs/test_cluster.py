"""The same grid on a local Dask cluster of two workers: the same rows, also when one is killed."""

import os
import signal
import threading
import time

import pandas as pd
import pytest
from small_environment import small

from rslib.methods import METHODS
from rslib.policies import POLICIES
from rslib.runs import grid
from rslib.runs.grid import Cell, GridError
from rslib.store import Store

distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.cluster,
    # Dask's own: what its tornado and asyncio versions complain of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:distributed"),
]


def every(environments, policies, rollouts=100):
    """Every policy in every environment."""
    policies = list(policies)
    return [Cell(e, p, rollouts) for e in environments for p in policies]


CELLS = every([small(seed=s) for s in (1, 2, 3)], ["ets", "random", "mcts"], rollouts=6)


def same_rows(one: pd.DataFrame, two: pd.DataFrame) -> None:
    left, right = (frame.drop(columns=["seconds", "trained"]) for frame in (one, two))
    pd.testing.assert_frame_equal(left, right, check_exact=True)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("serial"), shipped=None)
    return grid.run(CELLS, 1, store=store, progress=False).rows


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Two processes of one thread each on the loopback, closed at the end."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("dask")),
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, timeout=120) as client,
    ):
        client.wait_for_workers(2, timeout=120)
        yield client


def in_time(work, seconds: float = 300):
    """The result of `work()`, or an error: a cluster that hangs must not hang the tests."""
    done: dict = {}

    def run() -> None:
        try:
            done["result"] = work()
        except BaseException as error:
            done["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"nothing after {seconds} s"
    if "error" in done:
        raise done["error"]
    return done["result"]


def test_cluster_gives_the_same_rows(client, serial, tmp_path):
    """Through a client passed in, and through the address in the environment."""
    store = Store(tmp_path, shipped=None)
    rows = in_time(lambda: grid.run(CELLS, store=store, executor=client, progress=False).rows)
    same_rows(rows, serial)
    assert rows.trained.sum() > 0 and store.check() == []


def test_a_search_is_shared_among_the_workers(client, serial, tmp_path, monkeypatch):
    """Broken: one search uses one worker of a cluster, or another search comes out of it."""
    monkeypatch.setattr(grid, "SHORT", 0)
    monkeypatch.setattr(grid, "run_cell", lambda *cell: pytest.fail("not shared"))
    store = Store(tmp_path, shipped=None)
    rows = in_time(lambda: grid.run(CELLS[1:3], store=store, executor=client, progress=False).rows)
    same_rows(rows, serial.iloc[1:3].reset_index(drop=True))
    assert rows.trained.sum() > 0 and store.check() == []


def test_cluster_by_its_address(client, serial, tmp_path, monkeypatch):
    """RSLIB_CLUSTER=tcp://...: what a notebook is started with."""
    monkeypatch.setenv("RSLIB_CLUSTER", client.scheduler.address)
    store = Store(tmp_path, shipped=None)
    cells = [CELLS[0], CELLS[0], *CELLS[3:5]]  # equal cells are a row each
    rows = in_time(lambda: grid.run(cells, store=store, progress=False).rows)
    same_rows(rows, serial.iloc[[0, 0, 3, 4]].reset_index(drop=True))


def test_failed_cells_are_named(client, tmp_path):
    cells = [CELLS[0], Cell(small(), "no-such-policy"), CELLS[3]]
    store = Store(tmp_path, shipped=None)
    with pytest.raises(GridError, match="unknown policy 'no-such-policy'") as caught:
        in_time(lambda: grid.run(cells, store=store, executor=client, progress=False).rows)
    assert caught.value.rows.seed.tolist() == [1, 2]


def test_a_killed_worker_loses_nothing(client, serial, tmp_path):
    """kill -9 of one of the two in the middle of its cells: the rows are the same."""
    store, killed = Store(tmp_path, shipped=None), []
    pids = client.run(os.getpid)
    assert len(set(pids.values())) == 2

    def kill_one() -> None:
        watching = Store(tmp_path, shipped=None)  # a connection belongs to one thread
        for _ in range(3000):
            if sum(watching.sizes()[0].values()) >= 10:  # trained on, far from done
                victim = next(iter(pids.values()))
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    rows = in_time(lambda: grid.run(CELLS, store=store, executor=client, progress=False).rows)
    killer.join(60)
    assert len(killed) == 1
    same_rows(rows, serial)
    assert store.check() == []
    client.wait_for_workers(2, timeout=120)
    assert killed[0] not in client.run(os.getpid).values()
    again = in_time(lambda: grid.run(CELLS, store=store, executor=client, progress=False).rows)
    same_rows(again, serial)
    assert again.trained.sum() == 0


def test_workers_have_what_is_registered_here_now(client, tmp_path):
    """Broken: a cluster knows no own method or policy, or goes on with its first definition."""
    store = Store(tmp_path, shipped=None)
    keys, accs = [], []
    for weight in (0.0, 5.0, 5.0):
        namespace: dict = {"__name__": "__main__"}  # as a notebook's cell: no worker can import it
        exec(OWN.format(weight=weight), namespace)
        cells = every([small(method="own", seed=s) for s in (1, 2)], ["newest", "ets"])
        try:
            rows = in_time(
                lambda c=cells: grid.run(c, store=store, executor=client, progress=False).rows
            )
        finally:
            for registry in (METHODS, POLICIES):
                registry.replace_own({})
        keys.append(rows.key.tolist())
        accs.append(rows.acc.tolist())
    assert keys[0] != keys[1] == keys[2] and accs[0] != accs[1] == accs[2]
    assert rows.trained.sum() == 0 and rows.label.tolist() == ["Newest", "ETS"] * 2


OWN = """
from rslib import methods, policies
from rslib.methods import Method

@methods.register("own")
class Own(Method):
    def loss(self, learner, batch):
        penalty = sum(p.square().sum() for p in learner.net.parameters())
        return super().loss(learner, batch) + {weight} * penalty

@policies.register("newest", "Newest")
def newest(val, rng, parameter):
    return [0] * (len(val) - 1) + [1]
"""
