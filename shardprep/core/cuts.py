"""Where rounds are cut: along positions from the longest row of a lane down, by bounds that hold for every lane.

A *segment* is a range of sorted numbers whose rows may share a round: all of them, or one length bucket. A *block* is a
range of positions of a segment that makes some rounds of one number of rows a slot. Bounds follow from the histogram and
the number of hands a lane holds, so the number of rounds is known before anything is dealt, and is the same in every
epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.core.buckets import LengthBuckets, padded_to_multiple
from shardprep.core.histogram import LengthHistogram
from shardprep.core.lanes import Array, Grid, WindowSize
from shardprep.core.policy import Policy

LEAST_POOLS_TO_SHIFT, LEAST_ROWS_TO_SHIFT = 8, 2  # with fewer pools, or rows a slot, a shift costs more than it gives


@dataclass(frozen=True, eq=False)
class Segment:
    """Sorted numbers first to stop - 1. length: what all their rounds are padded to; 0: each round to its longest row.

    lowest, padded  first number and padded length of each distinct padded length, the longest first
    """

    first: int
    stop: int
    length: int
    lowest: Array
    padded: Array


@dataclass(frozen=True, eq=False)
class LengthTable:
    """The distinct lengths (n,) of a generation, ascending.

    edges   int64 (n + 1,): rows shorter than each length; all rows
    padded  int64 (n,): rounded up to the pad multiple
    group   (n,): number of the distinct padded length; rows of one group are dealt in random order
    """

    lengths: Array
    edges: Array
    padded: Array
    group: NDArray[Any]
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.edges[-1])

    def padded_of(self, numbers: Array) -> Array:
        """Return the padded length of rows by sorted number (n,), int64 (n,)."""
        return self.padded[np.searchsorted(self.edges, numbers, side="right") - 1]


def length_table(histogram: LengthHistogram, buckets: LengthBuckets, policy: Policy) -> LengthTable:
    """Return the table of a histogram with at least one row, the segments with the longest rows first."""
    edges = np.concatenate([[0], np.cumsum(histogram.counts)]).astype(np.int64)
    padded = padded_to_multiple(histogram.lengths, buckets.pad_multiple)
    fresh = np.append(True, np.diff(padded) > 0)
    group = np.cumsum(fresh) - 1
    if policy.pad_to == "edge":
        bucket = buckets.bucket_of(histogram.lengths)
        cuts = np.flatnonzero(np.append(True, np.diff(bucket) > 0))
        fixed = [buckets.edges[b] if b < len(buckets.edges) else 0 for b in bucket[cuts].tolist()]
    else:
        cuts, fixed = np.zeros(1, dtype=np.int64), [0]
    segments = []
    for first, stop, length in zip(cuts.tolist(), [*cuts[1:].tolist(), len(padded)], fixed, strict=True):
        lowest = first + np.flatnonzero(np.append(True, np.diff(padded[first:stop]) > 0))[::-1]
        segments.append(Segment(int(edges[first]), int(edges[stop]), length, edges[lowest], padded[lowest]))
    small = group.astype(np.uint16) if group[-1] < 2**16 else group
    return LengthTable(histogram.lengths, edges, padded, small, tuple(reversed(segments)))


class Blocks(NamedTuple):
    """Positions start to stop - 1 of a segment in every lane, as `rounds` rounds of `rows` rows a slot; int64 (n,)."""

    segment: Array
    start: Array
    stop: Array
    rows: Array
    rounds: Array


class Run(NamedTuple):
    """`blocks` blocks of `take` positions from `start` on (the last may end earlier), at most `rows` rows a slot."""

    start: int
    blocks: int
    take: int
    rows: int


@dataclass(frozen=True, eq=False)
class Cut:
    """How windows of one size of a grid are cut."""

    table: LengthTable
    grid: Grid
    policy: Policy
    size: WindowSize

    @property
    def slots_per_lane(self) -> int:
        """Return the slots that share a lane."""
        return self.policy.slots // self.grid.lanes

    def blocks(self, stops: Array, shift: float = 0.0) -> Blocks:
        """Return the blocks where lanes have up to stops[i] (tail="drop": at least so many) rows of segment i.

        A shift, in [0, 1), moves the cuts by that share of a block, so that other rows meet in every epoch: some blocks
        are made shorter, as soon as rows are fine enough.
        """
        segments = range(len(self.table.segments))
        runs = [(i, run) for i in segments for run in self._runs(i, int(stops[i]), shift)]
        table = np.array([(i, *run) for i, run in runs], dtype=np.int64).reshape(-1, 5)
        run = np.repeat(np.arange(len(table)), table[:, 2])
        segment_of, start, _, take, most_rows = table[run].T
        start = start + take * (np.arange(len(run)) - np.repeat(np.cumsum(table[:, 2]) - table[:, 2], table[:, 2]))
        return self._finished(segment_of, start, np.minimum(start + take, stops[segment_of]), most_rows)

    def _runs(self, index: int, stop: int, shift: float) -> list[Run]:
        """Cut a segment from the longest row down."""
        per, rounds, least = self.slots_per_lane, self.policy.pool_rounds, LEAST_ROWS_TO_SHIFT
        position, out = 0, []
        for last, rows in zip(self._ends[index], self._limits[index], strict=True):
            end, take = min(last, stop), rows * per * rounds
            if shift and rows >= least and position < end:
                less = int(shift * rows * rounds)  # below rows x rounds: at least a row a slot is left
                shift, least = shift - less / (rows * rounds), 2 * rows
                if less:
                    out.append(Run(position, 1, take - less * per, rows))
                    position += take - less * per
            if position < end:
                count = -(-(end - position) // take)
                out.append(Run(position, count, take, rows))
                position += count * take
        return out

    @cached_property
    def _ends(self) -> list[list[int]]:
        """Positions up to which the row of any lane may be as long as each padded length, by segment."""
        return [
            [s.stop - s.first + 1] if s.length else (self.grid.most(self.size, s.lowest + 1, s.stop) + 1).tolist()
            for s in self.table.segments
        ]

    @cached_property
    def _limits(self) -> list[list[int]]:
        return [
            self.policy.rows_of(np.array([s.length]) if s.length else s.padded).tolist() for s in self.table.segments
        ]

    def _finished(self, segment: Array, start: Array, stop: Array, rows: Array) -> Blocks:
        """Spread the positions of each block evenly over its rounds; fewer filler (or dropped) rows than slots."""
        per, count = self.slots_per_lane, stop - start
        rounds = -(-count // (rows * per))
        if self.policy.tail == "pad":
            return Blocks(segment, start, stop, -(-count // (rounds * per)), rounds)
        if self.policy.full_rounds_only:
            rounds = count // (rows * per)
        else:
            rounds = np.minimum(rounds, count // per)
            rows = count // np.maximum(rounds * per, 1)
        blocks = Blocks(segment, start, start + rows * rounds * per, rows, rounds)
        return Blocks(*(field[rounds > 0] for field in blocks))

    def split(self, blocks: Blocks, index: int) -> None:
        """Let a block, in place, be one more round of fewer rows."""
        blocks.rounds[index] += 1
        count = blocks.stop[index] - blocks.start[index]
        blocks.rows[index] = -(-count // (blocks.rounds[index] * self.slots_per_lane))

    @cached_property
    def plain(self) -> Blocks:
        """The blocks without a shift, where a lane has as many (tail="drop": as few) rows as it can have."""
        rows = self.grid.fewest if self.policy.tail == "drop" else self.grid.most
        return self.blocks(np.array([rows(self.size, np.array([s.first]), s.stop)[0] for s in self.table.segments]))

    @cached_property
    def shifts(self) -> bool:
        """Tell whether cuts are moved from epoch to epoch."""
        policy = self.policy
        return (
            policy.shuffle
            and (policy.tail, policy.pad_to) == ("pad", "round")
            and len(self.plain.rounds) >= LEAST_POOLS_TO_SHIFT
            and int(self.plain.rows.max()) >= LEAST_ROWS_TO_SHIFT
        )

    @cached_property
    def rounds(self) -> int:
        """The rounds of a window that has more rows than these, in every epoch: a shift costs one more."""
        return int(self.plain.rounds.sum()) + self.shifts

    @cached_property
    def area(self) -> int:
        """Padded tokens of a slot in such a window, nearly: with the longest rows that its rounds can have."""
        blocks, length = self.plain, np.zeros(len(self.plain.rounds), dtype=np.int64)
        for i, segment in enumerate(self.table.segments):
            own = blocks.segment == i
            place = np.searchsorted(np.array(self._ends[i]), blocks.start[own], side="right")
            length[own] = segment.length or segment.padded[place]
        return int((blocks.rows * blocks.rounds * length).sum())
