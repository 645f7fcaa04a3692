"""The processes that one host of a job starts: pieces of the cluster, and on the head the build itself.

None outlives the one that started it: pieces end with their standard input, the build gets SIGTERM from the kernel. Each has
a session of its own, so that a Ctrl-C reaches only this process, which ends them in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from shardprep.adapters.sagemaker.message import scrubbed

END_S = 5.0
STOP_S = 20.0  # a build that is told to stop ends within a second or two
LINES_KEPT = 40
# PR_SET_PDEATHSIG is 1 (prctl(2)): a build whose supervisor was killed must not go on alone. One that then waits for a
# scheduler that is gone as well would hear it half a minute later: it is ended with all that it started.
BUILD = """
import ctypes, os, runpy, signal, sys, threading, time

def end_without(parent):
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(3.0)
    os.killpg(0, signal.SIGKILL)

parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != parent:  # killed before the kernel was told
    sys.exit(143)
threading.Thread(target=end_without, args=(parent,), name="shardprep-parent", daemon=True).start()
runpy.run_module("shardprep", run_name="__main__", alter_sys=True)
"""
Line = dict[str, Any]


class Piece:
    """One piece of the cluster (shardprep.prep.cluster); `on_line` gets what it says, and None when it has ended."""

    def __init__(self, arguments: list[str], on_line: Callable[[Line | None], None], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "shardprep.prep.cluster", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, args=(on_line,), name="shardprep-piece", daemon=True)
        self._thread.start()

    def _listen(self, on_line: Callable[[Line | None], None]) -> None:
        assert self.process.stdout is not None
        for data in self.process.stdout:
            with suppress(ValueError):
                on_line(json.loads(data))
        self.process.wait()
        on_line(None)

    def close(self, *, patience_s: float = END_S) -> None:
        """End the process, by force where it takes too long, and with it what it started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        end_group(self.process, patience_s)
        self._thread.join(1.0)
        self.process.stdout.close()


def end_group(process: subprocess.Popen[Any], patience_s: float) -> None:
    """Wait for a process that was told to end, then kill what is left of its session."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Build:
    """A `shardprep build` with a job file: its standard error goes through, its one JSON object is kept."""

    def __init__(self, job_file: str, flags: list[str], env: Mapping[str, str], shown: Callable[[str], str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-c", BUILD, str(os.getpid()), "build", "--config", job_file, "--json", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._shown = shown
        self._out: list[str] = []
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._threads = [
            threading.Thread(target=self._keep, args=(self.process.stdout,), name="shardprep-out", daemon=True),
            threading.Thread(target=self._pass_on, args=(self.process.stderr,), name="shardprep-err", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _keep(self, stream: IO[str]) -> None:
        self._out.append(stream.read())

    def _pass_on(self, stream: IO[str]) -> None:
        for line in stream:
            shown = scrubbed(self._shown(line.rstrip("\n")))
            self._said.append(shown)
            sys.stderr.write(shown + "\n")
            sys.stderr.flush()

    def poll(self, timeout_s: float) -> int | None:
        """Return the exit code, None where it still runs after timeout_s seconds."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, number: int) -> int:
        """Send a signal, and by force end what does not heed it; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        end_group(self.process, STOP_S)
        return self.process.returncode

    def result(self) -> Line:
        """Return the JSON object, {} where there is none, and let go of the pipes. To be called when it has ended."""
        end_group(self.process, 0.0)
        for thread in self._threads:
            thread.join(5.0)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        try:
            value = json.loads(self._shown("".join(self._out)))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def last_words(self) -> str:
        """Return the last line that says why it failed, "" where there is none."""
        lines = [line for line in self._said if line.strip()]
        ours = [line.removeprefix("shardprep: ") for line in lines if line.startswith("shardprep: ")]
        return (ours or lines or [""])[-1]
