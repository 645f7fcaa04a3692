"""Training that is killed at random and goes on elsewhere: each row of a finished step counts once an epoch.

Real processes, SIGKILL at random moments, another world size and another number of threads after each; training_process.py
says what a finished step is.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.reader.history import StateHistory
from tests.reader.data import build, lengths_of

PROGRAM = Path(__file__).with_name("training_process.py")
EPOCHS = 2
END_S = 300.0


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return data sets: one shard; several; more shards than lanes, and one row that is longer than any batch."""
    made = []
    for rows, shards in ((60, 1), (180, 5), (330, 13)):
        folder = tmp_path_factory.mktemp("killed")
        lengths = lengths_of(rows, 120)
        lengths[rows // 2] = 3_000
        made.append(build(folder, lengths, shards=shards, row_group_size="8KB"))
    return made


class Server:
    """training_process.py --serve: has imported everything, and forks a process for each rank."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, job: Path, world: int) -> list[Any]:
        self.process.stdin.write(f"{job}\n")
        self.process.stdin.flush()
        return [Forked(pid) for pid in json.loads(self.process.stdout.readline())]

    def close(self) -> None:
        self.process.communicate(timeout=END_S)


@dataclass
class Forked:
    """A process that the server forked, as far as a Popen is used here."""

    pid: int

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.002)
        raise TimeoutError(f"process {self.pid} does not end")


class Fresh:
    """Each rank is a process of its own from the beginning: as under torchrun, at half a second each."""

    def start(self, job: Path, world: int) -> list[Any]:
        return [subprocess.Popen([sys.executable, PROGRAM, job, str(rank)]) for rank in range(world)]

    def close(self) -> None:
        pass


@dataclass
class Schedule:
    """One training: a policy, and runs on worlds that change, until all epochs are finished."""

    folder: Path
    uri: str
    policy: dict[str, Any]
    chance: random.Random
    finished: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0
    killed: int = 0

    @property
    def state(self) -> dict[str, Any] | None:
        return StateHistory(self.folder / "states").load()

    def start(self, how: Any, world: int, step_seconds: float) -> list[Any]:
        self.runs += 1
        (self.folder / "logs").mkdir(exist_ok=True)
        job = {
            "uri": self.uri,
            "cache_dir": str(self.folder / "cache"),
            "cache_limit_bytes": self.chance.choice([None, None, 150_000]),
            "policy": self.policy,
            "world": world,
            "threads": self.chance.randint(1, 3),
            "epochs": EPOCHS,
            "states": str(self.folder / "states"),
            "logs": str(self.folder / "logs"),
            "run": self.runs,
            "saver": self.chance.randrange(world),
            "step_seconds": step_seconds,
        }
        path = self.folder / f"job-{self.runs}.json"
        path.write_text(json.dumps(job))
        return how.start(path, world)

    def run(self, how: Any, world: int, kill_after_s: float | None) -> None:
        """Play one run, killed after so many seconds as a whole or in one rank; count what it finished."""
        before = self.position()
        # The first run is killed early and has long steps: that kill comes in time however fast or busy the machine is.
        first = kill_after_s is not None and not self.runs
        ranks = self.start(how, world, 0.5 if first else self.chance.choice([0, 0, 0.002]))
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            if self.chance.random() < 0.3:  # one rank alone: the others fail, or torchrun ends them a little later
                self.chance.choice(ranks).kill()
                time.sleep(self.chance.uniform(0, 0.2))
            for rank in ranks:
                rank.kill()
        for rank in ranks:
            rank.wait(END_S)
        ends = [self.folder / "logs" / f"{self.runs}-{rank}.end" for rank in range(world)]
        notes = [(end.read_text() if end.exists() else "") or "killed" for end in ends]
        assert set(notes) <= {"done", "killed", "a rank is gone"}, "\n".join(notes)
        assert kill_after_s is not None or set(notes) == {"done"}
        self.killed += "killed" in notes
        self.count(world, before, self.position())

    def position(self) -> tuple[int, int]:
        state = self.state
        return (0, 0) if state is None else (state["epoch"], state["step"])

    def count(self, world: int, start: tuple[int, int], stop: tuple[int, int]) -> None:
        """Take the steps from start to stop (exclusive) from the logs of all ranks of the last run."""
        logs = [self.lines(rank) for rank in range(world)]
        for lines in logs:
            assert [place for place in lines if place < start] == [], "a finished step was played again"
        places = sorted({place for lines in logs for place in lines if place < stop})
        for place in places:
            together = [lines[place] for lines in logs]  # KeyError: saved before all ranks had played it
            assert len({json.dumps(line["shapes"]) for line in together}) == 1
            rows = [row for line in together for row in line["rows"]]
            assert {line["all"] for line in together} == {len(rows)}
            self.finished.append({"place": place, "rows": sorted(rows)})

    def lines(self, rank: int) -> dict[tuple[int, int], dict[str, Any]]:
        path = self.folder / "logs" / f"{self.runs}-{rank}.jsonl"
        data = path.read_bytes() if path.exists() else b""
        lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
        assert len({(line["epoch"], line["step"]) for line in lines}) == len(lines)
        return {(line["epoch"], line["step"]): line for line in lines}

    def assert_exact(self) -> None:
        """Compare all finished steps with those of one process that is never killed."""
        dataset = shardprep.open(self.uri, cache_dir=self.folder / "cache-of-one")
        state = self.state  # None: no step in any epoch, with tail="drop"
        loader = dataset.loader(**{**self.policy, **({} if state is None else {"slots": state["policy"]["slots"]})})
        expected: dict[tuple[int, int], list[str]] = {}
        for epoch in range(EPOCHS):
            for batch in loader:
                rows = [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]
                expected.setdefault((epoch, batch.step), []).extend(rows)
        assert [step["place"] for step in self.finished] == sorted(expected)
        for step in self.finished:
            assert step["rows"] == sorted(expected[step["place"]]), step["place"]
        for epoch in range(EPOCHS):
            seen = Counter(row for step in self.finished if step["place"][0] == epoch for row in step["rows"])
            assert set(seen.values()) <= {1}
            assert len(seen) == (dataset.splits["train"] - loader.dropped_rows if state else 0)


def drawn_policy(chance: random.Random) -> dict[str, Any]:
    policy = {
        "accumulate": chance.randint(1, 4),
        "seed": chance.randint(0, 99),
        "variety": chance.choice([0, 0, 1, 2]),
        "tail": chance.choice(["pad", "pad", "drop"]),
        "pad_to": chance.choice(["round", "round", "edge"]),
        "shuffle": chance.random() < 0.9,
        "window_rows": chance.choice([10, 40, 5_000]),
    }
    policy |= chance.choice([{"batch_size": chance.randint(1, 6)}, {"batch_tokens": chance.choice([200, 500])}])
    return policy | chance.choice([{}, {"slots": chance.randint(1, 6)}])


def kill_and_resume(folder: Path, uri: str, how: Any, seed: int, *, most_kills: int, until_s: float) -> Schedule:
    """Play one random schedule to its end, and hold it against one that was never killed."""
    chance = random.Random(seed)
    folder.mkdir()
    schedule = Schedule(folder, uri, drawn_policy(chance), chance)
    for number in range(most_kills):
        schedule.run(
            how, chance.randint(1, 5), chance.uniform(0, until_s) if number else chance.uniform(0, until_s / 8)
        )
        if chance.random() < 0.2:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        if schedule.position() >= (EPOCHS, 0):
            break
    schedule.run(how, chance.randint(1, 5), None)
    schedule.assert_exact()
    return schedule


def test_killed_at_random_and_resumed_in_fresh_processes(tmp_path, places):
    assert kill_and_resume(tmp_path / "run", places[2], Fresh(), 0, most_kills=2, until_s=2.0).killed


def test_killed_at_random_and_resumed_a_handful_of_times(tmp_path, places):
    assert many(tmp_path, places, range(100, 105)) >= 3


@pytest.mark.slow
def test_killed_at_random_and_resumed_1000_times(tmp_path, places):
    assert many(tmp_path, places, range(1_000)) > 500


def many(tmp_path: Path, places: list[str], seeds: range) -> int:
    """Play schedules; return how many runs were killed before their end."""
    server = Server()
    killed = 0
    try:
        for seed in seeds:
            place = places[seed % len(places)]
            killed += kill_and_resume(tmp_path / str(seed), place, server, seed, most_kills=8, until_s=0.4).killed
            shutil.rmtree(tmp_path / str(seed))
    finally:
        server.close()
    return killed
