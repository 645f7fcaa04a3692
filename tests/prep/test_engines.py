"""Who runs the tasks makes no difference to a single byte; and an engine that cannot run says why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardprep.errors import ConfigError, WorkerError
from shardprep.prep import engine
from tests.prep.builds import (
    assert_holds,
    assert_whole,
    build_here,
    command,
    documents,
    hashes,
    manifest_of,
    run,
    write_files,
    write_lines,
)
from tests.servers import free_port

SETTINGS = {"split": "train=0.8,validation=0.2", "columns": ("label:int64",), "shards": 3}
FLAGS = ("--split", "train=0.8,validation=0.2", "--column", "label:int64", "--shards", "3")
SCHEDULER = "from distributed.cli.dask_scheduler import main; main()"
WORKER = "from distributed.cli.dask_worker import main; main()"
OTHER_VERSIONS = """
import shardprep.prep.engine as engine
real = engine.package_versions()
engine.package_versions = lambda: {**real, "pyarrow": "1.0.0"}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """Small files, a large line file that becomes byte ranges, and a few documents that are set aside."""
    folder = tmp_path_factory.mktemp("corpus")
    small, large = documents(500, seed=1), documents(6000, seed=2)
    write_files(folder, small)
    write_files(folder, [{"id": "bad", "text": 5}, {"id": "worse"}], prefix="bad")
    write_lines(folder / "large.jsonl", [*large[:3000], "{broken", *large[3000:]])
    return folder, small + large


@pytest.fixture(scope="module")
def serial(corpus: tuple[Path, list[dict[str, object]]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("serial")
    build_here(corpus[0], output, tokenizer_backend="reference", **SETTINGS)
    manifest = assert_whole(output)
    assert_holds(output, corpus[1])
    assert sum(manifest.ledger.set_aside.values()) == 3
    return hashes(output)


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code in a process of its own, ended at the end."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=quiet, stderr=quiet) as started:
        try:
            yield started
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(60)
            started.kill()


@contextlib.contextmanager
def scheduler() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a Dask scheduler on loopback."""
    port = free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
    with process(SCHEDULER, *where) as started:
        yield f"tcp://127.0.0.1:{port}", started


def worker(address: str, before: str = "") -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return process(before + WORKER, address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")


def test_fast_backend_gives_the_same_bytes(
    corpus: tuple[Path, list[dict[str, object]]], serial: dict[str, str], tmp_path: Path
) -> None:
    build_here(corpus[0], tmp_path / "out", tokenizer_backend="fast", **SETTINGS)
    assert hashes(tmp_path / "out") == serial
    facts = json.loads((tmp_path / "out" / manifest_of(tmp_path / "out").plan / "build.json").read_bytes())
    assert facts["tokenizer_backends"] == ["fast:fastokens"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_local_workers_give_the_same_bytes(
    workers: int, corpus: tuple[Path, list[dict[str, object]]], serial: dict[str, str], tmp_path: Path
) -> None:
    done = run([*command(corpus[0], tmp_path / "out", *FLAGS, "--workers", str(workers)), "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == len(corpus[1])
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert hashes(tmp_path / "out") == serial


def test_a_running_scheduler_gives_the_same_bytes(
    corpus: tuple[Path, list[dict[str, object]]], serial: dict[str, str], tmp_path: Path
) -> None:
    with scheduler() as (address, _), worker(address), worker(address):
        remote = [*FLAGS, "--scheduler", address]
        refused = run(command(corpus[0], tmp_path / "refused", *remote))
        assert refused.returncode == 2
        assert "--shared-filesystem" in refused.stderr
        assert not (tmp_path / "refused").exists()

        done = run(command(corpus[0], tmp_path / "out", *remote, "--shared-filesystem"))
        assert done.returncode == 0, done.stderr
        assert hashes(tmp_path / "out") == serial
    assert_whole(tmp_path / "out")


def test_a_worker_with_other_packages_is_refused(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", documents(3))
    with scheduler() as (address, _), worker(address, OTHER_VERSIONS):
        done = run(command(source, tmp_path / "out", "--scheduler", address, "--shared-filesystem"))
    assert done.returncode == 2, done.stderr
    assert "pyarrow 1.0.0 (here " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_no_scheduler_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CONNECT_DEADLINE_S", 1.0)
    address = f"tcp://127.0.0.1:{free_port()}"
    source = write_files(tmp_path / "in", documents(3))
    with pytest.raises(WorkerError, match=f"no Dask scheduler answers at {address}") as caught:
        build_here(source, tmp_path / "out", scheduler=address, shared_filesystem=True)
    assert caught.value.exit_code == 1


def test_a_scheduler_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "NO_WORKERS_DEADLINE_S", 1.0)
    source = write_files(tmp_path / "in", documents(3))
    with scheduler() as (address, _), pytest.raises(WorkerError, match="has no workers") as caught:
        build_here(source, tmp_path / "out", scheduler=address, shared_filesystem=True)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("what", ["source", "output", "staging"])
def test_local_paths_on_other_machines_are_refused_at_once(what: str, tmp_path: Path) -> None:
    remote = {"source": "s3://bucket/in", "output": "s3://bucket/out", "staging": "s3://bucket/staging"}
    places = {**remote, what: str(tmp_path / what)}
    with pytest.raises(ConfigError, match=f"the {what} .* is a local path.*--shared-filesystem"):
        build_here(places["source"], places["output"], staging=places["staging"], scheduler="tcp://127.0.0.1:1")


def test_the_scheduler_goes_away(tmp_path: Path) -> None:
    """The job ends with a message, not in a traceback and not never; and the same call continues elsewhere."""
    source = write_lines(tmp_path / "in.jsonl", documents(40_000, seed=3, longest=120))
    output = tmp_path / "out"
    with scheduler() as (address, its_process), worker(address):
        started = subprocess.Popen(
            command(source, output, "--scheduler", address, "--shared-filesystem"), stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 200
        while not list(output.rglob("scan-*.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(its_process.pid, signal.SIGKILL)
        _, said = started.communicate(timeout=300)
    assert started.returncode == 1, said
    assert "the same command" in said
    assert "Traceback" not in said
    assert not (output / "manifest.json").exists()
    build_here(source, output)
    assert_whole(output)
