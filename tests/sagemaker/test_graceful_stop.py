"""A signal to a process that trains: it saves, leaves in time, and the next process goes on behind it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from shardprep.adapters.sagemaker.stopping import GracefulStop, SaveEvery, any_rank
from shardprep.errors import ConfigError
from tests.reader.data import build, lengths_of

PROGRAM = Path(__file__).parent / "programs" / "trained.py"
WAIT_S = 300


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_save_every():
    clock = Clock()
    every = SaveEvery(10, clock=clock)
    assert not every.due()
    clock.now += 10
    assert every.due()
    assert not every.due()
    clock.now += 9
    every.restart()
    clock.now += 9
    assert not every.due()
    clock.now += 1
    assert every.due()
    for seconds in (0, -1, math.nan):
        with pytest.raises(ConfigError, match="every so many seconds, above 0"):
            SaveEvery(seconds)


def test_a_signal_is_a_wish_with_seconds_left():
    clock, before = Clock(), signal.getsignal(signal.SIGTERM)
    with GracefulStop(clock=clock) as stop:
        assert not stop.requested
        assert stop.seconds_left == math.inf
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        assert stop.signal == signal.SIGTERM
        assert stop.seconds_left == 120
        clock.now += 50
        os.kill(os.getpid(), signal.SIGTERM)  # the platform says it twice: the first counts
        assert stop.seconds_left == 70
        clock.now += 500
        assert stop.seconds_left == 0
        assert stop.after_step()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_twice_is_an_interrupt():
    before = signal.getsignal(signal.SIGINT)  # a shell starts what it puts into the background with SIGINT ignored
    with pytest.raises(KeyboardInterrupt), GracefulStop() as stop:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is before


def test_it_saves_by_the_clock_and_at_the_end():
    clock, saves = Clock(), []
    with GracefulStop(lambda: saves.append(clock.now), save_every_s=60, clock=clock) as stop:
        for _ in range(10):
            clock.now += 20
            assert not stop.after_step()
        assert saves == [160, 220, 280]
        stop.request()
        assert stop.after_step()
        assert saves == [160, 220, 280, 300]


def test_ranks_agree():
    """Two ranks: one is asked to stop, the other's clock says save; both do both, at the same step."""
    clock = Clock()
    said = {}

    def agree_as(rank):
        def agree(stop, due):
            said[rank] = (stop, due)
            return tuple(any(flags) for flags in zip(*said.values(), strict=True))

        return agree

    saves = []
    with GracefulStop(lambda: saves.append(0), save_every_s=5, agree=agree_as(0), clock=clock) as one:
        two = GracefulStop(lambda: saves.append(1), save_every_s=50, agree=agree_as(1), clock=clock)
        clock.now += 5
        assert not one.after_step()
        assert not two.after_step()  # due, since the other is
        assert saves == [0, 1]
        two.request()
        assert two.after_step()
        assert one.after_step()
        assert not one.requested


def test_any_rank_without_torch_or_group():
    flags = (True, False)
    assert any_rank(*flags) == flags


def test_grace_under_torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert GracefulStop().grace_s == 30
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert GracefulStop().grace_s == 120
    with pytest.raises(ConfigError, match="grace_s must be above 0"):
        GracefulStop(grace_s=0)
    with pytest.raises(ConfigError, match="save_every_s needs save="):
        GracefulStop(save_every_s=5)


FORKS = """
import multiprocessing, time
from shardprep.adapters.sagemaker.stopping import GracefulStop

def work(begun):
    begun.set()
    time.sleep(1000)

with GracefulStop() as stop:
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    child = fork.Process(target=work, args=(begun,))
    child.start()
    begun.wait()
    child.terminate()
    child.join(300)
    print(child.exitcode, stop.requested)
    child.kill()
"""


def test_a_forked_child_ends_when_it_is_told_to():
    """A worker of a DataLoader, say: nobody there looks at a wish, and the parent waits for it."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.stderr) == ("-15 False\n", "")


def test_only_in_the_main_thread():
    errors = []

    def enter():
        try:
            GracefulStop().__enter__()
        except ConfigError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors == ["signals reach the main thread only: use GracefulStop there"]


def run(uri, folder, **more):
    job = {"uri": uri, "checkpoints": str(folder / "checkpoints"), "log": str(folder / "log.jsonl"), **more}
    return subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(job)], stdout=subprocess.PIPE, text=True)


def wait_for_lines(path, lines):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.02)
    raise AssertionError("the process trains no steps")


def rows_kept(path):
    """Return how often each row was trained on, in steps that were saved: what a run logs behind its last save is lost."""
    kept, since = Counter(), Counter()
    for line in map(json.loads, path.read_text().splitlines()):
        if line.get("resumed"):
            since = Counter()
        since.update(line.get("rows", ()))
        if line.get("saved"):
            kept, since = kept + since, Counter()
    return kept


@pytest.fixture(scope="module")
def data_set(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stopping"), lengths_of(600))


def test_sigterm_in_the_middle_then_the_rest(data_set, tmp_path):
    process = run(data_set, tmp_path, step_seconds=0.05, slow_after=5)
    wait_for_lines(tmp_path / "log.jsonl", 5)
    process.send_signal(signal.SIGTERM)
    said = json.loads(process.communicate(timeout=WAIT_S)[0].splitlines()[-1])
    assert process.returncode == 0
    assert said["stopped_by"] == "SIGTERM"
    assert 0 < said["seconds_left"] <= 120
    first = rows_kept(tmp_path / "log.jsonl")
    assert 0 < len(first) < 600
    process = run(data_set, tmp_path, step_seconds=0)
    said = json.loads(process.communicate(timeout=WAIT_S)[0].splitlines()[-1])
    assert (process.returncode, said["stopped_by"]) == (0, None)
    assert rows_kept(tmp_path / "log.jsonl") == Counter(map(str, range(600)))


def test_killed_without_a_word_it_goes_on_behind_the_last_save_by_the_clock(data_set, tmp_path):
    process = run(data_set, tmp_path, step_seconds=0.03, slow_after=20, save_every_s=0.1)
    wait_for_lines(tmp_path / "log.jsonl", 12)
    process.kill()
    process.communicate(timeout=WAIT_S)
    assert 0 < len(rows_kept(tmp_path / "log.jsonl")) < 600
    process = run(data_set, tmp_path, step_seconds=0, save_every_s=1000)
    assert process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert rows_kept(tmp_path / "log.jsonl") == Counter(map(str, range(600)))
