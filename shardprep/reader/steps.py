"""Steps of training, one by one, as the loader sees them: how long each took, and how much of it was waiting for data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

CAUSES = ("fetch", "decode", "collate", "copy", "other")  # of waits: what was done for the awaited batches
MOST_KEPT = 100_000  # steps that nobody has taken yet; the oldest go first
COLUMNS = (
    "epoch",
    "step",
    "end",  # Unix seconds
    "seconds",
    "wait_seconds",
    *(f"wait_{cause}_seconds" for cause in CAUSES),
    "between_seconds",  # between two micro-batches of the step: computing, with nothing of the step's end in it
    "micro_batches",
    "slots",  # tokens with padding and filler rows, of this rank, as the rows and tokens here
    "square_slots",  # sum of rows x padded length squared: what attention costs
    "rows",
    "tokens",
    "step_rows",  # real ones of the whole step, over all ranks
    "step_tokens",
)
Record = tuple[float, ...]


class Played(Protocol):
    """What a batch tells about its step; `Batch` of formats/batch.py is one."""

    epoch: int
    step: int
    last_in_step: bool
    real: int
    tokens: int
    step_rows: int
    step_tokens: int
    input_ids: Any


class StepLog:
    """Steps since they were last taken. A step begins when its first batch is asked for, and ends when the next one's is.

    So a step holds the wait for its own batches, the training code between them, and whatever the loop does after its
    last batch: optimizer step, checkpoint, evaluation. A step that is broken off, by an error or by the end of the
    process, is not there. Only the consumer's thread plays; `take` may be called from another one.

    clock, unix_clock  seconds that only grow; seconds since 1970
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, unix_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._unix_clock = clock, unix_clock
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self.steps_per_epoch: int | None = None
        self.count = 0
        self._sums: list[int] = []
        self._waited: dict[str, float] = {}
        self._copied = 0.0  # since the last batch was handed over
        self._restart(0.0)

    def began(self, steps_per_epoch: int | None) -> None:
        """Begin an epoch: its first batch is asked for now."""
        self.steps_per_epoch = steps_per_epoch
        self._restart(self._clock())

    def waited(self, seconds: Mapping[str, float]) -> None:
        """Add a wait of the consumer, by cause, to the step that is being played."""
        for cause, more in seconds.items():
            self._waited[cause] += more

    def copied(self, seconds: float) -> None:
        """Add a wait for a batch's copy to its device, which came after it was handed over: it is no computing."""
        self._waited["copy"] += seconds
        self._copied += seconds

    def handed(self, batch: Played) -> None:
        """Note a batch that the consumer gets now."""
        rows, padded = batch.input_ids.shape
        self._sums = [
            old + more
            for old, more in zip(
                self._sums, (1, rows * padded, rows * padded * padded, batch.real, batch.tokens), strict=True
            )
        ]
        self._last = batch.last_in_step
        self._about = (batch.epoch, batch.step, batch.step_rows, batch.step_tokens)
        self._handed_at = self._clock()

    def asked(self) -> None:
        """Note that the consumer asks for the next batch, or for the end of the epoch."""
        now = self._clock()
        if not self._last:
            self._between += max(0.0, now - self._handed_at - self._copied)
            self._copied = 0.0
            return
        epoch, step, step_rows, step_tokens = self._about
        record = (
            epoch, step, round(self._unix_clock(), 3), now - self._start, sum(self._waited.values()), *self._waited.values(),
            self._between, *self._sums, step_rows, step_tokens,
        )  # fmt: skip
        with self._lock:
            self._records.append(record)
            del self._records[:-MOST_KEPT]
            self.count += 1
        self._restart(now)

    def take(self) -> dict[str, list[float]]:
        """Return the steps since the last call, as columns by the names of COLUMNS; {} if there are none."""
        with self._lock:
            records, self._records = self._records, []
        return {
            name: [round(number, 6) for number in column]
            for name, column in zip(COLUMNS, zip(*records, strict=True), strict=False)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return StepLog, ()  # as with Metrics: it starts at zero in the other process

    def _restart(self, now: float) -> None:
        self._start, self._between, self._copied = now, 0.0, 0.0
        self._waited = dict.fromkeys(CAUSES, 0.0)
        self._sums = [0, 0, 0, 0, 0]
        self._last, self._handed_at = False, now
        self._about = (0, 0, 0, 0)
