"""One shard being read in this process: by range for the first batches, as a whole for the cache, or both at once.

Nothing is fetched twice, and hardly anything decoded twice. The first batches take groups out of order, the digest of the whole
needs them in order: what was fetched early is kept, within a limit, until the whole shard has come to it.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TypeVar

from shardprep.core.block import TokenBlock
from shardprep.errors import ManifestError
from shardprep.reader.decoding import one_at_a_time
from shardprep.reader.doing import DECODE, FETCH, doing
from shardprep.reader.fetcher import difference, read_beside, read_until, start_read
from shardprep.reader.layout import ShardLayout, read_layout
from shardprep.reader.recent import Recent
from shardprep.reader.ref import ShardRef
from shardprep.storage.retry import stop_retrying_when
from shardprep.storage.store import local_path_of

T = TypeVar("T")
# Of one process, for first batches: as fetched, until they are in the cache, and decoded, since the next batch often
# needs the same group.
FETCHED_BYTES, DECODED_BYTES = 8 << 20, 8 << 20


class Written(Protocol):
    """Whoever has the groups that were read for the cache, and whose bytes were forgotten."""

    def has(self, group: int) -> bool:
        """Return whether this group was written."""
        ...

    def block(self, group: int, first: int, stop: int) -> TokenBlock | None:
        """Return a group, which is rows first to stop (exclusive); None where it is no longer to be had here."""
        ...


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
        self._kept: set[int] = set()  # fetched for the cache, which comes to them soon
        self._written: Written | None = None
        self._bytes_read = 0

    @property
    def layout(self) -> ShardLayout:
        """Return where the groups lie; read once. Raises ManifestError that names the shard."""
        with self._reading_layout:
            if self._layout is None:
                self._layout = self._tried_twice(lambda: read_layout(self.ref.info, self._read_now, self._read_beside))
            return self._layout

    def request(self, group: int, *, keep: bool = False) -> Future[bytes]:
        """Begin to fetch a group, unless it is here or under way; one that failed is fetched again.

        keep: until `forget`, however much else is fetched.
        """
        span = self.layout.spans[group]
        with self._lock:
            if keep:
                self._kept.add(group)
            return self._here(group) or self._started(group, span)

    def forget(self, group: int) -> None:
        """Let go of the bytes of a group."""
        with self._lock:
            self._kept.discard(group)
            self._fetched.pop(group, None)
        _fetched.pop((id(self), group))

    def decode(self, group: int, fetched: Future[bytes]) -> TokenBlock:
        """Return the rows in the bytes of a group. Raises StoreError or ManifestError that names the shard."""
        futures = itertools.chain((fetched,), iter(lambda: self.request(group), None))
        return self._tried_twice(lambda: self._decode(group, next(futures)))

    def rows(self, group: int) -> TokenBlock:
        """Return the rows of a group for a first batch: from memory, from what the cache wrote already, or fetched."""
        block = self._decoded.get(group)
        if block is None:
            found = self._found(group)
            if isinstance(found, TokenBlock):
                return found  # not kept: it may lie over an entry, which could not be removed then
            block = self.decode(group, found)
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
        spans = self.layout.spans
        with self._lock:
            for group in groups:
                is_written = self._written is not None and self._written.has(group)
                if group not in self._decoded and self._here(group) is None and not is_written:
                    self._started(group, spans[group])

    def is_written_by(self, written: Written | None) -> None:
        """Say who has the groups that were read, written and forgotten."""
        with self._lock:
            self._written = written
            self._kept.clear()

    def take_bytes_read(self) -> int:
        """Return the bytes asked for since the last call."""
        with self._lock:
            read, self._bytes_read = self._bytes_read, 0
        return read

    def _found(self, group: int) -> TokenBlock | Future[bytes]:
        """Return the rows where the cache has them, else where the bytes are or will be.

        One look under one lock: what was asked for once is fetched or written at any time.
        """
        span = self.layout.spans[group]
        for _attempt in range(2):  # the writer may end meanwhile; then its entry is there
            with self._lock:
                future, written = self._here(group), self._written
                if future is not None or written is None or not written.has(group):
                    return future or self._started(group, span)
            block = written.block(group, *self.layout.row_starts[group : group + 2].tolist())
            if block is not None:
                return block
        return self.request(group)

    def _here(self, group: int) -> Future[bytes] | None:
        future = self._fetched.get(group)
        return None if future is None or (future.done() and future.exception() is not None) else future

    def _started(self, group: int, span: tuple[int, int]) -> Future[bytes]:
        start, stop = span
        with self._at(FETCH):  # a local file is read at once
            future = self._fetched[group] = start_read(self.ref, start, stop, self.stopped)
        self._bytes_read += stop - start
        return future

    def _decode(self, group: int, fetched: Future[bytes]) -> TokenBlock:
        layout = self.layout
        with self._at(FETCH):
            data = fetched.result()
        block = self._decoded.get(group)
        if block is not None:
            return block
        with self._at(DECODE), one_at_a_time():
            block = self._decoded.get(group)
            if block is None:
                try:
                    block = self._decoded[group] = layout.decode(group, data)
                except ManifestError:
                    self.forget(group)
                    raise
        return block

    def _at(self, cause: str) -> AbstractContextManager[None]:
        return doing.at(cause, self.ref.info.sha256)

    def drop(self, group: int) -> None:
        """Let go of the bytes of a group, unless the cache comes to it soon."""
        with self._lock:
            if group not in self._kept:
                self._fetched.pop(group, None)

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
        with self._at(FETCH):
            return read_until(self.stopped, self.ref, start, stop)

    def _read_beside(self, name: str, size_bytes: int) -> bytes:
        with self._lock:
            self._bytes_read += size_bytes
        with self._at(FETCH), stop_retrying_when(self.stopped):
            return read_beside(self.ref, name, size_bytes)


def _forget(fetched: tuple[weakref.ref[ShardReading], int]) -> None:
    reading = fetched[0]()
    if reading is not None:
        reading.drop(fetched[1])


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
