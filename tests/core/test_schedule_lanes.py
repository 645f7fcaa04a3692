"""Units, parts, lanes and bounds against rows dealt out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.lanes import Lane, WindowSize, fewest_rows, grid_of, hands, most_rows
from shardprep.core.policy import Policy


def dealt(rows, deal):
    """Return the sorted numbers of every hand, dealt forth and back, in plain Python."""
    out = [[] for _ in range(deal)]
    for number in range(rows):
        cycle, place = divmod(number, deal)
        out[place if cycle % 2 == 0 else deal - 1 - place].append(number)
    return out


def array(values):
    return np.array(values, dtype=np.int64)


@given(st.integers(0, 200), st.integers(1, 12), st.integers(1, 5))
def test_a_hand_divides_into_hands_of_every_multiple(rows, deal, count):
    for hand, numbers in enumerate(dealt(rows, deal)):
        parts = hands(array(hand), deal, count)
        assert sorted(n for p in parts.tolist() for n in dealt(rows, deal * count)[p]) == numbers


@given(st.integers(1, 200), st.integers(1, 12), st.data())
def test_a_lane_counts_its_rows_and_the_bounds_hold(rows, deal, data):
    held = sorted(data.draw(st.sets(st.integers(0, deal - 1), min_size=1)))
    own = sorted(n for hand in held for n in dealt(rows, deal)[hand])
    lane = Lane(rows, deal, array(held))
    assert lane.numbers().tolist() == own
    assert lane.rows_below(np.arange(rows + 1)).tolist() == [sum(x < n for x in own) for n in range(rows + 1)]
    first = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(first, rows))
    inside = sum(first <= n < stop for n in own)
    ends = (array([first]), stop, len(held), deal)
    assert fewest_rows(*ends)[0] <= inside <= most_rows(*ends)[0]


@st.composite
def grids(draw):
    shards = draw(st.integers(1, 60))
    rows = draw(st.integers(1, 3_000)) * draw(st.sampled_from([1, 7, shards]))
    policy = Policy(
        slots=draw(st.integers(1, 24)),
        batch_size=4,
        window_rows=draw(st.sampled_from([1, 500, 5_000])),
        seed=draw(st.integers(0, 9)),
        shuffle=draw(st.booleans()),
    )
    return grid_of(rows, shards, policy, draw(st.sampled_from([0, 30]))), policy


@given(grids())
def test_every_hand_is_in_one_lane_of_one_window_and_windows_keep_their_rows(drawn):
    grid, policy = drawn
    rows_of_windows = []
    for epoch in range(3):
        lines, shared = grid.dealt_units(policy, 0, epoch)
        numbers, sizes = [], []
        for window in range(grid.windows):
            size = grid.size(window)
            held = grid.window_hands(lines, shared, window)
            assert (np.diff(held, axis=1) > 0).all()
            lanes = [Lane(grid.rows, grid.deal(size), hand) for hand in held]
            counts = [int(lane.rows_below(array([grid.rows]))[0]) for lane in lanes]
            whole = (array([0]), grid.rows)
            assert grid.fewest(size, *whole)[0] <= min(counts)
            assert max(counts) <= grid.most(size, *whole)[0]
            sizes.append(sum(counts))
            numbers += [lane.numbers() for lane in lanes]
            for lane, units in zip(lanes, grid.window_units(lines, shared, window), strict=True):
                shards = set(grid.shards_of(units).tolist())
                row, place = np.divmod(lane.numbers(), grid.shards)
                assert set(np.where(row % 2 == 0, place, grid.shards - 1 - place).tolist()) <= shards
        assert np.array_equal(np.sort(np.concatenate(numbers)), np.arange(grid.rows))
        rows_of_windows.append(sizes)
    assert all(sizes == rows_of_windows[0] for sizes in rows_of_windows)


def test_many_small_shards_make_units_and_a_prime_number_of_them_does_not_make_one():
    policy = Policy(slots=8, batch_tokens=14_400)
    assert grid_of(40_000, 16, policy, 0).units == 16
    assert grid_of(40_000, 400, policy, 0).units == 40
    assert grid_of(9_973 * 900, 9_973, policy, 0).units == 9_973  # as one unit it would be one window
    assert grid_of(9_973 * 30, 9_973, policy, 0).units == 1
    assert grid_of(10_000, 10_000, policy, 0).units == 10


def test_lanes_are_as_many_as_divide_the_slots_and_have_rows_enough():
    def lanes(slots, rows, shards, buckets=0):
        return grid_of(rows, shards, Policy(slots=slots, batch_size=1), buckets).lanes

    assert lanes(8, 40_000, 16) == 8
    assert lanes(64, 40_000, 16) == 16
    assert lanes(7, 40_000, 16) == 7
    assert lanes(17, 40_000, 16) == 1
    assert lanes(8, 3_000, 3) == 2
    assert lanes(8, 40_000, 16, 200) == 8
    assert lanes(8, 40_000, 16, 1_000) == 2


def test_units_that_do_not_divide_by_the_lanes_join_the_last_window_in_parts():
    policy = Policy(slots=8, batch_tokens=14_400, window_rows=1_000)
    grid = grid_of(20_000, 20, policy, 0)
    assert (grid.lanes, grid.whole, grid.rest, grid.parts, grid.windows) == (8, 2, 4, 2, 2)
    assert [grid.size(w) for w in range(2)] == [WindowSize(1, with_parts=False), WindowSize(1, with_parts=True)]
    lines, shared = grid.dealt_units(policy, 0, 3)
    assert (lines.shape, shared.shape) == ((8, 2), (4,))
    held = grid.window_hands(lines, shared, 1)
    assert held.shape == (8, 2 + 1)  # its unit as two parts, and half of another
    shards = [set(grid.shards_of(u).tolist()) for u in grid.window_units(lines, shared, 1)]
    assert [len(s) for s in shards] == [2] * 8


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_unit_of_the_longest_row(shuffle):
    for rows in range(4_000, 4_020):
        grid = grid_of(rows, 4, Policy(slots=1, batch_size=1, shuffle=shuffle), 0)
        assert rows - 1 in dealt(rows, grid.units)[grid.unit_of_longest()]
        assert grid.unit_rows(np.arange(4)).tolist() == [len(hand) for hand in dealt(rows, 4)]
