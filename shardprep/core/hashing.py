"""Keyed order that stays the same for ever: splitmix64, with golden values in the tests.

numpy's Generator does not promise its stream across versions; this does. The finalizer and the increment are those
of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Purposes of random numbers: two uses of one seed never share a stream. 0 to 15 belong to the reader's schedule.
OBJECTS = 16  # the order in which objects of the source are scanned
TASKS = 17  # the order of scan tasks

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64


def keys(count: int, *seed: int) -> NDArray[np.uint64]:
    """Return uint64 (count,) that depend on the seed words and the position alone: the same in every numpy."""
    state = np.array([_GOLDEN])
    for word in seed:
        state = _mix(state + np.uint64(word % _WORD) + _GOLDEN)
    return _mix(state + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def order(count: int, *seed: int) -> NDArray[np.int64]:
    """Return a permutation int64 (count,) of 0 to count - 1: the argsort of `keys`."""
    return np.argsort(keys(count, *seed), kind="stable").astype(np.int64, copy=False)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Arrays wrap around in silence; scalars would warn.
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
