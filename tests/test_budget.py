"""The budget guard: what it counts over runs and kills, when it asks to stop, and what it does with a log that is hurt."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardprep
from shardprep.budget import BudgetGuard
from shardprep.errors import ConfigError, ShardprepError


class Clock:
    """Seconds that go on when told to; `wall` is what a person would read off."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.seconds, self.wall = 0.0, wall

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += seconds

    def guard(self, log=None, **settings) -> BudgetGuard:
        settings = {"price_per_hour": 3.6, "reserve_s": 0.0} | settings  # 3.6 USD an hour: a second costs 0.001
        return BudgetGuard(log=log, clock=lambda: self.seconds, now=lambda: self.wall, **settings)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "budget.jsonl").read_text().splitlines()]


def test_it_is_a_name_of_the_package() -> None:
    assert shardprep.BudgetGuard is BudgetGuard
    with pytest.raises(AttributeError, match="no attribute 'BudgetGard'"):
        _ = shardprep.BudgetGard


def test_cost_so_far_per_step(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path, max_usd=1.0, startup_minutes_billed=1, instances=2)
    for step in range(3):
        clock.pass_by(10)
        assert guard.step(step) is False
    guard.close()
    steps = [line for line in lines(tmp_path) if line["event"] == "step"]
    assert [line["step"] for line in steps] == [0, 1, 2]
    assert [line["spent_usd"] for line in steps] == pytest.approx(
        [0.14, 0.16, 0.18]
    )  # 2 instances, a minute of start-up
    assert guard.spent_hours == pytest.approx(90 / 3600)
    assert [line["event"] for line in lines(tmp_path)] == ["run", "step", "step", "step", "end"]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.001, 1000), max_size=5), st.floats(0, 60), st.floats(0, 10), st.integers(1, 4)),
        max_size=6,
    )
)
def test_the_total_is_the_sum_of_all_runs(tmp_path_factory, runs) -> None:
    """Each run: seconds of its steps, minutes of start-up, price, instances; all end in an orderly way."""
    folder, clock = tmp_path_factory.mktemp("log"), Clock()
    seconds = usd = 0.0
    for steps, startup, price, instances in runs:
        guard = clock.guard(folder, price_per_hour=price, instances=instances, startup_minutes_billed=startup)
        for step, took in enumerate(steps):
            clock.pass_by(took)
            guard.step(step)
        guard.close()
        clock.pass_by(10_000)  # the machine is gone meanwhile
        seconds += startup * 60 + sum(steps)
        usd += (startup * 60 + sum(steps)) * price * instances / 3600
        assert guard.spent_usd == pytest.approx(usd, abs=1e-4 * len(runs))
        assert guard.spent_hours * 3600 == pytest.approx(seconds, abs=1e-3 * len(runs))


def test_it_asks_to_stop_before_the_cap_with_time_for_a_checkpoint(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path, max_usd=1.0, reserve_s=100.0)  # 1,000 s in all
    steps = 0
    while not guard.step(steps):
        clock.pass_by(30)
        steps += 1
    assert guard.left_s >= 100.0 - 1e-6  # the checkpoint fits, and one more step would not have
    assert guard.left_s < 100.0 + 30.0 + 30.0
    assert "0.87 of 1.00 USD" in guard.reason or "0.90 of 1.00 USD" in guard.reason
    assert guard.step(steps + 1)
    assert [line["event"] for line in lines(tmp_path)].count("stop") == 1


def test_the_nearer_cap_holds(clock) -> None:
    guard = clock.guard(max_usd=100.0, max_hours=0.1, reserve_s=10.0)
    clock.pass_by(345)
    assert not guard.step(1)
    clock.pass_by(5)
    assert guard.step(2)
    assert "hours" in guard.reason
    assert "USD" in guard.reason


def test_hours_are_of_the_clock_and_dollars_of_all_instances(clock) -> None:
    guard = clock.guard(max_hours=1.0, instances=8)
    clock.pass_by(1800)
    assert guard.spent_hours == 0.5
    assert guard.spent_usd == pytest.approx(0.5 * 3.6 * 8)
    assert guard.left_s == 1800


def test_the_reserve_learns_from_the_loop(clock) -> None:
    guard = clock.guard(max_hours=10.0, reserve_s=None)
    assert guard.reserve_s == 60.0
    clock.pass_by(500)  # compiling; before the first step
    guard.step(0)
    assert guard.reserve_s == 60.0
    clock.pass_by(7)
    guard.step(1)
    clock.pass_by(3)
    with guard.saving():
        clock.pass_by(80)
    guard.step(2)
    assert guard.reserve_s == 7.0 + 1.5 * 80  # the save is not a part of the step
    clock.pass_by(200)  # an evaluation is
    guard.step(3)
    assert guard.reserve_s == 200.0 + 1.5 * 80


