"""Records to blocks: one column after the other, each of all rows at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.core.block import IDS, TokenBlock
from shardprep.formats.recordio_fields import BYTES_TAG, NULL, UID_TAG, Entry
from shardprep.formats.recordio_payloads import Flags, Payloads, Spots
from shardprep.formats.recordio_segments import Places, holds_text, segments
from shardprep.formats.recordio_varints import take_varints
from shardprep.formats.shard import ID, LENGTH

_DTYPES = {"int64": "<i8", "float64": "<f8", "bool": "u1", "int32": "<i4"}


class Column(NamedTuple):
    """Values of some rows: which rows, where each row's begin among them, themselves, and which are null.

    values  numpy array (n,), or of strings their bytes and offsets
    null    bool (n,), only in lists
    """

    rows: Places
    firsts: Places
    values: Any
    null: Flags | None = None


def decode_records(payloads: Payloads, schema: pa.Schema, entries: list[Entry]) -> TokenBlock:
    """Return the rows. Raises ManifestError that names the byte where a damaged record begins."""
    arrays: dict[str, pa.Array] = {}
    for entry in entries:
        messages, tags = payloads.next_entry(entry)
        if entry.column == IDS:
            payloads.need(tags == entry.tensor[0], messages.rows, f"has no sound {IDS}")
            ids, offsets = payloads.numbers(payloads.packed(messages, IDS), IDS)
        else:
            parts = _parts(payloads, entry, messages, tags == BYTES_TAG[0], tags == entry.tensor[0])
            arrays[entry.column] = _array(payloads, schema.field(entry.column).type, entry, parts)
    arrays[ID] = _uids(payloads)
    fields = [field for field in schema if field.name not in (IDS, LENGTH)]
    columns = pa.RecordBatch.from_arrays([arrays[field.name] for field in fields], schema=pa.schema(fields))
    return TokenBlock(ids, offsets, columns)


def _parts(payloads: Payloads, entry: Entry, messages: Spots, are_bytes: Flags, are_tensors: Flags) -> list[Column]:
    """Return the values of a column: of the rows that have them as Bytes, and of those that have a tensor."""
    payloads.need(are_bytes | are_tensors, messages.rows, f"has no sound {entry.column}")
    parts = []
    if are_bytes.any():
        parts.append(_from_bytes(payloads, entry, messages.of(are_bytes)))
    if not are_bytes.all():
        parts.append(_from_tensors(payloads, entry, messages.of(~are_bytes)))
    if not entry.is_list:
        for part in parts:
            payloads.need(np.diff(part.firsts) == 1, part.rows, f"has not one value as {entry.column}")
    return parts


def _from_tensors(payloads: Payloads, entry: Entry, messages: Spots) -> Column:
    spots = payloads.packed(messages, entry.column)
    if entry.kind == "float64":
        payloads.need(spots.sizes % 8 == 0, spots.rows, f"has no sound {entry.column}")
        data, offsets = segments(payloads.data, spots.at, spots.sizes)
        return Column(spots.rows, offsets // 8, data.view("<f8"))
    numbers, firsts = payloads.numbers(spots, entry.column)
    if entry.kind == "bool":
        payloads.need(_all_of(numbers >> 1 == 0, firsts), spots.rows, f"has no truth value as {entry.column}")
    return Column(spots.rows, firsts, numbers)


def _from_bytes(payloads: Payloads, entry: Entry, messages: Spots) -> Column:
    firsts, at, sizes = payloads.elements(messages, entry.column)
    null = None
    if entry.is_list:
        null = (sizes == 1) & (payloads.data.take(at, mode="clip") == NULL)
        sizes = np.where(null, 0, sizes)
    if entry.kind == "string":
        return Column(messages.rows, firsts, segments(payloads.data, at, sizes), null)
    dtype = np.dtype(_DTYPES[entry.kind])
    sound = sizes == dtype.itemsize if null is None else (sizes == dtype.itemsize) | null
    payloads.need(_all_of(sound, firsts), messages.rows, f"has no sound {entry.column}")
    held = segments(payloads.data, at, sizes)[0].view(dtype)
    if null is None:
        return Column(messages.rows, firsts, held)
    values = np.zeros(len(at), dtype=dtype)
    values[~null] = held
    return Column(messages.rows, firsts, values, null)


def _array(payloads: Payloads, kind: pa.DataType, entry: Entry, parts: list[Column]) -> pa.Array:
    """Return a column's values of all rows; rows in no part are null."""
    counts = np.zeros(payloads.count, dtype=np.int64)
    missing = np.ones(payloads.count, dtype=np.bool_)
    for part in parts:
        counts[part.rows] = np.diff(part.firsts)
        missing[part.rows] = False
    if not entry.is_list:
        return _values(payloads, entry, parts, np.arange(payloads.count + 1), missing)
    firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    child = _values(payloads, entry, parts, firsts, np.zeros(int(firsts[-1]), dtype=np.bool_))
    offsets = pa.py_buffer(firsts.astype(np.int32))
    return pa.Array.from_buffers(kind, payloads.count, [_valid(missing), offsets], children=[child])


