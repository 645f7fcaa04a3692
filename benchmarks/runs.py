"""Run a command as a person would and measure it from outside: wall time, CPU of its whole tree, peak memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Run:
    """One finished command.

    wall_s         from the start of the process to its end, imports and start-up included
    cpu_s          user and system time of the process and of all its descendants, those too that outlived it
    driver_bytes   peak resident memory of the process itself; 0 unless memory was watched
    worker_bytes   peak resident memory of the largest of its descendants; 0 unless memory was watched
    """

    wall_s: float
    cpu_s: float
    returncode: int
    output: str
    killed: bool = False
    driver_bytes: int = 0
    worker_bytes: int = 0

    def check(self) -> Run:
        """Return this run; end the benchmark with the command's last words if it failed."""
        if self.returncode:
            sys.exit(f"the command ended with {self.returncode}; its last words:\n{self.output[-3000:]}")
        return self


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float = 900,
    watch_memory: bool = False,
    kill_when: Callable[[], bool] | None = None,
) -> Run:
    """Run a command to its end, or kill -9 its whole tree after limit_s or once kill_when() is true.

    Memory is sampled only when asked for: reading /proc five times a second would cost two cores a few percent.
    """
    _adopt_orphans()
    others = {child.pid for child in psutil.Process().children()}  # such as a server: not this command's
    with tempfile.TemporaryFile() as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **(env or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        watcher = _Watcher(process.pid, begun + limit_s, watch_memory, kill_when)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begun
        cpu_s = usage.ru_utime + usage.ru_stime + _cpu_of_orphans(others)
        process.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for it again
        watcher.stop()
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Run(
        wall_s,
        cpu_s,
        process.returncode,
        text,
        watcher.killed,
        watcher.peaks.get(process.pid, 0),
        max((peak for pid, peak in watcher.peaks.items() if pid != process.pid), default=0),
    )


def _adopt_orphans() -> None:
    """Become the parent of processes whose own ended (Linux): a fork server and its workers outlive the command by a moment."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # prctl(2)
        ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0)


def _cpu_of_orphans(others: set[int]) -> float:
    """Wait for what the command left behind, and return its CPU seconds; what does not end by itself is not counted."""
    total, deadline = 0.0, time.monotonic() + 10
    while left := [child.pid for child in psutil.Process().children() if child.pid not in others]:
        for pid in left:
            done, _, usage = os.wait4(pid, os.WNOHANG)
            total += (usage.ru_utime + usage.ru_stime) if done else 0.0
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return total


@dataclass
class _Watcher:
    """A thread beside the command: looks at its memory, and kills it when it is time."""

    pid: int
    deadline: float
    watch_memory: bool
    kill_when: Callable[[], bool] | None
    peaks: dict[int, int] = field(default_factory=dict)
    killed: bool = False

    def start(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02 if self.kill_when else 0.2):
            if self.watch_memory:
                for process in tree(self.pid):
                    self.peaks[process.pid] = max(self.peaks.get(process.pid, 0), peak_bytes(process))
            if time.monotonic() > self.deadline or (self.kill_when is not None and self.kill_when()):
                self.killed = True
                for process in tree(self.pid):
                    try:
                        process.kill()
                    except psutil.NoSuchProcess:
                        continue
                return


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; none if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def peak_bytes(process: psutil.Process) -> int:
    """Return the largest resident memory that a process has had so far (Linux), or has now (elsewhere)."""
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return int(process.memory_info().rss)
    except (OSError, psutil.Error):
        return 0
