"""Mixes: which set a round comes from, against sorting all times; and the promises of one set, kept by several."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets
from shardprep.core.interleaving import BLOCK_EVENTS, UNIT, Interleaving
from shardprep.core.mixing import MixEpoch, MixSet
from shardprep.core.policy import Policy, World, played_slots, slots_of
from shardprep.core.schedule import Epoch
from shardprep.errors import ConfigError
from tests.core.schedule_cases import lognormal, rows_of
from tests.schedule_invariants import (
    all_rows,
    assert_budget,
    assert_len_exact,
    assert_resumes_exactly,
    assert_same_batches,
    assert_same_shapes,
    assert_shards_of_windows,
    assert_step_totals,
    played,
    real_rows,
    row_lengths,
)

BUCKETS = LengthBuckets((), 8)
TASK = [rows_of(lognormal(901, 1), 3), rows_of(lognormal(200, 2), 2, 3)]
GENERAL = [rows_of(lognormal(4_003, 3), 4, 5)]
LENGTHS = row_lengths([*TASK, *GENERAL])
POLICY = Policy(slots=4, batch_tokens=8_192, accumulate=3, window_rows=300)


def mix(epoch=0, policy=POLICY, until="task", weights=(1, 2)):
    sets = [MixSet("task", TASK, BUCKETS, weights[0]), MixSet("general", GENERAL, BUCKETS, weights[1])]
    return MixEpoch(sets, policy, until, epoch)


@given(st.lists(st.sampled_from([1, 2, 3, 7, 50, 400]), min_size=1, max_size=4), st.data())
def test_the_order_is_that_of_all_times_sorted(counts, data):
    phases = [data.draw(st.sampled_from([0, UNIT // 2]) | st.integers(0, UNIT - 1)) for _ in counts]
    last = data.draw(st.integers(0, len(counts) - 1))
    order = Interleaving(counts, phases, last)
    times = sorted(
        (Fraction(number * UNIT + (UNIT if kind == last else phases[kind]), count), kind, number)
        for kind, count in enumerate(counts)
        for number in range(count)
    )
    events = [(kind, number) for _, kind, number in times]
    assert [order.event(place) for place in range(order.total)] == events
    assert events[-1] == (last, counts[last] - 1)
    before = Counter()
    for place, (kind, number) in enumerate(events):
        assert order.place(kind, number) == place
        assert order.counts_before(place) == [before[k] for k in range(len(counts))]
        before[kind] += 1
    assert order.counts_before(order.total) == counts


def test_a_long_order_is_merged_in_blocks_and_asked_for_anywhere():
    order = Interleaving([5_000, 12_345, 3], [7, 2**31, 99], 1)
    for place in (0, BLOCK_EVENTS, 3 * BLOCK_EVENTS - 1, 9_000, 1, order.total - 1):
        assert order.place(*order.event(place)) == place
    with pytest.raises(IndexError):
        order.event(order.total)
    for place in range(0, order.total, 500):  # evenly spaced: never more than one off for each kind
        assert all(
            abs(count - place * part / order.total) <= 3
            for count, part in zip(order.counts_before(place), order.counts, strict=True)
        )


@pytest.mark.parametrize("until", ["task", "general"])
def test_each_set_is_played_once_in_each_of_its_epochs(until):
    seen = {"task": Counter(), "general": Counter()}
    rows = {"task": row_lengths(TASK), "general": row_lengths(GENERAL)}
    position = dict.fromkeys(seen, (0, 0))
    for epoch in range(5):
        schedule = mix(epoch, until=until)
        assert schedule.positions(0) == position
        rounds = played(schedule)
        for batch in (b for batches in rounds for b in batches):
            seen[batch.name].update((batch.epoch, row) for row in real_rows(batch))
        assert rounds[-1][0].name == until
        position = schedule.positions(schedule.steps)
        assert position[until] == (epoch + 1, 0)
        assert position == mix(epoch + 1, until=until).positions(0)
    for name, counts in seen.items():
        assert set(counts.values()) == {1}
        for number in range(position[name][0]):  # whole epochs
            assert {row for e, row in counts if e == number} == set(rows[name])
        assert {e for e, _ in counts} <= set(range(position[name][0] + 1))


@pytest.mark.parametrize("weights", [(1, 2), (0.7, 0.3), (5, 1)])
def test_padded_tokens_are_as_the_weights(weights):
    area = Counter()
    for epoch in range(4):
        schedule = mix(epoch, weights=weights)
        for r in range(schedule.rounds):
            area[schedule.micro_batch(r, 0).name] += schedule.shape(r).area
    assert area["task"] / area.total() == pytest.approx(weights[0] / sum(weights), rel=0.02)


def test_even_a_small_weight_plays_a_round_in_each_epoch():
    schedule = mix(weights=(1, 1e-6))
    assert schedule.shares == {"task": Epoch(TASK, BUCKETS, POLICY, 0).rounds, "general": 1}


@settings(max_examples=10)
@given(st.integers(0, 6), st.sampled_from(["pad", "drop"]), st.booleans(), st.data())
def test_the_promises_of_one_set_hold_for_several(epoch, tail, shuffle, data):
    policy = replace(POLICY, tail=tail, shuffle=shuffle)
    schedule = mix(epoch, policy)
    rounds = played(schedule)
    assert_same_shapes(schedule, rounds, LENGTHS)
    assert_budget(schedule, rounds)
    assert_step_totals(schedule, rounds, LENGTHS)
    assert_len_exact([mix(number, policy) for number in (epoch, epoch + 1, 9)])
    steps = sorted(data.draw(st.lists(st.integers(0, schedule.steps), max_size=4)))
    cuts = [(step, data.draw(st.integers(1, 17))) for step in steps]
    assert_resumes_exactly(lambda: mix(epoch, policy), rounds, cuts)
    assert_shards_of_windows(schedule, rounds, [data.draw(st.integers(1, 4))])
    assert_same_batches([b for r in played(mix(2, policy).at(epoch)) for b in r], [b for r in rounds for b in r])


def test_a_rank_needs_the_shards_of_one_window_of_each_set_at_a_time():
    schedule, world = mix(1, replace(POLICY, accumulate=1)), World(1, 2)
    assert len(schedule.windows) > 3
    for number, window in enumerate(schedule.windows):
        need = schedule.shards(number, slots_of(world, 4)).tolist()
        assert len(need) <= 8
        used = {
            shard
            for r in range(window.start, window.stop)
            for slot in played_slots(world, 4)
            for shard, _ in all_rows(schedule.micro_batch(r, slot))
        }
        assert used <= set(need)


def test_dropped_rows_are_those_of_all_sets():
    policy = replace(POLICY, tail="drop")
    each = [Epoch(rows, BUCKETS, policy, 0).dropped_rows for rows in (TASK, GENERAL)]
    assert mix(policy=policy).dropped_rows == sum(each) > 0


def test_mixes_that_are_refused():
    task, empty = MixSet("task", TASK, BUCKETS, 1), MixSet("none", [rows_of([])], BUCKETS, 1)
    for sets, until, message in (
        ([task, task], "task", "need different names, got task, task"),
        ([task], "other", r'until must name a set of the mix \(task\), got "other"'),
        ([replace(task, weight=0)], "task", 'the weight of "task" must be above 0, got 0'),
        ([replace(task, weight=float("nan"))], "task", 'the weight of "task" must be above 0, got nan'),
        ([task, empty], "task", "a set of a mix has no round to play: none"),
    ):
        with pytest.raises(ConfigError, match=message):
            MixEpoch(sets, POLICY, until, 0)
    with pytest.raises(ConfigError, match="epoch must be at least 0"):
        mix(-1)
