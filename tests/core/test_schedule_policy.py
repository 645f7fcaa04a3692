"""World and policy: what they refuse, and which slots a rank plays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.policy import Policy, World, micro_batches_per_round, played_slots, slots_of
from shardprep.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"slots": 2.0}, "slots must be a whole number, got 2.0"),
        ({"slots": True}, "slots must be a whole number, got True"),
        ({"slots": 2**21}, "slots must be at most 1048576, got 2097152"),
        ({"batch_size": None}, "give batch_tokens .padded tokens of a micro-batch., batch_size .its rows., or both"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_tokens": -5}, "batch_tokens must be at least 1, got -5"),
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"variety": -1}, "variety must be at least 0, got -1"),
        ({"variety": 21}, "variety must be at most 20, got 21"),
        ({"window_rows": 0}, "window_rows must be at least 1, got 0"),
        ({"seed": "7"}, "seed must be a whole number, got '7'"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"shuffle": 1}, "shuffle must be True or False, got 1"),
        ({"tail": "keep"}, "tail must be one of 'pad', 'drop', got 'keep'"),
        ({"pad_to": "batch"}, "pad_to must be one of 'round', 'edge', got 'batch'"),
    ],
)
def test_policies_that_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Policy(**{"slots": 2, "batch_size": 4, **fields})


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (4, 4, r"rank must be in \[0, 4\), got 4"),
        (-1, 4, "rank must be at least 0, got -1"),
        (0, 0, "world_size must be at least 1, got 0"),
        ("0", 1, "rank must be a whole number, got '0'"),
    ],
)
def test_worlds_that_are_refused(rank, world_size, message):
    with pytest.raises(ConfigError, match=message):
        World(rank, world_size)


def test_the_document_has_all_but_the_seed_as_json_values():
    policy = Policy(slots=8, batch_tokens=14_400, seed=5)
    document = json.loads(json.dumps(policy.document()))
    assert document == {
        "slots": 8,
        "batch_tokens": 14_400,
        "batch_size": None,
        "accumulate": 1,
        "variety": 0,
        "window_rows": 5_000,
        "tail": "pad",
        "shuffle": True,
        "pad_to": "round",
    }
    assert Policy(**document, seed=5) == policy


def test_rows_of_a_micro_batch():
    lengths = np.array([1, 10, 99, 100, 101, 5_000])
    assert Policy(slots=1, batch_tokens=100).rows_of(lengths).tolist() == [100, 10, 1, 1, 1, 1]
    assert Policy(slots=1, batch_tokens=100, batch_size=4).rows_of(lengths).tolist() == [4, 4, 1, 1, 1, 1]
    assert Policy(slots=1, batch_size=4).rows_of(lengths).tolist() == [4] * 6


@given(st.integers(1, 64), st.integers(1, 80))
def test_ranks_divide_the_slots_and_play_equally_many_micro_batches(slots, world_size):
    worlds = [World(rank, world_size) for rank in range(world_size)]
    assert [slot for world in worlds for slot in slots_of(world, slots)] == list(range(slots))
    played = [played_slots(world, slots) for world in worlds]
    assert {len(mine) for mine in played} == {micro_batches_per_round(worlds[0], slots)}
    assert sorted(slot for mine in played for slot in mine if slot >= 0) == list(range(slots))
    for world, mine in zip(worlds, played, strict=True):
        own = slots_of(world, slots)
        filler = {-1 - slot for slot in mine if slot < 0}
        assert all(slot in own if own else 0 <= slot < slots for slot in filler)
