"""What must hold of every schedule, as functions: for Hypothesis, for the end-to-end tests and for the fault tests.

The oracle deals rows out by hand in plain Python. `epoch` is anything with the faces of core.schedule.Epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from math import ceil

from shardprep.core.policy import World, micro_batches_per_round, played_slots, slots_of


def row_lengths(sets):
    """Return {(shard of the flat list, row): length in tokens}: sorted, and dealt forth and back."""
    out = {}
    for rows in sets:
        lengths = [
            length
            for length, count in zip(rows.histogram.lengths.tolist(), rows.histogram.counts.tolist(), strict=True)
            for _ in range(count)
        ]
        for number, length in enumerate(lengths):
            cycle, place = divmod(number, rows.shards)
            shard = place if cycle % 2 == 0 else rows.shards - 1 - place
            out[rows.first_shard + shard, cycle] = length
    return out


def real_rows(batch):
    """Return (shard, row) of the rows of a micro-batch that count."""
    return list(zip(batch.shard.tolist(), batch.row.tolist(), strict=True))[: batch.real]


def all_rows(batch):
    """Return (shard, row) of all rows of a micro-batch, filler too."""
    return list(zip(batch.shard.tolist(), batch.row.tolist(), strict=True))


def played(epoch):
    """Return all micro-batches of an epoch, round by round and slot by slot."""
    slots = epoch.policy.slots
    return [[epoch.micro_batch(r, s) for s in range(slots)] for r in range(epoch.rounds)]


def assert_covers_once(rounds, lengths, *, dropped=0):
    """Every row counts once; all but `dropped` of them are played."""
    seen = Counter(row for batches in rounds for batch in batches for row in real_rows(batch))
    assert not seen or max(seen.values()) == 1, "a row is played twice"
    assert set(seen) <= set(lengths), "a row that is not there"
    assert len(seen) == len(lengths) - dropped


def assert_same_shapes(epoch, rounds, lengths):
    """In a round all micro-batches have one shape and fit it, filler rows too; each round has a real row."""
    for r, batches in enumerate(rounds):
        shape = epoch.shape(r)
        filler = [epoch.micro_batch(r, -1), epoch.micro_batch(r, -epoch.policy.slots)]
        for slot, batch in [*enumerate(batches), *((-1, f) for f in filler)]:
            assert (batch.round, batch.slot, batch.step, batch.last_in_step) == (
                r,
                slot,
                shape.step,
                shape.last_in_step,
            )
            assert (len(batch.shard), len(batch.row), batch.length) == (shape.rows, shape.rows, shape.length)
            assert 0 <= batch.real <= shape.rows
            assert slot >= 0 or batch.real == 0
            rows = all_rows(batch)
            assert max(lengths[row] for row in rows) <= shape.length
            assert set(rows[batch.real :]) <= set(rows[: batch.real]) or batch.real == 0, (
                "filler repeats the slot's rows"
            )
        counts = [batch.real for batch in batches]
        assert sum(counts) > 0, "a round without a real row"
        if epoch.policy.tail == "drop":
            assert set(counts) == {shape.rows}, "a filler row in spite of tail='drop'"


def assert_budget(epoch, rounds):
    """No micro-batch exceeds batch_tokens, unless it is one row a slot; none exceeds batch_size."""
    policy = epoch.policy
    for r in range(len(rounds)):
        shape = epoch.shape(r)
        assert policy.batch_size is None or shape.rows <= policy.batch_size
        assert policy.batch_tokens is None or shape.rows == 1 or shape.area <= policy.batch_tokens


def assert_lengths(epoch, rounds, lengths, buckets):
    """Rounds are padded to their longest row, or to the edge of the one bucket whose rows they hold."""
    multiple = buckets.pad_multiple
    for r, batches in enumerate(rounds):
        length = epoch.shape(r).length
        real = [lengths[row] for batch in batches for row in real_rows(batch)]
        every = [lengths[row] for batch in batches for row in all_rows(batch)]
        if epoch.policy.pad_to == "round" or max(real) > max(buckets.edges, default=-1):
            assert length == max(1, ceil(max(every) / multiple)) * multiple
        if epoch.policy.pad_to == "edge":
            bucket = {bisect_left(buckets.edges, n) for n in real}
            assert len(bucket) == 1, "two buckets in one round"
            assert bucket == {len(buckets.edges)} or length == buckets.edges[bucket.pop()]


def assert_len_exact(epochs):
    """All epochs have as many rounds; windows are consecutive; len() on every world is what a rank plays."""
    assert len({(e.rounds, e.steps, sum(w.stop - w.start for w in e.windows)) for e in epochs}) == 1
    for e in epochs:
        assert e.steps == ceil(e.rounds / e.policy.accumulate)
        spans = list(e.windows)
        assert [w.start for w in spans] == [0, *(w.stop for w in spans)][: len(spans)]
        assert (spans[-1].stop if spans else 0) == e.rounds
        assert all(w.start < w.stop for w in spans if e.policy.tail == "pad")


def assert_step_totals(epoch, rounds, lengths):
    """The totals of every step are those of its real rows, over all its rounds and slots."""
    size = epoch.policy.accumulate
    for step in range(epoch.steps):
        part = rounds[step * size : (step + 1) * size]
        rows = [row for batches in part for batch in batches for row in real_rows(batch)]
        want = (len(rows), sum(lengths[row] for row in rows))
        assert epoch.totals(step) == want
        for i, batches in enumerate(part):
            for batch in batches:
                assert (batch.step, batch.step_rows, batch.step_tokens) == (step, *want)
                assert batch.last_in_step == (i == len(part) - 1)


def assert_shards_of_windows(epoch, rounds, worlds):
    """Ranks find the rows that they play, filler too, in the shards that `shards` names; and it names no idle ones."""
    slots = epoch.policy.slots
    for w, span in enumerate(epoch.windows):
        for world_size in worlds:
            for rank in range(world_size):
                world = World(rank, world_size)
                mine = played_slots(world, slots)
                used = {
                    shard
                    for r in range(span.start, span.stop)
                    for s in mine
                    for shard, _ in all_rows(epoch.micro_batch(r, s))
                }
                named = epoch.shards(w, slots_of(world, slots)).tolist()
                assert named == sorted(set(named))
                assert used <= set(named)


def assert_same_batches(some, others):
    """Two runs played the same micro-batches, row by row."""

    def form(batch):
        facts = (batch.round, batch.slot, batch.real, batch.length, batch.step, batch.step_rows, batch.step_tokens)
        return facts, all_rows(batch)

    assert [form(b) for b in some] == [form(b) for b in others]


def assert_resumes_exactly(make_epoch, rounds, cuts):
    """A run that is cut at each (step, world size) and goes on elsewhere plays what a run in one piece plays.

    Ranks of one world play as many micro-batches of one shape; steps that were not finished are played again.
    """
    epoch, step, seen = make_epoch(), 0, Counter()
    size, slots = epoch.policy.accumulate, epoch.policy.slots
    for stop, world_size in [*cuts, (epoch.steps, 1)]:
        epoch = make_epoch()  # a new process
        last = min(epoch.rounds, stop * size)
        worlds = [World(rank, world_size) for rank in range(world_size)]
        assert [s for world in worlds for s in slots_of(world, slots)] == list(range(slots))
        for r in range(step * size, last):
            shares = [[epoch.micro_batch(r, s) for s in played_slots(world, slots)] for world in worlds]
            assert {len(share) for share in shares} == {micro_batches_per_round(worlds[0], slots)}
            assert len({(len(b.shard), b.length, b.last_in_step) for share in shares for b in share}) == 1
            assert_same_batches([b for share in shares for b in share if b.slot >= 0], rounds[r])
            seen.update(row for share in shares for b in share for row in real_rows(b))
        if last < epoch.rounds:  # part of the next step is played, and lost
            epoch.micro_batch(last, 0)
        step = max(step, stop)
    assert sorted(seen.elements()) == sorted(row for batches in rounds for b in batches for row in real_rows(b))
