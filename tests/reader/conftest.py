"""Fixtures of the reader's tests: a real S3 server, one per session, and the fault proxy before it."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # servers.py, fault_proxy.py

from fault_proxy import FaultProxy
from servers import BUCKET, SeaweedFS, set_environment


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as server:
        yield server


@pytest.fixture
def s3_env(s3_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """The environment points to SeaweedFS."""
    set_environment(monkeypatch, s3_server.endpoint)
    return s3_server


@pytest.fixture
def s3_faults(s3_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A fault proxy before SeaweedFS; the environment points to the proxy."""
    with FaultProxy(s3_server.port) as proxy:
        set_environment(monkeypatch, proxy.endpoint)
        yield proxy


@pytest.fixture
def s3_root() -> str:
    """A place of its own for each test."""
    return f"s3://{BUCKET}/t-{uuid.uuid4().hex[:12]}"
