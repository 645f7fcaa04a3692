"""Several data sets in one sequence of rounds, by weight: which set a round comes from is arithmetic too.

Each round of the mix comes from one set. Set s plays rounds at times (j + phase) / m of an epoch, j < m, where m is its
share of rounds: padded tokens of the sets are as their weights. Times of all sets, merged, are the order: a
low-discrepancy sequence, since each set's rounds are evenly spaced. Every set has epochs of its own, of which this epoch
of the mix plays the rounds from epoch x m on; the mix's epoch is one epoch of the set `until`, whose last round is last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import isfinite

import numpy as np

from shardprep.core.buckets import LengthBuckets
from shardprep.core.hashing import keys
from shardprep.core.interleaving import Interleaving
from shardprep.core.lanes import MIX, Array
from shardprep.core.policy import Policy
from shardprep.core.schedule import Epoch, MicroBatch, RoundShape, RowSet, Span
from shardprep.errors import ConfigError

OPEN_EPOCHS = 2  # of each set: the one that ends and the one that begins


@dataclass(frozen=True, eq=False)
class MixSet:
    """One data set of a mix: its generations, its buckets, and its weight among the padded tokens of all."""

    name: str
    sets: Sequence[RowSet]
    buckets: LengthBuckets
    weight: float


class MixEpoch:
    """The rounds of one epoch of a mix, with the faces of `Epoch`; threads may share it.

    All sets play under one policy. `MicroBatch.shard` counts the reader's flat list of all sets' shards.
    Raises ConfigError for a set without rounds, a weight that is not above 0, two sets of one name, or no set `until`.
    """

    def __init__(self, sets: Sequence[MixSet], policy: Policy, until: str, epoch: int) -> None:
        self.policy, self.epoch, self.until = policy, epoch, until
        self._sets = tuple(sets)
        names = [s.name for s in sets]
        if len(set(names)) < len(names):
            raise ConfigError(f"the sets of a mix need different names, got {', '.join(names)}")
        if until not in names:
            raise ConfigError(f'until must name a set of the mix ({", ".join(names)}), got "{until}"')
        for s in sets:
            if not (isfinite(s.weight) and s.weight > 0):
                raise ConfigError(
                    f'the weight of "{s.name}" must be above 0, got {s.weight}: leave the set out instead'
                )
        self._last = names.index(until)
        self._first = [Epoch(s.sets, s.buckets, policy, 0) for s in sets]
        empty = [name for name, e in zip(names, self._first, strict=True) if not e.rounds]
        if empty:
            raise ConfigError(f"a set of a mix has no round to play: {', '.join(empty)}")
        self._begin(epoch)

    def at(self, epoch: int) -> MixEpoch:
        """Return another epoch of the same mix; cheaper than a new one."""
        other = object.__new__(MixEpoch)
        for name in ("policy", "until", "_sets", "_last", "_first"):
            setattr(other, name, getattr(self, name))
        other._begin(epoch)
        return other

    def _begin(self, epoch: int) -> None:
        if epoch < 0:
            raise ConfigError(f"epoch must be at least 0, got {epoch}")
        self.epoch = epoch
        seed = (self.policy.seed, MIX, epoch if self.policy.shuffle else 0)
        phases = [int(keys(1, *seed, i)[0] >> np.uint64(32)) for i in range(len(self._sets))]
        self._order = Interleaving(self._shares(), phases, self._last)
        self._played: list[dict[int, Epoch]] = [{} for _ in self._sets]
        self._known: tuple[int, int, int] = (-1, 0, 0)

    def _shares(self) -> list[int]:
        """Return the rounds of each set in an epoch of the mix: to the nearest whole one, at least one."""
        pairs = list(zip(self._sets, self._first, strict=True))
        cost = [Fraction(e.area, e.rounds) / Fraction(s.weight) for s, e in pairs]
        rounds = self._first[self._last].rounds
        return [max(1, round(rounds * cost[self._last] / own)) for own in cost]

    @property
    def rounds(self) -> int:
        """Return the number of rounds: the same in every epoch."""
        return self._order.total

    @property
    def steps(self) -> int:
        """Return the number of steps; the last one may have fewer rounds than `accumulate`."""
        return -(-self.rounds // self.policy.accumulate)

    @property
    def dropped_rows(self) -> int:
        """Return the rows that tail="drop" leaves out, in one epoch of each set."""
        return sum(epoch.dropped_rows for epoch in self._first)

    @property
    def shares(self) -> Mapping[str, int]:
        """Return how many rounds of an epoch each set plays."""
        return {s.name: count for s, count in zip(self._sets, self._order.counts, strict=True)}

    def positions(self, step: int) -> dict[str, tuple[int, int]]:
        """Return epoch and round of every set at the beginning of a step: what the state of a reader holds."""
        counts = self._order.counts_before(min(step * self.policy.accumulate, self.rounds))
        return {s.name: self._round_of(i, counts[i]) for i, s in enumerate(self._sets)}

    def shape(self, index: int) -> RoundShape:
        """Return the shape of a round."""
        epoch, own = self._own(*self._order.event(index))
        shape = epoch.shape(own)
        step, last = self._step_of(index)
        return RoundShape(shape.rows, shape.length, step, last)

    def micro_batch(self, index: int, slot: int) -> MicroBatch:
        """Return the rows of a slot in a round; slot -1 - s is filler made of the rows of slot s."""
        kind, number = self._order.event(index)
        epoch, own = self._own(kind, number)
        batch = epoch.micro_batch(own, slot)
        step, last = self._step_of(index)
        rows, tokens = self.totals(step)
        return replace(
            batch,
            round=index,
            step=step,
            step_rows=rows,
            step_tokens=tokens,
            last_in_step=last,
            name=self._sets[kind].name,
        )

    def totals(self, step: int) -> tuple[int, int]:
        """Return real rows and tokens of a step over all its rounds and slots."""
        known = self._known
        if known[0] == step:
            return known[1:]
        rows = tokens = 0
        first = step * self.policy.accumulate
        for index in range(first, min(self.rounds, first + self.policy.accumulate)):
            epoch, own = self._own(*self._order.event(index))
            real = epoch.round_totals(own)
            rows, tokens = rows + real[0], tokens + real[1]
        self._known = (step, rows, tokens)
        return rows, tokens

    @cached_property
    def windows(self) -> Sequence[Span]:
        """Spans of rounds in which no set changes its window, in the order of playing."""
        starts = self._window_starts()
        return tuple(Span(a, b) for a, b in zip(starts, [*starts[1:], self.rounds], strict=True))

    def shards(self, window: int, slots: range) -> Array:
        """Return the shards whose rows these slots play in a span of `windows`, sorted and distinct; see `Epoch`."""
        span = self.windows[window]
        before, after = self._order.counts_before(span.start), self._order.counts_before(span.stop)
        found = []
        for kind, (first, stop) in enumerate(zip(before, after, strict=True)):
            if first < stop:
                epoch, own = self._own(kind, first)
                found.append(epoch.shards(epoch.window_of(own), slots))
        return np.unique(np.concatenate(found))

    def _window_starts(self) -> list[int]:
        starts = {0}
        for kind, count in enumerate(self._order.counts):
            number = 0
            while number < count:
                epoch, own = self._own(kind, number)
                ends = [span.stop for span in epoch.windows]
                for stop in ends[bisect_right(ends, own) :]:
                    starts.add(self._order.place(kind, number))
                    number += stop - own
                    own = stop
                    if number >= count:
                        break
        return sorted(starts)

    def _round_of(self, kind: int, number: int) -> tuple[int, int]:
        """Return the epoch of a set and the round in it, of one of its rounds in this epoch of the mix."""
        return divmod(self.epoch * self._order.counts[kind] + number, self._first[kind].rounds)

    def _own(self, kind: int, number: int) -> tuple[Epoch, int]:
        epoch, own = self._round_of(kind, number)
        found = self._played[kind].get(epoch)
        if found is None:
            found = self._first[kind].at(epoch)
            kept = [*self._played[kind].items()][1 - OPEN_EPOCHS :]
            self._played[kind] = {**dict(kept), epoch: found}
        return found, own

    def _step_of(self, index: int) -> tuple[int, bool]:
        step, place = divmod(index, self.policy.accumulate)
        return step, place == self.policy.accumulate - 1 or index == self.rounds - 1
