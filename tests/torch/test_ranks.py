"""Real ranks: equal rounds with a barrier in each (C43), and each row of finished steps once over kills and worlds."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from shardprep.torch import TorchLoader
from tests.torch.played import ids_of
from tests.torch.running import PROGRAMS, ranks, torchrun


def test_c43_equal_shares(hundred):
    counts = []
    for rank in range(4):
        loader = TorchLoader(hundred.loader(rank=rank, world_size=4, batch_size=5), num_workers=2 if rank == 0 else 0)
        batches = list(loader)
        counts.append((len(batches), len(ids_of(batches))))
    assert counts == [(5, 25)] * 4


def test_c43_four_processes_and_a_barrier_per_round(hundred_and_one, tmp_path):
    said = [json.loads(out) for out in ranks(4, "barrier.py", hundred_and_one.uri, tmp_path, 0)]
    drop, pad = [one["drop"] for one in said], [one["pad"] for one in said]
    assert [one["rounds"] for one in drop] == [one["len"] for one in drop] == [5] * 4
    assert len({name for one in drop for name in one["ids"]}) == sum(len(one["ids"]) for one in drop) == 100
    assert {one["dropped"] for one in drop} == {1}
    assert [one["rounds"] for one in pad] == [one["len"] for one in pad] == [6] * 4
    assert sorted(int(name) for one in pad for name in one["ids"]) == list(range(101))
    assert sum(one["fillers"] for one in pad) == 3
    assert {one["dropped"] for one in pad} == {0}


def rows_of_finished_steps(folder: Path) -> dict[int, Counter[str]]:
    """Return how often each row was played in each epoch; of steps that were played again only the last time counts."""
    steps: dict[tuple[int, int], dict[str, list[str]]] = {}
    for file in sorted(folder.glob("run-*/rows-*.jsonl")):  # in the order of runs
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            parts = steps.setdefault(tuple(entry["at"]), {})
            if parts and next(iter(parts)).split("/")[0] != file.parent.name:
                parts.clear()
            parts[f"{file.parent.name}/{file.name}"] = entry["ids"]
    epochs: dict[int, Counter[str]] = {}
    for (epoch, _), parts in steps.items():
        epochs.setdefault(epoch, Counter()).update(name for ids in parts.values() for name in ids)
    return epochs


def run(folder: Path, number: int, world: int, shards: object, die_at: int, save_every: int):
    """Run the loop; its logs go to a folder of the run."""
    done = torchrun(world, PROGRAMS / "rows.py", shards, folder, die_at, save_every)
    kept = folder / f"run-{number:02d}"
    kept.mkdir()
    for file in folder.glob("rows-*.jsonl"):
        file.rename(kept / file.name)
    return done


def test_two_processes_killed_then_three(dataset, tmp_path):
    killed = run(tmp_path, 0, 2, dataset.uri, 40, 2)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr or "-9" in killed.stderr
    finished = run(tmp_path, 1, 3, dataset.uri, 0, 2)
    assert finished.returncode == 0, finished.stderr
    said = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    assert {tuple(one["began"]) for one in said} != {(0, 0)}
    assert {one["slots"] for one in said} == {6}
    epochs = rows_of_finished_steps(tmp_path)
    assert set(epochs) == {0, 1}
    for rows in epochs.values():
        assert set(rows.values()) == {1}
        assert len(rows) == dataset.splits["train"]


@pytest.mark.slow
def test_kills_at_random_and_another_world_each_time(dataset, tmp_path):
    draw = random.Random(7)
    for number in range(8):
        run(tmp_path, number, draw.choice([1, 2, 3, 4, 6]), dataset.uri, draw.randrange(2, 60), draw.choice([1, 2, 3]))
    finished = run(tmp_path, 8, 2, dataset.uri, 0, 1)
    assert finished.returncode == 0, finished.stderr
    for rows in rows_of_finished_steps(tmp_path).values():
        assert set(rows.values()) == {1}
        assert len(rows) == dataset.splits["train"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [0, 1, 2, 5, 9])
def test_c41_every_document_once_with_processes_of_ours(hundred, world, workers):
    done = []
    for rank in range(world):
        loader = TorchLoader(hundred.loader(rank=rank, world_size=world, batch_size=5), num_workers=workers)
        done += ids_of(loader)
    assert sorted(map(int, done)) == list(range(100))


@pytest.mark.slow
def test_trainer_on_two_ranks_trains_as_on_one(dataset, tmp_path):
    alone = json.loads(ranks(1, "trainer.py", dataset.uri, tmp_path / "one")[0].splitlines()[-1])
    both = [json.loads(out.splitlines()[-1]) for out in ranks(2, "trainer.py", dataset.uri, tmp_path / "two")]
    assert both[0]["eval"] == both[1]["eval"] == pytest.approx(alone["eval"], rel=1e-4)
    assert sorted(both[0]["ids"] + both[1]["ids"]) == sorted(alone["ids"])
    assert len(set(alone["ids"])) == len(alone["ids"]) == dataset.splits["train"]
    assert both[0]["losses"] == pytest.approx(alone["losses"], rel=1e-3)
