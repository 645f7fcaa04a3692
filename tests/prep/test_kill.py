"""kill -9 of everything, of the driver, of one worker, of all workers, at seeded moments: the rerun ends in the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.prep.builds import assert_holds, assert_unpublished, assert_whole, documents, hashes, write_files

SLOW_BUILD = Path(__file__).with_name("slow_build.py")
DOCUMENTS = documents(2_000, seed=5, longest=40)
SETTINGS: dict[str, Any] = {"id_field": "id", "shards": 6, "split": "train=0.9,validation=0.1"}
END_S = 300.0
SLOW: dict[bool, list[Any]] = {True: [pytest.mark.slow], False: []}


class Running:
    """A build under way, in a process group of its own."""

    def __init__(self, folder: Path, source: Path, hold_after: int | None = None, **settings: Any) -> None:
        self.output, self.log = folder / "out", folder / f"log-{time.monotonic_ns()}"
        self._hold = Path(f"{self.log}.hold")
        if hold_after is not None:
            self._hold.touch()
        call = {
            "source": str(source),
            "output": str(self.output),
            "settings": SETTINGS | settings,
        }
        self._seen: dict[int, psutil.Process] = {}
        self.process = subprocess.Popen(
            [sys.executable, str(SLOW_BUILD), json.dumps(call)],
            env={**os.environ, "SLOW_BUILD_LOG": str(self.log), "SLOW_BUILD_HOLD": str(hold_after or 0)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def children(self) -> list[psutil.Process]:
        """Return all processes below the driver, and remember them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._seen[child.pid] = child
        return [child for child in self._seen.values() if child.is_running()]

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, and neither multiprocessing's resource tracker nor its fork server."""
        out = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                line, is_below = " ".join(child.cmdline()), child.ppid() != self.process.pid
                if "spawn_main" in line or ("forkserver" in line and is_below):
                    out.append(child)
        return out

    def go_on(self) -> None:
        """Let the scans go on that were held."""
        self._hold.unlink(missing_ok=True)

    def survivors(self, wait_s: float = 200.0) -> list[psutil.Process]:
        """Return which processes are still there some seconds later."""
        deadline = time.monotonic() + wait_s
        while (left := [c for c in self._seen.values() if _is_alive(c)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def wait_for_workers(self, count: int) -> list[psutil.Process]:
        """Return the workers once there are so many."""
        deadline = time.monotonic() + END_S
        while len(workers := self.workers()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return workers

    def staged(self) -> int:
        return len(list(self.output.glob("*/_staging/scan-*.json")))

    def shards(self) -> int:
        return len(list(self.output.glob("*/*/*.parquet")))

    def encoded(self) -> int:
        """Return how many scans began to tokenize."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def wait(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=END_S)
        return self.process.returncode, said

    def kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return write_files(folder, DOCUMENTS)


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], int]:
    """What a build without any accident makes, and how many tasks it tokenizes."""
    build = Running(tmp_path_factory.mktemp("right"), source, scheduler="serial")
    code, said = build.wait()
    assert code == 0, said
    assert_whole(build.output)
    assert_holds(build.output, DOCUMENTS)
    return hashes(build.output), build.encoded()


@contextlib.contextmanager
def running(folder: Path, source: Path, hold_after: int | None = None, **settings: Any) -> Iterator[Running]:
    build = Running(folder, source, hold_after, **settings)
    try:
        yield build
    finally:
        build.kill_all()


@dataclass(frozen=True)
class Moment:
    """When to kill: once so much was staged or written, and a little later. No more is scanned than that."""

    what: str
    count: int
    later_s: float

    @property
    def hold_after(self) -> int | None:
        return {"workers": 0, "staged": self.count, "shards": None}[self.what]

    def wait(self, build: Running) -> None:
        counts = {"workers": lambda: len(build.workers()), "staged": build.staged, "shards": build.shards}
        count: Callable[[], int] = counts[self.what]
        deadline = time.monotonic() + END_S
        while count() < self.count and build.process.poll() is None and time.monotonic() < deadline:
            build.children()
            time.sleep(0.01)
        build.children()
        time.sleep(self.later_s)


def moment(seed: int) -> Moment:
    rng = random.Random(seed)
    what, most = rng.choice([("workers", 2), ("staged", 7), ("staged", 7), ("shards", 8)])
    return Moment(what, rng.randint(1, most), rng.uniform(0, 0.2))


def quick(numbers: int, most: int) -> list[Any]:
    """Return seeds of which only the first few are part of the quick suite."""
    return [pytest.param(seed, marks=SLOW[seed >= numbers]) for seed in range(most)]


def assert_rerun_is_right(
    folder: Path, source: Path, right: tuple[dict[str, str], int], workers: int, begun: int, killed_workers: int
) -> None:
    """Run the same call with another number of workers; fail unless it redoes at most one task a worker that was killed."""
    staged = len(list((folder / "out").glob("*/_staging/scan-*.json")))
    published = (folder / "out" / "manifest.json").exists()
    with running(folder, source, workers=workers) as again:
        code, said = again.wait()
        assert code == 0, said
    assert hashes(again.output) == right[0]
    assert_whole(again.output)
    if not published:
        assert again.encoded() == right[1] - staged, "what was staged is not scanned again"
        assert begun + again.encoded() <= right[1] + killed_workers


@pytest.mark.parametrize("seed", quick(1, 10))
def test_everything_is_killed(seed: int, source: Path, right: tuple[dict[str, str], int], tmp_path: Path) -> None:
    rng = random.Random(seed)
    workers, then = rng.sample([1, 2, 3], 2)
    with running(tmp_path, source, moment(seed).hold_after, workers=workers) as build:
        moment(seed).wait(build)
        build.kill_all()
    assert not build.survivors()
    if build.process.returncode == -signal.SIGKILL and not (build.output / "manifest.json").exists():
        assert_unpublished(build.output)
    assert_rerun_is_right(tmp_path, source, right, then, build.encoded(), workers)


@pytest.mark.parametrize("seed", quick(1, 4))
def test_the_driver_is_killed(seed: int, source: Path, right: tuple[dict[str, str], int], tmp_path: Path) -> None:
    """Its workers end by themselves."""
    when = Moment("staged", 1 + seed, 0.05)
    with running(tmp_path, source, when.hold_after, workers=2) as build:
        when.wait(build)
        build.wait_for_workers(2)
        build.process.kill()
        build.process.wait(300)
        build.go_on()
        assert not build.survivors()
    assert_rerun_is_right(tmp_path, source, right, 1, build.encoded(), 2)


@pytest.mark.parametrize(
    ("all_of_them", "seed"),
    [
        pytest.param(
            all_of_them, seed, id=f"{'all' if all_of_them else 'one'}-{seed}", marks=SLOW[all_of_them or seed > 0]
        )
        for all_of_them in (False, True)
        for seed in range(5)
    ],
)
def test_workers_are_killed(
    seed: int, all_of_them: bool, source: Path, right: tuple[dict[str, str], int], tmp_path: Path
) -> None:
    """The run itself goes on to the end, and no document is blamed."""
    rng = random.Random(seed)
    when = Moment("staged", 1 + seed, rng.uniform(0, 0.2)) if seed < 3 else Moment("shards", seed - 2, 0.0)
    with running(tmp_path, source, when.hold_after, workers=2) as build:
        when.wait(build)
        workers = build.wait_for_workers(2)
        for worker in workers if all_of_them else rng.sample(workers, 1):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        build.go_on()
        code, said = build.wait()
        assert code == 0, said
        assert not build.survivors()
    assert hashes(build.output) == right[0]
    manifest = assert_whole(build.output)
    assert not manifest.ledger.set_aside
    facts = json.loads((build.output / manifest.plan / "build.json").read_bytes())
    assert facts["notes"] == []
    assert build.encoded() <= right[1] + len(workers)
