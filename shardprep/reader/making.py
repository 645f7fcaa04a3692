"""Chunks of micro-batches, made ahead and handed over in order: by threads here, or by worker processes (workers.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self

from shardprep.formats.collate import Batch, BufferPool, Collator
from shardprep.reader.cache import ShardCache
from shardprep.reader.chunk_rows import ChunkReader, Group, Read, Share, Views, specs_of
from shardprep.reader.metrics import Metrics
from shardprep.reader.plan import Chunk, ReadPlan, Schedule, chunks
from shardprep.reader.source import ShardSource

__all__ = ["Made", "Share", "StateAfter", "Supply", "Threads", "in_order", "play_share"]

StateAfter = Callable[[int, bool], dict[str, Any]]  # (step, last in step) -> the loader's state


@dataclass
class Made:
    """A chunk, made: its batches in order, each with whether it is its step's last, and the error that came after them."""

    batches: deque[tuple[Batch, bool]] = field(default_factory=deque)
    error: BaseException | None = None
    phases: list[tuple[str, float, float]] = field(default_factory=list)  # cause, start and stop on the monotonic clock
    counts: dict[str, int] = field(default_factory=dict)  # bytes_fetched and so on, for the metrics

    def seconds(self, cause: str) -> float:
        """Return how long one cause took of the making."""
        return sum(stop - start for name, start, stop in self.phases if name == cause)


class Supply(Protocol):
    """What makes chunks: a context manager that lives for one epoch.

    ahead        chunks under way at once
    makes_alone  it can make chunks in the calling thread
    begin        starts to make a chunk, the next one in order; returns where it will be
    make         makes a chunk in the calling thread, the next one in order; None where it is better begun
    """

    ahead: int
    makes_alone: bool

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def begin(self, chunk: Chunk) -> Future[Made]:
        """Start to make a chunk. Raises nothing: an error belongs to its place, and so into the future."""
        ...

    def make(self, chunk: Chunk) -> Made | None:
        """Make a chunk now. Raises nothing of the chunk's own."""
        ...


def in_order(todo: Iterator[Chunk], supply: Supply, metrics: Metrics | None = None) -> Iterator[tuple[Batch, bool]]:
    """Yield the batches of chunks in their order, a bounded number of chunks ahead; errors come at their own place.

    The first chunk is made alone: the first batch should not compete with its successors, nor cost their bytes. They are
    begun when it is handed over.

    A consumer that does less with batches than it costs to make them gets them made in its own thread, as long as their
    rows are at hand: threads that hand the interpreter's lock to each other all the time take up to twice as long.
    """
    making: deque[Future[Made]] = deque()
    alone = False  # the consumer's thread makes chunks itself, one at a time

    def begin(ahead: int) -> None:
        for chunk in islice(todo, ahead - len(making)):
            making.append(supply.begin(chunk))

    try:
        begin(1)
        while True:
            started = time.monotonic()
            if making:
                made = making.popleft().result()
            else:
                chunk = next(todo, None)
                if chunk is None:
                    return
                made = supply.make(chunk) or supply.begin(chunk).result()
            if not alone:
                begin(supply.ahead - 1)
            if metrics is not None:
                metrics.waited(started, time.monotonic(), made.phases)
                metrics.add(**made.counts)
            away = 0.0
            while made.batches:
                handed = time.monotonic()
                yield made.batches.popleft()
                away += time.monotonic() - handed
            if made.error is not None:
                raise made.error
            alone = supply.makes_alone and away + made.seconds("fetch") + made.seconds("decode") < made.seconds(
                "collate"
            )
            if not alone:
                begin(supply.ahead)
    finally:
        for future in making:
            future.cancel()


