"""Reading while the store misbehaves: every row once, tries that are bounded, and an error that names the shard."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import shardprep
from shardprep.errors import Denied, ShardprepError, Unavailable
from shardprep.reader import plan
from shardprep.storage.store import open_store
from tests.invariants import Dataset
from tests.reader.data import build, lengths_of
from tests.servers import BUCKET

ROWS, SHARDS = 400, 6
LENGTHS = lengths_of(ROWS)
SECOND = "00002-of-00006"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    uri = build(tmp_path_factory.mktemp("faulty"), LENGTHS, shards=SHARDS, row_group_size="8KB")
    return Dataset(Path(uri))


@pytest.fixture
def remote(local, s3_faults):
    """A copy of its own on S3, behind the proxy: a process keeps the store that it once opened for an address."""
    root = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
    store = open_store(root)
    for path in (*local.files, local.root / "manifest.json"):
        store.put(str(path.relative_to(local.root)), path.read_bytes())
    store.close()
    return root


def read(root, cache, **given):
    """Return each row's count, every row compared with what it must be."""
    kind = given.pop("store", "auto")
    seen = Counter()
    for batch in shardprep.open(root, cache_dir=cache, store=kind).loader(**{"batch_tokens": 2_000, **given}):
        for i, name in enumerate(batch.ids):
            length = LENGTHS[int(name)]
            assert batch.lengths[i] == length
            assert (batch.input_ids[i, :length] == int(name) + 1).all()
            seen[name] += int(batch.weight[i])
    return seen


ONCE = Counter(str(i) for i in range(ROWS))

PASSING = {
    "a burst of 503 for every request": [{"kind": "slowdown", "first": 3}],
    "503 for the first two tries of every third": [{"kind": "slowdown", "every": 3, "first": 2}],
    "500 at random": [{"kind": "error", "status": 500, "code": "InternalError", "every": 2, "first": 1}],
    "resets before the answer": [{"kind": "reset", "every": 2, "first": 2}],
    "resets inside the answer": [{"kind": "reset_after", "first": 2, "share": 0.7, "method": "GET"}],
    "bodies that end too early": [{"kind": "truncate", "first": 2, "method": "GET"}],
    "answers that are lost": [{"kind": "lost_answer", "every": 2, "first": 1}],
    "slow answers": [{"kind": "stall", "first": 1, "delay": 0.2}],
    "credentials that expired once": [{"kind": "expired", "times": 1}],
}


@pytest.mark.parametrize("rules", PASSING.values(), ids=PASSING)
def test_faults_that_pass_cost_no_row(remote, s3_faults, tmp_path, rules):
    s3_faults.set_rules(rules)
    assert read(remote, tmp_path / "cache", num_threads=2) == ONCE
    told = s3_faults.counts()
    assert sum(told["faults"].values()) > 0
    assert sum(told["requests"].values()) < 400
    s3_faults.set_rules([])
    assert read(remote, tmp_path / "cache", num_threads=2) == ONCE  # partly from the cache


@pytest.mark.parametrize("rules", [PASSING["resets inside the answer"], PASSING["bodies that end too early"]])
def test_faults_that_pass_through_fsspec(remote, s3_faults, tmp_path, rules):
    s3_faults.set_rules(rules)
    assert read(remote, tmp_path / "cache", store="fsspec") == ONCE


def test_a_cache_without_room_reads_by_range_through_faults(remote, s3_faults, tmp_path, local):
    s3_faults.set_rules([{"kind": "slowdown", "first": 1}, {"kind": "reset_after", "first": 3, "method": "GET"}])
    dataset = shardprep.open(remote, cache_dir=tmp_path / "cache", cache_limit_bytes=20_000)
    loader = dataset.loader(batch_tokens=2_000)
    seen = Counter(name for batch in loader for name, w in zip(batch.ids, batch.weight, strict=True) if w)
    assert seen == ONCE
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.rows")) <= 20_000
    assert loader.metrics()["bytes_fetched"] >= sum(shard["bytes"] for shard in local.shards)


