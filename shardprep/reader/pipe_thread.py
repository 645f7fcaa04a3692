"""The thread that reads the FIFOs of a channel, decodes their records, and makes windows of the rows."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from shardprep.core.block import TokenBlock
from shardprep.errors import ManifestError, ShardprepError
from shardprep.formats.recordio_frames import damaged
from shardprep.reader.pipe_channel import PipeChannel
from shardprep.reader.pipe_fifo import Fifo
from shardprep.reader.pipe_pieces import Piece, Pieces
from shardprep.reader.pipe_windows import Window, WindowRows

MOST_DECODERS = 4  # threads: one decodes about 340 MB/s of records
LOOK_EVERY_S = 0.5  # for a FIFO that does not exist yet
TELL_AFTER_S = 60.0
# Rows of the whole records at the start of some bytes, and the bytes that they take; the number is where they begin in
# the stream, for messages.
Decode = Callable[[memoryview, int], tuple[TokenBlock, int]]
log = logging.getLogger("shardprep.pipe")


@dataclass
class End:
    """The end of a FIFO: rows and bytes that came, and what was wrong with it."""

    rows: int = 0
    size_bytes: int = 0
    error: Exception | None = None


class _Stopped(Exception):
    """Nobody wants this FIFO any more."""


class Shared:
    """What the reading thread and the loop have in common; the thread keeps nothing else alive."""

    def __init__(self, first: int) -> None:
        self.changed = threading.Condition()
        self.ready: deque[tuple[int, Window | End]] = deque()
        self.wanted = first  # FIFOs before it are given up
        self.is_stopped = False
        self.bytes_read = 0
        self.waits_for = ""
        self.ears, self._mouth = os.pipe()  # macOS has no pipe2; children inherit neither end
        os.set_blocking(self.ears, False)
        os.set_blocking(self._mouth, False)

    def wake(self) -> None:
        """End a wait of the thread for bytes."""
        with suppress(OSError):  # full: then it is awake anyway; closed: it has ended
            os.write(self._mouth, b".")

    def stop(self) -> None:
        """End the thread."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()
        self.wake()

    def want(self, number: int) -> None:
        """Give up the FIFOs before this one."""
        with self.changed:
            self.wanted = max(self.wanted, number)
            while self.ready and self.ready[0][0] < number:
                self.ready.popleft()
            self.changed.notify_all()
        self.wake()

    def check(self, number: int) -> None:
        """Raise _Stopped if nobody wants this FIFO."""
        if self.is_stopped or number < self.wanted:
            raise _Stopped

    def drain(self) -> None:
        """Forget that the thread was woken."""
        with suppress(BlockingIOError):
            os.read(self.ears, 4096)

    def close(self) -> None:
        """Let go of what wakes the thread: its last act."""
        os.close(self.ears)
        os.close(self._mouth)


