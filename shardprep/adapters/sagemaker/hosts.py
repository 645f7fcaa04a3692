"""The hosts of a job: who they are, which of them is the head, and reaching each other before all of them are up.

A Processing container has `config/resourceconfig.json` below /opt/ml, a training container `input/config/resourceconfig.json`
(docs.aws.amazon.com/sagemaker/latest/dg/build-your-own-processing-container.html and
your-algorithms-training-algo-running-container.html). The head is the first of the sorted hosts; a host's rank is its place
among them. Names sort as texts (algo-10 before algo-2), and nothing is read from their digits.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError, WorkerError

ML_ROOT = "/opt/ml"
PLACES = ("config/resourceconfig.json", "input/config/resourceconfig.json")  # Processing first, then training
CONNECT_S = 5.0
WAIT_S = 0.5
TELL_EVERY_S = 15.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Hosts:
    """All hosts of a job, sorted, and the one that this process runs on."""

    current: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.current not in self.names:
            raise ConfigError(f"the current host {self.current!r} is none of the job's hosts: {', '.join(self.names)}")

    @property
    def head(self) -> str:
        """Return the host that runs the job; the others give it their workers."""
        return self.names[0]

    @property
    def rank(self) -> int:
        """Return this host's place among the hosts, from 0."""
        return self.names.index(self.current)

    @property
    def is_head(self) -> bool:
        """Say whether this host is the head."""
        return self.current == self.head

    @property
    def others(self) -> tuple[str, ...]:
        """Return all hosts but the head."""
        return self.names[1:]


def find_hosts(ml_root: str = ML_ROOT) -> Hosts | None:
    """Return the hosts that the platform's file names; None where there is no such file: this is no SageMaker job.

    Keys that are not known are passed over, and a missing `current_host` is no harm on a single host. Raises ConfigError for
    a file that cannot be used.
    """
    for place in PLACES:
        path = Path(ml_root, place)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        return _parsed(data, str(path))
    return None


def _parsed(data: bytes, path: str) -> Hosts:
    try:
        value: Any = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object")
    current, names = value.get("current_host"), value.get("hosts")
    if names is None and isinstance(current, str):
        names = [current]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f'{path} names no hosts: "hosts" must be a list of names, got {names!r}')
    if current is None and len(names) == 1:
        current = names[0]
    if not isinstance(current, str):
        raise ConfigError(f'{path} does not say which host this is: "current_host" must be a name, got {current!r}')
    return Hosts(current, tuple(sorted(set(names))))


def bind_address(name: str) -> str:
    """Return the address that a host listens on: its own where its name is an address, else all of them.

    A name of one's own may resolve to loopback, as /etc/hosts has it, where the other hosts cannot reach it.
    """
    return name if _is_address(name) else "0.0.0.0"  # noqa: S104  the network between a job's hosts is theirs alone


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def connect(
    name: str,
    port: int,
    *,
    deadline_s: float,
    say: Say,
    source: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> socket.socket:
    """Return a connection to another host's port, tried until it is there: its name may not resolve at first.

    source: the own address to connect from. Raises WorkerError after deadline_s seconds.
    """
    began = clock()
    told = began
    while True:
        try:
            return socket.create_connection(
                (name, port), timeout=CONNECT_S, source_address=(source, 0) if source else None
            )
        except OSError as error:
            why = "its name is not known yet" if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            if not isinstance(error, socket.gaierror) and not error.errno:
                why = str(error)
        now = clock()
        if now - began >= deadline_s:
            raise WorkerError(
                f"the head {name} did not answer on port {port} within {deadline_s:g} s: {why}", host=name
            )
        if now - told >= TELL_EVERY_S:
            say(f"waiting for the head {name} (port {port}) since {now - began:.0f} s: {why}")
            told = now
        sleep(min(WAIT_S, max(0.0, deadline_s - (now - began))))