def test_a_small_cap_is_not_eaten_by_the_reserve(clock) -> None:
    assert clock.guard(max_hours=0.1, reserve_s=None).reserve_s == pytest.approx(18.0)
    assert clock.guard(max_usd=0.01, reserve_s=None).reserve_s == pytest.approx(0.5)
    assert clock.guard(reserve_s=None).reserve_s == 60.0


def test_without_a_cap_it_only_counts(clock) -> None:
    guard = clock.guard(price_per_hour=None)
    clock.pass_by(10**7)
    assert not guard.step(1)
    assert guard.left_s == math.inf
    assert guard.spent_usd == 0


def test_a_job_that_spent_it_all_stops_before_its_first_step(tmp_path, clock) -> None:
    with clock.guard(tmp_path, max_usd=1.0) as guard:
        clock.pass_by(1000)
        assert guard.step(1)
    assert clock.guard(tmp_path, max_usd=1.0).must_stop()
    assert not clock.guard(tmp_path, max_usd=2.0).must_stop()


# ---- clocks ----------------------------------------------------------------------------------------------------------------


def test_no_clock_takes_back_what_was_spent(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path)
    clock.pass_by(100)
    guard.step(1)
    clock.seconds -= 50
    assert guard.spent_usd == pytest.approx(0.1)
    clock.seconds += 10
    assert guard.spent_usd == pytest.approx(0.11)
    guard.step(2)
    clock.wall -= 10**6  # somebody set the wall clock: the time to the next start says nothing
    after = clock.guard(tmp_path)
    assert after.spent_usd == pytest.approx(0.11 + 0.1)  # so the longest time between two lines is counted


@pytest.mark.parametrize(("away", "unseen"), [(5.0, 5.0), (30.0, 30.0), (10_000.0, 40.0)])
def test_time_between_the_last_line_and_a_kill_is_bounded(tmp_path, clock, away, unseen) -> None:
    guard = clock.guard(tmp_path)
    for step, took in enumerate((10, 40, 20)):
        clock.pass_by(took)
        guard.step(step)
    clock.pass_by(away)  # killed somewhere in here
    assert clock.guard(tmp_path).spent_usd == pytest.approx((70 + unseen) / 1000)


def test_a_run_killed_before_its_first_step_counts_too(tmp_path, clock) -> None:
    clock.guard(tmp_path, startup_minutes_billed=2)
    clock.pass_by(10_000)
    second = clock.guard(tmp_path)
    assert second.spent_usd == pytest.approx(
        0.12 + 0.06
    )  # start-up, and a minute where nothing tells how long steps are
    clock.pass_by(300)
    second.step(1)
    second.close()
    assert clock.guard(tmp_path).spent_usd == pytest.approx(0.12 + 0.3 + 0.3)  # now it does


# ---- metrics ---------------------------------------------------------------------------------------------------------------


