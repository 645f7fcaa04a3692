"""The position file on a spot machine: states of a data set of 10,000 shards, copied while they are written."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import shardprep
from shardprep.core.buckets import LengthBuckets
from shardprep.core.content import Generation, Ledger, ShardInfo, SplitInfo
from shardprep.core.deal import rows_of_shards, tokens_of_shards
from shardprep.core.histogram import histogram_of
from shardprep.core.manifest import Manifest, fingerprint_of
from shardprep.errors import ConfigError, StoreError
from shardprep.reader.dataset import Dataset
from shardprep.reader.history import StateHistory
from tests.cases.command import environment

SHARDS, SAVES = 10_000, 200

# As a managed service does: file by file, while they are written; each round into a folder of its own.
COPIER = """
import os, shutil, sys
source, target = sys.argv[1:]
print("begun", flush=True)
number = 0
while not os.path.exists(os.path.join(target, "stop")):
    number += 1
    to = os.path.join(target, f"{number:06d}")
    os.makedirs(to)
    for name in sorted(os.listdir(source)):
        try:
            shutil.copyfile(os.path.join(source, name), os.path.join(to, name))
        except FileNotFoundError:
            pass
print(number, flush=True)
"""


def tiny_shards(folder: Path, length: int) -> Dataset:
    """Return a data set of 20,000 rows of one length in 10,000 shards: its manifest, which is all that a state needs."""
    histogram = histogram_of(np.full(2 * SHARDS, length))
    rows, tokens = rows_of_shards(2 * SHARDS, SHARDS).tolist(), tokens_of_shards(histogram, SHARDS).tolist()
    shards = tuple(
        ShardInfo(
            f"0badcafe/train/{i:05d}-of-{SHARDS:05d}.parquet", "train", rows[i], tokens[i], tokens[i] * 2,
            hashlib.sha256(b"%d" % i).hexdigest(), 65_536, hashlib.sha256(b"footer %d" % i).hexdigest(), 1,
        )
        for i in range(SHARDS)
    )  # fmt: skip
    generations = (Generation((SplitInfo("train", histogram, 2 * SHARDS, sum(tokens), shards),)),)
    schema = ({"name": "id", "type": "string", "nullable": False},)
    tokenizer = {"fingerprint": "77" * 32, "eos_id": None, "pad_id": 0}
    buckets = LengthBuckets((64,), 8)
    manifest = Manifest(
        plan="0badcafe",
        fingerprint=fingerprint_of(generations=generations, schema=schema, tokenizer=tokenizer, buckets=buckets),
        settings={},
        tokenizer=tokenizer,
        schema=schema,
        buckets=buckets,
        generations=generations,
        ledger=Ledger(found=2 * SHARDS, written=2 * SHARDS, set_aside={}, rows=2 * SHARDS, tokens=sum(tokens)),
        created_by={"shardprep": "made for a test"},
    )
    manifest.check()
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return shardprep.open(folder, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return tiny_shards(tmp_path_factory.mktemp("c54") / "out", 50)


def wait_for_copies(copies: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(os.listdir(copies)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(scope="module")
def copied(dataset, tmp_path_factory):
    """Save 200 states while another process copies the folder; return the copies, in order."""
    folder = tmp_path_factory.mktemp("copied")
    states, copies = folder / "states", folder / "copies"
    states.mkdir()
    copies.mkdir()
    copier = subprocess.Popen(
        [sys.executable, "-c", COPIER, states, copies], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert copier.stdout.readline() == "begun\n"
    history = StateHistory(states)
    for number in range(SAVES):
        if number % 5 == 0:  # neither may run away from the other
            wait_for_copies(copies, number // 5)
        loader = dataset.loader(batch_size=16)
        epoch, step = divmod(7 * number, loader.steps)
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "step": step})
        history.save(number, loader.state_dict())
    (copies / "stop").touch()
    out, _ = copier.communicate(timeout=300)
    assert int(out) >= SAVES // 5 - 1
    return sorted(path for path in copies.iterdir() if path.is_dir())


def plain(value):
    """Say whether a value is made of plain JSON types."""
    if isinstance(value, dict):
        return all(type(key) is str and plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


def test_every_copied_state_is_whole(copied):
    files = [path for copy in copied for path in copy.iterdir()]
    assert len(files) > 20
    for path in files:
        data = path.read_bytes()
        assert len(data) <= 64 << 10
        assert plain(json.loads(data))
        assert path.suffix in {".json", ".tmp"}  # a temporary file has no name before it is whole


def test_the_newest_copy_continues(dataset, copied, tmp_path):
    newest = shutil.copytree(copied[-1], tmp_path / "back")
    state = StateHistory(newest).load()
    loader = dataset.loader(batch_size=16)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    number = max(StateHistory(newest).steps())
    assert (state["epoch"], state["step"]) == divmod(7 * number, loader.steps)
    assert number > SAVES / 2


def test_a_copy_that_is_cut_is_an_error_that_names_the_file(copied, tmp_path):
    back = shutil.copytree(copied[-1], tmp_path / "back")
    newest = sorted(back.iterdir())[-1]
    data = newest.read_bytes()
    for size in (len(data) // 2, 0, len(data) - 2):
        newest.write_bytes(data[:size])
        with pytest.raises(StoreError, match=newest.name):
            StateHistory(back).load()


def test_a_state_of_another_data_set_is_refused(dataset, copied, tmp_path):
    state = StateHistory(copied[-1]).load()
    other = tiny_shards(tmp_path / "other", 51)
    assert state["fingerprint"] == dataset.manifest.fingerprint
    with pytest.raises(ConfigError) as caught:
        other.loader(batch_size=16).load_state_dict(state)
    assert state["fingerprint"][:8] in str(caught.value)
    assert other.manifest.fingerprint[:8] in str(caught.value)


def test_without_a_state_it_starts_at_0_and_says_so(dataset, tmp_path):
    assert StateHistory(tmp_path / "none").load() is None
    assert StateHistory(tmp_path).load() is None
    state = dataset.loader(batch_size=16).state_dict()
    assert (state["epoch"], state["step"]) == (0, 0)


def test_opening_and_the_first_state_are_fast(dataset):
    began = time.process_time()
    again = shardprep.open(dataset.uri, cache_dir=dataset.uri + "/cache").loader(batch_size=16)
    assert len(again) > 0
    assert len(json.dumps(again.state_dict())) < 1024
    assert time.process_time() - began < 5
