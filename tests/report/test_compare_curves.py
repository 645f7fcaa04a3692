"""What stopping cost: recorded curves stopped by a rule and run to their end, by commands and by functions."""

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

from shardprep.errors import ConfigError, NotFound, ShardprepError, SourceError
from shardprep.report.compare_curve_file import Curve, read_curve
from shardprep.report.compare_curves import compare_curves, stop_of
from shardprep.report.compare_run import run_to_end
from shardprep.stopping import EarlyStopping
from shardprep.stopping_rule import StoppingRule
from tests.invariants import assert_for_a_person

CURVES = Path(__file__).parent.parent / "curves"

# A training script as people write them: it does not know that it is being run to its end.
TRAINER = """
import json, sys
from shardprep.stopping import EarlyStopping

evaluations = [json.loads(line) for line in open(sys.argv[1])][1:]
stopper = EarlyStopping("loss", "min", int(sys.argv[2]), 0.005, splits=["validation"], curve=sys.argv[3])
for line in evaluations:
    print("evaluated", line["step"], flush=True)
    if stopper.update(float("nan") if line["loss"] is None else line["loss"], line["step"]).stop:
        break
"""


@pytest.fixture
def train(tmp_path):
    """Return the command that plays a recorded curve with a patience, and writes its evaluations."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    return lambda name, patience, curve: [
        sys.executable,
        str(script),
        str(CURVES / f"{name}.jsonl"),
        str(patience),
        str(curve),
    ]


def curve_of(name):
    return read_curve(CURVES / f"{name}.jsonl", "loss")


def rule(patience, **more):
    return StoppingRule("loss", "min", patience, **more)


def test_a_late_bloomer_shows_its_regret_and_the_patience_that_avoids_it():
    full = curve_of("late_bloomer")
    found = compare_curves(full, full, rule(3, min_delta=0.005))
    assert found.stop_step == 40
    assert found.kept == (10, pytest.approx(0.7297, abs=1e-4))
    assert found.regret == pytest.approx(full.points[0][1] - full.points[-1][1])
    assert found.saved_share == pytest.approx(0.9)
    assert found.sentence().startswith("stopping cost 0.7278 in loss here, and it saved 90% of the steps")
    assert stop_of(rule(found.patience, min_delta=0.005), full.points) in (None, *range(200, 401))
    assert compare_curves(full, full, rule(found.patience, min_delta=0.005)).regret <= 0.005
    assert compare_curves(full, full, rule(found.patience - 1, min_delta=0.005)).regret > 0.005


@pytest.mark.parametrize("name", ["plateau", "overfit", "noisy", "nan", "late_bloomer"])
@pytest.mark.parametrize("min_delta", [0.0, 0.01])
def test_regret_falls_as_patience_grows_and_the_patience_named_is_the_smallest(name, min_delta):
    full = curve_of(name)
    found = [compare_curves(full, full, rule(p, min_delta=min_delta)) for p in range(1, 45)]
    regrets = [one.regret for one in found]
    assert regrets == sorted(regrets, reverse=True)
    enough = next(p for p, one in enumerate(found, start=1) if one.regret <= min_delta)
    assert {one.patience for one in found} == {enough}


def test_stopping_an_overfitting_run_costs_nothing():
    full = curve_of("overfit")
    found = compare_curves(full, full, rule(5))
    assert found.regret == 0
    assert found.saved_share == pytest.approx(1 - found.stop_step / 2000)
    assert found.sentence().startswith("stopping cost nothing here")
    assert "patience    " not in found.text()


def test_a_regret_within_the_scatter_is_said_to_be_perhaps_chance():
    values = (1.5, 1.0, 1.05, 0.99, 1.04, 1.01, 1.06, 0.95, 1.03, 0.98, 1.02, 1.0)
    full = Curve("scattered", tuple((10 * i, value) for i, value in enumerate(values, start=1)), {})
    found = compare_curves(full, full, rule(3))
    assert found.regret == pytest.approx(0.04)
    assert "it may be chance" in found.sentence()
    assert "it may be chance" not in compare_curves(curve_of("noisy"), curve_of("noisy"), rule(2)).sentence()


def test_a_rule_that_does_not_stop_says_nothing():
    full = curve_of("overfit")
    found = compare_curves(full, full, rule(40))
    assert found.stop_step is None
    assert "says nothing about what stopping costs" in found.sentence()
    assert any("was not to be stopped either" in note for note in found.notes())
    until_stop = Curve("cut", full.points[:11], {})
    cut = compare_curves(until_stop, until_stop, rule(5))
    assert "it was not run to its end" in cut.sentence()


def test_a_metric_that_should_rise():
    full = read_curve(CURVES / "late_bloomer_accuracy.jsonl", "accuracy")
    found = compare_curves(full, full, StoppingRule("accuracy", "max", 3, 0.01))
    assert found.regret == pytest.approx(1 - 0.5013, abs=1e-3)


def test_a_command_is_run_to_its_end_and_compared(train, tmp_path, run_compare):
    stopped, full = tmp_path / "stopped.jsonl", tmp_path / "full.jsonl"
    subprocess.run(train("late_bloomer", 3, stopped), check=True, timeout=300)
    assert read_curve(stopped).points[-1][0] == 40
    command = " ".join(train("late_bloomer", 3, tmp_path / "not-this.jsonl"))
    code, out, err = run_compare("--curves", stopped, full, "--run", command)
    assert code == 0
    assert "evaluated 400" in err
    assert "evaluated" not in out
    assert not (tmp_path / "not-this.jsonl").exists()
    assert len(read_curve(full).points) == 40
    assert "stops the run to its end at step 40, keeping 0.729678 (step 10)" in " ".join(out.split())
    assert "0 apart on average over 4 common steps" in " ".join(out.split())
    told = json.loads(run_compare("--curves", stopped, full, "--json")[1])
    assert told["regret"] == pytest.approx(0.7278, abs=1e-3)
    assert told["patience_without_regret"] == 10
    assert (
        json.loads(run_compare("--curves", stopped, full, "--json", "--patience-evaluations", 10)[1])["regret"] < 0.005
    )
    assert json.loads(run_compare("--curves", stopped, full, "--json", "--min-steps", 100)[1])["regret"] < 0.005
    code, _, err = run_compare("--curves", stopped, full, "--run", command)
    assert code == 2
    assert "it may hold hours of work" in err


def test_a_function_is_run_to_its_end(tmp_path):
    def train_here():
        stopper = EarlyStopping("loss", "min", 1, splits=["validation"])
        for step, value in curve_of("overfit").points:
            if stopper.update(value, step).stop:
                return

    found = run_to_end(train_here, tmp_path / "curve.jsonl")
    assert found.points == curve_of("overfit").points
    assert found.settings["patience_evaluations"] == 1
    assert not os.environ.keys() & {"SHARDPREP_CURVE", "SHARDPREP_NEVER_STOP"}


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import sys; print('no such shard'); sys.exit(3)", "failed with exit code 3: no such shard"),
        ("import sys; sys.exit(3)", "it printed nothing"),
        ("pass", "evaluated nothing"),
    ],
)
def test_a_command_that_fails_or_evaluates_nothing(tmp_path, program, word):
    with pytest.raises(ShardprepError, match=word) as raised:
        run_to_end([sys.executable, "-c", program], tmp_path / "curve.jsonl", say=lambda _: None)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("command", [[], ["no-such-program-anywhere"]])
def test_a_command_that_cannot_be_started(tmp_path, command):
    with pytest.raises(ConfigError, match=r"no command|cannot start"):
        run_to_end(command, tmp_path / "curve.jsonl")


def test_a_stop_ends_the_command_too(tmp_path, train):
    stopped = tmp_path / "stopped.jsonl"
    subprocess.run(train("overfit", 3, stopped), check=True, timeout=300)
    sleeper = (
        f'{sys.executable} -c \'import os, time; open("{tmp_path}/pid", "w").write(str(os.getpid())); time.sleep(600)\''
    )
    command = [
        sys.executable,
        "-m",
        "shardprep",
        "compare",
        "--curves",
        stopped,
        tmp_path / "full.jsonl",
        "--run",
        sleeper,
    ]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 143
    finally:
        process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# Files


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_log_of_another_kind_with_a_resume_in_it(tmp_path):
    rows = [
        {"step": 10, "eval_loss": 2.0, "lr": 0.1}, {"step": 15, "train_loss": 1.0}, {"step": 20, "eval_loss": 1.5},
        {"step": 30, "eval_loss": 9.0}, {"step": 20, "eval_loss": 1.6}, {"step": 30, "eval_loss": None}, {"note": "end"}, [1],
    ]  # fmt: skip
    path = lines(tmp_path / "log.jsonl", *rows)
    with path.open("a") as file:
        file.write('{"step": 40, "eval_l')  # killed while it wrote
    found = read_curve(path, "eval_loss")
    assert found.points[:2] == ((10, 2.0), (20, 1.6))
    assert math.isnan(found.points[2][1])
    assert compare_curves(found, found, StoppingRule("eval_loss", "min", 1)).stop_step == 30


def test_a_log_without_settings_needs_the_rule(tmp_path, run_compare):
    path = lines(tmp_path / "log.jsonl", *({"step": i, "loss": 1 / i} for i in range(1, 9)))
    code, _, err = run_compare("--curves", path, path)
    assert code == 1
    assert 'no line with "step" and "value"' in err
    code, _, err = run_compare("--curves", path, path, "--metric", "loss")
    assert code == 2
    assert_for_a_person(err)
    assert "--patience-evaluations" in err
    assert run_compare("--curves", path, path, "--metric", "loss", "--patience-evaluations", 2)[0] == 0
    code, _, err = run_compare("--curves", path, path, "--metric", "loss", "--mode", "max", "--patience-evaluations", 2)
    assert code == 2


def test_broken_files_are_named(tmp_path, run_compare):
    with pytest.raises(NotFound, match="no such file"):
        read_curve(tmp_path / "none.jsonl")
    with pytest.raises(SourceError, match="line 2: not JSON"):
        read_curve(lines(tmp_path / "a.jsonl", {"step": 1, "value": 1.0}, "{", {"step": 2, "value": 1.0}))
    with pytest.raises(SourceError, match="line 1: value must be a number"):
        read_curve(lines(tmp_path / "b.jsonl", {"step": 1, "value": "low"}))
    other = lines(tmp_path / "c.jsonl", {"curve": 1, "metric": "accuracy"}, {"step": 1, "value": 1.0})
    with pytest.raises(ConfigError, match="holds accuracy, not loss"):
        read_curve(other, "loss")
    bad = lines(tmp_path / "d.jsonl", {"step": 1, "value": None})
    with pytest.raises(SourceError, match="no finite loss"):
        compare_curves(read_curve(bad), read_curve(bad), rule(3))
    good = CURVES / "plateau.jsonl"
    code, _, err = run_compare(
        "--curves", good, "x", "--metric", "loss", "--patience-evaluations", 2, "--run", "python 'x"
    )
    assert code == 2
    assert "quote it as a shell would" in err
