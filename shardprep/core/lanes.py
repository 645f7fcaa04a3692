"""Who holds which rows: units, lanes and windows as hands of the deal; exact, and nothing is sorted or read.

A deal of sorted numbers to M shards, back and forth, is a deal to every divisor and to every multiple of M as well: hand
u of a deal to A is made of the hands t * A + u (t even) and t * A + A - 1 - u (t odd) of a deal to q * A, t < q. So a
*unit*, a hand of a divisor A of M, is some whole shards; a *part*, a hand of a multiple, is every so manieth row of a
unit; and each of them is the data set in miniature. A *lane* serves a run of slots and holds equally many hands as every
other lane. A *window* is some units of every lane, open at one time; units that do not divide by the lanes join the last
window in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from shardprep.core.hashing import keys, order
from shardprep.core.policy import Policy

Array = NDArray[np.int64]

LEAST_UNIT_ROWS = (1_000, 250, 60)  # a cut is blurred by one row in so many; finer only where units would be too large
LEAST_LANE_ROWS = 1_000  # below it slots share a lane: too few rows to care which node fetches them
LEAST_BUCKET_ROWS = 16  # rows a bucket that units and lanes have on average, where rounds are cut at bucket edges

# Purposes of random numbers: 0 to 15 of core/hashing.py are the schedule's.
TIES, DEAL, LANES, UNITS, WINDOWS, ROUNDS, SHIFT, GAP, MIX = range(9)


def hands(hand: Array, deal: int, count: int) -> Array:
    """Return the hands of a deal to count * deal that make each `hand` (...,) of a deal, int64 (..., count)."""
    turn = np.arange(count, dtype=np.int64)
    forth = hand[..., None]
    return turn * deal + np.where(turn % 2 == 0, forth, deal - 1 - forth)


def most_rows(first: Array, stop: Array | int, held: int, deal: int) -> Array:
    """Return how many of the numbers first to stop - 1 any `held` hands of a deal have at most, int64 (n,)."""
    return _rows_within(first, stop, held, deal, lambda dealt: np.minimum(held, dealt))


def fewest_rows(first: Array, stop: Array | int, held: int, deal: int) -> Array:
    """Return how many of the numbers first to stop - 1 any `held` hands of a deal have at least, int64 (n,)."""
    return _rows_within(first, stop, held, deal, lambda dealt: np.maximum(0, held - deal + dealt))


def _rows_within(first: Array, stop: Array | int, held: int, deal: int, part: Callable[[Array], Array]) -> Array:
    cycle, place = np.divmod(first, deal)
    last, end = np.divmod(stop, deal)
    apart = part(deal - place) + held * (last - cycle - 1) + part(end)
    counted: Array = np.where(cycle == last, part(end - place), apart)
    return counted


@dataclass(frozen=True, eq=False)
class Lane:
    """Some hands of a deal of `rows` sorted numbers; `held` is int64 (hands,), ascending."""

    rows: int
    deal: int
    held: Array

    def rows_below(self, numbers: Array) -> Array:
        """Return how many rows of the lane are below each of `numbers` (n,), int64 (n,)."""
        cycle, place = np.divmod(numbers, self.deal)
        back = cycle % 2 == 1
        met = np.searchsorted(self.held, np.where(back, self.deal - place, place))
        below: Array = cycle * len(self.held) + np.where(back, len(self.held) - met, met)
        return below

    def numbers(self) -> Array:
        """Return the sorted numbers of the lane's rows, int64 (rows,), ascending."""
        cycles = -(-self.rows // self.deal)
        table = np.empty((cycles, len(self.held)), dtype=np.int64)
        table[0::2] = self.held
        table[1::2] = self.deal - 1 - self.held[::-1]
        table += np.arange(0, cycles * self.deal, self.deal, dtype=np.int64)[:, None]
        count = int(self.rows_below(np.array([self.rows]))[0])
        return table.reshape(-1)[:count]


@dataclass(frozen=True)
class WindowSize:
    """What windows of a grid may differ in: the units of a lane, and whether the left-over parts join."""

    units: int
    with_parts: bool


@dataclass(frozen=True, eq=False)
class Grid:
    """The rows of one generation over lanes and windows: `units` hands, a multiple of which are the shards."""

    rows: int
    shards: int
    units: int
    lanes: int
    windows: int

    @property
    def whole(self) -> int:
        """Return the whole units of a lane."""
        return self.units // self.lanes

    @property
    def rest(self) -> int:
        """Return the units that all lanes share in parts."""
        return self.units % self.lanes

    @property
    def parts(self) -> int:
        """Return into how many parts a left-over unit divides."""
        return self.lanes // gcd(self.rest, self.lanes)

    def edges(self, window: int) -> tuple[int, int]:
        """Return first and stop of a window's units among those of a lane."""
        return self.whole * window // self.windows, self.whole * (window + 1) // self.windows

    def size(self, window: int) -> WindowSize:
        """Return the size of a window."""
        first, stop = self.edges(window)
        return WindowSize(stop - first, bool(self.rest) and window == self.windows - 1)

    def deal(self, size: WindowSize) -> int:
        """Return the modulus of the deal in whose hands a window of this size counts."""
        return self.units * (self.parts if size.with_parts else 1)

    def most(self, size: WindowSize, first: Array, stop: int) -> Array:
        """Return how many of the numbers first to stop - 1 a lane of such a window has at most, int64 (n,)."""
        return self._both(most_rows, size, first, stop)

    def fewest(self, size: WindowSize, first: Array, stop: int) -> Array:
        """Return how many of the numbers first to stop - 1 a lane of such a window has at least, int64 (n,)."""
        return self._both(fewest_rows, size, first, stop)

    def _both(self, rows: Callable[[Array, int, int, int], Array], size: WindowSize, first: Array, stop: int) -> Array:
        counted = rows(first, stop, size.units, self.units)
        if size.with_parts:
            counted = counted + rows(first, stop, self.rest * self.parts // self.lanes, self.deal(size))
        return counted

    def unit_rows(self, unit: Array) -> Array:
        """Return the rows of each unit, int64 (...,)."""
        cycles, more = divmod(self.rows, self.units)
        return cycles + (unit < more if cycles % 2 == 0 else unit >= self.units - more)

    def unit_of_longest(self) -> int:
        """Return the unit that has the longest row."""
        cycle, place = divmod(self.rows - 1, self.units)
        return place if cycle % 2 == 0 else self.units - 1 - place

    def dealt_units(self, policy: Policy, index: int, epoch: int) -> tuple[Array, Array]:
        """Return the units of every lane in the order of its windows, int64 (lanes, whole), and the shared ones (rest,).

        A lane keeps its units in all epochs, so that a node finds them in its cache; the windows change. Units with one
        row more than others change places only among themselves: so every window has as many rows in every epoch.
        """
        units = order(self.units, policy.seed, LANES, index) if policy.shuffle else np.arange(self.units)
        alone = self.whole * self.lanes
        lines, shared = units[:alone].reshape(self.lanes, self.whole), units[alone:]
        if not policy.shuffle:
            return lines, shared
        more = self.unit_rows(lines) > self.rows // self.units
        place = np.arange(self.whole) + np.zeros((self.lanes, 1), dtype=np.int64)
        held = more.sum(axis=1, keepdims=True)
        slot_for_more = (place + 1) * held // self.whole > place * held // self.whole
        noise = keys(lines.size, policy.seed, UNITS, epoch, index).reshape(lines.shape)
        noise = (noise >> np.uint64(1)) | (more.astype(np.uint64) << np.uint64(63))
        chosen = np.take_along_axis(lines, np.argsort(noise, axis=1, kind="stable"), axis=1)
        out = np.empty_like(lines)
        np.put_along_axis(out, np.argsort(slot_for_more, axis=1, kind="stable"), chosen, axis=1)
        return out, shared

    def window_hands(self, lines: Array, shared: Array, window: int) -> Array:
        """Return the hands of every lane in a window, int64 (lanes, hands), ascending, of `deal(size(window))`."""
        first, stop = self.edges(window)
        part = lines[:, first:stop]
        if self.size(window).with_parts:
            whole = hands(part, self.units, self.parts).reshape(self.lanes, -1)
            part = np.concatenate([whole, hands(shared, self.units, self.parts).reshape(self.lanes, -1)], axis=1)
        return np.sort(part, axis=1)

    def window_units(self, lines: Array, shared: Array, window: int) -> Array:
        """Return the units that each lane takes rows from in a window, int64 (lanes, n)."""
        first, stop = self.edges(window)
        part = lines[:, first:stop]
        if self.size(window).with_parts:
            part = np.concatenate([part, np.repeat(shared, self.parts).reshape(self.lanes, -1)], axis=1)
        return part

    def shards_of(self, units: Array) -> Array:
        """Return the shards that make these units (n,), int64, sorted and distinct."""
        return np.unique(hands(units, self.units, self.shards // self.units))


def grid_of(rows: int, shards: int, policy: Policy, buckets: int) -> Grid:
    """Return the grid of a generation with at least one row, whose rounds are cut at `buckets` - 1 lengths or none."""
    wanted, divisors = policy.window_rows * policy.slots, _divisors(shards)
    for least in LEAST_UNIT_ROWS:
        least_rows = max(least, buckets * LEAST_BUCKET_ROWS)
        units = max(a for a in divisors if a == 1 or rows // a >= least_rows)
        if rows // units <= wanted:
            break
    lane_rows = max(LEAST_LANE_ROWS, buckets * LEAST_BUCKET_ROWS)
    lanes = max(d for d in _divisors(policy.slots) if d == 1 or (d <= units and rows // d >= lane_rows))
    wanted_units = -(-(policy.window_rows * policy.slots) // (lanes * max(1, rows // units)))
    return Grid(rows, shards, units, lanes, max(1, units // lanes // wanted_units))


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
