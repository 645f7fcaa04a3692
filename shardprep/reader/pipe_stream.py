"""PipeStream: the FIFOs of a channel, one after the other, read and decoded by one thread into windows of rows.

The thread holds at most one window that nobody has taken; then it reads no further, and the writer waits. The FIFO of the
next epoch is opened as soon as it exists: SageMaker gives up on one that is not opened for about an hour.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator

from shardprep.errors import ConfigError, Unavailable
from shardprep.reader.pipe_channel import PipeChannel
from shardprep.reader.pipe_thread import Decode, End, Reader, Shared
from shardprep.reader.pipe_windows import Window

__all__ = ["Decode", "End", "PipeStream"]


class PipeStream:
    """Windows of the FIFOs of a channel, in their order. Reading begins at once, before anybody asks.

    decode        what makes rows of a memoryview of records
    budget_bytes  of a window (`pipe_windows.cost_of`)
    first         number of the first FIFO
    timeout_s     longest wait without a single byte
    """

    def __init__(
        self, channel: PipeChannel, decode: Decode, budget_bytes: int, *, first: int = 0, timeout_s: float = 3600.0
    ) -> None:
        self.channel, self._timeout_s = channel, timeout_s
        self._shared = Shared(first)
        self._pid = os.getpid()
        reader = Reader(self._shared, channel, decode, budget_bytes, first)
        # A daemon: a training script that fails must not hang on a stream that nobody reads.
        self._thread = threading.Thread(target=reader.run, name=f"shardprep-pipe-{channel.name}", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._shared, self._pid)

    @property
    def bytes_read(self) -> int:
        """Return the bytes read so far."""
        return self._shared.bytes_read

    def windows(self, number: int) -> Iterator[Window | End]:
        """Yield the windows of a FIFO, then its End, whose error is raised. FIFOs before it are closed."""
        self._shared.want(number)
        while True:
            found = self._take(number)
            if isinstance(found, End) and found.error is not None:
                raise found.error
            yield found
            if isinstance(found, End):
                return
            del found  # while the next one is waited for

    def close(self) -> None:
        """Close the FIFOs and end the thread."""
        self._finalizer()
        if self._pid == os.getpid():
            self._thread.join(5)

    def _take(self, number: int) -> Window | End:
        if self._pid != os.getpid():
            raise ConfigError(
                f'channel "{self.channel.name}" is read by the process that called shardprep.pipe, and this is a child of '
                "it: iterate there (with TorchLoader, num_workers=0)"
            )
        shared, seen, since = self._shared, -1, time.monotonic()
        with shared.changed:
            while shared.wanted > number or not shared.ready:
                if shared.wanted > number:
                    raise ConfigError(
                        f'channel "{self.channel.name}": another epoch was begun, so this one cannot go on: its FIFO is closed'
                    )
                if shared.is_stopped:
                    raise ConfigError(f'the pipe of channel "{self.channel.name}" was closed: make a new one')
                if shared.bytes_read != seen:
                    seen, since = shared.bytes_read, time.monotonic()
                left = since + self._timeout_s - time.monotonic()
                if left <= 0:
                    raise Unavailable(
                        f"{self.channel.path(number)}: {shared.waits_for or 'nothing came'} for {self._timeout_s:g} s, after "
                        f"{seen:,} bytes. {self._advice(number, seen)}",
                        uri=self.channel.path(number),
                    )
                shared.changed.wait(min(left, 1.0))
            _, found = shared.ready.popleft()
            shared.changed.notify_all()
        return found

    def _advice(self, number: int, bytes_read: int) -> str:
        if os.path.isdir(os.path.join(self.channel.data_folder, self.channel.name)):
            return f"There is a folder {self.channel.name}: the channel is in File or FastFile mode, read it by shardprep.open"
        if not (number or bytes_read):
            return "Is the channel in Pipe mode, and its name right?"
        return "Is somebody still writing? A job's next FIFO comes when the one before it was read to its end"


def _stop(shared: Shared, pid: int) -> None:
    """End the thread; not from a forked child, which has no thread, but the parent's locks as they were."""
    if os.getpid() == pid:
        shared.stop()
