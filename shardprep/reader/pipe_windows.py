"""Windows of a stream: consecutive rows that are in memory together, sorted and cut into rounds like a small data set.

Where a window ends follows from the rows alone, so every rank that reads the same stream cuts the same windows, and so
does the process that reads it again after a crash. Within a window rounds are those of core/schedule.py: one shape for all
ranks, filler rows of weight 0 where rows do not fill a round, shuffled by the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock
from shardprep.core.buckets import LengthBuckets
from shardprep.core.content import SplitInfo
from shardprep.core.deal import shard_lengths
from shardprep.core.histogram import LengthHistogram
from shardprep.core.schedule import Epoch, MicroBatch, Policy, RowSet
from shardprep.formats.view import View

TOKEN_BYTES, ROW_BYTES = 4, 64  # what a row counts: int32 tokens; offsets, id and a few columns
LEAST_BUFFER_BYTES, MOST_BUFFER_BYTES = 64 << 20, 512 << 20  # of a buffer that nobody gave the size of
MOST_WINDOWS = 1 << 20  # of an epoch: each has a stream of random numbers of its own

Lengths = NDArray[np.int64]


def cost_of(lengths: Lengths) -> Lengths:
    """Return what rows of these lengths take of a buffer, in bytes, int64 (rows,)."""
    return lengths * TOKEN_BYTES + ROW_BYTES


def default_buffer_bytes(splits: Iterable[SplitInfo]) -> int:
    """Return the size of a buffer that holds the largest shard, within limits.

    Rows of a shard come sorted by length: a window that holds less than a shard has rows of like length only.
    """
    largest = max(shard.tokens * TOKEN_BYTES + shard.rows * ROW_BYTES for split in splits for shard in split.shards)
    return int(min(max(largest, LEAST_BUFFER_BYTES), MOST_BUFFER_BYTES))


class WindowCutter:
    """Says after which row of a stream each window ends: the first one that makes it cost at least the budget."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._filled = 0

    def cuts(self, lengths: Lengths) -> list[int]:
        """Return after which of the next rows (rows,) windows end: numbers of rows, ascending."""
        ends = np.cumsum(cost_of(lengths)) + self._filled
        cuts: list[int] = []
        start = 0
        while (stop := start + int(np.searchsorted(ends[start:], self._budget)) + 1) <= len(lengths):
            cuts.append(stop)
            ends -= ends[stop - 1]
            start = stop
        self._filled = int(ends[-1]) if start < len(lengths) else 0
        return cuts


@dataclass(frozen=True, eq=False)
class Window:
    """Rows of a stream, in blocks as they came.

    index      of the epoch's windows, from 0
    order      int64 (rows,): the rows sorted by length
    histogram  of their lengths
    digest     of ids and lengths in the order of the stream
    """

    index: int
    blocks: tuple[TokenBlock, ...]
    order: Lengths
    histogram: LengthHistogram
    digest: bytes

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.order)

    @classmethod
    def of(cls, index: int, blocks: tuple[TokenBlock, ...]) -> Window:
        """Return the window of these blocks, at least one row together."""
        lengths = np.concatenate([block.lengths for block in blocks])
        digest = hashlib.blake2b(lengths.tobytes(), digest_size=16)
        for block in blocks:
            for value in _bytes_of_ids(block):
                digest.update(value)
        return cls(index, blocks, np.argsort(lengths, kind="stable"), _histogram_of(lengths), digest.digest())

    def views(self) -> dict[int, View]:
        """Return the blocks, by number."""
        return {number: View(block) for number, block in enumerate(self.blocks)}

    def starts(self) -> Lengths:
        """Return the first row of each block, int64 (blocks,)."""
        return np.cumsum([0, *(block.rows for block in self.blocks[:-1])], dtype=np.int64)

    def placed(self, spec: MicroBatch, starts: Lengths, first_round: int, first_step: int, epoch: int) -> MicroBatch:
        """Return a micro-batch over sorted rows as one over the blocks, numbered as in the epoch."""
        rows = self.order[spec.row]
        block = np.searchsorted(starts, rows, side="right") - 1
        return replace(
            spec,
            shard=block,
            row=rows - starts[block],
            round=first_round + spec.round,
            step=first_step + spec.step,
            epoch=epoch,
        )


class WindowRows:
    """Rows on their way into windows."""

    def __init__(self, budget_bytes: int) -> None:
        self.count = 0
        self._cutter = WindowCutter(budget_bytes)
        self._blocks: list[TokenBlock] = []
        self._index = 0

    def add(self, block: TokenBlock) -> Iterator[Window]:
        """Add rows, and yield the windows that are full."""
        start = 0
        self.count += block.rows
        for stop in self._cutter.cuts(block.lengths):
            self._blocks.append(block.slice(start, stop))
            start = stop
            yield self._window()
        if start < block.rows:
            self._blocks.append(block.slice(start, block.rows))

    def rest(self) -> Window | None:
        """Return the rows that fill no window."""
        return self._window() if self._blocks else None

    def _window(self) -> Window:
        blocks, self._blocks = tuple(self._blocks), []
        self._index += 1
        return Window.of(self._index - 1, blocks)


def rounds_of(histogram: LengthHistogram, buckets: LengthBuckets, policy: Policy, epoch: int, window: int) -> Epoch:
    """Return the rounds of a window, by its lengths: those of a data set of one shard."""
    return Epoch((RowSet(histogram, 1),), buckets, policy, epoch * MOST_WINDOWS + window)


def lengths_by_window(splits: Iterable[SplitInfo], budget_bytes: int) -> Iterator[LengthHistogram]:
    """Yield the lengths of each window of the stream that has all shards in order; arithmetic on the histograms alone."""
    cutter, kept = WindowCutter(budget_bytes), np.zeros(0, dtype=np.int64)
    for split in splits:
        for shard in range(len(split.shards)):
            lengths, start = shard_lengths(split.histogram, len(split.shards), shard), 0
            for stop in cutter.cuts(lengths):
                yield _histogram_of(np.concatenate([kept, lengths[start:stop]]))
                kept, start = kept[:0], stop
            kept = np.concatenate([kept, lengths[start:]])
    if len(kept):
        yield _histogram_of(kept)


def _histogram_of(lengths: Lengths) -> LengthHistogram:
    found, counts = np.unique(lengths, return_counts=True)
    return LengthHistogram(found, counts.astype(np.int64, copy=False))


def _bytes_of_ids(block: TokenBlock) -> Iterator[memoryview | bytes]:
    ids = block.columns.column(0)
    _, offsets, data = ids.buffers()
    places = np.frombuffer(offsets, dtype=np.int64 if str(ids.type).startswith("large") else np.int32)
    places = places[ids.offset : ids.offset + len(ids) + 1]
    yield np.diff(places).astype(np.int64).tobytes()
    yield memoryview(data or b"")[int(places[0]) : int(places[-1])]
