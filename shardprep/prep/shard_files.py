"""The files that make one shard: a Parquet file, or records with two files beside them.

Records are put last: where a .rec stands under its final name, what belongs beside it is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from shardprep.core import plan_shards
from shardprep.core.block import TokenBlock
from shardprep.core.content import ShardInfo
from shardprep.errors import ManifestError
from shardprep.formats import parquet
from shardprep.formats.recordio import RecordWriter
from shardprep.formats.recordio_spans import INDEX, RECORDS, SPANS, Spans, beside
from shardprep.formats.shard import ShardDigest
from shardprep.storage.spool import Spool, spool
from shardprep.storage.store import Store

ENDINGS = {"parquet": ".parquet", "recordio": RECORDS}
# Estimates for the number of shards, as measured on natural text; recordio: docs/recordio.md.
BYTES_PER_TOKEN = {"parquet": plan_shards.BYTES_PER_TOKEN, "recordio": 2.1}
CHECKED_BYTES = 16 << 20  # of a finished shard, at once


class ShardFiles(Protocol):
    """The files of one shard while they are written."""

    def write(self, block: TokenBlock) -> None:
        """Append a block."""
        ...

    def put(self) -> ShardDigest:
        """Finish the files, put them under their names, and return what the shard is known by."""
        ...


@contextmanager
def shard_files(store: Store, name: str, schema: pa.Schema) -> Iterator[ShardFiles]:
    """Yield the files of a shard of this name, on this machine's disk until they are put."""
    with spool(store, name) as sink:
        if not name.endswith(RECORDS):
            yield _ParquetFile(store, name, schema, sink)
            return
        with spool(store, beside(name, INDEX)) as index:
            yield _RecordFiles(store, name, schema, sink, index)


class _ParquetFile:
    def __init__(self, store: Store, name: str, schema: pa.Schema, sink: Spool) -> None:
        self._store, self._name, self._sink = store, name, sink
        self._writer = parquet.ShardWriter(sink, schema)

    def write(self, block: TokenBlock) -> None:
        self._writer.write(block)

    def put(self) -> ShardDigest:
        digest = self._writer.close()
        self._store.put_file(self._name, self._sink.path)
        return digest


class _RecordFiles:
    def __init__(self, store: Store, name: str, schema: pa.Schema, sink: Spool, index: Spool) -> None:
        self._store, self._name, self._sink, self._index = store, name, sink, index
        self._writer = RecordWriter(sink, index, schema)

    def write(self, block: TokenBlock) -> None:
        self._writer.write(block)

    def put(self) -> ShardDigest:
        digest = self._writer.close()
        self._store.put_file(beside(self._name, INDEX), self._index.path)
        self._store.put(beside(self._name, SPANS), self._writer.spans)
        self._store.put_file(self._name, self._sink.path)
        return digest


def names_beside(name: str) -> tuple[str, ...]:
    """Return the names of the files that belong beside a shard."""
    return (beside(name, INDEX), beside(name, SPANS)) if name.endswith(RECORDS) else ()


def are_whole(store: Store, name: str, info: ShardInfo) -> bool:
    """Say whether all files of a shard have the right bytes. Raises StoreError where one is missing."""
    if name.endswith(RECORDS):
        try:
            spans = Spans.parse(store.get(beside(name, SPANS)), info)
        except ManifestError:
            return False
        if not _is_whole(store, beside(name, INDEX), spans.index_bytes, spans.index_sha256):
            return False
    return _is_whole(store, name, info.bytes, info.sha256)


def _is_whole(store: Store, name: str, size_bytes: int, sha256: str) -> bool:
    if store.head(name)[0] != size_bytes:
        return False
    digest = hashlib.sha256()
    for start in range(0, size_bytes, CHECKED_BYTES):
        digest.update(store.get_range(name, start, start + CHECKED_BYTES, size_bytes=size_bytes))
    return digest.hexdigest() == sha256
