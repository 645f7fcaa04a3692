"""The cache: the same rows as the shard, fetched once, and again when an entry is damaged; local sources stay."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import struct
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.errors import BlockError, ConfigError, ManifestError
from shardprep.formats import parquet
from shardprep.reader import finding
from shardprep.reader.cache import ShardCache
from shardprep.reader.entry import HEAD_BYTES, PIECE_TOKENS, Mapped, pieces, read_head
from shardprep.reader.entry_writer import EntryWriter
from shardprep.reader.ref import ShardRef
from tests.reader.shards import assert_same_rows, encoded, local_shard, rows_of


@pytest.fixture
def cache(tmp_path):
    return ShardCache(str(tmp_path / "cache"))


@pytest.fixture
def as_another_process(monkeypatch):
    """Forget what this process compared already, as a new process would not know it."""

    def forget():
        monkeypatch.setattr(finding, "_compared", {})
        monkeypatch.setattr(finding, "_vouched", set())

    return forget


def entry_of(cache, ref):
    return os.path.join(cache.folder, f"{ref.info.sha256}.rows")


def names_in(cache):
    return {name.split(".", 1)[-1] for name in os.listdir(cache.folder)}


def test_same_rows_fetched_once(tmp_path, cache):
    ref = local_shard(tmp_path / "set", seed=3)
    assert cache.peek(ref) is None
    block = cache.get(ref).view.block
    assert_same_rows(block, rows_of(3, 400))
    assert (block.ids.dtype, block.offsets.dtype) == (np.int32, np.int64)
    assert not block.ids.flags.writeable
    assert not block.ids.flags.owndata
    again = ShardCache(cache.folder)
    assert_same_rows(again.peek(ref).view.block, rows_of(3, 400))
    assert_same_rows(again.get(ref).view.block, rows_of(3, 400))
    assert cache.counts() == {"hits": 0, "misses": 1, "damaged": 0, "bytes_fetched": ref.info.bytes}
    assert again.counts() == {"hits": 2, "misses": 0, "damaged": 0, "bytes_fetched": 0}
    assert names_in(cache) == {"rows", "usage"}


def test_rows_without_tokens_and_a_single_row(tmp_path, cache):
    for name, lengths in (("empty", [0, 0, 0]), ("one", [5])):
        columns = pa.record_batch({"id": [f"{i}" for i in range(len(lengths))]})
        columns = columns.cast(pa.schema([pa.field("id", pa.string(), nullable=False)]))
        block = TokenBlock(np.arange(sum(lengths), dtype=np.int32), offsets_of(np.array(lengths)), columns)
        data, info = encoded(block, 1, f"{name}.parquet")
        (tmp_path / info.name).write_bytes(data)
        assert_same_rows(cache.get(ShardRef(str(tmp_path), {}, "auto", info)).view.block, block)


def test_threads_that_want_one_shard_fetch_it_once(tmp_path, cache):
    refs = [local_shard(tmp_path / "set", seed) for seed in range(3)]
    with ThreadPoolExecutor(8) as threads:
        shards = list(threads.map(cache.get, refs * 8))
    for seed, shard in enumerate(shards[:3]):
        assert_same_rows(shard.view.block, rows_of(seed, 400))
    assert cache.counts()["misses"] == 3


def test_arrays_outlive_close_and_hold_the_lock(tmp_path, cache):
    ref = local_shard(tmp_path / "set")
    shard = cache.get(ref)
    ids = shard.view.block.ids
    shard.close()
    with pytest.raises(BlockError, match="closed"):
        _ = shard.view
    assert not cache._room.free(1), "a mapped entry was removed"
    assert np.array_equal(ids, rows_of(0, 400).ids)
    del ids, shard
    gc.collect()
    assert cache._room.free(1)
    assert cache.peek(ref) is None


def spots(path):
    """Return a place in each part of an entry."""
    data = path.read_bytes()
    offsets_at, columns_at, sums_at, columns_bytes = struct.unpack_from("=4Q", data, 56)
    return {
        "magic": 2,
        "digest": 20,
        "head": 60,
        "crc": 100,
        "first id": HEAD_BYTES,
        "middle of ids": (HEAD_BYTES + offsets_at) // 2,
        "offsets": offsets_at + 9,
        "columns": columns_at + columns_bytes // 2,
        "end of columns": columns_at + columns_bytes - 1,
        "sums": sums_at + 1,
    }


def test_a_flipped_byte_anywhere_is_fetched_again(tmp_path, cache, as_another_process):
    ref = local_shard(tmp_path / "set")
    cache.get(ref)
    path = tmp_path / "cache" / os.path.basename(entry_of(cache, ref))
    whole = path.read_bytes()
    for where, place in spots(path).items():
        data = bytearray(whole)
        data[place] ^= 0x10
        path.write_bytes(data)
        as_another_process()
        fresh = ShardCache(cache.folder)
        assert_same_rows(fresh.get(ref).view.block, rows_of(0, 400))
        assert fresh.counts()["damaged"] == 1, where
        assert path.read_bytes() == whole
        assert names_in(cache) == {"rows", "usage"}, "the damaged file stayed"


@pytest.mark.parametrize("size", [0, 50, HEAD_BYTES, HEAD_BYTES + 1000, -1])
def test_a_truncated_entry_is_fetched_again(tmp_path, cache, size, as_another_process):
    ref = local_shard(tmp_path / "set")
    cache.get(ref)
    path = entry_of(cache, ref)
    os.truncate(path, size if size >= 0 else os.path.getsize(path) - 1)
    as_another_process()
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))


def test_zeros_as_after_a_power_cut_are_fetched_again(tmp_path, cache, as_another_process):
    ref = local_shard(tmp_path / "set")
    cache.get(ref)
    path = entry_of(cache, ref)
    with open(path, "r+b") as file:
        file.seek(HEAD_BYTES)
        file.write(bytes(8192))
    as_another_process()
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))


def test_an_entry_of_another_shard_under_our_name_is_fetched_again(tmp_path, cache):
    ours, other = local_shard(tmp_path / "set", 1), local_shard(tmp_path / "set", 2)
    cache.get(other)
    shutil.copyfile(entry_of(cache, other), entry_of(cache, ours))
    assert_same_rows(cache.get(ours).view.block, rows_of(1, 400))


def test_a_damaged_entry_that_somebody_maps_counts_until_they_let_go(tmp_path, cache, as_another_process):
    ref = local_shard(tmp_path / "set")
    mapped = cache.get(ref).view.block
    with open(entry_of(cache, ref), "r+b") as file:
        file.write(b"oops")
    as_another_process()
    cache.get(ref)
    (dead,) = [kept for kept in cache._room.files() if kept.kind == "dead"]
    assert dead.size > 4 * ref.info.tokens
    cache._room.sweep()
    assert os.path.exists(dead.path)
    assert np.array_equal(mapped.ids, rows_of(0, 400).ids)
    del mapped
    gc.collect()
    cache._room.sweep()
    assert not os.path.exists(dead.path)


def test_what_is_not_ours_in_the_folder_is_left_alone(tmp_path):
    folder = tmp_path / "set"
    ref = local_shard(folder)
    (folder / "notes.part").write_text("mine")
    cache = ShardCache(str(folder))  # even the folder of the data set itself
    cache.get(ref)
    cache._room.free(1 << 40)
    assert (folder / "notes.part").read_text() == "mine"
    assert (folder / ref.info.name).exists()


def test_a_local_source_is_left_as_it_is(tmp_path, cache):
    ref = local_shard(tmp_path / "set")
    path = tmp_path / "set" / ref.info.name
    before = path.read_bytes(), path.stat().st_mtime_ns
    cache.get(ref)
    while cache._room.free(1 << 40):
        pass
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def damaged(path, info, what):
    data = path.read_bytes()
    if what == "cut":
        path.write_bytes(data[:-10])
    elif what == "missing":
        path.unlink()
    elif what == "longer":
        path.write_bytes(data + b"x")
    elif what == "other footer":
        path.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    elif what == "page":
        path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif what == "gap":  # in the file's first four bytes, which no page check sum covers
        path.write_bytes(b"PAR2" + data[4:])
    elif what == "other content":
        path.write_bytes(hashlib.sha256(data).digest() * (len(data) // 32) + data[: len(data) % 32])
    assert what in ("cut", "missing", "longer") or path.stat().st_size == info.bytes


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("cut", "size"),
        ("missing", "missing"),
        ("longer", "size"),
        ("other footer", "digest"),
        ("page", "row group 0"),
        ("gap", "digest"),
        ("other content", "digest"),
    ],
)
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_local_shard_that_is_not_what_the_manifest_says(tmp_path, cache, what, said, is_cached, as_another_process):
    ref = local_shard(tmp_path / "set")
    if is_cached:
        cache.get(ref).close()
        as_another_process()
    damaged(tmp_path / "set" / ref.info.name, ref.info, what)
    with pytest.raises(ManifestError) as caught:
        cache.get(ref)
    assert ref.info.name in str(caught.value)
    assert ("digest" if is_cached and said == "row group 0" else said) in str(caught.value)
    assert not [name for name in names_in(cache) if name == "part"]
    assert is_cached or names_in(cache) == {"usage"}


def test_a_source_that_was_only_touched_is_read_from_the_cache(tmp_path, cache, as_another_process):
    ref = local_shard(tmp_path / "set")
    cache.get(ref).close()
    as_another_process()
    os.utime(tmp_path / "set" / ref.info.name)
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))
    assert cache.counts()["misses"] == 1


def test_an_error_inside_decoding_is_an_error(tmp_path, cache, monkeypatch):
    ref = local_shard(tmp_path / "set")

    def stops(*_):
        raise StopIteration("inside")

    monkeypatch.setattr(parquet, "decode_row_group", stops)
    with pytest.raises(ManifestError, match=r"00000.parquet row group 0 cannot be decoded \(StopIteration: inside\)"):
        cache.get(ref)


def test_a_format_that_is_not_read_is_refused(tmp_path, cache):
    ref = local_shard(tmp_path / "set")
    with pytest.raises(ConfigError, match=r"\.mds .*format"):
        cache.get(replace(ref, info=replace(ref.info, name="a.mds")))


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("field", ["rows", "tokens"])
def test_a_manifest_that_counts_wrong(tmp_path, cache, field, by):
    ref = local_shard(tmp_path / "set")
    wrong = replace(ref.info, **{field: getattr(ref.info, field) + by})
    with pytest.raises(ManifestError, match=rf"00000.parquet has .*{field}"):
        cache.get(replace(ref, info=wrong))
    assert names_in(cache) == {"usage"}


def test_cancelled(tmp_path, cache):
    ref = local_shard(tmp_path / "set")
    with pytest.raises(CancelledError):
        cache.get(ref, cancelled=lambda: True)
    assert_same_rows(cache.get(ref).view.block, rows_of(0, 400))


def test_a_folder_that_somebody_removed_is_made_again(tmp_path, cache):
    refs = [local_shard(tmp_path / "set", seed) for seed in range(2)]
    cache.get(refs[0])
    shutil.rmtree(cache.folder)
    assert_same_rows(cache.get(refs[1]).view.block, rows_of(1, 400))


def test_a_shard_of_more_than_two_to_the_31_tokens(tmp_path):
    """The file is sparse; what matters is that places beyond 2^31 are right."""
    tokens, rows = 2**31 + 1000, 3
    columns = pa.record_batch({"id": ["a", "b", "c"]})
    small = TokenBlock(np.arange(7, dtype=np.int32), np.array([0, 7]), columns.slice(2))
    info = replace(local_shard(tmp_path / "set").info, rows=rows, tokens=tokens)
    path = tmp_path / "entry"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    writer = EntryWriter(file, info)
    writer._tokens = tokens - 7  # as if two rows of zeros had been written
    writer._lengths, writer._columns = [np.array([tokens - 8, 1])], [columns.slice(0, 2)]
    writer.append(small)
    head = writer.finish(lambda size: os.ftruncate(file, size))
    assert read_head(file, info) == head
    block = Mapped(file, head, np.ones(pieces(tokens), dtype=np.bool_)).view.block
    os.close(file)
    assert block.offsets.tolist() == [0, tokens - 8, tokens - 7, tokens]
    assert block.take(np.array([2, 1])).ids.tolist() == [*range(7), 0]
    assert block.slice(2, 3).ids.tolist() == list(range(7))
    assert block.columns["id"].to_pylist() == ["a", "b", "c"]


def test_a_group_that_is_read_while_its_writer_ends_is_there_whole(tmp_path):
    block = rows_of(0, 50)
    _, info = encoded(block, 1, "0a1b2c3d/train/00000.parquet")
    file = os.open(tmp_path / "entry", os.O_RDWR | os.O_CREAT)
    writer = EntryWriter(file, info)
    writer.append(block)
    lock = writer._ending

    class EndsRightAfter:
        """The writer's lock; the thread that fills the cache ends the writer as soon as it is free."""

        def __enter__(self):
            lock.acquire()

        def __exit__(self, *_):
            lock.release()
            writer._ending = lock
            writer.end()

    writer._ending = EndsRightAfter()
    assert_same_rows(writer.block(0), block)
    assert writer.block(0) is None
    os.close(file)


