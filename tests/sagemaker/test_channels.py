"""A channel in File or FastFile mode: its folder is a data set, read in one pass, and never written to."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import shardprep
from shardprep.adapters.sagemaker import training_environment
from shardprep.errors import ManifestError
from shardprep.reader.finding import ENTRY
from shardprep.storage.local import LocalStore
from tests.reader.data import build, lengths_of

ROWS = 400
ALL = Counter(map(str, range(ROWS)))


@pytest.fixture(scope="module", params=["parquet", "recordio"])
def data_set(request, tmp_path_factory):
    """A data set whose shards have several groups each."""
    folder = tmp_path_factory.mktemp(request.param)
    return build(folder, lengths_of(ROWS), format=request.param, row_group_size="2KB", shards=3)


def rows_of(loader):
    return Counter(name for batch in loader for name, weight in zip(batch.ids, batch.weight, strict=True) if weight)


def wait_until(done):
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listing(folder):
    """Return every file and folder with its size and times: what a write would change."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_size if path.is_file() else 0, stat.st_mtime_ns, stat.st_mode)
    return found


@pytest.fixture
def channel(tmp_path, data_set):
    """A training container whose channel "train" is the data set's root; the mount is a link, and cannot be written."""
    root = tmp_path / "ml"
    (root / "input/data").mkdir(parents=True)
    (root / "input/config").mkdir()
    (root / "input/config/resourceconfig.json").write_text('{"current_host": "algo-1", "hosts": ["algo-1"]}')
    (root / "input/config/inputdataconfig.json").write_text('{"train": {"TrainingInputMode": "FastFile"}}')
    (root / "input/data/train").symlink_to(data_set)
    return root


def test_a_channel_folder_is_a_data_set(channel, data_set, tmp_path):
    env = training_environment(str(channel), {}, required=True)
    for path in sorted(Path(data_set).rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(data_set)
    dataset = shardprep.open(env.channel("train"), cache_dir=tmp_path / "cache")
    loader = dataset.loader("train", batch_tokens=500)
    assert rows_of(loader) == ALL
    assert rows_of(loader) == ALL
    assert listing(data_set) == before


def test_links_inside_the_channel(data_set, tmp_path):
    """File mode on some hosts, and people who try it at home: each object may be a link."""
    mount = tmp_path / "mount"
    for path in Path(data_set).rglob("*"):
        if path.is_file():
            link = mount / path.relative_to(data_set)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    dataset = shardprep.open(mount, cache_dir=tmp_path / "cache")
    assert rows_of(dataset.loader("train", batch_tokens=500)) == ALL


def test_one_pass_in_file_order_and_each_footer_once(channel, tmp_path, monkeypatch):
    """FastFile fetches what is read, when it is read: nothing may be asked for twice, and little out of order."""
    reads = defaultdict(list)
    plain = LocalStore.get_range

    def noted(store, key, start, stop, **named):
        reads[key].append((start, stop))
        return plain(store, key, start, stop, **named)

    monkeypatch.setattr(LocalStore, "get_range", noted)
    dataset = shardprep.open(channel / "input/data/train", cache_dir=tmp_path / "cache")
    infos = {shard.name: shard for shard in dataset.manifest.shards}
    loader = dataset.loader("train", batch_tokens=500, num_threads=1)
    for number, batch in enumerate(loader):
        assert batch.real
        if number == 5:  # an epoch that ends before the node's disk has all would fetch the rest in the next one
            wait_until(lambda: len(list((tmp_path / "cache").rglob(f"*.{ENTRY}"))) == len(infos))
    wholes = {name: found for name, found in reads.items() if name in infos}
    assert wholes.keys() == infos.keys()
    for name, found in wholes.items():
        info = infos[name]
        assert len(found) > 3
        assert len(found) == len(set(found))
        footer = (info.bytes - info.footer_bytes, info.bytes)
        groups = sorted(span for span in found if span != footer)
        assert found.count(footer) == (name.endswith(".parquet"))
        assert [start for start, _ in groups] == [0, *(stop for _, stop in groups[:-1])]  # all bytes, each once
    assert all(
        len(found) == 1 for name, found in reads.items() if name not in infos
    )  # what tells the groups of RecordIO
    first_epoch = {name: list(found) for name, found in reads.items()}
    assert rows_of(loader) == ALL
    assert reads == first_epoch  # later epochs come from the node's disk


def test_shards_come_in_order_without_the_first_batches(channel, tmp_path, monkeypatch):
    """Behind the first batches, which read what they need, a shard is read from its beginning to its end."""
    monkeypatch.setattr("shardprep.reader.chunk_rows.EARLY_CHUNKS", 0)
    reads = defaultdict(list)
    plain = LocalStore.get_range

    def noted(store, key, start, stop, **named):
        reads[key].append(start)
        return plain(store, key, start, stop, **named)

    monkeypatch.setattr(LocalStore, "get_range", noted)
    dataset = shardprep.open(channel / "input/data/train", cache_dir=tmp_path / "cache")
    assert rows_of(dataset.loader("train", batch_tokens=500)) == ALL
    for name, starts in reads.items():
        groups = starts[1:] if name.endswith(".parquet") else starts  # the footer tells where the groups are
        assert groups == sorted(groups)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_channel_on_a_part_of_a_data_set_says_what_to_mount(data_set, depth):
    shard = next(iter(shardprep.open(data_set).manifest.shards)).name
    part = os.path.join(data_set, *shard.split("/")[:depth])
    with pytest.raises(
        ManifestError, match=r"This is a part of one: .* of a SageMaker channel, let its S3Uri be that folder"
    ):
        shardprep.open(part)


def test_a_channel_in_pipe_mode_says_so(tmp_path):
    os.mkfifo(tmp_path / "train_0")
    with pytest.raises(ManifestError, match=r"train_0 is a FIFO: a channel in Pipe mode, which shardprep\.pipe reads"):
        shardprep.open(tmp_path / "train")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    (tmp_path / "other" / "sub").mkdir()
    with pytest.raises(ManifestError, match="A build that was interrupted is not finished"):
        shardprep.open(tmp_path / "other")
