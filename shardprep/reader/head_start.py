"""The first chunk of an epoch, made here while the worker processes that make the others still import what they need."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Self

from shardprep.reader.making import Made, Threads
from shardprep.reader.plan import Chunk
from shardprep.reader.workers import WorkerSupply


class HeadStart:
    """A supply whose first chunk comes from threads of this process; they end before the second one is begun.

    Only the first: it is read by range where it is not in the cache, so nothing that they fetch is given up half-done.
    """

    makes_alone = False

    def __init__(self, threads: Threads, workers: WorkerSupply) -> None:
        self.ahead = workers.ahead
        self._threads: Threads | None = threads
        self._workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop making and receiving."""
        try:
            self._end_threads()
        finally:
            self._workers.__exit__(*exc)

    def begin(self, chunk: Chunk) -> Future[Made]:
        """Start to make a chunk."""
        if chunk.number == 0 and self._threads is not None:
            return self._threads.begin(chunk)
        self._end_threads()
        return self._workers.begin(chunk)

    def make(self, chunk: Chunk) -> None:
        """Return None: no chunk is made in the calling thread."""
        del chunk

    def _end_threads(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.__exit__()
