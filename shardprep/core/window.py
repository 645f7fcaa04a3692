"""One open window: its rows dealt to rounds and slots, and what every round holds over all lanes, by arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardprep.core.cuts import Blocks, Cut
from shardprep.core.dealing import LaneRows, dealt_to, neighbours_instead, places
from shardprep.core.hashing import keys, order
from shardprep.core.lanes import DEAL, GAP, ROUNDS, SHIFT, TIES, Array, Lane
from shardprep.core.policy import NO_LIMIT

SHIFTS_TRIED = 16  # the first nearly always fits


@dataclass(frozen=True, eq=False)
class Window:
    """Which rows a window has and how it is cut; nothing is dealt yet.

    held         hands of every lane, int64 (lanes, hands)
    rounds       of this window, in every epoch
    first_shard  index of the generation's shard 0 in the flat list of shards
    seed         words that all its random numbers start with: epoch, generation, window
    """

    cut: Cut
    held: Array
    rounds: int
    first_shard: int
    seed: tuple[int, ...]
    longest_first: bool = False

    @cached_property
    def lanes(self) -> list[Lane]:
        """The lanes, in order."""
        grid = self.cut.grid
        return [Lane(grid.rows, grid.deal(self.cut.size), held) for held in self.held]

    def noise(self, count: int, purpose: int, *more: int) -> NDArray[np.uint16]:
        """Return random keys (count,): two bytes are enough to deal by, and sort in two passes; four are in a word."""
        words = keys(-(-count // 4), self.cut.policy.seed, purpose, *self.seed, *more)
        return words.astype("<u8", copy=False).view("<u2")[:count]

    # ---- the cuts, by what the lanes really hold ------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        """Rows of every lane in every segment, and before it from the longest row down; int64 (lanes, segments)."""
        segments = self.cut.table.segments
        edges = np.array([segments[0].stop, *(s.first for s in segments)], dtype=np.int64)
        below = np.array([lane.rows_below(edges) for lane in self.lanes])
        return below[:, :-1] - below[:, 1:], below[:, :1] - below[:, :-1]

    @cached_property
    def pools(self) -> Blocks:
        """Rounds among which rows of neighbouring lengths are dealt at random, the longest rows first.

        They make exactly `rounds` rounds, each of them with a real row.
        """
        cut, held = self.cut, self._bounds[0]
        if cut.policy.tail == "drop":
            return cut.plain
        stops = held.max(axis=0)
        for attempt in range(SHIFTS_TRIED if cut.shifts else 0):
            shift = float(keys(1, cut.policy.seed, SHIFT, *self.seed, attempt)[0] >> np.uint64(11)) / 2.0**53
            blocks = cut.blocks(stops, shift)
            if blocks.rounds.sum() <= self.rounds:
                break
        else:
            blocks = cut.blocks(stops)
        rows = np.clip(held[:, blocks.segment] - blocks.start, 0, blocks.stop - blocks.start).sum(axis=0)
        for _ in range(self.rounds - int(blocks.rounds.sum())):
            able = rows > blocks.rounds
            cut.split(blocks, int(np.lexsort((rows, blocks.rows, able))[-1]))
        return blocks

    @cached_property
    def counts(self) -> Array:
        """Rows of every lane in every pool, int64 (lanes, pools)."""
        pools = self.pools
        counted: Array = np.clip(self._bounds[0][:, pools.segment] - pools.start, 0, pools.stop - pools.start)
        return counted

    @cached_property
    def _starts(self) -> Array:
        """Position of the first row of every pool in every lane, from the longest down, int64 (lanes, pools).

        Rows that tail="drop" leaves out lie together after one of the pools of their segment, another in each epoch.
        """
        pools, (held, before) = self.pools, self._bounds
        starts = before[:, pools.segment] + pools.start
        if self.cut.policy.tail == "drop" and self.cut.policy.shuffle:
            for i in np.unique(pools.segment).tolist():
                own = np.flatnonzero(pools.segment == i)
                after = own[int(keys(1, self.cut.policy.seed, GAP, *self.seed, i)[0] % np.uint64(len(own))) + 1 :]
                starts[:, after] += (held[:, i] - self.counts[:, own].sum(axis=1))[:, None]
        return starts

    # ---- rounds and cells -----------------------------------------------------------------------------------------

    @cached_property
    def _cells(self) -> Array:
        """Round-and-slot places of every pool in a lane, int64 (pools,)."""
        return self.pools.rounds * self.cut.slots_per_lane

    @cached_property
    def _offset(self) -> Array:
        """Cell at which dealing starts in every lane and pool: lanes go on where the one before ended."""
        return (np.cumsum(self.counts, axis=0) - self.counts) % self._cells

    @cached_property
    def rows(self) -> Array:
        """Rows of a micro-batch of every round, int64 (rounds,), before rounds are shuffled."""
        return np.repeat(self.pools.rows, self.pools.rounds)

    @cached_property
    def bases(self) -> Array:
        """Where every round begins in a lane's rows, int64 (rounds + 1,)."""
        return np.append(0, np.cumsum(self.rows * self.cut.slots_per_lane))

    @cached_property
    def _cell_table(self) -> tuple[Array, Array, Array]:
        """Pool, number in it, and beginning in a lane's rows of every cell; the rounds of a slot follow each other."""
        pools, cells = self.pools, self._cells
        pool = np.repeat(np.arange(len(cells)), cells)
        number = np.arange(len(pool)) - np.repeat(np.cumsum(cells) - cells, cells)
        slot, turn = np.divmod(number, pools.rounds[pool])
        first_round = np.cumsum(pools.rounds) - pools.rounds
        return pool, number, self.bases[first_round[pool] + turn] + slot * pools.rows[pool]

    def _dealt(self, lane: int) -> tuple[NDArray[np.int32], Array, Array]:
        """Return the length index of a lane's rows, ascending, (rows,), and which of them goes where (played,) each."""
        table, shuffle, counts = self.cut.table, self.cut.policy.shuffle, self.counts[lane]
        below = self.lanes[lane].rows_below(table.edges)
        index = np.repeat(np.arange(len(table.lengths), dtype=np.int32), np.diff(below))
        if shuffle:
            by = np.argsort(self.noise(len(index), TIES, lane), kind="stable")
            longest_first = by[np.argsort(table.group[index[by]], kind="stable")][::-1]
        else:
            longest_first = np.arange(len(index))[::-1]
        ends = np.cumsum(counts)
        before, played, cells = ends - counts, int(ends[-1]), self._cells
        turn = np.arange(played)
        source = longest_first[turn + np.repeat(self._starts[lane] - before, counts)]
        if int(cells.max()) == 1:  # pools are rounds, and a round has one slot of this lane
            return index, source, turn + np.repeat(self.bases[:-1] - before, counts)
        if shuffle:
            pool = np.repeat(np.arange(len(cells)).astype(np.uint16 if len(cells) < 2**16 else np.int64), counts)
            by = np.argsort(self.noise(played, DEAL, lane), kind="stable")
            source = source[by[np.argsort(pool[by], kind="stable")]]
        offset = self._offset[lane]
        place, cell = np.divmod(turn + np.repeat(offset - before, counts), np.repeat(cells, counts))
        place -= cell < np.repeat(offset, counts)
        place += self._cell_table[2][cell + np.repeat(np.cumsum(cells) - cells, counts)]
        return index, source, place

    @cached_property
    def _totals(self) -> tuple[Array, Array]:
        """Tokens and longest row of every round over all lanes, int64 (rounds,)."""
        tokens, longest = np.zeros((2, self.rounds), dtype=np.int64)
        for lane in range(len(self.lanes)):
            index, source, place = self._dealt(lane)
            lengths = np.zeros(int(self.bases[-1]), dtype=np.int64)
            lengths[place] = self.cut.table.lengths[index[source]]
            tokens += np.add.reduceat(lengths, self.bases[:-1])
            np.maximum(longest, np.maximum.reduceat(lengths, self.bases[:-1]), out=longest)
        return tokens, longest

    @property
    def tokens(self) -> Array:
        """Tokens of every round over all slots, int64 (rounds,)."""
        return self._totals[0]

    @cached_property
    def real(self) -> Array:
        """Real rows of every round over all slots, int64 (rounds,): lanes are dealt one after the other."""
        pool, number, begin = self._cell_table
        real = dealt_to(number, self._cells[pool], 0, self.counts.sum(axis=0)[pool])
        out = np.zeros(self.rounds, dtype=np.int64)
        np.add.at(out, np.searchsorted(self.bases, begin, side="right") - 1, real)
        return out

    # ---- lengths, and rows for slots that have none ---------------------------------------------------------------

    @cached_property
    def _shortest(self) -> Array:
        """Padded length of the shortest row of every lane, int64 (lanes,)."""
        return self.cut.table.padded_of(self.held[:, 0])

    @cached_property
    def _lacking(self) -> tuple[Array, NDArray[np.bool_]]:
        """For every pool the length that filler needs (pools,), and which lanes have no row that fits (lanes, pools)."""
        pools, policy = self.pools, self.cut.policy
        fixed = np.array([s.length for s in self.cut.table.segments])[pools.segment]
        budget = NO_LIMIT if policy.batch_tokens is None else policy.batch_tokens // pools.rows
        most = np.where(fixed > 0, fixed, np.where(pools.rows == 1, NO_LIMIT, budget))
        lacks, fits = self.counts < self._cells, self._shortest[:, None] <= most
        needed: Array = np.where(lacks & fits, self._shortest[:, None], 0).max(axis=0)
        return needed, lacks & ~fits

    @cached_property
    def length(self) -> Array:
        """Padded length of every round, int64 (rounds,)."""
        table, pools = self.cut.table, self.pools
        padded = table.padded[np.searchsorted(table.lengths, self._totals[1])]
        fixed = np.array([s.length for s in table.segments])[pools.segment]
        needed = np.repeat(self._lacking[0], pools.rounds)
        return np.where(np.repeat(fixed, pools.rounds) > 0, np.repeat(fixed, pools.rounds), np.maximum(padded, needed))

    def strays(self, lane: int) -> bool:
        """Tell whether a lane repeats a row of another as filler: none of its own is short enough for a small bucket."""
        return bool(self._lacking[1][lane].any())

    @property
    def shortest_shard(self) -> int:
        """The shard, in its generation, of the shortest row of the window."""
        return int(places(self.held[:, 0].min(keepdims=True), self.cut.grid.shards)[0][0])

    @cached_property
    def play(self) -> Array:
        """Rounds in the order of playing, int64 (rounds,)."""
        if not self.cut.policy.shuffle:
            return np.arange(self.rounds)
        play = order(self.rounds, self.cut.policy.seed, ROUNDS, *self.seed)
        if self.longest_first:
            # Too little memory shows in the first minute: the longest round, then one of the largest of the others.
            for at, worst in enumerate((self._totals[1], self.length * self.rows)[: self.rounds]):
                first = at + int(np.argmax(worst[play[at:]]))
                play[at : first + 1] = np.roll(play[at : first + 1], 1)
        return play

    def lane_rows(self, lane: int) -> LaneRows:
        """Return the rows of a lane, with filler in its place."""
        index, source, place = self._dealt(lane)
        pool, number, begin = self._cell_table
        real = dealt_to(number, self._cells[pool], self._offset[lane][pool], self.counts[lane][pool])
        chosen = np.full(int(self.bases[-1]), -1, dtype=np.int64)
        chosen[place] = source
        if self.longest_first:
            leader = int(self.play[0])
            leading = chosen[self.bases[leader] : self.bases[leader + 1]]
            chosen[place] = neighbours_instead(index, leading[leading >= 0])[source]
        numbers = self.lanes[lane].numbers()
        holes = np.flatnonzero(chosen < 0)
        by_place = np.argsort(begin, kind="stable")
        cell = by_place[np.searchsorted(begin[by_place], holes, side="right") - 1]
        chosen[holes] = np.where(real[cell] > 0, chosen[begin[cell]], 0)
        number = numbers[chosen]
        stray = holes[(real[cell] == 0) & self._lacking[1][lane][pool[cell]]]
        number[stray] = self.held[:, 0].min()
        shard, row = places(number, self.cut.grid.shards)
        shard += self.first_shard
        shard.flags.writeable = row.flags.writeable = False  # micro-batches are views of these
        return LaneRows(shard, row, real[by_place].tolist())
