"""Where rows come from: held shards, ranges, what is fetched when, and what a loader may hold at once."""

from __future__ import annotations

import os
import resource
from collections import Counter
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardprep
from shardprep.core.schedule import Epoch, World
from shardprep.errors import ConfigError, ManifestError
from shardprep.formats.collate import BufferPool
from shardprep.reader import chunk_rows, plan, source
from shardprep.reader.cache import ShardCache
from shardprep.reader.making import Made, Share, in_order, play_share
from shardprep.reader.plan import chunks
from shardprep.reader.ranges import ShardRanges
from shardprep.reader.source import ShardSource, most_held
from tests.invariants import Dataset
from tests.reader.data import build, lengths_of

ROWS, SHARDS = 500, 5
ONCE = Counter(str(i) for i in range(ROWS))


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return build(tmp_path_factory.mktemp("source"), lengths_of(ROWS), shards=SHARDS, row_group_size="8KB")


def opened(uri, tmp_path, **given):
    return shardprep.open(uri, cache_dir=tmp_path / "cache").loader(**{"batch_tokens": 2_000, **given})


def seen(loader):
    return Counter(name for batch in loader for name, w in zip(batch.ids, batch.weight, strict=True) if w)


def test_shards_beyond_what_may_be_open_are_read_by_range(uri, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MOST_HELD", 2)
    loader = opened(uri, tmp_path)
    assert seen(loader) == ONCE
    assert loader.metrics()["cache_misses"] <= 2
    assert seen(loader) == ONCE


@pytest.mark.parametrize(
    ("files", "held"), [(1024, 512), (resource.RLIM_INFINITY, source.MOST_HELD), (10**6, source.MOST_HELD)]
)
def test_half_of_the_files_that_a_process_may_open_stay_free(monkeypatch, files, held):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert most_held() == held


def test_with_few_open_files_tiny_shards_are_read_all_the_same(tmp_path):
    """300 shards of a row each; the process may open 100 more files than it has."""

    uri = build(tmp_path / "tiny", [30] * 300, shards=300)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = opened(uri, tmp_path, batch_size=8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * len(os.listdir("/proc/self/fd")) + 100, limits[1]))
    try:
        assert seen(loader) == Counter(str(i) for i in range(300))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("early", [0, 4])
def test_a_cache_without_any_room_reads_by_range_and_counts_the_bytes(uri, tmp_path, monkeypatch, early):
    monkeypatch.setattr(chunk_rows, "EARLY_CHUNKS", early)
    loader = shardprep.open(uri, cache_dir=tmp_path / "cache", cache_limit_bytes=1_000).loader(batch_tokens=2_000)
    assert seen(loader) == ONCE
    size = sum(shard["bytes"] for shard in Dataset(Path(uri)).shards)
    assert loader.metrics()["bytes_fetched"] >= size
    assert list((tmp_path / "cache").glob("*.rows")) == []


def test_a_loaders_own_limit_and_folder_win(uri, tmp_path):
    dataset = shardprep.open(uri, cache_dir=tmp_path / "one", cache_limit_bytes=10**9)
    assert seen(dataset.loader(batch_tokens=2_000, cache_limit_bytes=1_000)) == ONCE
    assert list((tmp_path / "one").glob("*.rows")) == []
    assert seen(dataset.loader(batch_tokens=2_000, cache_dir=str(tmp_path / "two"))) == ONCE
    assert (tmp_path / "two").is_dir()
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match=f"got {wrong}"):
            dataset.loader(batch_tokens=2_000, cache_limit_bytes=wrong)
        with pytest.raises(ConfigError, match=f"got {wrong}"):
            shardprep.open(uri, cache_limit_bytes=wrong)


