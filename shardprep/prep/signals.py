"""Ctrl-C and SIGTERM as exceptions in the main thread, raised where Python can bear one."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN_S = 0.05
TRIES = 100
QUIET_S = 30.0  # with `once`: whoever waits longer for the end may break it off
IMPORTS = "<frozen importlib._bootstrap>"


class Terminated(BaseException):
    """SIGTERM came: the job ends as with Ctrl-C, so that no worker and no temporary folder is left."""


@contextmanager
def heeding_signals(*, once: bool = False, last: bool = False) -> Iterator[None]:
    """Inside the block SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated, once; only in the main thread.

    once: after the first signal of either kind no other one raises for a while, so that the end that it begins is not
    broken off. last: nor does one after the block, since the process ends then.

    Not in the middle of an import: an exception there may leave the import lock held for ever, on which the thread that
    starts the workers then waits, or be swallowed by the module. Nor in a `__del__`, which swallows all exceptions. It is
    raised when that is over; and once more where Python swallowed it elsewhere: in a callback of a weak reference, or of the
    garbage collector (Dask has one).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler(once=once)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    alarm = signal.signal(signal.SIGALRM, handler.again)
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda lost: handler.heard(lost) or unraisable(lost)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        if not (last and handler.has_raised):
            for number, old in before.items():
                signal.signal(number, old)


class _Handler:
    def __init__(self, *, once: bool) -> None:
        self._once, self._quiet_until = once, 0.0
        self._number: int = signal.SIGINT
        self._tries = 0

    @property
    def has_raised(self) -> bool:
        return self._quiet_until > 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._once and time.monotonic() < self._quiet_until:
            return
        self._number, self._tries = number, 0
        self.again(number, frame)

    def again(self, _: Any, frame: FrameType | None) -> None:
        """Raise, or try a little later."""
        self._tries += 1
        if self._tries < TRIES and _is_deaf(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        self._quiet_until = time.monotonic() + QUIET_S
        if self._number == signal.SIGTERM:
            if not self._once:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise Terminated
        raise KeyboardInterrupt

    def heard(self, lost: Any) -> bool:
        """Return whether what Python could not raise is ours; then it is tried again."""
        is_ours = self.has_raised and isinstance(lost.exc_value, KeyboardInterrupt | Terminated)
        if is_ours:
            self._tries = 0
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return is_ours


def _is_deaf(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
