"""RecordIO data sets in the loader: the same batches as from Parquet, by range and from the cache; damage is named by the byte."""

from __future__ import annotations

import json
import shutil
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import shardprep
from shardprep.errors import ManifestError
from shardprep.formats import recordio
from shardprep.reader.cache import ShardCache
from shardprep.reader.fetcher import reader_at
from shardprep.reader.layout import RecordLayout
from shardprep.reader.ranges import ShardRanges
from shardprep.reader.ref import ShardRef
from shardprep.storage.store import open_store
from tests.reader.data import build, lengths_of
from tests.reader.test_fetcher import in_forked_child

COLUMNS = ("label:int64", "note:string")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Return the same data set in both formats, in spans of a few rows."""
    folder = tmp_path_factory.mktemp("sets")
    lengths = lengths_of(400)
    lengths[7] = 3_000  # longer than any micro-batch
    return {
        name: build(folder / name, lengths, format=name, row_group_size="8KB", shards=5)
        for name in ("parquet", "recordio")
    }


def opened(uri, folder, **settings):
    return shardprep.open(uri, cache_dir=str(folder), **settings)


def played(batch):
    columns = {name: list(values) for name, values in batch.columns.items()}
    numbers = (batch.epoch, batch.step, batch.round, batch.slot, batch.step_rows, batch.step_tokens, batch.last_in_step)
    return batch.ids, batch.input_ids.tolist(), batch.weight.tolist(), batch.labels.tolist(), columns, numbers


@pytest.mark.parametrize("limit", [None, 1], ids=["cache", "by range"])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (2, 3)])
def test_the_same_batches_as_from_parquet(limit, rank, world, sets, tmp_path):
    def batches(name):
        data = opened(sets[name], tmp_path / name, cache_limit_bytes=limit)
        loader = data.loader("train", batch_tokens=900, rank=rank, world_size=world, accumulate=2, seed=3)
        return [played(batch) for _ in range(2) for batch in loader]

    found = batches("recordio")
    assert found == batches("parquet")
    assert len(found) > 20


def test_a_resume_in_another_world_plays_each_row_once(sets, tmp_path):
    data = opened(sets["recordio"], tmp_path)
    loader = data.loader("train", batch_tokens=400, slots=6, rank=0, world_size=1)
    seen, batches = [], iter(loader)
    for batch in batches:
        seen += batch.ids[: batch.real]
        if batch.step == 3 and batch.last_in_step and batch.slot == 5:
            break
    batches.close()
    assert 0 < len(seen) < 300
    state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(3):
        again = data.loader("train", batch_tokens=400, slots=6, rank=rank, world_size=3)
        again.load_state_dict(state)
        seen += [name for batch in again for name in batch.ids[: batch.real]]
    assert sorted(seen, key=int) == [str(i) for i in range(400)]


def refs_of(uri, place=None):
    data = shardprep.open(uri)
    return [ShardRef(place or uri, {}, "auto", shard) for shard in data.manifest.shards]


def test_views_by_range_hold_the_rows(sets, tmp_path):
    ref = refs_of(sets["recordio"])[0]
    whole = ShardCache(str(tmp_path)).get(ref).view.block
    starts = _layout(ref).row_starts.tolist()
    for first, stop in [(0, 1), (starts[1] - 1, starts[1] + 1), (0, ref.info.rows), (starts[-2], ref.info.rows)]:
        view = ShardRanges(ref).view(np.arange(first, stop))
        assert view.first in starts
        rows = slice(view.first, view.first + view.block.rows)
        assert view.block.ids.tolist() == whole.slice(rows.start, rows.stop).ids.tolist()
        assert view.block.columns.equals(whole.columns.slice(rows.start, rows.stop - rows.start))


def _layout(ref):
    from shardprep.reader.reading import ShardReading

    return ShardReading(ref).layout


def test_spans_lead_from_the_first_byte_to_the_last(sets):
    for ref in refs_of(sets["recordio"]):
        layout = _layout(ref)
        assert isinstance(layout, RecordLayout)
        assert layout.tail == b""
        assert [a for a, _ in layout.spans] == [0, *(b for _, b in layout.spans[:-1])]
        assert layout.spans[-1][1] == ref.info.bytes
        assert all(b > a for a, b in pairwise(layout.row_starts.tolist()))
        assert len(layout.spans) == ref.info.row_groups > 2


@pytest.fixture
def remote(sets, s3_env, s3_root):
    store = open_store(s3_root)
    local = open_store(sets["recordio"])
    for page in local.list():
        for key in page.keys.to_pylist():
            store.put(key, local.get(key))
    return s3_root


def test_from_s3(remote, sets, tmp_path):
    def batches(uri):
        return [played(batch) for batch in opened(uri, tmp_path / uri[-5:]).loader("train", batch_tokens=900)]

    assert batches(remote) == batches(sets["recordio"])


def test_a_first_batch_from_s3_reads_spans_and_one_small_file(remote, tmp_path):
    ref = refs_of(remote)[0]
    before = dict(reader_at(remote).counts())
    ShardRanges(ref).view(np.arange(3))
    after = reader_at(remote).counts()
    assert after["get"] - before["get"] == 2
    start, stop = _layout(ref).spans[0]
    assert after["bytes_read"] - before["bytes_read"] == ref.info.footer_bytes + stop - start


def test_a_forked_child_reads_from_s3(remote, tmp_path):
    refs = refs_of(remote)
    whole = ShardCache(str(tmp_path)).get(refs[0]).view.block

    def read():
        view = ShardRanges(refs[0]).view(np.arange(refs[0].info.rows))
        assert view.block.ids.tolist() == whole.ids.tolist()
        assert ShardCache(str(tmp_path / "child")).get(refs[1]).view.block.rows == refs[1].info.rows

    assert in_forked_child(read) == ""


def _change(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(data)))


def _flipped(place):
    def change(data):
        data[place] ^= 16
        return data

    return change


@pytest.mark.parametrize("by_range", [True, False])
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("rec", _flipped(0), r"train/00000-of-00005\.rec is damaged: the record that begins at byte 0 does not begin"),
        ("rec", _flipped(300), r"\.rec is damaged(:| between)"),
        ("rec", lambda data: data[:-9], r"\.rec has another size than the manifest says"),
        ("json", _flipped(30), r"index/train/00000-of-00005\.json with another sha256 digest"),
        ("json", lambda data: data[:-9], r"index/train/00000-of-00005\.json of another size"),
        ("json", None, r"lacks the file .*index/train/00000-of-00005\.json"),
    ],
)
def test_damage_names_shard_and_byte(by_range, name, change, said, sets, tmp_path):
    folder = shutil.copytree(sets["recordio"], tmp_path / "set")
    ref = refs_of(str(folder))[0]
    path = folder / ref.info.name
    if name == "json":
        path = (folder / ref.info.name.replace("/", "/index/", 1)).with_suffix(".json")
    if change is None:
        path.unlink()
    else:
        _change(path, change)
    cache = ShardCache(str(tmp_path / "cache"))
    read = partial(ShardRanges(ref).view, np.arange(ref.info.rows)) if by_range else partial(cache.get, ref)
    with pytest.raises(ManifestError, match=said) as raised:
        read()
    assert raised.value.fields["shard"] == ref.info.name
    assert "shardprep verify" in raised.value.message


def test_an_error_inside_decoding_is_an_error(sets, tmp_path, monkeypatch):
    def stops(*_):
        raise StopIteration("inside")

    monkeypatch.setattr(recordio, "decode_span", stops)
    with pytest.raises(ManifestError, match=r"\.rec span 0 cannot be decoded \(StopIteration: inside\)"):
        ShardCache(str(tmp_path)).get(refs_of(sets["recordio"])[0])


def test_what_was_damaged_on_its_way_is_fetched_again(remote, tmp_path, monkeypatch):
    ref = refs_of(remote)[0]
    reader = reader_at(remote)
    real, spoiled = reader.get_range, []

    def get_range(key, start, stop, **more):
        data = real(key, start, stop, **more)
        if key.endswith(".rec") and start == 0 and not spoiled:
            spoiled.append(key)
            return bytes(_flipped(50)(bytearray(data)))
        return data

    monkeypatch.setattr(reader, "get_range", get_range)
    assert ShardRanges(ref).view(np.arange(2)).block.rows > 0
    assert spoiled
