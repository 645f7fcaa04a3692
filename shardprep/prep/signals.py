"""Ctrl-C and SIGTERM as exceptions in the main thread, raised where Python can bear one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN_S = 0.05
TRIES = 100
IMPORTS = "<frozen importlib._bootstrap>"


class Terminated(BaseException):
    """SIGTERM came: the job ends as with Ctrl-C, so that no worker and no temporary folder is left."""


@contextmanager
def heeding_signals(*, once: bool = False) -> Iterator[None]:
    """Inside the block SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated, once; only in the main thread.

    once: after the first signal of either kind no other one raises, so that the end that it begins is not broken off.

    Not in the middle of an import: an exception there may leave the import lock held for ever, on which the thread that
    starts the workers then waits, or be swallowed by the module. Nor in a `__del__`, which swallows all exceptions. It is
    raised when that is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler(once=once)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    alarm = signal.signal(signal.SIGALRM, handler.again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, old in {**before, signal.SIGALRM: alarm}.items():
            signal.signal(number, old)


class _Handler:
    def __init__(self, *, once: bool) -> None:
        self._once, self._raised = once, False
        self._number: int = signal.SIGINT
        self._tries = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._once and self._raised:
            return
        self._number, self._tries = number, 0
        self.again(number, frame)

    def again(self, _: Any, frame: FrameType | None) -> None:
        """Raise, or try a little later."""
        self._tries += 1
        if self._tries < TRIES and _is_deaf(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        self._raised = True
        if self._number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise Terminated
        raise KeyboardInterrupt


def _is_deaf(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
