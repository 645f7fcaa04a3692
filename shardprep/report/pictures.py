"""The three pictures of a data set: its lengths, its padding, its shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from shardprep.core.buckets import RANDOM_BATCH_ROWS
from shardprep.core.histogram import LengthHistogram
from shardprep.report.chart import Bar, Level, bar_chart, round_steps
from shardprep.report.measures import BucketMeasure

LENGTH_BARS = 72
MOST_SHARD_BARS = 300  # beyond, one bar stands for several shards: a bar stays wider than two pixels


def length_picture(histogram: LengthHistogram, buckets: Sequence[BucketMeasure]) -> str:
    """Return the histogram of lengths on a logarithmic axis, with the bucket edges as thin lines."""
    shortest, longest = int(histogram.lengths[0]), int(histogram.lengths[-1])
    axis = _LogAxis(max(1, shortest), longest + 1)
    bounds = axis.whole_bounds(LENGTH_BARS)
    cuts = np.searchsorted(histogram.lengths, bounds)
    ends = np.concatenate([[0], np.cumsum(histogram.counts)])
    rows = ends[cuts[1:]] - ends[cuts[:-1]]
    bars = [
        Bar(axis.place(low), axis.place(high), int(n), f"{_range(low, high - 1)} tokens: {int(n):,} rows")
        for (low, high), n in zip(pairwise(bounds), rows, strict=True)
    ]
    return bar_chart(
        title="Lengths of the rows",
        description=f"Histogram of {histogram.rows:,} rows from {shortest:,} to {longest:,} tokens; thin lines are the "
        f"edges of {len(buckets)} length buckets.",
        bars=bars,
        x_label="length in tokens, logarithmic",
        x_ticks=axis.ticks(),
        y_label="rows",
        y_format=_short,
        y_whole=True,
        rules=[axis.place(b.edge + 1) for b in buckets if shortest <= b.edge < longest],
    )


def padding_picture(buckets: Sequence[BucketMeasure], share: float, random_share: float) -> str:
    """Return the padding share of each bucket against that of random batches; `share` is that of all buckets."""
    width = 1 / max(1, len(buckets))
    bars = [
        Bar(i * width, (i + 1) * width, b.padding_share * 100, f"{bucket_range(b)} tokens: {percent(b.padding_share)}")
        for i, b in enumerate(buckets)
    ]
    return bar_chart(
        title="Padding in each length bucket",
        description=f"Share of padding when each row is padded to its bucket's edge: {percent(share)} over all "
        f"{len(buckets)} buckets, against {percent(random_share)} in random batches of {RANDOM_BATCH_ROWS}.",
        bars=bars,
        x_label="bucket, by its edge in tokens",
        x_ticks=[((i + 0.5) * width, f"{b.edge:,}") for i, b in enumerate(buckets)],
        y_label="padding, % of the slots",
        y_format=lambda value: f"{value:g} %",
        level=Level(random_share * 100, f"random batches of {RANDOM_BATCH_ROWS}: {percent(random_share)}"),
    )


def shard_picture(split: str, tokens: Sequence[int]) -> str:
    """Return the tokens of each shard of a split; for very many shards a bar shows the largest of its neighbours."""
    count = min(len(tokens), MOST_SHARD_BARS)
    bounds = [i * len(tokens) // count for i in range(count + 1)]
    bars = [
        Bar(
            first / len(tokens),
            stop / len(tokens),
            max(tokens[first:stop]),
            f"shard {_range(first, stop - 1)}: {max(tokens[first:stop]):,} tokens",
        )
        for first, stop in pairwise(bounds)
    ]
    every = max(1, round(round_steps(len(tokens), at_most=20)[1]))
    return bar_chart(
        title=f"Tokens in each shard of {split}",
        description=f"{len(tokens):,} shards of {min(tokens):,} to {max(tokens):,} tokens.",
        bars=bars,
        x_label="shard",
        x_ticks=[((i + 0.5) / len(tokens), str(i)) for i in range(0, len(tokens), every)],
        y_label="tokens",
        y_format=_short,
        y_whole=True,
    )


class _LogAxis:
    """A logarithmic axis from low to high, both at least 1."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, max(high, low + 1)
        self.span = math.log(self.high / self.low)

    def place(self, length: float) -> float:
        return min(1.0, max(0.0, math.log(max(length, 1) / self.low) / self.span))

    def whole_bounds(self, bars: int) -> list[int]:
        """Return ascending whole bounds, evenly spaced on the axis but never less than 1 apart."""
        even = [round(self.low * math.exp(self.span * i / bars)) for i in range(bars + 1)]
        return sorted(set(even))

    def ticks(self) -> list[tuple[float, str]]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [factor * 10**power for power in powers for factor in (1, 2, 5)]
        inside = [value for value in values if self.low <= value <= self.high]
        return [(self.place(value), f"{value:,}") for value in inside] or [(0.0, f"{self.low:,}")]


def percent(share: float) -> str:
    """Return a share as a person reads it: 2.5 %, 69 %, < 0.1 %."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def bucket_range(bucket: BucketMeasure) -> str:
    """Return the lengths of a bucket: 129 to 256."""
    return _range(bucket.above + 1, bucket.edge)


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _short(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
