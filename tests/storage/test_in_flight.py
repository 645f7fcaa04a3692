"""The limit on requests under way, against stores made of a clock and a queue: no threads, no waiting."""

from __future__ import annotations

import heapq
import os
import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.storage.inflight import InFlight, Permit, in_flight


class Simulation:
    """A store that answers after `latency_s`, and at most `rate` requests a second; the client keeps it as busy as it may."""

    def __init__(self, latency_s: float, rate: float, *, seed: int = 0) -> None:
        self.now = 0.0
        self.limit = InFlight(clock=lambda: self.now)
        self.latency_s, self.rate = latency_s, rate
        self.free_at = 0.0
        self.rng = random.Random(seed)
        self.running: list[tuple[float, int, Permit]] = []
        self.done = 0

    def run(self, requests: int, *, refused: float = 0.0) -> float:
        """Return requests a second over the last half."""
        half_at = 0.0
        for number in range(requests):
            while len(self.running) < self.limit.current:
                permit = self.limit.acquire(1000)
                self.free_at = max(self.free_at, self.now) + 1 / self.rate
                answer_at = self.free_at + self.latency_s * self.rng.uniform(0.7, 1.5)
                heapq.heappush(self.running, (answer_at, number * 1000 + len(self.running), permit))
            self.now, _, permit = heapq.heappop(self.running)
            if self.rng.random() < refused:
                self.limit.slow_down(permit)
                permit.failed = True
            permit.__exit__(None, None, None)
            if number == requests // 2:
                half_at = self.now
        return requests / 2 / (self.now - half_at)


def test_it_climbs_quickly_where_requests_take_long():
    far = Simulation(latency_s=0.03, rate=5000)
    far.run(1500)
    assert far.now < 1.5
    assert far.limit.current >= 100
    assert far.run(4000) > 0.8 * 4000


@pytest.mark.parametrize("seed", range(5))
def test_it_stays_where_more_is_of_no_use(seed: int):
    near = Simulation(latency_s=0.0005, rate=4000, seed=seed)
    near.run(20_000)
    assert near.limit.most <= 40
    assert near.limit.current <= 32


def test_a_slow_consumer_does_not_make_it_grow():
    now = 0.0
    limit = InFlight(clock=lambda: now)
    for _ in range(5000):
        with limit.acquire(100):
            now += 0.03
    assert limit.current == 16


def test_a_burst_of_refusals_halves_it_once():
    limit = InFlight(start=64)
    permits = [limit.acquire() for _ in range(64)]
    for permit in permits:
        limit.slow_down(permit)
    assert limit.current == 32
    for permit in permits:
        limit.release(permit, succeeded=False)
    later = limit.acquire()
    time.sleep(0.001)
    limit.slow_down(later)
    assert limit.current == 16


def test_it_never_falls_below_the_smallest_and_grows_again_after():
    store = Simulation(latency_s=0.03, rate=5000)
    store.run(2000, refused=0.2)
    assert store.limit.current <= 8
    store.run(8000)
    assert store.limit.current >= 16
    assert store.limit._smallest == 4


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(100, 300),
)
def test_neither_count_nor_bytes_are_exceeded(sizes: list[int], places: int, max_bytes: int):
    limit = InFlight(start=places, smallest=1, largest=places, max_bytes=max_bytes)
    lock = threading.Lock()
    running: list[int] = []
    worst: list[tuple[int, int]] = []

    def request(size: int) -> None:
        with limit.acquire(size):
            with lock:
                running.append(size)
                worst.append((len(running), sum(running)))
            with lock:
                running.remove(size)

    threads = [threading.Thread(target=request, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    assert all(count <= places and (count == 1 or size <= max_bytes) for count, size in worst)
    assert limit.most <= places


def test_a_large_one_is_let_in_before_those_that_came_later():
    limit = InFlight(start=16, max_bytes=100)
    first = limit.acquire(60)
    order: list[str] = []

    def take(name: str, size: int) -> None:
        with limit.acquire(size):
            order.append(name)

    large = threading.Thread(target=take, args=("large", 90))
    large.start()
    while not limit._waiting_for_bytes:
        time.sleep(0.001)
    small = threading.Thread(target=take, args=("small", 10))
    small.start()
    while limit._waiting < 2:
        time.sleep(0.001)
    limit.release(first, succeeded=True)
    large.join(200)
    small.join(200)
    assert order == ["large", "small"]


def test_one_limit_for_a_process():
    assert in_flight() is in_flight()
    assert in_flight() is not InFlight()
    assert os.getpid() in __import__("shardprep.storage.inflight", fromlist=["_of_process"])._of_process
