"""The cap of the cache: it holds, for several processes at once; what is mapped stays; what is needed last goes first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from shardprep.errors import Full
from shardprep.reader import cache as cache_module
from shardprep.reader import held
from shardprep.reader.cache import NoRoom, ShardCache
from shardprep.reader.room import Room
from tests.reader.shards import assert_same_rows, local_shard, rows_of

READER = Path(__file__).with_name("read_shards.py")


@pytest.fixture
def refs(tmp_path):
    return [local_shard(tmp_path / "set", seed) for seed in range(6)]


@pytest.fixture
def entry_bytes(tmp_path, refs):
    """The size of the largest entry."""
    cache = ShardCache(str(tmp_path / "sizes"))
    for ref in refs:
        cache.get(ref).close()
    return max(kept.size for kept in cache._room.files())


def kept_of(cache, refs):
    digests = {kept.digest for kept in cache._room.files()}
    return [number for number, ref in enumerate(refs) if ref.info.sha256 in digests]


def used(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name != "usage")


def test_least_recently_used_goes_first(tmp_path, refs, entry_bytes):
    cache = ShardCache(str(tmp_path / "cache"), 3 * entry_bytes)
    for number in (0, 1, 2, 0, 3):
        cache.get(refs[number]).close()
        time.sleep(0.01)
    assert kept_of(cache, refs) == [0, 2, 3]
    assert used(cache.folder) <= cache.limit_bytes


def test_what_is_needed_last_goes_first(tmp_path, refs, entry_bytes):
    cache = ShardCache(str(tmp_path / "cache"), 3 * entry_bytes)
    cache.expect(refs[:5])
    for number in (0, 1, 2, 3):
        cache.get(refs[number]).close()
    assert kept_of(cache, refs) == [0, 1, 3]
    cache.expect([refs[3], refs[4], refs[0]])  # shard 1 is of nobody who is known, but was used a moment ago
    cache.get(refs[4]).close()
    assert kept_of(cache, refs) == [1, 3, 4]


def test_what_other_jobs_left_goes_before_ours(tmp_path, refs, entry_bytes, monkeypatch):
    cache = ShardCache(str(tmp_path / "cache"), 3 * entry_bytes)
    for number in (5, 0, 1):
        cache.get(refs[number]).close()
    old = os.path.join(cache.folder, f"{refs[5].info.sha256}.rows")
    os.utime(old, ns=(cache_module._started_ns - 1, os.stat(old).st_mtime_ns))
    cache.expect(refs[:5])
    cache.get(refs[2]).close()
    assert kept_of(cache, refs) == [0, 1, 2]


def test_what_is_mapped_stays_and_counts(tmp_path, refs, entry_bytes):
    cache = ShardCache(str(tmp_path / "cache"), 2 * entry_bytes)
    first, second = cache.get(refs[0]), cache.get(refs[1])
    with pytest.raises(NoRoom, match=r"limited to .*in use") as caught:
        cache.get(refs[2])
    assert isinstance(caught.value, Full)
    assert cache.folder in str(caught.value)
    assert kept_of(cache, refs) == [0, 1]
    assert_same_rows(first.view.block, rows_of(0, 400))
    second.close()
    assert_same_rows(cache.get(refs[2]).view.block, rows_of(2, 400))
    assert kept_of(cache, refs) == [0, 2]


def test_a_shard_larger_than_the_cap(tmp_path, refs):
    cache = ShardCache(str(tmp_path / "cache"), 1000)
    with pytest.raises(NoRoom, match="limited to 1,000 bytes"):
        cache.get(refs[0])
    assert os.listdir(cache.folder) == ["usage"]


def test_the_sum_is_too_large_after_a_crash_and_counted_anew_at_the_limit(tmp_path, refs, entry_bytes):
    cache = ShardCache(str(tmp_path / "cache"), 4 * entry_bytes)
    cache._room.take(3 * entry_bytes, lambda: None)  # as a process that was killed before it wrote
    for ref in refs[:4]:
        cache.get(ref).close()
    assert kept_of(cache, refs) == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"garbage of 12", b"x" * 100])
def test_a_damaged_sum_is_counted_anew(tmp_path, refs, entry_bytes, content):
    cache = ShardCache(str(tmp_path / "cache"), 2 * entry_bytes)
    cache.get(refs[0]).close()
    (tmp_path / "cache" / "usage").write_bytes(content)
    for ref in refs[1:]:
        cache.get(ref).close()
        assert used(cache.folder) <= cache.limit_bytes


def test_what_killed_processes_left_is_removed(tmp_path, refs, entry_bytes):
    folder = tmp_path / "cache"
    folder.mkdir()
    part, dead = folder / f"{'a' * 64}.part", folder / f"{'b' * 64}.{'0' * 16}.dead"
    for left in (part, dead):
        left.write_bytes(bytes(entry_bytes))
    cache = ShardCache(str(folder), 2 * entry_bytes)
    cache.get(refs[0]).close()
    assert not part.exists()
    assert not dead.exists()


def test_a_part_that_is_being_written_counts_and_stays(tmp_path, refs, entry_bytes):
    room = Room(str(tmp_path), None, list)
    part = tmp_path / f"{'a' * 64}.part"
    file = held.claim(str(part))
    os.ftruncate(file, entry_bytes)
    room.sweep()
    assert not room.free(1)
    assert part.exists()
    cache = ShardCache(str(tmp_path), 2 * entry_bytes - 1)
    with pytest.raises(NoRoom):
        cache.get(refs[0]), cache.get(refs[1])
    held.close(file)


def test_files_keep_their_names_while_somebody_counts(tmp_path, refs, monkeypatch):
    cache = ShardCache(str(tmp_path / "cache"))
    usage, entry = os.path.join(cache.folder, "usage"), os.path.join(cache.folder, f"{refs[0].info.sha256}.rows")
    counting = ExitStack()
    monkeypatch.setattr(cache_module, "is_written", lambda *_: counting.enter_context(held.alone(usage)))
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(cache.get, refs[0])
        with pytest.raises(TimeoutError):
            read.result(0.3)
        assert not os.path.exists(entry)
        counting.close()
        assert_same_rows(read.result(200).view.block, rows_of(0, 400))
    assert os.path.exists(entry)


def test_the_cap_holds_for_several_processes_at_once(tmp_path, refs, entry_bytes):
    limit = 4 * entry_bytes
    folder = tmp_path / "cache"
    folder.mkdir()
    commands = [[sys.executable, READER, tmp_path / "set", folder, str(limit), str(seed), "25"] for seed in range(3)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    most = 0
    while any(process.poll() is None for process in processes):
        sizes = []
        with held.alone(
            str(folder / "usage")
        ):  # else what went and what came during this scan would both be in the sum
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    sizes.append(entry.stat().st_size if entry.name != "usage" else 0)
        most = max(most, sum(sizes))
        time.sleep(0.001)
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0, out
        assert out.endswith(b"done\n")
    assert entry_bytes < most <= limit
