"""States of a reader: JSON there and back, and refused where they belong to another run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardprep.core.policy import Policy
from shardprep.core.schedule import PLAN_VERSION
from shardprep.core.state import ReaderState, check_same
from shardprep.errors import ConfigError

STATE = ReaderState(
    plan_version=PLAN_VERSION,
    fingerprint="3f" * 32,
    split="train",
    seed=-7,
    epoch=2,
    step=12_345_678,
    policy=Policy(slots=1_024, batch_tokens=2**40, batch_size=2**20, accumulate=64).document(),
)
MIX = replace(STATE, sets={"task": (3, 17), "general": (0, 5_000)})


@pytest.mark.parametrize("state", [STATE, MIX])
def test_there_and_back_in_less_than_a_kilobyte(state):
    text = json.dumps(state.document())
    assert len(text) < 1024
    assert ReaderState.parse(json.loads(text)) == state
    check_same(ReaderState.parse(json.loads(text)), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"plan_version": 2},
            "made with plan version 2, and this shardprep plays version 1: continue with the shardprep",
        ),
        ({"plan_version": "1"}, "not a state of a shardprep reader: plan_version must be a whole number, got '1'"),
        ({"epoch": -1}, "epoch must not be negative, got -1"),
        ({"step": 1.5, "split": 4}, "split must be a string, got 4; step must be a whole number, got 1.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"policy": []}, r"policy must be an object, got \[\]; policy.slots is missing"),
        ({"policy": {"slots": "8"}}, "policy.slots must be a whole number, got '8'"),
        ({"sets": {"task": [1]}}, "sets.task must be two numbers, an epoch and a round"),
        ({"sets": {"task": [1, -2]}}, "sets.task must be whole numbers"),
        ({"sets": 4}, "sets must be an object, got 4"),
    ],
)
def test_what_is_no_state(change, message):
    with pytest.raises(ConfigError, match=message):
        ReaderState.parse({**MIX.document(), **change})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the state of a reader is a JSON object, got NoneType"),
        ([1], "the state of a reader is a JSON object, got list"),
        ({}, "plan_version is missing; fingerprint is missing; split is missing; seed is missing; epoch is missing"),
        ({"model": {}}, "not a state of a shardprep reader: plan_version is missing"),
    ],
)
def test_something_else_in_its_place(value, message):
    with pytest.raises(ConfigError, match=message):
        ReaderState.parse(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "aa"}, f"the data set's fingerprint is '{'3f' * 32}' in the state and 'aa' here"),
        ({"plan_version": 0}, "the plan version is 1 in the state and 0 here"),
        (
            {"split": "test", "seed": 1},
            "the split is 'train' in the state and 'test' here; the seed is -7 in the state and 1 here",
        ),
        ({"policy": {**STATE.policy, "slots": 4}}, "slots is 1024 in the state and 4 here"),
        (
            {"policy": {**STATE.policy, "tail": "drop", "variety": 2}},
            "tail is 'pad' in .* 'drop' here; variety is 0 in .* 2 here",
        ),
        ({"policy": {**STATE.policy, "new": 1}}, "new is 'missing' in the state and 1 here"),
        (
            {"policy": {k: v for k, v in STATE.policy.items() if k != "accumulate"}},
            "accumulate is 64 in .* 'missing' here",
        ),
    ],
)
def test_states_of_another_run_are_refused_with_both_named(change, message):
    with pytest.raises(ConfigError, match=message):
        check_same(STATE, replace(STATE, **change))


def test_another_position_is_the_same_run():
    check_same(MIX, replace(MIX, epoch=0, step=0, sets={}))
