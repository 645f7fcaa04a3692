"""Counters of a loader: what was read, and where the consumer's time went, on a clock of the test."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import ConfigError
from shardprep.reader.metrics import CAUSES, Metrics


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self):
        return self.now


@dataclass
class Read:
    """A batch, as far as it counts."""

    real: int
    tokens: int
    shape: tuple[int, int]

    @property
    def input_ids(self):
        return np.zeros(self.shape)


@dataclass
class Kept:
    every_s: float
    got: list = field(default_factory=list)

    def write(self, snapshot, *, final):
        self.got.append((snapshot["wall_seconds"], snapshot["batches"], final))


def test_an_epoch_in_numbers():
    clock = Clock()
    metrics = Metrics(rank=3, world_size=4, split="train", clock=clock)
    metrics.began()
    clock.now += 2
    metrics.waited(100, 102, [("fetch", 99, 101), ("decode", 101, 101.5), ("collate", 101.75, 103)])
    metrics.handed(Read(3, 20, (4, 8)))
    clock.now += 6  # the training step
    clock.now += 2
    metrics.waited(108, 110, [("collate", 100, 109.5)])
    metrics.handed(Read(4, 30, (4, 8)))
    metrics.add(bytes_fetched=1000, cache_misses=1)
    metrics.add(cache_hits=2)
    metrics.ended()
    clock.now += 50  # between epochs
    assert metrics.snapshot() == {
        "rank": 3,
        "world_size": 4,
        "split": "train",
        "batches": 2,
        "rows": 7,
        "tokens": 50,
        "slots": 64,
        "padding_share": 14 / 64,
        "bytes_fetched": 1000,
        "cache_hits": 2,
        "cache_misses": 1,
        "wall_seconds": 10.0,
        "wait_seconds": 4.0,
        "wait_seconds_by_cause": {"fetch": 1.0, "decode": 0.5, "collate": 1.75, "copy": 0.0, "other": 0.75},
        "wait_share": 0.4,
        "first_batch_seconds": 2.0,
        "wait_share_after_first": 2 / 8,
        "tokens_per_second": 5.0,
        "rows_per_second": 0.7,
    }
    assert json.loads(json.dumps(metrics.snapshot())) == metrics.snapshot()


def test_before_anything_was_read_all_is_zero():
    snapshot = Metrics().snapshot()
    assert snapshot["first_batch_seconds"] is None
    assert {value for value in snapshot.values() if isinstance(value, (int, float))} == {0, 1}  # a world of 1
    assert set(snapshot["wait_seconds_by_cause"].values()) == {0.0}


def test_a_second_epoch_goes_on_counting_without_the_time_between():
    clock = Clock()
    metrics = Metrics(clock=clock)
    for _ in range(2):
        metrics.began()
        clock.now += 1
        metrics.handed(Read(1, 5, (1, 8)))
        clock.now += 1
        metrics.ended()
        clock.now += 100
    snapshot = metrics.snapshot()
    assert (snapshot["batches"], snapshot["wall_seconds"], snapshot["first_batch_seconds"]) == (2, 4.0, 1.0)


def test_the_first_wait_starts_the_clock():
    clock = Clock(105.0)
    metrics = Metrics(clock=clock)
    metrics.waited(103, 105)
    assert metrics.snapshot()["wall_seconds"] == 2.0
    clock.now += 1
    assert metrics.snapshot()["wall_seconds"] == 3.0


TIMES = st.integers(0, 100).map(float)


@given(TIMES, TIMES, st.lists(st.tuples(st.sampled_from(CAUSES), TIMES, TIMES), max_size=6))
def test_the_causes_add_up_to_the_wait(start, stop, phases):
    start, stop = sorted((start, stop))
    clock = Clock(stop)
    metrics = Metrics(clock=clock)
    phases = [(cause, *sorted(times)) for cause, *times in phases]
    metrics.waited(start, stop, phases)
    got = metrics.snapshot()
    assert got["wait_seconds"] == pytest.approx(stop - start)
    assert min(got["wait_seconds_by_cause"].values()) >= 0
    for cause in CAUSES[:-1]:  # at most the time of that phase inside the wait
        inside = sum(max(0.0, min(end, stop) - max(begin, start)) for name, begin, end in phases if name == cause)
        assert got["wait_seconds_by_cause"][cause] <= inside


def test_sinks_get_a_snapshot_when_they_are_due_and_one_at_the_end():
    clock, slow, fast = Clock(), Kept(5), Kept(2)
    metrics = Metrics(sinks=[slow, fast], clock=clock)
    metrics.tick()  # nothing runs yet
    metrics.began()
    for _ in range(8):
        clock.now += 1
        metrics.handed(Read(1, 1, (1, 8)))
    metrics.ended()
    metrics.ended()  # a generator that is closed after its end
    assert slow.got == [(5.0, 5, False), (8.0, 8, True)]
    assert fast.got == [(2.0, 2, False), (4.0, 4, False), (6.0, 6, False), (8.0, 8, False), (8.0, 8, True)]


def test_a_long_wait_shows_by_ticks():
    clock, sink = Clock(), Kept(2)
    metrics = Metrics(sinks=[sink], clock=clock)
    metrics.began()
    for _ in range(6):
        clock.now += 1
        metrics.tick()
    assert sink.got == [(2.0, 0, False), (4.0, 0, False), (6.0, 0, False)]


def test_what_a_sink_raises_reaches_the_consumer_and_harms_no_count():
    class Failing:
        every_s = 1.0

        def write(self, snapshot, *, final):
            raise KeyError(snapshot["batches"], final)

    clock = Clock()
    metrics = Metrics(sinks=[Failing()], clock=clock)
    metrics.began()
    clock.now += 1
    with pytest.raises(KeyError):
        metrics.handed(Read(1, 1, (1, 8)))
    assert metrics.snapshot()["batches"] == 1


def test_threads_lose_no_count():
    metrics = Metrics()
    metrics.began()

    def work():
        for _ in range(2000):
            metrics.add(bytes_fetched=3, cache_hits=1)
            metrics.handed(Read(1, 2, (1, 8)))
            metrics.snapshot()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = metrics.snapshot()
    assert [got[name] for name in ("bytes_fetched", "cache_hits", "batches", "tokens")] == [24_000, 8000, 8000, 16_000]


def test_an_unknown_count_is_refused():
    with pytest.raises(ConfigError, match="no count is called cach_hits; there are batches, rows"):
        Metrics().add(cach_hits=1)


@pytest.mark.parametrize("every_s", [0, -1, float("nan")])
def test_an_interval_must_be_above_zero(every_s):
    with pytest.raises(ConfigError, match="above 0"):
        Metrics(sinks=[Kept(every_s)])


def test_pickled_it_starts_at_zero_with_the_same_names():
    metrics = Metrics(rank=2, world_size=3, split="test", sinks=[Kept(5)])
    metrics.add(cache_hits=4)
    again = pickle.loads(pickle.dumps(metrics)).snapshot()
    assert (again["rank"], again["world_size"], again["split"], again["cache_hits"]) == (2, 3, "test", 0)
