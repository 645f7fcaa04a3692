"""The schedule's promises over random data sets and policies, against rows dealt out by hand."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets
from shardprep.core.schedule import Epoch, Policy, RowSet
from shardprep.errors import ConfigError
from tests.core.schedule_cases import cases, lognormal, rows_of, short
from tests.schedule_invariants import (
    assert_budget,
    assert_covers_once,
    assert_len_exact,
    assert_lengths,
    assert_resumes_exactly,
    assert_same_batches,
    assert_same_shapes,
    assert_shards_of_windows,
    assert_step_totals,
    played,
    real_rows,
    row_lengths,
)

NO_BUCKETS = LengthBuckets((), 8)
W = rows_of(lognormal(6_011), 12)
LARGER = rows_of(lognormal(12_000), 12)  # three windows of four lanes, where windows are as small as can be


@settings(max_examples=60)
@given(cases(), st.integers(0, 3))
def test_rows_shapes_lengths_and_totals(case, number):
    assume(short(case))
    epoch, lengths = case.epoch(number), row_lengths(case.sets)
    rounds = played(epoch)
    assert_covers_once(rounds, lengths, dropped=epoch.dropped_rows)
    assert_same_shapes(epoch, rounds, lengths)
    assert_budget(epoch, rounds)
    assert_lengths(epoch, rounds, lengths, case.buckets)
    assert_step_totals(epoch, rounds, lengths)


@settings(max_examples=60)
@given(cases())
def test_the_length_is_the_same_in_every_epoch(case):
    assert_len_exact([case.epoch(number) for number in range(4)])
    assert len({case.epoch(number).dropped_rows for number in range(4)}) == 1
    assert case.policy.tail == "drop" or case.epoch().dropped_rows == 0


@settings(max_examples=30)
@given(cases(), st.data())
def test_any_run_that_is_cut_and_continued_elsewhere_is_the_run_in_one_piece(case, data):
    assume(short(case))
    whole = case.epoch(data.draw(st.integers(0, 2)))
    worlds = st.integers(1, 17)
    steps = sorted(data.draw(st.lists(st.integers(0, whole.steps), max_size=5)))
    cuts = [(step, data.draw(worlds)) for step in steps]
    assert_resumes_exactly(lambda: case.epoch(whole.epoch), played(whole), cuts)


def test_resume_at_every_step_of_an_epoch():
    policy = Policy(slots=6, batch_tokens=4_096, accumulate=2, window_rows=300, variety=1)
    whole = Epoch([W], NO_BUCKETS, policy, 1)
    rounds = played(whole)
    for step in range(whole.steps):
        cuts = [(step, 1 + step % 17), (min(step + 1, whole.steps), 1 + step % 5)]
        fresh = whole.at(1)
        assert_same_batches(
            [fresh.micro_batch(step * 2, slot) for slot in range(6)], rounds[step * 2]
        )  # the first thing that a new process asks for
        if step % 20 == 0:
            assert_resumes_exactly(lambda: whole.at(1), rounds, cuts)


@settings(max_examples=25)
@given(cases(), st.integers(0, 2), st.integers(1, 17))
def test_ranks_find_their_rows_in_the_shards_of_their_windows(case, number, world_size):
    assume(short(case) and case.policy.slots <= 17)
    epoch = case.epoch(number)
    assert_shards_of_windows(epoch, played(epoch), [world_size])


@pytest.mark.slow
@settings(max_examples=2_000)
@given(cases(), st.integers(0, 9), st.data())
def test_all_promises_at_length(case, number, data):
    assume(case.epoch().rounds * case.policy.slots <= 20_000)
    epoch, lengths = case.epoch(number), row_lengths(case.sets)
    rounds = played(epoch)
    assert_covers_once(rounds, lengths, dropped=epoch.dropped_rows)
    assert_same_shapes(epoch, rounds, lengths)
    assert_budget(epoch, rounds)
    assert_lengths(epoch, rounds, lengths, case.buckets)
    assert_step_totals(epoch, rounds, lengths)
    assert_len_exact([case.epoch(n) for n in range(6)])
    steps = sorted(data.draw(st.lists(st.integers(0, epoch.steps), max_size=9)))
    assert_resumes_exactly(
        lambda: case.epoch(number), rounds, [(step, data.draw(st.integers(1, 17))) for step in steps]
    )


# ---- order ----------------------------------------------------------------------------------------------------------


def test_another_epoch_or_seed_is_another_order_and_the_same_is_the_same():
    policy = Policy(slots=4, batch_tokens=16_384)
    first = played(Epoch([W], NO_BUCKETS, policy, 1))
    again = played(Epoch([W], NO_BUCKETS, policy, 7).at(1))
    assert_same_batches([b for r in first for b in r], [b for r in again for b in r])
    others = [Epoch([W], NO_BUCKETS, policy, number) for number in range(2, 8)]
    others += [Epoch([W], NO_BUCKETS, Policy(slots=4, batch_tokens=16_384, seed=1), 1)]
    orders = [
        [frozenset(row for b in r for row in real_rows(b)) for r in rounds] for rounds in (first, *map(played, others))
    ]
    same = [len(set(orders[0]) & set(order)) / len(order) for order in orders[1:]]
    assert max(same) < 0.5
    assert sum(same) / len(same) < 0.1
    assert all(order[:20] != orders[0][:20] for order in orders[1:])


def test_lengths_of_successive_rounds_are_mixed():
    lengths = [Epoch([W], NO_BUCKETS, Policy(slots=4, batch_tokens=4_096), 1).shape(r).length for r in range(100)]
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) < 0.3
    assert lengths != sorted(lengths)


def test_without_shuffling_shards_come_in_order_rows_by_length_the_same_in_every_epoch():
    policy = Policy(slots=4, batch_tokens=4_096, shuffle=False, window_rows=300)
    epochs = [Epoch([LARGER], NO_BUCKETS, policy, number) for number in (0, 5)]
    rounds = played(epochs[0])
    assert_same_batches([b for r in rounds for b in r], [b for r in played(epochs[1]) for b in r])
    assert len(epochs[0].windows) == 3
    assert epochs[0].windows == epochs[1].windows
    for lane in range(4):
        assert [epochs[0].shards(w, range(lane, lane + 1)).tolist() for w in range(3)] == [
            [lane * 3 + w] for w in range(3)
        ]
    for window in epochs[0].windows:
        lengths = [epochs[0].shape(r).length for r in range(window.start, window.stop)]
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("variety", [0, 2])
@pytest.mark.parametrize("pad_to", ["round", "edge"])
def test_the_first_epoch_begins_with_its_worst_rounds(variety, pad_to):
    policy = Policy(slots=4, batch_tokens=16_384, window_rows=300, variety=variety, pad_to=pad_to)
    longer = RowSet(rows_of([*lognormal(4_000, 1), 9_999, 30_000]).histogram, 8, 12)  # the second generation has it
    sets, buckets = [W, longer], LengthBuckets((512, 1_024, 4_096, 8_192, 16_384), 8)
    epoch = Epoch(sets, buckets, policy, 0)
    shapes = [epoch.shape(r) for r in range(epoch.rounds)]
    assert shapes[0].length == max(shape.length for shape in shapes) == 30_000
    rest = [shape.area for shape in shapes[1 : epoch.windows[0].stop]]
    assert rest[0] == max(rest)
    lengths = row_lengths(sets)
    first = [lengths[row] for slot in range(4) for row in real_rows(epoch.micro_batch(0, slot))]
    assert max(first) == 30_000
    later = [Epoch(sets, buckets, policy, number).shape(0).length for number in range(1, 9)]
    assert max(later) < 30_000


def test_the_longest_row_comes_first_among_rounds_of_one_edge():
    for seed in range(5):
        policy = Policy(slots=1, batch_size=8, pad_to="edge", seed=seed)
        rows = rows_of(range(1, 1_001))
        first = Epoch([rows], LengthBuckets((1_024,), 8), policy, 0).micro_batch(0, 0)
        lengths = row_lengths([rows])
        assert max(lengths[row] for row in real_rows(first)) == 1_000


def test_a_longest_row_that_all_lanes_share_is_in_the_first_window_too():
    # 5 shards over 4 lanes: one is left over, and joins the last window in parts.
    for seed in range(20):
        epoch = Epoch(
            [rows_of([*range(1, 8_000), 20_000], 5)],
            NO_BUCKETS,
            Policy(slots=4, batch_tokens=9_000, window_rows=1, seed=seed),
            0,
        )
        assert epoch.shape(0).length == 20_000


def test_the_very_first_rows_lie_side_by_side_even_if_all_have_one_length():
    # The first batch waits for few row groups. Later rounds, and later epochs, are in random order.
    policy, rows = Policy(slots=4, batch_size=8), rows_of([100] * 12_000, 12)
    first, later = (Epoch([rows], NO_BUCKETS, policy, number) for number in (0, 1))
    for slot in range(4):
        for epoch, index, near in ((first, 0, True), (first, 1, False), (later, 0, False)):
            batch = epoch.micro_batch(index, slot)
            span = {shard: np.ptp(batch.row[batch.shard == shard]) for shard in set(batch.shard.tolist())}
            assert (max(span.values()) < 8) == near
    lengths, rounds = row_lengths([rows]), played(first)
    assert_covers_once(rounds, lengths)
    assert_step_totals(first, rounds, lengths)


# ---- tails and small data ---------------------------------------------------------------------------------------------


def test_case_c43_equal_numbers_of_batches():
    def epoch(rows, tail, size):
        return Epoch([rows_of(range(2, 2 + rows), 7)], NO_BUCKETS, Policy(slots=4, batch_size=size, tail=tail), 0)

    drop, pad, whole = epoch(101, "drop", 5), epoch(101, "pad", 5), epoch(100, "pad", 1)
    assert (drop.rounds, drop.dropped_rows) == (5, 1)
    assert sum(b.real for r in played(drop) for b in r) == 100
    assert (pad.rounds, pad.dropped_rows) == (6, 0)
    assert sum(b.real for r in played(pad) for b in r) == 101
    assert whole.rounds == 25
    assert sum(len(b.row) for r in played(whole) for b in r) == 100


def test_other_rows_are_dropped_in_other_epochs():
    policy = Policy(slots=4, batch_tokens=4_096, tail="drop")
    dropped = []
    for number in range(20):
        epoch = Epoch([W], NO_BUCKETS, policy, number)
        seen = {row for r in played(epoch) for b in r for row in real_rows(b)}
        dropped.append(frozenset(set(row_lengths([W])) - seen))
        assert 0 < len(dropped[-1]) == epoch.dropped_rows < 24
    assert len(set(dropped)) > 10
    assert max(length for rows in dropped for length in (row_lengths([W])[row] for row in rows)) > 500


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("pad_to", ["round", "edge"])
def test_tiny_splits(rows, tail, pad_to):
    epoch = Epoch(
        [rows_of(range(1, 1 + rows), 5)],
        LengthBuckets((8, 16), 8),
        Policy(slots=4, batch_size=2, tail=tail, pad_to=pad_to),
        0,
    )
    assert (epoch.rounds, epoch.dropped_rows) == ((rows > 0, 0) if tail == "pad" else (0, rows))
    assert (epoch.steps, len(epoch.windows)) == (epoch.rounds, int(rows > 0))
    assert sum(b.real for r in played(epoch) for b in r) == (rows if tail == "pad" else 0)


def test_a_filler_row_of_another_lane_where_none_of_its_own_is_short_enough():
    # 3 rows of 2 tokens, in 3 of 8 lanes; bucket 8 is theirs alone.
    rows = rows_of([2] * 3 + [100] * 9_000, 8)
    epoch = Epoch([rows], LengthBuckets((8, 104), 8), Policy(slots=8, batch_size=16, pad_to="edge"), 1)
    at = next(r for r in range(epoch.rounds) if epoch.shape(r).length == 8)
    batches = [epoch.micro_batch(at, slot) for slot in range(8)]
    assert sorted(b.real for b in batches) == [0] * 5 + [1] * 3
    lengths = row_lengths([rows])
    assert {lengths[row] for b in batches for row in zip(b.shard.tolist(), b.row.tolist(), strict=True)} == {2}
    for slot, batch in enumerate(batches):
        assert set(batch.shard.tolist()) <= set(epoch.shards(0, range(slot, slot + 1)).tolist())
        assert len(epoch.shards(0, range(slot, slot + 1))) == (1 if batch.real else 2)


# ---- who reads what ---------------------------------------------------------------------------------------------------


def test_lanes_keep_their_shards_in_all_epochs_and_divide_them():
    policy = Policy(slots=8, batch_tokens=14_400, window_rows=300)
    rows, seen = rows_of(lognormal(16_000), 16), []
    for number in range(5):
        epoch = Epoch([rows], NO_BUCKETS, policy, number)
        nodes = [
            {s for w in range(len(epoch.windows)) for s in epoch.shards(w, range(2 * node, 2 * node + 2)).tolist()}
            for node in range(4)
        ]
        assert [len(node) for node in nodes] == [4] * 4
        assert set.union(*nodes) == set(range(16))
        seen.append(nodes)
    assert all(nodes == seen[0] for nodes in seen)


def test_a_window_changes_in_what_it_holds_from_epoch_to_epoch():
    rows, policy = rows_of(lognormal(16_000), 16), Policy(slots=4, batch_tokens=14_400, window_rows=300)
    held = {tuple(Epoch([rows], NO_BUCKETS, policy, number).shards(1, range(4)).tolist()) for number in range(1, 9)}
    assert len(held) > 5


def test_threads_may_share_an_epoch():
    policy = Policy(slots=4, batch_tokens=14_400, window_rows=300, accumulate=3)
    alone = played(Epoch([LARGER], NO_BUCKETS, policy, 1))
    shared = Epoch([LARGER], NO_BUCKETS, policy, 1)
    order = [r for r in range(shared.rounds) for _ in range(2)]
    order = [order[i * 7919 % len(order)] for i in range(len(order))]  # all windows at once
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda r: [shared.micro_batch(r, s) for s in range(4)], order))
    finally:
        sys.setswitchinterval(interval)
    for r, batches in zip(order, found, strict=True):
        assert_same_batches(batches, alone[r])


def test_micro_batches_cannot_be_written_to():
    batch = Epoch([W], NO_BUCKETS, Policy(slots=1, batch_size=4), 0).micro_batch(0, 0)
    for array in (batch.shard, batch.row):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_what_cannot_be_asked():
    policy = Policy(slots=1, batch_size=4)
    with pytest.raises(ConfigError, match="3 rows lie in no shard: the number of shards is 0"):
        Epoch([rows_of([1, 2, 3], 0)], NO_BUCKETS, policy, 0)
    with pytest.raises(ConfigError, match="epoch must be at least 0, got -1"):
        Epoch([W], NO_BUCKETS, policy, -1)
    epoch = Epoch([W], NO_BUCKETS, policy, 0)
    for index in (-1, epoch.rounds):
        with pytest.raises(IndexError, match=f"round {index} of {epoch.rounds}"):
            epoch.micro_batch(index, 0)
