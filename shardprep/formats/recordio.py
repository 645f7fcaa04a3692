"""Blocks to RecordIO shards and back: dmlc framing around SageMaker's recordio-protobuf, one record a row.

What a record holds stands in recordio_fields.py, how it is framed in recordio_frames.py, and both in docs/recordio.md.
Beside a shard 3f2a91c0/train/00000-of-00012.rec, which is nothing but records, there are two files for who reads a part of it:

    3f2a91c0/index/train/00000-of-00012.idx    as MXNet and dmlc-core want it: one line a record, number, TAB, byte
    3f2a91c0/index/train/00000-of-00012.json   spans of whole records, with check sums; the manifest has its size and digest,
                                               where a Parquet shard has those of its footer
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.core.block import TokenBlock
from shardprep.core.manifest import Manifest
from shardprep.errors import ManifestError
from shardprep.formats.recordio_decode import decode_records
from shardprep.formats.recordio_encode import encode_records
from shardprep.formats.recordio_fields import entries_of
from shardprep.formats.recordio_frames import damaged, split_records
from shardprep.formats.recordio_payloads import Payloads
from shardprep.formats.recordio_spans import Spans, index_lines
from shardprep.formats.shard import ShardDigest, Sink, arrow_schema


class RecordWriter:
    """Writes blocks as spans of records, one each, and hashes while it writes; the same blocks make the same bytes.

    sink takes the shard, index the .idx file. `spans` is the file of spans, once `close` was called.
    """

    def __init__(self, sink: Sink, index: Sink, schema: pa.Schema) -> None:
        self._sink, self._index, self._schema = sink, index, schema
        self._entries = entries_of(schema)
        self._digest, self._index_digest = hashlib.sha256(), hashlib.sha256()
        self._rows, self._bytes, self._crcs = [0], [0], list[int]()
        self._tokens = self._escapes = self._index_bytes = 0
        self.spans = b""

    def write(self, block: TokenBlock) -> None:
        """Append a block; its columns are found by name. Raises BlockError if they do not fit."""
        if not block.rows:
            return
        records = encode_records(block, self._schema, self._entries)
        lines = index_lines(self._rows[-1], records.heads + self._bytes[-1])
        self._sink.write(records.data.data)
        self._index.write(lines)
        self._digest.update(records.data.data)
        self._index_digest.update(lines)
        self._crcs.append(zlib.crc32(records.data.data))
        self._rows.append(self._rows[-1] + block.rows)
        self._bytes.append(self._bytes[-1] + len(records.data))
        self._index_bytes += len(lines)
        self._tokens += block.tokens
        self._escapes += records.escapes

    def close(self) -> ShardDigest:
        """Return what the shard is known by."""
        self.spans = Spans(
            np.array(self._rows, dtype=np.int64),
            np.array(self._bytes, dtype=np.int64),
            np.array(self._crcs, dtype=np.int64),
            self._escapes,
            self._index_bytes,
            self._index_digest.hexdigest(),
            self._schema,
        ).to_bytes()
        return ShardDigest(
            rows=self._rows[-1],
            tokens=self._tokens,
            row_groups=len(self._crcs),
            size_bytes=self._bytes[-1],
            sha256=self._digest.hexdigest(),
            footer_bytes=len(self.spans),
            footer_sha256=hashlib.sha256(self.spans).hexdigest(),
            escapes=self._escapes,
        )


class Encoded(NamedTuple):
    """A shard in memory: its records, its .idx file, its file of spans, and what it is known by."""

    records: bytes
    idx: bytes
    spans: bytes
    digest: ShardDigest


def encode_shard(blocks: Iterable[TokenBlock], schema: pa.Schema) -> Encoded:
    """Return the bytes of a shard made of these blocks."""
    sink, index = pa.BufferOutputStream(), pa.BufferOutputStream()
    writer = RecordWriter(sink, index, schema)
    for block in blocks:
        writer.write(block)
    digest = writer.close()
    return Encoded(sink.getvalue().to_pybytes(), index.getvalue().to_pybytes(), writer.spans, digest)


def schema_of(manifest: Manifest) -> pa.Schema:
    """Return the columns of a data set's shards, as its manifest declares them."""
    return arrow_schema(manifest.schema)


def decode_prefix(data: Any, schema: pa.Schema, base: int = 0) -> tuple[TokenBlock, int]:
    """Return the rows of all whole records at the start of some bytes, and how many bytes they take.

    data    bytes-like, beginning with a record; one that its end cuts off is left for later, and no error here
    schema  from `schema_of`
    base    where the data begin in the file or stream, for messages

    Raises ManifestError whose message and field `byte` name where the first damaged record begins.
    """
    try:
        frames = split_records(data, base)
        return decode_records(Payloads(frames, base), schema, entries_of(schema)), frames.consumed
    except ManifestError as error:
        # Framing is looked at before columns, and those one after the other: a record before this one may be damaged, too.
        sound, why = error.fields.get("behind", (error.fields["byte"], ""))
        if sound > base:
            decode_prefix(memoryview(data)[: sound - base], schema, base)
        if why:
            raise damaged(sound, why) from error
        raise


def decode_span(spans: Spans, span: int, data: Any) -> TokenBlock:
    """Return the rows in the bytes of one span. Raises ManifestError that names the byte, as well as it can be told."""
    start = int(spans.byte_starts[span])
    block, used = decode_prefix(data, spans.schema, start)
    spans.check(span, data)
    if used != len(data):
        raise damaged(start + used, f"is cut off at byte {start + len(data):,}")
    if block.rows != spans.row_starts[span + 1] - spans.row_starts[span]:
        raise damaged(start, "belongs to a span of another number of records")
    return block
