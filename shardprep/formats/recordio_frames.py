"""RecordIO framing as dmlc-core writes it (include/dmlc/recordio.h, src/recordio.cc), whole arrays of records at once.

A record is the magic word, a word with 3 bits of flag and 29 of length, the payload, and zeros up to a multiple of 4 bytes.
Where the payload holds the magic word at a multiple of 4 the record is cut there, into parts with the flags 1, 2 ... 2, 3,
and the word itself is left out: so the magic word at a multiple of 4 always is the head of a record or part, and only that.

A part's head begins with the magic word, and the part before it ends where the payload had it. So to escape one is to put
the word with flag and length behind it, and to restore it is to take that word out again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import ManifestError

MAGIC = 0xCED7230A
HEAD_BYTES = 8
LENGTH_BITS = 29
MOST_BYTES = (1 << LENGTH_BITS) - 1  # of a payload
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


class Frames(NamedTuple):
    """Whole records in a row.

    data      uint8; the bytes that were given, without the heads of parts that escape the magic word
    starts    int64 (records,): where each payload begins in `data`
    sizes     int64 (records,): its bytes
    heads     int64 (records,): where each record begins in what was given
    consumed  bytes of what was given that the records take
    """

    data: Bytes
    starts: Places
    sizes: Places
    heads: Places
    consumed: int


def damaged(byte: int, why: str, **more: Any) -> ManifestError:
    """Return the error that names the byte where a damaged record begins; more: other fields of it."""
    return ManifestError(f"is damaged: the record that begins at byte {byte:,} {why}", byte=byte, **more)


def with_heads(out: Bytes, heads: Places, sizes: Places) -> tuple[Bytes, Places, int]:
    """Write heads and padding around payloads; return the bytes, where the records begin, and how many words were escaped.

    out    uint8, of a multiple of 4 bytes: room for a head, the payload, room for padding, record after record
    heads  int64 (records,): where each begins; sizes: int64 (records,), bytes of each payload
    """
    ends = heads + HEAD_BYTES + sizes
    for k in range(3):  # the most zeros that a record needs
        rows = np.flatnonzero((-sizes) % 4 > k)
        out[ends[rows] + k] = 0
    words = out.view("<u4")
    words[heads >> 2] = MAGIC
    words[(heads >> 2) + 1] = sizes
    if int(np.count_nonzero(words == MAGIC)) == len(heads):
        return out, heads, 0
    return _escaped(words, heads >> 2, sizes)


def _escaped(words: NDArray[np.uint32], heads: Places, sizes: Places) -> tuple[Bytes, Places, int]:
    found = np.flatnonzero(words == MAGIC)
    record = np.searchsorted(heads, found, side="right") - 1
    begins = np.append(np.diff(record) != 0, True)  # the last part of its record
    first = np.insert(begins[:-1], 0, True)
    sizes_of_parts = np.append(np.diff(found) - 1, 0) * 4
    sizes_of_parts[first] -= 4  # the head's second word
    last = np.flatnonzero(begins)
    behind = heads[record[last]] * 4 + HEAD_BYTES + sizes[record[last]] - found[last] * 4
    sizes_of_parts[last] = behind - np.where(first[last], HEAD_BYTES, 4)
    flags = np.select([first & begins, first, begins], [_WHOLE, _FIRST, _LAST], _MIDDLE)
    lengths = (flags << LENGTH_BITS) | sizes_of_parts
    words[found[first] + 1] = lengths[first]
    inside = ~first
    out = np.insert(words, found[inside] + 1, lengths[inside].astype(np.uint32))
    moved = heads + np.searchsorted(found[inside], heads)
    return out.view(np.uint8), moved * 4, int(inside.sum())


def split_records(data: Any, base: int = 0) -> Frames:
    """Return the whole records at the start of some bytes. Raises ManifestError that names the byte of a damaged one.

    A record that the end of the bytes cuts off is left out, and is no error here. `base` is added to bytes in messages.
    Where its length and flag may be right and what is behind it wrong, which its payload can tell, the error's field
    `behind` has the byte and reason for that.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    words = raw[: len(raw) // 4 * 4].view("<u4")
    parts = np.flatnonzero(words == MAGIC)
    if len(words) and (not len(parts) or parts[0]):
        raise damaged(base, _NO_MAGIC)
    parts = parts[: np.searchsorted(parts, len(words) - 1)]  # without one whose second word is cut off
    lengths = words[parts + 1].astype(np.int64)
    flags, sizes = lengths >> LENGTH_BITS, lengths & MOST_BYTES
    ends = parts + 2 + (sizes + 3) // 4
    if len(parts) and ends[-1] > len(words):  # cut off; but all before it are whole
        parts, flags, sizes, ends = parts[:-1], flags[:-1], sizes[:-1], ends[:-1]
    record = np.cumsum((flags == _WHOLE) | (flags == _FIRST)) - 1  # that each part belongs to, if they are in order
    _check_chain(words, parts, ends, sizes, flags, record, base)
    whole = int(np.searchsorted(record, record[-1])) if len(flags) and flags[-1] in (_FIRST, _MIDDLE) else len(flags)
    return _joined(raw, words, parts[:whole], sizes[:whole], ends[:whole], record[:whole])


def _check_chain(
    words: NDArray[np.uint32], parts: Places, ends: Places, sizes: Places, flags: Places, record: Places, base: int
) -> None:
    """Raise ManifestError for the first part that does not lead to the next one, or comes in no order."""
    if not len(parts):
        return
    nexts = np.append(parts[1:], ends[-1])
    if len(words) > ends[-1] and words[ends[-1]] != MAGIC:
        nexts[-1] = len(words)
    broken = ends != nexts
    open_before = np.insert((flags[:-1] == _FIRST) | (flags[:-1] == _MIDDLE), 0, False)
    disorder = (open_before != ((flags == _MIDDLE) | (flags == _LAST))) | (flags > _LAST)
    rest = sizes % 4
    padding = np.where(rest > 0, words[np.minimum(ends, len(words)) - 1] >> (8 * rest).astype(np.uint32), 0)
    unclean = (padding != 0) | ((rest > 0) & ((flags == _FIRST) | (flags == _MIDDLE)))
    wrong = np.flatnonzero(broken | disorder | unclean)
    if not len(wrong):
        return
    part = int(wrong[0])
    head = int(parts[part] if flags[part] > _LAST else parts[np.searchsorted(record, record[part])])
    why = "has parts in another order than first, middle, last"
    if disorder[part] and open_before[part]:  # a record that has begun, and no last part
        raise damaged(base + 4 * int(parts[np.searchsorted(record, record[part - 1])]), why)
    if disorder[part]:
        raise damaged(base + 4 * head, why, behind=(base + 4 * int(parts[part]), why))
    if broken[part] and _is_head(words, int(ends[part]), int(nexts[part])):
        raise damaged(base + 4 * int(ends[part]), _NO_MAGIC)
    if broken[part] and part == len(parts) - 1:
        behind = (base + 4 * int(ends[part]), _NO_MAGIC)
        raise damaged(base + 4 * head, "is shorter than up to the next one", behind=behind)
    if broken[part]:
        which = "longer" if ends[part] > nexts[part] else "shorter"
        raise damaged(base + 4 * head, f"is {which} than up to the next one")
    raise damaged(base + 4 * head, "has other bytes than zeros behind its payload")


def _is_head(words: NDArray[np.uint32], at: int, goal: int) -> bool:
    """Say whether a head is here of which only the magic word is damaged: most of its bits are right, or its length is."""
    if at >= goal:
        return False
    if (int(words[at]) ^ MAGIC).bit_count() <= _BITS_OF_A_BYTE:
        return True
    return at + 1 < goal and at + 2 + ((int(words[at + 1]) & MOST_BYTES) + 3) // 4 == goal


_BITS_OF_A_BYTE = 8
_NO_MAGIC = "does not begin with the magic word"


def _joined(
    raw: Bytes, words: NDArray[np.uint32], parts: Places, sizes: Places, ends: Places, record: Places
) -> Frames:
    """Return the records that these parts make, the magic word back between the parts of one."""
    consumed = int(ends[-1]) * 4 if len(ends) else 0
    count = int(record[-1]) + 1 if len(record) else 0
    if count == len(parts):
        return Frames(raw, parts * 4 + HEAD_BYTES, sizes, parts * 4, consumed)
    first = np.searchsorted(record, np.arange(count))
    inside = np.ones(len(parts), dtype=np.bool_)
    inside[first] = False
    data = np.delete(words[: consumed // 4], parts[inside] + 1).view(np.uint8)
    moved = parts[first] - np.searchsorted(parts[inside], parts[first])
    totals = np.add.reduceat(sizes, first) + 4 * np.add.reduceat(inside.astype(np.int64), first)
    return Frames(data, moved * 4 + HEAD_BYTES, totals, parts[first] * 4, consumed)
