"""One group of rows decoded at a time in a process, and what that took given back to the system at once.

A decoder takes several times the bytes of a group. Arrow's allocator and malloc keep what was freed, for each thread that
decoded or fetched, so that a process which fills the cache would grow by some 10 MB a thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

TRIM_PAUSE = 30  # times the CPU time of the last trim, which looks through all free memory of the process


class Trim:
    """Gives malloc's free memory back to the system, but spends no more than a part of the time on it. Thread-safe.

    trim         does it, and takes long in a process with much memory; None where malloc cannot (musl, macOS)
    clock, cost  seconds that only grow; seconds of work of this thread
    """

    def __init__(
        self,
        trim: Callable[[int], object] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._trim, self._clock, self._cost = trim, clock, cost
        self._next = float("-inf")

    def __call__(self) -> None:
        """Trim, unless the last time was a moment ago."""
        if self._trim is not None and self._clock() >= self._next:
            started = self._cost()
            self._trim(0)
            self._next = self._clock() + TRIM_PAUSE * (self._cost() - started)


def _of_malloc() -> Callable[[int], object] | None:
    with suppress(OSError, AttributeError):  # glibc has it
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
        return trim
    return None


_decoding = threading.Lock()
_trim = Trim(_of_malloc())


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other thread of this process decodes; give memory back at the end."""
    with _decoding:
        try:
            yield
        finally:
            pa.default_memory_pool().release_unused()
            _trim()


def _begin_in_child() -> None:
    global _decoding  # noqa: PLW0603  the parent may hold it, in a thread that is not here
    _decoding = threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)
