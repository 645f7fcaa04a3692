"""Which rank this is: arguments, torch.distributed, environment; and no process group is ever made."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardprep.core.schedule import World
from shardprep.errors import ConfigError
from shardprep.torch import ShardIterable, TorchLoader, resolve_world


@pytest.fixture
def group():
    dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_arguments_win(group, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert resolve_world(4, 5) == World(4, 5)


def test_then_the_process_group(group, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert resolve_world() == World(3, 8)


def test_then_the_environment_then_one_process(dataset, monkeypatch):
    assert resolve_world() == World(0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert resolve_world() == World(1, 2)
    loader = TorchLoader(dataset.loader(batch_tokens=2_000))
    assert next(iter(loader)).slot == 1
    assert loader.metrics()["rank"] == 1
    assert ShardIterable(dataset.loader(batch_tokens=2_000)).world == World(1, 2)
    assert TorchLoader(dataset.loader(batch_tokens=2_000, rank=0, world_size=4)).loader.plan.world == World(0, 4)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("rank", "world_size", "environment", "said"),
    [
        (1, None, {}, "both rank and world_size"),
        (None, 2, {}, "both rank and world_size"),
        (4, 4, {}, r"rank must be in \[0, 4\), got 4"),
        (None, None, {"RANK": "1"}, "RANK=1 and WORLD_SIZE=None"),
        (None, None, {"RANK": "one", "WORLD_SIZE": "2"}, "whole numbers"),
        (None, None, {"RANK": "2", "WORLD_SIZE": "2"}, r"rank must be in \[0, 2\), got 2"),
    ],
)
def test_what_does_not_fit_is_refused(rank, world_size, environment, said):
    with pytest.raises(ConfigError, match=said):
        resolve_world(rank, world_size, environment=environment)


def test_a_group_that_comes_later_is_an_error_and_not_every_row_twice(dataset):
    loader = TorchLoader(dataset.loader(batch_tokens=2_000))
    dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
    try:
        with pytest.raises(ConfigError, match="rank 0 of 1, but now this is rank 3 of 8"):
            next(iter(loader))
    finally:
        dist.destroy_process_group()
    assert next(iter(loader)).epoch == 0


def test_a_state_loaded_before_keeps_its_slots(dataset, group):
    state = next(iter(TorchLoader(dataset.loader(batch_tokens=500, slots=6, rank=0, world_size=1)))).state()
    plain = dataset.loader(batch_tokens=500)
    plain.load_state_dict(state)
    assert TorchLoader(plain).loader.plan.policy.slots == 6
