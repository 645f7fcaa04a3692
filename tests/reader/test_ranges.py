"""Rows by range: only what is needed is fetched, nothing twice, and damage is told with the shard's name."""

from __future__ import annotations

import gc
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest

from shardprep.errors import ManifestError, Unavailable
from shardprep.formats import parquet
from shardprep.reader import reading as reading_module
from shardprep.reader.cache import ShardCache
from shardprep.reader.fetcher import reader_at
from shardprep.reader.ranges import ShardRanges
from shardprep.reader.reading import share
from shardprep.storage import objects
from shardprep.storage.retry import RetryPolicy
from shardprep.storage.store import open_store
from tests.reader.shards import assert_same_rows, local_shard, rows_of, s3_shard


def assert_covers(view, seed, first, stop):
    assert view.first <= first
    assert view.first + view.block.rows >= stop
    assert_same_rows(view.block, rows_of(seed, 400).slice(view.first, view.first + view.block.rows))


def read_bytes(ref):
    return reader_at(ref.uri).counts()["bytes_read"]


@pytest.mark.parametrize(
    ("first", "stop"), [(0, 1), (99, 100), (100, 101), (99, 101), (0, 400), (399, 400), (150, 350)]
)
def test_the_groups_that_cover_the_rows(tmp_path, first, stop):
    ref = local_shard(tmp_path)
    view = ShardRanges(ref).view(np.arange(first, stop))
    assert_covers(view, 0, first, stop)
    assert view.first == first // 100 * 100
    assert view.block.rows == (-(-stop // 100) - first // 100) * 100


def test_only_the_footer_and_one_group_are_fetched(s3_env, s3_root):
    ref = s3_shard(s3_root, groups=20)
    ranges = ShardRanges(ref)
    for first in (3, 5, 19):  # of the same group
        assert_covers(ranges.view(np.arange(first, first + 1)), 0, first, first + 1)
    assert ref.info.footer_bytes < read_bytes(ref) < ref.info.bytes / 4
    assert reader_at(ref.uri).counts()["get"] == 2


def test_views_of_several_shards_at_once(s3_env, s3_root):
    refs = [s3_shard(s3_root, seed) for seed in range(5)]
    views = [ranges.start(np.arange(120, 130)) for ranges in map(ShardRanges, refs)]
    for seed, view in enumerate(views):
        assert_covers(view.result(), seed, 120, 130)


def test_nothing_is_fetched_twice_by_range_and_for_the_cache(s3_env, s3_root, tmp_path):
    """First batches and the cache at once, in every order: all bytes of the shard, once."""
    cache = ShardCache(str(tmp_path))
    refs = [s3_shard(s3_root, seed) for seed in range(3)]
    before, during, after = (ShardRanges(ref) for ref in refs)
    assert_covers(before.view(np.arange(250, 260)), 0, 250, 260)
    with ThreadPoolExecutor(8) as threads:
        shards = [threads.submit(cache.get, ref) for ref in refs[:2]]
        views = [threads.submit(during.view, np.arange(first, first + 10)) for first in range(0, 400, 40)]
        for number, view in enumerate(views):
            assert_covers(view.result(), 1, 40 * number, 40 * number + 10)
        for seed, shard in enumerate(shards):
            assert_same_rows(shard.result().view.block, rows_of(seed, 400))
    assert_covers(after.view(np.arange(0, 400)), 2, 0, 400)
    cache.get(refs[2])
    assert read_bytes(refs[0]) == sum(ref.info.bytes for ref in refs)
    assert cache.counts()["bytes_fetched"] == sum(ref.info.bytes for ref in refs)


def test_what_the_cache_has_meanwhile_is_read_from_there(s3_env, s3_root, tmp_path):
    """A batch began to read by range, and comes to its rows when the entry is written, and still when it is removed."""
    ref = s3_shard(s3_root)
    ranges = ShardRanges(ref)
    assert_covers(ranges.view(np.arange(0, 10)), 0, 0, 10)
    cache = ShardCache(str(tmp_path))
    cache.get(ref).close()
    assert_covers(ranges.view(np.arange(0, 400)), 0, 0, 400)
    assert read_bytes(ref) == ref.info.bytes
    gc.collect()
    ranges.close()
    for entry in tmp_path.glob("*.rows"):
        entry.unlink()
    assert_covers(ranges.view(np.arange(300, 310)), 0, 300, 310)
    assert ref.info.bytes < read_bytes(ref) < 1.5 * ref.info.bytes


def test_what_is_kept_for_the_cache_is_bounded(s3_env, s3_root, monkeypatch):
    ref = s3_shard(s3_root, groups=10)
    monkeypatch.setattr(reading_module._fetched, "_limit", ref.info.bytes // 3)
    monkeypatch.setattr(reading_module._decoded, "_limit", 4 * ref.info.tokens // 3)
    ranges, reading = ShardRanges(ref), share(ref)
    for first in range(0, 400, 40):
        assert_covers(ranges.view(np.arange(first, first + 40)), 0, first, first + 40)
    gc.collect()
    assert 0 < len(reading._fetched) < 6
    assert 0 < len(reading._decoded) < 6
    ranges.close()
    gc.collect()
    assert not reading._decoded


def test_groups_that_the_cache_wrote_already_are_not_fetched_again(s3_env, s3_root, tmp_path, monkeypatch):
    """The cache stands still after each group; the rows before it are asked for by range."""
    ref = s3_shard(s3_root)
    ranges = ShardRanges(ref)
    seen = []

    def decode(shard, group):
        if group and not seen[group - 1 :]:
            seen.append(group)
            assert_covers(ranges.view(np.arange(0, 100 * group)), 0, 0, 100 * group)
        return real(shard, group)

    real = parquet.decode_row_group
    monkeypatch.setattr(parquet, "decode_row_group", decode)
    cache = ShardCache(str(tmp_path))
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))
    assert seen == [1, 2, 3]
    assert read_bytes(ref) == ref.info.bytes


def replaced(root, ref, change):
    store = open_store(root)
    store.put(ref.info.name, change(bytearray(store.get(ref.info.name))))
    store.close()


def flipped(at):
    def change(data):
        data[at] ^= 1
        return bytes(data)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (flipped(300), "row group 0"),
        (flipped(-40), "digest"),
        (lambda data: bytes(data[:-10]), "size"),
        (lambda data: bytes(data[:100]), "size"),
        (None, "missing"),
    ],
)
def test_a_shard_in_s3_that_is_not_what_the_manifest_says(s3_env, s3_root, tmp_path, change, said):
    ref = s3_shard(s3_root)
    if change is None:
        open_store(s3_root).delete([ref.info.name])
    else:
        replaced(s3_root, ref, change)
    for read in (ShardCache(str(tmp_path)).get, lambda ref: ShardRanges(ref).view(np.arange(0, 10))):
        with pytest.raises(ManifestError) as caught:
            read(ref)
        assert ref.info.name in str(caught.value)
        assert said in str(caught.value)


