"""Who makes a chunk: threads ahead of a slow consumer, the consumer's own thread where it is a fast one."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

import shardprep
from shardprep.core.schedule import Epoch
from shardprep.errors import BlockError
from shardprep.reader import plan
from shardprep.reader.chunk_rows import ChunkReader
from shardprep.reader.making import Made, Maker, Threads, in_order
from shardprep.reader.plan import Chunk
from tests.reader.data import build, lengths_of

CHUNKS = [Chunk(number, 0, number, number + 1) for number in range(12)]


class Supply:
    """Chunks of one "batch", their number, that say they took so long."""

    ahead, makes_alone = 3, True

    def __init__(self, collate_s: float, fetch_s: float = 0.0) -> None:
        self.collate_s, self.fetch_s = collate_s, fetch_s
        self.begun: list[int] = []
        self.alone: list[int] = []

    def made(self, chunk):
        times = [("fetch", 0.0, self.fetch_s), ("collate", 0.0, self.collate_s)]
        return Made(deque([(chunk.number, True)]), phases=times)

    def begin(self, chunk):
        self.begun.append(chunk.number)
        future: Future[Made] = Future()
        future.set_result(self.made(chunk))
        return future

    def make(self, chunk):
        if chunk.number == 9:
            return None
        self.alone.append(chunk.number)
        return self.made(chunk)


def test_a_fast_consumer_gets_chunks_made_in_its_own_thread():
    supply = Supply(collate_s=600)
    assert [number for number, _ in in_order(iter(CHUNKS), supply)] == list(range(12))
    assert supply.begun == [0, 1, 2, 9]  # what was begun before its pace was known, and what cannot be made alone
    assert supply.alone == [3, 4, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("supply", [Supply(0.0), Supply(600, fetch_s=600)], ids=["slow consumer", "rows not at hand"])
def test_else_they_are_made_ahead(supply):
    batches = in_order(iter(CHUNKS), supply)
    assert [next(batches)[0] for _ in range(3)] == [0, 1, 2]
    assert supply.begun == [0, 1, 2, 3, 4]
    assert len(list(batches)) == 9
    assert not supply.alone


def test_a_consumer_that_becomes_slow_gets_them_made_ahead_again():
    supply = Supply(collate_s=0.05)
    batches = in_order(iter(CHUNKS), supply)
    for _ in range(5):
        next(batches)
    supply.collate_s = 0.0
    rest = [number for number, _ in batches]
    assert rest == list(range(5, 12))
    assert supply.begun[-3:] == [9, 10, 11]


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return build(tmp_path_factory.mktemp("in-order"), lengths_of(300), shards=3)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(plan, "CHUNK_SLOTS", 3_000)
    monkeypatch.setattr(Made, "seconds", lambda self, cause: float(cause == "collate"))  # as for a fast consumer


def loader_of(uri, tmp_path):
    loader = shardprep.open(uri, cache_dir=tmp_path).loader(batch_tokens=1_000, window_rows=60)
    list(loader)  # the cache has all
    loader.set_epoch(0)
    return loader


def test_alone_or_ahead_the_batches_are_the_same(uri, tmp_path, small_chunks, monkeypatch):
    threads, make = [], Maker.make_whole
    monkeypatch.setattr(Maker, "make_whole", lambda *given: threads.append(threading.get_ident()) or make(*given))
    loader = loader_of(uri, tmp_path)
    alone = [(batch.ids, batch.state(), batch.input_ids.tolist()) for batch in loader]
    assert set(threads) == {threading.get_ident()}
    monkeypatch.setattr(Threads, "makes_alone", False)
    loader.set_epoch(0)
    threads.clear()
    assert [(batch.ids, batch.state(), batch.input_ids.tolist()) for batch in loader] == alone
    assert not threads


def test_alone_too_an_error_comes_after_the_batches_before_it(uri, tmp_path, small_chunks, monkeypatch):
    loader, micro_batch = loader_of(uri, tmp_path), Epoch.micro_batch
    bad = loader.plan.schedule(0).rounds - 2

    def asking(self, index, slot):
        spec = micro_batch(self, index, slot)
        return replace(spec, row=np.full_like(spec.row, 10**6)) if index == bad else spec

    monkeypatch.setattr(Epoch, "micro_batch", asking)
    rounds = []
    with pytest.raises(BlockError, match="row 1000000"):
        rounds.extend(batch.round for batch in loader)
    assert rounds == list(range(bad))


def test_an_error_of_the_program_in_the_midst_of_our_work_is_not_swallowed(uri, tmp_path, small_chunks, monkeypatch):
    """A signal handler's, say: the chunk itself is sound."""
    loader, read = loader_of(uri, tmp_path), ChunkReader.read_whole
    calls = []

    def interrupted(self, chunk, specs):
        calls.append(chunk)
        if len(calls) == 2:
            raise TimeoutError("the program's alarm")
        return read(self, chunk, specs)

    monkeypatch.setattr(ChunkReader, "read_whole", interrupted)
    rounds = []
    with pytest.raises(TimeoutError, match="alarm"):
        rounds.extend(batch.round for batch in loader)
    assert loader.state_dict()["step"] == len(rounds) == calls[1].first
