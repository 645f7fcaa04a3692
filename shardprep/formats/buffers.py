"""BufferPool: memory for batches that is used again, since fresh memory costs as much as filling it."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardprep.errors import ConfigError

Allocate = Callable[[int], Any]
SMALLEST_BYTES = 4096  # one page: below it the allocator is as good
ALIGN_BYTES = 64  # a cache line, and what JAX and AVX-512 ask for
LIMIT_BYTES = 64 << 20  # some hundred micro-batches of 14,400 tokens


class Arrays(Protocol):
    """Where arrays come from: a BufferPool, or numpy itself."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of this shape with any contents."""


class BufferPool:
    """Hands out arrays over buffers that come back when the last array over them dies.

    A buffer is owned by an object under the array (`array.base`), so that an array, a view or slice of it, and a torch
    tensor or memoryview made from it all keep the buffer, whatever happens to the batch. Sizes are rounded up to
    classes of 2**k and 1.5 * 2**k bytes; where a class has none idle, one of up to twice the size serves. The buffer given
    back last is used first: it is still in the processor's cache.

    limit_bytes  how much the pool keeps idle; what comes back above it displaces the class that was asked for longest
                 ago, or is freed. Buffers in use are not counted: the caller's look-ahead bounds them.
    allocate     size in bytes -> an object with a writable, contiguous buffer of at least that size; the hook for pinned
                 memory, such as `lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()`. Copies to a
                 GPU that are still under way need the array kept alive until they end.

    Threads may ask and give back at once, also from destructors in the midst of a garbage collection: there is no lock,
    only deques, whose append and pop are atomic. So the limit may be passed by one buffer a thread.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, allocate: Allocate | None = None) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"limit_bytes must be at least 0, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self._allocate = allocate or _aligned
        self._idle: dict[int, deque[_Buffer]] = {}
        self._classes: tuple[tuple[int, deque[_Buffer]], ...] = ()  # of _idle, by size: safe to walk while others add
        self._asked: dict[int, int] = {}  # class -> when it was asked for last
        self._clock = itertools.count()

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a writable C-contiguous array of this shape and type. Its contents are whatever was there before."""
        kind = np.dtype(dtype)
        buffer = self._take(size_class(math.prod(shape) * kind.itemsize))
        return np.asarray(_Lease(buffer, shape, kind.str, self))

    @property
    def idle_bytes(self) -> int:
        """Return how much memory waits to be used again."""
        total = 0
        for size, waiting in self._classes:
            total += size * len(waiting)
        return total

    def clear(self) -> None:
        """Free all idle buffers; those in use still come back later."""
        for _, waiting in self._classes:
            waiting.clear()

    def _take(self, size_bytes: int) -> _Buffer:
        self._asked[size_bytes] = next(self._clock)
        waiting = self._idle.get(size_bytes)
        if waiting:
            with suppress(IndexError):  # another thread took the last one
                return waiting.pop()
        if waiting is None:
            self._idle.setdefault(size_bytes, deque())
        if len(self._classes) != len(self._idle):  # also where two threads added a class at once
            self._classes = tuple(sorted(self._idle.copy().items()))
        for size, larger in self._classes:  # rather some memory too much than more memory
            if size_bytes < size <= 2 * size_bytes and larger:
                with suppress(IndexError):
                    return larger.pop()
        return _Buffer(self._allocate(size_bytes), size_bytes)

    def _give_back(self, buffer: _Buffer) -> None:
        size = buffer.size_bytes
        excess = self.idle_bytes + size - self.limit_bytes
        if size <= self.limit_bytes and (excess <= 0 or self._freed(excess)):
            self._idle[size].append(buffer)

    def _freed(self, excess_bytes: int) -> bool:
        """Free that many idle bytes, of the class asked for longest ago first; False: other threads took them."""
        for size, waiting in sorted(self._classes, key=lambda entry: self._asked[entry[0]]):
            while waiting and excess_bytes > 0:
                with suppress(IndexError):
                    waiting.pop()
                    excess_bytes -= size
        return excess_bytes <= 0


class Unpooled:
    """Arrays from numpy, for batches that arrive from elsewhere."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array of this shape with any contents."""
        return np.empty(shape, dtype=dtype)


def size_class(size_bytes: int) -> int:
    """Return the smallest of 4096, 6144, 8192, 12288 ... that holds so many bytes."""
    if size_bytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    power: int = 1 << (size_bytes - 1).bit_length()  # at least size_bytes, below twice of it
    return power // 4 * 3 if size_bytes <= power // 4 * 3 else power


class _Buffer:
    """Some memory and its address."""

    __slots__ = ("address", "memory", "size_bytes")

    def __init__(self, memory: Any, size_bytes: int) -> None:
        flat = np.frombuffer(memory, dtype=np.uint8)
        if flat.nbytes < size_bytes or not flat.flags.writeable:
            raise ConfigError(
                f"allocate({size_bytes}) must return a writable buffer of at least that many bytes, "
                f"got {flat.nbytes}, {'writable' if flat.flags.writeable else 'read-only'}"
            )
        self.address: int = flat.__array_interface__["data"][0]
        self.memory = memory
        self.size_bytes = size_bytes


class _Lease:
    """What owns a buffer while arrays over it live; numpy keeps it as the base of them all."""

    __slots__ = ("__array_interface__", "buffer", "pool")

    def __init__(self, buffer: _Buffer, shape: tuple[int, ...], typestr: str, pool: BufferPool) -> None:
        self.__array_interface__ = {"version": 3, "data": (buffer.address, False), "shape": shape, "typestr": typestr}
        self.buffer = buffer
        self.pool = pool

    def __del__(self) -> None:
        self.pool._give_back(self.buffer)  # noqa: SLF001  the pool's own part


def _aligned(size_bytes: int) -> NDArray[np.uint8]:
    raw = np.empty(size_bytes + ALIGN_BYTES, dtype=np.uint8)
    skip = -raw.__array_interface__["data"][0] % ALIGN_BYTES
    return raw[skip : skip + size_bytes]