def test_marginal_cost_of_a_metric(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path)
    assert guard.evaluated("loss", 2.0, 0) is None
    clock.pass_by(100)
    assert guard.evaluated("loss", 1.5, 10) == pytest.approx(0.1 / 0.5)
    assert guard.evaluated("accuracy", 0.5, 10, mode="max") is None  # metrics are apart
    clock.pass_by(100)
    assert guard.evaluated("accuracy", 0.6, 20, mode="max") == pytest.approx(0.1 / 0.1)
    assert guard.evaluated("loss", 1.5, 20) == math.inf
    assert guard.evaluated("loss", 1.9, 30, mode="min") == math.inf
    assert guard.evaluated("loss", math.nan, 40) == math.inf
    with pytest.raises(ConfigError, match="mode must be"):
        guard.evaluated("loss", 1.0, 50, mode="down")
    told = [line for line in lines(tmp_path) if line["event"] == "evaluated"]
    assert [line["marginal_cost"] for line in told] == [
        None,
        pytest.approx(0.2),
        None,
        pytest.approx(1.0),
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_marginal_cost_after_a_broken_evaluation_is_since_the_last_finite_one(tmp_path, clock, broken) -> None:
    guard = clock.guard(tmp_path)
    guard.evaluated("loss", 2.0, 1)
    clock.pass_by(100)
    assert guard.evaluated("loss", broken, 2, mode="max") == math.inf
    state = guard.state_dict()
    clock.pass_by(100)
    assert guard.evaluated("loss", 1.5, 3) == pytest.approx(0.2 / 0.5)
    lost_its_log = clock.guard()
    lost_its_log.load_state_dict(state)
    clock.pass_by(100)
    assert lost_its_log.evaluated("loss", 1.0, 4) == pytest.approx((0.1 + 0.1) / 1.0)


def test_marginal_cost_goes_on_over_restarts_and_counts_work_done_twice(tmp_path, clock) -> None:
    with clock.guard(tmp_path) as guard:
        guard.evaluated("loss", 3.0, 100)
        clock.pass_by(50)
        guard.evaluated("loss", 2.5, 200)
        clock.pass_by(50)
    with clock.guard(tmp_path, startup_minutes_billed=1) as guard:  # resumed at step 150
        clock.pass_by(40)
        cost = guard.evaluated("loss", 2.5, 200)
    assert cost == pytest.approx((50 + 50 + 60 + 40) / 1000 / 0.5)


def test_without_a_price_the_cost_is_in_hours(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path, price_per_hour=None)
    guard.evaluated("loss", 3.0, 1)
    clock.pass_by(1800)
    assert guard.evaluated("loss", 2.0, 2) == pytest.approx(0.5)
    assert lines(tmp_path)[-1]["unit"] == "hours"


# ---- state -----------------------------------------------------------------------------------------------------------------


def test_state_survives_where_the_log_is_lost(tmp_path, clock) -> None:
    with clock.guard(tmp_path / "a", startup_minutes_billed=1) as first:
        clock.pass_by(100)
        first.step(1)
        first.evaluated("loss", 2.0, 1)
        state = json.loads(json.dumps(first.state_dict()))
    second = clock.guard(tmp_path / "b")
    second.load_state_dict(state)
    second.load_state_dict(state)  # twice is once
    assert second.spent_usd == pytest.approx(0.16)
    clock.pass_by(40)
    assert second.evaluated("loss", 1.0, 2) == pytest.approx(0.04)
    second.close()
    assert clock.guard(tmp_path / "b").spent_usd == pytest.approx(0.2)  # the new log knows it from now on


def test_a_state_and_a_log_that_know_the_same_runs_do_not_count_twice(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path)
    clock.pass_by(100)
    guard.step(1)
    state = guard.state_dict()
    clock.pass_by(50)
    guard.load_state_dict(state)  # back to the best checkpoint, in the same run
    assert guard.spent_usd == pytest.approx(0.15)
    guard.close()
    after = clock.guard(tmp_path)
    after.load_state_dict(state)
    assert after.spent_usd == pytest.approx(0.15)


def test_a_state_without_a_log_works_too(clock) -> None:
    first = clock.guard()
    clock.pass_by(100)
    second = clock.guard(max_usd=0.105)
    second.load_state_dict(first.state_dict())
    assert not second.must_stop()
    clock.pass_by(5)
    assert second.must_stop()


@pytest.mark.parametrize(
    "state", [{}, {"version": 2, "runs": {}}, {"version": 1, "runs": {"a": 3}}, {"version": 1, "runs": []}]
)
def test_what_is_no_state_is_refused(clock, state) -> None:
    with pytest.raises(ConfigError, match="no state of a BudgetGuard"):
        clock.guard().load_state_dict(state)


# ---- ranks, other runs, broken places --------------------------------------------------------------------------------------


def test_only_rank_0_writes_and_decides(tmp_path, clock) -> None:
    other = clock.guard(tmp_path / "log", rank=1, max_usd=0.001)
    clock.pass_by(100)
    assert other.step(1) is False
    assert other.must_stop() is False
    other.close()
    assert not (tmp_path / "log").exists()
    assert clock.guard(tmp_path / "log", rank=0).spent_usd == 0


def test_runs_keep_their_own_price(tmp_path, clock) -> None:
    """Spot today, on demand tomorrow; or the folder of another job: each run counts at what it paid."""
    with clock.guard(tmp_path, price_per_hour=36.0, instances=2):
        clock.pass_by(100)
    with clock.guard(tmp_path, price_per_hour=3.6) as guard:
        clock.pass_by(100)
        assert guard.spent_usd == pytest.approx(2.0 + 0.1)
        assert guard.earlier_runs == 1


def test_two_runs_at_once_are_both_counted(tmp_path, clock) -> None:
    one, two = clock.guard(tmp_path), clock.guard(tmp_path)
    for step in range(3):
        clock.pass_by(10)
        one.step(step)
        two.step(step)
    one.close()
    two.close()
    assert clock.guard(tmp_path).spent_usd == pytest.approx(0.06)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"event": "step", "run": "',
        b'{"ev',
        b"{",
        b'{"event": "step", "run": "x", "time": 1.0',
        b"\0\0\0\0",
        b'{"step": 7, "usd',
        b"\xff\x00 9.5}",
    ],
)
def test_a_torn_last_line_is_no_failure(tmp_path, clock, tail) -> None:
    guard = clock.guard(tmp_path)
    clock.pass_by(10)
    guard.step(1)
    with open(tmp_path / "budget.jsonl", "ab") as file:
        file.write(tail)
    clock.pass_by(5)
    second = clock.guard(tmp_path)
    assert second.spent_usd == pytest.approx(0.015)
    clock.pass_by(20)
    second.step(2)
    second.close()
    assert clock.guard(tmp_path).spent_usd == pytest.approx(0.035)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"loss,step\n1,2\n", "line 1: it is not JSON"),
        (b'{"event": "step"}\n', "line 1: KeyError: 'run'"),
        (b'{"loss": 2.0}\n', "line 1: it is no line of a budget log"),
        (b"[1]\n", "line 1: it is no line of a budget log"),
        (b'{"event": "run", "run": "a", "time": 1, "version": 9}\n', "line 1: ValueError: version 9"),
    ],
)
def test_another_file_is_not_taken_for_a_log(tmp_path, clock, content, says) -> None:
    (tmp_path / "budget.jsonl").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        clock.guard(tmp_path)
    assert says in caught.value.message
    assert str(tmp_path / "budget.jsonl") in caught.value.message
    assert (tmp_path / "budget.jsonl").read_bytes() == content


