"""Steps one by one: where they begin and end, what they hold, and what a file gets of them."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import shardprep
from shardprep.reader.metrics import Metrics
from shardprep.reader.steps import CAUSES, COLUMNS, StepLog
from tests.reader.data import build, lengths_of


@dataclass
class Clock:
    now: float = 50.0

    def __call__(self):
        return self.now


@dataclass
class Played:
    step: int
    last_in_step: bool
    epoch: int = 0
    real: int = 2
    tokens: int = 30
    step_rows: int = 8
    step_tokens: int = 120
    shape: tuple[int, int] = (2, 16)

    @property
    def input_ids(self):
        return np.zeros(self.shape)


def play(log, clock, batches, *, wait=0.5, work=2.0):
    for batch in batches:
        clock.now += wait
        log.waited({"fetch": wait})
        log.handed(batch)
        clock.now += work
        log.asked()


def test_a_step_holds_its_waits_its_work_and_what_follows_its_last_batch():
    clock = Clock()
    log = StepLog(clock=clock, unix_clock=lambda: 1_000 + clock.now)
    log.began(7)
    play(log, clock, [Played(0, last_in_step=False), Played(0, last_in_step=True)])
    play(log, clock, [Played(1, last_in_step=False)])  # and broken off
    assert (log.count, log.steps_per_epoch) == (1, 7)
    steps = log.take()
    assert tuple(steps) == COLUMNS
    assert {name: value for name, (value,) in steps.items() if value} == {
        "end": 1055,
        "seconds": 5,
        "wait_seconds": 1,
        "wait_fetch_seconds": 1,
        "between_seconds": 2,
        "micro_batches": 2,
        "slots": 64,
        "square_slots": 2 * 2 * 16 * 16,
        "rows": 4,
        "tokens": 60,
        "step_rows": 8,
        "step_tokens": 120,
    }
    assert log.take() == {}


def test_copies_are_waits_and_no_computing():
    clock = Clock()
    log = StepLog(clock=clock)
    metrics = Metrics(steps=log, clock=clock)
    log.began(1)
    for last in (False, True):
        log.handed(Played(0, last_in_step=last))
        clock.now += 0.25
        metrics.copied(0.25)
        clock.now += 2
        log.asked()
    steps = log.take()
    assert (steps["seconds"], steps["between_seconds"]) == ([4.5], [2])
    assert (
        steps["wait_copy_seconds"]
        == steps["wait_seconds"]
        == [metrics.snapshot()["wait_seconds_by_cause"]["copy"]]
        == [0.5]
    )


def test_a_new_epoch_begins_a_new_step_and_time_between_epochs_counts_for_none():
    clock = Clock()
    log = StepLog(clock=clock)
    for epoch in range(2):
        log.began(1)
        play(log, clock, [Played(0, last_in_step=True, epoch=epoch)])
        clock.now += 100
    assert log.take()["seconds"] == [2.5, 2.5]


def test_the_oldest_steps_go_when_nobody_takes_them(monkeypatch):
    monkeypatch.setattr("shardprep.reader.steps.MOST_KEPT", 3)
    clock = Clock()
    log = StepLog(clock=clock)
    log.began(None)
    play(log, clock, [Played(number, last_in_step=True) for number in range(5)])
    assert log.take()["step"] == [2, 3, 4]
    assert log.count == 5


def test_pickled_metrics_begin_with_no_steps():
    clock = Clock()
    log = StepLog(clock=clock)
    log.began(1)
    play(log, clock, [Played(0, last_in_step=True)])
    other = pickle.loads(pickle.dumps(Metrics(steps=log)))
    assert other.steps.take() == {}
    assert log.take()["step"] == [0]


def test_taking_from_another_thread_loses_nothing():
    log, taken = StepLog(), []
    over = threading.Event()

    def take():
        while not over.is_set():
            taken.extend(log.take().get("step", []))

    thread = threading.Thread(target=take)
    thread.start()
    log.began(None)
    for number in range(3_000):
        log.handed(Played(number, last_in_step=True))
        log.asked()
    over.set()
    thread.join()
    taken.extend(log.take().get("step", []))
    assert taken == list(range(3_000))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_file_of_a_real_loader_has_every_step_once(tmp_path, monkeypatch, accumulate):
    monkeypatch.setenv("SHARDPREP_METRICS_DIR", str(tmp_path / "metrics"))
    lengths = lengths_of(300)
    dataset = shardprep.open(build(tmp_path, lengths), cache_dir=tmp_path / "cache")
    loader = dataset.loader(batch_tokens=900, accumulate=accumulate)
    for _ in range(2):
        batches = list(loader)
    (path,) = (tmp_path / "metrics").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = {name: [value for line in lines for value in line["steps"].get(name, [])] for name in COLUMNS}
    assert steps["epoch"] == [0] * loader.steps + [1] * loader.steps
    assert steps["step"] == [*range(loader.steps)] * 2
    assert sum(steps["step_tokens"]) == sum(steps["tokens"]) == 2 * sum(lengths)
    assert sum(steps["rows"]) == 600
    assert sum(steps["micro_batches"]) == 2 * len(loader)
    assert sum(steps["slots"]) == 2 * sum(batch.input_ids.size for batch in batches)
    assert lines[-1]["steps_per_epoch"] == loader.steps
    total = lines[-1]["wait_seconds"]
    assert sum(steps["wait_seconds"]) == pytest.approx(total, abs=0.01)
    assert sum(sum(steps[f"wait_{cause}_seconds"]) for cause in CAUSES) == pytest.approx(total, abs=0.01)
    assert sum(steps["seconds"]) == pytest.approx(lines[-1]["wall_seconds"], abs=0.05)
