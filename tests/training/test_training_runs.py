"""pipelines/train.py in one process: both tasks, whole and with LoRA, its ends, and what it refuses."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import shardprep
from tests.torch.running import ROOT
from tests.training.conftest import build, documents


def evaluations(train, run: str = "run") -> list[dict[str, object]]:
    return [line for line in train.log(run) if line["event"] == "evaluated"]


def test_a_classifier_learns_and_its_best_checkpoint_is_put_out(train, capsys):
    assert train("--epochs", 6, "--evaluate-at-start", "--metric", "accuracy", "--keep", 1) == 0
    lines, found = capsys.readouterr().out.splitlines(), evaluations(train)
    assert [one["step"] for one in found] == [0, 7, 14, 21, 28, 35, 42]
    assert found[0]["accuracy"] < 0.6
    assert found[-1]["accuracy"] > 0.75
    assert "starting at step 0 of 42 (7 an epoch): 1 rank on cpu, fp32" in lines[0]
    assert "(best so far)" in lines[1]
    assert "finished; best accuracy" in lines[-1]
    best = max(found, key=lambda one: (one["accuracy"], -one["step"]))
    assert train.status()["best_step"] == best["step"]
    kept = [int(path.stem.removeprefix("step-")) for path in sorted((train.folder / "run").glob("step-*.pt"))]
    assert kept == sorted({best["step"], 42})
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(train.folder / "run/model")
    saved = train.weights(step=best["step"])
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    rows = [json.loads(line) for line in (train.folder / "run/model/rows.jsonl").read_text().splitlines()]
    assert sum(row["correct"] for row in rows) / len(rows) == pytest.approx(best["accuracy"])
    assert sum(row["loss"] for row in rows) / len(rows) == pytest.approx(best["loss"])


@pytest.mark.parametrize(("task", "model"), [("classification", None), ("causal-lm", None)])
def test_lora_trains_little_keeps_little_and_continues(train, task, model, capsys):
    from train_state import Checkpoints

    lora = ("--lora-rank", 2, "--lora-alpha", 4)
    assert train("--max-steps", 6, *lora, task=task, run="whole") == 0
    names = train.weights("whole").keys()
    assert names
    assert all("lora" in name or "classifier" in name or "score" in name for name in names)
    assert train("--max-steps", 6, task=task, run="all-of-it") == 0
    small, large = ((train.folder / run / "step-000000006.pt").stat().st_size for run in ("whole", "all-of-it"))
    assert not any("lora" in name for name in train.weights("all-of-it"))
    assert small < large * 1.5  # of so small a model half is names and random states
    # Cut at step 3 by hand, and continued: the same weights.
    assert train("--max-steps", 6, "--save-every-s", 1e-9, "--keep", 9, *lora, task=task, run="run") == 0
    for step in (4, 5, 6):
        Checkpoints(train.folder / "run").path(step).unlink()
    assert train("--max-steps", 6, *lora, task=task) == 0
    whole, again = train.weights("whole"), train.weights()
    assert all(torch.equal(whole[name], again[name]) for name in names)
    assert (train.folder / "run/model/model.safetensors").exists()  # merged: the base was drawn, and nobody has it
    assert "parameters trained" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own
def test_a_folder_of_weights_is_the_start_and_an_adapter_the_result(train):
    assert train("--max-steps", 4, task="causal-lm", run="base") == 0
    base = str(train.folder / "base/model")
    assert train("--max-steps", 4, "--lora-rank", 2, "--gradient-checkpointing", task="causal-lm", model=base) == 0
    assert (train.folder / "run/model/adapter_model.safetensors").exists()
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), train.folder / "run/model")
    found = {name.replace(".default.", "."): value for name, value in model.state_dict().items() if "lora" in name}
    saved = {name.replace(".default.", "."): value for name, value in train.weights().items()}
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in found)


def test_an_early_stop_puts_out_the_best_and_not_the_last(train, capsys):
    words = ("--epochs", 60, "--lr", 0.05, "--schedule", "constant", "--patience", 4, "--evaluate-every", 5)
    assert train(*words) == 0
    found, status = evaluations(train), train.status()
    assert status["ending"] == "stopped early"
    best = min(found, key=lambda one: one["loss"])
    assert best["step"] == status["best_step"] == found[-5]["step"]
    assert best["loss"] < found[-1]["loss"]
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(train.folder / "run/model")
    saved = train.weights(step=best["step"])
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert "stopped early at step" in capsys.readouterr().out
    assert train(*words) == 0  # once more: nothing is left to do
    assert evaluations(train) == found
    assert json.loads((train.folder / "run/curve.jsonl").read_text().splitlines()[0])["mode"] == "min"


def test_sigterm_saves_and_the_next_run_goes_on_to_the_same_weights(train, monkeypatch, capsys):
    assert train("--epochs", 8, model="dropout", run="whole") == 0
    clip, steps = torch.nn.utils.clip_grad_norm_, itertools.count(1)

    def asked(*given: object) -> torch.Tensor:
        if next(steps) == 11:
            os.kill(os.getpid(), signal.SIGTERM)
        return clip(*given)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", asked)
        code = train("--epochs", 8, model="dropout")
    assert code == 128 + signal.SIGTERM
    stopped = train.status()
    assert stopped["ending"] == "interrupted"
    assert stopped["step"] == 11
    assert not (train.folder / "run/model").exists()
    assert "A checkpoint is saved: start again to go on" in capsys.readouterr().out
    assert train("--epochs", 8, model="dropout") == 0
    assert f"going on from step {stopped['step']}" in capsys.readouterr().out
    whole, again = train.weights("whole"), train.weights()
    assert all(torch.equal(whole[name], again[name]) for name in whole)  # dropout and all: to the last bit


def test_max_runtime_ends_in_time_with_a_checkpoint(train):
    import train as program

    for seconds in (3, 12, 48):  # a machine that is busy may need more for its first step
        run, spent = f"run-{seconds}", time.monotonic() - program.STARTED  # of this process, imported long ago
        words = ("--epochs", 100_000, "--max-runtime", spent + seconds, "--evaluate-every", 50)
        assert train(*words, run=run) == 0
        status = train.status(run)
        assert status["ending"] == "max runtime"
        if status["step"]:
            break
    assert 0 < status["step"] == max(int(path.stem[5:]) for path in (train.folder / run).glob("step-*.pt"))
    assert (train.folder / run / "model/config.json").exists()


def test_a_budget_counts_all_runs_and_the_next_one_ends_at_once(train, capsys):
    import train as program

    elapsed = time.monotonic() - program.STARTED
    price = 3600.0  # a dollar a second
    words = ("--epochs", 100_000, "--price-per-hour", price, "--evaluate-every", 50)
    assert train(*words, "--max-usd", elapsed + 3) == 0
    first = train.status()
    assert first["ending"] == "budget"
    records = [json.loads(line) for line in (train.folder / "run/budget.jsonl").read_text().splitlines()]
    startup = max(one["startup_s"] for one in records if one["event"] == "run") - elapsed
    longest = max(after["run_s"] - before["run_s"] for before, after in pairwise(records))
    assert elapsed < first["spent_usd"] <= elapsed + 3 + startup + longest  # a step that began in time may end later
    capsys.readouterr()
    assert train(*words, "--max-usd", elapsed + 3) == 0
    second = train.status()
    assert second["step"] == first["step"]
    assert second["spent_usd"] > 2 * elapsed  # the start of this run, too
    assert "budget at step" in capsys.readouterr().out
    assert "in 2 runs" in json.dumps(second) or second["spent_usd"] > first["spent_usd"]


def test_charts_and_bf16(train):
    charts = train.folder / "charts"
    assert (
        train("--max-steps", 6, "--tensorboard", charts, "--log-every", 2, "--precision", "bf16", task="causal-lm") == 0
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(charts))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]
    assert [event.step for event in events.Scalars("validation/loss")] == [6]
    assert events.Scalars("train/lr")[-1].value == 0.0  # the schedule ends with the last step
    assert events.Scalars("train/loss")[0].value == pytest.approx(4.1, abs=0.4)  # ln 60 at the start


def test_in_a_sagemaker_job_all_is_found(train, monkeypatch, tmp_path):
    import train as program

    wishes = {"task": "classification", "labels": 3, "max_steps": 5, "model": train.models["classification"], "slots": 2,
              "sagemaker_program": "train.py", "gradient-checkpointing": False, "lr": 0.02}  # fmt: skip
    variables = {
        "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_CHANNELS": '["code", "train"]',
        "SM_CHANNEL_TRAIN": train.shards, "SM_HPS": json.dumps(wishes), "SM_MODEL_DIR": str(tmp_path / "model"),
        "SM_OUTPUT_FAILURE": str(tmp_path / "failure"), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checkpoints = ["--checkpoints", str(tmp_path / "run")]  # else /opt/ml/checkpoints
    assert program.main(["train", *checkpoints]) == 0
    assert (tmp_path / "model/model.safetensors").exists()
    assert train.status()["step"] == 5
    assert program.main([*checkpoints, "--lr", "0.5"]) == 2  # words win over hyperparameters
    assert "--lr was 0.02, now 0.5" in (tmp_path / "failure").read_text()
    monkeypatch.setenv("SM_HPS", json.dumps(wishes | {"leraning_rate": 1}))
    assert program.main(checkpoints) == 2
    assert "--leraning-rate=1" in (tmp_path / "failure").read_text()


REFUSED = {
    "a column that is not there": (("--label", "colour"), 2, "has the columns label"),
    "patience without a validation split": (("--patience", 2, "--validation", "held-out"), 2, "held-out"),
    "no such model": (("--model", "nowhere/model.json"), 2, "there is no such file"),
    "a learning rate that breaks the model": (("--lr", 1e30, "--max-steps", 2), 1, "Nothing was saved"),
    "fp16 on a CPU": (("--precision", "fp16"), 2, "needs a GPU"),
    "too few labels, seen in the evaluation": (("--labels", 2, "--max-steps", 3), 1, "rows of it have such a one"),
    "too few labels, seen in training": (
        ("--labels", 2, "--max-steps", 3, "--validation", "none"),
        1,
        "loss was not a number",
    ),
    "a folder without a model": (("--model", str(ROOT / "docs")), 2, "docs cannot be loaded"),
    "layers that are not there": (("--lora-rank", 2, "--lora-targets", "query2"), 2, "--lora-targets query2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_said(train, case, capsys):
    words, code, said = REFUSED[case]
    assert train(*words) == code
    assert said in capsys.readouterr().err
    assert not list(Path(train.folder / "run").glob("step-*.pt"))


@pytest.mark.parametrize(
    "words", [("--max-steps", 0), ("--log-every", 0), ("--lr", "nan"), ("--lora-rank", -1), ("--keep", 0)]
)
def test_numbers_out_of_range_are_refused_before_anything_is_read(train, words, capsys):
    assert train(*words) == 2
    assert f"argument {words[0]}: a " in capsys.readouterr().err


def test_a_validation_split_without_rows_is_none(train, tmp_path):
    shards = build(tmp_path / "few", documents(9), split="train=0.999,validation=0.001", shards=1)
    assert shardprep.open(shards).splits["validation"] == 0
    assert train("--max-steps", 2, shards=shards) == 0
    assert not evaluations(train)
    assert train("--max-steps", 2, "--patience", 2, shards=shards, run="patient") == 2


def test_a_split_with_nothing_to_predict_is_said(train, tmp_path, capsys):
    given = documents(60)
    ids = held_out_ids(build(tmp_path / "some", given, split="train=0.8,validation=0.2"), tmp_path)
    given = [{**one, "text": "7"} if one["id"] in ids else one for one in given]
    shards = build(tmp_path / "again", given, split="train=0.8,validation=0.2")
    assert train("--max-steps", 1, task="causal-lm", shards=shards, run="lm") == 2
    assert "nothing to predict" in capsys.readouterr().err


def held_out_ids(shards, folder):
    loader = shardprep.open(shards, cache_dir=folder / "cache").loader("validation", batch_size=1, shuffle=False)
    return {batch.ids[0] for batch in loader}


@pytest.mark.parametrize("why", ["interrupted", "max runtime"])
def test_a_stop_in_an_evaluation_leaves_it_to_the_next_run(train, monkeypatch, why):
    import train as program
    import train_model

    words = ("--max-steps", 6, "--evaluate-every", 2)
    assert train(*words, run="whole") == 0
    real = program.evaluate

    def stopped(*given, must_stop, **named):
        if why == "interrupted":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            monkeypatch.setattr(must_stop.__self__.runtime, "must_stop", lambda _step: True)
        return real(*given, must_stop=must_stop, **named)

    monkeypatch.setattr(program, "evaluate", stopped)
    monkeypatch.setattr(train_model, "ASK_EVERY", 1)
    assert train(*words) == (143 if why == "interrupted" else 0)
    assert (train.status()["ending"], train.status()["step"]) == (why, 2)
    assert not evaluations(train)
    monkeypatch.setattr(program, "evaluate", real)
    assert train(*words) == 0
    losses = [[(one["step"], one["loss"]) for one in evaluations(train, run)] for run in ("whole", "run")]
    assert losses[0] == losses[1]


def test_weights_that_a_gradient_spoilt_are_not_saved(train, monkeypatch, capsys):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(torch.nan))
    assert train("--max-steps", 1, "--validation", "none") == 1  # the loss of the only step was fine
    assert "Nothing was saved" in capsys.readouterr().err
    assert not list((train.folder / "run").glob("step-*.pt"))


def test_an_output_that_cannot_be_written_is_said_and_the_next_run_puts_the_model_elsewhere(train, capsys):
    (train.folder / "file").write_text("not a folder")
    assert train("--max-steps", 2, "--output", train.folder / "file") == 1
    assert "Training is done, its checkpoint saved" in capsys.readouterr().err
    assert train("--max-steps", 2, "--output", train.folder / "elsewhere") == 0
    assert (train.folder / "elsewhere/model.safetensors").exists()


def test_rows_that_are_too_long_or_lack_their_label_are_refused(train, tmp_path, capsys):
    given = documents(40)
    given[7]["text"] = "1 " * 70
    assert train("--max-steps", 2, shards=build(tmp_path / "long", given)) == 2
    assert "70 tokens, the model takes 64" in capsys.readouterr().err
    given = documents(40)
    del given[7]["label"]
    assert train("--max-steps", 9, shards=build(tmp_path / "unlabelled", given)) == 2
    assert "'d0007' has no label" in capsys.readouterr().err


def test_a_checkpoint_of_another_training_is_refused(train, capsys):
    assert train("--max-steps", 2) == 0
    assert train("--max-steps", 4, "--lr", 0.5) == 2
    assert "--lr was 0.01, now 0.5" in capsys.readouterr().err
    assert train("--max-steps", 4, "--accumulate", 3) == 2
    assert "accumulate" in capsys.readouterr().err
    assert train("--max-steps", 4, model="causal-lm") == 2  # a classifier's head on another body
    assert "of another model" in capsys.readouterr().err
    assert train("--max-steps", 4) == 0  # longer is no other training
    assert "--max-steps was 2, now 4" in capsys.readouterr().out
