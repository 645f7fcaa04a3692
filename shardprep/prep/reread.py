"""A shard's bytes as blocks, for verify, and what each format can tell of bytes that are not those that were written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from shardprep.core.block import TokenBlock
from shardprep.core.manifest import ShardInfo
from shardprep.errors import ManifestError, NotFound, StoreError
from shardprep.formats.parquet import decode_row_group, open_shard
from shardprep.formats.recordio import decode_prefix, decode_span
from shardprep.formats.recordio_frames import split_records
from shardprep.formats.recordio_spans import INDEX, RECORDS, SPANS, Spans, beside, index_lines
from shardprep.storage.store import Store


def blocks_of(store: Store, shard: ShardInfo, data: bytes) -> tuple[list[str], Iterator[TokenBlock]]:
    """Return the names of a shard's columns, and its blocks. Raises ManifestError for what cannot be decoded."""
    if shard.name.endswith(RECORDS):
        spans = Spans.parse(_beside(store, shard, SPANS), shard)
        _check_index(_beside(store, shard, INDEX), spans, shard, data)
        starts = spans.byte_starts.tolist()
        view = memoryview(data)
        parts = (view[start:stop] for start, stop in pairwise(starts))
        return spans.schema.names, (decode_span(spans, i, part) for i, part in enumerate(parts))
    if hashlib.sha256(data[-shard.footer_bytes :]).hexdigest() != shard.footer_sha256:
        raise ManifestError("has another footer digest than the manifest says")
    file = open_shard(pa.BufferReader(data))
    return file.schema_arrow.names, (decode_row_group(file, group) for group in range(file.num_row_groups))


def _beside(store: Store, shard: ShardInfo, ending: str) -> bytes:
    name = beside(shard.name, ending)
    try:
        return store.get(name)
    except NotFound as error:
        raise ManifestError(f"lacks the file {name} that belongs to it") from error
    except StoreError as error:
        raise ManifestError(f"has beside it {name}, which cannot be read ({error.message})") from error


def _check_index(index: bytes, spans: Spans, shard: ShardInfo, data: bytes) -> None:
    name = beside(shard.name, INDEX)
    if hashlib.sha256(index).hexdigest() != spans.index_sha256:
        raise ManifestError(f"has beside it {name}, which was replaced or damaged")
    if index != index_lines(0, split_records(data).heads):
        raise ManifestError(f"has beside it {name}, which does not lead to its records")


def damage_in(shard: ShardInfo, data: bytes, schema: pa.Schema) -> str:
    """Return what the bytes alone tell of where a RecordIO shard is cut or damaged, for the end of a message; else ""."""
    if not shard.name.endswith(RECORDS):
        return ""
    try:
        _, whole = decode_prefix(data, schema)
    except ManifestError as error:
        return f"; it {error.message}"
    return "" if whole == len(data) else f"; the record that begins at byte {whole:,} is cut off at byte {len(data):,}"
