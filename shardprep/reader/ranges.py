"""Rows of a shard by ranged reads: the groups of rows that are needed, without the rest of the shard.

For the first batches, which should not wait for whole shards, and for caches that are too small. The footer is held
against its digest in the manifest, pages against their check sums.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock, concat
from shardprep.formats.view import View
from shardprep.reader.layout import load_decoder
from shardprep.reader.reading import share
from shardprep.reader.ref import ShardRef

THREADS = 4  # views made at once by `start`

_threads: dict[int, ThreadPoolExecutor] = {}


class ShardRanges:
    """Rows of one shard by range. Thread-safe. What it fetches is not fetched again for the cache, nor the other way."""

    def __init__(self, ref: ShardRef) -> None:
        load_decoder(ref.info.name)
        self._reading = share(ref)

    def view(self, rows: NDArray[np.int64]) -> View:
        """Return a view over these rows (n,), ascending: the groups that hold them.

        Rows between that are in other groups are empty in it: rows of one length may lie anywhere among thousands of it.
        Raises StoreError or ManifestError that names the shard.
        """
        starts = self._reading.layout.row_starts
        groups = np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist()
        if len(groups) > 1:
            self._reading.prefetch(groups)
        blocks = [self._reading.rows(groups[0])]
        for before, group in pairwise(groups):
            if group > before + 1:
                blocks.append(_empty_rows(blocks[0], int(starts[group] - starts[before + 1])))
            blocks.append(self._reading.rows(group))
        return View(blocks[0] if len(blocks) == 1 else concat(blocks), int(starts[groups[0]]))

    def start(self, rows: NDArray[np.int64]) -> Future[View]:
        """Begin what `view` does in a thread: for the rows of several shards at once."""
        pid = os.getpid()
        threads = _threads.get(pid)
        if threads is None:
            _threads.clear()  # a forked child has none of its parent's threads
            threads = _threads[pid] = ThreadPoolExecutor(THREADS, thread_name_prefix="shardprep-fetch-view")
        return threads.submit(self.view, rows)

    def take_bytes_read(self) -> int:
        """Return the bytes fetched since the last call, by this or by the cache, that nobody counted yet."""
        return self._reading.take_bytes_read()

    def stop(self) -> None:
        """Give up tries that are under way: nobody waits for them any more."""
        self._reading.stopped.set()

    def close(self) -> None:
        """Let go of what was read; views stay readable."""
        self._reading.let_go()


def _empty_rows(like: TokenBlock, count: int) -> TokenBlock:
    schema = like.columns.schema
    columns = pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)
    return TokenBlock(like.ids[:0], np.zeros(count + 1, dtype=np.int64), columns)
