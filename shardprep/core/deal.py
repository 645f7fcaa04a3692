"""The back-and-forth deal: which rows of a sorted split make shard k of M, as closed formulas.

Rows of a split, sorted by length, are numbered 0, 1, 2 ... Row j of shard k is number j * M + k where j is even and
number j * M + M - 1 - k where j is odd; the last cycle may be partial. So any two shards differ by at most one row,
and the lengths in every shard follow from the split's histogram alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardprep.core.histogram import LengthHistogram


def rows_before(numbers: NDArray[np.int64], shards: int, shard: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many numbers below each of `numbers` (n,) go to `shard`, int64 (n,); the two broadcast."""
    cycle, place = np.divmod(numbers, shards)
    turn = np.where(cycle % 2 == 0, shard, shards - 1 - shard)
    counted: NDArray[np.int64] = cycle + (turn < place)
    return counted


def rows_before_lower(numbers: NDArray[np.int64], shards: int, shard: int) -> NDArray[np.int64]:
    """Return how many numbers below each of `numbers` (n,) go to shards 0 to shard - 1 together, int64 (n,)."""
    cycle, place = np.divmod(numbers, shards)
    partial = np.where(cycle % 2 == 0, np.minimum(shard, place), np.maximum(0, shard - (shards - place)))
    counted: NDArray[np.int64] = cycle * shard + partial
    return counted


def shard_rows(rows: int, shards: int, shard: int) -> int:
    """Return the number of rows of `shard` among so many shards of a split with so many rows."""
    return int(rows_before(np.array([rows], dtype=np.int64), shards, shard)[0])


def rows_of_shards(rows: int, shards: int) -> NDArray[np.int64]:
    """Return the number of rows of every shard, int64 (shards,)."""
    return rows_before(np.array([rows], dtype=np.int64), shards, np.arange(shards, dtype=np.int64))


def shard_histogram(histogram: LengthHistogram, shards: int, shard: int) -> LengthHistogram:
    """Return the length histogram of `shard`."""
    counts = np.diff(rows_before(_edges(histogram), shards, shard))
    return LengthHistogram(histogram.lengths[counts > 0], counts[counts > 0])


def shard_lengths(histogram: LengthHistogram, shards: int, shard: int) -> NDArray[np.int64]:
    """Return the length of each row of `shard`, int64 (rows,), ascending: arithmetic, nothing is read."""
    part = shard_histogram(histogram, shards, shard)
    return np.repeat(part.lengths, part.counts)


def tokens_of_shards(histogram: LengthHistogram, shards: int) -> NDArray[np.int64]:
    """Return the tokens of every shard, int64 (shards,), in O(lengths + shards)."""
    edges = _edges(histogram)[1:]
    # Sum by parts: a shard's tokens are its rows below each edge times the step down to the next length.
    steps = -np.diff(histogram.lengths, append=0)
    cycle, place = np.divmod(edges, shards)
    odd = cycle % 2 == 1
    extra = np.zeros(shards + 1, dtype=np.int64)  # differences over the shards that a partial cycle has dealt to
    np.add.at(extra, np.where(odd, shards - place, 0), steps)
    np.add.at(extra, np.where(odd, shards, place), -steps)
    tokens: NDArray[np.int64] = np.cumsum(extra[:-1]) + int((cycle * steps).sum())
    return tokens


def length_runs(histogram: LengthHistogram, shards: int, shard: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and stop (exclusive) of the rows of `shard` for each length, both int64 (lengths,).

    They count rows of the split in (length, task, position) order. Among rows of one length the shards 0, 1, 2 ...
    take consecutive runs, each as long as the deal says.
    """
    edges = _edges(histogram)
    first = edges[:-1] + np.diff(rows_before_lower(edges, shards, shard))
    return first, first + np.diff(rows_before(edges, shards, shard))


def _edges(histogram: LengthHistogram) -> NDArray[np.int64]:
    edges = np.zeros(len(histogram.counts) + 1, dtype=np.int64)
    np.cumsum(histogram.counts, out=edges[1:])
    return edges
