"""The columns of a block as the messages of their entries: sizes first, so that the records' places are known, then bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.formats.recordio_fields import BYTES_TAG, FIRST_TAG, NULL, Entry
from shardprep.formats.recordio_segments import put_segments, put_text
from shardprep.formats.recordio_varints import (
    CHUNK_VALUES,
    bytes_of_lengths,
    packed,
    put_varints,
    set_varints,
    sizes_of,
    unsigned,
)

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class Packed:
    """Tensors: row rows[i] has the values in data[offsets[i]:offsets[i + 1]], in one packed field."""

    tag: bytes
    rows: Places
    data: Bytes
    offsets: Places

    @property
    def sizes(self) -> Places:
        """Return the bytes of each message, int64 (rows,)."""
        return packed_sizes(np.diff(self.offsets))

    def fill(self, out: Bytes, at: Places) -> None:
        """Write the messages."""
        inner = np.diff(self.offsets)
        filled = np.flatnonzero(inner)
        place = head_of_packed(out, at[filled], inner[filled])
        put_segments(out, place, self.data, self.offsets[np.append(filled, len(inner))])


@dataclass(frozen=True, eq=False)
class PackedIds:
    """Tensors of the token ids of all rows. `before` counts the bytes of varints in front of each row, int64 (rows + 1,)."""

    tag: bytes
    rows: Places
    ids: NDArray[Any]
    id_sizes: Bytes
    row_offsets: Places
    before: Places

    @property
    def sizes(self) -> Places:
        """Return the bytes of each message, int64 (rows,)."""
        return packed_sizes(np.diff(self.before))

    def fill_ids(self, out: Bytes, at: Places) -> None:
        """Write the ids of messages that begin at these places, and spoil what is behind them. To be called before all else."""
        inner = np.diff(self.before)
        shift = at + 1 + bytes_of_lengths(inner) - self.before[:-1]
        done = 0
        for start, stop in _chunks(len(self.ids)):
            sizes = self.id_sizes[start:stop]
            ends = np.cumsum(sizes, dtype=np.int64)
            place = ends - sizes
            low = int(np.searchsorted(self.row_offsets, start, side="right")) - 1
            high = int(np.searchsorted(self.row_offsets, stop, side="left"))
            rows = self.row_offsets[low : high + 1].clip(start, stop)
            place += np.repeat(shift[low:high] + done, rows[1:] - rows[:-1])
            put_varints(out, place, self.ids[start:stop], sizes)
            done += int(ends[-1])

    def fill(self, out: Bytes, at: Places) -> None:
        """Write what stands before the ids."""
        inner = np.diff(self.before)
        filled = np.flatnonzero(inner)
        head_of_packed(out, at[filled], inner[filled])


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK_VALUES):
        yield start, min(start + CHUNK_VALUES, count)


@dataclass(frozen=True, eq=False)
class Repeated:
    """Messages of Bytes: row rows[i] has the elements firsts[i] to firsts[i + 1], element e is data[offsets[e]:offsets[e + 1]]."""

    tag: bytes
    rows: Places
    firsts: Places
    data: Bytes
    offsets: Places

    @property
    def sizes(self) -> Places:
        """Return the bytes of each message, int64 (rows,)."""
        return np.diff(self._ends()[self.firsts])

    def _ends(self) -> Places:
        inner = np.diff(self.offsets)
        ends = np.zeros(len(self.offsets), dtype=np.int64)
        np.cumsum(1 + bytes_of_lengths(inner) + inner, out=ends[1:])
        return ends

    def fill(self, out: Bytes, at: Places) -> None:
        """Write the messages."""
        ends = self._ends()
        base = np.repeat(at - ends[self.firsts[:-1]], np.diff(self.firsts)) + ends[:-1]
        place = head_of_packed(out, base, np.diff(self.offsets))
        put_segments(out, place, self.data, self.offsets)


Part = Packed | PackedIds | Repeated


def packed_sizes(inner: Places) -> Places:
    """Return the bytes of messages whose only field has so many; none where it is empty."""
    return np.where(inner > 0, 1 + bytes_of_lengths(inner) + inner, 0)


def head_of_packed(out: Bytes, at: Places, inner: Places) -> Places:
    """Write the tag and length of a message's first field to each place, and return where its bytes begin."""
    return set_varints(out, put_text(out, at, FIRST_TAG), inner)


