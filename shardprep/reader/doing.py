"""What threads of this process do for shards, and when: so that a wait for shards can be split over its causes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

FETCH, DECODE = "fetch", "decode"
SHORT_S = 0.001  # waits below it are not worth a look: the rows were at hand
MOST_KEPT = 1024  # of what was done; a wait in which more was done counts as fetch before that
Phase = tuple[str, float, float]  # cause, start and stop on the monotonic clock


class Doing:
    """Notes who awaits bytes and who decodes, by shard. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start empty: in a forked child."""
        self._lock = threading.Lock()
        self._done: deque[tuple[str, str, float, float]] = deque(maxlen=MOST_KEPT)
        self._under_way: dict[object, tuple[str, str, float]] = {}

    @contextmanager
    def at(self, cause: str, shard: str) -> Iterator[None]:
        """Note that this thread awaits bytes of a shard (FETCH), or works on them (DECODE), as long as the block runs."""
        place, started = object(), self._clock()
        with self._lock:
            self._under_way[place] = cause, shard, started
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[place]
                self._done.append((cause, shard, started, self._clock()))

    def phases(self, start: float, stop: float, shards: Collection[str]) -> list[Phase]:
        """Return a wait for these shards as phases, which follow each other without a gap.

        A moment is split over what threads were at for these shards. Where that is nothing, the shards wait for their turn:
        then over what threads were at for others. Where that is nothing either it is FETCH: a request, or another process of
        the node which brings the shard.
        """
        if stop - start < SHORT_S:
            return [(FETCH, start, stop)]
        with self._lock:
            spans = [span for span in self._done if span[3] > start and span[2] < stop]
            spans += [(cause, shard, since, stop) for cause, shard, since in self._under_way.values() if since < stop]
        changes = [(stop, False, FETCH, 0)]
        for cause, shard, begun, ended in spans:
            is_ours = shard in shards
            changes += [(max(begun, start), is_ours, cause, 1), (min(ended, stop), is_ours, cause, -1)]
        busy = {(is_ours, cause): 0 for is_ours in (True, False) for cause in (FETCH, DECODE)}
        phases: list[Phase] = []
        at = start
        for moment, is_ours, cause, change in sorted(changes):
            if moment > at:
                fetching, decoding = next(
                    (pair for ours in (True, False) if any(pair := (busy[ours, FETCH], busy[ours, DECODE]))), (1, 0)
                )
                turn = at + (moment - at) * fetching / (fetching + decoding)
                _add(phases, FETCH, at, turn)
                _add(phases, DECODE, turn, moment)
                at = moment
            busy[is_ours, cause] += change
        return phases


def _add(phases: list[Phase], cause: str, start: float, stop: float) -> None:
    """Append a phase, or make the last one longer."""
    if stop <= start:
        return
    if phases and phases[-1][0] == cause:
        start = phases.pop()[1]
    phases.append((cause, start, stop))


doing = Doing()
os.register_at_fork(after_in_child=doing.begin)
