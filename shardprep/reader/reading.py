"""One shard being read in this process: by range for the first batches, as a whole for the cache, or both at once.

Nothing is fetched twice, and hardly anything decoded twice. The first batches take groups out of order, the digest of the whole
needs them in order: what was fetched early is kept, within a limit, until the whole shard has come to it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from shardprep.core.block import TokenBlock
from shardprep.errors import ManifestError
from shardprep.reader.entry_writer import EntryWriter
from shardprep.reader.fetcher import difference, read_until, start_read
from shardprep.reader.layout import ShardLayout, read_layout
from shardprep.reader.recent import Recent
from shardprep.reader.ref import ShardRef
from shardprep.storage.store import local_path_of

T = TypeVar("T")
# Of one process, for first batches: as fetched, until they are in the cache, and decoded, since the next batch often
# needs the same group.
FETCHED_BYTES, DECODED_BYTES = 8 << 20, 8 << 20


class ShardReading:
    """Groups of one shard, fetched when asked for. Thread-safe. See `share`."""

    def __init__(self, ref: ShardRef) -> None:
        self.ref = ref
        self.stopped = threading.Event()  # set when nobody waits for it any more: waits between tries end
        self._lock = threading.Lock()
        self._reading_layout = threading.Lock()
        self._layout: ShardLayout | None = None
        self._fetched: dict[int, Future[bytes]] = {}
        self._decoded: weakref.WeakValueDictionary[int, TokenBlock] = weakref.WeakValueDictionary()
        self._writer: EntryWriter | None = None
        self._bytes_read = 0

    @property
    def layout(self) -> ShardLayout:
        """Return where the groups lie; read once. Raises ManifestError that names the shard."""
        with self._reading_layout:
            if self._layout is None:
                self._layout = self._tried_twice(lambda: read_layout(self.ref.info, self._read_now))
            return self._layout

    def request(self, group: int) -> Future[bytes]:
        """Begin to fetch a group, unless it is here or under way; one that failed is fetched again."""
        start, stop = self.layout.spans[group]
        with self._lock:
            future = self._fetched.get(group)
            if future is None or (future.done() and future.exception() is not None):
                future = self._fetched[group] = start_read(self.ref, start, stop, self.stopped)
                self._bytes_read += stop - start
            return future

    def forget(self, group: int) -> None:
        """Let go of the bytes of a group."""
        with self._lock:
            self._fetched.pop(group, None)
        _fetched.pop((id(self), group))

    def decode(self, group: int) -> TokenBlock:
        """Return the rows of a group, fetched if need be. Raises StoreError or ManifestError that names the shard."""
        return self._tried_twice(lambda: self._decode(group))

    def rows(self, group: int) -> TokenBlock:
        """Return the rows of a group for a first batch: from memory, from what the cache wrote already, or fetched."""
        block, writer = self._decoded.get(group), self._writer
        if block is None and writer is not None:
            block = writer.block(group)
        if block is None:
            block = self.decode(group)
            pa.default_memory_pool().release_unused()  # what decoding took beside the rows stays with the thread else
            start, stop = self.layout.spans[group]
            _fetched.put((id(self), group), (weakref.ref(self), group), stop - start)
        self._decoded[group] = block
        _decoded.put((id(self), group), block, block.ids.nbytes)
        return block

    def let_go(self) -> None:
        """Keep nothing alive for batches to come."""
        for group in list(self._decoded):
            _decoded.pop((id(self), group))

    def prefetch(self, groups: Iterable[int]) -> None:
        """Begin to fetch those of these groups that `rows` would fetch."""
        writer = self._writer
        written = 0 if writer is None else writer.groups
        for group in groups:
            if group >= written and group not in self._decoded:
                self.request(group)

    def is_written_by(self, writer: EntryWriter | None) -> None:
        """Say who has the groups that were read, written and forgotten."""
        self._writer = writer

    def take_bytes_read(self) -> int:
        """Return the bytes asked for since the last call."""
        with self._lock:
            read, self._bytes_read = self._bytes_read, 0
        return read

    def _decode(self, group: int) -> TokenBlock:
        data = self.request(group).result()
        block = self._decoded.get(group)
        if block is None:
            try:
                block = self._decoded[group] = self.layout.decode(group, data)
            except ManifestError:
                self.forget(group)
                raise
        return block

    def _tried_twice(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ManifestError as error:
            if local_path_of(self.ref.uri) is None:  # perhaps it was damaged on its way
                with suppress(ManifestError):
                    return call()
            raise error if "shard" in error.fields else difference(self.ref, error.message) from error

    def _read_now(self, start: int, stop: int) -> bytes:
        with self._lock:
            self._bytes_read += stop - start
        return read_until(self.stopped, self.ref, start, stop)


def _forget(fetched: tuple[weakref.ref[ShardReading], int]) -> None:
    reading = fetched[0]()
    if reading is not None:
        reading.forget(fetched[1])


_fetched: Recent[tuple[weakref.ref[ShardReading], int]] = Recent(FETCHED_BYTES, _forget)
_decoded: Recent[TokenBlock] = Recent(DECODED_BYTES)
_sharing = threading.Lock()
_shared: weakref.WeakValueDictionary[tuple[str, str], ShardReading] = weakref.WeakValueDictionary()


def share(ref: ShardRef) -> ShardReading:
    """Return the reading of this shard that is under way in this process, or a new one."""
    key = (ref.address, ref.info.sha256)
    with _sharing:
        reading = _shared.get(key)
        if reading is None or reading.stopped.is_set():
            reading = _shared[key] = ShardReading(ref)
        return reading


def _begin_in_child() -> None:
    """Forget what the parent reads: its threads are not here, and its locks may be held for ever."""
    global _sharing, _shared
    _sharing, _shared = threading.Lock(), weakref.WeakValueDictionary()
    _fetched.begin()
    _decoded.begin()


os.register_at_fork(after_in_child=_begin_in_child)
