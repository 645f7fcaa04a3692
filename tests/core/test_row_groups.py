"""Row groups: bounded, at bucket edges where one is near, no tiny last one."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets
from shardprep.core.row_groups import row_groups


def sizes_of(lengths, cuts, fixed=0):
    rows = np.array(lengths) * 4 + fixed
    return [int(rows[a:b].sum()) for a, b in pairwise(cuts)]


@given(
    st.lists(st.integers(0, 300), max_size=120).map(sorted),
    st.integers(1, 2000),
    st.integers(0, 40),
    st.lists(st.integers(1, 300), max_size=6, unique=True).map(sorted),
)
def test_groups_cover_all_rows_within_the_limit(lengths, limit, fixed, edges):
    cuts = row_groups(np.array(lengths, dtype=np.int64), LengthBuckets(tuple(edges), 1), limit, fixed).tolist()
    assert cuts[0] == 0
    assert cuts[-1] == len(lengths)
    assert cuts == sorted(set(cuts))
    for size, start, stop in zip(sizes_of(lengths, cuts, fixed), cuts, cuts[1:], strict=False):
        assert size <= limit or stop == start + 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=150).map(sorted), st.integers(400, 2000))
def test_no_last_group_is_tiny(lengths, limit):
    cuts = row_groups(np.array(lengths, dtype=np.int64), LengthBuckets((8, 16, 24, 32), 1), limit, 0).tolist()
    sizes = sizes_of(lengths, cuts)
    # Rows are at most 160 bytes, 2/5 of the limit: two groups can always be cut near their middle.
    assert len(sizes) == 1 or sizes[-1] >= sizes[-2] / 4


def test_a_group_ends_at_a_bucket_edge_in_its_last_half():
    lengths = np.array([10] * 70 + [20] * 100, dtype=np.int64)
    with_edge = row_groups(lengths, LengthBuckets((10, 20), 1), 4000, 0)
    assert with_edge[1] == 70  # 2,800 bytes of at most 4,000
    early = row_groups(np.array([10] * 30 + [20] * 150), LengthBuckets((10, 20), 1), 4000, 0)
    assert early[1] == 65  # 30 rows are less than half of the group: filled up


def test_a_tiny_last_group_is_balanced_with_the_one_before():
    lengths = np.full(105, 10, dtype=np.int64)
    assert row_groups(lengths, LengthBuckets((16,), 1), 4000, 0).tolist() == [0, 52, 105]


def test_balancing_prefers_a_bucket_edge():
    lengths = np.array([10] * 45 + [11] * 60, dtype=np.int64)
    assert row_groups(lengths, LengthBuckets((10, 16), 1), 4200, 0).tolist() == [0, 45, 105]


def test_a_row_above_the_limit_is_a_group_of_its_own():
    assert row_groups(np.array([5, 5, 3000, 4000]), LengthBuckets((8,), 8), 100, 0).tolist() == [0, 2, 3, 4]


def test_two_groups_that_cannot_be_balanced_stay():
    # 1 row of 90 bytes, then one of 12: no other cut is possible.
    assert row_groups(np.array([20, 20]), LengthBuckets((), 1), 100, 0).tolist() == [0, 1, 2]
    assert row_groups(np.array([23, 3]), LengthBuckets((), 1), 100, 0).tolist() == [0, 1, 2]


def test_no_rows_no_groups():
    assert row_groups(np.zeros(0, dtype=np.int64), LengthBuckets((8,), 8), 100, 0).tolist() == [0]
