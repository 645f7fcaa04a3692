"""Values over a socket: pickled, with arrays beside the pickle, so that they are copied once on each side and no more.

A frame is the length of the pickle, the number of buffers and their sizes (little-endian 64-bit integers), then the pickle,
then the buffers.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from shardprep.formats.buffers import Arrays

ALIGN_BYTES = 64  # Arrow's buffers, and numpy's faster loops
_HEAD = struct.Struct("<QQ")


def send(sock: socket.socket, value: Any) -> None:
    """Write one value. Raises OSError if the other side is gone."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sock.sendall(_HEAD.pack(len(body), len(raw)) + struct.pack(f"<{len(raw)}Q", *(part.nbytes for part in raw)) + body)
    for part in raw:
        sock.sendall(part)


def receive(read_into: Callable[[memoryview], None], arrays: Arrays) -> Any:
    """Return the next value; its arrays lie in memory from `arrays`. `read_into` fills a buffer, or raises."""
    body_bytes, count = _HEAD.unpack(_read(read_into, _HEAD.size))
    sizes = struct.unpack(f"<{count}Q", _read(read_into, 8 * count))
    body = _read(read_into, body_bytes)
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    memory = memoryview(arrays.array((max(1, total),), np.uint8))  # type: ignore[arg-type]  # a buffer, in numpy's stubs from 2.5 on
    parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    for part in parts:
        read_into(part)
    return pickle.loads(body, buffers=parts)  # noqa: S301  from our own process


def _read(read_into: Callable[[memoryview], None], size: int) -> bytearray:
    data = bytearray(size)
    read_into(memoryview(data))
    return data
