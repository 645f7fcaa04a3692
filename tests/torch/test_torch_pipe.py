"""A channel in Pipe mode behind a TorchLoader, which takes it for a loader."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from shardprep.adapters.sagemaker import any_rank
from shardprep.errors import ConfigError
from shardprep.torch import TorchLoader
from tests.reader.data import build, lengths_of
from tests.reader.pipes import channel_in

ROWS = 300


def test_tensors_ranks_and_states(tmp_path, monkeypatch):
    uri = build(tmp_path / "data", lengths_of(ROWS), format="recordio")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with channel_in(tmp_path / "ml", uri) as channel:
        channel.feed(channel.job(0, "train_1"))
        channel.feed(channel.job(0, "train_0"))
        channel.feed(channel.job(0, "again"))
        with channel.pipe("train_1") as pipe:
            loader = TorchLoader(pipe, prefetch=2)
            assert (pipe.plan.world.rank, pipe.plan.world.world_size, pipe.plan.policy.slots) == (1, 2, 2)
            rows, batches, states = Counter(), [], []
            for batch in loader:
                assert isinstance(batch.input_ids, torch.Tensor)
                rows.update(name for name, weight in zip(batch.ids, batch.weight.tolist(), strict=True) if weight)
                batches.append(batch.input_ids.shape)
                states.append(loader.state_dict())
            assert len(batches) == len(loader) == loader.steps
        with channel.pipe("train_0", rank=0, world_size=2) as other:
            for batch, shape in zip(TorchLoader(other), batches, strict=True):
                assert batch.input_ids.shape == shape
                rows.update(name for name, weight in zip(batch.ids, batch.weight.tolist(), strict=True) if weight)
        assert rows == Counter(map(str, range(ROWS)))
        with channel.pipe("again") as pipe:
            again = TorchLoader(pipe)
            again.load_state_dict(states[2])
            assert [batch.input_ids.shape for batch in again] == batches[3:]
        with channel.pipe("other", timeout_s=1) as pipe, pytest.raises(ConfigError, match=r"one of 2 .*TorchLoader"):
            next(iter(pipe))
        with channel.pipe("none", timeout_s=1) as pipe, pytest.raises(ConfigError, match="give num_workers=0"):
            TorchLoader(pipe, num_workers=1)


@pytest.mark.slow
def test_any_rank_asks_all_ranks(tmp_path):
    """Two ranks in two processes: one says stop, the other that it is time to save."""
    program = Path(__file__).parent / "programs" / "agree.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=300)[0].split() for rank in ranks] == [["True", "True", "False"]] * 2


def test_any_rank_asks_the_process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    flags = (True, False)
    try:
        assert any_rank(*flags) == flags
    finally:
        torch.distributed.destroy_process_group()


def test_any_rank_without_a_group():
    assert not torch.distributed.is_initialized()
    flags = (True, False)
    assert any_rank(*flags) == flags
