"""TorchLoader: tensors, worker processes, states; case C47."""

from __future__ import annotations

import pickle
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import shardprep
from shardprep.errors import ConfigError
from shardprep.formats.collate import ListColumn
from shardprep.torch import ListsColumn, MaskedColumn, ShardIterable, TorchLoader
from shardprep.torch.batch import _column
from tests.torch.played import ids_of, played, seen, take

POLICY = {"batch_tokens": 2_000, "seed": 3, "accumulate": 2}


def test_batches_are_those_of_the_loader_as_tensors(dataset):
    plain, tensors = list(dataset.loader(**POLICY)), list(TorchLoader(dataset.loader(**POLICY)))
    assert len(plain) == len(tensors) == len(TorchLoader(dataset.loader(**POLICY)))
    for one, other in zip(plain, tensors, strict=True):
        for name in ("input_ids", "attention_mask", "lengths", "weight", "labels"):
            assert np.array_equal(getattr(one, name), getattr(other, name).numpy())
        for name in (
            "step",
            "round",
            "slot",
            "last_in_step",
            "epoch",
            "name",
            "step_rows",
            "step_tokens",
            "real",
            "tokens",
        ):
            assert getattr(one, name) == getattr(other, name)
        assert one.ids == other.ids
        assert one.columns["note"] == other.columns["note"]
        assert np.array_equal(one.columns["label"], other.columns["label"].numpy())
        assert one.state() == other.state()


@pytest.mark.parametrize(("workers", "persistent"), [(2, False), (2, True), (1, True), (3, True)])
def test_c47_the_same_orders_for_every_number_of_workers(thousand, workers, persistent):
    def loader():
        return thousand.loader(batch_size=8, seed=5)

    alone = TorchLoader(loader())
    orders = [played(alone) for _ in range(3)]
    rows = [[name for batch in order for name in batch[9]] for order in orders]
    assert all(sorted(map(int, epoch)) == list(range(1000)) for epoch in rows)
    assert all(one != other for one, other in combinations(rows, 2))
    with TorchLoader(loader(), num_workers=workers, persistent_workers=persistent) as several:
        assert [played(several) for _ in range(3)] == orders
        if persistent:
            several.set_epoch(1)  # (a) with the setter
            first = take(several, 31)
            several.load_state_dict(first[29].state())  # (c) stopped at step 30 of epoch 1
            assert played(first[:30]) + played(several) == orders[1]


def test_a_resume_at_any_step_continues_exactly(dataset):
    whole = played(TorchLoader(dataset.loader(**POLICY)))
    with TorchLoader(dataset.loader(**POLICY), num_workers=2, persistent_workers=True) as loader:
        for cut in (1, 2, 7, len(whole) - 1, len(whole)):
            loader.set_epoch(0)
            batches = take(loader, cut)
            state = loader.state_dict()
            assert state == batches[-1].state()
            other = TorchLoader(dataset.loader(**POLICY))
            other.load_state_dict(state)
            finished = [seen(b) for b in batches if b.step < state["step"] or state["epoch"] == 1]
            if state["epoch"] == 0:
                loader.load_state_dict(state)
                assert finished + played(loader) == finished + played(other) == whole
            else:
                assert finished == whole


def test_a_state_serves_another_world(dataset):
    rows = {"batch_tokens": 500, "accumulate": 2, "slots": 6}
    before = [TorchLoader(dataset.loader(**rows, rank=rank, world_size=2)) for rank in range(2)]
    done: list[str] = []
    for loader in before:
        done += ids_of(batch for batch in take(loader, 2 * 6 + 2) if batch.step < 2)  # the third step is not finished
    after = [TorchLoader(dataset.loader(**rows, rank=rank, world_size=3), num_workers=rank % 2) for rank in range(3)]
    for loader in after:
        loader.load_state_dict(before[1].state_dict())
        done += ids_of(loader)
    assert before[1].state_dict()["step"] == 2
    assert sorted(done) == sorted(ids_of(TorchLoader(dataset.loader(**rows))))
    assert len(set(done)) == len(done) == dataset.splits["train"]


def test_without_slots_they_come_from_the_state(dataset):
    two = TorchLoader(dataset.loader(**POLICY, rank=0, world_size=2))
    one = TorchLoader(dataset.loader(**POLICY, rank=0, world_size=1))
    one.load_state_dict(take(two, 4)[-1].state())
    assert one.loader.plan.policy.slots == 2
    assert len(one) == 2 * len(two)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_on_the_device_early_does_not_count(dataset, workers):
    plain, early = (
        TorchLoader(dataset.loader(**POLICY)),
        TorchLoader(dataset.loader(**POLICY), num_workers=workers, prefetch=3),
    )
    assert early.state_dict() == plain.state_dict()
    for one, other in zip(plain, early, strict=True):
        assert early.state_dict() == plain.state_dict() == other.state()
        assert seen(one) == seen(other)
    assert early.state_dict() == plain.state_dict()
    state = take(early, 5)[4].state()
    assert early.state_dict() == state
    early.set_epoch(7)
    assert early.state_dict()["epoch"] == 7
    early.load_state_dict(state)
    assert early.state_dict() == state


