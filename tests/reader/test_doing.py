"""Waits for shards, split over what threads were at: fetching and decoding, on a clock of the test."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

import shardprep
from shardprep.reader import layout
from shardprep.reader.decoding import TRIM_PAUSE, Trim, one_at_a_time
from shardprep.reader.doing import DECODE, FETCH, Doing
from tests.reader.data import build, lengths_of


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self):
        return self.now


def noted(spans, clock):
    """Return what threads did: (cause, shard, start, stop), in order of their starts; they may overlap."""
    doing = Doing(clock)
    with ExitStack() as stack:
        changes = [(start, 1, n) for n, (_, _, start, _) in enumerate(spans)]
        changes += [(stop, 0, n) for n, (_, _, _, stop) in enumerate(spans) if stop is not None]
        under_way = {}
        for clock.now, begins, n in sorted(changes):
            if begins:
                under_way[n] = ExitStack()
                under_way[n].enter_context(doing.at(*spans[n][:2]))
            else:
                under_way.pop(n).close()
        stack.callback(lambda: [one.close() for one in under_way.values()])
        clock.now = 120.0
        yield doing


@pytest.mark.parametrize(
    ("spans", "phases"),
    [
        ([], [(FETCH, 100, 110)]),
        ([(FETCH, "a", 90, 104), (DECODE, "a", 104, 107)], [(FETCH, 100, 104), (DECODE, 104, 107), (FETCH, 107, 110)]),
        # Another shard is decoded, but it is not what is waited for: only before this one has its turn.
        ([(DECODE, "b", 98, 106), (FETCH, "a", 103, 110)], [(DECODE, 100, 103), (FETCH, 103, 110)]),
        # Two threads for two awaited shards: half of the time each.
        ([(DECODE, "a", 100, 104), (FETCH, "c", 100, 104)], [(FETCH, 100, 102), (DECODE, 102, 104), (FETCH, 104, 110)]),
        # Still under way.
        ([(FETCH, "a", 90, 101), (DECODE, "a", 101, None)], [(FETCH, 100, 101), (DECODE, 101, 110)]),
        ([(DECODE, "a", 90, 99), (DECODE, "a", 111, 112)], [(FETCH, 100, 110)]),
    ],
)
def test_a_wait_is_split_over_what_threads_did(spans, phases):
    for doing in noted(spans, Clock()):
        found = doing.phases(100.0, 110.0, {"a", "c"})
        assert found == phases
        assert sum(stop - start for _, start, stop in found) == pytest.approx(10)


def test_a_short_wait_is_not_looked_at():
    for doing in noted([(DECODE, "a", 90, 120)], Clock()):
        assert doing.phases(100.0, 100.0005, {"a"}) == [(FETCH, 100.0, 100.0005)]


def test_slow_decoding_shows_as_such_and_parts_add_up(tmp_path, monkeypatch):
    """In threads, first batches and the cache alike; a warm cache has nothing to decode."""
    real = layout.ParquetLayout.decode

    def slow(self, group, data):
        time.sleep(0.05)
        return real(self, group, data)

    monkeypatch.setattr(layout.ParquetLayout, "decode", slow)
    root = build(tmp_path / "set", lengths_of(400), shards=4)
    told = {}
    for state in ("cold", "warm"):
        loader = shardprep.open(str(root), cache_dir=tmp_path / "cache").loader(batch_size=8)
        assert sum(batch.real for batch in loader) == 400
        told[state] = loader.metrics()
        causes = told[state]["wait_seconds_by_cause"]
        assert sum(causes.values()) == pytest.approx(told[state]["wait_seconds"])
    cold = told["cold"]["wait_seconds_by_cause"]
    assert cold["decode"] >= 0.1
    assert told["warm"]["wait_seconds_by_cause"]["decode"] == 0
    assert cold["copy"] == 0


def test_memory_is_given_back_but_not_all_the_time():
    clock, cost, trims = Clock(), Clock(0.0), []

    def trim(pad):
        trims.append(pad)
        cost.now += 0.25

    often = Trim(trim, clock=clock, cost=cost)
    for _ in range(40):
        often()
        clock.now += TRIM_PAUSE * 0.25 / 10
    assert trims == [0] * 4
    Trim(None)()  # where malloc cannot


def test_decoding_that_fails_lets_the_next_one_in():
    with pytest.raises(ValueError, match="damaged"), one_at_a_time():
        raise ValueError("damaged")
    with one_at_a_time():
        pass
