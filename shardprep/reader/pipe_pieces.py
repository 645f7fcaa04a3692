"""A stream of records in pieces that hold whole records each, so that several threads can decode them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from shardprep.errors import ManifestError
from shardprep.formats.recordio_frames import LENGTH_BITS, MAGIC, split_records
from shardprep.reader.pipe_channel import check_beginning
from shardprep.reader.pipe_fifo import Fifo

PIECE_BYTES = 4 << 20  # decoded at once: 200 MB/s with 1 MB, 340 with 4 and more
_LOOK_BACK = 1 << 14  # words at the end of a piece that are searched first for the head of a record


class Piece(NamedTuple):
    """Consecutive bytes of a stream.

    at        where they begin in it
    is_whole  False: the stream ends here, perhaps in the midst of a record
    """

    at: int
    data: memoryview
    is_whole: bool


class Pieces:
    """The pieces of one FIFO, in order.

    idle  called while there is nothing to read; what it raises ends the reading
    """

    def __init__(self, fifo: Fifo, channel: str, idle: Callable[[], None]) -> None:
        self._fifo, self._channel, self._idle = fifo, channel, idle
        self._free: list[memoryview] = []
        self.bytes_read = 0

    def __iter__(self) -> Iterator[Piece]:
        """Read the FIFO to its end. Raises ManifestError if it does not begin with a record."""
        at, carry = 0, b""
        while True:
            room = self._room(len(carry))
            room[: len(carry)] = carry
            filled = self._fill(room, len(carry))
            if not at:
                check_beginning(self._channel, self._fifo.path, room[:filled], is_last=filled < len(room))
            if filled < len(room):
                yield Piece(at, room[:filled], is_whole=False)
                return
            cut = last_record(room)
            if not cut and _is_damaged(room):  # not a long record: reading on would take the whole stream into memory
                yield Piece(at, room, is_whole=True)
                return
            carry = bytes(room[cut:])  # a copy: the room may be used again before it is read on
            if cut:
                yield Piece(at, room[:cut], is_whole=True)
                at += cut

    def give_back(self, piece: Piece) -> None:
        """Use the memory of a piece again."""
        room = memoryview(piece.data.obj)
        if len(room) == PIECE_BYTES:
            self._free.append(room)

    def _room(self, carried: int) -> memoryview:
        if carried > PIECE_BYTES // 2:  # a record that is longer than a piece
            return memoryview(bytearray(4 * carried))
        return self._free.pop() if self._free else memoryview(bytearray(PIECE_BYTES))

    def _fill(self, room: memoryview, filled: int) -> int:
        """Read until the room is full, or the stream at its end; return how far it is filled."""
        while filled < len(room):
            got = self._fifo.read_into(room[filled:])
            if got is None:
                self._idle()
                continue
            if not got:
                return filled
            filled += got
            self.bytes_read += got
        return filled


def _is_damaged(data: memoryview) -> bool:
    try:
        split_records(data)
    except ManifestError:
        return True
    return False


def last_record(data: memoryview) -> int:
    """Return where the last record in these bytes begins, of those whose head is in them; 0 if only the first one is."""
    words = np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")
    back = _LOOK_BACK
    while True:
        first = max(0, len(words) - back)
        heads, sizes = words[first:-1], words[first + 1 :]
        found = np.flatnonzero((heads == MAGIC) & (sizes >> LENGTH_BITS <= 1))  # later parts of a record have 2 and 3
        if len(found) or not first:
            return int(first + found[-1]) * 4 if len(found) else 0
        back *= 8
