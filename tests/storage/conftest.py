"""Fixtures of the storage tests: real servers, one of each per session, and stores on them."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # servers.py, fault_proxy.py

from servers import BUCKET, Moto

from shardprep.storage.inflight import InFlight
from shardprep.storage.store import Store, open_store


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Moto]:
    with Moto() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A place of its own for each test."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def s3_root(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture(params=["local", "obstore", "s3fs", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Store:
    """One store of each kind, empty."""
    if request.param == "local":
        return open_store(str(tmp_path))
    if request.param == "memory":
        return open_store(f"memory://{prefix}")
    request.getfixturevalue("s3_env")
    return open_store(f"s3://{BUCKET}/{prefix}", kind="fsspec" if request.param == "s3fs" else "auto")


@pytest.fixture
def limit() -> InFlight:
    return InFlight()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No test leaves a thread at work. The pools of `fetch` and of s3fs stay, and are idle."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 60
    while (left := _began_since(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def _began_since(before: set[threading.Thread]) -> list[str]:
    return [
        t.name
        for t in threading.enumerate()
        if t not in before and not t.name.startswith(("shardprep-fetch", "fsspecIO", "asyncio"))
    ]