@pytest.mark.parametrize("persistent", [False, True])
def test_a_broken_epoch_is_not_continued(dataset, persistent):
    plain = TorchLoader(dataset.loader(**POLICY))
    take(plain, 2)
    expected = [played(plain), played(plain)]
    with TorchLoader(dataset.loader(**POLICY), num_workers=2, persistent_workers=persistent) as loader:
        take(loader, 2)
        assert [played(loader), played(loader)] == expected


def test_two_iterations_at_once_do_not_share_workers(dataset):
    with TorchLoader(dataset.loader(**POLICY), num_workers=1, persistent_workers=True) as loader:
        first = iter(loader)
        one = [seen(next(first))]
        second = played(loader)
        one += played(first)
    plain = TorchLoader(dataset.loader(**POLICY))
    assert [one, second] == [played(plain), played(plain)]


def test_a_batch_moves_and_leaves_its_memory(dataset):
    batch = next(iter(TorchLoader(dataset.loader(**POLICY))))
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.input_ids.device.type == moved.labels.device.type == moved.columns["label"].device.type == "meta"
    assert moved.input_ids.shape == batch.input_ids.shape
    assert moved.ids == batch.ids
    assert moved.state() == batch.state()
    copy = batch._with(
        {name: getattr(batch, name).clone() for name in ("input_ids", "attention_mask", "lengths", "weight")}
    )
    assert seen(copy) == seen(batch)  # labels are made by torch there, by numpy here
    assert copy._batch.input_ids.size == 0


def test_a_device_takes_all_batches(dataset):
    loader = TorchLoader(dataset.loader(**POLICY), device="meta", prefetch=1)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert {batch.input_ids.device.type for batch in batches} == {"meta"}
    assert sorted(ids_of(batches)) == sorted(ids_of(TorchLoader(dataset.loader(**POLICY))))


def test_a_batch_pickles(dataset):
    batch = next(iter(TorchLoader(dataset.loader(**POLICY))))
    expected = seen(batch)
    assert seen(pickle.loads(pickle.dumps(batch))) == expected
    moved = batch._with(
        {name: getattr(batch, name).clone() for name in ("input_ids", "attention_mask", "lengths", "weight")}
    )
    assert seen(pickle.loads(pickle.dumps(moved))) == expected


def test_columns_of_all_kinds():
    cpu = torch.device("cpu")
    masked = _column(np.ma.MaskedArray(np.array([1, -100]), np.array([False, True])), cpu)
    assert isinstance(masked, MaskedColumn)
    assert masked.values.tolist() == [1, -100]
    assert masked.null.tolist() == [False, True]
    lists = _column(ListColumn(np.array([1, 2, 3]), np.array([0, 2, 2, 3]), np.array([False, True, False])), cpu)
    assert isinstance(lists, ListsColumn)
    assert (lists.values.tolist(), lists.offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
    assert lists.null is not None
    assert lists.null.tolist() == [False, True, False]
    words = _column(ListColumn(["a", None], np.array([0, 2])), cpu)
    assert words.values == ["a", None]
    assert words.null is None
    frozen = np.array([1.5])
    frozen.flags.writeable = False
    assert _column(frozen, cpu).tolist() == [1.5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"persistent_workers": True}, "num_workers of at least 1"),
    ],
)
def test_values_out_of_range(dataset, given, said):
    with pytest.raises(ConfigError, match=said):
        TorchLoader(dataset.loader(**POLICY), **given)


def test_metrics_count_what_workers_read(shards, tmp_path):
    dataset = shardprep.open(shards, cache_dir=tmp_path)
    with TorchLoader(dataset.loader(**POLICY), num_workers=2) as loader:
        batches = list(loader)
    metrics = loader.metrics()
    assert metrics["rows"] == dataset.splits["train"]
    assert metrics["batches"] == len(batches)
    assert metrics["bytes_fetched"] > 0
    assert metrics["wait_seconds_by_cause"]["fetch"] > 0


def test_a_mix_is_the_same_with_workers(dataset, shards):
    again = shardprep.open(shards, cache_dir=shards.parent / "cache")
    mix = shardprep.mix({"task": dataset, "general": again}, weights={"task": 1, "general": 2}, until="task")

    def loader():
        return mix.loader(batch_tokens=1_000, accumulate=2)

    plain = TorchLoader(loader())
    orders = [[(batch.name, *seen(batch)) for batch in plain] for _ in range(2)]
    assert {one[0] for one in orders[0]} == {"task", "general"}
    with TorchLoader(loader(), num_workers=2, persistent_workers=True) as workers:
        assert [[(batch.name, *seen(batch)) for batch in workers] for _ in range(2)] == orders
        state = orders[0][20][-1]
        workers.load_state_dict(state)
        assert [(batch.name, *seen(batch)) for batch in workers] == [
            one for one in orders[0] if one[2] >= state["step"]
        ]
    iterable = ShardIterable(loader())
    assert [(batch.name, *seen(batch)) for batch in DataLoader(iterable, batch_size=None, num_workers=2)] == orders[0]
