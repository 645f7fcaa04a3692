"""Metrics: what one rank's loader read, and where its consumer's time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from shardprep.errors import ConfigError
from shardprep.reader.steps import CAUSES, Played, StepLog

COUNTS = ("batches", "rows", "tokens", "slots", "bytes_fetched", "cache_hits", "cache_misses")
Phase = tuple[str, float, float]  # cause, start and stop on the monotonic clock


class Sink(Protocol):
    """Where snapshots go while the loader runs."""

    every_s: float

    def write(self, snapshot: dict[str, Any], *, final: bool) -> None:
        """Take a snapshot; final: the last one of an epoch, or of a broken one."""


class Handed(Protocol):
    """What a batch tells about itself; `Batch` of formats/batch.py is one."""

    @property
    def real(self) -> int:
        """Return the real rows."""

    @property
    def tokens(self) -> int:
        """Return the tokens of the real rows."""

    @property
    def input_ids(self) -> Any:
        """Return the padded ids; their shape counts."""


class Metrics:
    """Counters of one loader, added to by many threads. Pickled, it starts at zero in the other process.

    The wall clock runs from `began` (or the first wait) to `ended`, with the consumer's own work; time between epochs
    does not count. A wait is split over what the threads did meanwhile for the awaited batches: "fetch" (bytes of shards,
    or another process that brings them), "decode" (from those bytes to rows in the cache), "collate", "copy" (to a
    device); "other" is the rest, such as waiting for a thread. The parts add up to the time waited.

    sinks  each gets a snapshot every `every_s` seconds, from the consumer's thread, and one at `ended`; their errors
           reach the consumer
    steps  gets the steps one by one, or None
    clock  seconds that only grow, as in the phases
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        split: str = "",
        sinks: Sequence[Sink] = (),
        steps: StepLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for sink in sinks:
            if not sink.every_s > 0:
                raise ConfigError(f"metrics are written every so many seconds, above 0, got {sink.every_s}")
        self._labels = {"rank": rank, "world_size": world_size, "split": split}
        self._sinks = tuple(sinks)
        self.steps = steps
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTS, 0)
        self._waited = dict.fromkeys(CAUSES, 0.0)
        self._wall = 0.0
        self._mark: float | None = None  # up to where the wall clock has been counted; None: it stands
        self._first: float | None = None  # wall seconds up to the first batch
        self._first_waited = 0.0
        self._due = [float("-inf")] * len(self._sinks)

    def began(self, steps_per_epoch: int | None = None) -> None:
        """Start the wall clock: an epoch begins."""
        if self.steps is not None:
            self.steps.began(steps_per_epoch)
        with self._lock:
            if self._mark is None:
                self._mark = self._clock()
                self._due = [self._mark + sink.every_s for sink in self._sinks]

    def ended(self) -> None:
        """Stop the wall clock and write a last snapshot to every sink: the epoch ended, or was broken off."""
        with self._lock:
            running = self._mark is not None
            if running:
                self._run_to(self._clock())
                self._mark = None
        if running:
            snapshot = self.snapshot()
            for sink in self._sinks:
                sink.write(snapshot, final=True)

    def waited(self, start: float, stop: float, phases: Iterable[Phase] = ()) -> None:
        """Add a wait of the consumer, from start to stop; phases: what was done for the awaited batches, in order of time.

        Parts of phases outside the wait cost the consumer nothing and do not count.
        """
        split, rest = dict.fromkeys(CAUSES, 0.0), start
        for cause, begin, end in phases:
            begin, end = max(begin, rest), min(end, stop)  # noqa: PLW2901
            if end > begin:
                split[cause] += end - begin
                split["other"] += begin - rest
                rest = end
        split["other"] += max(0.0, stop - rest)
        if self.steps is not None:
            self.steps.waited(split)
        with self._lock:
            if self._mark is None:
                self._mark = start
                self._due = [start + sink.every_s for sink in self._sinks]
            for cause, seconds in split.items():
                self._waited[cause] += seconds
            self._run_to(stop)

    def copied(self, seconds: float) -> None:
        """Add a wait for a batch's copy to its device: after it was handed over, before the consumer works on it."""
        if self.steps is not None:
            self.steps.copied(seconds)
        with self._lock:
            self._waited["copy"] += seconds
            if self._mark is not None:
                self._run_to(self._clock())

    def handed(self, batch: Handed) -> None:
        """Count a batch that the consumer gets now; write to the sinks that are due."""
        rows, padded = batch.input_ids.shape
        counts = self._counts
        with self._lock:
            counts["batches"] += 1
            counts["rows"] += batch.real
            counts["tokens"] += batch.tokens
            counts["slots"] += rows * padded
            if self._first is None:
                if self._mark is not None:
                    self._run_to(self._clock())
                self._first, self._first_waited = self._wall, sum(self._waited.values())
        if self._sinks:
            self.tick()

    def playing(self, batch: Played) -> None:
        """Note a batch of a step, right before the consumer gets it."""
        if self.steps is not None:
            self.steps.handed(batch)

    def asked(self) -> None:
        """Note that the consumer is back from its work on a batch."""
        if self.steps is not None:
            self.steps.asked()

    def add(self, **counts: int) -> None:
        """Add to counts by name: bytes_fetched, cache_hits, cache_misses and so on. Raises ConfigError for others."""
        with self._lock:
            for name, number in counts.items():
                if name not in self._counts:
                    raise ConfigError(f"no count is called {name}; there are {', '.join(COUNTS)}")
                self._counts[name] += number

    def tick(self) -> None:
        """Write a snapshot to the sinks that are due. Also for long waits, so that a stalled loader shows."""
        now = self._clock()
        due = []
        with self._lock:
            if self._mark is None:
                return
            for place, sink in enumerate(self._sinks):
                if now >= self._due[place]:
                    self._due[place] = now + sink.every_s
                    due.append(sink)
        if due:
            snapshot = self.snapshot()
            for sink in due:
                sink.write(snapshot, final=False)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts by now, as JSON values.

        rank, world_size, split
        batches, rows, tokens   handed over; real rows and tokens, fillers not counted
        slots, padding_share    tokens with padding and fillers; the share of slots that hold no token of a real row
        wall_seconds, wait_seconds, wait_seconds_by_cause, wait_share   share: of wall time
        first_batch_seconds     wall time to the very first batch, or None
        wait_share_after_first  the wait share without that time
        tokens_per_second, rows_per_second   over wall time
        bytes_fetched, cache_hits, cache_misses
        """
        with self._lock:
            if self._mark is not None:
                self._run_to(self._clock())
            counts, causes, wall = dict(self._counts), dict(self._waited), self._wall
            first, first_waited = self._first, self._first_waited
        waited = sum(causes.values())
        return {
            **self._labels,
            **counts,
            "padding_share": _share(counts["slots"] - counts["tokens"], counts["slots"]),
            "wall_seconds": wall,
            "wait_seconds": waited,
            "wait_seconds_by_cause": causes,
            "wait_share": _share(waited, wall),
            "first_batch_seconds": first,
            "wait_share_after_first": 0.0 if first is None else _share(waited - first_waited, wall - first),
            "tokens_per_second": _share(counts["tokens"], wall),
            "rows_per_second": _share(counts["rows"], wall),
        }

    def _run_to(self, now: float) -> None:
        """Count wall time up to now; the lock is held, and the clock runs."""
        if self._mark is not None and now > self._mark:
            self._wall += now - self._mark
            self._mark = now

    def __reduce__(self) -> tuple[Any, ...]:
        return _anew, ({**self._labels, "sinks": self._sinks, "steps": self.steps, "clock": self._clock},)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _anew(settings: dict[str, Any]) -> Metrics:
    return Metrics(**settings)
