"""Mixing: each set's rows once in each of its own epochs, tokens by weight, the same on all ranks, states that continue."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

import shardprep
from shardprep.errors import ConfigError
from tests.reader.data import build, lengths_of


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    cache = folder / "cache"
    return {
        "task": shardprep.open(build(folder / "task", lengths_of(150)), cache_dir=cache),
        "general": shardprep.open(build(folder / "general", lengths_of(400)), cache_dir=cache),
    }


def test_each_set_is_played_once_an_epoch_of_its_own_and_tokens_keep_to_the_weights(two):
    mix = shardprep.mix(two, weights={"task": 1, "general": 2}, until="task")
    loader = mix.loader(batch_tokens=600)
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    slots: Counter[str] = Counter()
    for epoch in range(6):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch in batches:
            slots[batch.name] += batch.input_ids.size
            for name, weight in zip(batch.ids, batch.weight, strict=True):
                seen[batch.name][name] += int(weight)
        assert set(seen["task"].values()) == {epoch + 1}
    assert len(seen["task"]) == 150
    counts = set(seen["general"].values())
    assert max(counts) - min(counts) <= 1
    assert len(seen["general"]) == 400
    assert slots["general"] / slots["task"] == pytest.approx(2, rel=0.08)


def test_all_ranks_play_the_same_rounds_of_the_same_set_and_states_continue_on_other_worlds(two):
    mix = shardprep.mix(two, weights={"task": 1, "general": 1}, until="task")
    given = {"batch_tokens": 500, "slots": 4, "accumulate": 2}
    whole = [(b.name, b.round, b.slot, tuple(b.ids)) for b in mix.loader(**given)]
    ranks = [mix.loader(rank=rank, world_size=2, **given) for rank in range(2)]
    played, state = [], None
    for number, pair in enumerate(zip(*ranks, strict=True)):
        assert len({(b.name, b.input_ids.shape, b.step_rows, b.step_tokens) for b in pair}) == 1
        played += [(b.name, b.round, b.slot, tuple(b.ids)) for b in pair]
        if number > 6 and pair[0].last_in_step:
            state = json.loads(json.dumps(ranks[1].state_dict()))
            break
    assert len(json.dumps(state)) < 1024
    rest = mix.loader(**given)
    rest.load_state_dict(state)
    played += [(b.name, b.round, b.slot, tuple(b.ids)) for b in rest]
    assert sorted(played) == sorted(whole)


def test_a_state_of_another_mix_is_refused(two):
    given = {"batch_tokens": 500}
    state = shardprep.mix(two, weights={"task": 1, "general": 1}, until="task").loader(**given).state_dict()
    with pytest.raises(ConfigError, match=r"general 3\.0 x"):
        shardprep.mix(two, weights={"task": 1, "general": 3}, until="task").loader(**given).load_state_dict(state)
    with pytest.raises(ConfigError, match="until task"):
        two["task"].loader(**given).load_state_dict(state)


def test_what_does_not_fit_together_says_so(two, tmp_path):
    with pytest.raises(ConfigError, match="weight"):
        shardprep.mix(two, weights={"task": 1}, until="task")
    with pytest.raises(ConfigError, match="until"):
        shardprep.mix(two, weights={"task": 1, "general": 1}, until="other")
    with pytest.raises(ConfigError, match=r"above 0"):
        shardprep.mix(two, weights={"task": 1, "general": 0}, until="task").loader(batch_size=2)
    with pytest.raises(ConfigError, match="split"):
        shardprep.mix(two, weights={"task": 1, "general": 1}, until="task").loader({"task": "train"}, batch_size=2)
    other = shardprep.open(
        build(tmp_path, lengths_of(20), columns=("label:float64", "note:string")), cache_dir=tmp_path / "cache"
    )
    with pytest.raises(ConfigError, match=r'"label" is int64 in task .* float64 in other'):
        shardprep.mix({"task": two["task"], "other": other}, weights={"task": 1, "other": 1}, until="task")
