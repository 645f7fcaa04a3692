"""Histograms add and subtract; the deal's formulas against dealing rows out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.deal import (
    rows_before,
    rows_before_lower,
    rows_of_shards,
    shard_histogram,
    shard_lengths,
    shard_rows,
    tokens_of_shards,
)
from shardprep.core.histogram import LengthHistogram, histogram_of, merged, subtracted
from shardprep.errors import BlockError

row_lengths = st.lists(st.integers(0, 30), max_size=60)


def array(values):
    return np.array(values, dtype=np.int64)


def dealt(rows, shards):
    """Row numbers of every shard: dealt forth and back, in plain Python."""
    hands = [[] for _ in range(shards)]
    for number in range(rows):
        cycle, place = divmod(number, shards)
        hands[place if cycle % 2 == 0 else shards - 1 - place].append(number)
    return hands


@given(row_lengths)
def test_a_histogram_counts(lengths):
    histogram = histogram_of(array(lengths))
    assert np.repeat(histogram.lengths, histogram.counts).tolist() == sorted(lengths)
    assert (histogram.rows, histogram.tokens) == (len(lengths), sum(lengths))
    assert histogram == histogram_of(array(lengths[::-1]))
    assert histogram != "a histogram"


@given(st.lists(row_lengths, max_size=4))
def test_merging_is_counting_together(parts):
    assert merged([histogram_of(array(p)) for p in parts]) == histogram_of(array([x for p in parts for x in p]))


@given(row_lengths, st.data())
def test_subtracting_leaves_the_others(lengths, data):
    drop = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True)) if lengths else []
    left = [x for i, x in enumerate(lengths) if i not in drop]
    dropped = histogram_of(array([lengths[i] for i in drop]))
    assert subtracted(histogram_of(array(lengths)), dropped) == histogram_of(array(left))


def test_dropping_what_was_never_staged_is_an_error():
    with pytest.raises(BlockError, match="length 7"):
        subtracted(histogram_of(array([5, 7])), histogram_of(array([7, 7])))


@given(st.integers(0, 60), st.integers(1, 12))
def test_formulas_count_what_a_dealer_deals(rows, shards):
    hands = dealt(rows, shards)
    numbers = np.arange(rows + 1)
    for shard in range(shards):
        assert rows_before(numbers, shards, shard).tolist() == [sum(n < x for n in hands[shard]) for x in numbers]
        lower = [n for hand in hands[:shard] for n in hand]
        assert rows_before_lower(numbers, shards, shard).tolist() == [sum(n < x for n in lower) for x in numbers]
        assert shard_rows(rows, shards, shard) == len(hands[shard])
    assert rows_of_shards(rows, shards).tolist() == [len(hand) for hand in hands]
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


@given(row_lengths, st.integers(1, 12))
def test_lengths_and_tokens_of_every_shard_follow_from_the_histogram(lengths, shards):
    histogram, ordered = histogram_of(array(lengths)), sorted(lengths)
    tokens = tokens_of_shards(histogram, shards)
    for shard, hand in enumerate(dealt(len(lengths), shards)):
        expected = [ordered[n] for n in hand]
        assert shard_lengths(histogram, shards, shard).tolist() == expected
        assert shard_histogram(histogram, shards, shard) == histogram_of(array(expected))
        assert tokens[shard] == sum(expected)


def test_row_j_of_shard_k_has_the_number_of_the_definition():
    lengths = np.arange(100, 1100, dtype=np.int64)  # all distinct: the length says the number
    shards = 7
    for k in range(shards):
        numbers = shard_lengths(histogram_of(lengths), shards, k) - 100
        expected = [j * shards + (k if j % 2 == 0 else shards - 1 - k) for j in range(len(numbers))]
        assert numbers.tolist() == expected


@pytest.mark.parametrize("shards", [8, 16])
def test_log_normal_shards_are_equal_in_tokens(shards):
    # Lengths like those of the benchmark's workload W: log-normal, mean 900, sigma 0.8, clipped, 40,000 rows.
    draw = np.random.default_rng(7).lognormal(np.log(900) - 0.32, 0.8, 40_000)
    tokens = tokens_of_shards(histogram_of(np.clip(draw, 16, 8192).astype(np.int64)), shards)
    assert tokens.max() / tokens.min() <= 1.001


def test_an_empty_histogram_has_no_rows():
    empty = LengthHistogram(array([]), array([]))
    assert merged([]) == empty
    assert shard_lengths(empty, 3, 1).tolist() == []
    assert tokens_of_shards(empty, 3).tolist() == [0, 0, 0]
