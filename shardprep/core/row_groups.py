"""Where a shard is cut into row groups: at most so many bytes, at bucket edges where one is near."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardprep.core.buckets import LengthBuckets

TOKEN_BYTES = 4


def row_groups(
    lengths: NDArray[np.int64], buckets: LengthBuckets, limit_bytes: int, bytes_per_row_fixed: int
) -> NDArray[np.int64]:
    """Return the cuts int64 (groups + 1,) of rows with these lengths (rows,), from 0 to the number of rows.

    A group holds at most limit_bytes, uncompressed: 4 a token and the fixed bytes of every row; a single larger row is
    a group of its own. A group ends at a bucket edge where one lies in its last half. No last group is tiny: where it
    is less than half of the one before, the two are cut anew near their middle.
    """
    rows = len(lengths)
    if not rows:
        return np.zeros(1, dtype=np.int64)
    ends = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(lengths * TOKEN_BYTES + bytes_per_row_fixed, out=ends[1:])
    edges = np.flatnonzero(np.diff(buckets.bucket_of(lengths))) + 1  # rows that begin a bucket
    cuts = [0]
    while cuts[-1] < rows:
        start = cuts[-1]
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + limit_bytes, side="right")) - 1)
        if stop < rows:
            half = ends[start] + (ends[stop] - ends[start]) / 2
            near = edges[np.searchsorted(edges, stop, side="right") - 1] if len(edges) else 0
            stop = int(near) if start < near <= stop and ends[near] >= half else stop
        cuts.append(stop)
    return np.array(_balanced(cuts, ends, edges, limit_bytes), dtype=np.int64)


def _balanced(cuts: list[int], ends: NDArray[np.int64], edges: NDArray[np.int64], limit_bytes: int) -> list[int]:
    """Return the cuts with a tiny last group filled from the one before it."""
    if len(cuts) < 3:
        return cuts
    start, middle, stop = cuts[-3:]
    if 2 * (ends[stop] - ends[middle]) >= ends[middle] - ends[start]:
        return cuts
    half = ends[start] + (ends[stop] - ends[start]) / 2
    places = np.unique(np.append(edges, np.searchsorted(ends, half) - np.array([0, 1])))
    places = places[(places > start) & (places < stop)]
    first, second = ends[places] - ends[start], ends[stop] - ends[places]
    # A bucket edge serves where both groups get at least a third; else the row nearest the middle.
    fits = (np.maximum(first, second) <= limit_bytes) & (3 * np.minimum(first, second) >= first + second)
    if not fits.any():
        return cuts
    best = places[fits][np.argmin(np.abs(first - second)[fits] + (~np.isin(places, edges))[fits] * limit_bytes)]
    return [*cuts[:-2], int(best), stop]
