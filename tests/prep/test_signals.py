"""Ctrl-C and SIGTERM end a job in a few words, with nothing left; and a fork of a process that built can build."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.prep.builds import (
    TOKENIZER,
    assert_holds,
    assert_whole,
    build_here,
    command,
    documents,
    run,
    write_files,
    write_lines,
)

DOCUMENTS = documents(40_000, seed=3, longest=120)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("source") / "big.jsonl", DOCUMENTS)


def alive(group: int) -> list[str]:
    """Return what of a process group still runs: zombies whose parent is gone do not."""
    told = subprocess.run(["ps", "-eo", "pgid=,stat=,pid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 2) for line in told.splitlines()]
    return [rest for pgid, state, rest in lines if pgid == str(group) and not state.startswith("Z")]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short path: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as folder:
        yield Path(folder)


def workers_start(temporary: Path, output: Path) -> bool:
    return any(temporary.glob("pymp-*"))


def tasks_are_staged(temporary: Path, output: Path) -> bool:
    return any(output.rglob("scan-*.json"))


@pytest.mark.parametrize("moment", [workers_start, tasks_are_staged])
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_a_signal_ends_the_job_in_a_few_words(
    number: signal.Signals,
    whole_group: bool,
    moment: Callable[..., bool],
    source: Path,
    tmp_path: Path,
    temporary: Path,
) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        command(source, tmp_path / "out", "--workers", "2"), stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    ) as build:  # fmt: skip
        try:
            deadline = time.monotonic() + 200
            while not moment(temporary, tmp_path / "out") and time.monotonic() < deadline:
                time.sleep(0.01)
            if whole_group:
                os.killpg(build.pid, number)
            else:
                build.send_signal(number)
            _, said = build.communicate(timeout=300)
            deadline = time.monotonic() + 200
            while (left_alive := alive(build.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGKILL)
    assert build.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], said
    lines = [line for line in said.splitlines() if not line.startswith("tokenizer: ")]
    assert len(lines) == 1, said
    assert lines[0].endswith("the same command continues")
    left = [path.relative_to(temporary).as_posix() for path in temporary.rglob("*")]
    assert [name for name in left if not name.startswith("dask-scratch-space")] == []
    assert left_alive == []
    assert not (tmp_path / "out" / "manifest.json").exists()
    if number == signal.SIGTERM and whole_group and moment is tasks_are_staged:
        build_here(source, tmp_path / "out")
        assert_whole(tmp_path / "out")


FORKS = """
import os, sys
import shardprep

def build(output):
    return shardprep.build(sys.argv[1], output, tokenizer=sys.argv[2], id_field="id", workers=1, progress=False)

if __name__ == "__main__":
    build(sys.argv[3] + "/before")
    child = os.fork()
    if not child:
        build(sys.argv[3] + "/child")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    build(sys.argv[3] + "/after")
"""


def test_a_fork_of_a_process_that_built_can_build(tmp_path: Path) -> None:
    values = documents(30)
    source = write_files(tmp_path / "in", values)
    (tmp_path / "forks.py").write_text(FORKS)
    done = run([sys.executable, str(tmp_path / "forks.py"), str(source), str(TOKENIZER), str(tmp_path)], timeout_s=300)
    assert done.returncode == 0, done.stderr
    for name in ("before", "child", "after"):
        assert_holds(tmp_path / name, values)


def test_a_folder_for_temporary_files_with_a_long_path(tmp_path: Path) -> None:
    """A socket's path holds 107 bytes; schedulers of clusters give folders that are longer."""
    source, long = write_files(tmp_path / "in", documents(5)), tmp_path / ("x" * 100)
    long.mkdir()
    done = run(command(source, tmp_path / "out", "--workers", "1"), env={"TMPDIR": str(long)}, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert_holds(tmp_path / "out", documents(5))


IMPORTING = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from shardprep.prep.signals import Terminated, heeding_signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it puts into the background with it ignored
try:
    with heeding_signals():
        import slow  # the signal comes in it; it swallows what is raised in it, as some modules do
        time.sleep(60)
except (KeyboardInterrupt, Terminated) as error:
    print(type(error).__name__, "slow" in sys.modules, slow.swallowed)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
SLOW = """
import os, signal, sys, time
swallowed = False
try:
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep(0.3)
except BaseException:
    swallowed = True
"""


@pytest.mark.parametrize(("number", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated")])
def test_a_signal_during_an_import_is_raised_after_it(number: str, raised: str, tmp_path: Path) -> None:
    """An exception in the middle of an import leaves locks held, or is lost."""
    (tmp_path / "slow.py").write_text(SLOW)
    done = run([sys.executable, "-c", IMPORTING, str(tmp_path), number], timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [raised, "True", "False"]
