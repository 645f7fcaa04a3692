"""The loader on a real data set: each row once, the same rounds on all ranks, and states that continue exactly."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import shardprep
from shardprep.errors import ConfigError, ManifestError
from shardprep.reader.loader import Loader
from tests.reader.data import build, lengths_of

ROWS = 700
LENGTHS = lengths_of(ROWS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    uri = build(folder, LENGTHS, split="train=0.9,validation=0.1", row_group_size="8KB")
    return shardprep.open(uri, cache_dir=folder / "cache")


def everyone(dataset, world: int, **given) -> list[Loader]:
    return [dataset.loader(rank=rank, world_size=world, **given) for rank in range(world)]


def counted(batches) -> Counter[str]:
    """Count real rows by id, and hold each against the document it must be."""
    seen: Counter[str] = Counter()
    for batch in batches:
        assert batch.input_ids.dtype == batch.attention_mask.dtype == np.int64
        assert batch.input_ids.shape == batch.attention_mask.shape
        for i, (name, weight) in enumerate(zip(batch.ids, batch.weight, strict=True)):
            length = LENGTHS[int(name)]
            assert batch.lengths[i] == length == batch.attention_mask[i].sum()
            assert (batch.input_ids[i, :length] == int(name) + 1).all()
            assert (batch.input_ids[i, length:] == 0).all()
            assert batch.columns["note"][i] == f"n{name}"
            assert batch.columns["label"][i] == (int(name) % 10 if weight else -100)
            seen[name] += int(weight)
    return seen


def test_an_epoch_is_every_row_once_with_its_own_tokens_and_columns(dataset):
    loader = dataset.loader(batch_tokens=2_000)
    batches = list(loader)
    seen = counted(batches)
    assert len(batches) == len(loader)
    assert len(seen) == dataset.splits["train"]
    assert set(seen.values()) == {1}
    assert sum(batch.input_ids.size <= 2_000 for batch in batches) == len(batches)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("given", [{"batch_size": 5}, {"batch_tokens": 1_500, "accumulate": 3, "pad_to": "edge"}])
def test_all_ranks_play_the_same_rounds(dataset, world, given):
    loaders = everyone(dataset, world, slots=4, **given)
    seen: Counter[str] = Counter()
    for together in zip(*loaders, strict=True):
        assert (
            len({(b.input_ids.shape, b.step, b.round, b.last_in_step, b.step_rows, b.step_tokens) for b in together})
            == 1
        )
        seen += counted(together)
    assert len(seen) == dataset.splits["train"]
    assert set(seen.values()) == {1}


def test_a_state_continues_on_any_world_and_counts_each_row_of_finished_steps_once(dataset):
    chance = random.Random(4)
    for _ in range(12):
        given = {"batch_tokens": 1_200, "accumulate": chance.randint(1, 4), "seed": chance.randint(0, 9), "slots": 4}
        seen: Counter[str] = Counter()
        state, steps = None, dataset.loader(**given).steps
        while state is None or state["epoch"] == 0:
            world = chance.randint(1, 6)
            loaders = everyone(dataset, world, **given, num_threads=chance.randint(1, 3))
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            stop = chance.randint(1, steps)
            unfinished: Counter[str] = Counter()
            done = 0
            iterators = [iter(loader) for loader in loaders]
            for together in zip(*iterators, strict=True):
                unfinished += counted(together)
                if together[0].last_in_step:
                    assert sum(unfinished.values()) == together[0].step_rows
                    seen, unfinished, done = seen + unfinished, Counter(), done + 1
                    assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
                    assert together[0].state() == loaders[0].state_dict()
                if done == stop and chance.random() < 0.6:  # else die inside the next step, whose rows are played again
                    break
                if done > stop:
                    break
            state = json.loads(json.dumps(loaders[-1].state_dict()))
            for iterator in iterators:
                iterator.close()
            if not unfinished:
                continue
        assert set(seen.values()) == {1}
        assert len(seen) == dataset.splits["train"]


def test_slots_come_from_the_state_unless_given(dataset):
    two = dataset.loader(batch_size=4, rank=0, world_size=2)
    state = two.state_dict()
    one = dataset.loader(batch_size=4)
    one.load_state_dict(state)
    assert one.plan.policy.slots == 2
    assert len(one) == 2 * len(two)
    with pytest.raises(ConfigError, match=r"slots.*4.*2|slots.*2.*4"):
        dataset.loader(batch_size=4, slots=4).load_state_dict(state)


def test_a_refused_state_changes_nothing(dataset):
    loader = dataset.loader(batch_size=4)
    before = len(loader), loader.plan.policy.slots
    state = dataset.loader(batch_size=5, slots=8).state_dict()
    with pytest.raises(ConfigError, match="batch_size"):
        loader.load_state_dict(state)
    assert (len(loader), loader.plan.policy.slots) == before


@pytest.mark.parametrize("threads", [4, 8])
def test_chunks_under_way_may_each_be_in_a_window_of_its_own(dataset, tmp_path, threads):
    given = {"batch_tokens": 2_000, "window_rows": 20, "num_threads": threads}
    for epoch in range(4):
        loader = dataset.loader(**given, cache_dir=tmp_path / str(epoch))
        loader.set_epoch(epoch)
        seen = counted(loader)
        assert set(seen.values()) == {1}
        assert len(seen) == dataset.splits["train"]


def test_a_state_is_small_and_cheap(dataset):
    loader = dataset.loader(batch_size=4)
    began = time.process_time()
    for _ in range(100):
        text = json.dumps(loader.state_dict())
    assert (time.process_time() - began) / 100 < 0.002  # 0.02 ms on a quiet machine
    assert len(text) < 1024


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch_size": 5}, "batch_size"),
        ({"batch_size": 4, "seed": 3}, "seed"),
        ({"batch_size": 4, "accumulate": 2}, "accumulate"),
        ({"batch_size": 4, "split": "validation"}, "validation"),
    ],
)
def test_a_state_of_another_policy_is_refused_with_both_named(dataset, change, named):
    state = dataset.loader(batch_size=4).state_dict()
    with pytest.raises(ConfigError, match=named):
        dataset.loader(**change).load_state_dict(state)


def test_a_state_of_another_data_set_or_version_or_shape_is_refused(dataset, tmp_path):
    other = shardprep.open(build(tmp_path, LENGTHS[:50]), cache_dir=tmp_path / "cache")
    state = other.loader(batch_size=4).state_dict()
    with pytest.raises(ConfigError, match=state["fingerprint"][:8]):
        dataset.loader(batch_size=4).load_state_dict(state)
    mine = dataset.loader(batch_size=4).state_dict()
    with pytest.raises(ConfigError, match="version"):
        dataset.loader(batch_size=4).load_state_dict({**mine, "plan_version": 99})
    with pytest.raises((ConfigError, ManifestError), match="step"):
        dataset.loader(batch_size=4).load_state_dict({**mine, "step": 10**6})
    for broken in ({}, {**mine, "epoch": -1}, {**mine, "epoch": "1"}, [], None):
        with pytest.raises((ConfigError, ManifestError)):
            dataset.loader(batch_size=4).load_state_dict(broken)


def test_epochs_move_on_by_themselves_and_a_broken_one_is_not_continued(dataset):
    loader = dataset.loader(batch_size=16)
    orders = [[name for batch in loader for name in batch.ids] for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    again = dataset.loader(batch_size=16)
    again.set_epoch(1)
    assert [name for batch in again for name in batch.ids] == orders[1]
    for batch in again:  # epoch 2, broken off
        assert batch.epoch == 2
        break
    assert next(iter(again)).epoch == 3
    with pytest.raises(ConfigError, match="-1"):
        again.set_epoch(-1)


def test_the_state_at_the_edge_of_an_epoch_is_the_next_ones_beginning(dataset):
    loader = dataset.loader(batch_size=64)
    for batch in loader:
        after = batch.state()
    assert (after["epoch"], after["step"]) == (1, 0)
    assert loader.state_dict() == after


def test_evaluation_is_in_order_and_the_same_every_time(dataset):
    loaders = everyone(dataset, 3, split="validation", batch_size=4, shuffle=False)
    first = [[name for batch in loader for name in batch.ids] for loader in loaders]
    assert first == [[name for batch in loader for name in batch.ids] for loader in loaders]
    batches = [batch for loader in loaders for batch in loader]
    assert len({len(loader) for loader in loaders}) == 1
    assert counted(batches).total() == dataset.splits["validation"]
    weights = np.concatenate([batch.weight for batch in batches])
    labels = np.concatenate([batch.lengths for batch in batches])
    whole = [LENGTHS[int(name)] for batch in batches for name, w in zip(batch.ids, batch.weight, strict=True) if w]
    assert np.isclose((weights * labels).sum() / weights.sum(), np.mean(whole))


def test_no_thread_outlives_an_epoch_whole_or_broken(dataset):
    before = threading.active_count()
    for batch in dataset.loader(batch_size=8, num_threads=3):
        del batch
        break
    list(dataset.loader(batch_size=64))
    deadline = time.monotonic() + 200
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_batches_are_the_callers_to_keep(dataset):
    kept = [(batch.input_ids, batch.input_ids.copy()) for batch in dataset.loader(batch_tokens=1_000)]
    assert all((array == copy).all() for array, copy in kept)


def test_metrics_add_up(dataset):
    told: list[dict] = []
    loader = dataset.loader(batch_tokens=2_000, on_metrics=told.append)
    tokens = sum(int(batch.attention_mask[batch.weight > 0].sum()) for batch in loader)
    metrics = loader.metrics()
    assert metrics["tokens"] == tokens
    assert metrics["rows"] == dataset.splits["train"]
    assert metrics["batches"] == len(loader)
    assert 0 <= metrics["wait_share"] <= 1
    assert metrics["cache_hits"] + metrics["cache_misses"] > 0
    assert told[-1]["tokens"] == tokens


def test_calls_that_are_wrong_say_so(dataset):
    with pytest.raises(ConfigError, match="batch_tokens"):
        dataset.loader()
    with pytest.raises(ConfigError, match=r'"test".*train \(\d+ rows\)'):
        dataset.loader("test", batch_size=1)
    with pytest.raises(ConfigError, match=r"rank must be in \[0, 2\), got 2"):
        dataset.loader(batch_size=1, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="num_threads"):
        dataset.loader(batch_size=1, num_threads=0)


def test_one_of_several_processes_must_say_which(dataset, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    launched = shardprep.open(dataset.uri, cache_dir=tmp_path)
    loader = launched.loader(batch_tokens=2_000)
    with pytest.raises(ConfigError, match=r"one of 2 .*TorchLoader.*rank=0, world_size=1 plays all rows"):
        iter(loader)
    everything = launched.loader(batch_tokens=2_000, rank=0, world_size=1)
    assert sum(counted(everything).values()) == launched.splits["train"]
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert next(iter(shardprep.open(dataset.uri, cache_dir=tmp_path).loader(batch_size=1))).slot == 0


def test_an_unfinished_data_set_says_so(tmp_path: Path):
    with pytest.raises(ManifestError, match="no finished data set"):
        shardprep.open(tmp_path)