ENDLESS = {
    "503": ({"kind": "slowdown"}, Unavailable),
    "reset": ({"kind": "reset"}, Unavailable),
    "truncated": ({"kind": "truncate"}, Unavailable),
    "denied": ({"kind": "error", "status": 403, "code": "AccessDenied"}, Denied),
    "expired": ({"kind": "expired"}, Denied),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ("truncated", "reset") else ()) for n in ENDLESS]
)
def test_a_fault_without_end_is_an_error_that_names_the_shard(remote, s3_faults, tmp_path, local, name):
    rule, kind = ENDLESS[name]
    s3_faults.set_rules([{**rule, "match": SECOND}])
    (path,) = [path for path in local.files if SECOND in path.name]
    theirs = set(pq.read_table(path)["id"].to_pylist())
    seen: list[str] = []
    loader = shardprep.open(remote, cache_dir=tmp_path / "cache").loader(batch_tokens=2_000, shuffle=False)
    with pytest.raises(kind, match=SECOND):  # noqa: PT012
        for batch in loader:
            seen += batch.ids
    assert theirs.isdisjoint(seen)
    assert sum(s3_faults.counts()["faults"].values()) <= 40
    s3_faults.set_rules([])
    assert read(remote, tmp_path / "cache") == ONCE  # nothing of it stays


def test_breaking_off_while_the_store_is_down_does_not_wait_for_the_retries(remote, s3_faults, tmp_path):
    batches = iter(shardprep.open(remote, cache_dir=tmp_path / "cache").loader(batch_tokens=500))
    next(batches)
    s3_faults.set_rules([{"kind": "slowdown"}])
    time.sleep(0.3)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < 5


def test_an_outage_while_shards_are_fetched_ahead_is_tried_again_when_they_are_needed(
    remote, s3_faults, tmp_path, monkeypatch
):
    """The shards of the next window failed long before their turn; by then the store is well again."""
    monkeypatch.setattr(plan, "CHUNK_SLOTS", 1)  # one round at once, so that no batch of the next window is due yet
    dataset = shardprep.open(remote, cache_dir=tmp_path / "cache")
    loader = dataset.loader(batch_tokens=1_000, window_rows=60)
    schedule = loader.plan.schedule(0)
    here, ahead = (set(schedule.shards(window, range(1)).tolist()) for window in (0, 1))
    assert not here & ahead
    names = [loader.plan.refs[shard].info.name for shard in ahead]
    s3_faults.set_rules([{"kind": "error", "status": 403, "code": "AccessDenied", "key": name} for name in names])
    seen = Counter()
    for number, batch in enumerate(loader):
        seen.update(name for name, w in zip(batch.ids, batch.weight, strict=True) if w)
        if number == 0:
            deadline = time.monotonic() + 200
            while s3_faults.counts()["faults"].get("error", 0) < len(names) and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.2)
            assert s3_faults.counts()["faults"]["error"] >= len(names)
            s3_faults.set_rules([])
    assert seen == ONCE


def test_an_error_leaves_no_thread_and_the_next_epoch_reads(remote, s3_faults, tmp_path):
    loader = shardprep.open(remote, cache_dir=tmp_path / "cache").loader(batch_tokens=2_000)
    s3_faults.set_rules([{"kind": "error", "status": 403, "code": "AccessDenied", "match": SECOND}])
    before = {thread for thread in threading.enumerate() if thread.name.startswith("shardprep-read")}
    with pytest.raises(ShardprepError):
        list(loader)
    assert {thread for thread in threading.enumerate() if thread.name.startswith("shardprep-read")} == before
    s3_faults.set_rules([])
    loader.set_epoch(0)
    assert Counter(n for b in loader for n, w in zip(b.ids, b.weight, strict=True) if w) == ONCE
