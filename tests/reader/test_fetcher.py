"""Fetching in forked children: a helper does it; it comes back when it dies, and ends when its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import psutil
import pytest

from shardprep.errors import ConfigError, ManifestError, NotFound, Unavailable
from shardprep.reader import helper as helper_module
from shardprep.reader.cache import ShardCache
from shardprep.reader.fetcher import reader_at
from shardprep.reader.helper import HelperReader
from shardprep.reader.ranges import ShardRanges
from tests.reader.shards import assert_same_rows, local_shard, rows_of, s3_shard

CHILD_S = 30


def in_forked_child(call):
    """Run a call in a forked child; return what went wrong there, "" for nothing. It may not take for ever."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        said = ""
        try:
            signal.alarm(CHILD_S)
            call()
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child hung, or died: {status}"
    return said


def test_a_forked_child_reads_from_s3(s3_env, s3_root, tmp_path):
    """The parent used the store: a child that did the same would hang."""
    refs = [s3_shard(s3_root, seed) for seed in range(3)]
    cache = ShardCache(str(tmp_path))
    cache.get(refs[0]).close()

    def read():
        assert_same_rows(ShardRanges(refs[1]).view(np.arange(0, 400)).block, rows_of(1, 400))
        for seed, ref in enumerate(refs):
            assert_same_rows(cache.get(ref).view.block, rows_of(seed, 400))
        assert isinstance(reader_at(s3_root), HelperReader)

    assert in_forked_child(read) == ""
    assert_same_rows(cache.get(refs[2]).view.block, rows_of(2, 400))
    assert cache.counts()["misses"] == 1
    assert not isinstance(reader_at(s3_root), HelperReader)


def test_a_forked_child_needs_no_helper_for_a_local_set(tmp_path):
    ref = local_shard(tmp_path / "set")
    cache = ShardCache(str(tmp_path / "cache"))

    def read():
        assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))
        assert not psutil.Process().children()

    assert in_forked_child(read) == ""


@pytest.fixture
def s3_helper(s3_env, s3_root):
    helper = HelperReader(s3_root, {}, "auto")
    yield helper
    helper.close()


def test_what_goes_wrong_in_the_helper_is_raised_here(s3_helper, s3_root, tmp_path):
    ref = s3_shard(s3_root)
    assert len(s3_helper.get(ref.info.name)) == ref.info.bytes == s3_helper.head(ref.info.name)[0]
    with pytest.raises(NotFound, match="nothing-here"):
        s3_helper.get_range("nothing-here", 0, 10)
    with pytest.raises(RuntimeError, match="TypeError"):
        s3_helper._ask("get_range", 1, 2, 3, 4, 5)

    def read():
        missing = s3_shard_missing(ref)
        with pytest.raises(ManifestError, match=r"nothing.parquet is missing"):
            ShardCache(str(tmp_path)).get(missing)

    assert in_forked_child(read) == ""


def s3_shard_missing(ref):
    from dataclasses import replace

    return replace(ref, info=replace(ref.info, name="nothing.parquet"))


def test_a_store_that_cannot_be_opened_there():
    helper = HelperReader("s3://bucket", {"request_payer": "somebody"}, "auto")
    with pytest.raises(ConfigError, match="request_payer"):
        helper.get("key")
    helper.close()


def test_a_helper_that_dies_is_replaced(s3_helper, s3_root, monkeypatch):
    ref = s3_shard(s3_root)
    assert len(s3_helper.get(ref.info.name)) == ref.info.bytes
    first = s3_helper._helper._process
    first.kill()
    assert len(s3_helper.get(ref.info.name)) == ref.info.bytes
    assert s3_helper._helper._process.pid != first.pid
    s3_helper.close()
    monkeypatch.setattr(helper_module, "_PROGRAM", "import sys; sys.exit(3)")
    with pytest.raises(Unavailable, match=r"died 3 times .*spawn"):
        s3_helper.get(ref.info.name)
    s3_helper._helper = None


def test_the_helper_ends_when_its_parent_is_killed(tmp_path):
    program = """
import os, sys, time
from shardprep.reader.helper import HelperReader
helper = HelperReader("memory://nothing", {}, "auto")
try:
    helper.get("key")
except Exception:
    print(helper._helper._process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    helper = psutil.Process(int(parent.stdout.readline()))
    assert helper.is_running()
    parent.kill()
    parent.wait(300)
    parent.stdout.close()
    deadline = time.monotonic() + 200
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the helper stayed"
        time.sleep(0.02)