@pytest.mark.parametrize("rows", [[0], [0, 99], [3, 50, 97], list(range(100))])
def test_rows_that_lie_apart_come_without_the_groups_between(uri, tmp_path, rows):
    ref = opened(uri, tmp_path).plan.refs[1]
    whole = ShardCache(str(tmp_path / "cache")).get(ref).view.block
    view = ShardRanges(ref).view(np.array(rows))
    starts = ShardRanges(ref)._reading.layout.row_starts
    for row in rows:
        got, wanted = view.block.slice(row - view.first, row - view.first + 1), whole.slice(row, row + 1)
        assert got.ids.tolist() == wanted.ids.tolist()
        assert got.columns.to_pylist() == wanted.columns.to_pylist()
    groups = set((np.searchsorted(starts, rows, side="right") - 1).tolist())
    assert view.block.tokens == sum(whole.slice(int(starts[g]), int(starts[g + 1])).tokens for g in groups)
    if rows == [0, 99]:
        assert view.block.tokens < whole.tokens


def test_only_a_batch_whose_rows_lie_together_is_read_early(uri, tmp_path, monkeypatch):
    """Where many rows have one length, a batch of them would fetch the whole shard twice: it waits for the cache instead."""
    monkeypatch.setattr(source, "EARLY_TOKENS", 0)
    loader = opened(uri, tmp_path, batch_size=8)
    assert seen(loader) == ONCE
    assert loader.metrics()["cache_misses"] == SHARDS


def test_the_first_batch_is_made_alone_and_the_next_ones_begin_when_it_is_handed_over(uri, tmp_path):
    loader = opened(uri, tmp_path, window_rows=20, batch_size=2)
    schedule = loader.plan.schedule(0)
    todo = chunks(schedule, 1, 0)
    begun = []

    class Supply:
        ahead, makes_alone = 4, False

        def begin(self, chunk):

            begun.append(chunk.number)
            future = Future()
            future.set_result(Made())
            future.result().batches.append((chunk, True))
            return future

    batches = in_order(todo, Supply())
    next(batches)
    assert begun[:1] == [0]
    assert len(begun) == 1 + 3
    next(batches)
    assert len(begun) == 5
    assert sum(1 for _ in batches) == len(begun) - 2


