"""Where the cells of a grid run: in this process, in processes of our own, or on a Dask cluster.

Every choice looks like a `concurrent.futures` executor to `rslib.runs.grid`, which neither knows
nor cares which it is. Our own processes have one torch thread each and end with their parent. What a
kernel has registered goes with every job, so that a worker has it too, defined in a notebook or not.
"""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import cloudpickle
from tqdm.auto import tqdm

from rslib import pin_cpu_capability
from rslib.errors import Interrupted
from rslib.memory import SELECTIONS
from rslib.methods import METHODS
from rslib.models import NETWORKS
from rslib.policies import POLICIES

_REGISTRIES = (POLICIES, METHODS, NETWORKS, SELECTIONS)
_SPAWN = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork


class WithRegistered:
    """A function that, once pickled, first registers where it is called what is registered here."""

    def __init__(self, work: Callable):
        self.work = work

    def __call__(self, *args: Any) -> Any:
        return self.work(*args)

    def __reduce__(self) -> tuple:
        own = [registry.own() for registry in _REGISTRIES]
        try:
            return functools.partial, (
                _register_and_do,
                self.work,
                cloudpickle.dumps(own),
                _filed(),
            )
        except Exception as error:
            names = ", ".join(name for entries in own for name in entries)
            raise ValueError(
                f"what you registered ({names}) cannot be sent to other processes: {error}. Set n_jobs=1"
            ) from None


def _register_and_do(work: Callable, own: bytes, filed: dict[str, str | None], *args: Any) -> Any:
    for registry, entries in zip(_REGISTRIES, cloudpickle.loads(own), strict=True):
        registry.replace_own(entries)
    for name, found in _filed().items():
        if found != filed[name]:  # such as a module that was edited after the kernel imported it
            raise RuntimeError(f"{name} is other code in a worker process: restart the kernel")
    return work(*args)


def _filed() -> dict[str, str | None]:
    """The fingerprints under which rows of the user's own entries are filed."""
    return {
        f"{registry.kind} {name!r}": registry.fingerprint(name)
        for registry in _REGISTRIES[1:]  # a policy only chooses paths
        for name in registry.own()
    }


class Serial(cf.Executor):
    """Runs each job when it is asked for: the simplest thing that can be interrupted."""

    def submit(self, fn, /, *args, **kwargs):
        job: cf.Future = cf.Future()
        job.work = functools.partial(fn, *args, **kwargs)  # type: ignore[attr-defined]
        return job


def finished(jobs: dict) -> Iterator:
    """Jobs as they finish; serial ones are worked off here."""
    first = next(iter(jobs), None)
    if hasattr(first, "work"):
        for job in jobs:
            try:
                job.set_result(job.work())
            except Exception as error:
                job.set_exception(error)
            yield job
    else:
        yield from cf.as_completed(jobs)


@contextlib.contextmanager
def executor_for(given: Any, n: int) -> Iterator[Any]:
    """The executor to use, for at most n jobs at once; closed at the end if it was made here."""
    with contextlib.ExitStack() as at_end:
        address = os.environ.get("RSLIB_CLUSTER")
        if given is None and address:
            from distributed import Client  # pyright: ignore[reportMissingImports]

            given = Client(address)
            at_end.callback(given.close)
        elif given is None and n > 1:
            given = at_end.enter_context(Processes(n))
        elif given is None:
            given = Serial()
        if hasattr(
            given, "get_executor"
        ):  # a Dask client's; not "pure", or equal cells are one job
            given = given.get_executor(pure=False)
        yield given


def n_workers(pool: Any) -> int:
    """How many jobs an executor works on at once; 1 for one that does not say."""
    if hasattr(pool, "_client"):  # Dask's
        return sum(pool._client.nthreads().values())
    return getattr(pool, "_max_workers", 1)


def in_processes(work: Callable, jobs: Sequence[tuple], workers: int, title: str) -> list:
    """`work(*job)` for every job, in order; one thread per process, one process per core.

    Work keeps what it has done itself: if interrupted, this raises at once and returns nothing.
    """
    if not jobs:
        return []
    with tqdm(total=len(jobs), desc=title) as bar:
        try:
            if workers <= 1 or len(jobs) <= 1:
                return [(work(*job), bar.update())[0] for job in jobs]
            with Processes(workers) as pool:
                futures = [pool.submit(WithRegistered(work), *job) for job in jobs]
                for future in futures:
                    future.add_done_callback(lambda job: job.cancelled() or bar.update())
                return [future.result() for future in futures]
        except KeyboardInterrupt:
            raise Interrupted(
                f"{title}: stopped; what was done is kept. Run this again to go on"
            ) from None


class Processes(cf.ThreadPoolExecutor):
    """Threads with a worker process each: a process that dies takes only its own job along.

    (A ProcessPoolExecutor of several gives up all its jobs when one process dies.) The job is tried
    once more, in a new process. An interrupt in its `with` ends the processes in the middle of theirs.
    """

    def __init__(self, n: int):
        super().__init__(n)
        self._mine = threading.local()
        self._all: list[cf.ProcessPoolExecutor] = []
        self._stopped = False

    def submit(self, fn, /, *args, **kwargs):
        return super().submit(self._do, functools.partial(fn, *args, **kwargs))

    def _do(self, work: Callable) -> Any:
        for _ in range(2):
            if self._stopped:
                raise KeyboardInterrupt
            if not hasattr(self._mine, "process"):
                pin_cpu_capability()  # a new process imports torch anew, whatever this one has done
                self._mine.process = cf.ProcessPoolExecutor(1, _SPAWN, start_worker)
                self._all.append(self._mine.process)
            try:
                return self._mine.process.submit(work).result()
            except BrokenProcessPool:
                del self._mine.process
        raise RuntimeError("its worker process was ended twice, most often for lack of memory")

    def __exit__(self, kind, *_):
        self._stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.shutdown(wait=not self._stopped, cancel_futures=True)
        while self._stopped and any(thread.is_alive() for thread in self._threads):
            for pool in self._all:  # again and again: a thread may be starting a process just now
                for process in dict(pool._processes or {}).values():
                    process.terminate()
            time.sleep(0.05)
        for pool in self._all:
            pool.shutdown()


def start_worker() -> None:
    """What every worker process does first: one torch thread, and never outlive its parent."""
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    # A killed notebook cannot end its workers, and they would wait for work for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # in the middle of a cell: the store keeps every finished node
