"""One decoded shard as one file of flat arrays, to be mapped by every process of a node.

    0          head: a struct, its own CRC-32 behind it; written last
    4096       ids       int32 (tokens,)
    ...        offsets   int64 (rows + 1,)
    ...        columns   one Arrow record batch (rows,), as an IPC stream
    ...        sums      uint32 (pieces,), the CRC-32 of each MiB of ids

Parts begin at multiples of 64 bytes. Numbers are in the machine's byte order: a file from a machine of the other order has
a head that does not check.

Nothing is synced to the disk: after a power cut a file may have its right size and zeros inside. So a process compares what it
did not write itself: size, head, offsets, columns and sums when it opens the file, ids when their rows are first asked for, or
ahead of that in a thread that has nothing else to do. So a start reads no more of a large file than its first batches need.
CRC-32 runs at 3 to 6 GB/s, without the GIL.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock
from shardprep.core.content import ShardInfo
from shardprep.formats.view import View

HEAD_BYTES = 4096
ALIGNED = 64
PIECE_TOKENS = (1 << 20) // 4
COMPARED_AT_ONCE = 8  # pieces of an entry, at most, by as many threads
# magic, sha256 of the shard, rows, tokens, places of offsets, columns and sums, bytes of columns and file, CRC of all but ids
_HEAD = struct.Struct("=8s32s7QI")
_CRC = struct.Struct("=I")
MAGIC = b"shprows1"


class Damaged(Exception):
    """The file is not what its writer wrote."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the head says: where the parts begin, in bytes, and the CRC-32 over all of them but the ids."""

    digest: bytes
    rows: int
    tokens: int
    offsets_at: int
    columns_at: int
    sums_at: int
    columns_bytes: int
    size: int
    crc: int

    def pack(self) -> bytes:
        """Return the bytes of the head, with their own CRC-32."""
        places = (self.offsets_at, self.columns_at, self.sums_at)
        data = _HEAD.pack(MAGIC, self.digest, self.rows, self.tokens, *places, self.columns_bytes, self.size, self.crc)
        return data + _CRC.pack(zlib.crc32(data))

    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return start and stop (exclusive) of offsets, columns and sums."""
        return (
            (self.offsets_at, self.offsets_at + 8 * (self.rows + 1)),
            (self.columns_at, self.columns_at + self.columns_bytes),
            (self.sums_at, self.sums_at + 4 * pieces(self.tokens)),
        )


def pieces(tokens: int) -> int:
    """Return how many pieces, each with a sum of its own, so many ids make."""
    return -(-tokens // PIECE_TOKENS)


def aligned(place: int) -> int:
    """Return the next place where a part may begin."""
    return -(-place // ALIGNED) * ALIGNED


def read_head(file: int, info: ShardInfo) -> Head:
    """Return the head of an open file. Raises Damaged if it does not check, or is not of this shard and size."""
    data = os.pread(file, _HEAD.size + _CRC.size, 0)
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
        raise Damaged("its head is damaged")
    magic, *fields = _HEAD.unpack_from(data)
    head = Head(*fields)
    if magic != MAGIC or head.digest.hex() != info.sha256 or (head.rows, head.tokens) != (info.rows, info.tokens):
        raise Damaged("it is of another shard")
    if os.fstat(file).st_size != head.size:
        raise Damaged(f"it has {os.fstat(file).st_size} bytes, not {head.size}")
    return head


class SoundView(View):
    """All rows of a shard, each of them compared with its sum in this process."""


class Mapped:
    """The rows of an entry, mapped. A lock on the open file lasts as long as any array over the map.

    view  all rows; a SoundView as soon as all are compared
    """

    def __init__(self, file: int, head: Head, compared: NDArray[np.bool_] | None = None) -> None:
        """Map an open file. compared, bool (pieces,): ids that this process has compared; None: nothing yet.

        Raises Damaged if offsets, columns or sums do not check.
        """
        whole = memoryview(mmap.mmap(file, head.size, access=mmap.ACCESS_READ))  # duplicates the descriptor
        offsets_part, columns_part, sums_part = (whole[start:stop] for start, stop in head.parts())
        if compared is None:
            if zlib.crc32(sums_part, zlib.crc32(columns_part, zlib.crc32(offsets_part))) != head.crc:
                raise Damaged("its check sum differs")
            compared = np.zeros(pieces(head.tokens), dtype=np.bool_)
        self.compared = compared
        self._ids_part = whole[HEAD_BYTES : HEAD_BYTES + 4 * head.tokens]
        self._sums = np.frombuffer(sums_part, dtype=np.uint32)
        ids = np.frombuffer(self._ids_part, dtype=np.int32)
        offsets = np.frombuffer(offsets_part, dtype=np.int64)
        columns = pa.ipc.open_stream(pa.py_buffer(columns_part)).read_next_batch()
        self._comparing = [threading.Lock() for _ in range(COMPARED_AT_ONCE)]
        self.view = View(TokenBlock(ids, offsets, columns))
        self._note_if_whole()

    def is_sound(self, first: int, stop: int) -> bool:
        """Compare the ids of rows first to stop (exclusive) with their sums, once a process; return whether all agree."""
        if isinstance(self.view, SoundView):
            return True
        offsets = self.view.block.offsets
        low, high = int(offsets[first]) // PIECE_TOKENS, pieces(int(offsets[stop]))
        todo = (low + np.flatnonzero(~self.compared[low:high])).tolist()
        for wait in (False, True):  # pieces that other threads are at come last
            for piece in todo:
                if not self.compared[piece] and not self._agrees(piece, wait):
                    return False
        self._note_if_whole()
        return True

    def _agrees(self, piece: int, wait: bool) -> bool:
        """Compare a piece; False where it is damaged. Without wait a piece that another thread may be at is left out."""
        lock = self._comparing[piece % len(self._comparing)]
        if not lock.acquire(blocking=wait):
            return True
        try:
            if not self.compared[piece]:
                part = self._ids_part[4 * PIECE_TOKENS * piece : 4 * PIECE_TOKENS * (piece + 1)]
                self.compared[piece] = zlib.crc32(part) == self._sums[piece]
            return bool(self.compared[piece])
        finally:
            lock.release()

    def _note_if_whole(self) -> None:
        if self.compared.all():
            self.view = SoundView(self.view.block)
