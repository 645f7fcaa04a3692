"""ShardIterable in a plain torch DataLoader: the same sequence for every number of workers, epoch after epoch; case C41."""

from __future__ import annotations

import pickle
import shutil
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

import shardprep
from shardprep.errors import ConfigError
from shardprep.torch import ShardIterable, TorchLoader
from tests.torch.played import ids_of, played, seen

POLICY = {"batch_tokens": 2_000, "seed": 3}

# torch finds more workers than cores suspicious; here they are the point.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def data_loader(dataset, workers=0, persistent=False, context=None, **policy):
    shards = ShardIterable(dataset.loader(**{**POLICY, **policy}))
    loader = DataLoader(
        shards, batch_size=None, num_workers=workers, persistent_workers=persistent, multiprocessing_context=context
    )
    return shards, loader


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True), (3, False), (3, True)]
)
def test_c47_the_same_orders_as_without_workers(dataset, workers, persistent):
    plain = TorchLoader(dataset.loader(**POLICY))
    orders = [played(plain) for _ in range(3)]
    shards, loader = data_loader(dataset, workers, persistent)
    assert len(loader) == len(plain)
    assert [played(loader) for _ in range(3)] == orders
    shards.set_epoch(1)  # reaches persistent workers too
    assert played(loader) == orders[1]
    assert played(loader) == orders[2]
    state = orders[1][6][-1]
    shards.load_state_dict(state)
    assert [batch for batch in orders[1] if batch[1] < state["step"]] + played(loader) == orders[1]
    assert played(loader) == orders[2]


def test_spawned_workers_too(dataset):
    plain = TorchLoader(dataset.loader(**POLICY))
    shards, loader = data_loader(dataset, 2, persistent=True, context="spawn")
    assert played(loader) == played(plain)
    shards.set_epoch(5)
    plain.set_epoch(5)
    assert played(loader) == played(plain)


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_broken_off_at_once_leave_no_worker_behind_in_another_epoch(dataset, persistent):
    plain = TorchLoader(dataset.loader(**POLICY))
    _, loader = data_loader(dataset, 2, persistent)
    for epoch in range(4):
        torch.manual_seed(0)  # the same seed in each iteration: workers cannot tell them apart by it
        iterator = iter(loader)
        first = [seen(batch) for batch in islice(iterator, 2 + epoch % 2)]  # both workers have begun
        assert [one[0] for one in first] == [epoch] * len(first)
        del iterator
    torch.manual_seed(0)
    plain.set_epoch(4)
    assert played(loader) == played(plain)


def test_a_state_serves_another_world_and_number_of_workers(dataset):
    sizes = {"batch_tokens": 500, "slots": 6, "accumulate": 2}
    done, state = [], None
    for rank in range(2):
        _, loader = data_loader(dataset, rank + 1, rank=rank, world_size=2, **sizes)
        for batch in loader:
            state = batch.state()
            if state["step"] == 2:
                break
            done += ids_of([batch])
        done += ids_of([batch])
    for rank in range(3):
        shards, loader = data_loader(dataset, rank, rank=rank, world_size=3, **sizes)
        shards.load_state_dict(state)
        done += ids_of(loader)
    assert len(set(done)) == len(done) == dataset.splits["train"]


def test_the_state_of_another_data_set_is_refused(dataset, thousand):
    state = next(iter(TorchLoader(thousand.loader(**POLICY)))).state()
    shards, _ = data_loader(dataset)
    with pytest.raises(ConfigError, match="fingerprint"):
        shards.load_state_dict(state)


def test_without_slots_they_come_from_the_state(dataset):
    state = next(iter(TorchLoader(dataset.loader(**POLICY, rank=1, world_size=2)))).state()
    shards, loader = data_loader(dataset, 2, persistent=True)
    played(loader)
    shards.load_state_dict(state)
    expected = TorchLoader(dataset.loader(**POLICY, slots=2))
    expected.load_state_dict(state)
    assert len(loader) == len(expected)
    assert played(loader) == played(expected)


def test_a_copy_goes_its_own_way(dataset):
    shards, loader = data_loader(dataset)
    copy = pickle.loads(pickle.dumps(shards))
    shards.set_epoch(3)
    assert {batch.epoch for batch in copy} == {0}
    assert {batch.epoch for batch in loader} == {3}
    assert shards.world == copy.world


def test_an_error_in_a_worker_names_the_shard(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "shards")
    dataset = shardprep.open(tmp_path / "shards", cache_dir=tmp_path / "cache")
    _, loader = data_loader(dataset, 2)
    name = dataset.loader(**POLICY).plan.refs[2].info.name
    (tmp_path / "shards" / name).write_bytes(b"PAR1 nothing here")
    iterator = iter(loader)
    with pytest.raises(Exception, match=name):
        played(iterator)
    iterator._shutdown_workers()  # not by the garbage collector, which may do it in a thread that this waits for


WORLDS_AND_WORKERS = [  # 40 and 72 processes of torch take half a minute; the loader's own threads play all 20 in tests/cases
    pytest.param(world, workers, marks=[pytest.mark.slow] if world == 8 and workers > 2 else [])
    for world in (1, 2, 3, 8)
    for workers in (0, 1, 2, 5, 9)
]


@pytest.mark.parametrize(("world", "workers"), WORLDS_AND_WORKERS)
def test_c41_every_document_once(hundred, world, workers):
    done, counts = [], set()
    for rank in range(world):
        _, loader = data_loader(hundred, workers, rank=rank, world_size=world, batch_size=5, batch_tokens=None)
        batches = list(loader)
        assert batches
        counts.add(len(batches))
        done += ids_of(batches)
    assert sorted(map(int, done)) == list(range(100))
    assert len(counts) == 1
