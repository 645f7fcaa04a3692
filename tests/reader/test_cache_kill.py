"""SIGKILL at any instant, and several jobs on one folder: the next run reads everything, without help."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardprep.reader.cache import ShardCache
from tests.reader.shards import assert_same_rows, local_shard, rows_of

READER = Path(__file__).with_name("read_shards.py")
SHARDS = 4


@pytest.fixture
def refs(tmp_path):
    return [local_shard(tmp_path / "set", seed) for seed in range(SHARDS)]


def start(tmp_path, limit, seed, times):
    command = [sys.executable, READER, tmp_path / "set", tmp_path / "cache", str(limit), str(seed), str(times)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    return process


def killed(process):
    process.kill()
    process.wait(300)
    process.stdout.close()


def assert_all_readable(tmp_path, refs, limit):
    cache = ShardCache(str(tmp_path / "cache"), limit or None)
    for seed, ref in enumerate(refs):
        assert_same_rows(cache.get(ref).view.block, rows_of(seed, 400))
    assert {name.split(".")[-1] for name in os.listdir(cache.folder)} <= {"rows", "usage"}
    if limit:
        assert sum(kept.size for kept in cache._room.files()) <= limit


def kill_and_continue(tmp_path, refs, kills):
    limit = 300_000  # two entries of four: there is always something to write
    rng = random.Random(7)
    parts = 0
    for number in range(100 * kills):
        if number >= kills and parts:
            break
        process = start(tmp_path, limit, number, 100_000)
        time.sleep(rng.uniform(0, 0.1))
        killed(process)
        names = os.listdir(tmp_path / "cache")
        parts += any(name.endswith(".part") for name in names)
        if number % 4 == 0:
            assert_all_readable(tmp_path, refs, limit)
    assert parts, "no kill fell into the writing of an entry"
    assert_all_readable(tmp_path, refs, limit)


def test_killed_and_started_again(tmp_path, refs):
    kill_and_continue(tmp_path, refs, 8)


@pytest.mark.slow
def test_killed_200_times(tmp_path, refs):
    kill_and_continue(tmp_path, refs, 200)


def test_two_jobs_on_one_folder_fetch_each_shard_once(tmp_path, refs):
    jobs = [start(tmp_path, 0, seed, 30) for seed in range(2)]
    misses = 0
    for job in jobs:
        out, _ = job.communicate(timeout=300)
        assert job.returncode == 0
        misses += int(out.split()[0])
    assert misses == len(refs)


def test_a_job_is_not_disturbed_by_the_death_of_another(tmp_path, refs):
    stays = start(tmp_path, 300_000, 0, 200)
    for seed in range(1, 4):
        dies = start(tmp_path, 300_000, seed, 100_000)
        time.sleep(0.03 * seed)
        killed(dies)
    out, _ = stays.communicate(timeout=300)
    assert stays.returncode == 0
    assert out.endswith("done\n")
    assert_all_readable(tmp_path, refs, 300_000)


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path, refs):
    """The parent forks while it writes an entry, and is killed: the child must not hold the lock for it."""
    program = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from shardprep.reader import filling
from shardprep.reader.cache import ShardCache
from tests.reader.shards import refs_in
(ref, *_) = refs_in(Path({str(tmp_path / "set")!r}))
def fork_instead(*_):
    if os.fork() == 0:
        print("child", os.getpid(), flush=True)
        time.sleep(600)
    time.sleep(600)
filling._copied = fork_instead
ShardCache({str(tmp_path / "cache")!r}).get(ref)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline().split()[1])
    try:
        killed(parent)
        assert any(name.endswith(".part") for name in os.listdir(tmp_path / "cache"))
        started = time.monotonic()
        assert_all_readable(tmp_path, refs, 0)
        assert time.monotonic() - started < 200
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, 9)
