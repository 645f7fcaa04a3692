"""For all tests: one Hypothesis profile, one real S3 server, and no test may leave a thread or a child process behind."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.fault_proxy import FaultProxy
from tests.servers import BUCKET, SeaweedFS, set_environment

# Times on a busy machine say nothing about a property; CI draws the same examples each time.
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")

KEPT_THREADS = ("shardprep-fetch", "Profile", "IO loop", "Dask-", "pytest", "asyncio_", "ThreadPoolExecutor", "fsspec")
KEPT_CHILDREN = ("weed", "moto", "fault_proxy", "resource_tracker", "pytest", "execnet", "forkserver")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request):
    threads = set(threading.enumerate())
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    deadline = time.monotonic() + 60
    while (left := _left_behind(threads, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"{request.node.nodeid} left behind: {left}"


def _left_behind(threads, children):
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread not in threads and not thread.daemon and not thread.name.startswith(KEPT_THREADS)
    ]
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if (
                child.pid not in children
                and child.status() != psutil.STATUS_ZOMBIE
                and not any(k in command for k in KEPT_CHILDREN)
            ):
                left.append(f"{child.pid} {command[:80]}")
        except psutil.NoSuchProcess:
            continue
    return left


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


# Long ones of which shorter ones of the same kind are in the quick suite: `make test-slow` runs them all.
LONG = (
    "test_docs.py::test_the_snippets_of_a_page_run[training.md]",
    "test_C30_crash_and_full_disk.py::test_killed_ten_times_and_then_left_alone",
    "test_processing.py::TestInTheMiddle::test_a_stopped_job_continues_when_it_is_run_again[2-15]",
    "test_recordio_build.py::test_the_kth_put_fails",
    "test_build_s3.py::test_a_small_object_changes_after_the_listing[False]",
    "test_build_s3.py::test_a_large_object_between_two_of_its_ranges[cannot be read]",
    "test_build_s3.py::test_a_large_object_between_two_of_its_ranges[is deleted]",
    "test_build_s3.py::test_credentials_that_end_in_the_middle_set_nobody_aside[InvalidAccessKeyId]",
    "test_build_s3.py::test_credentials_that_end_in_the_middle_set_nobody_aside[SignatureDoesNotMatch]",
    "test_build_s3.py::test_one_key_always_fails[rule1-unreadable_object]",
    "test_signals.py::test_a_signal_ends_the_job_in_a_few_words[15-True-tasks_are_staged]",
    "test_signals.py::test_a_signal_ends_the_job_in_a_few_words[2-True-tasks_are_staged]",
    "test_transformers.py::test_training_killed_and_resumed_is_training",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.endswith(LONG):
            item.add_marker(pytest.mark.slow)