def ids_part(tag: bytes, ids: NDArray[np.int32], row_offsets: Places) -> PackedIds:
    """Return the messages of token ids, int32 (tokens,), of rows that begin at row_offsets, int64 (rows + 1,)."""
    numbers = unsigned(ids)
    sizes = sizes_of(numbers)
    before = np.zeros(len(row_offsets), dtype=np.int64)
    done = 0
    for start, stop in _chunks(len(ids)):
        ends = np.cumsum(sizes[start:stop], dtype=np.int64)
        low, high = np.searchsorted(row_offsets, [start, stop], side="right")
        before[low:high] = done + ends[row_offsets[low:high] - start - 1]
        done += int(ends[-1])
    return PackedIds(tag, np.arange(len(row_offsets) - 1), numbers, sizes, row_offsets, before)


def parts_of(entry: Entry, column: pa.Array) -> list[Part]:
    """Return the messages of a column, of all rows that are not null: at most one part of tensors and one of Bytes."""
    rows = np.flatnonzero(_plain(column.is_valid()))
    if entry.is_list:
        lengths = np.diff(_plain(column.offsets))[rows].astype(np.int64)
        firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        elements = column.flatten()
    else:
        firsts, elements = np.arange(len(rows) + 1), column.drop_null()
    if entry.tensor == BYTES_TAG:
        return [_repeated(rows, firsts, elements)]
    fits = _fit(entry, elements)
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(~fits)])
    as_tensor = np.diff(before[firsts]) == 0
    parts: list[Part] = []
    for chosen in (as_tensor, ~as_tensor):
        if not chosen.any():
            continue
        counts = np.diff(firsts)
        some = elements if chosen.all() else elements.filter(pa.array(np.repeat(chosen, counts).tolist()))
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts[chosen])])
        make = _packed if chosen is as_tensor else _repeated_of
        parts.append(make(entry, rows[chosen], starts, some))
    return parts


def _fit(entry: Entry, elements: pa.Array) -> NDArray[np.bool_]:
    """Say which elements a tensor can hold: no null, and of an int64 label those of 32 bits."""
    fits = _plain(elements.is_valid())
    if entry.kind == "int64":
        values = _plain(elements.fill_null(0))
        fits = fits & (values >= _INT32.min) & (values <= _INT32.max)
    return fits


def _packed(entry: Entry, rows: Places, firsts: Places, elements: pa.Array) -> Part:
    values = _plain(elements)
    if entry.kind == "float64":
        return Packed(entry.tensor, rows, values.astype("<f8").view(np.uint8), firsts * 8)
    data, sizes = packed(values.astype(np.int64))
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
    return Packed(entry.tensor, rows, data, ends[firsts])


def _repeated_of(entry: Entry, rows: Places, firsts: Places, elements: pa.Array) -> Part:
    del entry
    return _repeated(rows, firsts, elements)


def _repeated(rows: Places, firsts: Places, elements: pa.Array) -> Part:
    data, offsets = _bytes_of(elements.drop_null())
    if elements.null_count:
        valid = _plain(elements.is_valid())
        sizes = np.ones(len(elements), dtype=np.int64)
        sizes[valid] = np.diff(offsets)
        places = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        held, data = data, np.full(int(places[-1]), NULL, dtype=np.uint8)
        put_segments(data, places[:-1][valid], held, offsets)
        offsets = places
    return Repeated(BYTES_TAG, rows, firsts, data, offsets)


def _bytes_of(elements: pa.Array) -> tuple[Bytes, Places]:
    """Return elements without nulls as bytes: text as UTF-8, numbers of 8 bytes and truth values of 1, the lowest byte first."""
    if pa.types.is_string(elements.type):
        return strings_of(elements)
    values = _plain(elements)
    values = values.astype(values.dtype.newbyteorder("<"))
    return values.view(np.uint8), np.arange(len(values) + 1) * values.itemsize


def strings_of(array: pa.Array) -> tuple[Bytes, Places]:
    """Return the UTF-8 of strings without nulls, and their offsets in it, int64 (n + 1,)."""
    _, offsets, data = array.buffers()
    if not len(array):  # which may have no buffers
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    places = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data or b"", dtype=np.uint8), places.astype(np.int64)


def _plain(array: pa.Array) -> NDArray[Any]:
    """Return values without nulls; not by `to_numpy`, which imports pandas where that is installed."""
    if pa.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)
