"""What a store did: for build.json, the benchmarks and the tests."""

from __future__ import annotations

import threading


class Counters:
    """Counts by name, added to by many threads.

    Names: get, head, list, put, delete (requests); retries, throttles; bytes_read, bytes_written.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, number: int = 1) -> None:
        """Add to one count."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + number

    def add_request(self, verb: str, bytes_name: str, size_bytes: int) -> None:
        """Add one request and its bytes: one lock for both, since it is done once per small object."""
        with self._lock:
            self._counts[verb] = self._counts.get(verb, 0) + 1
            self._counts[bytes_name] = self._counts.get(bytes_name, 0) + size_bytes

    def snapshot(self) -> dict[str, int]:
        """Return a copy of the counts by now."""
        with self._lock:
            return dict(self._counts)
