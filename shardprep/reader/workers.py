"""Worker processes: they read and pack chunks, this process cuts and pads them. The sequence is that of no workers.

Chunk i belongs to worker i % k. Blocks of rows cross the border, not padded batches: over a socket pair, not shared
memory, of which containers have little.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Self

from shardprep.errors import ConfigError, WorkerError
from shardprep.formats.buffers import Arrays
from shardprep.formats.collate import BufferPool, Collator
from shardprep.reader import wire
from shardprep.reader.cache import ShardCache
from shardprep.reader.chunk_rows import specs_of
from shardprep.reader.making import Made, StateAfter
from shardprep.reader.plan import Chunk, ReadPlan, Schedule
from shardprep.reader.worker import Begin, Reply, Setup, Want

CHUNKS_EACH = 2  # under way at each worker: one that it makes, one that waits or is on its way here
LOOK_S = 0.2  # between two looks at whether the worker is alive and its chunk still wanted
END_S = 0.5  # for a worker to end by itself; nothing is lost when it is killed
NAMED_SHARDS = 3
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from shardprep.reader.worker import serve; "
    "serve(int(sys.argv[2]), int(sys.argv[3]))"
)


class WorkerPool:
    """Processes that make the chunks of one plan, epoch after epoch. Close it, or leave it to the garbage collector."""

    def __init__(self, plan: ReadPlan, open_cache: Callable[[], ShardCache], num_workers: int) -> None:
        if num_workers < 1:
            raise ConfigError(f"num_workers must be at least 1 here, got {num_workers}")
        self.plan = plan
        self.workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end_all, self.workers, os.getpid())
        for number in range(num_workers):
            self.workers.append(_Worker(number))
        for worker in self.workers:
            worker.send(Setup(plan, open_cache))
        self.arrays = BufferPool()  # blocks that arrive
        self._run = 0

    @property
    def alive(self) -> bool:
        """Tell whether all workers live and none was left in the middle of an answer."""
        return self._end.alive and all(worker.fit for worker in self.workers)

    @property
    def is_new(self) -> bool:
        """Tell whether the workers have not been asked for anything yet."""
        return self._run == 0

    def close(self) -> None:
        """End the workers."""
        self._end()

    def supply(self, epoch: int, schedule: Schedule, collator: Collator, state: StateAfter) -> WorkerSupply:
        """Return the supply of an epoch; one at a time."""
        self._run += 1
        for worker in self.workers:
            worker.send(Begin(self._run, epoch))
        return WorkerSupply(self, self._run, schedule, collator, state)


class WorkerSupply:
    """Chunks of one epoch, made by the pool's workers, received and cut by a thread for each."""

    makes_alone = False

    def __init__(self, pool: WorkerPool, run: int, schedule: Schedule, collator: Collator, state: StateAfter) -> None:
        self.ahead = CHUNKS_EACH * len(pool.workers)
        self._pool, self._run, self._schedule, self._collator, self._state = pool, run, schedule, collator, state
        self._stopped = False
        self._threads = [ThreadPoolExecutor(1, f"shardprep-read-{worker.number}") for worker in pool.workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop receiving. What workers still make of this epoch is thrown away when the next one begins."""
        self._stopped = True
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, chunk: Chunk) -> Future[Made]:
        """Ask the chunk's worker for it."""
        number = chunk.number % len(self._threads)
        self._pool.workers[number].send(Want(self._run, chunk))
        return self._threads[number].submit(self._made, self._pool.workers[number], chunk)

    def make(self, chunk: Chunk) -> None:
        """Return None: workers make all chunks."""
        del chunk

    def _made(self, worker: _Worker, chunk: Chunk) -> Made:
        """Return the chunk, received and cut."""
        try:
            reply = worker.reply(self._run, self._pool.arrays, lambda: self._stopped)
        except WorkerError as error:
            error.message += self._what_it_made(chunk)
            return Made(error=error)
        made = Made(error=_told(reply, worker), phases=reply.phases, counts=reply.counts)
        started = time.monotonic()
        for flat, facts in reply.packed:
            batches = self._collator.from_flat(flat, [{**some, "state": self._state} for some in facts])
            made.batches += ((batch, batch.last_in_step) for batch in batches)
        made.phases.append(("collate", started, time.monotonic()))
        return made

    def _what_it_made(self, chunk: Chunk) -> str:
        plan = self._pool.plan
        with contextlib.suppress(Exception):  # the worker's end matters more than where it was
            specs = specs_of(plan, self._schedule, chunk)
            shards = sorted({int(shard) for spec, _ in specs for shard in spec.shard})
            names = [plan.refs[shard].info.name for shard in shards[:NAMED_SHARDS]]
            more = f" and {len(shards) - len(names)} more" if len(shards) > len(names) else ""
            return f" It was to read rounds {chunk.first} to {chunk.stop - 1} from {', '.join(names)}{more}."
        return ""


class _Worker:
    """One worker process, and this end of its socket."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.fit = True
        self._sock, theirs = socket.socketpair()
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])  # noqa: S603
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)

    def send(self, message: Any) -> None:
        """Send a message; to a worker that is dead too, for `reply` says so at the right place."""
        with contextlib.suppress(OSError):
            wire.send(self._sock, message)

    def reply(self, run: int, arrays: Arrays, stopped: Callable[[], bool]) -> Reply:
        """Return the next answer of this run. Raises WorkerError if the worker died, CancelledError once stopped."""
        while True:
            while not self._poll.poll(int(LOOK_S * 1000)):
                if stopped():
                    raise CancelledError
                self._check()
            self.fit = False  # until the whole answer is here
            reply: Reply = wire.receive(self._read_into, arrays)
            self.fit = True
            if reply.run == run:
                return reply

    def _read_into(self, data: memoryview) -> None:
        while data:
            if not self._poll.poll(int(LOOK_S * 1000)):
                self._check()
                continue
            try:
                count = self._sock.recv_into(data)
            except OSError:
                count = 0
            if not count:
                self._died()
            data = data[count:]

    def _check(self) -> None:
        """Raise if the worker is dead: its socket may be held open by a forked child."""
        if self._process.poll() is not None:
            self._died()

    def _died(self) -> None:
        self.fit = False
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        raise WorkerError(
            f"reader worker {self.number} (process {self._process.pid}) {_how_it_ended(code)}. No row was left out: what it "
            "was to make is missing from here on. Load the last state to go on from there.",
            worker=self.number,
            pid=self._process.pid,
            exit_code=code,
        )

    def hang_up(self) -> None:
        """Tell the worker to end."""
        self._sock.close()

    def end(self, within_s: float) -> None:
        """See that the worker ends."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _end_all(workers: Sequence[_Worker], pid: int) -> None:
    if os.getpid() != pid:  # a forked child: the workers are its parent's
        return
    for worker in workers:
        worker.hang_up()
    until = time.monotonic() + END_S
    for worker in workers:
        worker.end(max(0.0, until - time.monotonic()))


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}; what it wrote to standard error says why"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; out of memory? The system log tells" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def _told(reply: Reply, worker: _Worker) -> BaseException | None:
    """Return the worker's error, with where it was raised."""
    if reply.error is not None:
        reply.error.add_note(f"raised in reader worker {worker.number}:\n{reply.trace}")
    return reply.error
