"""How many requests may be under way at once: one limit for the whole process, moving with what the store bears.

It grows while growth pays: a window of requests is timed, the limit is doubled, and the next window is held against the
last. Where the rate rose by a tenth it doubles again, else it goes back and tries a quarter more later on. So it climbs
within half a second to what a store with 30 ms a request needs, and stays where a near store is busy already. After a
"slow down" it is halved, once for all the requests that were under way by then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

START, SMALLEST, LARGEST = 16, 4, 256  # DESIGN.md section 7
MAX_BYTES = 64 << 20
DOUBLING_PAYS = 1.25  # the rate must rise by this much for a doubled limit to stay (by 2 where nothing queues) ...
QUARTER_PAYS = 1.08  # ... and by this much for a quarter more (by 1.25)
QUEUEING = 1.5  # requests that take so much longer than they did at best wait for the store, or for our own CPU
AGING = 1.05  # what was best is forgotten by this much a window: a store may become slower for good
PATIENCE_MAX = 32  # windows between two tries that did not pay


class InFlight:
    """A limit on requests and bytes under way, shared by all threads of a process."""

    def __init__(
        self,
        *,
        start: int = START,
        smallest: int = SMALLEST,
        largest: int = LARGEST,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._smallest, self._largest, self._max_bytes, self._clock = smallest, largest, max_bytes, clock
        self._current = max(smallest, min(start, largest))
        self._changed = threading.Condition(threading.Lock())
        self._in_use = 0
        self._bytes = 0
        self._waiting = 0
        self._waiting_for_bytes = 0
        self._most = 0
        self._cut_at = -1.0
        self._doubling = True
        self._before: tuple[int, float] | None = None  # limit and rate before a growth on trial
        self._patience = 1
        self._windows_held = 0
        self._best_s = float("inf")
        self._begin_window(skip=0)

    @property
    def current(self) -> int:
        """Return how many requests may be under way now."""
        return self._current

    @property
    def most(self) -> int:
        """Return how many requests were under way at once, at most."""
        return self._most

    def acquire(self, size_bytes: int = 0) -> Permit:
        """Wait for a place, and return it: a context manager that gives it back. One that is too large goes alone."""
        with self._changed:
            if self._is_full(size_bytes) or self._waiting_for_bytes:
                self._wait(size_bytes)
            self._in_use += 1
            self._bytes += size_bytes
            self._most = max(self._most, self._in_use)
            if 4 * self._in_use >= 3 * self._current:
                self._pressed += 1
        return Permit(self, size_bytes, self._clock())

    def release(self, permit: Permit, *, succeeded: bool) -> None:
        """Give a place back; a request that succeeded counts towards the rate."""
        with self._changed:
            self._in_use -= 1
            self._bytes -= permit.size_bytes
            if succeeded:
                self._count_success()
            if self._waiting:
                self._changed.notify_all() if self._waiting_for_bytes else self._changed.notify()

    def slow_down(self, permit: Permit) -> None:
        """Halve the limit, unless it was halved after this request began: one burst of refusals is one signal."""
        with self._changed:
            if permit.began > self._cut_at:
                self._cut_at = self._clock()
                self._current = max(self._smallest, self._current // 2)
                self._doubling, self._before = False, None
                self._patience, self._windows_held = 1, 0
                self._begin_window(skip=self._current)

    def _is_full(self, size_bytes: int) -> bool:
        return self._in_use >= self._current or (self._in_use > 0 and self._bytes + size_bytes > self._max_bytes)

    def _wait(self, size_bytes: int) -> None:
        self._waiting += 1
        is_large = False
        try:
            while self._is_full(size_bytes) or (self._waiting_for_bytes and not is_large):
                if not is_large and self._in_use < self._current and not self._waiting_for_bytes:
                    is_large = True  # others must not pass for ever: they are let in after this one
                    self._waiting_for_bytes += 1
                self._changed.wait()
        finally:
            self._waiting -= 1
            if is_large:
                self._waiting_for_bytes -= 1
                self._changed.notify_all()

    def _begin_window(self, skip: int) -> None:
        self._skip = skip  # requests begun under the old limit say nothing about the new one
        self._done = self._pressed = 0
        self._window_began = self._clock()

    def _count_success(self) -> None:
        if self._skip:
            self._skip -= 1
            if not self._skip:
                self._begin_window(skip=0)
            return
        self._done += 1
        if self._done < 2 * self._current:
            return
        rate = self._done / max(self._clock() - self._window_began, 1e-9)
        was_used = 2 * self._pressed >= self._done
        mean_s = self._current / rate  # Little's law
        self._best_s = min(mean_s, self._best_s * AGING)
        before, self._before = self._before, None
        if before is not None and rate < before[1] * (DOUBLING_PAYS if self._doubling else QUARTER_PAYS):
            self._current, self._doubling = before[0], False
            self._patience = min(2 * self._patience, PATIENCE_MAX)
            self._windows_held = 0
            self._begin_window(skip=self._current)
            return
        if before is not None:
            self._patience = 1
        self._windows_held += 1
        is_queueing = mean_s > QUEUEING * self._best_s
        if (
            was_used
            and not is_queueing
            and self._current < self._largest
            and (self._doubling or self._windows_held >= self._patience)
        ):
            self._before = (self._current, rate)
            step = self._current if self._doubling else max(1, self._current // 4)
            self._current = min(self._largest, self._current + step)
            self._windows_held = 0
            self._changed.notify_all()
            self._begin_window(skip=self._current)
        else:
            self._begin_window(skip=0)


class Permit:
    """A place among the requests under way; leaving the `with` block gives it back."""

    __slots__ = ("_limit", "began", "failed", "size_bytes")

    def __init__(self, limit: InFlight, size_bytes: int, began: float) -> None:
        self._limit, self.size_bytes, self.began, self.failed = limit, size_bytes, began, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.release(self, succeeded=kind is None and not self.failed)


_of_process: dict[int, InFlight] = {}


def in_flight() -> InFlight:
    """Return the limit of this process; a forked child gets its own."""
    pid = os.getpid()
    if pid not in _of_process:
        _of_process.clear()
        _of_process[pid] = InFlight()
    return _of_process[pid]
