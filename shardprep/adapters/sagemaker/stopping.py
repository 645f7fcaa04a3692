"""The end of a training job: SIGTERM and the 120 seconds after it, and saving by the clock because it may never come.

StopTrainingJob and the time limit send SIGTERM, and SIGKILL 120 s later (API reference, StopTrainingJob). Nothing
promises the signal when a spot instance is taken away, so a loop saves every few minutes in any case.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Self

from shardprep.errors import ConfigError

GRACE_S = 120.0
GRACE_UNDER_TORCHRUN_S = 30.0  # its agent kills what has not ended by then (torch.distributed.elastic, multiprocessing)
SAVE_EVERY_S = 300.0
Agree = Callable[[bool, bool], Sequence[bool]]


class SaveEvery:
    """Tells when it is time to save again.

    seconds  between two saves: what a lost machine may cost
    """

    def __init__(self, seconds: float = SAVE_EVERY_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not seconds > 0:
            raise ConfigError(f"save every so many seconds, above 0; got {seconds}")
        self.seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Tell whether so many seconds have passed since it was time last; True starts them anew."""
        now = self._clock()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def restart(self) -> None:
        """Start the seconds anew: something was saved for another reason."""
        self._last = self._clock()


class GracefulStop:
    """Turns SIGTERM and SIGINT into a wish that a training loop looks at between two steps. A context manager.

        with GracefulStop(save, save_every_s=300) as stop:
            for batch in loader:
                ...
                if batch.last_in_step and stop.after_step():
                    break

    save          called by `after_step` when a stop was asked for, and by the clock
    save_every_s  seconds between saves by the clock; None: only at a stop
    grace_s       from the signal to the kill: 120, but 30 under torchrun, whose agent waits no longer for its workers
    agree         called with (stop, due) by every rank after every step, returns the same for all: `any_rank`. Needed
                  where ranks must leave the loop at the same step, since the signal reaches them at different ones
    signals       those that ask for a stop

    A second SIGINT (Ctrl-C again) raises KeyboardInterrupt at once. The handlers from before are back after the block.
    Raises ConfigError outside the main thread, where Python can handle no signals.
    """

    def __init__(
        self,
        save: Callable[[], object] | None = None,
        *,
        save_every_s: float | None = None,
        grace_s: float | None = None,
        agree: Agree | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if save_every_s is not None and save is None:
            raise ConfigError("save_every_s needs save=, the function that saves")
        if grace_s is None:
            grace_s = GRACE_UNDER_TORCHRUN_S if "TORCHELASTIC_RUN_ID" in os.environ else GRACE_S
        if not grace_s > 0:
            raise ConfigError(f"grace_s must be above 0 seconds, got {grace_s}")
        self.grace_s = grace_s
        self.signal: signal.Signals | None = None
        self._save, self._agree, self._signals, self._clock = save, agree, tuple(signals), clock
        self._timer = None if save_every_s is None else SaveEvery(save_every_s, clock=clock)
        self._asked_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Begin to listen."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("signals reach the main thread only: use GracefulStop there")
        self._pid = os.getpid()
        for number in self._signals:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    @property
    def requested(self) -> bool:
        """Tell whether this process was asked to stop."""
        return self._asked_at is not None

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the process is killed, at least 0; infinity before a stop was asked for."""
        if self._asked_at is None:
            return math.inf
        return max(0.0, self._asked_at + self.grace_s - self._clock())

    def request(self) -> None:
        """Ask for a stop, as a signal does: a budget is spent, say."""
        if self._asked_at is None:
            self._asked_at = self._clock()

    def after_step(self) -> bool:
        """Save if it is time to, or if a stop was asked for; return whether the loop is to be left now."""
        stop, due = self.requested, self._timer is not None and self._timer.due()
        if self._agree is not None:
            stop, due = self._agree(stop, due)
            if due and self._timer is not None:
                self._timer.restart()
        if (stop or due) and self._save is not None:
            self._save()
        return stop

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  a signal handler's
        if os.getpid() != self._pid:  # a forked child has the handler, but no loop that looks: terminate() must end it
            signal.signal(number, self._before.get(signal.Signals(number)) or signal.SIG_DFL)
            signal.raise_signal(number)
            return
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self.request()


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return each flag as true where it is true on any rank. All ranks call it at the same place.

    One small all-reduce of torch.distributed; without a process group, or without torch, the flags as they are.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return flags
    import torch

    device = torch.device("cuda", torch.cuda.current_device()) if distributed.get_backend() == "nccl" else None
    numbers = torch.tensor(flags, dtype=torch.int32, device=device)
    distributed.all_reduce(numbers, op=distributed.ReduceOp.MAX)
    return tuple(bool(number) for number in numbers.tolist())
