"""The epoch as arithmetic: the rows of every micro-batch follow from length histograms, a policy, a seed and an epoch.

A *round* is one micro-batch for each of G slots, all of one shape; a *step* is `accumulate` rounds in the order of
playing. Shards are dealt to lanes (runs of slots) and windows (`core/lanes.py`), rounds are cut along the sorted order at
the same places in every lane (`core/cuts.py`), and rows are dealt to rounds and slots when a window is opened
(`core/window.py`). No world enters: rank r of W plays the slots of `slots_of`, so any world continues any other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shardprep.core.buckets import LengthBuckets
from shardprep.core.cuts import Cut, LengthTable, length_table
from shardprep.core.dealing import LaneRows
from shardprep.core.hashing import order
from shardprep.core.lanes import WINDOWS, Array, Grid, WindowSize, grid_of
from shardprep.core.policy import Policy, World, micro_batches_per_round, played_slots, slots_of
from shardprep.core.rounds import MicroBatch, RoundShape, RowSet, Span
from shardprep.core.window import Window
from shardprep.errors import ConfigError

__all__ = [
    "PLAN_VERSION",
    "Epoch",
    "MicroBatch",
    "Policy",
    "RoundShape",
    "RowSet",
    "Span",
    "World",
    "micro_batches_per_round",
    "played_slots",
    "slots_of",
]

PLAN_VERSION = 1  # of the order: the same version, data, policy, seed and epoch give the same micro-batches for ever
OPEN_WINDOWS = 3  # threads look ahead: one is played, one is made ready, one is being cut


class SetPlan:
    """What is the same in all epochs of one row set: lanes, windows, and the rounds of each window."""

    def __init__(self, rows: RowSet, buckets: LengthBuckets, policy: Policy, index: int) -> None:
        self.policy, self.index, self.first_shard = policy, index, rows.first_shard
        self.table: LengthTable = length_table(rows.histogram, buckets, policy)
        segments = len(self.table.segments)
        self.grid: Grid = grid_of(self.table.rows, rows.shards, policy, segments if segments > 1 else 0)
        self._cuts: dict[WindowSize, Cut] = {}
        lines, shared = self.grid.dealt_units(policy, index, 0)
        self.rounds = [self._rounds(lines, shared, window) for window in range(self.grid.windows)]

    def cut(self, window: int) -> Cut:
        """Return how a window is cut; windows of one size share it."""
        size = self.grid.size(window)
        if size not in self._cuts:
            self._cuts[size] = Cut(self.table, self.grid, self.policy, size)
        return self._cuts[size]

    def _rounds(self, lines: Array, shared: Array, window: int) -> int:
        first, stop = self.grid.edges(window)
        rows = int(self.grid.unit_rows(lines[:, first:stop]).sum())
        if self.grid.size(window).with_parts:
            rows += int(self.grid.unit_rows(shared).sum())
        return min(rows, self.cut(window).rounds)  # each round has a real row


class Epoch:
    """The rounds of one epoch over the generations of a split; threads may share it.

    Construction and everything but `micro_batch`, `shape` and `totals` cost no more with more rows, only with more
    windows; those three open a window, and the last few that were opened are kept.

    Raises ConfigError where a generation with rows has no shards, or the epoch is negative.
    """

    def __init__(self, sets: Sequence[RowSet], buckets: LengthBuckets, policy: Policy, epoch: int) -> None:
        for rows in sets:
            if rows.shards < 1 and len(rows.histogram.counts):
                raise ConfigError(f"{rows.histogram.rows} rows lie in no shard: the number of shards is {rows.shards}")
        filled = [(i, rows) for i, rows in enumerate(sets) if len(rows.histogram.counts)]
        self._begin([SetPlan(rows, buckets, policy, i) for i, rows in filled], policy, epoch)

    def at(self, epoch: int) -> Epoch:
        """Return another epoch of the same rows; cheaper than a new one."""
        other = object.__new__(Epoch)
        other._begin(self._plans, self.policy, epoch)
        return other

    def _begin(self, plans: list[SetPlan], policy: Policy, epoch: int) -> None:
        if epoch < 0:
            raise ConfigError(f"epoch must be at least 0, got {epoch}")
        self.policy, self.epoch, self._plans = policy, epoch, plans
        self._units = [plan.grid.dealt_units(policy, plan.index, epoch) for plan in plans]
        self._order = self._windows_in_order()
        lengths = [plans[p].rounds[w] for p, w in self._order]
        self._starts: list[int] = np.cumsum([0, *lengths]).tolist()
        self._open: dict[int, OpenWindow] = {}
        self._totals: tuple[int, int, int] = (-1, 0, 0)

    def _windows_in_order(self) -> list[tuple[int, int]]:
        windows = [(p, w) for p, plan in enumerate(self._plans) for w in range(plan.grid.windows)]
        if not self.policy.shuffle:
            return windows
        played = [windows[i] for i in order(len(windows), self.policy.seed, WINDOWS, self.epoch)]
        if self._leads:
            first = self._window_of_longest()
            played.remove(first)
            played.insert(0, first)
        return played

    @property
    def _leads(self) -> bool:
        return self.epoch == 0 and self.policy.shuffle and bool(self._plans)

    def _window_of_longest(self) -> tuple[int, int]:
        p = max(range(len(self._plans)), key=lambda i: (int(self._plans[i].table.lengths[-1]), -i))
        grid, (lines, _) = self._plans[p].grid, self._units[p]
        place = np.flatnonzero((lines == grid.unit_of_longest()).any(axis=0)).tolist()
        inside = [w for w in range(grid.windows) for x in place if grid.edges(w)[0] <= x < grid.edges(w)[1]]
        return p, inside[0] if inside else grid.windows - 1  # else it is among those that are shared in parts

    # ---- what is known without opening a window -------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Return the number of rounds: the same in every epoch."""
        return self._starts[-1]

    @property
    def steps(self) -> int:
        """Return the number of steps; the last one may have fewer rounds than `accumulate`."""
        return -(-self.rounds // self.policy.accumulate)

    @cached_property
    def windows(self) -> Sequence[Span]:
        """The rounds of each window in the order of playing."""
        return tuple(Span(start, stop) for start, stop in zip(self._starts, self._starts[1:], strict=False))

    @cached_property
    def dropped_rows(self) -> int:
        """Rows that tail="drop" leaves out, the same number in every epoch; 0 else."""
        if self.policy.tail == "pad":
            return 0
        cuts = (self._plans[p].cut(w).plain for p, w in self._order)
        played = self.policy.slots * sum(int((blocks.rows * blocks.rounds).sum()) for blocks in cuts)
        return sum(plan.table.rows for plan in self._plans) - played

    @cached_property
    def area(self) -> int:
        """Padded tokens of the epoch over all slots, nearly: at most a few per cent more than is played."""
        return self.policy.slots * sum(self._plans[p].cut(w).area for p, w in self._order)

    def window_of(self, index: int) -> int:
        """Return the window, in the order of playing, that a round belongs to."""
        return bisect_right(self._starts, index) - 1

    def shards(self, window: int, slots: range) -> Array:
        """Return the shards whose rows these slots play in a window, as indices of the flat list, sorted and distinct.

        Without slots: those of slot slots.start, of which a rank that has none makes its filler.
        """
        p, w = self._order[window]
        plan, (lines, shared) = self._plans[p], self._units[p]
        per = self.policy.slots // plan.grid.lanes
        lanes = range(slots.start // per, (max(slots.stop, slots.start + 1) - 1) // per + 1)
        units = plan.grid.window_units(lines, shared, w)[lanes.start : lanes.stop]
        found = plan.grid.shards_of(np.unique(units))
        light = self._window(window)
        if any(light.strays(lane) for lane in lanes):
            found = np.union1d(found, [light.shortest_shard])
        return found + plan.first_shard

    # ---- what opens a window --------------------------------------------------------------------------------------

    def shape(self, index: int) -> RoundShape:
        """Return the shape of a round."""
        window = self._at(index)
        rows, length, _, _, _ = window.rounds[index - window.start]
        step, last = self._step_of(index)
        return RoundShape(rows, length, step, last)

    def micro_batch(self, index: int, slot: int) -> MicroBatch:
        """Return the rows of a slot in a round; slot -1 - s is filler made of the rows of slot s."""
        window = self._at(index)
        rows, length, base, number, _ = window.rounds[index - window.start]
        step, last = self._step_of(index)
        step_rows, step_tokens = self.totals(step)
        lane, place = divmod(slot if slot >= 0 else -1 - slot, window.slots_per_lane)
        held = window.lane(lane)
        first = base + place * rows
        shard, row = held.shard[first : first + rows], held.row[first : first + rows]
        real = held.real[number * window.slots_per_lane + place] if slot >= 0 else 0
        slot = max(slot, -1)
        return MicroBatch(index, slot, shard, row, real, length, step, step_rows, step_tokens, last, self.epoch)

    def totals(self, step: int) -> tuple[int, int]:
        """Return real rows and tokens of a step over all its rounds and slots."""
        known = self._totals
        if known[0] == step:
            return known[1:]
        rows = tokens = 0
        first = step * self.policy.accumulate
        for index in range(first, min(self.rounds, first + self.policy.accumulate)):
            real = self.round_totals(index)
            rows, tokens = rows + real[0], tokens + real[1]
        self._totals = (step, rows, tokens)
        return rows, tokens

    def round_totals(self, index: int) -> tuple[int, int]:
        """Return real rows and tokens of a round over all slots."""
        window = self._at(index)
        return window.rounds[index - window.start][4]

    def _step_of(self, index: int) -> tuple[int, bool]:
        step, place = divmod(index, self.policy.accumulate)
        return step, place == self.policy.accumulate - 1 or index == self._starts[-1] - 1

    def _window(self, window: int) -> Window:
        p, w = self._order[window]
        plan, (lines, shared) = self._plans[p], self._units[p]
        return Window(
            cut=plan.cut(w),
            held=plan.grid.window_hands(lines, shared, w),
            rounds=plan.rounds[w],
            first_shard=plan.first_shard,
            seed=(self.epoch, plan.index, w),
            longest_first=self._leads and window == 0,
        )

    def _at(self, index: int) -> OpenWindow:
        for window in self._open.values():
            if window.start <= index < window.stop:
                return window
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"round {index} of {self._starts[-1]}")
        number = self.window_of(index)
        opened = OpenWindow(self._window(number), self._starts[number])
        kept = [*self._open.items()][1 - OPEN_WINDOWS :]
        self._open = {**dict(kept), number: opened}  # a new one: other threads may be looking at the old one
        return opened


class OpenWindow:
    """A window in the order of playing, as plain numbers: a micro-batch is a slice of its lane's rows.

    rounds  of each round: rows, length, beginning in a lane's rows, number before the shuffle, (real rows, tokens)
    """

    def __init__(self, window: Window, start: int) -> None:
        self.start, self.stop = start, start + window.rounds
        self.slots_per_lane = window.cut.slots_per_lane
        play = window.play
        real = zip(window.real[play].tolist(), window.tokens[play].tolist(), strict=True)
        facts = (window.rows[play], window.length[play], window.bases[play], play)
        rounds = zip(*(f.tolist() for f in facts), real, strict=True)
        self.rounds: list[tuple[int, int, int, int, tuple[int, int]]] = list(rounds)
        self._window = window
        self._lanes: dict[int, LaneRows] = {}

    def lane(self, lane: int) -> LaneRows:
        """Return the rows of a lane; two threads may both make them, and get the same."""
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = self._window.lane_rows(lane)
        return found
