"""Who runs the tasks: an embedded Dask cluster, a running one by address, or this process.

A run is one flat map in waves: a few tasks more than there are workers are with the scheduler at any time, so that
its memory and the driver's do not grow with the number of tasks, and small results are handed over as they come.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shardprep.errors import ConfigError, WorkerError
from shardprep.prep.settings import Settings, parse_bytes
from shardprep.prep.warm import METHOD, WORKER_ENVIRONMENT

A = TypeVar("A")
R = TypeVar("R")
WAVE_PER_WORKER = 3  # tasks with the scheduler for each worker: one running, one there, one on its way
CONNECT_DEADLINE_S = 30.0
NO_WORKERS_DEADLINE_S = 300.0
END_DEADLINE_S = 10.0
START_DEADLINE_S = 120.0  # of a worker process; without it Dask waits for ever for one that is lost while it starts
SILENT = 100  # above CRITICAL


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """In place of a result: the worker died on this task, alone with it."""

    detail: str


class Engine(Protocol):
    """Runs a function over tasks; results come in any order, as (index, result)."""

    workers: int

    def run(
        self, function: Callable[[A], R], count: int, task: Callable[[int], A]
    ) -> Iterator[tuple[int, R | WorkerDied]]:
        """Yield (index, result) for each index below count; an exception of a task is raised here."""
        ...

    def alone(self, function: Callable[[A], R], argument: A) -> R | WorkerDied:
        """Return the result of one call while nothing else runs, or WorkerDied."""
        ...

    def close(self) -> None:
        """End all that was started."""
        ...


class SerialEngine:
    """The reference: one call after the other, in this process. A call that kills its process kills this one."""

    workers = 1

    def run(
        self, function: Callable[[A], R], count: int, task: Callable[[int], A]
    ) -> Iterator[tuple[int, R | WorkerDied]]:
        """Yield (index, result) in order."""
        for index in range(count):
            yield index, function(task(index))

    def alone(self, function: Callable[[A], R], argument: A) -> R | WorkerDied:
        """Return the result of one call."""
        return function(argument)

    def close(self) -> None:
        """Do nothing: nothing was started."""


class DaskEngine:
    """A Dask cluster: embedded (processes of one thread each, see warm.py) or running at an address."""

    def __init__(self, settings: Settings, is_over: Callable[[], bool] = lambda: False) -> None:
        """Start, or connect. Where `is_over` says that the job ended meanwhile, workers are waited for no longer."""
        import dask
        import distributed

        self._distributed: Any = distributed  # its calls have no types
        _revive_offload(distributed.utils)
        self._cluster: Any = None
        self._client: Any = None
        self._lost = (self._distributed.CancelledError, self._distributed.comm.CommClosedError)
        # Dask's own log lines are tracebacks: what a person needs to know is said by us, with the object's name.
        self._quiet = ExitStack()
        self._quiet.enter_context(distributed.utils.silence_logging_cmgr(SILENT))
        logging.getLogger("asyncio").addFilter(_is_news)
        self._quiet.enter_context(dask.config.set(cluster_config()))  # as long as workers may be started again
        try:
            if settings.scheduler == "local":
                self._start_local(settings)
            else:
                self._connect(settings.scheduler, is_over)
        except BaseException:
            self.close()
            raise

    def _start_local(self, settings: Settings) -> None:
        # Its own preload list holds every optional package, pandas too: ours is set already.
        self._distributed.utils._forkserver_preload_set = True  # noqa: SLF001
        workers = settings.workers or os.cpu_count() or 1
        limit: Any = "auto"
        if settings.memory_limit is not None:
            limit = parse_bytes(settings.memory_limit)
        try:
            self._cluster = self._distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=limit,
                death_timeout=START_DEADLINE_S,
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},  # never a fixed port
                silence_logs=SILENT,
                protocol="tcp",
                host="127.0.0.1",
            )
        except RuntimeError as error:
            raise WorkerError(
                'the worker processes do not start. A script that calls shardprep.build needs `if __name__ == "__main__":` '
                f"around it; a --memory-limit may be too small, or the machine be full ({error})"
            ) from error
        self._client = self._distributed.Client(self._cluster, set_as_default=False)
        self.workers = workers

    def _connect(self, address: str, is_over: Callable[[], bool]) -> None:
        try:
            self._client = self._distributed.Client(address, timeout=CONNECT_DEADLINE_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError, ImportError) as error:
            raise WorkerError(f"no Dask scheduler answers at {address}: {error}", address=address) from error
        deadline = time.monotonic() + NO_WORKERS_DEADLINE_S
        with self._reachable():
            while not self._client.nthreads():
                if is_over() or time.monotonic() > deadline:
                    raise WorkerError(f"the scheduler at {address} has no workers", address=address)
                time.sleep(0.1)
        self.workers = max(1, sum(self._client.nthreads().values()))
        self._check_versions(address)

    def _check_versions(self, address: str) -> None:
        """Raise ConfigError where a worker has other packages than this process: its bytes could differ."""
        here = package_versions()
        for worker, there in self._client.run(package_versions).items():
            differing = [
                f"{name} {there.get(name)} (here {version})"
                for name, version in here.items()
                if there.get(name) != version
            ]
            if differing:
                raise ConfigError(
                    f"worker {worker} of {address} has other packages: {', '.join(differing)}", worker=worker
                )

    def run(
        self, function: Callable[[A], R], count: int, task: Callable[[int], A]
    ) -> Iterator[tuple[int, R | WorkerDied]]:
        """Yield (index, result) as they end; tasks whose worker died run again, alone, at the end."""
        suspects: list[int] = []
        for index, result in self._wave(function, count, task):
            if isinstance(result, WorkerDied):
                suspects.append(index)
            else:
                yield index, result
        for index in sorted(suspects):
            yield index, self.alone(function, task(index))

    def _wave(
        self, function: Callable[[A], R], count: int, task: Callable[[int], A]
    ) -> Iterator[tuple[int, R | WorkerDied]]:
        open_tasks: dict[Any, int] = {}
        following = 0
        with self._reachable():
            done = self._distributed.as_completed(loop=self._client.loop, with_results=False)
            try:
                while following < count or open_tasks:
                    while following < count and len(open_tasks) < self.workers * WAVE_PER_WORKER:
                        future = self._submit(function, task(following))
                        open_tasks[future] = following
                        done.add(future)
                        following += 1
                    future = next(done)
                    index = open_tasks.pop(future)
                    yield index, self._outcome(future)
                    future.release()
            finally:
                with suppress(*self._lost):
                    for future in open_tasks:
                        future.cancel()

    def _submit(self, function: Callable[[A], R], argument: A) -> Any:
        return self._client.submit(function, argument, pure=False, retries=0)

    def _outcome(self, future: Any) -> Any:
        try:
            return future.result()
        except self._distributed.KilledWorker as error:
            return WorkerDied(f"the worker process died ({error.last_worker.address})")

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Raise WorkerError where the scheduler goes away inside the block."""
        try:
            yield
        except self._lost as error:
            raise WorkerError("the Dask scheduler was lost; run the same command again to continue") from error

    def alone(self, function: Callable[[A], R], argument: A) -> R | WorkerDied:
        """Return the result of one call with nothing else queued, or WorkerDied."""
        with self._reachable():
            self._wait_for_a_worker()
            outcome: R | WorkerDied = self._outcome(self._submit(function, argument))
        return outcome

    def _wait_for_a_worker(self) -> None:
        deadline = time.monotonic() + NO_WORKERS_DEADLINE_S
        while not self._client.nthreads():
            if time.monotonic() > deadline:
                raise WorkerError("all Dask workers are gone and none came back")
            time.sleep(0.05)

    def close(self) -> None:
        """End the client, and the cluster if it is ours: by force where it takes too long."""
        with self._quiet:
            try:
                if self._client is not None:
                    self._client.close()
            finally:
                if self._cluster is not None:
                    self._end_cluster()

    def _end_cluster(self) -> None:
        """Close the cluster; kill the workers that are left then.

        multiprocessing would end those with SIGTERM when the interpreter ends, to which they are deaf (warm.py), and then wait
        for them for ever.
        """
        nannies = list(self._cluster.workers.values())
        workers = {nanny.pid for nanny in nannies}
        try:
            self._cluster.close(timeout=END_DEADLINE_S)
        except TimeoutError:
            self._cluster.shutdown_on_close = False  # Dask would wait as long once more when the interpreter ends
            for nanny in nannies:
                workers.add(nanny.pid)
                nanny.close_gracefully()  # so that it starts no other one
        finally:
            left = [child for child in multiprocessing.active_children() if child.pid in workers]
            for child in left:
                child.kill()
            for child in left:
                child.join(END_DEADLINE_S)


