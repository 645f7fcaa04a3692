"""Blocks to records: where every byte goes is worked out for all rows, then each piece is written to all rows at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import IDS, TokenBlock
from shardprep.errors import BlockError
from shardprep.formats.recordio_columns import PackedIds, Part, ids_part, parts_of, strings_of
from shardprep.formats.recordio_fields import UID_TAG, Entry
from shardprep.formats.recordio_frames import HEAD_BYTES, MOST_BYTES, with_heads
from shardprep.formats.recordio_segments import put_segments, put_text
from shardprep.formats.recordio_varints import LONGEST, bytes_of_lengths, set_varints
from shardprep.formats.shard import ID, LENGTH

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


class Records(NamedTuple):
    """The bytes of some records, uint8; where each begins, int64 (rows,); how many magic words were escaped."""

    data: Bytes
    heads: Places
    escapes: int


def encode_records(block: TokenBlock, schema: pa.Schema, entries: list[Entry]) -> Records:
    """Return the rows of a block as records. Raises BlockError if they do not fit the schema, or into a record."""
    ids, columns = _checked(block, schema)
    parts: list[tuple[Entry, Part]] = []
    for entry in entries:
        if entry.column == IDS:
            start, stop = int(block.offsets[0]), int(block.offsets[-1])
            parts.append((entry, ids_part(entry.tensor, block.ids[start:stop], block.offsets - start)))
        else:
            parts += [(entry, part) for part in parts_of(entry, columns[entry.column])]
    uids, uid_offsets = strings_of(ids)
    uid_sizes = np.diff(uid_offsets)
    sizes = 1 + bytes_of_lengths(uid_sizes) + uid_sizes
    for entry, part in parts:
        sizes[part.rows] += _lengths(entry, part.sizes)[-1]
    _check_sizes(sizes, ids)
    steps = HEAD_BYTES + (sizes + 3) // 4 * 4
    heads = np.cumsum(steps) - steps
    total = int(steps.sum())
    out = np.empty(total + LONGEST, dtype=np.uint8)
    place = put_text(out, _fill(out, heads + HEAD_BYTES, parts), UID_TAG)
    put_segments(out, set_varints(out, place, uid_sizes), uids, uid_offsets)
    return Records(*with_heads(out[:total], heads, sizes))


def _fill(out: Bytes, starts: Places, parts: list[tuple[Entry, Part]]) -> Places:
    """Write the entries of payloads that begin at these places, and return where they end.

    The token ids come first, since they spoil what is behind them.
    """
    at = starts.copy()
    for entry, part in parts:
        *_, field = _lengths(entry, part.sizes)
        if isinstance(part, PackedIds):
            part.fill_ids(out, at[part.rows] + field - part.sizes)
        at[part.rows] += field
    at = starts.copy()
    for entry, part in parts:
        value, whole, _ = _lengths(entry, part.sizes)
        place = set_varints(out, put_text(out, at[part.rows], entry.tag), whole)
        place = set_varints(out, put_text(out, place, entry.head), value)
        place = set_varints(out, put_text(out, place, part.tag), part.sizes)
        part.fill(out, place)
        at[part.rows] = place + part.sizes
    return at


def _check_sizes(sizes: Places, ids: pa.Array) -> None:
    if len(sizes) and int(sizes.max()) > MOST_BYTES:
        row = int(np.argmax(sizes))
        raise BlockError(
            f"document {ids[row].as_py()!r} makes a record of {int(sizes[row]):,} bytes, and RecordIO holds at most "
            f"{MOST_BYTES:,}; cut long documents (--max-length), or use --format parquet",
            id=ids[row].as_py(),
        )


def _lengths(entry: Entry, sizes: Places) -> tuple[Places, Places, Places]:
    """Return the bytes of values, of entries and of whole fields of the map, whose tensor or Bytes have so many."""
    value = 1 + bytes_of_lengths(sizes) + sizes
    whole = len(entry.head) + bytes_of_lengths(value) + value
    return value, whole, 1 + bytes_of_lengths(whole) + whole


def _checked(block: TokenBlock, schema: pa.Schema) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Return the ids, and the other columns by name, in the types of the schema."""
    names = block.columns.schema.names
    arrays: dict[str, pa.Array] = {}
    for field in schema:
        if field.name in (IDS, LENGTH):
            continue
        if field.name not in names:
            raise BlockError(f"a block has no column {field.name!r}", column=field.name)
        column = block.columns.column(field.name)
        if column.type != field.type or (column.null_count and not field.nullable):
            raise BlockError(
                f"a block does not fit the shard's schema: column {field.name!r} is {column.type} with "
                f"{column.null_count} nulls, wanted is {field}",
                column=field.name,
            )
        arrays[field.name] = column
    return arrays.pop(ID), arrays
