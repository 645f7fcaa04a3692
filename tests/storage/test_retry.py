"""The retry loop with a clock of its own: waits, bounds, and what is tried again."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import Changed, StoreError, Unavailable
from shardprep.storage.counters import Counters
from shardprep.storage.explain import explained
from shardprep.storage.faults import Fault
from shardprep.storage.inflight import InFlight
from shardprep.storage.retry import POLICY, RetryPolicy, retry, stop_retrying_when

SLOW_DOWN = OSError("status code: 503 <Code>SlowDown</Code>")
EXPIRED = OSError("status code: 403 <Code>ExpiredToken</Code>")


class Clock:
    """Time that passes only in waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def explain(error: Exception, fault: Fault, attempts: int) -> StoreError:
    return explained(error, fault, uri="s3://b/k", doing="read", attempts=attempts)


def run(errors: list[Exception], clock: Clock, policy: RetryPolicy = POLICY, seed: int = 0, **more: object) -> str:
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return retry(
        call, policy, explain=explain, limit=more.pop("limit", None) or InFlight(), sleep=clock.sleep,
        clock=lambda: clock.now, rng=random.Random(seed).random, **more,
    )  # type: ignore[arg-type]  # fmt: skip


@given(st.integers(0, 2**32), st.integers(1, 7))
def test_waits_grow_and_have_jitter(seed: int, failures: int):
    clock = Clock()
    assert run([SLOW_DOWN] * failures, clock, seed=seed) == "done"
    assert len(clock.waits) == failures
    for number, wait in enumerate(clock.waits):
        assert 0.05 * 2**number <= wait <= 0.1 * 2**number
    assert clock.waits == sorted(clock.waits)


def test_two_callers_do_not_wait_in_step():
    first, second = Clock(), Clock()
    run([SLOW_DOWN] * 5, first, seed=1)
    run([SLOW_DOWN] * 5, second, seed=2)
    assert all(a != b for a, b in zip(first.waits, second.waits, strict=True))


def test_it_gives_up_after_eight_attempts_and_says_so():
    clock = Clock()
    counters = Counters()
    with pytest.raises(Unavailable, match="after 8 tries: the store keeps asking to slow down") as caught:
        run([SLOW_DOWN] * 100, clock, counters=counters)
    assert caught.value.fields["attempts"] == 8
    assert counters.snapshot() == {"throttles": 8, "retries": 7}
    assert clock.now < 13


def test_it_gives_up_at_the_deadline():
    clock = Clock()
    with pytest.raises(Unavailable):
        run([SLOW_DOWN] * 10_000, clock, RetryPolicy(attempts=10_000, deadline_s=60))
    assert 50 < clock.now <= 60
    assert max(clock.waits) <= 8


def test_what_does_not_pass_is_raised_at_once():
    clock = Clock()
    with pytest.raises(Changed):
        run([OSError("status code: 412 <Code>PreconditionFailed</Code>")], clock)
    assert clock.waits == []


def test_our_own_errors_are_raised_as_they_are():
    mine = Changed("mine")
    with pytest.raises(Changed) as caught:
        run([mine], Clock())
    assert caught.value is mine


def test_expired_credentials_are_renewed_once():
    clock = Clock()
    renewed: list[int] = []
    assert run([EXPIRED], clock, renew_credentials=lambda: renewed.append(1)) == "done"
    with pytest.raises(StoreError, match="expired"):
        run([EXPIRED, EXPIRED], clock, renew_credentials=lambda: renewed.append(2))
    assert renewed == [1, 2]
    assert clock.waits == []


def test_no_place_is_held_while_waiting():
    limit = InFlight(start=4)
    held: list[int] = []
    clock = Clock()
    clock.sleep = lambda seconds: held.append(limit._in_use)  # type: ignore[method-assign]
    run([SLOW_DOWN] * 3, clock, limit=limit)
    assert held == [0, 0, 0]
    assert limit._in_use == 0


def test_a_wait_ends_when_the_consumer_has_gone():
    stopped = threading.Event()
    threading.Timer(0.05, stopped.set).start()
    began = time.monotonic()

    def call() -> None:
        raise SLOW_DOWN

    with stop_retrying_when(stopped), pytest.raises(Unavailable):
        retry(call, RetryPolicy(base_s=60, cap_s=60), explain=explain, limit=InFlight())
    assert time.monotonic() - began < 40