@pytest.fixture
def large(tmp_path, cache):
    """A shard of about three MiB of ids, in the cache."""
    ref = local_shard(tmp_path / "set", rows=400, mean=2000)
    assert pieces(ref.info.tokens) == 4
    cache.get(ref).close()
    return ref


def test_only_what_is_asked_for_is_compared(cache, large, as_another_process):
    as_another_process()
    shard = cache.get(large)
    mapped = shard._mapped
    offsets = mapped.view.block.offsets
    assert mapped.compared.tolist() == [False] * 4
    shard.view_of(0, 1)
    assert mapped.compared.tolist() == [True, False, False, False]
    last = int(np.searchsorted(offsets, 2 * PIECE_TOKENS, side="right")) - 1  # its tokens lie on both sides of an edge
    cache.get(large).view_of(last, last + 1)
    assert mapped.compared.tolist() == [True, True, True, False]
    assert_same_rows(shard.view.block, rows_of(0, 400, 2000))
    assert mapped.compared.all()


def test_damage_that_shows_later_is_fetched_again_then(cache, large, as_another_process):
    with open(entry_of(cache, large), "r+b") as file:
        file.seek(HEAD_BYTES + 4 * 2 * PIECE_TOKENS + 100)
        file.write(b"oops")
    as_another_process()
    shard, other = cache.get(large), cache.get(large)
    ids = shard.view_of(0, 10).block.ids
    assert np.array_equal(ids[:10], rows_of(0, 400, 2000).ids[:10])
    assert cache.counts()["damaged"] == 0
    for one in (shard, other):
        assert_same_rows(one.view.block, rows_of(0, 400, 2000))
    assert (cache.counts()["damaged"], cache.counts()["misses"]) == (1, 2)
    assert np.array_equal(ids[:10], rows_of(0, 400, 2000).ids[:10])
    assert [kept.kind for kept in cache._room.files() if kept.kind != "rows"] == ["dead"]
    del ids
    gc.collect()
    ShardCache(cache.folder)._room.sweep()
    assert [kept.kind for kept in cache._room.files()] == ["rows"]


def test_threads_that_find_the_same_damage_fetch_once(cache, large, as_another_process):
    with open(entry_of(cache, large), "r+b") as file:
        file.seek(HEAD_BYTES + 4 * PIECE_TOKENS)
        file.write(b"oops")
    as_another_process()
    shards = [cache.get(large) for _ in range(3)] * 3
    with ThreadPoolExecutor(9) as threads:
        for view in threads.map(lambda shard: shard.view, shards):
            assert_same_rows(view.block, rows_of(0, 400, 2000))
    assert cache.counts()["misses"] == 2
