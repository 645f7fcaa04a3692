"""From a shard in the store to its entry in the cache: fetched ahead, hashed in order, decoded and written group by group."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress

import pyarrow as pa

from shardprep.errors import BlockError, ManifestError
from shardprep.reader.entry_writer import EntryWriter
from shardprep.reader.fetcher import difference
from shardprep.reader.reading import ShardReading, share
from shardprep.reader.ref import ShardRef
from shardprep.storage.store import local_path_of

OTHER_DIGEST = "has another sha256 digest than the manifest says: it was replaced or damaged"
AHEAD_BYTES = 4 << 20  # of one shard, fetched and not yet decoded
CANCEL_S = 0.1  # between two looks whether somebody still waits for what is fetched


def write_entry(
    ref: ShardRef,
    file: int,
    grow: Callable[[int], None],
    make_space: Callable[[int], bool],
    cancelled: Callable[[], bool],
) -> int:
    """Write a shard as an entry into an open file, and return the bytes fetched for it.

    grow        makes the file larger, to this size in bytes
    make_space  called with a number of bytes when the disk is full; says whether it is worth trying again

    A shard that was damaged on its way is fetched once more. Raises StoreError or ManifestError that names the shard.
    """
    fetched = 0
    for reading in (share(ref), ShardReading(ref)):
        os.ftruncate(file, 0)
        writer = EntryWriter(file, ref.info, make_space)
        grow(writer.columns_at)
        reading.is_written_by(writer)
        try:
            digest = _copy(reading, writer, cancelled)
            fetched += reading.take_bytes_read()
            if digest == ref.info.sha256:
                writer.finish(grow)
                return fetched
        except BlockError as error:
            raise ref.broken(error.message) from error
        except ManifestError as error:
            raise error if "shard" in error.fields else ref.broken(error.message) from error
        finally:
            reading.is_written_by(None)
            writer.end()
            pa.default_memory_pool().release_unused()  # each thread keeps some 30 MB else
        if local_path_of(ref.uri) is not None:
            break
    raise difference(ref, OTHER_DIGEST)


def _copy(reading: ShardReading, writer: EntryWriter, cancelled: Callable[[], bool]) -> str:
    """Fetch, decode and write all groups in order; return the SHA-256 of all bytes."""
    spans, digest = reading.layout.spans, hashlib.sha256()
    asked = 0
    for group, (start, _) in enumerate(spans):
        while asked < len(spans) and (asked <= group or spans[asked][1] - start <= AHEAD_BYTES):
            reading.request(asked)
            asked += 1
        digest.update(_awaited(reading, group, cancelled))
        writer.append(reading.decode(group))
        reading.forget(group)
    digest.update(reading.layout.tail)
    return digest.hexdigest()


def _awaited(reading: ShardReading, group: int, cancelled: Callable[[], bool]) -> bytes:
    future = reading.request(group)
    while True:
        if cancelled():
            reading.stopped.set()
            raise CancelledError
        with suppress(TimeoutError):
            return future.result(CANCEL_S)
        if future.done():  # it is the read that timed out
            return future.result()