def test_places(tmp_path, clock) -> None:
    clock.guard(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "budget.jsonl").exists()
    clock.guard(tmp_path / "own.jsonl")
    assert (tmp_path / "own.jsonl").exists()
    (tmp_path / "blocked").write_text("")
    with pytest.raises(ConfigError, match="cannot write the budget log"):
        clock.guard(tmp_path / "blocked" / "folder")
    with pytest.raises(ConfigError, match="/opt/ml/checkpoints"):
        clock.guard("s3://bucket/log")
    (tmp_path / "budget.jsonl").mkdir()
    with pytest.raises(ShardprepError, match="budget"):
        clock.guard(tmp_path)


def test_a_log_that_breaks_later_costs_one_warning_and_no_training(tmp_path, clock) -> None:
    guard = clock.guard(tmp_path / "log", max_usd=0.04)
    clock.pass_by(10)
    guard.step(1)
    (tmp_path / "log").rename(tmp_path / "away")
    clock.pass_by(10)
    with pytest.warns(UserWarning, match="training goes on"):
        guard.step(2)
    guard.step(3)  # says nothing: a second warning would be an error here
    (tmp_path / "away").rename(tmp_path / "log")
    clock.pass_by(10)
    assert not guard.step(4)
    clock.pass_by(10)
    assert guard.step(5)
    guard.close()
    assert clock.guard(tmp_path / "log").spent_usd == pytest.approx(0.04)  # lines count up: nothing is lost


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_usd": 0}, "max_usd must be a number above 0 or None, got 0"),
        ({"max_usd": math.nan}, "max_usd must be"),
        ({"max_hours": -1}, "max_hours must be a number above 0 or None, got -1"),
        ({"max_hours": "2"}, "max_hours must be a number above 0 or None, got '2'"),
        ({"max_usd": 5, "price_per_hour": None}, "max_usd needs price_per_hour"),
        ({"price_per_hour": -0.1}, "price_per_hour must be"),
        ({"instances": 0}, "instances must be a whole number, 1 or more, got 0"),
        ({"instances": True}, "instances must be"),
        ({"startup_minutes_billed": math.inf}, "startup_minutes_billed must be"),
        ({"reserve_s": -1}, "reserve_s must be"),
        ({"rank": -1}, "rank must be"),
    ],
)
def test_wrong_calls_are_told(clock, wrong, says) -> None:
    with pytest.raises(ConfigError) as caught:
        clock.guard(**wrong)
    assert says in caught.value.message


PROGRAM = """
import sys, time
from shardprep.budget import BudgetGuard
guard = BudgetGuard(max_usd=100, price_per_hour=3600, log=sys.argv[1], startup_minutes_billed=0)
for step in range(100000):
    time.sleep(0.02)
    spent = guard.run_usd  # no more than what the line of this step says, however slow the machine
    guard.step(step)
    print(spent, flush=True)
"""


def test_a_real_kill(tmp_path) -> None:
    """Two runs are killed with SIGKILL; the third knows what both had spent, to within the longest step of each."""
    told = []
    for _ in range(2):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        with program.stdout:
            spent = [float(program.stdout.readline()) for _ in range(10)]
            os.kill(program.pid, signal.SIGKILL)
            spent += [float(line) for line in program.stdout.read().split("\n")[:-1] if line]
        assert program.wait() == -signal.SIGKILL
        told.append(spent[-1])
        time.sleep(0.3)
    guard = BudgetGuard(max_usd=100, price_per_hour=3600, log=tmp_path)
    assert guard.earlier_runs == 2
    longest = 0.0
    for run in {line["run"] for line in lines(tmp_path)}:
        times = [line["run_s"] for line in lines(tmp_path) if line["run"] == run and line["event"] != "run"]
        longest += max((b - a for a, b in zip([0.0, *times], times, strict=False)), default=0.0)
    assert sum(told) - 1e-3 <= guard.spent_usd <= sum(told) + longest + 0.2  # a dollar a second
