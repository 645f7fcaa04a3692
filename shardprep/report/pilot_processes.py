"""A command in a session of its own, with everything that it starts, ended as a whole."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shardprep.errors import ConfigError

POLL_S = 0.1
LAST_LINES = 20
LONGEST_LINE = 4_096  # characters of its last lines
PUMP_S = 2.0  # a daemon that the command left behind may hold its output open


class Command:
    """A running command; what it prints goes to `say` as it comes, and its last lines are kept.

    Raises ConfigError if it cannot be started.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], say: Callable[[str], None]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603  the user's own command
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its signals are sent by us: to all of it, and not to us
            )
        except OSError as error:
            raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from error
        self._mark = f"SHARDPREP_METRICS_DIR={env['SHARDPREP_METRICS_DIR']}" if "SHARDPREP_METRICS_DIR" in env else ""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._ending = False
        self._pump = threading.Thread(target=self._copy, args=(say,), name="shardprep-pilot-output", daemon=True)
        self._pump.start()

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, or None while it runs."""
        return self._process.poll()

    def end(self, grace_s: float) -> None:
        """End it with all that it started: SIGTERM, and SIGKILL for what is still there after so many seconds.

        What it has to say about that is not shown: torchrun prints a long traceback.
        """
        self._ending = self._process.poll() is None
        started = _descendants(self._process.pid, self._mark)
        try:
            if self._process.poll() is None or started:
                self._send(signal.SIGTERM, started)
                deadline = time.monotonic() + grace_s
                while time.monotonic() < deadline and (self._process.poll() is None or any(map(_lives, started))):
                    time.sleep(POLL_S)
        finally:
            self._send(signal.SIGKILL, [*started, *_descendants(self._process.pid, self._mark)])
            self._process.wait()

    def finish_output(self) -> None:
        """Wait for the last of what it printed."""
        self._pump.join(PUMP_S)
        if not self._pump.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, number: int, started: Sequence[tuple[int, str]]) -> None:
        """Send a signal to its process group, and to what it started outside: torchrun's workers have sessions of their own."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
        for process in started:
            if _lives(process):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process[0], number)

    def _copy(self, say: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        line = ""
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            text = decode(data)
            if not self._ending:
                with contextlib.suppress(OSError):  # whoever read it is gone; the command must not wait for a reader
                    say(text)
            *whole, line = (line + text).replace("\r", "\n").split("\n")
            self.last_lines.extend(one[-LONGEST_LINE:] for one in whole if one.strip())
            line = line[-LONGEST_LINE:]
        if line.strip():
            self.last_lines.append(line)


def say_to_stderr(text: str) -> None:
    """Write what a command printed."""
    sys.stderr.write(text)
    sys.stderr.flush()


def _descendants(pid: int, mark: str) -> list[tuple[int, str]]:
    """Return what a process started, and what that started: pairs of process id and when it began.

    mark  NAME=VALUE of their environment, by which, on Linux, those are found too whose parent has ended; "": none
    """
    table = _processes()
    marked = {one for one in table if one != pid and _has(one, mark)} if mark else set()
    found = [(one, table[one][1]) for one in sorted(marked)]
    parents = {pid, *marked}
    while True:
        more = {child for child, (parent, _) in table.items() if parent in parents and child not in parents}
        if not more:
            return found
        found += [(child, table[child][1]) for child in sorted(more)]
        parents |= more


def _has(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except OSError:  # another user's, or macOS
        return False


def _lives(process: tuple[int, str]) -> bool:
    """Tell whether it still runs: the same process, not another one with its number, and not one that is only unburied."""
    pid, began = process
    return _processes(pid).get(pid, (0, ""))[1] == began


def _processes(only: int | None = None) -> dict[int, tuple[int, str]]:
    """Return parent and beginning of the processes of this machine, those that have ended left out."""
    if os.path.isdir("/proc/self"):
        pids = [only] if only is not None else [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return {pid: found for pid in pids if (found := _from_proc(pid)) is not None}
    listing = subprocess.run(  # macOS
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="],  # noqa: S607
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return processes_of_ps(listing)


def processes_of_ps(listing: str) -> dict[int, tuple[int, str]]:
    """Return parent and beginning by process id, from what `ps -A -o pid=,ppid=,stat=,lstart=` prints."""
    table = {}
    for line in listing.splitlines():
        pid, parent, state, began = line.split(maxsplit=3)
        if not state.startswith("Z"):
            table[int(pid)] = (int(parent), began.strip())
    return table


def _from_proc(pid: int) -> tuple[int, str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name, in brackets, may hold anything; after it: state, parent, ..., and as the 20th the beginning.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])
