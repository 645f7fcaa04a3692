"""What was used last, up to so many bytes: keeps things alive, and is never asked for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, the oldest let go when they are too many bytes. Thread-safe."""

    def __init__(self, limit_bytes: int, let_go: Callable[[T], None] = lambda _: None) -> None:
        self._limit, self._let_go = limit_bytes, let_go
        self.begin()

    def begin(self) -> None:
        """Start empty, with a lock that nobody holds: in a forked child."""
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[int, int], tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def put(self, key: tuple[int, int], value: T, size: int) -> None:
        """Keep a value, as the newest."""
        with self._lock:
            self._take(key)
            self._values[key] = value, size
            self._bytes += size
            old = []
            while self._bytes > self._limit:
                old.append(self._take(next(iter(self._values))))
        for one in old:
            if one is not None:
                self._let_go(one)

    def pop(self, key: tuple[int, int]) -> None:
        """Keep this one no longer."""
        with self._lock:
            self._take(key)

    def _take(self, key: tuple[int, int]) -> T | None:
        value, size = self._values.pop(key, (None, 0))
        self._bytes -= size
        return value
