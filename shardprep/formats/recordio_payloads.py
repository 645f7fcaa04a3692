"""Payloads of many records: the messages in them are found in all rows at once, and what is not as written is told by its byte."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.formats.recordio_fields import FIRST_TAG, Entry
from shardprep.formats.recordio_frames import Frames, damaged
from shardprep.formats.recordio_segments import Bytes, Places, holds_text, segments
from shardprep.formats.recordio_varints import LONGEST, Damage, decode_stream, take_varints

FEW_ROWS = 4  # of which a loop over their elements is faster than arrays of so few

Flags = NDArray[np.bool_]


class Spots(NamedTuple):
    """Some bytes of some rows: which rows, where each one's begin, and how many they are; int64 (n,)."""

    rows: Places
    at: Places
    sizes: Places

    def of(self, chosen: Flags) -> Spots:
        """Return those that are chosen, bool (n,)."""
        return Spots(self.rows[chosen], self.at[chosen], self.sizes[chosen])


class Payloads:
    """The payloads of some records. `base` is added to the bytes that messages name.

    at, ends  int64 (records,): how far each was read, and where it ends
    """

    def __init__(self, frames: Frames, base: int = 0) -> None:
        self.data = frames.data
        self.count = len(frames.starts)
        self.at = frames.starts.copy()
        self.ends = frames.starts + frames.sizes
        self._heads = frames.heads + base

    def need(self, ok: Flags, rows: Places, why: str) -> None:
        """Raise ManifestError that names the first record, by the byte where it begins, that is not ok."""
        if not ok.all():
            raise damaged(int(self._heads[rows[np.argmin(ok)]]), why)

    def next_entry(self, entry: Entry) -> tuple[Spots, Bytes]:
        """Return the tensors or Bytes of the rows that have this entry next, and their tags; go on behind the entry."""
        why = f"has no sound {entry.column}"
        rows = np.flatnonzero((self.at < self.ends) & holds_text(self.data, self.at, entry.tag))
        whole, place = take_varints(self.data, self.at[rows] + 1)
        found = (whole >= 0) & (whole <= self.ends[rows] - place) & holds_text(self.data, place, entry.head)
        rows, whole, place = rows[found], whole[found], place[found]
        if not entry.is_nullable and len(rows) < self.count:
            present = np.zeros(self.count, dtype=np.bool_)
            present[rows] = True
            self.need(present, np.arange(self.count), why)
        end = place + whole
        value, place = take_varints(self.data, place + len(entry.head))
        self.need(value == end - place, rows, why)
        tags = self.data.take(place, mode="clip")
        size, place = take_varints(self.data, place + 1)
        self.need(size == end - place, rows, why)
        self.at[rows] = end
        return Spots(rows, place, size), tags

    def packed(self, messages: Spots, what: str) -> Spots:
        """Return the values of tensors: the one field of each message, nothing where it is empty."""
        filled = np.flatnonzero(messages.sizes)
        rows, at, sizes = messages.rows[filled], messages.at[filled], messages.sizes[filled]
        inner, place = take_varints(self.data, at + 1)
        self.need(holds_text(self.data, at, FIRST_TAG) & (inner == at + sizes - place), rows, f"has no sound {what}")
        starts, counts = messages.at.copy(), np.zeros(len(messages.at), dtype=np.int64)
        starts[filled], counts[filled] = place, inner
        return Spots(messages.rows, starts, counts)

    def numbers(self, spots: Spots, what: str) -> tuple[NDArray[np.int32], Places]:
        """Return the int32 in packed varints, and where each row's begin among them, int64 (rows + 1,)."""
        stream, ends = segments(self.data, spots.at, spots.sizes, slack=LONGEST)
        found = decode_stream(stream, ends)
        if isinstance(found, Damage):
            row = int(np.searchsorted(ends, found.at, side="right")) - 1
            raise damaged(int(self._heads[spots.rows[row]]), f"holds {found.why} in its {what}")
        return found

    def elements(self, messages: Spots, what: str) -> tuple[Places, Places, Places]:
        """Return the elements of Bytes: where each row's begin among them, and where each one lies, with its size."""
        filled = np.flatnonzero(messages.sizes)
        place, end = messages.at[filled], (messages.at + messages.sizes)[filled]
        going = filled
        counts = np.zeros(len(messages.rows), dtype=np.int64)
        found: list[tuple[Places, Places, Places]] = []
        while len(going) > FEW_ROWS or (len(going) and not found):
            inner, start = take_varints(self.data, place + 1)
            sound = holds_text(self.data, place, FIRST_TAG) & (inner >= 0) & (inner <= end - start)
            self.need(sound, messages.rows[going], f"has no sound {what}")
            found.append((going, start, inner))
            counts[going] += 1
            more = start + inner < end
            going, place, end = going[more], (start + inner)[more], end[more]
        for row, first, stop in zip(going.tolist(), place.tolist(), end.tolist(), strict=True):
            walked = _walk(self.data, first, stop)
            if walked is None:
                raise damaged(int(self._heads[messages.rows[row]]), f"has no sound {what}")
            found.append((np.full(len(walked), row), walked[:, 0], walked[:, 1]))
            counts[row] += len(walked)
        firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        if len(found) < 2:
            return (firsts, *found[0][1:]) if found else (firsts, place, place)
        order = np.argsort(np.concatenate([row for row, _, _ in found]), kind="stable")
        starts, sizes = (np.concatenate([piece[k] for piece in found])[order] for k in (1, 2))
        return firsts, starts, sizes


def _walk(data: Bytes, at: int, end: int) -> Places | None:
    """Return where the elements of one row's Bytes lie, and their sizes, int64 (elements, 2); None where they are not sound."""
    held = data.data
    found = []
    while at < end:
        if held[at] != FIRST_TAG[0]:
            return None
        size = shift = 0
        byte = 128
        while byte > 127:
            at += 1
            if at == end or shift > 63:
                return None
            byte = held[at]
            size |= (byte & 127) << shift
            shift += 7
        at += 1
        if size > end - at:
            return None
        found.append((at, size))
        at += size
    return np.array(found, dtype=np.int64).reshape(-1, 2)