class Threads:
    """Makes chunks in threads of this process."""

    makes_alone = True

    def __init__(
        self,
        plan: ReadPlan,
        schedule: Schedule,
        cache: ShardCache,
        collator: Collator,
        state: StateAfter,
        *,
        epoch: int,
        num_threads: int,
        share: Share | None = None,
    ) -> None:
        self.ahead = num_threads + 1
        self._opened = -1  # the window after this one is open, or being opened
        self._schedule = schedule
        self._source = ShardSource(plan.refs, plan.slots, cache, self.ahead)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="shardprep-read")
        self._maker = Maker(plan, schedule, self._source, collator, state, epoch=epoch, share=share)

    def __enter__(self) -> Self:
        self._source.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop: chunks that nobody waits for are given up."""
        self._source.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._source.__exit__(*exc)

    def begin(self, chunk: Chunk) -> Future[Made]:
        """Start to make a chunk."""
        self._source.enter(self._schedule, chunk.window)
        return self._threads.submit(self._maker.make, chunk)

    def make(self, chunk: Chunk) -> Made | None:
        """Make a chunk in the calling thread, where all of it is read at once; else None."""
        if not self._maker.takes_whole(chunk):
            return None
        self._source.enter(self._schedule, chunk.window)
        if chunk.window > self._opened and chunk.window + 1 < len(self._schedule.windows):
            self._opened = chunk.window
            self._threads.submit(self._maker.open_window, chunk.window + 1)
        try:
            return self._maker.make_whole(chunk)
        except Exception:
            made = self.begin(chunk).result()  # the micro-batches before the one that fails come first
            if made.error is None:
                raise  # not the chunk's: a signal handler of the program raised it in the midst of our work
            return made


def play_share(
    plan: ReadPlan, cache: ShardCache, epoch: int, share: Share, *, num_threads: int, pool: BufferPool
) -> Iterator[Batch]:
    """Yield one process's share of an epoch, made by threads of it."""
    schedule = plan.schedule(epoch)
    todo = chunks(schedule, plan.per_round, share.skip // plan.per_round)
    supply = Threads(
        plan,
        schedule,
        cache,
        Collator(plan.pad_id, pool),
        plan.state_after(epoch, schedule),
        epoch=epoch,
        num_threads=num_threads,
        share=share,
    )
    with supply:
        for batch, _ in in_order(todo, supply):
            yield batch
            del batch  # its memory goes back while the next one is waited for


class Maker:
    """Makes the batches of chunks; called by several threads at once."""

    def __init__(
        self,
        plan: ReadPlan,
        schedule: Schedule,
        source: ShardSource,
        collator: Collator,
        state: StateAfter,
        *,
        epoch: int,
        share: Share | None = None,
    ) -> None:
        self._plan, self._schedule, self._source, self._collator, self._state = plan, schedule, source, collator, state
        self._epoch, self._share = epoch, share
        self._reader = ChunkReader(source, self._batches)
        self.takes_whole = self._reader.takes_whole

    def make(self, chunk: Chunk) -> Made:
        """Return the batches of a chunk up to the first that fails."""
        return self._made(self._reader.read(chunk, lambda: self._specs(chunk)))

    def make_whole(self, chunk: Chunk) -> Made:
        """Return the batches of a chunk, or raise what fails."""
        return self._made(self._reader.read_whole(chunk, self._specs(chunk)))

    def open_window(self, window: int) -> None:
        """Let the schedule deal the rows of a window: 3 ms for 5,000 rows, which its first chunk need not wait for then."""
        span = self._schedule.windows[window]
        specs_of(self._plan, self._schedule, Chunk(0, window, span.start, span.start + 1))

    def _specs(self, chunk: Chunk) -> Group:
        return specs_of(self._plan, self._schedule, chunk, self._share)

    def _made(self, read: Read[tuple[Batch, bool]]) -> Made:
        return Made(deque(read.made), read.error, read.phases, self._source.taken())

    def _batches(self, group: Group, views: Views) -> list[tuple[Batch, bool]]:
        facts = [{"last_in_step": last, "epoch": self._epoch, "state": self._state} for _, last in group]
        batches = self._collator.batches([spec for spec, _ in group], views, facts)
        return [(batch, batch.last_in_step) for batch in batches]
