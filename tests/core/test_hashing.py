"""Keyed order has golden values: a change here would change every data set and every resumed run."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.hashing import OBJECTS, TASKS, keys, order

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
GOLDEN_KEYS = ["0x6e789e6aa1b965f4", "0x6c45d188009454f", "0xf88bb8a8724c81ec"]
GOLDEN_SEEDED = ["0xf88aeb5187a4087", "0x43d1bfa571c4c3fe", "0xbb7fb2b2f6a6f4d1"]
GOLDEN_ORDER = [3, 0, 8, 6, 7, 5, 1, 9, 4, 2]


def plain_mix(state):
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def plain_keys(count, *seed):
    state = GOLDEN
    for word in seed:
        state = plain_mix((state + word % 2**64 + GOLDEN) & MASK)
    return [plain_mix((state + i * GOLDEN) & MASK) for i in range(1, count + 1)]


def test_golden_values():
    assert [hex(k) for k in keys(3).tolist()] == GOLDEN_KEYS
    assert [hex(k) for k in keys(3, 7, 0, OBJECTS).tolist()] == GOLDEN_SEEDED
    assert order(10, 0, OBJECTS).tolist() == GOLDEN_ORDER


def test_the_stream_is_splitmix64():
    # Without seed words the state is the increment itself: outputs 2, 3, 4 of the published generator started at 0.
    assert keys(2).tolist() == [0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.integers(0, 20), st.lists(st.integers(-(2**70), 2**70), max_size=4))
def test_keys_follow_plain_python(count, seed):
    assert keys(count, *seed).tolist() == plain_keys(count, *seed)


@given(st.integers(0, 200), st.integers(0, 2**64 - 1))
def test_order_is_a_permutation(count, seed):
    assert sorted(order(count, seed).tolist()) == list(range(count))


def test_purposes_do_not_share_a_stream():
    assert OBJECTS != TASKS
    assert not np.array_equal(keys(4, 1, OBJECTS), keys(4, 1, TASKS))
