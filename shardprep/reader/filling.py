"""From a shard in the store to its entry in the cache: fetched ahead, hashed in order, decoded and written group by group."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress

import pyarrow as pa

from shardprep.errors import BlockError, ManifestError
from shardprep.reader.doing import DECODE, FETCH, doing
from shardprep.reader.entry_writer import EntryWriter
from shardprep.reader.fetcher import difference
from shardprep.reader.reading import ShardReading, Written, share
from shardprep.reader.ref import ShardRef
from shardprep.storage.store import local_path_of

OTHER_DIGEST = "has another sha256 digest than the manifest says: it was replaced or damaged"
AHEAD_BYTES = 4 << 20  # of one shard, fetched and not yet decoded
CANCEL_S = 0.1  # between two looks whether somebody still waits for what is fetched


@contextmanager
def written_entry(
    ref: ShardRef,
    file: int,
    grow: Callable[[int], None],
    make_space: Callable[[int], bool],
    cancelled: Callable[[], bool],
) -> Iterator[int]:
    """Write a shard as an entry into an open file, and yield the bytes fetched for it.

    grow        makes the file larger, to this size in bytes
    make_space  called with a number of bytes when the disk is full; says whether it is worth trying again

    First batches read what is written as long as the block runs, which gives the entry its name. A shard that was damaged on
    its way is fetched once more. Raises StoreError or ManifestError that names the shard.
    """
    fetched = 0
    for reading in (share(ref), ShardReading(ref)):
        os.ftruncate(file, 0)
        writer = EntryWriter(file, ref.info, make_space)
        grow(writer.columns_at)
        reading.is_written_by(writer)
        try:
            digest = _copied(reading, writer, cancelled)
            fetched += reading.take_bytes_read()
            if digest == ref.info.sha256:
                writer.finish(grow)
                yield fetched
                return
            reading.is_written_by(None)
        except BaseException as error:
            reading.is_written_by(None)
            if isinstance(error, BlockError):
                raise ref.broken(error.message) from error
            if isinstance(error, ManifestError) and "shard" not in error.fields:
                raise ref.broken(error.message) from error
            raise
        finally:
            writer.end()
            pa.default_memory_pool().release_unused()  # of the columns; each thread keeps its own else
        if local_path_of(ref.uri) is not None:
            break
    raise difference(ref, OTHER_DIGEST)


def published(ref: ShardRef, entry: Written) -> None:
    """Say that the entry that was written has its name: first batches read it from there."""
    share(ref).is_written_by(entry)


def _copied(reading: ShardReading, writer: EntryWriter, cancelled: Callable[[], bool]) -> str:
    """Fetch, decode and write all groups in order; return the SHA-256 of all bytes."""
    spans, digest, shard = reading.layout.spans, hashlib.sha256(), reading.ref.info.sha256
    asked: deque[Future[bytes]] = deque()
    for group, (start, _) in enumerate(spans):
        while group + len(asked) < len(spans) and (not asked or spans[group + len(asked)][1] - start <= AHEAD_BYTES):
            asked.append(reading.request(group + len(asked), keep=True))
        fetched = asked.popleft()
        if fetched.done() and fetched.exception() is not None:  # long ago, perhaps
            fetched = reading.request(group, keep=True)
        with doing.at(FETCH, shard):
            data = _awaited(reading, fetched, cancelled)
        with doing.at(DECODE, shard):
            digest.update(data)
        block = reading.decode(group, fetched)
        with doing.at(DECODE, shard):
            writer.append(block)
        del block, data, fetched  # not beside the next ones
        reading.forget(group)
    digest.update(reading.layout.tail)
    return digest.hexdigest()


def _awaited(reading: ShardReading, future: Future[bytes], cancelled: Callable[[], bool]) -> bytes:
    while True:
        if cancelled():
            reading.stopped.set()
            raise CancelledError
        with suppress(TimeoutError):
            return future.result(CANCEL_S)
        if future.done():  # it is the read that timed out
            return future.result()
