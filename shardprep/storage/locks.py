"""Locks on files, held by a process and gone when it dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STALE_S = 3600.0  # where a file system has no locks: a temporary file this old has no writer any more


def lock(file: int) -> bool:
    """Lock an open file for this process, without waiting; return False where another one holds it.

    Raises OSError where the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_living_writer(path: str) -> bool:
    """Return whether a temporary file still has its writer: one holds its lock, or (no locks here) it is young."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # renamed or removed meanwhile: by its writer
    try:
        return not lock(file)
    except OSError:
        return time.time() - os.fstat(file).st_mtime < STALE_S
    finally:
        os.close(file)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock file while the block runs; it is made as needed and removed after. Waits for other holders."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(file).st_ino:
                break
        os.close(file)  # the one before us removed the file that we waited for
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(file)