def test_chunks_cover_all_rounds_once_inside_windows(uri, tmp_path):
    loader = opened(uri, tmp_path, window_rows=50, batch_size=3)
    schedule = loader.plan.schedule(0)
    for first in (0, 1, schedule.rounds // 2, schedule.rounds - 1, schedule.rounds):
        found = list(chunks(schedule, 1, first))
        assert [r for c in found for r in range(c.first, c.stop)] == list(range(first, schedule.rounds))
        assert [c.number for c in found] == list(range(len(found)))
        for c in found:
            span = schedule.windows[c.window]
            assert span.start <= c.first < c.stop <= span.stop


def test_chunks_grow_up_to_their_limit(uri, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "FIRST_SLOTS", 1_000)
    monkeypatch.setattr(plan, "CHUNK_SLOTS", 8_000)
    loader = opened(uri, tmp_path, batch_size=1)
    schedule = loader.plan.schedule(0)
    sizes = [sum(schedule.shape(r).area for r in range(c.first, c.stop)) for c in chunks(schedule, 1, 0)]
    assert max(sizes[1:]) <= 8_000
    assert sizes[0] < 1_000
    assert any(size > 4_000 for size in sizes)


def test_a_broken_shard_is_told_after_the_batches_before_it(tmp_path):
    """In the middle of a chunk: the micro-batches before it are handed over, and the state is theirs."""
    uri = build(tmp_path / "set", lengths_of(ROWS), shards=SHARDS, row_group_size="8KB")
    broken = Dataset(Path(uri)).files[3]
    broken.unlink()
    loader = opened(uri, tmp_path, shuffle=False, batch_size=4, window_rows=20)
    names = [ref.info.name for ref in loader.plan.refs]
    schedule = loader.plan.schedule(0)
    bad = next(
        r for r in range(schedule.rounds) if any(names[s] in str(broken) for s in schedule.micro_batch(r, 0).shard)
    )
    assert bad > 0
    rounds = []
    with pytest.raises(ManifestError, match=r"00003-of-00005.*missing"):
        rounds.extend(batch.round for batch in loader)
    assert loader.state_dict()["step"] == bad


def test_closing_does_not_wait_for_what_nobody_needs(uri, tmp_path):
    shards = ShardSource(opened(uri, tmp_path).plan.refs, range(1), ShardCache(str(tmp_path / "cache")))
    with shards:
        shards.enter(opened(uri, tmp_path).plan.schedule(0), 0)
        shards.stop()
        with pytest.raises(CancelledError):
            shards.views([opened(uri, tmp_path).plan.schedule(0).micro_batch(0, 0)], early=True)


def test_a_plan_of_another_rank_plays_the_same_rounds(uri, tmp_path):
    one = opened(uri, tmp_path, slots=4).plan
    two = one.with_world(World(1, 2))
    assert (one.per_round, two.per_round) == (4, 2)
    assert list(two.slots) == [2, 3]
    assert one.with_slots(6).policy == replace(one.policy, slots=6)
    assert two.state(1, 2) == one.state(1, 2)
    last = one.schedule(0).steps - 1
    assert one.position_after(0, one.schedule(0), last, last=True) == (1, 0)
    assert one.position_after(0, one.schedule(0), last, last=False) == (0, last)


@pytest.mark.parametrize(
    "given", [{}, {"slots": 3, "variety": 2}, {"tail": "drop"}, {"pad_to": "edge", "window_rows": 100}]
)
def test_the_very_first_round_has_neighbours_where_many_rows_have_one_length(tmp_path, given):
    """They lie in few row groups; every row is played once all the same, and later rounds are as random as ever."""
    uri = build(tmp_path / "set", [30] * 900 + [20] * 300, shards=2)
    loader = opened(uri, tmp_path, batch_tokens=None, batch_size=8, **given)
    schedule = loader.plan.schedule(0)
    slots = loader.plan.policy.slots
    spans = []
    for index in (0, 1):
        specs = [schedule.micro_batch(index, slot) for slot in range(slots)]
        rows = {(int(s), int(r)) for spec in specs for s, r in zip(spec.shard, spec.row, strict=True)}
        spans.append(max(r for _, r in rows) - min(r for _, r in rows))
    assert spans[0] <= 8 * slots
    assert spans[1] > 100
    every = Counter()
    for index in range(schedule.rounds):
        for slot in range(slots):
            spec = schedule.micro_batch(index, slot)
            every.update(zip(spec.shard[: spec.real].tolist(), spec.row[: spec.real].tolist(), strict=True))
    assert set(every.values()) == {1}
    assert len(every) == 1200 - schedule.dropped_rows


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shares_of_processes_are_dealt_one_by_one_from_where_it_begins(uri, tmp_path, workers):
    loader = opened(uri, tmp_path, slots=2)
    whole = [(batch.round, batch.slot, batch.ids) for batch in loader]
    cache = ShardCache(str(tmp_path / "cache"))
    for skip in (0, 7):
        shares = [Share(worker, workers, base=skip, skip=skip) for worker in range(workers)]
        parts = [list(play_share(loader.plan, cache, 0, share, num_threads=2, pool=BufferPool())) for share in shares]
        found = [parts[i % workers][i // workers] for i in range(len(whole) - skip)]
        assert sum(map(len, parts)) == len(found)
        assert [(batch.round, batch.slot, batch.ids) for batch in found] == whole[skip:]


def test_a_fault_in_the_schedule_is_told_at_its_place(uri, tmp_path, monkeypatch):
    micro_batch = Epoch.micro_batch

    def failing(self, index, slot):
        if index == 5:
            raise ZeroDivisionError
        return micro_batch(self, index, slot)

    monkeypatch.setattr(plan, "CHUNK_SLOTS", 1)
    monkeypatch.setattr(Epoch, "micro_batch", failing)
    rounds = []
    with pytest.raises(ZeroDivisionError):
        rounds.extend(batch.round for batch in opened(uri, tmp_path))
    assert rounds == list(range(5))