def cluster_config() -> dict[str, Any]:
    """Return what Dask is set to, for scheduler, workers and client."""
    return {
        # One death makes a suspect; who is guilty is settled here, one task at a time (docs/decisions/0005).
        "distributed.scheduler.allowed-failures": 0,
        "distributed.worker.multiprocessing-method": METHOD,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": 0.95,
        "distributed.nanny.pre-spawn-environ": dict(WORKER_ENVIRONMENT),
        "distributed.nanny.environ": dict(WORKER_ENVIRONMENT),
        "distributed.comm.timeouts.connect": "30s",
        "distributed.worker.daemon": True,
        "distributed.admin.tick.limit": "1h",
        # So long after a death Dask looks once more, and gives a worker up for ever that is just starting again.
        "distributed.deploy.lost-worker-timeout": "100d",
        "temporary-directory": tempfile.gettempdir(),
    }


def _is_news(record: logging.LogRecord) -> bool:
    """Tell a fault from what Dask's client leaves behind when a wait in it is interrupted; said after its end, if at all."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "AllExit"


def _revive_offload(utils: Any) -> None:
    """Give Dask a new thread for large messages where its own did not live through a fork of this process."""
    if not all(thread.is_alive() for thread in utils._offload_executor._threads):  # noqa: SLF001
        utils._offload_executor = ThreadPoolExecutor(1, thread_name_prefix="Dask-Offload")  # noqa: SLF001


def package_versions() -> dict[str, str]:
    """Return the versions that decide what is written, of the process that calls."""
    from importlib.metadata import PackageNotFoundError, version

    out = {}
    for name in ("shardprep", "pyarrow", "numpy", "tokenizers", "fastokens", "nanotoken", "orjson"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "absent"
    return out
