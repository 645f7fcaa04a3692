"""A Dask cluster in pieces, for machines that find each other by other means: each piece is a process of its own.

    python -m shardprep.prep.cluster scheduler --host 0.0.0.0 --port 8786
    python -m shardprep.prep.cluster workers tcp://algo-1:8786 --host 10.0.0.7 --scratch /tmp/job

Each says what it is doing in JSON lines on standard output: the scheduler {"port": 8786}, then {"workers": 24} whenever
their number changes; the workers {"workers": 8} when all of them are there. Each ends when its standard input does, so
that none outlives the process that started it, and on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from shardprep.prep.engine import SILENT, START_DEADLINE_S, cluster_config

PRELOAD = ["distributed.nanny", "distributed.worker", "shardprep.prep.scan", "shardprep.prep.write"]
RESERVED_SHARE = 0.1  # of the machine's memory, for what runs beside the workers
END_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one piece until it is told to end; 0 after that, 1 where it ended by itself."""
    parser = argparse.ArgumentParser(prog="python -m shardprep.prep.cluster")
    pieces = parser.add_subparsers(dest="piece", required=True)
    scheduler = pieces.add_parser("scheduler")
    scheduler.add_argument("--host", default="127.0.0.1")
    scheduler.add_argument("--port", type=int, default=0)
    workers = pieces.add_parser("workers")
    workers.add_argument("scheduler")
    workers.add_argument("--host", default="127.0.0.1")
    workers.add_argument("--count", type=int, help="processes, one thread each (default: one a core)")
    workers.add_argument(
        "--memory-limit", type=int, metavar="BYTES", help="of each (default: an equal share of the machine)"
    )
    workers.add_argument(
        "--reserve", type=int, default=0, metavar="BYTES", help="memory that is left to other processes"
    )
    workers.add_argument("--scratch", required=True, metavar="FOLDER")
    chosen = parser.parse_args(arguments)

    # Read when Dask is imported, here and in the workers; what a person needs to know is said by the build.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    import dask
    import distributed

    with distributed.utils.silence_logging_cmgr(SILENT), dask.config.set(cluster_config()):
        return asyncio.run(_schedule(chosen) if chosen.piece == "scheduler" else _work(chosen))


def memory_share(total: int, count: int, reserve: int) -> int:
    """Return the memory limit of each of `count` workers, in bytes, where `reserve` bytes or a tenth are left free."""
    kept = min(max(reserve, int(total * RESERVED_SHARE)), total // 2)
    return (total - kept) // count


async def _schedule(chosen: argparse.Namespace) -> int:
    from distributed import Scheduler
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Teller(SchedulerPlugin):
        def add_worker(self, scheduler: Any, worker: str) -> None:  # noqa: ARG002
            _say(workers=len(scheduler.workers))

        def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:  # noqa: ARG002
            _say(workers=len(scheduler.workers))

    told = _told_to_end()
    scheduler = await Scheduler(
        host=chosen.host,
        port=chosen.port,
        protocol="tcp",
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        plugins=[Teller()],
    )
    _say(port=scheduler.port)
    ended = await _until(told, scheduler.finished())
    with suppress(TimeoutError):
        await asyncio.wait_for(scheduler.close(), END_S)
    return 0 if ended else 1


async def _work(chosen: argparse.Namespace) -> int:
    import distributed
    from distributed import Nanny

    machine: Any = distributed.system
    distributed.utils._forkserver_preload_set = True  # noqa: SLF001  its own list holds every optional package
    if cluster_config()["distributed.worker.multiprocessing-method"] == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    count = chosen.count or machine.CPU_COUNT
    limit = chosen.memory_limit or memory_share(machine.MEMORY_LIMIT, count, chosen.reserve)
    told = _told_to_end()
    nannies = [
        Nanny(
            chosen.scheduler,
            nthreads=1,
            memory_limit=limit,
            local_directory=chosen.scratch,
            death_timeout=START_DEADLINE_S,
            host=chosen.host,
            name=f"{chosen.host}-{os.getpid()}-{number}",
            silence_logs=SILENT,
            dashboard=False,
            dashboard_address="127.0.0.1:0",
        )
        for number in range(count)
    ]
    try:
        ended = await _until(told, _start_and_finish(nannies, limit))
    finally:
        closing = (asyncio.wait_for(nanny.close(timeout=END_S / 2), END_S) for nanny in nannies)
        await asyncio.gather(*closing, return_exceptions=True)
    return 0 if ended else 1


async def _start_and_finish(nannies: list[Any], limit: int) -> None:
    await asyncio.gather(*nannies)
    _say(workers=len(nannies), memory_limit=limit)
    await asyncio.gather(*(nanny.finished() for nanny in nannies))


def _told_to_end() -> asyncio.Event:
    """Return an event that is set when standard input ends, or a signal comes."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, event.set)

    def listen() -> None:
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(event.set)

    threading.Thread(target=listen, name="shardprep-listen", daemon=True).start()
    return event


async def _until(told: asyncio.Event, work: Any) -> bool:
    """Wait for the event, or the end of the work; return whether it was the event. Raises what the work raises."""
    waiting, working = asyncio.ensure_future(told.wait()), asyncio.ensure_future(work)
    await asyncio.wait((waiting, working), return_when=asyncio.FIRST_COMPLETED)
    if told.is_set():
        working.cancel()
        return True
    waiting.cancel()
    working.result()
    return False


def _say(**what: int) -> None:
    with suppress(OSError):  # nobody listens any more: standard input tells that as well
        os.write(1, orjson.dumps(what) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