def _values(payloads: Payloads, entry: Entry, parts: list[Column], firsts: Places, missing: Flags) -> pa.Array:
    """Return the values of all parts as one array, those of row i from firsts[i] on; `missing`: places that have none."""
    where = [
        np.repeat(firsts[part.rows] - part.firsts[:-1], np.diff(part.firsts)) + np.arange(int(part.firsts[-1]))
        for part in parts
    ]
    for part, place in zip(parts, where, strict=True):
        if part.null is not None:
            missing[place] = part.null
    if entry.kind == "string":
        return _strings(payloads, parts[0] if parts else None, missing, entry.column)
    numbers = np.zeros(len(missing), dtype=_DTYPES[entry.kind])
    for part, place in zip(parts, where, strict=True):
        numbers[place] = part.values
    if entry.kind == "bool":
        bits = pa.py_buffer(np.packbits(numbers, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(missing), [_valid(missing), bits])
    types = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64()}
    return pa.Array.from_buffers(types[entry.kind], len(missing), [_valid(missing), pa.py_buffer(numbers)])


def _strings(payloads: Payloads, part: Column | None, missing: Flags, what: str) -> pa.Array:
    """Return strings; they come from one part, since no tensor holds any. Raises ManifestError if they are no UTF-8."""
    if part is None:
        return pa.nulls(len(missing), pa.string())
    data, offsets = part.values
    if len(offsets) - 1 != len(missing):  # rows between have none
        sizes = np.zeros(len(missing), dtype=np.int64)
        sizes[~missing] = np.diff(offsets)
        places = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    else:
        places = offsets
    buffers = pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data), _valid(missing)
    array = pa.StringArray.from_buffers(len(missing), *buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        sound = [
            _is_text(data[a:b].tobytes()) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ]
        payloads.need(_all_of(np.array(sound), part.firsts), part.rows, f"holds bytes that are no UTF-8 as {what}")
        raise
    return array


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _uids(payloads: Payloads) -> pa.Array:
    rows = np.arange(payloads.count)
    size, place = take_varints(payloads.data, payloads.at + 1)
    sound = (payloads.at < payloads.ends) & holds_text(payloads.data, payloads.at, UID_TAG)
    payloads.need(sound & (size == payloads.ends - place), rows, "does not end with a sound uid")
    part = Column(rows, np.arange(payloads.count + 1), segments(payloads.data, place, size))
    return _strings(payloads, part, np.zeros(payloads.count, dtype=np.bool_), "uid")


def _valid(missing: Flags) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None


def _all_of(good: Flags, firsts: Places) -> Flags:
    """Say for each row whether all of its elements are good."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(~good)])
    return np.equal(np.diff(before[firsts]), 0)
