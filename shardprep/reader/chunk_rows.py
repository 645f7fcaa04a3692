"""What is made of a chunk: its micro-batches, views of their rows, and batches or blocks made of those."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from shardprep.core.schedule import MicroBatch
from shardprep.formats.view import View
from shardprep.reader.entry import SoundView
from shardprep.reader.plan import Chunk, ReadPlan, Schedule
from shardprep.reader.source import EARLY_CHUNKS, ShardSource

Group = Sequence[tuple[MicroBatch, bool]]  # micro-batches, and whether each is its step's last
Views = Mapping[int, View]
T = TypeVar("T")


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


def specs_of(plan: ReadPlan, schedule: Schedule, chunk: Chunk, share: Share | None = None) -> Group:
    """Return the micro-batches of a chunk, or a process's share of them, with whether each is its step's last."""
    specs: Iterable[tuple[MicroBatch, bool]] = plan.specs(schedule, chunk)
    if share is not None:
        first = chunk.first * plan.per_round
        specs = (spec for number, spec in enumerate(specs, first) if share.takes(number))
    return list(specs)


@dataclass
class Read(Generic[T]):
    """What was made of a chunk, the error that came after it, and where the time went."""

    made: list[T] = field(default_factory=list)
    error: BaseException | None = None
    phases: list[tuple[str, float, float]] = field(default_factory=list)


class ChunkReader(Generic[T]):
    """Makes something of chunks; called by several threads at once.

    make  what is made of micro-batches and views of their rows
    """

    def __init__(self, source: ShardSource, make: Callable[[Group, Views], list[T]]) -> None:
        self._source, self._make = source, make
        self._sound: tuple[int, dict[int, View]] = (-1, {})  # the newest window, and its shards that are all compared

    def read(self, chunk: Chunk, specs_of_chunk: Callable[[], Group]) -> Read[T]:
        """Return what is made of a chunk, up to the first micro-batch that fails.

        Raises nothing: an error belongs to its place in the sequence.
        """
        try:
            specs = specs_of_chunk()
        except Exception as error:  # noqa: BLE001
            return Read(error=error)
        if self.takes_whole(chunk):
            read = self._read_groups([specs], chunk)
            if read.error is None:
                return read
        # Also where a row cannot be had: the micro-batches before it come first.
        return self._read_groups([[spec] for spec in specs], chunk)

    def takes_whole(self, chunk: Chunk) -> bool:
        """Tell whether a chunk is read at once. By range, its rows would be nearly the whole shard: they are of many lengths."""
        return chunk.number >= EARLY_CHUNKS and not self._source.is_by_range

    def read_whole(self, chunk: Chunk, specs: Group) -> Read[T]:
        """Return what is made of a chunk, or raise what fails."""
        read: Read[T] = Read()
        self._add(read, specs, chunk)
        return read

    def _read_groups(self, groups: Sequence[Group], chunk: Chunk) -> Read[T]:
        read: Read[T] = Read()
        try:
            for group in groups:
                self._add(read, group, chunk)
        except BaseException as error:  # noqa: BLE001
            read.error = error
        return read

    def _add(self, read: Read[T], group: Group, chunk: Chunk) -> None:
        if not group:
            return
        started = time.monotonic()
        views = self._views(group, chunk)
        fetched = time.monotonic()
        read.made += self._make(group, views)
        read.phases += [*self._source.waits(started, fetched, views), ("collate", fetched, time.monotonic())]

    def _views(self, group: Group, chunk: Chunk) -> Views:
        """Return views of the group's rows. The source is asked once a window for what has all been compared: 4 us a shard."""
        specs = [spec for spec, _ in group]
        if not self.takes_whole(chunk):
            return self._source.views(specs, chunk.number < EARLY_CHUNKS, fetch_on=chunk.number > 0)
        if chunk.window > self._sound[0]:
            self._sound = (chunk.window, {})  # lets go of the shards of the window before
        window, sound = self._sound
        if chunk.window == window:
            shards = set(np.concatenate([spec.shard for spec in specs]).tolist())
            if shards <= sound.keys():
                return {shard: sound[shard] for shard in shards}
        views = self._source.views(specs, early=False)
        if chunk.window == window:
            sound.update((shard, view) for shard, view in views.items() if isinstance(view, SoundView))
        return views
