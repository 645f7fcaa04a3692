"""Tables of 16-byte hashes, staged by the scans and read by ranges of first bytes.

257 x uint32   where the rows of each first byte begin, and the number of rows
HASHES (rows,) sorted by hash
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.storage.store import Store

HASHES = np.dtype(
    [
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("number", "<i8"),
        ("offset", "<i8"),
        ("document", "<i4"),
        ("line", "<i4"),
        ("split", "<i4"),
        ("cut", "<i4"),
    ]
)
INDEX_BYTES = 257 * 4
Place = tuple[int, int, int, int]  # of a document: object, byte offset, line, tokens that --overflow truncate cut off


def hash_table(hashes: Sequence[bytes], places: Sequence[Place], splits: NDArray[np.int8]) -> bytes:
    """Return the staged table of documents with these hashes, places and splits (documents,)."""
    table = np.zeros(len(hashes), dtype=HASHES)
    raw = np.frombuffer(b"".join(hashes), dtype=">u8").reshape(-1, 2)
    table["hi"], table["lo"] = raw[:, 0], raw[:, 1]
    place = np.array(places, dtype=np.int64).reshape(-1, 4)
    table["number"], table["offset"], table["line"], table["cut"] = place.T
    table["document"] = np.arange(len(hashes))
    table["split"] = splits
    table = table[np.lexsort((table["lo"], table["hi"]))]
    first = (table["hi"] >> np.uint64(56)).astype(np.int64)
    index = np.searchsorted(first, np.arange(257)).astype("<u4")
    return index.tobytes() + table.tobytes()


def read_hashes(store: Store, name: str, start: int, stop: int) -> NDArray[Any]:
    """Return the rows of a staged table whose first byte is in [start, stop)."""
    if (start, stop) == (0, 256):
        return np.frombuffer(store.get(name), dtype=HASHES, offset=INDEX_BYTES)
    index = np.frombuffer(store.get_range(name, 0, INDEX_BYTES), dtype="<u4").astype(np.int64)
    low, high = (INDEX_BYTES + int(index[byte]) * HASHES.itemsize for byte in (start, stop))
    if low == high:
        return np.zeros(0, dtype=HASHES)
    return np.frombuffer(store.get_range(name, low, high), dtype=HASHES)
