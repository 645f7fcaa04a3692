"""LengthHistogram: the only thing about lengths that anyone ever has to remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import BlockError


@dataclass(frozen=True, eq=False)
class LengthHistogram:
    """How many rows there are of each length: lengths int64 ascending, distinct; counts int64, all positive."""

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return int((self.lengths * self.counts).sum())

    def __eq__(self, other: object) -> bool:
        """Tell whether two histograms count the same."""
        if not isinstance(other, LengthHistogram):
            return NotImplemented
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]  # arrays inside: compared, never a key


def histogram_of(lengths: NDArray[np.int64]) -> LengthHistogram:
    """Return the histogram of row lengths (rows,), in any order."""
    values, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    return LengthHistogram(values, counts.astype(np.int64))


def merged(histograms: Sequence[LengthHistogram]) -> LengthHistogram:
    """Return the sum of histograms; the empty histogram for none."""
    if not histograms:
        return histogram_of(np.zeros(0, np.int64))
    return _summed(
        np.concatenate([h.lengths for h in histograms]).astype(np.int64, copy=False),
        np.concatenate([h.counts for h in histograms]).astype(np.int64, copy=False),
    )


def subtracted(histogram: LengthHistogram, drop: LengthHistogram) -> LengthHistogram:
    """Return the histogram without the rows of `drop`. Raises BlockError if it never had some of them."""
    left = _summed(np.concatenate([histogram.lengths, drop.lengths]), np.concatenate([histogram.counts, -drop.counts]))
    if (left.counts < 0).any():
        length = int(left.lengths[left.counts < 0][0])
        raise BlockError(f"more rows of length {length} are dropped than were staged", length=length)
    return left


def _summed(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> LengthHistogram:
    """Return the sum of counts for each distinct length, without those that come to nothing."""
    values, place = np.unique(lengths, return_inverse=True)
    total = np.zeros(len(values), dtype=np.int64)
    np.add.at(total, place, counts)
    return LengthHistogram(values[total != 0], total[total != 0])
