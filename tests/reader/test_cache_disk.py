"""The disk under the cache: full, in memory, not writable, without locks; and where the folder is."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardprep.core.block import TokenBlock
from shardprep.errors import ConfigError, Denied, Full, StoreError
from shardprep.reader import held
from shardprep.reader.cache import ShardCache, default_folder
from shardprep.reader.entry import HEAD_BYTES
from shardprep.reader.entry_writer import EntryWriter
from shardprep.reader.folder import fault, made
from tests.reader.shards import local_shard

READER = Path(__file__).with_name("read_shards.py")
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("what", ["head", "tokens", "columns"])
def test_no_room_on_the_disk_is_said_and_leaves_nothing(tmp_path, what):
    """A limit on the size of a file, as a quota would have it."""
    ref = local_shard(tmp_path / "set")
    before_columns = EntryWriter(0, ref.info).columns_at
    limit = {"head": HEAD_BYTES - 1, "tokens": before_columns - 1, "columns": before_columns + 1}[what]
    arguments = [str(limit), str(READER), str(tmp_path / "set"), str(tmp_path / "cache"), "0", "0", "1"]
    # A coverage measurement of the child has a file of its own, which the limit would hit too.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", LIMITED, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("shardprep.errors.Full: no space left for shards in the cache folder")
    assert str(tmp_path / "cache") in last
    assert "cache_dir" in last
    assert os.listdir(tmp_path / "cache") == ["usage"]


def rows(number):
    columns = pa.record_batch({"id": [str(number)]})
    return TokenBlock(np.full(100, number, dtype=np.int32), np.array([0, 100]), columns)


def test_a_full_disk_is_tried_again_after_entries_went(tmp_path):
    """/dev/full refuses every byte; making space puts a real file in its place."""
    ref = local_shard(tmp_path / "set")
    file = os.open("/dev/full", os.O_RDWR)
    asked = []

    def make_space(size):
        asked.append(size)
        real = os.open(tmp_path / "entry", os.O_RDWR | os.O_CREAT)
        os.dup2(real, file)
        os.close(real)
        return True

    EntryWriter(file, ref.info, make_space).append(rows(7))
    assert asked == [400]
    assert np.fromfile(tmp_path / "entry", dtype=np.int32, offset=HEAD_BYTES).tolist() == [7] * 100
    os.close(file)


def test_a_full_disk_where_nothing_can_go(tmp_path):
    ref = local_shard(tmp_path / "set")
    file = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError, match="No space left") as caught:
        EntryWriter(file, ref.info).append(rows(7))
    os.close(file)
    error = fault(caught.value, "/somewhere")
    assert isinstance(error, Full)
    assert "no space left" in error.message


def test_a_folder_in_memory_is_refused(tmp_path):
    ours = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    line = "36 35 {}:{} / / rw,noatime shared:1 master:2 - {} none rw\n"
    for kind in ("tmpfs", "ramfs"):
        mounts.write_text("bad\n" + line.format(os.major(ours), os.minor(ours), kind))
        with pytest.raises(ConfigError, match=f"in memory .*{kind}.*SHARDPREP_CACHE_DIR"):
            made(str(tmp_path / "cache"), str(mounts))
    mounts.write_text(line.format(os.major(ours), os.minor(ours), "ext4"))
    assert made(str(tmp_path / "cache"), str(mounts)) == str(tmp_path / "cache")
    assert made(str(tmp_path / "cache"), str(tmp_path / "no such file")) == str(tmp_path / "cache")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/shm")
def test_shared_memory_is_refused():
    folder = f"/dev/shm/shardprep-test-{os.getpid()}"
    with pytest.raises(ConfigError, match="in memory"):
        ShardCache(folder)
    assert not os.path.exists(folder)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot keep shards in the cache folder .*file.*SHARDPREP_CACHE_DIR"):
        ShardCache(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, Full),
        (errno.EDQUOT, Full),
        (errno.EACCES, Denied),
        (errno.EROFS, Denied),
        (errno.EIO, StoreError),
    ],
)
def test_errors_of_the_disk(number, kind):
    error = fault(OSError(number, os.strerror(number)), "/data/cache")
    assert type(error) is kind
    assert "/data/cache" in error.message


def test_no_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    ref = local_shard(tmp_path / "set")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"no file locks.*local disk.*Lustre"):
        ShardCache(str(tmp_path / "cache")).get(ref)


def test_a_lock_file_that_was_replaced_while_it_was_waited_for(tmp_path):
    path = str(tmp_path / "lock")
    first = held.claim(path)
    assert held.claim(path) is None
    os.unlink(path)
    second = held.claim(path)
    assert second is not None
    assert held.names(path, second)
    assert not held.names(path, first)
    held.close(first), held.close(second)


@pytest.mark.parametrize(
    ("environment", "end"),
    [
        ({"XDG_CACHE_HOME": "/data/caches"}, "/data/caches/shardprep"),
        ({"XDG_CACHE_HOME": "relative"}, "/shardprep"),
        ({}, "/shardprep"),
    ],
)
def test_the_default_folder(environment, end):
    folder = default_folder(environment)
    assert folder.endswith(end)
    assert os.path.isabs(folder)
