"""The order, for ever: states of plan version 1 continue with these very rows. If one of these fails, PLAN_VERSION goes up."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from shardprep.core.buckets import LengthBuckets
from shardprep.core.mixing import MixEpoch, MixSet
from shardprep.core.policy import Policy
from shardprep.core.schedule import PLAN_VERSION, Epoch
from tests.core.schedule_cases import rows_of

BUCKETS = LengthBuckets((64, 128, 256, 512, 1_024), 8)
LARGE = rows_of([i * i * 37 % 1_500 + 1 for i in range(13_003)], 13)
SMALL = rows_of([i * i * 41 % 300 + 1 for i in range(101)], 7, 13)


def mixed(epoch):
    sets = [MixSet("a", [SMALL], BUCKETS, 1), MixSet("b", [LARGE], BUCKETS, 3)]
    return MixEpoch(sets, Policy(slots=2, batch_size=4, accumulate=2, seed=3), "a", epoch)


def epoch_of(number, sets=(LARGE, SMALL), **settings):
    return Epoch(sets, BUCKETS, Policy(**settings), number)


ORDERS = {
    "plain": lambda: epoch_of(1, slots=4, batch_tokens=4_096, window_rows=1_000, seed=7),
    "first epoch, one lane": lambda: epoch_of(0, sets=[SMALL], slots=3, batch_size=5),
    "pools": lambda: epoch_of(2, slots=8, batch_tokens=8_192, batch_size=20, variety=2, accumulate=3),
    "edges": lambda: epoch_of(1, slots=4, batch_tokens=8_192, variety=1, pad_to="edge"),
    "drop": lambda: epoch_of(3, slots=6, batch_size=16, tail="drop", seed=-1),
    "in order": lambda: epoch_of(1, slots=4, batch_tokens=4_096, shuffle=False),
    "mix": lambda: mixed(2),
}

DIGESTS = {
    "plain": "198efb3cd423cb7e8cb1c3da680d463e164c271a2bf83643b0a230f8bdb8d39b",
    "first epoch, one lane": "f2d34dfc721a1d7b68841daa0baca2a6144bdca4aa6f873a813e678f4ca34752",
    "pools": "8cfa94d8a0d21ccaac95abcf3496673a86780ebde1a316b1b0f1309a10211a5f",
    "edges": "10c0c0af60ab468eff9360b353f602bbe7d45b3b48a36d64224362025e88f17f",
    "drop": "c8a7a70af7b1f687ef4a6b1cf99215eb28609aefe85c0ad87d6ebbcd2f6f147d",
    "in order": "a17a8f8e8d425c3d9602fd2007b7128e531ab89231ff75e8c655a7043fb51ee7",
    "mix": "755d568056fc7257ac9e509591148719837508120fe0e1e26bcfd61d98570735",
}


def digest(epoch):
    """Return the SHA-256 of all micro-batches: numbers as little-endian int64."""
    whole = hashlib.sha256()
    for index in range(epoch.rounds):
        for slot in range(-1, epoch.policy.slots):
            b = epoch.micro_batch(index, slot)
            facts = np.array([b.round, b.slot, b.real, b.length, b.step, b.step_rows, b.step_tokens, b.epoch])
            whole.update(np.concatenate([facts, b.shard, b.row]).astype("<i8").tobytes())
    return whole.hexdigest()


@pytest.mark.parametrize("name", ORDERS)
def test_whole_epochs(name):
    assert PLAN_VERSION == 1
    assert digest(ORDERS[name]()) == DIGESTS[name]


def form(epoch, index, slot):
    b = epoch.micro_batch(index, slot)
    return (
        list(zip(b.shard.tolist(), b.row.tolist(), strict=True)),
        b.real,
        b.length,
        b.step,
        b.step_rows,
        b.step_tokens,
    )


def test_some_micro_batches():
    assert form(ORDERS["first epoch, one lane"](), 0, 0) == (
        [(17, 13), (19, 12), (16, 12), (16, 13), (13, 13)],
        5,
        304,
        0,
        15,
        4159,
    )
    assert form(ORDERS["first epoch, one lane"](), 6, 2) == (
        [(13, 6), (19, 7), (16, 7), (15, 7), (14, 7)],
        5,
        168,
        6,
        15,
        2287,
    )
    assert form(ORDERS["plain"](), 100, 3) == ([(5, 594), (5, 600), (5, 606), (5, 603)], 4, 928, 100, 16, 14816)
    assert form(ORDERS["edges"](), 40, 1) == (
        [(10, 658), (6, 655), (10, 650), (6, 649), (0, 656), (6, 658), (6, 654), (10, 646)],
        8,
        1024,
        40,
        32,
        31786,
    )
    assert form(ORDERS["in order"](), 5, 0) == ([(0, 997), (1, 997)], 2, 1504, 5, 8, 11954)
    assert form(mixed(2), 7, 1) == ([(16, 4), (13, 4), (18, 5), (15, 4)], 4, 128, 3, 16, 2027)
    assert mixed(2).micro_batch(7, 1).name == "a"
    assert mixed(2).positions(4) == {"a": (2, 5), "b": (0, 19)}
