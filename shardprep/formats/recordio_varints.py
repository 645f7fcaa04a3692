"""Protobuf varints, whole arrays at once: 7 bits a byte, the lowest first, the top bit set in all bytes but the last.

Format: protobuf.dev/programming-guides/encoding. An int32 below zero is written as 64 bits, so it takes 10 bytes.

The work goes in chunks that stay in the processor's cache: 5 ns a token to write, 3 to read, one core; a boolean mask over
a table of bytes takes 18, index arrays over the whole block 9.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST = 10  # bytes of a varint: 64 bits
CHUNK_VALUES = 1 << 15
CHUNK_BYTES = 1 << 16
BROKEN = -(1 << 62)
_FIT_32 = 5  # bytes that hold a number of up to 32 bits

Bytes = NDArray[np.uint8]
Unsigned = NDArray[np.uint32] | NDArray[np.uint64] | NDArray[np.int64]  # none below 0


class Damage(NamedTuple):
    """A varint that is none of ours: the byte where it begins in the stream, and what is wrong."""

    at: int
    why: str


def unsigned(values: NDArray[Any]) -> Unsigned:
    """Return integers (n,) as protobuf writes them: uint32 where all are at least 0 and have 32 bits, else uint64."""
    if values.dtype.itemsize == 4 and (not len(values) or int(values.min()) >= 0):
        return np.ascontiguousarray(values).view(np.uint32)
    return values.astype(np.int64).view(np.uint64)


def sizes_of(values: Unsigned) -> Bytes:
    """Return how many bytes each varint takes, uint8 (n,)."""
    sizes = np.ones(len(values), dtype=np.uint8)
    top, bound = int(values.max(initial=0)), 1 << 7
    while top >= bound:
        sizes += values >= values.dtype.type(bound)
        bound <<= 7
    return sizes


def bytes_of_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes each length takes as a varint, int64 (n,): to be added to lengths without running over."""
    return sizes_of(lengths).astype(np.int64)


def put_varints(out: Bytes, at: NDArray[np.int64], values: Unsigned, sizes: Bytes) -> None:
    """Write varints at these ascending places. Up to 9 bytes behind each are spoiled: write what belongs there afterwards.

    The last bytes are written first, of all values, so that the next varint's own bytes win over what a short one before it
    leaves behind.
    """
    for k in range(int(sizes.max(initial=0)) - 1, -1, -1):
        out[at + k] = _bytes_at(values, sizes, k)


def set_varints(out: Bytes, at: NDArray[np.int64], values: Unsigned) -> NDArray[np.int64]:
    """Write varints at these places and nothing behind them; return where each ends."""
    sizes = sizes_of(values)
    for k in range(int(sizes.max(initial=1))):
        rows = np.flatnonzero(sizes > k)
        out[at[rows] + k] = _bytes_at(values[rows], sizes[rows], k)
    return at + sizes


def packed(values: NDArray[Any]) -> tuple[Bytes, Bytes]:
    """Return integers (n,) as varints side by side, uint8 (bytes,), and the size of each, uint8 (n,)."""
    numbers = unsigned(values)
    sizes = sizes_of(numbers)
    ends = np.cumsum(sizes, dtype=np.int64)
    out = np.zeros(int(sizes.sum(dtype=np.int64)), dtype=np.uint8)
    set_varints(out, ends - sizes, numbers)
    return out, sizes


def _bytes_at(values: Unsigned, sizes: Bytes, k: int) -> Bytes:
    part: Bytes = (values >> values.dtype.type(7 * k)).astype(np.uint8)
    part &= np.uint8(127)
    part |= (sizes > k + 1).view(np.uint8) << np.uint8(7)
    return part


