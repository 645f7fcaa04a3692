"""Bucket edges: a length on an edge is inside, and fitted edges are the best there are."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.core.buckets import (
    LengthBuckets,
    bucket_table,
    fit_edges,
    padded_to_multiple,
    padding_share,
    random_padding_share,
)
from shardprep.core.histogram import LengthHistogram, histogram_of
from shardprep.errors import ConfigError


def array(values):
    return np.array(values, dtype=np.int64)


def slots(histogram, buckets):
    return int((buckets.padded(histogram.lengths) * histogram.counts).sum())


def least_slots(lengths, buckets, multiple):
    """The best edges by trying all: every subset of the padded lengths that covers the longest."""
    padded = [max(1, -(-x // multiple)) * multiple for x in lengths]
    values = sorted(set(padded))
    best = None
    for chosen in combinations(values[:-1], min(buckets, len(values)) - 1):
        edges = [*chosen, values[-1]]
        total = sum(min(edge for edge in edges if edge >= x) for x in padded)
        best = total if best is None else min(best, total)
    return best


def test_a_length_on_an_edge_is_in_that_bucket():
    # Token lengths of case C24: 5, 2, 3, 12, 4 with edges 2, 4, 8; 12 is in the overflow bucket.
    buckets = LengthBuckets((2, 4, 8), 1)
    assert buckets.bucket_of(array([5, 2, 3, 12, 4])).tolist() == [2, 0, 1, 3, 1]
    assert buckets.padded(array([5, 2, 3, 12, 4])).tolist() == [8, 2, 4, 12, 4]
    table = bucket_table(histogram_of(array([5, 2, 3, 12, 4])), buckets)
    assert table.rows.tolist() == [1, 2, 1, 1]
    assert table.tokens.tolist() == [2, 7, 5, 12]
    assert table.slots.tolist() == [2, 8, 8, 12]
    assert table.padding_share.tolist() == [0, 0.125, 0.375, 0]


def test_lengths_one_to_five_hundred_and_two_by_bucket():
    # Case C25: 1,000 documents of 2 to 501 tokens, two of each length.
    lengths = np.repeat(np.arange(2, 502), 2)
    table = bucket_table(histogram_of(lengths), LengthBuckets((32, 64, 128, 256, 512), 8))
    assert table.rows.tolist() == [62, 64, 128, 256, 490, 0]
    assert table.tokens.sum() == 251_500


def test_the_overflow_is_padded_to_the_multiple():
    buckets = LengthBuckets((8, 16), 8)
    assert buckets.padded(array([0, 1, 8, 9, 16, 17, 24, 25])).tolist() == [8, 8, 8, 16, 16, 24, 24, 32]
    assert LengthBuckets((), 8).padded(array([0, 1, 9])).tolist() == [8, 8, 16]
    assert LengthBuckets((), 8).bucket_of(array([0, 9])).tolist() == [0, 0]
    assert padded_to_multiple(array([0, 5, 6]), 5).tolist() == [5, 5, 10]


@pytest.mark.parametrize(
    ("edges", "multiple", "says"),
    [
        ((8, 8), 8, "must ascend, got 8, 8"),
        ((16, 8), 8, "must ascend"),
        ((8, 12), 8, "multiples of 8 (--pad-multiple), got 12"),
        ((0, 8), 8, "positive"),
        ((-8,), 8, "got -8"),
        ((8,), 0, "at least 1, got 0"),
    ],
)
def test_wrong_edges_are_refused(edges, multiple, says):
    with pytest.raises(ConfigError) as caught:
        LengthBuckets(edges, multiple)
    assert says in str(caught.value)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 6), st.sampled_from([1, 2, 8]))
def test_fitted_edges_are_the_best_there_are(lengths, count, multiple):
    histogram = histogram_of(array(lengths))
    buckets = fit_edges(histogram, count, multiple)
    assert len(buckets.edges) <= count
    assert buckets.edges[-1] >= max(lengths)
    assert buckets.edges[-1] - max(*lengths, 1) < multiple
    assert slots(histogram, buckets) == least_slots(lengths, count, multiple)


def plain_fit(values, counts, buckets):
    """Least slots by the textbook recurrence, for larger inputs than all subsets allow."""
    rows = np.concatenate([[0], np.cumsum(counts)])
    cost = values * rows[1:]
    for _ in range(buckets - 1):
        cost = np.array(
            [
                min(cost[j], *(cost[i] + values[j] * (rows[j + 1] - rows[i + 1]) for i in range(j + 1)))
                for j in range(len(values))
            ]
        )
    return int(cost[-1])


@settings(max_examples=15)
@given(st.integers(2, 70), st.integers(2, 9), st.integers(0, 2**32))
def test_fitting_agrees_with_the_textbook_on_heavy_tails(size, count, seed):
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.integers(1, 40, size)) * 8
    counts = np.maximum(1, (rng.pareto(0.7, size) * 10).astype(np.int64))
    histogram = LengthHistogram(values, counts)
    assert slots(histogram, fit_edges(histogram, count, 8)) == plain_fit(values, counts, count)


def test_eight_thousand_lengths_and_more_than_can_be_fitted_exactly():
    rng = np.random.default_rng(3)
    long = LengthHistogram(np.arange(1, 100_001) * 8 - 3, rng.integers(1, 50, 100_000))
    buckets = fit_edges(long, 64, 8)
    assert len(buckets.edges) == 64
    assert buckets.edges[-1] == 800_000
    # Equal counts everywhere make equal steps the best; the coarse fit may lose 0.1 % against them.
    even = LengthBuckets(tuple(int(12_504 * (i + 1) // 8 * 8) for i in range(64)), 8)
    assert even.edges[-1] >= 800_000
    assert slots(long, buckets) <= slots(long, even) * 1.001


def test_more_buckets_than_lengths_pad_nothing_beyond_the_multiple():
    histogram = histogram_of(array([8, 16, 24, 24]))
    assert fit_edges(histogram, 64, 8).edges == (8, 16, 24)
    assert padding_share(histogram, fit_edges(histogram, 64, 8)) == 0


def test_nothing_to_fit():
    empty = histogram_of(array([]))
    assert fit_edges(empty, 4, 8).edges == ()
    assert padding_share(empty, LengthBuckets((), 8)) == 0
    assert random_padding_share(empty, 8) == 0
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        fit_edges(empty, 0, 8)


def test_padding_share_counts_slots():
    assert padding_share(histogram_of(array([1, 8, 9])), LengthBuckets((8, 16), 8)) == 1 - 18 / 32


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 4))
def test_random_padding_is_the_mean_over_all_batches(lengths, batch):
    batches = list(combinations(lengths, min(batch, len(lengths))))
    longest = np.mean([max(b) for b in batches])
    expected = 1 - np.mean(lengths) / longest
    assert random_padding_share(histogram_of(array(lengths)), 1, batch) == pytest.approx(expected, abs=1e-12)


def test_workload_like_lengths():
    # Log-normal, mean 900, sigma 0.8, up to 8,192: 69 % of a random batch of 16 is padding; under 3 % with 64 edges.
    draw = np.random.default_rng(7).lognormal(np.log(900) - 0.32, 0.8, 40_000)
    histogram = histogram_of(np.clip(draw, 16, 8192).astype(np.int64))
    assert random_padding_share(histogram, 8) == pytest.approx(0.69, abs=0.01)
    assert padding_share(histogram, fit_edges(histogram, 64, 8)) < 0.03
