"""Length buckets: where padding goes, and the edges that waste least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardprep.core.histogram import LengthHistogram, merged
from shardprep.errors import ConfigError

EXACT_LENGTHS = 32_768  # fitted exactly up to so many distinct padded lengths; 64 edges then take about 0.3 s
RANDOM_BATCH_ROWS = 16  # what the report compares with


@dataclass(frozen=True)
class LengthBuckets:
    """Ranges of lengths: bucket i holds lengths above edges[i - 1] up to edges[i]; beyond the last is the overflow.

    edges         ascending multiples of pad_multiple, in tokens; none at all puts every row in the overflow bucket
    pad_multiple  rows beyond the last edge are padded to a multiple of this many tokens
    """

    edges: tuple[int, ...]
    pad_multiple: int

    def __post_init__(self) -> None:
        if self.pad_multiple < 1:
            raise ConfigError(f"the pad multiple must be at least 1, got {self.pad_multiple}")
        for edge in self.edges:
            if edge < 1 or edge % self.pad_multiple:
                raise ConfigError(
                    f"bucket edges must be positive multiples of {self.pad_multiple} (--pad-multiple), got {edge}"
                )
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ConfigError(f"bucket edges must ascend, got {', '.join(map(str, self.edges))}")

    def bucket_of(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket of each length, int64 (rows,): an edge is inside its bucket; len(edges) is the overflow."""
        return np.searchsorted(np.array(self.edges, dtype=np.int64), lengths, side="left").astype(np.int64, copy=False)

    def padded(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of each row, int64 (rows,): its bucket's edge; in the overflow the next pad multiple."""
        bucket = self.bucket_of(lengths)
        edges = np.array([*self.edges, 0], dtype=np.int64)
        return np.where(bucket < len(self.edges), edges[bucket], padded_to_multiple(lengths, self.pad_multiple))


@dataclass(frozen=True, eq=False)
class BucketTable:
    """What is in each bucket, the overflow last: rows, tokens and padded slots, int64 (buckets + 1,) each."""

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    slots: NDArray[np.int64]

    @property
    def padding_share(self) -> NDArray[np.float64]:
        """Return the share of slots that hold no token, float64 (buckets + 1,); 0 for an empty bucket."""
        share: NDArray[np.float64] = (self.slots - self.tokens) / np.maximum(self.slots, 1)
        return share


def padded_to_multiple(lengths: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    """Return lengths rounded up to a multiple, at least one multiple, int64 (rows,)."""
    return np.maximum(-(-np.asarray(lengths, dtype=np.int64) // multiple), 1) * multiple


def bucket_table(histogram: LengthHistogram, buckets: LengthBuckets) -> BucketTable:
    """Return rows, tokens and slots of every bucket."""
    place = buckets.bucket_of(histogram.lengths)
    table = np.zeros((3, len(buckets.edges) + 1), dtype=np.int64)
    np.add.at(table[0], place, histogram.counts)
    np.add.at(table[1], place, histogram.counts * histogram.lengths)
    np.add.at(table[2], place, histogram.counts * buckets.padded(histogram.lengths))
    return BucketTable(*table)


def padding_share(histogram: LengthHistogram, buckets: LengthBuckets) -> float:
    """Return the share of slots that hold no token when every row is padded to its bucket's edge; 0 without rows."""
    slots = int((buckets.padded(histogram.lengths) * histogram.counts).sum())
    return 1 - histogram.tokens / slots if slots else 0.0


def random_padding_share(histogram: LengthHistogram, pad_multiple: int, batch_rows: int = RANDOM_BATCH_ROWS) -> float:
    """Return the expected share of padding when batches are drawn at random, each padded to its longest row.

    Exact for batches drawn without replacement: the longest row is at most v with probability
    C(rows up to v, batch) / C(all rows, batch).
    """
    rows = histogram.rows
    batch = min(batch_rows, rows)
    if not batch:
        return 0.0
    ends = np.cumsum(histogram.counts).astype(np.float64)
    at_most = np.ones(len(ends))
    for drawn in range(batch):
        at_most *= np.maximum(ends - drawn, 0) / (rows - drawn)
    longest = padded_to_multiple(histogram.lengths, pad_multiple) @ np.diff(at_most, prepend=0.0)
    return float(1 - histogram.tokens / rows / longest)


def fit_edges(histogram: LengthHistogram, buckets: int, pad_multiple: int) -> LengthBuckets:
    """Return at most `buckets` edges with the fewest padded slots; the last one covers the longest row.

    Dynamic programming over the distinct padded lengths, exact. Where there are more than EXACT_LENGTHS of them, only
    the longest of each group with the same leading binary digits (11 or more) may become an edge: at most 0.1 % more
    slots, and still covering.
    """
    if buckets < 1:
        raise ConfigError(f"the number of buckets must be at least 1, got {buckets}")
    values, counts = _candidates(histogram, pad_multiple)
    if len(values) <= buckets:
        return LengthBuckets(tuple(values.tolist()), pad_multiple)
    rows = np.concatenate([[0], np.cumsum(counts)])
    cost = values * rows[1:]  # one edge, at each value
    cuts = []
    for _ in range(buckets - 1):
        cost, cut = _one_more_edge(values, rows, cost)
        cuts.append(cut)
    edges, last = [], len(values)
    for cut in reversed(cuts):
        edges.append(int(values[last - 1]))
        last = int(cut[last - 1])
    edges.append(int(values[last - 1]))
    return LengthBuckets(tuple(reversed(edges)), pad_multiple)


def _candidates(histogram: LengthHistogram, pad_multiple: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths that may become edges, and the rows between them: all padded lengths, or fewer."""
    padded = merged([LengthHistogram(padded_to_multiple(histogram.lengths, pad_multiple), histogram.counts)])
    values, counts, digits = padded.lengths, padded.counts, 16
    exponent = np.frexp(values.astype(np.float64))[1]  # exact, unlike a logarithm: the same on every processor
    last = np.arange(len(values))
    while len(last) > EXACT_LENGTHS:
        digits -= 1
        group = values >> np.maximum(exponent - digits, 0)
        same = (np.diff(group) == 0) & (np.diff(exponent) == 0)
        last = np.flatnonzero(np.append(~same, True))
    return values[last], np.diff(np.cumsum(counts)[last], prepend=0)


def _one_more_edge(
    values: NDArray[np.int64], rows: NDArray[np.int64], cost: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the least cost of every prefix with one more edge, and how many values the edge before the last covers.

    cost[j] is the least with the edges so far, the last of them values[j]. The new cost of values 0 to j is the least
    over i of cost[i] + values[j] * (rows[j + 1] - rows[i + 1]). The best i never falls as j grows, so the answers are
    found by halving: each level looks only between the neighbours found before it, all segments of a level at once.
    """
    size = len(values)
    best = np.zeros(size, dtype=np.int64)
    least = np.zeros(size, dtype=np.int64)
    step = 1 << (size - 1).bit_length()
    done = np.zeros(0, dtype=np.int64)
    while step:
        middles = np.arange(step - 1, size, 2 * step)
        low, high = np.zeros(len(middles), dtype=np.int64), middles.copy()
        if len(done):
            after = np.searchsorted(done, middles)
            low = np.where(after > 0, best[done[np.maximum(after - 1, 0)]], 0)
            high = np.minimum(high, np.where(after < len(done), best[done[np.minimum(after, len(done) - 1)]], middles))
        spans = high - low + 1
        begins = np.cumsum(spans) - spans
        i = np.arange(int(spans.sum())) - np.repeat(begins - low, spans)
        x = np.repeat(values[middles], spans)
        total = cost[i] - x * rows[i + 1]
        smallest = np.minimum.reduceat(total, begins)
        hit = np.flatnonzero(total == np.repeat(smallest, spans))
        first = hit[np.searchsorted(hit, begins)]
        best[middles] = i[first]
        least[middles] = smallest + values[middles] * rows[middles + 1]
        done = np.sort(np.concatenate([done, middles]))
        step //= 2
    return least, best + 1
