"""Real processes, killed at random steps and started again on 1 and 2 ranks: the weights are those of a run without a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch

from tests.torch.running import ROOT, environment, free_port
from tests.training.held import steps_in

PROGRAM = ROOT / "pipelines/train.py"
HELD = Path(__file__).with_name("held.py")
WAIT_S = 400  # generous: machines are busy


def command(words: list[str], ranks: int, hold_at: int | None = None) -> list[str]:
    program = [str(PROGRAM)] if hold_at is None else [str(HELD), str(PROGRAM), str(hold_at)]
    if ranks == 1:
        return [sys.executable, *program, *words]
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), *program, *words,
    ]  # fmt: skip


def play(words: list[str], ranks: int) -> str:
    done = subprocess.run(
        command(words, ranks), env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def killed_at(step: int, words: list[str], ranks: int, folder: Path, number: signal.Signals) -> int:
    """Run until a step is done, then send the signal to all ranks; return the exit code."""
    with subprocess.Popen(
        command(words, ranks, hold_at=step), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        deadline = time.monotonic() + WAIT_S
        while steps_in(folder / "budget.jsonl") < step:
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.003)
        of = psutil.Process(running.pid)
        trainers = [one.pid for one in (of.children() or [of]) if str(PROGRAM) in one.cmdline()]
        assert len(trainers) == ranks
        for pid in trainers:
            os.kill(pid, number)
        return running.wait(WAIT_S)


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Hold weights against each other to float tolerance.

    Not a key's bias: it shifts all scores of a query alike, so its gradient is 0 but for rounding, which Adam makes steps of.
    """
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(
                found[name], value, rtol=1e-3, atol=2e-4, msg=lambda text, at=name: f"{at}: {text}"
            )


def test_killed_at_a_random_step_on_one_rank_to_the_same_bits(train):
    step = random.randint(8, 40)
    print("killed at step", step)
    words = ("--epochs", 8, "--save-every-s", 0.05, "--price-per-hour", 2)
    assert train(*words, model="dropout", run="whole") == 0
    folder = train.folder / "run"
    assert killed_at(step, train.words(*words, model="dropout"), 1, folder, signal.SIGKILL) == -signal.SIGKILL
    before = steps_in(folder / "budget.jsonl")
    (folder / ".step-000000999.pt.tmp").write_bytes(b"half of one")  # as a kill in the middle of a save leaves
    assert train(*words, model="dropout") == 0
    whole, again = train.weights("whole"), train.weights()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    started = [line["step"] for line in train.log() if line["event"] == "started"]
    assert started[0] == 0
    assert 0 < started[1] <= before + 1
    assert_the_account_is_the_sum_of_all_runs(train, runs=2)


def assert_the_account_is_the_sum_of_all_runs(train, *, runs: int) -> None:
    """The guard's total is what each run took by its own clock, to the last line that it wrote.

    What a killed run did after that is nowhere written: at most the longest time between two of its lines is added for it.
    """
    records = [json.loads(line) for line in (train.folder / "run/budget.jsonl").read_text().splitlines()]
    assert records[-1]["event"] == "end"
    clocks: dict[str, list[float]] = {}
    for record in records:
        clocks.setdefault(record["run"], []).append(record["run_s"])
    assert len(clocks) == runs
    startups = [record["startup_s"] for record in records if record["event"] == "run"]
    seen = sum(times[-1] for times in clocks.values()) + sum(startups)
    unseen = sum(max(after - before for before, after in pairwise(times)) for times in list(clocks.values())[:-1])
    spent = train.status()["spent_hours"] * 3600
    assert seen - 0.01 <= spent <= seen + unseen + 0.01
    assert train.status()["spent_usd"] == pytest.approx(spent / 3600 * 2)


def test_two_ranks_end_at_the_weights_of_one(train):
    words = ("--max-steps", 12, "--evaluate-every", 6)
    assert train(*words, run="one") == 0
    said = play(train.words(*words), 2)
    assert "2 ranks on cpu" in said
    one, two = train.weights("one"), train.weights()
    assert_close(two, one)
    losses = [[line["loss"] for line in train.log(run) if line["event"] == "evaluated"] for run in ("one", "run")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert (train.folder / "one/model/rows.jsonl").read_text().count("\n") == (
        train.folder / "run/model/rows.jsonl"
    ).read_text().count("\n")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "causal-lm"])
def test_one_rank_then_two_then_one_killed_twice(train, task):
    words = ("--epochs", 6, "--save-every-s", 0.05, "--price-per-hour", 2)
    folder, rng = train.folder / "run", random.Random()
    assert train(*words, task=task, run="whole") == 0
    first, second = sorted(rng.sample(range(6, 38), 2))
    print("killed at steps", first, second)
    killed_at(first, train.words(*words, task=task), 1, folder, signal.SIGKILL)
    killed_at(second, train.words(*words, task=task), 2, folder, signal.SIGKILL)
    assert play(train.words(*words, task=task), 1)
    whole, again = train.weights("whole"), train.weights()
    assert_close(again, whole)
    started = [(line["step"], line["world_size"]) for line in train.log() if line["event"] == "started"]
    assert [world for _, world in started] == [1, 2, 1]
    assert 0 == started[0][0] < started[1][0] <= started[2][0]
    assert_the_account_is_the_sum_of_all_runs(train, runs=3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_many_random_kills_on_the_same_ranks_to_the_same_bits(train, ranks):
    words = ("--epochs", 6, "--save-every-s", 0.02)
    play(train.words(*words, model="dropout", run="whole"), ranks)
    folder, rng = train.folder / "run", random.Random()
    for step in sorted(rng.sample(range(3, 38), 4)):
        print("killed at step", step)
        killed_at(step, train.words(*words, model="dropout"), ranks, folder, signal.SIGKILL)
    play(train.words(*words, model="dropout"), ranks)
    whole, again = train.weights("whole"), train.weights()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.slow
def test_each_of_two_ranks_says_why_a_checkpoint_could_not_be_written(train):
    limited = [
        "bash",
        "-c",
        'ulimit -f 40; exec "$@"',
        "bash",
        *command(train.words("--max-steps", 3), 2),
    ]  # KiB a file
    done = subprocess.run(limited, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "the checkpoint could not be written" in line]
    assert any("rank 0" in line for line in said)
    assert "File too large" in said[0]
    assert not list((train.folder / "run").glob("*.pt"))


@pytest.mark.slow
def test_sigterm_to_one_of_two_ranks_saves_on_both(train):
    words = ("--epochs", 60)
    folder = train.folder / "run"
    with subprocess.Popen(command(train.words(*words), 2), env=environment(), stderr=subprocess.DEVNULL) as running:
        while steps_in(folder / "budget.jsonl") < 9:
            assert running.poll() is None
            time.sleep(0.01)
        trainers = [one.pid for one in psutil.Process(running.pid).children() if str(PROGRAM) in one.cmdline()]
        os.kill(trainers[1], signal.SIGTERM)
        assert running.wait(WAIT_S) != 0  # torchrun's own word for ranks that ended with 143
    stopped = train.status()
    assert stopped["ending"] == "interrupted"
    assert f"step-{stopped['step']:09d}.pt" in os.listdir(folder)
    assert "going on from step" in play(train.words("--max-steps", stopped["step"] + 2), 1)