class Reader:
    """The thread."""

    def __init__(self, shared: Shared, channel: PipeChannel, decode: Decode, budget_bytes: int, first: int) -> None:
        self._shared, self._channel, self._decode, self._budget = shared, channel, decode, budget_bytes
        self._number = first
        self._next: Fifo | None = None
        self._look_at = 0.0
        threads = min(MOST_DECODERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        self._ahead = threads + 1
        self._decoders = ThreadPoolExecutor(threads, thread_name_prefix=f"shardprep-pipe-{channel.name}-decode")

    def run(self) -> None:
        """Read one FIFO after the other, until stopped."""
        try:
            while not self._shared.is_stopped:
                self._one()
                self._number += 1
        finally:
            if self._next is not None:
                self._next.close()
            self._decoders.shutdown()
            self._shared.close()

    def _one(self) -> None:
        """Read one FIFO to its end, or until nobody wants it."""
        fifo: Fifo | None = None
        end = End()
        try:
            fifo = self._opened()
            self._read(fifo, end)
        except _Stopped:
            return
        except Exception as error:  # noqa: BLE001  the loop gets it, at its place
            end.error = error
        finally:
            if fifo is not None:
                fifo.close()
        self._hand(end)

    def _opened(self) -> Fifo:
        fifo, self._next = self._next, None
        path, began, told = self._channel.path(self._number), time.monotonic(), False
        while fifo is None:
            try:
                fifo = Fifo(path)
            except FileNotFoundError:
                self._shared.check(self._number)
                self._shared.waits_for = "it did not appear"
                if not told and self._number and time.monotonic() - began > TELL_AFTER_S:
                    told = True
                    log.info("%s does not exist yet; waiting for it", path)
                self._sleep(LOOK_EVERY_S if time.monotonic() - began > 5 else 0.02)
        return fifo

    def _sleep(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._shared.ears, select.POLLIN)
        if poll.poll(seconds * 1000):
            self._shared.drain()

    def _look_ahead(self) -> None:
        """Open the next FIFO, if it is there."""
        if self._next is None and time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            with suppress(FileNotFoundError, ShardprepError):  # an error comes again when it is its turn
                self._next = Fifo(self._channel.path(self._number + 1))

    # ---- one FIFO -------------------------------------------------------------------------------------------------

    def _read(self, fifo: Fifo, end: End) -> None:
        rows = WindowRows(self._budget)
        shared, before = self._shared, self._shared.bytes_read

        def idle() -> None:
            shared.bytes_read = before + pieces.bytes_read
            self._idle(fifo)

        pieces = Pieces(fifo, self._channel.name, idle)
        pending: deque[tuple[Piece, Future[tuple[TokenBlock, int]]]] = deque()
        self._wait_for_room()
        try:
            for piece in pieces:
                shared.check(self._number)
                shared.bytes_read = before + pieces.bytes_read
                pending.append((piece, self._decoders.submit(self._decode, piece.data, piece.at)))
                while len(pending) > self._ahead or (pending and pending[0][1].done()):
                    self._take(*pending.popleft(), pieces, rows, end)
                self._look_ahead()
            while pending:
                self._take(*pending.popleft(), pieces, rows, end)
        finally:
            for _, decoded in pending:
                decoded.cancel()
        self._flush(rows, end)
        left = pieces.bytes_read - end.size_bytes
        if left:
            raise ManifestError(
                f'{fifo.path}: the stream of channel "{self._channel.name}" ends in the midst of the record that begins at '
                f"byte {end.size_bytes:,}, {left:,} bytes into it: the writer closed it early, or a shard is cut. "
                f"{end.rows:,} rows came before",
                byte=end.size_bytes,
                channel=self._channel.name,
            )

    def _idle(self, fifo: Fifo) -> None:
        """Wait for bytes, a little."""
        shared = self._shared
        shared.check(self._number)
        shared.waits_for = "no byte came"
        self._look_ahead()
        fifo.wait(shared.ears, LOOK_EVERY_S)
        shared.drain()

    def _take(
        self, piece: Piece, decoded: Future[tuple[TokenBlock, int]], pieces: Pieces, rows: WindowRows, end: End
    ) -> None:
        """Add the rows of a piece. Raises ManifestError, after the rows before it, where a record is damaged."""
        try:
            block, used = decoded.result()
            if piece.is_whole and used < len(piece.data):
                raise damaged(piece.at + used, "is longer than up to the next one")
        except ManifestError as error:
            byte = int(error.fields.get("byte", piece.at))
            if byte > piece.at:  # the rows before it come first
                self._add(rows, self._decode(piece.data[: byte - piece.at], piece.at)[0])
            self._flush(rows, end)
            message = (
                f'{self._channel.path(self._number)}: the stream of channel "{self._channel.name}" {error.message}'
            )
            raise ManifestError(message, byte=byte, channel=self._channel.name) from error
        pieces.give_back(piece)
        end.size_bytes += used
        self._add(rows, block)

    def _add(self, rows: WindowRows, block: TokenBlock) -> None:
        for window in rows.add(block):
            self._hand(window)
            self._wait_for_room()

    def _flush(self, rows: WindowRows, end: End) -> None:
        end.rows = rows.count
        rest = rows.rest()
        if rest is not None:
            self._hand(rest)

    def _hand(self, found: Window | End) -> None:
        with self._shared.changed:
            self._shared.ready.append((self._number, found))
            self._shared.changed.notify_all()

    def _wait_for_room(self) -> None:
        """Wait until the last window was taken: two are in memory at once, one that is played and one that is read."""
        shared = self._shared
        with shared.changed:
            while any(isinstance(found, Window) for _, found in shared.ready):
                shared.check(self._number)
                self._look_ahead()
                shared.changed.wait(LOOK_EVERY_S)
            shared.check(self._number)
