"""How the hosts of one job meet: each host holds one connection to the head, from its start to the job's end.

Both sides send JSON lines. A host says hello; the head says what to do; the host says how far it is; and at the end the head
says how the job ended, which the host needs to know: the job counts as done only if every container exits with 0, and a
connection that just breaks tells nothing. Both send a beat every second, so that a machine that is gone without a word is
noticed as well.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardprep.adapters.sagemaker.hosts import Say
from shardprep.errors import ConfigError

BEAT_S = 1.0
SILENCE_S = 60.0  # without a beat: the other machine, or the network to it, is gone
LINE_BYTES_MAX = 16 << 20  # what a host sees in a folder is the longest one
Line = dict[str, Any]


class Wire:
    """One connection: lines out under a lock, lines in through a queue, None at its end; beats are swallowed."""

    def __init__(self, connection: socket.socket, lines: queue.Queue[Line | None] | None = None) -> None:
        self.socket = connection
        self.lines: queue.Queue[Line | None] = lines or queue.Queue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for target in (self._receive, self._beat):
            threading.Thread(target=target, name="shardprep-wire", daemon=True).start()

    def send(self, **line: Any) -> bool:
        """Send one line; False where the connection is gone."""
        try:
            with self._lock:
                self.socket.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _receive(self) -> None:
        try:
            with self.socket.makefile("rb") as file:
                for line in _lines_of(file):
                    if "beat" not in line:
                        self.lines.put(line)
        except (OSError, ValueError, RecursionError):
            pass  # gone, silent for too long, or no peer of ours
        self._closed.set()
        self.lines.put(None)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S) and self.send(beat=True):
            pass


def _lines_of(file: Any) -> Iterator[Line]:
    while data := file.readline(LINE_BYTES_MAX):
        line = json.loads(data)
        if not isinstance(line, dict):
            raise ValueError("no JSON object")  # noqa: TRY004  like any other line that is not ours
        yield line


@dataclass
class Guest:
    """A host as the head knows it: where it is, and what it said last of each thing."""

    name: str
    address: str
    wire: Wire
    said: Line = field(default_factory=dict)
    lost: bool = False


class Meeting:
    """The head's side: takes connections of the job's other hosts, in threads, until it is closed."""

    def __init__(self, bind: str, port: int, expected: tuple[str, ...], hello: Line, say: Say) -> None:
        self.guests: dict[str, Guest] = {}
        self.changed = threading.Condition()
        self._expected, self._hello, self._say = expected, hello, say
        self._end: Line | None = None
        try:
            self._server = socket.create_server((bind, port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {bind}:{port}: {error.strerror}; --port chooses another port"
            ) from error
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="shardprep-meeting", daemon=True).start()

    @property
    def missing(self) -> list[str]:
        """Return the hosts that are not here: not come yet, or lost."""
        return [name for name in self._expected if name not in self.guests or self.guests[name].lost]

    @property
    def present(self) -> list[Guest]:
        """Return the hosts that are here."""
        return [guest for guest in list(self.guests.values()) if not guest.lost]

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition over the guests holds; False where it does not in time."""
        with self.changed:
            return self.changed.wait_for(condition, max(0.0, timeout_s))

    def tell(self, **line: Any) -> None:
        """Send one line to all who are here; those who come later get it as well."""
        with self.changed:
            self._hello = {**self._hello, **line}
            guests = self.present
        for guest in guests:
            guest.wire.send(**line)

    def end(self, how: str, exit_code: int, why: str, *, patience_s: float, late: tuple[str, ...] = ()) -> None:
        """Tell all how the job ended, `late` ones when they come, and wait until they have left, or for patience_s seconds."""
        with self.changed:
            self._end = {"end": how, "exit_code": exit_code, "why": why}
            guests = self.present
        for guest in guests:
            guest.wire.send(**self._end)
        self.wait(lambda: not self.present and all(name in self.guests for name in late), patience_s)

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for guest in list(self.guests.values()):
            guest.wire.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._serve, args=(connection, str(address[0])), name="shardprep-guest", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        wire = Wire(connection)
        hello = wire.lines.get()
        name = hello.get("host") if hello else None
        if name not in self._expected:
            wire.send(end="refused", exit_code=1, why=f"{name!r} is none of the hosts that this head expects")
            wire.close()
            return
        guest = Guest(str(name), address, wire, dict(hello or {}))
        with self.changed:
            self.guests[guest.name] = guest
            instructions = {**self._hello, **(self._end or {})}
            self.changed.notify_all()
        wire.send(**instructions)
        while (line := wire.lines.get()) is not None:
            with self.changed:
                guest.said.update(line)
                self.changed.notify_all()
        with self.changed:
            guest.lost = True
            self.changed.notify_all()
        if self._end is None and self.guests.get(guest.name) is guest:
            self._say(f"lost the host {guest.name}" + (f": {guest.said['failed']}" if "failed" in guest.said else ""))
        wire.close()
