"""Locks on open files: gone when their process dies, and never kept by a child that was forked meanwhile.

A lock belongs to the open file, which a forked child inherits. Were it not closed there, the lock of a parent that was
killed would live as long as the child.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress

from shardprep.errors import ConfigError

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
POLL_S = (0.001, 0.05)  # between two looks at what another process does, first and longest

_held: set[int] = set()


def _close_inherited() -> None:
    for file in _held:
        with suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


def try_lock(file: int, path: str, *, shared: bool = False) -> bool:
    """Lock an open file, or change its lock; return False where others hold it. Raises ConfigError without locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise ConfigError(
            f"the file system of {os.path.dirname(path)} has no file locks ({os.strerror(error.errno)}). Give a cache "
            "folder on a local disk (cache_dir, or SHARDPREP_CACHE_DIR), or mount this one with locks (Lustre: -o flock)."
        ) from error
    return True


def names(path: str, file: int) -> bool:
    """Return whether a path still names this open file: it may have been renamed or removed before the lock was had."""
    try:
        there, ours = os.stat(path), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def claim(path: str, *, make: bool = True) -> int | None:
    """Return the file of this name, open and locked for us alone, or None where others hold it or it is not there."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not make:
            return None
        os.makedirs(os.path.dirname(path), exist_ok=True)  # somebody removed the folder
        file = os.open(path, flags, 0o666)
    _held.add(file)
    try:
        if try_lock(file, path) and names(path, file):
            return file
    except BaseException:
        close(file)
        raise
    close(file)
    return None


def close(file: int) -> None:
    """Close a file of `claim`, and end its lock even if a child has it open still."""
    _held.discard(file)
    os.close(file)


@contextmanager
def alone(path: str, cancelled: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Hold the lock of a file that stays, while the block runs; waits for others. Raises CancelledError."""
    waits = pauses()
    while (file := claim(path)) is None:
        if cancelled():
            raise CancelledError
        time.sleep(next(waits))
    try:
        yield file
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
        close(file)


def pauses() -> Iterator[float]:
    """Yield waits in seconds that grow."""
    wait_s = POLL_S[0]
    while True:
        yield wait_s
        wait_s = min(1.5 * wait_s, POLL_S[1])
