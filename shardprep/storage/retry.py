"""The only retry loop. Clients' own retries are off, so that attempts do not multiply and waits are known.

What is retried: throttling and passing faults, until 8 attempts were made or 120 s have gone. Each wait is drawn from the upper
half of a doubling span (0.05-0.1 s, 0.1-0.2 s, ... at most 4-8 s), so waits grow and never march in step. Expired
credentials are looked up anew, once, at once. All else is raised as it is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from shardprep.errors import ShardprepError, StoreError
from shardprep.storage.counters import Counters
from shardprep.storage.faults import Fault, classify
from shardprep.storage.inflight import InFlight, in_flight

__all__ = ["Counters", "Fault", "InFlight", "RetryPolicy", "classify", "in_flight", "retry", "stop_retrying_when"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long: attempts in all, first and longest wait, and the end of all waiting, in seconds."""

    attempts: int = 8
    base_s: float = 0.1
    cap_s: float = 8.0
    deadline_s: float = 120.0

    def wait_s(self, attempt: int, rng: Callable[[], float]) -> float:
        """Return the wait in seconds after this attempt (the first is 1); rng gives numbers in [0, 1)."""
        span = min(self.cap_s, self.base_s * 2 ** (attempt - 1))
        return float(span * (0.5 + 0.5 * rng()))


POLICY = RetryPolicy()


def retry(
    call: Callable[[], T],
    policy: RetryPolicy = POLICY,
    *,
    explain: Callable[[Exception, Fault, int], StoreError],
    limit: InFlight,
    size_bytes: int = 0,
    counters: Counters | None = None,
    renew_credentials: Callable[[], None] | None = None,
    sleep: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    rng: Callable[[], float] = random.random,
) -> T:
    """Return what `call` returns; each attempt holds a place in `limit`, a wait between attempts holds none.

    Raises explain(error, fault, attempts made) when it gives up. `sleep` is by default a wait that ends early when the
    consumer has gone (`stop_retrying_when`); then the last error is raised.
    """
    give_up_at = clock() + policy.deadline_s
    attempt = 0
    while True:
        attempt += 1
        with limit.acquire(size_bytes) as permit:
            try:
                return call()
            except ShardprepError:
                raise
            except Exception as caught:  # noqa: BLE001  clients have no common error; `classify` knows them
                error = caught
                fault = classify(error)
                permit.failed = True
                if fault is Fault.THROTTLED:
                    limit.slow_down(permit)
                    if counters is not None:
                        counters.add("throttles")
        if fault is Fault.EXPIRED and renew_credentials is not None:
            renew_credentials()
            renew_credentials = None
            continue
        wait_s = policy.wait_s(attempt, rng)
        if not fault.passes or attempt >= policy.attempts or clock() + wait_s > give_up_at:
            raise explain(error, fault, attempt) from error
        if counters is not None:
            counters.add("retries")
        if sleep is not None:
            sleep(wait_s)
        elif not _sleep(wait_s):
            raise explain(error, fault, attempt) from error


_of_thread = threading.local()


@contextmanager
def stop_retrying_when(stopped: threading.Event) -> Iterator[None]:
    """In this thread, while the block runs, end waits between attempts when the event is set."""
    _of_thread.stopped = stopped
    try:
        yield
    finally:
        del _of_thread.stopped


def _sleep(wait_s: float) -> bool:
    stopped: threading.Event | None = getattr(_of_thread, "stopped", None)
    if stopped is None:
        time.sleep(wait_s)
        return True
    return not stopped.wait(wait_s)
