"""Pooled memory: used again once nothing looks at it any more, and never before."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shardprep.errors import ConfigError
from shardprep.formats.buffers import BufferPool, size_class


def address(array):
    return array.__array_interface__["data"][0]


@given(st.integers(0, 2**40))
def test_a_class_holds_its_size_and_wastes_less_than_half(size):
    got = size_class(size)
    assert got >= size
    assert got == 4096 or got < 1.5 * size
    assert size_class(got) == got


def test_a_buffer_is_used_again_when_its_array_died():
    pool = BufferPool()
    first = pool.array((16, 900), np.int64)
    place = address(first)
    assert pool.idle_bytes == 0
    del first
    assert pool.idle_bytes == size_class(16 * 900 * 8)
    second = pool.array((900, 15), np.int64)  # another shape of the same class
    assert address(second) == place
    assert pool.idle_bytes == 0
    assert address(pool.array((16, 900), np.int64)) != place


HOLDERS = {
    "array": lambda a: a,
    "slice": lambda a: a[1:],
    "slice of a slice": lambda a: a[1:][1:, :2],
    "reshaped": lambda a: a.reshape(-1),
    "transposed": lambda a: a.T,
    "other dtype": lambda a: a.view(np.float64),
    "one row": lambda a: a[3],
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "masked": lambda a: np.ma.MaskedArray(a, mask=False),
    "subclass": lambda a: a.view(np.recarray),
    "memoryview": memoryview,
    "frombuffer": lambda a: np.frombuffer(a, np.int64),
    "array of a memoryview": lambda a: np.asarray(memoryview(a)),
    "array over a memoryview": lambda a: np.ndarray((4,), np.int64, memoryview(a)),
    "base of a slice": lambda a: a[1:].base,
    "base": lambda a: a.base,
    "flat iterator": lambda a: a.flat,
    "torch": torch.from_numpy,
    "torch slice": lambda a: torch.from_numpy(a)[2:],
    "torch as_tensor": torch.as_tensor,
    "torch dlpack": torch.from_dlpack,
    "torch to numpy": lambda a: torch.from_numpy(a).numpy(),
    "numpy dlpack": np.from_dlpack,
    "list": lambda a: [a],
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_whatever_looks_at_the_memory_keeps_it(holder):
    pool = BufferPool()
    array = pool.array((16, 8), np.int64)
    array[:] = 7
    held = holder(array)
    place = address(array)
    del array
    gc.collect()
    others = [pool.array((16, 8), np.int64) for _ in range(3)]
    for other in others:
        other[:] = -1
    assert all(address(other) != place for other in others)
    del others, other
    idle = pool.idle_bytes
    del held
    gc.collect()
    assert pool.idle_bytes == idle + 4096


def test_an_array_outlives_its_pool():
    pool = BufferPool()
    array = pool.array((16, 8), np.int64)
    array[:] = 3
    gone = weakref.ref(pool)
    del pool
    assert (array == 3).all()
    del array
    gc.collect()
    assert gone() is None


class Pools(RuleBasedStateMachine):
    """Arrays that are alive never change by what others write, and the idle memory never passes the limit."""

    def __init__(self):
        super().__init__()
        self.pool = BufferPool(limit_bytes=40_000)
        self.alive = []
        self.count = 0

    @rule(rows=st.integers(0, 9), padded=st.integers(0, 300))
    def take(self, rows, padded):
        array = self.pool.array((rows, padded), np.int64)
        assert array.shape == (rows, padded)
        self.count += 1
        array[:] = self.count
        self.alive.append((array, self.count))

    @rule(place=st.integers(0, 99))
    def keep_a_part(self, place):
        if self.alive:
            array, value = self.alive.pop(place % len(self.alive))
            self.alive.append((array[array.shape[0] // 2 :], value))

    @rule(place=st.integers(0, 99))
    def drop(self, place):
        if self.alive:
            self.alive.pop(place % len(self.alive))

    @rule()
    def clear(self):
        self.pool.clear()
        assert self.pool.idle_bytes == 0

    @invariant()
    def nothing_is_corrupted(self):
        assert all((array == value).all() for array, value in self.alive)
        assert self.pool.idle_bytes <= 40_000


TestPools = Pools.TestCase


def test_what_is_above_the_limit_is_freed():
    pool = BufferPool(limit_bytes=2 * 8192)
    arrays = [pool.array((8192,), np.uint8) for _ in range(5)]
    del arrays
    assert pool.idle_bytes == 2 * 8192


def test_a_class_out_of_use_makes_room_for_the_one_in_use():
    pool = BufferPool(limit_bytes=4 * 4096)
    old = [pool.array((4096,), np.uint8) for _ in range(4)]
    del old
    new = pool.array((12_288,), np.uint8)
    place = address(new)
    del new
    assert pool.idle_bytes == 4096 + 12_288
    assert address(pool.array((12_288,), np.uint8)) == place


def test_the_class_asked_for_longest_ago_makes_room():
    pool = BufferPool(limit_bytes=4096 + 16_384)
    small, large = pool.array((4096,), np.uint8), pool.array((16_384,), np.uint8)
    places = address(small), address(large)
    del large, small  # the small one was asked for longer ago
    other = pool.array((6144 * 4,), np.uint8)
    del other  # above the limit: freed, and nothing makes room for it
    assert pool.idle_bytes == 4096 + 16_384
    assert address(pool.array((4096,), np.uint8)) == places[0]  # now the large one is the older
    middle = pool.array((6144,), np.uint8)
    assert address(middle) != places[0]
    del middle
    assert pool.idle_bytes == 4096 + 6144


def test_a_larger_buffer_serves_rather_than_new_memory():
    pool = BufferPool()
    big = pool.array((8192,), np.uint8)
    place = address(big)
    del big
    assert address(pool.array((4097,), np.uint8)) == place
    assert address(pool.array((4096,), np.uint8)) == place  # twice its size
    assert pool.idle_bytes == 8192
    big = pool.array((12_288,), np.uint8)
    del big
    pool.clear()
    big = pool.array((12_288,), np.uint8)
    place = address(big)
    del big
    assert address(pool.array((4096,), np.uint8)) != place  # three times: too much


def test_without_a_limit_nothing_is_kept():
    pool = BufferPool(limit_bytes=0)
    pool.array((5,), np.int64)
    assert pool.idle_bytes == 0


def test_memory_comes_from_the_hook():
    made = []

    def allocate(size):
        made.append(torch.zeros(size, dtype=torch.uint8))  # stands for pinned memory: the same way, without a GPU
        return made[-1].numpy()

    pool = BufferPool(allocate=allocate)
    for _ in range(3):
        array = pool.array((16, 8), np.int64)
        array[:] = 1
        assert torch.from_numpy(array).data_ptr() == made[0].data_ptr()
        del array
    assert len(made) == 1


@pytest.mark.parametrize(("allocate", "reason"), [(lambda size: bytearray(size - 1), "at least"), (bytes, "read-only")])
def test_a_hook_that_gives_too_little_is_refused(allocate, reason):
    with pytest.raises(ConfigError, match=reason):
        BufferPool(allocate=allocate).array((16, 8), np.int64)


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="limit_bytes must be at least 0, got -1"):
        BufferPool(limit_bytes=-1)


def test_arrays_are_aligned_to_cache_lines():
    pool = BufferPool()
    assert all(address(pool.array((n,), np.int64)) % 64 == 0 for n in (1, 1000, 5000, 50_000))


def test_arrays_in_reference_cycles_come_back_from_the_collector():
    pool = BufferPool()
    for _ in range(5):
        cycle = [pool.array((64, 64), np.int64)]
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert pool.idle_bytes == 64 * 64 * 8


def test_threads_never_get_one_buffer_twice():
    pool, wrong, stop = BufferPool(1 << 20), [], threading.Event()

    def work(mark):
        kept = []
        for turn in range(3000):
            array = pool.array((8, 64 + turn % 200), np.int64)
            array[:] = mark
            kept.append(array)
            if len(kept) > 4:
                kept.pop(turn % 3)
            if not all((each == mark).all() for each in kept) or stop.is_set():
                wrong.append(turn)
                stop.set()
                return

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.idle_bytes <= 1 << 20
