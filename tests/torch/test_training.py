"""A real model: its loss curve after a kill and a resume is the one without; metrics of an evaluation are those of the split."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from pipelines.train_ddp import TinyLM, evaluate, summed_loss
from shardprep.torch import TorchLoader
from tests.torch.played import ids_of
from tests.torch.running import ROOT, environment, free_port, torchrun

VOCABULARY = 701  # token 0, and one for each of the 700 documents
SIZES = {"batch_tokens": 400, "slots": 6, "accumulate": 2, "seed": 4}


class Run:
    """Training on several ranks, one after the other in this process: gradients are added as DDP would."""

    def __init__(self, dataset, world: int) -> None:
        torch.manual_seed(0)
        self.model = TinyLM(VOCABULARY, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.ranks = [TorchLoader(dataset.loader(**SIZES, rank=rank, world_size=world)) for rank in range(world)]

    def steps(self, count: int) -> list[float]:
        """Train so many steps; return their losses."""
        losses: list[float] = []
        last = -1
        while len(losses) < count:
            for batches in zip(*self.ranks, strict=True):
                if batches[0].step != last:
                    losses.append(0.0)
                last = batches[0].step
                for batch in batches:
                    loss = summed_loss(self.model, batch) / (batch.step_tokens - batch.step_rows)
                    loss.backward()
                    losses[-1] += loss.item()
                if batches[0].last_in_step:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    if len(losses) == count:
                        break
        return losses

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "reader": self.ranks[0].state_dict(),
            },
            file,
        )
        return file.getvalue()

    def load(self, data: bytes) -> None:
        saved = torch.load(io.BytesIO(data))
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for rank in self.ranks:
            rank.load_state_dict(saved["reader"])


def test_the_loss_curve_after_a_resume(dataset):
    whole = Run(dataset, 2).steps(14)
    assert len(set(whole)) == 14
    assert sum(whole[-3:]) < sum(whole[:3])
    first = Run(dataset, 2)
    begun = first.steps(5)
    saved = first.save()
    first.steps(2)  # lost
    same = Run(dataset, 2)
    same.load(saved)
    assert begun + same.steps(9) == whole  # to the last bit, over the end of an epoch
    other = Run(dataset, 3)
    other.load(saved)
    assert begun + other.steps(9) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("world", [1, 3])
def test_a_metric_weighted_by_batch_weight_is_that_of_the_whole_split(dataset, world):
    torch.manual_seed(0)
    model = TinyLM(VOCABULARY, 8)
    alone = TorchLoader(dataset.loader("validation", shuffle=False, batch_size=1, rank=0, world_size=1))
    expected_rows, expected_loss = {}, evaluate(model, alone)
    with torch.no_grad():
        for batch in alone:
            assert batch.weight.tolist() == [1.0]
            expected_rows[batch.ids[0]] = float(model(batch.input_ids).square().mean())
    total = weight = 0.0
    sums = torch.zeros(2, dtype=torch.float64)
    lengths, done = set(), []
    for rank in range(world):
        loader = TorchLoader(
            dataset.loader("validation", shuffle=False, batch_tokens=900, rank=rank, world_size=world, slots=4)
        )
        lengths.add(len(list(loader)))
        for batch in loader:
            done += ids_of([batch])
            sums += torch.stack(
                [summed_loss(model, batch).detach().double(), (batch.labels[:, 1:] >= 0).sum().double()]
            )
            per_row = torch.tensor([expected_rows[name] for name in batch.ids])
            total += float((per_row * batch.weight).sum())
            weight += float(batch.weight.sum())
        assert sum(batch.weight.sum() for batch in loader) == sum(batch.real for batch in loader)
    assert len(lengths) == 1
    assert sorted(done) == sorted(expected_rows)
    assert float(sums[0] / sums[1]) == pytest.approx(expected_loss, rel=1e-6)
    assert total / weight == pytest.approx(sum(expected_rows.values()) / len(expected_rows), rel=1e-5)


def arguments(dataset, folder: Path) -> list[object]:
    return [
        dataset.uri, folder, "--epochs", 2, "--batch-tokens", 400, "--slots", 6, "--accumulate", 2, "--save-every", 2,
        "--width", 8, "--vocabulary", VOCABULARY, "--cache-dir", folder / "cache",
    ]  # fmt: skip


def losses_of(folder: Path) -> dict[int, float]:
    """Return the loss of each step, of runs that began later before those that began earlier."""
    losses = {}
    for file in sorted(folder.glob("log-*-0.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            losses[entry["at"]] = entry["loss"]
    return losses


@pytest.mark.slow
def test_torchrun_killed_and_resumed_on_the_same_and_on_another_world(dataset, tmp_path):
    program = ROOT / "pipelines/train_ddp.py"
    assert torchrun(2, program, *arguments(dataset, tmp_path / "whole")).returncode == 0
    whole = losses_of(tmp_path / "whole")
    for world in (2, 3):
        folder = tmp_path / f"killed-{world}"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
            "--master-port", str(free_port()), str(program), *map(str, arguments(dataset, folder)),
        ]  # fmt: skip
        with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as running:
            while not list(folder.glob("model-*.pt")):
                time.sleep(0.01)
                assert running.poll() is None
            trainers = [c.pid for c in psutil.Process(running.pid).children() if "train_ddp" in " ".join(c.cmdline())]
            os.kill(trainers[1], signal.SIGKILL)
            assert running.wait(300) != 0
        killed = losses_of(folder)
        assert 0 < len(killed) < len(whole)
        done = torchrun(world, program, *arguments(dataset, folder))
        assert done.returncode == 0, done.stderr
        resumed = losses_of(folder)
        assert set(resumed) == set(whole)
        if world == 2:
            assert resumed == whole
        else:
            assert [resumed[at] for at in whole] == pytest.approx(list(whole.values()), rel=1e-4)
