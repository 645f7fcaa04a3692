"""Simulated Processing jobs: each host is a real process with an ML folder of its own and an address 127.0.0.x."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shardprep.storage.store import open_store
from tests.prep.builds import TOKENIZER
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "pipelines" / "sagemaker_processing.py"
FLAGS = ("--tokenizer", str(TOKENIZER), "--id-field", "id", "--shards", "3", "--split", "train=0.9,validation=0.1")
END_S = 400.0  # of a job on a machine that does much else


@dataclass
class Host:
    """One host: its name, its ML folder, and its process once it has started."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        path = self.folder / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def printed(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def message(self) -> str:
        return (self.folder / "output" / "message").read_bytes().decode()

    def tree(self) -> list[psutil.Process]:
        """Return this host's process and all below it."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def kill(self) -> None:
        """End everything on this host at once, as when its machine is taken away."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)  # none may start another one meanwhile
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert self.process is not None
        self.process.wait(300)


@dataclass
class Job:
    """Hosts 127.0.0.1, 127.0.0.2 ...; `arguments` are those of the entry point, the same on all."""

    folder: Path
    count: int
    arguments: Sequence[str]
    deadline_s: float = 300.0
    hosts: list[Host] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [f"127.0.0.{number + 1}" for number in range(self.count)]
        self.ports = {"--port": free_port(), "--scheduler-port": 0}
        for name in names:
            folder = self.folder / f"host-{name}"
            (folder / "config").mkdir(parents=True, exist_ok=True)
            what = {"current_host": name, "hosts": names[::-1], "network_interface_name": "eth0"}
            (folder / "config" / "resourceconfig.json").write_text(json.dumps(what))
            self.hosts.append(Host(name, folder))

    @property
    def head(self) -> Host:
        return self.hosts[0]

    def start(self, *numbers: int, deadline_s: float = 0.0) -> None:
        """Start these hosts, all where none is named; deadline_s: theirs, where it is not the job's."""
        for number in numbers or range(self.count):
            host = self.hosts[number]
            command = [
                sys.executable, str(ENTRY), *self.arguments, "--ml-root", str(host.folder),
                "--start-deadline", str(deadline_s or self.deadline_s),
                "--scratch", str(host.folder / "tmp"),
                *(word for flag, port in self.ports.items() for word in (flag, str(port))),
            ]  # fmt: skip
            with (host.folder / "stdout").open("wb") as out, (host.folder / "stderr").open("wb") as err:
                host.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, start_new_session=True
                )

    def wait(self) -> list[int]:
        """Wait for all hosts that were started and return their exit codes."""
        deadline = time.monotonic() + END_S
        started = [host for host in self.hosts if host.process is not None]
        try:
            return [host.process.wait(max(0.1, deadline - time.monotonic())) for host in started]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job does not end:\n{self.log}") from None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a moment in the job's life."""
        deadline = time.monotonic() + END_S
        while not condition():
            assert time.monotonic() < deadline, f"that moment never came:\n{self.log}"
            assert self.head.process is None or self.head.process.poll() is None, f"the head has ended:\n{self.log}"
            time.sleep(0.1)

    def assert_no_process_is_left(self) -> None:
        mark = f"{self.folder}{os.sep}host-"
        deadline = time.monotonic() + 200
        left: list[str] = []
        while time.monotonic() < deadline:
            left = [" ".join(p.info["cmdline"]) for p in psutil.process_iter(["cmdline"]) if _has(p, mark)]
            if not left:
                return
            time.sleep(0.1)
        raise AssertionError(f"processes are left: {left}")

    @property
    def log(self) -> str:
        return "\n".join(f"---- {host.name}\n{host.said}" for host in self.hosts)


def _has(process: psutil.Process, mark: str) -> bool:
    return any(mark in word for word in process.info["cmdline"] or ()) and process.status() != psutil.STATUS_ZOMBIE


@contextlib.contextmanager
def job(folder: Path, count: int, *arguments: str, deadline_s: float = 300.0) -> Iterator[Job]:
    """A job that has not started yet; what is left of it at the end is killed."""
    made = Job(folder, count, arguments, deadline_s)
    try:
        yield made
    finally:
        for host in made.hosts:
            if host.process is not None and host.process.poll() is None:
                host.kill()


def hashes_at(uri: str) -> dict[str, str]:
    """Return name -> sha256 of every file of a data set in a store, but build.json (see tests/prep/builds.py)."""
    store = open_store(uri)
    names = [key for page in store.list() for key in page.keys.to_pylist() if not key.endswith("/build.json")]
    return {name: hashlib.sha256(store.get(name)).hexdigest() for name in names}


def staged_at(uri: str) -> dict[str, str]:
    """Return name -> ETag of the finished scan tasks in the staging folder of an unfinished build."""
    found: dict[str, str] = {}
    for page in open_store(uri).list():
        found |= {k: e for k, e in zip(page.keys.to_pylist(), page.etags.to_pylist(), strict=True) if "/scan-" in k}
    return {name: etag for name, etag in found.items() if name.endswith(".json")}


def put(uri: str, files: dict[str, bytes]) -> None:
    """Put files below a URI."""
    store = open_store(uri)
    for name, data in files.items():
        store.put(name, data)


def lines(values: list[Any]) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()
