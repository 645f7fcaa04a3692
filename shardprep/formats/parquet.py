"""Blocks to Parquet shards and back.

A shard holds `id` (string), `input_ids` (list<int32>, both levels not null: 20 % faster to read), `length` (int32),
with --overflow split `piece` (int32), then the passed-through columns. One block makes one row group.

The settings are measured, one core, Qwen3 tokens of source code and manuals in row groups of 4 MB: 88 million tokens a
second written with all hashes, 249 read, 1.06 bytes a token. Statistics, page checksums, 1 or 8 MB groups and larger
pages change these by less than 5 %; pages of 256 KB lose 10 %; dictionaries and deltas for tokens lose 12 to 57 % of size.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardprep.core.block import IDS, TokenBlock, offsets_of
from shardprep.errors import BlockError, ManifestError
from shardprep.formats.shard import ID, LENGTH, ShardDigest, Sink, shard_schema

__all__ = [
    "ShardWriter",
    "decode_row_group",
    "encode_shard",
    "open_shard",
    "read_footer",
    "row_group_range",
    "shard_schema",
]

PART_TOKENS = 1 << 18  # decoded at once
PAGES_BYTES = 1 << 20  # from which on tokens get memory of their own from the system
_TAIL_BYTES = 8  # footer length (4 bytes) and "PAR1"


class ShardWriter:
    """Writes blocks as row groups, one each, and hashes while it writes; the same blocks make the same bytes."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = _HashingSink(sink)
        self._schema = schema
        self._rows = self._tokens = self._groups = 0
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema.remove_metadata(),
            compression="zstd",
            compression_level=1,
            # Dictionaries pay for labels and sources; ids and tokens are too many, lengths are sorted.
            use_dictionary=[name for name in schema.names if name not in {ID, IDS, LENGTH}],
            write_statistics=[ID, LENGTH],
            write_page_checksum=True,
            store_schema=False,  # no type of ours needs it, and it would say everything twice
        )

    def write(self, block: TokenBlock) -> None:
        """Append a block as one row group; its columns are found by name. Raises BlockError if they do not fit."""
        batch = block.to_batch()
        arrays = []
        for column in self._schema:
            if column.name == LENGTH:
                arrays.append(pa.array(block.lengths, type=pa.int32()))
            elif column.name in batch.schema.names:
                arrays.append(batch.column(column.name))
            else:
                raise BlockError(f"a block has no column {column.name!r}", column=column.name)
        try:
            table = pa.Table.from_arrays(arrays, schema=self._schema.remove_metadata())
            self._writer.write_table(table, row_group_size=max(1, block.rows))
        except (ValueError, TypeError) as error:  # Arrow's own errors are of these kinds; those of the disk are not
            raise BlockError(f"a block does not fit the shard's schema: {error}") from error
        self._rows += block.rows
        self._tokens += block.tokens
        self._groups += 1

    def close(self) -> ShardDigest:
        """Write the footer and return what the shard is known by."""
        if self._schema.metadata:
            self._writer.add_key_value_metadata(self._schema.metadata)
        self._sink.keep_tail()
        self._writer.close()
        tail = self._sink.tail
        footer_bytes = int.from_bytes(tail[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
        return ShardDigest(
            rows=self._rows,
            tokens=self._tokens,
            row_groups=self._groups,
            size_bytes=self._sink.size_bytes,
            sha256=self._sink.digest.hexdigest(),
            footer_bytes=footer_bytes,
            footer_sha256=hashlib.sha256(tail[-footer_bytes:]).hexdigest(),
        )


class _HashingSink:
    """A file for pyarrow that hashes what it passes on, and keeps what is written last."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._tail: list[bytes] | None = None
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._sink.write(data)
        self.digest.update(data)
        self.size_bytes += len(data)
        if self._tail is not None:
            self._tail.append(bytes(data))
        return len(data)

    def keep_tail(self) -> None:
        self._tail = []

    @property
    def tail(self) -> bytes:
        return b"".join(self._tail or [])

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def encode_shard(blocks: Iterable[TokenBlock], schema: pa.Schema) -> tuple[pa.Buffer, ShardDigest]:
    """Return the bytes of a shard made of these blocks, and what it is known by."""
    sink = pa.BufferOutputStream()
    writer = ShardWriter(sink, schema)
    for block in blocks:
        writer.write(block)
    digest = writer.close()
    return sink.getvalue(), digest


def open_shard(source: Any) -> pq.ParquetFile:
    """Open a shard: a path, a file or a buffer. Raises ManifestError if it is no Parquet file, or cut off."""
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise ManifestError(f"not a readable Parquet file: {error}") from error


def read_footer(footer: bytes) -> pq.FileMetaData:
    """Return the metadata in a shard's footer (`footer_bytes` from its end). Raises ManifestError if damaged."""
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowInvalid, OSError) as error:
        raise ManifestError(f"not a readable Parquet footer: {error}") from error


def row_group_range(metadata: pq.FileMetaData, index: int) -> tuple[int, int]:
    """Return the bytes of the file, start and stop (exclusive), that hold one row group."""
    group = metadata.row_group(index)
    chunks = [group.column(i) for i in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return min(starts), max(a + chunk.total_compressed_size for a, chunk in zip(starts, chunks, strict=True))


def decode_row_group(shard: pq.ParquetFile, index: int) -> TokenBlock:
    """Return one row group as a block: `id` and the columns behind it; `length` is in the offsets.

    Raises ManifestError if a page is damaged or the lengths do not agree with the tokens.
    """
    group = shard.metadata.row_group(index)
    chunks = [group.column(place) for place in range(group.num_columns)]
    tokens = sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.startswith(f"{IDS}."))  # and empty rows
    part_rows = max(1, group.num_rows * PART_TOKENS // max(1, tokens))
    ids, done = _pages(tokens), 0
    lengths: list[NDArray[np.int64]] = []
    columns: list[pa.RecordBatch] = []
    try:
        # In parts: Arrow's decoder takes two and a half times the bytes of what it decodes at once.
        for part in shard.iter_batches(batch_size=part_rows, row_groups=[index], use_threads=False):
            block = TokenBlock.from_batch(part.select([name for name in part.schema.names if name != LENGTH]))
            if (np.from_dlpack(part.column(LENGTH)) != block.lengths).any():
                raise ManifestError(f"row group {index}: the lengths do not agree with the tokens", row_group=index)
            ids[done : done + len(block.ids)] = block.ids
            done += len(block.ids)
            lengths.append(block.lengths)
            columns.append(block.columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise ManifestError(f"row group {index} cannot be read: {error}", row_group=index) from error
    ids.flags.writeable = False
    offsets = offsets_of(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]))
    return TokenBlock(ids[:done], offsets, _one_batch(columns, shard.schema_arrow))


def _one_batch(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all parts; of none, an empty batch of a shard's columns."""
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].schema if parts else pa.schema([f for f in schema if f.name not in {IDS, LENGTH}])
    batches = pa.Table.from_batches(parts, schema=schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _pages(tokens: int) -> NDArray[np.int32]:
    """Return memory for tokens, int32 (tokens,).

    Where they are many it goes back to the system with the last array over it; malloc would keep it, for each thread.
    """
    if 4 * tokens < PAGES_BYTES:
        return np.empty(tokens, dtype=np.int32)
    return np.frombuffer(mmap.mmap(-1, 4 * tokens, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.int32)
