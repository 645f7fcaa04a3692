"""Writes the entry of a shard (entry.py), group by group, into a file that has its size before it has its bytes."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.content import ShardInfo
from shardprep.errors import BlockError, ManifestError
from shardprep.reader.entry import HEAD_BYTES, PIECE_TOKENS, Head, aligned, pieces

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
WRITE_BYTES = 1 << 30  # macOS refuses more in one call


class EntryWriter:
    """Writes the blocks of one shard, in order, into an open file.

    make_space  called with a number of bytes when the disk is full; says whether it is worth trying again
    """

    def __init__(self, file: int, info: ShardInfo, make_space: Callable[[int], bool] = lambda _: False) -> None:
        self._file, self._info, self._make_space = file, info, make_space
        self._tokens = 0
        self._sums = np.zeros(pieces(info.tokens), dtype=np.uint32)
        self._starts: list[int] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._columns: list[pa.RecordBatch] = []
        self._ending = threading.Lock()
        self._is_ended = False
        self.offsets_at = aligned(HEAD_BYTES + 4 * info.tokens)
        self.columns_at = aligned(self.offsets_at + 8 * (info.rows + 1))

    def append(self, block: TokenBlock) -> None:
        """Write the tokens of the next rows; the rest waits for `finish`."""
        ids = np.ascontiguousarray(block.ids[block.offsets[0] : block.offsets[-1]])
        if self._tokens + len(ids) > self._info.tokens:
            raise ManifestError(f"has more than the {self._info.tokens:,} tokens that the manifest says")
        self._write(ids, HEAD_BYTES + 4 * self._tokens)
        self._starts.append(self._tokens)
        done = 0
        while done < len(ids):
            piece, inside = divmod(self._tokens, PIECE_TOKENS)
            part = ids[done : done + PIECE_TOKENS - inside]
            self._sums[piece] = zlib.crc32(part.data, int(self._sums[piece]))
            done += len(part)
            self._tokens += len(part)
        self._lengths.append(block.lengths)
        self._columns.append(block.columns)

    def finish(self, grow: Callable[[int], None]) -> Head:
        """Write offsets, columns, sums and, last, the head; `grow` makes the file larger, to this size in bytes."""
        info = self._info
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *self._lengths])
        if len(lengths) != info.rows or self._tokens != info.tokens:
            raise ManifestError(
                f"has {len(lengths):,} rows and {self._tokens:,} tokens, the manifest says {info.rows:,} and {info.tokens:,}"
            )
        offsets, columns = offsets_of(lengths), _combined(self._columns)
        counted = pa.MockOutputStream()
        _write_stream(columns, counted)
        sums_at = aligned(self.columns_at + counted.size())
        size = sums_at + self._sums.nbytes
        grow(size)
        self._write(offsets, self.offsets_at)
        sink = _Sink(self._write, self.columns_at, zlib.crc32(offsets.data))
        _write_stream(columns, pa.PythonFile(sink, mode="w"))
        self._write(self._sums, sums_at)
        head = Head(
            digest=bytes.fromhex(info.sha256),
            rows=info.rows,
            tokens=info.tokens,
            offsets_at=self.offsets_at,
            columns_at=self.columns_at,
            sums_at=sums_at,
            columns_bytes=counted.size(),
            size=size,
            crc=zlib.crc32(self._sums.data, sink.crc),
        )
        self._write(head.pack(), 0)
        return head

    def has(self, group: int) -> bool:
        """Return whether the n-th call of `append` is done."""
        return group < len(self._columns)

    def block(self, group: int, *_: int) -> TokenBlock | None:
        """Return what the n-th call of `append` wrote, tokens read from the file; None if there was none, or at the end."""
        with self._ending:
            if self._is_ended or group >= len(self._columns):
                return None
            tokens = int(self._lengths[group].sum())
            ids = np.frombuffer(os.pread(self._file, 4 * tokens, HEAD_BYTES + 4 * self._starts[group]), dtype=np.int32)
            lengths, columns = self._lengths[group], self._columns[group]  # `end` lets go of them
        return TokenBlock(ids, offsets_of(lengths), columns) if len(ids) == tokens else None

    def end(self) -> None:
        """Touch the file no more, since it is about to be closed, and let go of the columns."""
        with self._ending:
            self._is_ended = True
            self._lengths, self._columns = [], []

    def _write(self, data: Any, at: int) -> None:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        done = 0
        while done < len(view):
            try:
                done += os.pwrite(self._file, view[done : done + WRITE_BYTES], at + done)
            except OSError as error:
                if error.errno not in DISK_FULL or not self._make_space(len(view) - done):
                    raise


class _Sink:
    """A file for pyarrow: writes on from one place, and keeps the CRC-32."""

    closed = False

    def __init__(self, write: Callable[[Any, int], None], at: int, crc: int) -> None:
        self._write, self._at, self.crc = write, at, crc

    def write(self, data: Any) -> int:
        self._write(data, self._at)
        self.crc = zlib.crc32(data, self.crc)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _write_stream(columns: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)


def _combined(columns: list[pa.RecordBatch]) -> pa.RecordBatch:
    batches = pa.Table.from_batches(columns).combine_chunks().to_batches()
    if len(batches) > 1:
        raise BlockError("holds a column of more than 2 GiB, which one Arrow array cannot; build smaller shards")
    return batches[0] if batches else columns[0]
