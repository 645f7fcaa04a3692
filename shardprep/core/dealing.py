"""Rows dealt round and round to cells, and where a sorted number lies; see `core/window.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardprep.core.lanes import Array


@dataclass(frozen=True, eq=False)
class LaneRows:
    """The rows of a lane in a window, micro-batch after micro-batch: shard and place in it, int64 (rows,) each.

    real  rows of each round and slot of the lane that are not filler: [round * slots a lane + slot]
    """

    shard: Array
    row: Array
    real: list[int]


def places(numbers: Array, shards: int) -> tuple[Array, Array]:
    """Return shard and row of sorted numbers (n,), int64 (n,) each: the deal of core/deal.py."""
    row, place = np.divmod(numbers, shards)
    return np.where(row % 2 == 0, place, shards - 1 - place), row


def dealt_to(cell: Array, cells: Array, offset: Array | int, count: Array) -> Array:
    """Return how many of `count` rows go to a cell when they are dealt round and round, starting at cell `offset`."""
    dealt: Array = (offset + count - 1 - cell) // cells - (offset - 1 - cell) // cells
    return dealt


def neighbours_instead(index: NDArray[np.int32], leading: Array) -> Array:
    """Return which row of a lane plays in the place of each, int64 (rows,), so that the `leading` ones are neighbours.

    index  number of the length of every row, ascending

    Rows change places with rows of their own length only. Neighbours lie in few row groups: the first batch waits for
    those alone, even where most rows have one length, whose order is random otherwise.
    """
    leading = np.sort(leading)
    instead = np.arange(len(index))
    for length in np.unique(index[leading]):
        own = leading[index[leading] == length]
        first = min(int(own[0]), int(np.searchsorted(index, length, side="right")) - len(own))
        run = np.arange(first, first + len(own))
        leave, enter = np.setdiff1d(own, run), np.setdiff1d(run, own)
        instead[leave], instead[enter] = enter, leave
    return instead
