"""The node's cache: each shard fetched once, decoded once into one file, and mapped by every process.

Crash-only: no daemon, no shared memory, no list of what is there that could be wrong. Locks are on open files, so they end
with their process, however it dies. For each shard, named by its SHA-256, there is

    *.rows          its entry (entry.py). Whoever maps it holds a shared lock, as long as any array over the map lives
    *.part          the entry while it is written, under an exclusive lock; renamed when it is whole. After a crash the
                    next one who needs the shard takes lock and file over
    *.RANDOM.dead   an entry found damaged that somebody still maps; goes as soon as nobody does
    usage           the sum of all sizes (room.py)

An entry is compared with its check sums when a process first opens it, its tokens when they are first used; one that
does not check is fetched again. A shard on a local disk is read in place, and its file is looked at before its entry is used:
when it is gone, has another size, or was touched since and has another digest, that is told, not papered over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import BlockError, ManifestError
from shardprep.formats.view import View
from shardprep.reader import held
from shardprep.reader.entry import Mapped
from shardprep.reader.filling import published, written_entry
from shardprep.reader.finding import Busy, EntryGroups, Finder, is_written
from shardprep.reader.folder import default_folder, fault, made
from shardprep.reader.ref import ShardRef
from shardprep.reader.room import ENTRY, PART, Kept, NoRoom, Room

__all__ = ["CachedShard", "NoRoom", "ShardCache", "ShardRef", "default_folder"]

_started_ns = time.time_ns()


def _never() -> bool:
    return False


class CachedShard:
    """A shard in the cache, mapped. Its file stays as long as this is open, or any array over it lives. Thread-safe."""

    def __init__(self, mapped: Mapped, replace: Callable[[NDArray[np.bool_]], Mapped]) -> None:
        """Hold a mapped entry. `replace` takes the one with this `compared` out of the cache, and returns another."""
        self._mapped: Mapped | None = mapped
        self._replace = replace
        self._rows = mapped.view.block.rows
        self._lock = threading.Lock()

    @property
    def view(self) -> View:
        """Return all rows: ids int32 (tokens,), offsets int64 (rows + 1,) and columns, over the map."""
        return self.view_of(0, self._rows)

    def view_of(self, first: int, stop: int) -> View:
        """Return the same as `view`, of which only the tokens of rows first to stop (exclusive) may be read.

        What this process did not compare yet is compared now; where it is damaged, the shard is fetched again. Raises what
        `ShardCache.get` raises, and BlockError if this is closed.
        """
        mapped = self._mapped
        while mapped is None or not mapped.is_sound(first, stop):
            with self._lock:
                if self._mapped is None:
                    raise BlockError("this shard of the cache was closed")
                if self._mapped is mapped:
                    compared = mapped.compared
                    self._mapped = mapped = None  # so that nothing of ours maps it
                    self._mapped = self._replace(compared)
                mapped = self._mapped
        return mapped.view

    def close(self) -> None:
        """Let go of the file. Arrays over it stay readable, and keep it."""
        self._mapped = None


class ShardCache:
    """Shards on this node's disk. Thread-safe, and shared by processes and jobs through its folder.

    limit_bytes  of all files in the folder, those of other jobs included; None: as much as the disk holds
    """

    def __init__(self, folder: str, limit_bytes: int | None = None) -> None:
        self.folder = made(folder)
        self.limit_bytes = limit_bytes
        self._room = Room(self.folder, limit_bytes, self._order)
        self._finder = Finder(self.folder, self._room, lambda: self._count("damaged"))
        self._next_use: dict[str, int] = {}
        self._counting = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "damaged": 0, "bytes_fetched": 0}
        self._is_swept = False

    def expect(self, refs: Sequence[ShardRef]) -> None:
        """Say which shards are needed from now on, the next one first: the last ones go first when room is needed."""
        self._next_use = {ref.info.sha256: place for place, ref in enumerate(refs)}

    def counts(self) -> dict[str, int]:
        """Return how many shards were here (hits) or not (misses), or damaged, and the bytes fetched."""
        with self._counting:
            return dict(self._counts)

    def peek(self, ref: ShardRef) -> CachedShard | None:
        """Return a shard that is in the cache, else None. Fetches nothing, and leaves it to `get` to say what is wrong."""
        with suppress(Busy, OSError, ManifestError):
            mapped = self._finder.open(ref)
            if mapped is not None:
                self._count("hits")
                return self._cached(ref, mapped)
        return None

    def get(self, ref: ShardRef, *, cancelled: Callable[[], bool] = _never) -> CachedShard:
        """Return a shard; it is fetched and decoded if it is not here, or waited for if somebody else does that now.

        Raises StoreError or ManifestError that names the shard; NoRoom where all that the cache may hold is in use; Full on
        a full disk; CancelledError soon after `cancelled` says so.
        """
        try:
            mapped = self._finder.find(ref, cancelled)
            if mapped is not None:
                self._count("hits")
            else:
                mapped = self._brought(ref, cancelled)
        except OSError as error:
            raise fault(error, self.folder) from error
        return self._cached(ref, mapped)

    def _cached(self, ref: ShardRef, mapped: Mapped) -> CachedShard:
        def replace(compared: NDArray[np.bool_]) -> Mapped:
            try:
                self._finder.remove_damaged(ref, compared)
                return self._finder.find(ref, _never) or self._brought(ref, _never)
            except OSError as error:
                raise fault(error, self.folder) from error

        return CachedShard(mapped, replace)

    def _count(self, name: str, number: int = 1) -> None:
        with self._counting:
            self._counts[name] += number

    def _brought(self, ref: ShardRef, cancelled: Callable[[], bool]) -> Mapped:
        """Return an entry that was not there: written by us, or by whoever is at it already."""
        if not self._is_swept:
            self._is_swept = True
            self._room.sweep()
        part = self._finder.path(ref, PART)
        for pause in held.pauses():
            if cancelled():
                raise CancelledError
            file = held.claim(part)
            if file is None:
                time.sleep(pause)
                mapped = self._finder.find(ref, cancelled)
            else:
                try:
                    mapped = self._finder.find(ref, cancelled)  # somebody may have published it before we had the lock
                    if mapped is None:
                        self._count("misses")
                        self._fill(ref, file, cancelled)
                        mapped = self._finder.find(ref, cancelled)
                    else:
                        os.unlink(part)
                finally:
                    held.close(file)
            if mapped is not None:
                return mapped
        raise AssertionError("pauses do not end")

    def _fill(self, ref: ShardRef, file: int, cancelled: Callable[[], bool]) -> None:
        """Write the entry into a file that is locked for us, and give it its name, with a shared lock."""
        part, size = self._finder.path(ref, PART), 0

        def grow(wanted: int) -> None:
            nonlocal size
            self._room.take(wanted - size, lambda: os.ftruncate(file, wanted), cancelled)
            size = wanted

        try:
            with written_entry(ref, file, grow, self._room.free, cancelled) as fetched:
                self._count("bytes_fetched", fetched)
                is_written(file, ref)
                self._room.rename(part, self._finder.path(ref, ENTRY))
                held.try_lock(file, part, shared=True)
                published(ref, EntryGroups(self._finder, ref))
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
                self._room.give_back(size)
            raise

    def _order(self, entries: Sequence[Kept]) -> list[Kept]:
        """Return entries as they may go: old ones of others, then ours, needed last first, then fresh ones of others."""

        def rank(kept: Kept) -> tuple[int, int]:
            place = self._next_use.get(kept.digest)
            if place is not None:
                return (1, -place)
            return (0 if kept.used_ns < _started_ns else 2, kept.used_ns)

        return sorted(entries, key=rank)
