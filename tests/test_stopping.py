"""Early stopping: on recorded curves, on made ones, across resumes; what it refuses, and what it warns about."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardprep
from shardprep.errors import ConfigError, StoreError
from shardprep.metric_names import direction_of, is_share
from shardprep.stopping import EarlyStopping
from shardprep.stopping_rule import noise_of

CURVES = Path(__file__).parent / "curves"
SPLITS = {"train": 36_000, "validation": 4_000}


def recorded(name, metric="loss"):
    """Return the evaluations of a real run; tests/curves says of which in its first line."""
    lines = map(json.loads, (CURVES / f"{name}.jsonl").read_text().splitlines()[1:])
    return [(line["step"], math.nan if line[metric] is None else line[metric]) for line in lines]


def stopper(metric="loss", mode="min", patience=3, *, splits=SPLITS, **more):
    return EarlyStopping(metric, mode, patience, splits=splits, **more)


def play(judge, curve):
    """Feed evaluations until it says stop; return the last decision and its step (None: it never said so)."""
    for step, value in curve:
        decision = judge.update(value, step)
        if decision.stop:
            return decision, step
    return decision, None


def made(*values, every=10):
    return [(every * (i + 1), value) for i, value in enumerate(values)]


# Recorded curves


def test_a_plateau_after_the_decay_is_noticed_and_the_best_kept():
    judge = stopper(min_delta=0.01, min_steps=200)
    decision, step = play(judge, recorded("plateau"))
    assert (step, judge.best_step) == (1000, 1000)
    assert decision.kind == "patience"
    assert "no improvement by more than 0.01" in decision.reason
    whole = min(value for _, value in recorded("plateau"))
    assert judge.best_value - whole < 0.03  # what remained of the plateau


def test_slow_progress_below_min_delta_adds_up():
    """From step 800 on each evaluation gains some 0.0015: less than 0.004, and more than that in three or four."""
    gains = [one[1] - two[1] for one, two in pairwise(recorded("plateau")) if one[0] >= 800]
    assert max(gains) < 0.004
    assert play(stopper(min_delta=0.004, patience=4), recorded("plateau"))[1] is None


def test_a_run_that_overfits_keeps_its_best_checkpoint_not_the_last():
    judge = stopper(patience=5)
    decision, step = play(judge, recorded("overfit"))
    best_step, best = min(recorded("overfit"), key=lambda point: point[1])
    assert (judge.best_step, judge.best_value) == (best_step, best)
    assert step == best_step + 5 * 50
    assert not decision.is_best
    assert f"keep the checkpoint of step {best_step}" in decision.reason


def test_a_late_bloomer_is_lost_with_little_patience_and_kept_by_patience_or_min_steps():
    curve = recorded("late_bloomer")
    assert play(stopper(patience=3), curve)[1] == 40
    assert play(stopper(patience=10), curve)[1] is None
    assert play(stopper(patience=3, min_steps=100), curve)[1] is None
    accurate = stopper("accuracy", "max", patience=3, min_steps=120)
    assert play(accurate, recorded("late_bloomer_accuracy", "accuracy"))[1] == 230
    assert accurate.best_value == 1.0


def test_a_loss_that_explodes_into_nan_stops_and_keeps_the_best_before():
    judge = stopper(patience=20)
    decision, _ = play(judge, recorded("nan"))
    assert decision.kind == "not-finite"
    assert "not a finite number 2 times in a row" in decision.reason
    assert judge.best_step == 300


@pytest.mark.parametrize("name", ["plateau"])
def test_the_wrong_direction_is_named_from_the_data(name):
    judge = stopper("score", "max", min_steps=100)  # a loss, in truth
    decision, _ = play(judge, recorded(name))
    assert decision.stop
    assert 'mode="max" is the wrong direction' in decision.reason
    assert "score fell over the whole run" in decision.reason
    right = play(stopper("score", "min", patience=5, min_delta=0.001), recorded(name))[0]
    assert "wrong direction" not in right.reason


def test_noise_is_told_and_does_not_pass_for_the_wrong_direction():
    judge = stopper(patience=2)
    decision, step = play(judge, recorded("noisy"))
    assert step is not None
    assert "Evaluations scatter by about 0.0" in decision.reason
    assert "wrong direction" not in decision.reason
    patient = stopper(patience=20)
    assert play(patient, recorded("noisy"))[1] is None
    assert patient.best_value < judge.best_value


# The rule


def test_patience_counts_evaluations_not_steps():
    values = (2.0, 1.5, 1.6, 1.6, 1.6, 1.6)
    for every in (1, 1_000):
        assert play(stopper(patience=3), made(*values, every=every))[1] == 5 * every


@pytest.mark.parametrize("mode", ["min", "max"])
def test_an_improvement_must_exceed_min_delta(mode):
    sign = 1 if mode == "min" else -1
    for second, counts in ((0.9, False), (0.7, True), (0.8, False)):  # 1.0 - 0.8 is min_delta itself
        judge = stopper("score", mode, patience=1, min_delta=0.2)
        judge.update(sign * 1.0, 1)
        decision = judge.update(sign * second, 2)
        assert decision.stop is not counts
        assert decision.is_best  # the best checkpoint is the best, whatever min_delta
    judge = stopper("score", mode, patience=1, min_delta=0.1)
    judge.update(sign * 0.8, 1)
    assert judge.update(sign * 0.7, 2).stop  # the float difference is 0.10000000000000009


def test_a_tie_is_no_improvement_and_not_the_best():
    judge = stopper(patience=2)
    assert [judge.update(1.0, step).is_best for step in (1, 2, 3)] == [True, False, False]
    assert judge.stopped
    assert judge.best_step == 1


def test_nothing_stops_before_min_steps_and_warm_up_is_not_counted():
    judge = stopper(patience=2, min_steps=50)
    decisions = [judge.update(value, step) for step, value in made(1.0, 2.0, math.nan, math.nan, 3.0, 3.0)]
    assert [d.kind for d in decisions] == ["first", "warm-up", "warm-up", "warm-up", "waiting", "patience"]
    assert [d.stop for d in decisions] == [False] * 5 + [True]
    assert "not counted before step 50" in decisions[1].reason
    assert judge.best_step == 10


def test_one_nan_is_no_improvement_and_never_the_best():
    for bad in (math.nan, math.inf, -math.inf):
        judge = stopper(patience=3)
        judge.update(1.0, 1)
        decision = judge.update(bad, 2)
        assert (decision.stop, decision.is_best, decision.kind) == (False, False, "waiting")
        assert judge.update(0.5, 3).is_best
        assert judge.best_value == 0.5


def test_nan_from_the_beginning_leaves_nothing_to_keep():
    judge = stopper(patience=5)
    assert not judge.update(math.nan, 1).stop
    decision = judge.update(math.nan, 2)
    assert decision.stop
    assert "no checkpoint is worth keeping" in decision.reason
    assert judge.best_value is None
    assert judge.best_step is None
    assert json.loads(json.dumps(judge.state_dict(), allow_nan=False))["history"] == [[1, "nan"], [2, "nan"]]


def test_values_may_be_numbers_of_any_library():
    import numpy as np

    judge = stopper()
    assert judge.update(np.float32(1.5), np.int64(1)).is_best
    assert judge.history == ((1, 1.5),)
    json.dumps(judge.state_dict())
    for value in ("1.0", True, None, [1.0, 2.0]):
        with pytest.raises(ConfigError, match="must be a number"):
            judge.update(value, 2)
    with pytest.raises(ConfigError, match="step must be a whole number"):
        judge.update(1.0, 2.5)


# What it refuses


def test_the_direction_must_be_given():
    with pytest.raises(TypeError, match="mode"):
        EarlyStopping("loss", patience_evaluations=3, splits=SPLITS)
    for mode in (None, "down", "MIN"):
        with pytest.raises(ConfigError, match="mode must be given"):
            stopper(mode=mode)


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("loss", "max"),
        ("eval_loss", "max"),
        ("Perplexity", "max"),
        ("accuracy", "min"),
        ("val/f1", "min"),
        ("evalAcc", "min"),
    ],
)
def test_a_mode_against_the_metrics_name_is_refused(metric, mode):
    with pytest.raises(ConfigError, match="the worst checkpoint would be kept"):
        stopper(metric, mode)


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("loss", "min"), ("validation/loss", "min"), ("bits per byte", "min"), ("exact_match", "max"), ("rougeL", "max"),
        ("top1_acc", "max"), ("score", None), ("neg_log_loss", None), ("negative log likelihood", None),
        ("accuracy_error", None), ("loss_scale", None),
    ],
)  # fmt: skip
def test_directions_by_name(metric, direction):
    assert direction_of(metric) == direction
    stopper(metric, direction or "max")
    assert is_share("accuracy")
    assert not is_share("bleu")


@pytest.mark.parametrize("split", ["train", "training", "Train"])
def test_the_training_split_is_refused(split):
    with pytest.raises(ConfigError, match="what the model is trained on"):
        stopper(splits={split: 100}, split=split)


@pytest.mark.parametrize(
    ("splits", "word"),
    [
        (None, "needs a validation split"),
        ({"train": 100}, "there is: train"),
        (["train", "test"], "there is: train, test"),
        ({"train": 100, "validation": 0}, "no rows in a split"),
        ([], "there is: none"),
        ("validation", "splits must be"),
        (7, "splits must be"),
    ],
)
def test_it_does_not_run_without_a_validation_split(splits, word):
    with pytest.raises(ConfigError, match=word):
        stopper(splits=splits)


def test_the_splits_of_a_data_set_tell():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stopper(splits=SimpleNamespace(splits=SPLITS))
        stopper(splits=["train", "validation"])
        shardprep.EarlyStopping("loss", "min", 3, splits=SimpleNamespace(splits={"dev": 500}), split="dev")
    with pytest.raises(ConfigError, match="no rows in a split"):
        stopper(splits=SimpleNamespace(splits={"train": 10}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"patience": 0}, {"patience": 1.5}, {"patience": True}, {"min_delta": -0.1}, {"min_delta": math.nan},
        {"min_delta": "0.1"}, {"min_steps": -1}, {"min_steps": 2.5}, {"patience_not_finite": 0}, {"metric": ""},
        {"split": ""}, {"split": 3},
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"patience|min_delta|min_steps|metric|split"):
        stopper(**wrong)


def test_a_split_too_small_for_min_delta_is_said_with_the_numbers():
    with pytest.warns(UserWarning, match=r"has 400 rows.*about 0\.016 by chance.*min_delta is 0\.005.*4,000 rows"):
        stopper("accuracy", "max", splits={"validation": 400}, min_delta=0.005)
    with pytest.warns(UserWarning, match="has 12 rows: too few"):
        stopper(splits={"validation": 12})
    with pytest.warns(UserWarning, match="keep a validation split for choosing"):
        stopper(splits={"test": 500}, split="test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stopper("accuracy", "max", splits={"validation": 4_000}, min_delta=0.01)
        stopper(splits={"validation": 400}, min_delta=0.005)  # of a loss nobody knows the scatter beforehand


# State


@pytest.mark.parametrize("name", ["plateau", "overfit", "noisy", "nan", "late_bloomer"])
def test_a_resume_after_any_evaluation_decides_the_same(name):
    curve = recorded(name)
    whole = stopper(min_delta=0.003, min_steps=120)
    expected = [whole.update(value, step) for step, value in curve]
    for cut in range(len(curve) + 1):
        before = stopper(min_delta=0.003, min_steps=120)
        for step, value in curve[:cut]:
            before.update(value, step)
        after = stopper(min_delta=0.003, min_steps=120)
        after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
        assert after.stopped == before.stopped
        assert [after.update(value, step) for step, value in curve[cut:]] == expected[cut:]
        assert (after.best_value, after.best_step) == (whole.best_value, whole.best_step)


def test_an_evaluation_repeated_after_a_resume_counts_once():
    judge = stopper(patience=2)
    for step, value in made(1.0, 0.9, 1.1):
        judge.update(value, step)
    resumed = stopper(patience=2)
    resumed.load_state_dict(judge.state_dict())
    again = resumed.update(1.1000001, 30)  # on another number of ranks the sum is rounded otherwise
    assert again == judge.update(1.1, 30)
    assert not again.stop
    assert len(resumed.history) == 3
    assert resumed.update(1.2, 40).stop
    assert resumed.update(1.2, 40).stop


def test_a_best_evaluation_repeated_is_best_again_so_that_its_checkpoint_gets_saved():
    judge = stopper()
    judge.update(1.0, 10)
    assert judge.update(1.0, 10).is_best


def test_an_evaluation_of_an_earlier_step_means_that_the_state_was_not_loaded():
    judge = stopper()
    judge.update(1.0, 100)
    with pytest.raises(ConfigError, match="load the state_dict"):
        judge.update(1.0, 50)


def test_a_state_of_other_settings_is_refused_unless_they_are_new_on_purpose():
    judge = stopper(patience=2)
    play(judge, made(1.0, 1.1, 1.2))
    other = stopper(patience=4)
    with pytest.raises(ConfigError, match="patience_evaluations 2 then and 4 now"):
        other.load_state_dict(judge.state_dict())
    assert other.history == ()
    other.load_state_dict(judge.state_dict(), new_settings=True)
    assert not other.stopped
    assert other.update(1.3, 40).stop is False
    assert other.update(1.3, 50).stop is True
    for wrong in ({"metric": "score"}, {"mode": "max", "metric": "score"}):
        with pytest.raises(ConfigError, match="other settings"):
            stopper(patience=2, **wrong).load_state_dict(judge.state_dict(), new_settings=True)


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"version": 1, "settings": {}, "history": [[1]]}, []])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ConfigError, match="not a state of EarlyStopping"):
        stopper().load_state_dict(state)


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ConfigError, match="version 2"):
        stopper().load_state_dict({**stopper().state_dict(), "version": 2})


# The curve's file


def test_the_curve_is_whole_after_each_evaluation_and_after_a_resume(tmp_path):
    path = tmp_path / "runs" / "curve.jsonl"
    judge = stopper(curve=path)
    judge.update(2.0, 10)
    judge.update(math.nan, 20)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["patience_evaluations"] == 3
    assert lines[1:] == [{"step": 10, "value": 2.0}, {"step": 20, "value": None}]
    resumed = stopper(curve=path)
    resumed.load_state_dict(judge.state_dict())
    resumed.update(1.0, 30)
    assert len(path.read_text().splitlines()) == 4
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder cannot be made"):
        judge.save_curve(tmp_path / "file" / "curve.jsonl")


def test_never_stop_records_and_says_where_it_would_have_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDPREP_NEVER_STOP", "1")
    monkeypatch.setenv("SHARDPREP_CURVE", str(tmp_path / "full.jsonl"))
    judge = stopper(patience=2, curve=tmp_path / "not-this.jsonl")
    decisions = [judge.update(value, step) for step, value in made(1.0, 1.1, 1.2, 0.9)]
    assert not any(d.stop for d in decisions)
    assert decisions[2].reason.startswith("goes on as it was told to, else: stop:")
    assert not judge.stopped
    assert [path.name for path in tmp_path.iterdir()] == ["full.jsonl"]


def test_the_noise_of_a_smooth_course_is_small_and_of_a_scattered_one_right():
    import numpy as np

    smooth = [2 + math.exp(-i / 5) for i in range(40)]
    scattered = [
        value + float(e) for value, e in zip(smooth, np.random.default_rng(0).normal(0, 0.05, 40), strict=True)
    ]
    assert noise_of(smooth) < 0.005
    assert noise_of(scattered) == pytest.approx(0.05, rel=0.4)
    assert noise_of([1.0] * 5) is None


def test_it_needs_neither_torch_nor_numpy():
    program = (
        "import sys; from shardprep.stopping import EarlyStopping; "
        "EarlyStopping('loss', 'min', 3, splits=['validation']).update(1.0, 1); "
        "sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=300).returncode == 0


def test_settings_in_numpys_integers_are_saved_as_json():
    import numpy as np

    judge = EarlyStopping("loss", "min", np.int64(3), 0.0, np.int64(5), splits=["validation"])
    judge.update(np.float32(1.5), np.int64(10))
    state = json.loads(json.dumps(judge.state_dict()))
    EarlyStopping("loss", "min", 3, 0.0, 5, splits=["validation"]).load_state_dict(state)
