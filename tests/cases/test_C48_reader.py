import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.cases.command import environment
from tests.cases.reading import documents, once

PROGRAM = Path(__file__).with_name("two_ranks.py")
FIRST_S, EPOCH_S = 200, 300  # a machine may be busy


class Job:
    """two_ranks.py in a process group of its own."""

    def __init__(self, root, cache, pause):
        command = [sys.executable, PROGRAM, root, cache, str(pause)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, env=environment()
        )
        self.unread, self.lines = b"", {"first": [], "done": []}

    def said(self, what, within_s):
        """Return the lines of both ranks that say `what`, once they are there."""
        deadline = time.monotonic() + within_s
        while len(self.lines[what]) < 2:
            left = deadline - time.monotonic()
            assert left > 0, f"no {what} within {within_s} s"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                assert data, f"the job ended without {what}"
                *whole, self.unread = (self.unread + data).split(b"\n")
                for line in map(json.loads, whole):
                    self.lines[line[0]].append(line)
        return self.lines[what]

    def full_epoch(self):
        ids = Counter(name for line in self.said("done", EPOCH_S) for name in line[2])
        assert ids == once(1000)
        assert self.process.wait(300) == 0

    def ranks(self):
        return psutil.Process(self.process.pid).children()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(300)

    def close(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path):
    jobs = []
    root = documents(tmp_path, 1000, 10).root

    def started(pause):
        jobs.append(Job(root, tmp_path / "cache", pause))
        return jobs[-1]

    yield started
    for job in jobs:
        job.close()


def assert_no_shared_memory(job):
    """No mapping and no open file of a running rank lies in shared memory: so none can be left there."""
    for rank in job.ranks():
        maps = Path(f"/proc/{rank.pid}/maps").read_text()
        links = []
        for entry in os.scandir(f"/proc/{rank.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # its threads open and close files
                links.append(os.readlink(entry.path))
        assert links
        for what in (*maps.splitlines(), *links):
            assert "/dev/shm" not in what
            assert "SYSV" not in what
            assert "/memfd:" not in what


def test_killed_10_times_in_the_middle_of_an_epoch_and_started_again(start, tmp_path):
    chance = random.Random(48)
    for number in range(10):
        job = start(0.02)
        if number < 3:  # also while the first shards are fetched
            time.sleep(0.3 + 0.15 * number)
        else:
            job.said("first", FIRST_S)
            time.sleep(chance.uniform(0, 0.3))
        job.kill()
    last = start(0)
    last.said("first", FIRST_S)
    last.full_epoch()
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".rows", ""}


def test_two_jobs_on_one_cache_and_one_of_them_killed(start):
    stays, dies = start(0.02), start(0.02)
    stays.said("first", FIRST_S)
    dies.said("first", FIRST_S)
    dies.kill()
    again = start(0)
    again.said("first", FIRST_S)
    again.full_epoch()
    stays.full_epoch()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_in_shared_memory_while_it_runs_or_afterwards(start):
    job = start("hold")
    job.said("first", FIRST_S)
    assert len(job.ranks()) == 2
    assert_no_shared_memory(job)
    job.process.stdin.close()
    job.full_epoch()
    assert [name for name in os.listdir("/dev/shm") if "shardprep" in name] == []
