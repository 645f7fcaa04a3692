"""torchdata's StatefulDataLoader continues at the very micro-batch; our own states continue at the step, anywhere."""

from __future__ import annotations

import json

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from shardprep.adapters.torchdata import StatefulShards
from shardprep.errors import ConfigError
from shardprep.torch import TorchLoader
from tests.torch.played import played, seen

POLICY = {"batch_tokens": 1_500, "accumulate": 3, "seed": 3}

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning",
    "ignore:.set_vital. is deprecated:UserWarning",  # torchdata calls it
)


def stateful(dataset, workers, persistent=False, **policy):
    shards = StatefulShards(dataset.loader(**{**POLICY, **policy}))
    return shards, StatefulDataLoader(shards, batch_size=None, num_workers=workers, persistent_workers=persistent)


def whole(dataset, epochs=3):
    loader = TorchLoader(dataset.loader(**POLICY))
    return [played(loader) for _ in range(epochs)]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True), (3, False)])
def test_its_own_state_continues_at_the_micro_batch(dataset, workers, persistent):
    expected = whole(dataset)
    _, loader = stateful(dataset, workers, persistent)
    played(loader)
    iterator = iter(loader)
    first = [seen(next(iterator)) for _ in range(5)]  # not at the edge of a step
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [seen(next(iterator)) for _ in range(2)]
    assert first + rest == expected[1][:7]
    del iterator, loader
    _, other = stateful(dataset, workers, persistent)
    other.load_state_dict(state)
    assert first + played(other) == expected[1]
    assert played(other) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_the_end_of_an_epoch(dataset, workers):
    expected = whole(dataset, 2)
    _, loader = stateful(dataset, workers)
    played(loader)
    state = loader.state_dict()
    _, other = stateful(dataset, workers)
    other.load_state_dict(state)
    assert played(other) == expected[1]


def test_the_batch_s_state_continues_on_another_number_of_workers(dataset):
    expected = whole(dataset, 2)
    _, loader = stateful(dataset, 2)
    state = [batch.state() for batch in loader][4]
    shards, other = stateful(dataset, 1)
    shards.load_state_dict(state)
    assert [batch for batch in expected[0] if batch[1] < state["step"]] + played(other) == expected[0]
    assert played(other) == expected[1]


def test_its_own_state_on_another_rank_is_refused(dataset):
    _, loader = stateful(dataset, 0, rank=0, world_size=2)
    next(iter(loader))
    state = loader.state_dict()
    _, other = stateful(dataset, 0, rank=1, world_size=2)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"give batch.state\(\) to load_state_dict"):
        next(iter(other))


def test_a_state_before_anything_was_played(dataset):
    shards, _ = stateful(dataset, 0)
    shards.set_epoch(2)
    assert shards.state_dict()["epoch"] == 2
