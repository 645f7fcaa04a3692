"""Fetching ahead: order, bounds, early ends, errors, forks, and the rate through a slow line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.errors import Denied, NotFound, StoreError, Unavailable
from shardprep.storage.fetch import OBJECT_BYTES, Item, fetch
from shardprep.storage.inflight import InFlight
from shardprep.storage.local import LocalStore
from shardprep.storage.store import Listing


class SlowStore:
    """A store in memory that takes its time, and counts what is under way. It fails where it is told to."""

    uri = "slow://"
    requests_in_flight = 64

    def __init__(self, latency_s: float = 0.0, errors: dict[str, Exception] | None = None) -> None:
        self.latency_s = latency_s
        self.errors = errors or {}
        self.lock = threading.Lock()
        self.now = self.most = self.asked = 0
        self.list_error: StoreError | None = None

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        with self.lock:
            self.asked += 1
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            time.sleep(self.latency_s)
            if key in self.errors:
                raise self.errors[key]
            return key.encode() * ((size_bytes or 0) // max(len(key), 1))
        finally:
            with self.lock:
                self.now -= 1

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        return b"%d-%d" % (start, stop)

    def list(self, prefix: str = "", **_: object) -> Iterator[Listing]:
        if self.list_error is not None:
            raise self.list_error
        return iter(())


def wanted(count: int, size_bytes: int = 10) -> list[Item]:
    return [Item(f"{number:05}", size_bytes) for number in range(count)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 3000), max_size=60), st.integers(1, 5000), st.integers(1, 8), st.sets(st.integers(0, 59))
)
def test_every_item_once_and_in_order(sizes: list[int], ahead_bytes: int, places: int, failing: set[int]):
    items = [Item(f"{number:05}", size) for number, size in enumerate(sizes)]
    store = SlowStore(errors={f"{number:05}": NotFound(f"no {number}") for number in failing})
    limit = InFlight(start=places, smallest=1, largest=places)
    got = list(fetch(store, iter(items), ahead_bytes=ahead_bytes, limit=limit))  # type: ignore[arg-type]
    assert [item for item, _ in got] == items
    for number, (item, value) in enumerate(got):
        assert isinstance(value, NotFound) if number in failing else value == item.key.encode() * (item.size_bytes // 5)
    assert store.most <= places
    assert store.now == 0


def test_it_stays_ahead_of_the_consumer_by_so_many_bytes_and_no_more():
    store = SlowStore()
    results = fetch(store, wanted(1000, 10_000), ahead_bytes=100_000, limit=InFlight())  # type: ignore[arg-type]
    next(results)
    most = 100_000 // (10_000 + OBJECT_BYTES) + 2
    deadline = time.monotonic() + 200
    while store.asked < most - 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert most - 2 <= store.asked <= most
    assert sum(1 for _ in results) == 999


def test_requests_overlap_with_the_consumer():
    """The first 16 requests are answered once all of them are under way: before that the consumer has nothing."""
    store, together, answer = SlowStore(), threading.Barrier(16, timeout=200), SlowStore.get

    def get(key: str, **named: object) -> bytes:
        if int(key) < 16:
            together.wait()
        return answer(store, key, **named)  # type: ignore[arg-type]

    store.get = get  # type: ignore[method-assign,assignment]
    got = list(fetch(store, wanted(64), limit=InFlight(start=16, largest=16)))  # type: ignore[arg-type]
    assert [len(value) for _, value in got] == [10] * 64  # type: ignore[arg-type]


def test_one_object_larger_than_all_that_may_be_ahead():
    items = [Item("a", 10), Item("b", 10_000_000), Item("c", 10)]
    got = list(fetch(SlowStore(), items, ahead_bytes=100, limit=InFlight()))  # type: ignore[arg-type]
    assert [len(value) for _, value in got] == [10, 10_000_000, 10]  # type: ignore[arg-type]


def test_parts_of_objects():
    items = [Item("a", 100, "", (10, 20)), Item("a", 100, "", (20, 100))]
    assert [v for _, v in fetch(SlowStore(), items, limit=InFlight())] == [b"10-20", b"20-100"]  # type: ignore[arg-type]


def test_a_consumer_who_stops_early_leaves_nothing_at_work():
    store = SlowStore(latency_s=0.01)
    endless = (Item(f"{number:05}", 10) for number in itertools.count())
    results = fetch(store, endless, limit=InFlight())  # type: ignore[arg-type]
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert store.now == 0
    asked = store.asked
    time.sleep(0.1)
    assert store.asked == asked


def test_an_error_of_the_callers_iterator_and_a_bug_reach_the_caller():
    def items() -> Iterator[Item]:
        yield from wanted(5)
        raise ZeroDivisionError("in the iterator")

    results = fetch(SlowStore(), items(), limit=InFlight())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError, match="in the iterator"):
        list(results)
    broken = SlowStore(errors={"00003": RuntimeError("a bug")})
    with pytest.raises(RuntimeError, match="a bug"):
        list(fetch(broken, wanted(50), limit=InFlight()))  # type: ignore[arg-type]
    assert broken.now == 0


def test_an_outage_stops_and_an_unreadable_key_does_not():
    down = {item.key: Unavailable(f"cannot read {item.key}") for item in wanted(100)}
    store = SlowStore(errors=dict(down))  # type: ignore[arg-type]
    assert len(list(fetch(store, wanted(100), limit=InFlight()))) == 100  # type: ignore[arg-type]
    store.list_error = Unavailable("cannot list")
    with pytest.raises(Unavailable, match=r"slow:// is out of reach.*cannot list"):
        list(fetch(store, wanted(100), limit=InFlight()))  # type: ignore[arg-type]
    store.list_error = Denied("listing is not allowed")  # then it answers, at least
    assert len(list(fetch(store, wanted(100), limit=InFlight()))) == 100  # type: ignore[arg-type]


def test_credentials_that_open_nothing_stop_and_one_locked_object_does_not():
    locked = SlowStore(errors={item.key: Denied(f"cannot read {item.key}") for item in wanted(3)})
    with pytest.raises(Denied, match="cannot read 00002"):
        list(fetch(locked, wanted(3), limit=InFlight()))  # type: ignore[arg-type]
    got = list(fetch(locked, wanted(4), limit=InFlight()))  # type: ignore[arg-type]
    assert [type(value) for _, value in got] == [Denied, Denied, Denied, bytes]


def test_a_folder_is_read_without_threads(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    for item in wanted(20):
        store.put(item.key, b"x" * 10)
    before = threading.active_count()
    assert [value for _, value in fetch(store, wanted(20))] == [b"x" * 10] * 20
    assert threading.active_count() == before


FORKED = """
import os, sys, time
from test_fetch import SlowStore, wanted
from shardprep.storage.fetch import fetch
assert len(list(fetch(SlowStore(), wanted(100)))) == 100
pid = os.fork()
if pid == 0:
    os._exit(0 if len(list(fetch(SlowStore(), wanted(100)))) == 100 else 1)
deadline = time.monotonic() + 200
while time.monotonic() < deadline:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.01)
os.kill(pid, 9)
sys.exit("the forked child hangs")
"""


def test_the_threads_are_made_anew_after_a_fork():
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


STILL_OPEN = """
from test_fetch import SlowStore, wanted
from shardprep.storage.fetch import fetch
results = fetch(SlowStore(), wanted(100_000))
next(results)
raise SystemExit(7)  # with the fetch still open
"""


def test_a_program_that_ends_in_the_middle_ends():
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    done = subprocess.run(
        [sys.executable, "-c", STILL_OPEN], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
