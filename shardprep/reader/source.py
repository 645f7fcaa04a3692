"""Rows by shard and place: from the node's cache, or by row group while the cache is still being filled."""

from __future__ import annotations

import resource
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardprep.core.schedule import MicroBatch
from shardprep.formats.view import View
from shardprep.reader.cache import CachedShard, ShardCache
from shardprep.reader.doing import Phase, doing
from shardprep.reader.plan import Schedule
from shardprep.reader.ranges import ShardRanges
from shardprep.reader.ref import ShardRef
from shardprep.reader.room import NoRoom

FETCHES = 2  # shards fetched at once; each is several ranged requests of its own
WINDOWS_AHEAD = 64  # whose shards are told to a cache with a limit
EARLY_CHUNKS = 4  # chunks that may read row groups by range instead of waiting for whole shards
EARLY_TOKENS = 4 << 20  # of one shard, between the first and the last row of a micro-batch that is read by range: 16 MB
MOST_HELD = 16_384  # shards of one loader in use at once: Linux maps at most 65,530 files a process (vm.max_map_count)


def most_held() -> int:
    """Return how many shards one loader may hold: each keeps a file open, and half of what a process may open stays free.

    Tiny shards can be thousands a window; those beyond this number are read by range.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_HELD if files == resource.RLIM_INFINITY else min(MOST_HELD, files // 2)


class ShardSource:
    """The shards of the open window and of the next one, for the slots of one rank.

    ahead: chunks in the making at once, at most. `enter` belongs to one thread; `views` may be called by several. A context
    manager that lives for one epoch.
    """

    def __init__(self, refs: Sequence[ShardRef], slots: range, cache: ShardCache, ahead: int = 1) -> None:
        self._refs = refs
        self._slots = slots
        self._cache = cache
        self._held: dict[int, Future[CachedShard]] = {}
        self._ranges: dict[int, ShardRanges] = {}
        self._by_range_bytes = 0  # of ranges that are closed, and not counted yet
        self._wanted: list[int] = []  # still to be fetched, in the order in which they are needed
        self._ahead: set[int] = set()  # fetched before anybody waited for them
        # Of the windows entered last: each chunk in the making may be in a window of its own.
        self._entered: deque[set[int]] = deque(maxlen=ahead + 1)
        self._window = -1
        self.is_by_range = False  # some shards have no room in the cache
        self._most_held = most_held()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="shardprep-shard")
        self._told = dict.fromkeys(("bytes_fetched", "hits", "misses"), 0)

    def __enter__(self) -> Self:
        """Open nothing yet: `enter` does."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop fetching and let go of the shards; views that are still alive stay readable."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for future in self._held.values():
            _let_go(future)
        self._held.clear()
        for ranges in self._ranges.values():
            ranges.close()
        self._ranges.clear()

    def stop(self) -> None:
        """Give up what is being fetched, so that nobody waits for it any more."""
        self._cancelled.set()
        with self._lock:
            for ranges in self._ranges.values():
                ranges.stop()

    def enter(self, schedule: Schedule, window: int) -> None:
        """Say which window is read from now on: its shards are held, the next one's are fetched."""
        if window == self._window:
            return
        self._window = window
        # The first two windows are held. More of the epoch matters to a cache that must choose what to remove.
        ahead = 2 if self._cache.limit_bytes is None else WINDOWS_AHEAD
        stop = min(window + ahead, len(schedule.windows))
        rest = [schedule.shards(w, self._slots).tolist() for w in range(window, stop)]
        self._cache.expect([self._refs[shard] for shard in dict.fromkeys(shard for part in rest for shard in part)])
        with self._lock:
            self._wanted = list(dict.fromkeys(shard for part in rest[:2] for shard in part))
            self._entered.append(set(rest[0]))
            keep = set(self._wanted).union(*self._entered)
            for shard in [shard for shard in self._held if shard not in keep]:
                _let_go(self._held.pop(shard))
                self._ahead.discard(shard)
            self._close_ranges(shard for shard in list(self._ranges) if shard not in keep)

    def views(self, specs: Iterable[MicroBatch], early: bool, *, fetch_on: bool = True) -> dict[int, View]:
        """Return a view of every shard that these micro-batches need, over the rows that they need.

        early     read row groups where a shard is not in the cache yet, instead of waiting for all of it
        fetch_on  begin to fetch the shards of the window afterwards; not where a first batch is all that is needed yet

        Raises StoreError or ManifestError that names the shard.
        """
        needs = _needs(specs)
        waiting: dict[int, Future[CachedShard] | Future[View]] = {}
        for shard, rows in needs.items():
            cached = self._cached(shard, wait=not (early and self._lie_together(shard, rows)))
            waiting[shard] = self._by_range(shard).start(rows) if cached is None else cached
        views = {}
        for shard, future in waiting.items():
            try:
                found = future.result()
            except NoRoom:  # the cache is full of what is in use: this shard is read by range as long as it is needed
                self.is_by_range = True
                found = self._by_range(shard).view(needs[shard])
            views[shard] = found if isinstance(found, View) else _view_of(found, needs[shard])
        if fetch_on:
            self._fetch_wanted()
        if not early and not self.is_by_range and self._ranges:  # whole shards from here on
            with self._lock:
                self._close_ranges(list(self._ranges))
        return views

    def waits(self, start: float, stop: float, shards: Iterable[int]) -> list[Phase]:
        """Return the time from before to after a call of `views` for these shards, by what was waited for."""
        return doing.phases(start, stop, {self._refs[shard].info.sha256 for shard in shards})

    def taken(self) -> dict[str, int]:
        """Return bytes fetched, and shards that were in the cache or not, since the last call."""
        counts = self._cache.counts()
        with self._lock:
            since = {name: counts[name] - told for name, told in self._told.items()}
            self._told = {name: counts[name] for name in self._told}
            by_range, self._by_range_bytes = self._by_range_bytes, 0
            by_range += sum(ranges.take_bytes_read() for ranges in self._ranges.values())
        return {
            "bytes_fetched": since["bytes_fetched"] + by_range,
            "cache_hits": since["hits"],
            "cache_misses": since["misses"],
        }

    def _cached(self, shard: int, wait: bool) -> Future[CachedShard] | None:
        """Return where the whole shard is, or will be if that is to be waited for."""
        with self._lock:
            future = self._held.get(shard)
            if future is not None and shard in self._ahead and (wait or future.done()):
                self._ahead.remove(shard)
                if future.done() and future.exception() is not None:  # long ago, perhaps: now it is needed
                    del self._held[shard]
                    future = None
            if future is None and len(self._held) < self._most_held:
                cached = self._cache.peek(self._refs[shard])
                if cached is not None:
                    future = self._held[shard] = Future()
                    future.set_result(cached)
                elif wait:
                    future = self._submit(shard)
        if future is None or wait or future.done():
            return future
        # On its way, perhaps behind others, but in the cache by now, or from the epoch before: nothing to fetch by range.
        cached = self._cache.peek(self._refs[shard])
        if cached is None:
            return None
        future = Future()
        future.set_result(cached)
        return future

    def _lie_together(self, shard: int, rows: NDArray[np.int64]) -> bool:
        """Tell whether rows lie in few groups. Where many rows have one length, a batch of them lies all over the shard."""
        info = self._refs[shard].info
        return int(rows[-1] - rows[0]) * info.tokens <= EARLY_TOKENS * info.rows

    def _by_range(self, shard: int) -> ShardRanges:
        with self._lock:
            if self._cancelled.is_set():
                raise CancelledError
            ranges = self._ranges.get(shard)
            if ranges is None:
                ranges = self._ranges[shard] = ShardRanges(self._refs[shard])
            return ranges

    def _close_ranges(self, shards: Iterable[int]) -> None:
        for shard in shards:
            ranges = self._ranges.pop(shard)
            self._by_range_bytes += ranges.take_bytes_read()
            ranges.close()

    def _fetch_wanted(self) -> None:
        """Begin to fetch what the window and the next one need: after the first views, which the loop waits for."""
        with self._lock:
            for shard in self._wanted:
                if shard not in self._held and len(self._held) < self._most_held:
                    self._submit(shard, ahead=True)
                    self._ahead.add(shard)
            self._wanted = []

    def _submit(self, shard: int, ahead: bool = False) -> Future[CachedShard]:
        if self._cancelled.is_set():
            raise CancelledError
        future = self._held[shard] = self._pool.submit(self._brought, self._refs[shard], ahead)
        return future

    def _brought(self, ref: ShardRef, ahead: bool) -> CachedShard:
        cached = self._cache.get(ref, cancelled=self._cancelled.is_set)
        try:
            if ahead and not self._cancelled.is_set():
                _ = cached.view  # compared with its sums now, beside the threads that make batches
        except BaseException:
            cached.close()
            raise
        return cached


def _let_go(future: Future[CachedShard]) -> None:
    def close(done: Future[CachedShard]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    if not future.cancel():
        future.add_done_callback(close)


def _view_of(shard: CachedShard, rows: NDArray[np.int64]) -> View:
    return shard.view_of(int(rows[0]), int(rows[-1]) + 1)


def _needs(specs: Iterable[MicroBatch]) -> dict[int, NDArray[np.int64]]:
    """Return the rows that micro-batches need of each shard, ascending."""
    listed = list(specs)
    shards: NDArray[Any] = np.concatenate([spec.shard for spec in listed])
    rows = np.concatenate([spec.row for spec in listed])
    order = np.lexsort((rows, shards))
    distinct, starts = np.unique(shards[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True))