def test_the_digest_of_the_whole_counts(s3_env, s3_root, tmp_path):
    """A byte that no page check sum covers."""
    ref = s3_shard(s3_root)
    replaced(s3_root, ref, flipped(2))
    with pytest.raises(ManifestError, match=r"00000.parquet .*digest"):
        ShardCache(str(tmp_path)).get(ref)


@pytest.mark.parametrize("place", ["footer", "page", "gap"])
def test_what_was_damaged_on_its_way_is_fetched_again(s3_env, s3_root, tmp_path, monkeypatch, place):
    ref = s3_shard(s3_root)
    reader = reader_at(ref.uri)
    at = {"footer": ref.info.bytes - 40, "page": 300, "gap": 2}[place]
    real, hits = reader.get_range, []

    def once_damaged(key, start, stop, **named):
        data = real(key, start, stop, **named)
        if start <= at < stop and not hits:
            hits.append(start)
            data = flipped(at - start)(bytearray(data))
        return data

    monkeypatch.setattr(reader, "get_range", once_damaged)
    assert_same_rows(ShardCache(str(tmp_path)).get(ref).view.block, rows_of(0, 400))
    assert hits


def test_resets_in_the_middle_of_a_body(s3_faults, s3_root, tmp_path):
    ref = s3_shard(s3_root)
    s3_faults.set_rules([{"kind": "reset_after", "share": 0.6, "method": "GET", "times": 3}])
    assert_same_rows(ShardCache(str(tmp_path)).get(ref).view.block, rows_of(0, 400))
    assert s3_faults.counts()["faults"] == {"reset_after": 3}


def test_a_shard_that_cannot_be_fetched_is_named(s3_faults, s3_root, tmp_path, monkeypatch):
    ref = s3_shard(s3_root)
    reader = reader_at(ref.uri)
    monkeypatch.setattr(reader, "_policy", RetryPolicy(attempts=3, base_s=0.01, cap_s=0.02))
    s3_faults.set_rules([{"kind": "reset_after", "share": 0.6, "method": "GET"}])
    cache = ShardCache(str(tmp_path))
    for read in (cache.get, lambda ref: ShardRanges(ref).view(np.arange(0, 10))):
        with pytest.raises(Unavailable, match=r"00000\.parquet after 3 tries"):
            read(ref)
    s3_faults.set_rules([])
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))


def test_cancelled_while_the_store_does_not_answer(s3_faults, s3_root, tmp_path, monkeypatch):
    ref = s3_shard(s3_root)
    # 40 times it would wait for 5 s: the end comes in time on a machine that is busy, and not by itself.
    monkeypatch.setattr(reader_at(ref.uri), "_policy", RetryPolicy(attempts=40, base_s=5, cap_s=5, deadline_s=1000))
    cache = ShardCache(str(tmp_path))
    share(ref)
    with ThreadPoolExecutor(1) as thread:
        ranges = ShardRanges(ref)
        ranges.view(np.arange(0, 1))  # the footer is here
        s3_faults.set_rules([{"kind": "slowdown", "method": "GET"}])
        started = time.monotonic()
        fetched = thread.submit(cache.get, ref, cancelled=lambda: time.monotonic() > started + 0.5)
        with pytest.raises(CancelledError):
            fetched.result()
    assert time.monotonic() - started < 80
    s3_faults.set_rules([])
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))


def test_other_kinds_of_stores(s3_env, s3_root, tmp_path):
    assert objects.ObjectStore is type(reader_at(s3_root))
    ref = s3_shard(s3_root)
    from dataclasses import replace

    cache = ShardCache(str(tmp_path))
    assert_same_rows(cache.get(replace(ref, kind="fsspec")).view.block, rows_of(0, 400))
    store = open_store("memory://reader-test")
    store.put(ref.info.name, open_store(s3_root).get(ref.info.name))
    view = ShardRanges(replace(ref, uri="memory://reader-test")).view(np.arange(0, 10))
    assert_covers(view, 0, 0, 10)
