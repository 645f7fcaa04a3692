"""Chunks of micro-batches, made ahead and handed over in order: by threads here, or by worker processes (workers.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar

from shardprep.core.schedule import MicroBatch
from shardprep.formats.collate import Batch, BufferPool, Collator, View
from shardprep.reader.cache import ShardCache
from shardprep.reader.metrics import Metrics
from shardprep.reader.plan import Chunk, ReadPlan, Schedule, chunks
from shardprep.reader.source import EARLY_CHUNKS, ShardSource

StateAfter = Callable[[int, bool], dict[str, Any]]  # (step, last in step) -> the loader's state
Group = Sequence[tuple[MicroBatch, bool]]  # micro-batches, and whether each is its step's last
Views = Mapping[int, View]
T = TypeVar("T")


@dataclass
class Made:
    """A chunk, made: its batches in order, each with whether it is its step's last, and the error that came after them."""

    batches: deque[tuple[Batch, bool]] = field(default_factory=deque)
    error: BaseException | None = None
    phases: list[tuple[str, float, float]] = field(default_factory=list)  # cause, start and stop on the monotonic clock
    counts: dict[str, int] = field(default_factory=dict)  # bytes_fetched and so on, for the metrics


class Supply(Protocol):
    """What makes chunks: a context manager that lives for one epoch.

    ahead   chunks under way at once
    begin   starts to make a chunk, the next one in order; returns where it will be
    """

    ahead: int

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def begin(self, chunk: Chunk) -> Future[Made]:
        """Start to make a chunk. Raises nothing: an error belongs to its place, and so into the future."""
        ...


def in_order(todo: Iterator[Chunk], supply: Supply, metrics: Metrics | None = None) -> Iterator[tuple[Batch, bool]]:
    """Yield the batches of chunks in their order, a bounded number of chunks ahead; errors come at their own place.

    The first chunk is made alone: the first batch should not compete with its successors, nor cost their bytes. They are
    begun when it is handed over.
    """
    making: deque[Future[Made]] = deque()

    def begin(ahead: int) -> None:
        for chunk in islice(todo, ahead - len(making)):
            making.append(supply.begin(chunk))

    try:
        begin(1)
        while making:
            started = time.monotonic()
            made = making.popleft().result()
            begin(supply.ahead - 1)
            if metrics is not None:
                metrics.waited(started, time.monotonic(), made.phases)
                metrics.add(**made.counts)
            while made.batches:
                yield made.batches.popleft()
            if made.error is not None:
                raise made.error
            begin(supply.ahead)
    finally:
        for future in making:
            future.cancel()


@dataclass(frozen=True)
class Share:
    """Which micro-batches of a rank one of several processes makes: number `base` + worker, then every workers-th.

    Numbers count a rank's micro-batches from the beginning of the epoch; those before `skip` are left out.
    """

    worker: int
    workers: int
    base: int = 0
    skip: int = 0

    def takes(self, number: int) -> bool:
        """Tell whether a micro-batch belongs to this process."""
        return number >= self.skip and (number - self.base) % self.workers == self.worker


class Threads:
    """Makes chunks in threads of this process."""

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


@dataclass
class Read(Generic[T]):
    """What was made of a chunk, the error that came after it, and where the time went."""

    made: list[T] = field(default_factory=list)
    error: BaseException | None = None
    phases: list[tuple[str, float, float]] = field(default_factory=list)


def read_chunk(
    source: ShardSource, chunk: Chunk, specs_of_chunk: Callable[[], Group], make: Callable[[Group, Views], list[T]]
) -> Read[T]:
    """Return what `make` makes of the micro-batches of a chunk, with views of their rows, up to the first that fails.

    Raises nothing: an error belongs to its place in the sequence.
    """
    early = chunk.number < EARLY_CHUNKS
    try:
        specs = specs_of_chunk()
    except Exception as error:  # noqa: BLE001
        return Read(error=error)
    # By range, the rows of a chunk would be nearly the whole shard: its rounds are of many lengths.
    if not early and not source.is_by_range:
        read = _read_groups(source, [specs], make, early=early, fetch_on=True)
        if read.error is None:
            return read
    # Also where a row cannot be had: the micro-batches before it come first.
    return _read_groups(source, [[spec] for spec in specs], make, early=early, fetch_on=chunk.number > 0)


def _read_groups(
    source: ShardSource,
    groups: Sequence[Group],
    make: Callable[[Group, Views], list[T]],
    *,
    early: bool,
    fetch_on: bool,
) -> Read[T]:
    read: Read[T] = Read()
    try:
        for group in groups:
            started = time.monotonic()
            views = source.views([spec for spec, _ in group], early, fetch_on=fetch_on) if group else {}
            fetched = time.monotonic()
            read.made += make(group, views)
            read.phases += [("fetch", started, fetched), ("collate", fetched, time.monotonic())]
    except BaseException as error:  # noqa: BLE001
        read.error = error
    return read


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

    def make(self, chunk: Chunk) -> Made:
        """Return the batches of a chunk up to the first that fails."""
        read = read_chunk(
            self._source,
            chunk,
            lambda: specs_of(self._plan, self._schedule, chunk, self._share),
            lambda group, views: [(self._batch(spec, last, views), last) for spec, last in group],
        )
        return Made(deque(read.made), read.error, read.phases, self._source.taken())

    def _batch(self, spec: MicroBatch, last: bool, views: Views) -> Batch:
        return self._collator.batch(
            spec, views, last_in_step=last, epoch=self._epoch, name=spec.name, state=self._state
        )


def specs_of(plan: ReadPlan, schedule: Schedule, chunk: Chunk, share: Share | None) -> Group:
    """Return the micro-batches of a chunk, or a process's share of them, with whether each is its step's last."""
    specs: Iterable[tuple[MicroBatch, bool]] = plan.specs(schedule, chunk)
    if share is not None:
        first = chunk.first * plan.per_round
        specs = (spec for number, spec in enumerate(specs, first) if share.takes(number))
    return list(specs)
