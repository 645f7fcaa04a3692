"""What the summary and the page both say about a data set, worked out once from its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardprep.core.buckets import LengthBuckets, bucket_table, padding_share, random_padding_share
from shardprep.core.histogram import LengthHistogram, merged
from shardprep.core.manifest import Manifest, ShardInfo

PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)
LONGEST = 5  # how many of the greatest lengths are named


@dataclass(frozen=True, slots=True)
class BucketMeasure:
    """One length bucket in use: lengths above `above` up to `edge`, its rows, tokens and padded slots."""

    above: int
    edge: int
    rows: int
    tokens: int
    slots: int

    @property
    def padding_share(self) -> float:
        """Return the share of the slots that is padding."""
        return 1 - self.tokens / self.slots


@dataclass(frozen=True, slots=True)
class SplitMeasure:
    """One split over all generations."""

    name: str
    histogram: LengthHistogram
    shards: tuple[ShardInfo, ...]

    @property
    def balance(self) -> float:
        """Return the largest over the smallest shard in tokens; 1 for fewer than two shards."""
        tokens = [shard.tokens for shard in self.shards]
        return max(tokens) / min(tokens) if len(tokens) > 1 and min(tokens) else 1.0


@dataclass(frozen=True, slots=True)
class Measures:
    """A data set in numbers."""

    splits: tuple[SplitMeasure, ...]
    histogram: LengthHistogram
    buckets: tuple[BucketMeasure, ...]
    padding_share: float
    random_padding_share: float

    @property
    def shards(self) -> int:
        """Return the number of shards of all splits."""
        return sum(len(split.shards) for split in self.splits)

    @property
    def balance(self) -> float:
        """Return the worst balance of all splits."""
        return max((split.balance for split in self.splits), default=1.0)


def measures_of(manifest: Manifest) -> Measures:
    """Return the measures of all generations together."""
    splits = _splits(manifest)
    histogram = merged([split.histogram for split in splits])
    buckets = manifest.buckets
    return Measures(
        splits=splits,
        histogram=histogram,
        buckets=buckets_in_use(histogram, buckets),
        padding_share=padding_share(histogram, buckets),
        random_padding_share=random_padding_share(histogram, buckets.pad_multiple),
    )


def _splits(manifest: Manifest) -> tuple[SplitMeasure, ...]:
    infos = [info for generation in manifest.generations for info in generation.splits]
    names = list(dict.fromkeys(info.name for info in infos))
    return tuple(
        SplitMeasure(
            name=name,
            histogram=merged([info.histogram for info in infos if info.name == name]),
            shards=tuple(shard for info in infos if info.name == name for shard in info.shards),
        )
        for name in names
    )


def percentiles(histogram: LengthHistogram, shares: Sequence[int] = PERCENTILES) -> dict[int, int]:
    """Return percentile -> length in tokens (nearest rank: the length of a row that exists); empty without rows."""
    if not histogram.rows:
        return {}
    ends = np.cumsum(histogram.counts)
    ranks = [
        max(1, -(-share * histogram.rows // 100)) for share in shares
    ]  # ceil(share / 100 * rows), in whole numbers
    return {p: int(histogram.lengths[np.searchsorted(ends, rank)]) for p, rank in zip(shares, ranks, strict=True)}


def longest(histogram: LengthHistogram, count: int = LONGEST) -> list[tuple[int, int]]:
    """Return (length, rows) of the greatest lengths, the greatest first."""
    pairs = zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)
    return list(pairs)[: -count - 1 : -1]


def buckets_in_use(histogram: LengthHistogram, buckets: LengthBuckets) -> tuple[BucketMeasure, ...]:
    """Return the buckets that hold rows, in order; the overflow bucket ends at the longest row."""
    table = bucket_table(histogram, buckets)
    last = int(histogram.lengths[-1]) if len(histogram.lengths) else 0
    bounds = [0, *buckets.edges, last]
    return tuple(
        BucketMeasure(bounds[i], bounds[i + 1], int(table.rows[i]), int(table.tokens[i]), int(table.slots[i]))
        for i in np.flatnonzero(table.rows).tolist()
    )
