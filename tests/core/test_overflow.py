from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.block import offsets_of
from shardprep.core.overflow import split, truncate
from shardprep.errors import ConfigError

rows_of_ids = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8)


def flat(rows):
    ids = np.array([i for row in rows for i in row], dtype=np.int32)
    return ids, offsets_of(np.array([len(row) for row in rows], dtype=np.int64))


def listed(ids, offsets):
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


def cut_in_plain_python(row, max_length, keep_tail):
    if len(row) <= max_length:
        return row
    return row[: max_length - keep_tail] + row[len(row) - keep_tail :]


@given(rows_of_ids, st.integers(1, 8), st.integers(0, 8))
def test_truncate_keeps_the_first_and_the_closing_tokens(rows, max_length, keep_tail):
    keep_tail = min(keep_tail, max_length)
    ids, offsets = flat(rows)
    kept, bounds, cut = truncate(ids, offsets, max_length, keep_tail)
    assert listed(kept, bounds) == [cut_in_plain_python(row, max_length, keep_tail) for row in rows]
    assert cut.tolist() == [max(len(row) - max_length, 0) for row in rows]
    assert (kept.dtype, bounds.dtype) == (np.int32, np.int64)
    assert len(kept) + cut.sum() == len(ids)


@given(rows_of_ids, st.integers(1, 8))
def test_split_loses_nothing_and_fills_all_but_the_last_piece(rows, max_length):
    ids, offsets = flat(rows)
    same, bounds, parent, number = split(ids, offsets, max_length)
    pieces = [[row[k : k + max_length] for k in range(0, max(len(row), 1), max_length)] for row in rows]
    assert listed(same, bounds) == [piece for row in pieces for piece in row]
    assert parent.tolist() == [i for i, row in enumerate(pieces) for _ in row]
    assert number.tolist() == [k for row in pieces for k in range(len(row))]
    assert same.tolist() == ids.tolist()


@given(rows_of_ids, st.integers(1, 6), st.integers(0, 5))
def test_rows_inside_a_larger_array_are_treated_alike(rows, max_length, before):
    ids, offsets = flat(rows)
    inside = np.concatenate([np.full(before, 77, np.int32), ids, np.full(3, 78, np.int32)])
    for function in (lambda i, o: truncate(i, o, max_length, 1), lambda i, o: split(i, o, max_length)):
        for alone, shifted in zip(function(ids, offsets), function(inside, offsets + before), strict=True):
            assert alone.tolist() == shifted.tolist()


def test_c24_a_maximum_of_4_keeps_17_of_26_tokens_or_splits_them_all():
    ids, offsets = flat([[1] * 4 + [256], [1, 256], [1, 1, 256], [1] * 11 + [256], [1, 1, 1, 256]])
    assert len(ids) == 26
    kept, bounds, cut = truncate(ids, offsets, 4, keep_tail=1)
    assert (len(kept), cut.sum()) == (17, 9)
    assert kept[bounds[1:] - 1].tolist() == [256] * 5
    same, bounds, parent, number = split(ids, offsets, 4)
    assert (len(same), np.diff(bounds).max()) == (26, 4)
    assert np.diff(bounds)[parent == 3].tolist() == [4, 4, 4]
    assert number[parent == 3].tolist() == [0, 1, 2]


def test_a_limit_without_room_for_the_closing_tokens_is_refused():
    ids, offsets = flat([[1, 2, 3]])
    with pytest.raises(ConfigError, match="no room for the 2 tokens that close each document: give at least 3"):
        truncate(ids, offsets, 1, keep_tail=2)
    for function in (truncate, split):
        with pytest.raises(ConfigError, match="at least 1, got 0"):
            function(ids, offsets, 0)
