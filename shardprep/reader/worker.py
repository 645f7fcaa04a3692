"""The life of a worker process: asked for chunks, it packs their rows and sends them as flat blocks.

It is a fresh process, without the user's script and without torch, and it ends with its parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardprep.formats.buffers import Unpooled
from shardprep.formats.collate import FlatBlock, pack
from shardprep.reader import wire
from shardprep.reader.cache import ShardCache
from shardprep.reader.chunk_rows import ChunkReader, Group, Views, specs_of
from shardprep.reader.plan import Chunk, ReadPlan, Schedule
from shardprep.reader.source import ShardSource

LOOK_FOR_PARENT_S = 1.0


class Setup(NamedTuple):
    """The first message to a worker: what it reads, and how its cache is opened."""

    plan: ReadPlan
    open_cache: Callable[[], ShardCache]


class Begin(NamedTuple):
    """From here on chunks are of this epoch; run numbers the iterations of the parent."""

    run: int
    epoch: int


class Want(NamedTuple):
    """Make this chunk."""

    run: int
    chunk: Chunk


class Packed(NamedTuple):
    """Some micro-batches: their rows, and keywords of `Collator.batch` for each of them."""

    flat: FlatBlock
    facts: list[dict[str, Any]]


@dataclass
class Reply:
    """A chunk, packed.

    packed  its micro-batches; none if not even the first could be had
    error   what came after them, and `trace` where it was raised
    phases  cause, start and stop on the monotonic clock
    counts  for the metrics
    """

    run: int
    number: int
    packed: list[Packed] = field(default_factory=list)
    error: BaseException | None = None
    trace: str = ""
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def serve(file: int, parent: int) -> None:
    """Answer on this socket until it is closed, or the parent is gone. The worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; its end is ours
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sock = socket.socket(fileno=file)

    def read_into(data: memoryview) -> None:
        while data:
            count = sock.recv_into(data)
            if not count:
                raise EOFError
            data = data[count:]

    try:
        _answer(sock, lambda: wire.receive(read_into, Unpooled()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # what is being fetched is nobody's any more


def _end_with(parent: int) -> None:
    """End when the parent did; a closed socket says so sooner, but not while a forked child of the parent holds it too."""
    while os.getppid() == parent:
        time.sleep(LOOK_FOR_PARENT_S)
    os._exit(1)


def _answer(sock: socket.socket, receive: Callable[[], Any]) -> None:
    plan, open_cache = receive()
    cache, schedule = open_cache(), plan.schedule(0)
    packer: Packer | None = None
    while True:
        message = receive()
        if isinstance(message, Begin):
            if packer is not None:
                packer.close()
            packer = Packer(plan, schedule.at(message.epoch), cache, message.epoch)
        elif packer is not None:
            reply = packer.reply(message)
            _send(sock, reply)


def _send(sock: socket.socket, reply: Reply) -> None:
    try:
        pickle.dumps(reply.error)
    except Exception:  # noqa: BLE001  an error that cannot travel is told in words
        reply.error = RuntimeError(f"{type(reply.error).__name__}: {reply.error}")
    wire.send(sock, reply)


class Packer:
    """Packs chunks of one epoch."""

    def __init__(self, plan: ReadPlan, schedule: Schedule, cache: ShardCache, epoch: int) -> None:
        self._plan, self._schedule, self._epoch = plan, schedule, epoch
        self._source = ShardSource(plan.refs, plan.slots, cache)
        self._reader = ChunkReader(self._source, self._packed)

    def close(self) -> None:
        """Let go of the shards."""
        self._source.stop()
        self._source.__exit__()

    def reply(self, want: Want) -> Reply:
        """Return the chunk up to the first micro-batch that cannot be had."""
        chunk = want.chunk

        def specs() -> Group:
            self._source.enter(self._schedule, chunk.window)
            return specs_of(self._plan, self._schedule, chunk)

        read = self._reader.read(chunk, specs)
        trace = "" if read.error is None else "".join(traceback.format_exception(read.error))
        return Reply(want.run, chunk.number, read.made, read.error, trace, read.phases, self._source.taken())

    def _packed(self, group: Group, views: Views) -> list[Packed]:
        facts = [{"last_in_step": last, "epoch": self._epoch, "name": spec.name} for spec, last in group]
        return [Packed(pack([spec for spec, _ in group], views), facts)]
