"""Fifo: one named pipe, opened without blocking, read by one process, and given up at any moment."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import weakref
from contextlib import suppress

from shardprep.errors import ConfigError, StoreError

PIPE_BYTES = (
    1 << 20
)  # what the kernel holds of a pipe, if it lets us: 64 KB make 16 times as many turns with the writer
_NO_LOCKS = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_open: weakref.WeakSet[Fifo] = weakref.WeakSet()


class Fifo:
    """The reading end of a FIFO. Opened at once, whether somebody writes to it or not.

    Raises FileNotFoundError if it is not there (yet), ConfigError if it is no FIFO or another process reads it: two readers
    take bytes from each other, and both get rubbish.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            if not stat.S_ISFIFO(os.stat(path).st_mode):
                raise ConfigError(f"{path} is no FIFO: is this channel in Pipe mode?", path=path)
            # Not blocking: opening would wait for a writer, and nobody could end that wait.
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{path}: it cannot be opened ({error.strerror})", uri=path) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(self._file)
                raise ConfigError(
                    f"{path} is read by another process or loader already. Each rank needs a channel of its own: add one "
                    'for each rank of a host, with the same S3Uri, and give shardprep.pipe(f"train_{local_rank}", ...)',
                    path=path,
                ) from error
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # more than this user may have
                fcntl.fcntl(self._file, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._is_begun = False
        _open.add(self)

    def read_into(self, buffer: memoryview) -> int | None:
        """Read what is there into a buffer, and return how many bytes: 0 at the end, None if there is nothing yet."""
        if not self._is_begun:
            return None
        try:
            return os.readv(self._file, [buffer])
        except BlockingIOError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path}: it cannot be read ({error.strerror})", uri=self.path) from error

    def wait(self, wake: int, timeout_s: float) -> None:
        """Wait until there is something to read, the writer is gone, or the file `wake` can be read."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        poll.register(wake, select.POLLIN)
        # Before the first writer a read looks like the end; poll tells them apart: it hangs up only after a writer.
        if any(file == self._file for file, _ in poll.poll(timeout_s * 1000)):
            self._is_begun = True

    def close(self) -> None:
        """Close it; the writer gets a broken pipe, if it is not done."""
        if self in _open:
            _open.discard(self)
            os.close(self._file)


def _close_in_child() -> None:
    """Close the reading ends of the parent: they would keep its writers from noticing that it is gone."""
    for fifo in list(_open):
        fifo.close()


os.register_at_fork(after_in_child=_close_in_child)
