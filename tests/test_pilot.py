"""`with shardprep.pilot(...)` in a loop."""

from __future__ import annotations

import json
import time

import pytest

import shardprep
from shardprep.errors import ConfigError, PilotError
from shardprep.torch import TorchLoader
from tests.reader.data import build, lengths_of


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pilot")
    return shardprep.open(build(folder, lengths_of(800)), cache_dir=folder / "cache")


@pytest.mark.parametrize("wrap", [lambda loader: loader, TorchLoader, lambda loader: TorchLoader(loader, prefetch=2)])
def test_a_loop_is_watched_and_ended_at_a_step(dataset, tmp_path, wrap):
    loader = wrap(dataset.loader(batch_tokens=800, accumulate=2, rank=0, world_size=1))
    out, html = tmp_path / "pilot.json", tmp_path / "pilot.html"
    seen = 0
    with shardprep.pilot(
        steps=40, out=out, html=html, price_per_hour=3.6, total_steps=1_000, params=1e6, gpu="L4"
    ) as pilot:
        while not pilot.done:  # epochs
            for batch in pilot.watch(loader):
                time.sleep(0.002)
                seen += 1
                last = batch.last_in_step
    assert last  # no step is left half done
    told = pilot.result
    assert json.loads(out.read_text()) == told
    assert told["steps_measured"] + told["steps_left_out"] == 40
    assert seen == pytest.approx(80, abs=8)
    assert told["seconds_per_step"]["mean"] >= 0.0035
    assert (told["split"], told["world_size"]) == ("train", 1)
    assert told["startup_seconds"] is not None
    assert told["projection"]["usd"]["mean"] == pytest.approx(told["projection"]["seconds"]["mean"] / 1_000)
    assert told["mfu"]["mean"] > 0
    assert "diagnosis" in pilot.text()
    assert "</html>" in html.read_text()
    assert list(pilot.watch(loader)) == []  # it has its steps


def test_what_the_loop_raises_goes_through(dataset):
    def loop(pilot):
        for _ in pilot.watch(dataset.loader(batch_tokens=800)):
            raise RuntimeError("loss is nan")

    pilot = shardprep.pilot()
    with pytest.raises(RuntimeError, match="loss is nan"), pilot:
        loop(pilot)
    assert pilot.result == {}


def test_a_block_without_steps_or_with_too_few_is_an_error(dataset):
    with pytest.raises(PilotError, match=r"pilot.watch\(loader\)"), shardprep.pilot():
        pass
    with pytest.raises(PilotError, match="steps were played"), shardprep.pilot() as pilot:
        for _ in zip(range(5), pilot.watch(dataset.loader(batch_tokens=800)), strict=False):
            pass


def test_values_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="at least 21"):
        shardprep.pilot(steps=20)
    with pytest.raises(ConfigError, match="trainable, layers and width need params"):
        shardprep.pilot(trainable=1e6)
    with pytest.raises(ConfigError, match=r"cannot write /no/such/folder/pilot\.json"):
        shardprep.pilot(out="/no/such/folder/pilot.json")
    with pytest.raises(ConfigError, match="confidence"):
        shardprep.pilot(confidence=2)
