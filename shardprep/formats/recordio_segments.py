"""Many byte strings copied at once, between one that holds them side by side and places all over another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Above this mean a copy for each string (0.4 us) is cheaper than an index for each byte (3 ns); flat from 100 to 500.
LONG_BYTES = 128
CHUNK_BYTES = 1 << 15

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


def put_segments(out: Bytes, at: Places, data: Bytes, offsets: Places) -> None:
    """Write the strings data[offsets[i]:offsets[i + 1]] to out[at[i]:]."""
    total = int(offsets[-1] - offsets[0])
    if total > LONG_BYTES * len(at):
        target, source = out.data, data.data
        cuts = offsets.tolist()
        for place, start, stop in zip(at.tolist(), cuts[:-1], cuts[1:], strict=True):
            target[place : place + stop - start] = source[start:stop]
    else:
        for low, high in _chunks(offsets):
            out[_index(at, offsets, low, high)] = data[offsets[low] : offsets[high]]


def segments(data: Bytes, at: Places, sizes: Places, slack: int = 0) -> tuple[Bytes, Places]:
    """Return the strings data[at[i]:at[i] + sizes[i]] side by side, with some more bytes behind them, and their offsets."""
    offsets = np.zeros(len(at) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    total = int(offsets[-1])
    out = np.empty(total + slack, dtype=np.uint8)
    out[total:] = 0
    if total > LONG_BYTES * len(at):
        pieces = [data[start:stop] for start, stop in zip(at.tolist(), (at + sizes).tolist(), strict=True)]
        np.concatenate(pieces, out=out[:total])
    else:
        for low, high in _chunks(offsets):
            data.take(_index(at, offsets, low, high), out=out[offsets[low] : offsets[high]], mode="clip")
    return out, offsets


def put_text(out: Bytes, at: Places, text: bytes) -> Places:
    """Write the same bytes to all places; return where each ends."""
    for k, byte in enumerate(text):
        out[at + k] = byte
    return at + len(text)


def holds_text(data: Bytes, at: Places, text: bytes) -> NDArray[np.bool_]:
    """Say at which places the data has these bytes, bool (n,); a place beyond its end is no error."""
    same = at + len(text) <= len(data)
    for k, byte in enumerate(text):
        same &= data.take(at + k, mode="clip") == byte
    return same


def _chunks(offsets: Places) -> Iterator[tuple[int, int]]:
    """Yield which strings to copy at once: so few bytes that an index for each stays in the processor's cache."""
    low, last = 0, len(offsets) - 1
    while low < last and offsets[low] < offsets[-1]:
        high = int(np.searchsorted(offsets, offsets[low] + CHUNK_BYTES, side="right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


def _index(at: Places, offsets: Places, low: int, high: int) -> Places:
    """Return the place of every byte of some of the strings."""
    index = np.repeat(at[low:high] - offsets[low:high], np.diff(offsets[low : high + 1]))
    index += np.arange(int(offsets[low]), int(offsets[high]))
    return index