def decode_stream(stream: Bytes, ends: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]] | Damage:
    """Return the int32 (values,) in varints that lie side by side, and where each row begins among them, int64 (rows + 1,).

    stream  uint8: the varints of all rows, one row after the other, and at least 9 more bytes of any content
    ends    int64 (rows + 1,): where the rows begin and end in it, 0 first
    """
    size = int(ends[-1])
    lasts = ends[1:][np.diff(ends) > 0] - 1
    cut = np.flatnonzero(stream[lasts] > 127)
    if len(cut):
        return Damage(int(lasts[cut[0]]), "a number that is cut off")
    values = np.empty(size, dtype=np.int32)
    offsets = np.zeros(len(ends), dtype=np.int64)
    rooms = _Rooms(min(size, CHUNK_BYTES) + LONGEST)
    done = start = 0
    while start < size:
        goes = stream[start : min(start + CHUNK_BYTES, size)] > 127  # the number goes on behind this byte
        stops = np.flatnonzero(~goes[-LONGEST:])
        if not len(stops):
            return Damage(start + int(np.flatnonzero(np.append(_TRUE, ~goes))[-1]), _TOO_LONG)
        count = len(goes) - len(goes[-LONGEST:]) + int(stops[-1]) + 1  # up to the last number that ends in the chunk
        goes = goes[:count]
        first = np.flatnonzero(np.concatenate([_TRUE, ~goes[:-1]]))
        out = values[done : done + len(first)]
        found = _decoded(stream, start, goes, first, out, rooms)
        if found is not None:
            return found
        low, high = np.searchsorted(ends, [start, start + count], side="right")
        offsets[low:high] = done + np.searchsorted(first, ends[low:high] - start)
        done += len(first)
        start += count
    return values[:done], offsets


_TRUE = np.ones(1, dtype=np.bool_)
_TOO_LONG, _TOO_LARGE = "a number of more than 64 bits", "a number that is no int32"


class _Rooms:
    """Arrays for one chunk, used again for the next: new ones would cost as much as the work in them."""

    def __init__(self, most_bytes: int) -> None:
        self._low, self._more, self._value = (np.empty(most_bytes, dtype=np.uint32) for _ in range(3))

    def everywhere(self, stream: Bytes, longest: int) -> NDArray[np.uint32]:
        """Return for each byte the number of a varint that begins there, if it has at most so many bytes; the last have none.

        It is the byte's low bits | the number that begins at the next byte, times 128 if this byte goes on: its top bit.
        """
        low, more = self._low[: len(stream)], self._more[: len(stream)]
        np.copyto(low, stream)
        np.bitwise_and(low, np.uint32(128), out=more)
        np.bitwise_and(low, np.uint32(127), out=low)
        value = low
        for _ in range(longest - 1):
            count = len(value) - 1
            value = np.multiply(value[1:], more[:count], out=self._value[:count])
            value |= low[:count]
        return value


def _decoded(
    stream: Bytes, start: int, goes: NDArray[np.bool_], first: NDArray[np.int64], out: NDArray[np.int32], rooms: _Rooms
) -> Damage | None:
    """Write the numbers of the varints that begin at the bytes `first` behind `start` to `out`, or return what is wrong."""
    longest = _longest(goes)
    if longest < _FIT_32:
        whole = rooms.everywhere(stream[start : start + len(goes) + longest - 1], longest)
        whole.take(first, out=out.view(np.uint32), mode="clip")  # "clip" alone writes without a copy
        return None
    sizes = np.diff(first, append=len(goes))
    if longest > LONGEST:
        return Damage(start + int(first[np.argmax(sizes)]), _TOO_LONG)
    value = np.zeros(len(first), dtype=np.uint64)
    for k in range(longest):
        rows = np.flatnonzero(sizes > k)
        value[rows] |= (stream[start + first[rows] + k] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * k)
    signed = value.view(np.int64)
    out[:] = signed.astype(np.int32)
    if (out != signed).any():
        return Damage(start + int(first[np.argmax(out != signed)]), _TOO_LARGE)
    return None


def _longest(goes: NDArray[np.bool_]) -> int:
    """Return the bytes of the longest varint; more than LONGEST is not counted further."""
    longest, run = 1, goes  # run: so many bytes from here on go on
    while run.any() and longest <= LONGEST:
        run = run[:-1] & goes[longest:]
        longest += 1
    return longest


def take_varints(data: Bytes, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the unsigned varints at some places of the data, int64 (n,), and where each ends.

    One that runs out of the data, or has more than 9 bytes, is returned as BROKEN, which no length and no difference of places is.
    """
    byte = data.take(at, mode="clip")
    value, end = (byte & np.uint8(127)).astype(np.int64), at + 1
    if len(at) and int(at.max()) >= len(data):
        value[at >= len(data)] = BROKEN
        byte[at >= len(data)] = 0
    going = np.flatnonzero(byte > 127)
    for k in range(1, 9):
        if not len(going):
            return value, end
        inside = end[going] < len(data)
        value[going[~inside]] = BROKEN
        going = going[inside]
        byte = data[end[going]]
        value[going] |= (byte & np.uint8(127)).astype(np.int64) << np.int64(7 * k)
        end[going] += 1
        going = going[byte > 127]
    value[going] = BROKEN
    return value, end
