"""`shardprep pilot` on real commands: what it says of them, how it ends them, and how they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import shardprep
from shardprep.cli import main
from tests.invariants import assert_for_a_person
from tests.reader.data import NumberTokens, build, lengths_of
from tests.torch.running import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("pilot_programs.py"))
LENGTHS = lengths_of(2_000)
DEADLINE_S = 300
TRIES = 3  # what else a machine does, or that it stops for a while, is no fault of a measurement


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pilot"), LENGTHS)


@pytest.fixture
def pilot(shards, tmp_path, capsys, monkeypatch):
    """Run a pilot of a program; return (exit code, standard output, standard error)."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(what, *flags, arguments=(), data=shards, before=(sys.executable,)):
        command = [*before, PROGRAM, what, str(data), str(tmp_path / "cache"), *map(str, arguments)]
        code = main(["pilot", *map(str, flags), "--", *command])
        return code, *capsys.readouterr()

    return run


def kinds(told):
    return [finding["kind"] for finding in told["diagnosis"]]


def test_a_steady_loop_is_measured_and_ended(pilot, tmp_path, shards):
    out, html = tmp_path / "pilot.json", tmp_path / "pilot.html"
    for _ in range(TRIES):
        code, text, err = pilot("steady", "--steps", 50, "--out", out, "--html", html, "--price-per-hour", 1.41)
        assert (code, err) == (0, "")
        told = json.loads(out.read_text())
        if told["wait_share"] < 0.3 and "input_bound" not in kinds(told) and told["seconds_per_step"]["mean"] <= 0.5:
            break
    assert told["steps_measured"] + told["steps_left_out"] == 50
    assert 0.015 <= told["seconds_per_step"]["mean"] <= 0.5  # three times 4 ms and once 3 ms
    rate = told["steps_per_second"]
    assert rate["low"] <= rate["mean"] <= rate["high"]
    assert rate["mean"] * told["seconds_per_step"]["mean"] == pytest.approx(1)
    assert told["useful_tokens_per_second"]["mean"] == pytest.approx(
        told["tokens_per_second"]["mean"] * (1 - told["padding_share"])
    )
    assert told["micro_batches_per_step"] == pytest.approx(3, abs=0.2)
    assert told["step_parts"]["between"] >= 0.008 * 0.9
    assert told["step_parts"]["last"] >= 0.007
    assert told["wait_share"] < 0.3
    assert sum(told["step_parts"].values()) == pytest.approx(told["seconds_per_step"]["mean"])
    assert told["mfu"] is None
    assert told["gpu"] is None
    plan = told["projection"]
    assert (plan["basis"], plan["steps"]) == ("epoch", told["steps_per_epoch"])
    assert plan["usd"]["mean"] == pytest.approx(plan["seconds"]["mean"] / 3600 * 1.41)
    assert plan["seconds"]["mean"] > plan["startup_seconds"] > 0
    assert "compute_bound" in kinds(told)
    assert "input_bound" not in kinds(told)
    assert re.search(r"^steps +\d+(\.\d+)? \(.* to .*\) a second \(95% interval\)$", text, re.MULTILINE)
    assert f"page: {html}" in text
    page = html.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Where a step" in page
    assert shards in page  # the command
    assert "http" not in page.replace("http-equiv", "")  # nothing is loaded


def test_a_command_that_ends_early_by_itself_is_fine_and_its_projection_is_its_duration(pilot):
    for _ in range(TRIES):
        began = time.time()
        code, text, err = pilot("epochs", "--json", arguments=[1])
        assert code == 0
        told = json.loads(text)
        # What the command says: on standard error.
        ((steps, ended),) = re.findall(r"played (\d+) steps until ([\d.]+)", err)
        took = pytest.approx(float(ended) - began, rel=0.15, abs=0.5)
        if told["projection"]["seconds"]["mean"] == took:
            break
    assert told["steps_measured"] + told["steps_left_out"] == int(steps) == told["steps_per_epoch"]
    assert told["epoch"]["steps_left"] == 0
    assert told["epoch"]["seconds_left"]["mean"] == 0
    assert told["projection"]["seconds"]["mean"] == took
    assert told["command"].endswith(" 1")


def test_a_store_that_is_slow_is_input_bound(pilot, s3_faults, s3_root, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id": {i}, "text": "{i} {length}"}}\n' for i, length in enumerate(LENGTHS[:1_000])))
    shardprep.build(
        source,
        s3_root,
        tokenizer=NumberTokens(),
        id_field="id",
        no_eos=True,
        scheduler="serial",
        shards=25,
        progress=False,
    )
    s3_faults.set_rules([{"kind": "delay", "method": "GET", "match": ".parquet", "delay": 0.1}])
    code, text, _ = pilot("small_windows", "--json", "--steps", 40, data=s3_root)
    told = json.loads(text)
    assert code == 0
    assert told["wait_share"] > 0.3
    assert kinds(told)[0] == "input_bound"
    assert told["wait_seconds_by_cause"]["fetch"] > 0.5 * sum(told["wait_seconds_by_cause"].values())
    assert "more GPUs would not help" in told["diagnosis"][0]["advice"]
    assert told["diagnosis"][0]["evidence"]["wait_share_slowest"] == told["wait_share_slowest"]


def test_two_ranks_under_torchrun_and_the_slow_one_is_named(pilot, tmp_path):
    out, html = tmp_path / "two.json", tmp_path / "two.html"
    for _ in range(TRIES):
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
            "--master-port", str(free_port()),
        ]  # fmt: skip
        code, _, err = pilot("two_ranks", "--steps", 60, "--out", out, "--html", html, before=torchrun)
        assert code == 0
        told = json.loads(out.read_text())
        if [one["evidence"]["rank"] for one in told["diagnosis"] if one["kind"] == "stragglers"] == [1]:
            break
    assert "SignalException" not in err  # torchrun's lament about the end
    assert (told["world_size"], told["ranks_seen"], told["series"]["ranks"]) == (2, 2, [0, 1])
    assert len(told["wait_share_by_rank"]) == 2
    # Both ranks' tokens: the useful ones of all ranks are never more than those through the model.
    assert 0 <= told["padding_share"] < 0.5
    (straggler,) = [finding for finding in told["diagnosis"] if finding["kind"] == "stragglers"]
    assert straggler["evidence"]["rank"] == 1
    assert "Rank 1" in html.read_text()
    code, _, err = pilot("steady", "--compare", out)
    assert code == 2
    assert "is a pilot of 2 ranks; one of 1 is needed" in err


def test_a_failing_command_is_an_error_with_its_last_lines(pilot):
    code, text, err = pilot("failing", "--json")
    assert code == 1
    told = json.loads(text)
    assert told["error"] == "PilotError"
    assert told["message"].startswith("the command ended with exit code 1 after ")
    assert "CUDA out of memory, or so" in told["message"]
    assert "loss is nan" in err


@pytest.mark.parametrize(
    ("what", "flags", "word"),
    [
        ("no_loader", [], "TorchLoader"),
        ("few_steps", [], "let the pilot run longer"),
        ("steady", ["--max-seconds", "0.05"], "no step was played within 0.05 s"),
    ],
)
def test_too_little_to_say_anything_is_exit_1(pilot, what, flags, word):
    code, text, err = pilot(what, *flags)
    assert (code, text) == (1, "")
    assert_for_a_person(err)
    assert word in err


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ([], "no command"),
        (["--steps", "20", "--", "true"], "at least 21"),
        (["--", "no-such-program-here"], "cannot start no-such-program-here"),
        (["--confidence", "95", "--", "true"], "--confidence"),
        (["--gpu", "abacus", "--params", "1B", "--", "true"], "--peak-flops"),
        (["--trainable", "1M", "--", "true"], "--params"),
        (["--params", "1B", "--trainable", "2B", "--", "true"], "--trainable"),
        (["--params", "1B", "--layers", "3", "--", "true"], "--width"),
        (["--params", "1B", "--frozen-lower", "1B", "--", "true"], "--frozen-lower"),
        (["--price-per-hour", "0", "--", "true"], "--price-per-hour"),
        (["--passes", "-1", "--", "true"], "--passes"),
        (["--total-steps", "5", "--data", "SHARDS", "--", "true"], "give one of them"),
        (["--data", "SHARDS", "--split", "test", "--", "true"], "no split"),
        (["--grace", "-1", "--", "true"], "--grace"),
        (["--out", "/no/such/folder/x.json", "--", "true"], "cannot write /no/such/folder/x.json"),
        (["--compare", "/no/such/file", "--", "true"], "cannot read /no/such/file"),
        (["--compare", PROGRAM, "--", "true"], "not JSON"),
        (["--params", "many", "--", "true"], "not a number: many"),
    ],
)
def test_a_wrong_call_is_exit_2_before_anything_runs(shards, capsys, flags, word):
    try:
        code = main(["pilot", *(shards if flag == "SHARDS" else flag for flag in flags)])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert_for_a_person(err)
    assert word in err


def gone(pid):
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("number", "code", "what"), [(signal.SIGTERM, 143, "deaf"), (signal.SIGINT, 130, "family")])
def test_a_pilot_that_is_ended_leaves_no_process(shards, tmp_path, number, code, what):
    command = [
        sys.executable,
        "-m",
        "shardprep",
        "pilot",
        "--steps",
        "100000",
        "--grace",
        "0.5" if what == "deaf" else "30",
        "--",
    ]
    command += [sys.executable, PROGRAM, what, shards, str(tmp_path / "cache"), str(tmp_path)]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    pids = []
    try:
        files = [tmp_path / "child", tmp_path / "orphan", tmp_path / "parent"]
        files = files if sys.platform == "linux" else [files[0], files[2]]
        deadline = time.monotonic() + DEADLINE_S
        while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [int(file.read_text()) for file in files]
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (code, "")
        assert_for_a_person(err)
        assert all(map(gone, pids))
    finally:
        process.kill()
        for pid in pids:
            if not gone(pid):
                psutil.Process(pid).kill()


@pytest.mark.skipif(sys.platform != "linux", reason="there only a process is known by its environment")
def test_what_a_command_leaves_running_is_ended_and_its_own_files_and_endless_lines_are_no_matter(pilot, tmp_path):
    code, _, err = pilot("leaver", "--json", arguments=[tmp_path])
    assert code == 0
    assert "x" * 8_000_000 in err
    assert gone(int((tmp_path / "orphan").read_text()))


def test_ranks_and_splits_that_come_later_are_waited_for(pilot, tmp_path):
    (tmp_path / "metrics").mkdir()
    code, text, err = pilot("late_rank", "--json", "--steps", 40, "--split", "two", arguments=[tmp_path / "metrics"])
    assert (code, err) == (0, "")
    assert json.loads(text)["ranks_seen"] == 2


def test_a_command_goes_on_where_nobody_reads_what_it_prints(shards, tmp_path):
    command = [sys.executable, "-m", "shardprep", "pilot", "--json", "--", sys.executable, PROGRAM, "leaver", shards]
    process = subprocess.Popen(
        [*command, str(tmp_path / "cache"), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stderr.close()
    with process:
        assert json.loads(process.stdout.read())["steps_measured"] > 0
    assert process.returncode == 0


def test_data_and_passes_make_the_whole_run(pilot, shards):
    flags = ["--json", "--steps", 40, "--passes", 2, "--data", f"{shards}/manifest.json"]
    model = ["--params", "1M", "--trainable", "10k", "--layers", 2, "--width", 16, "--checkpointing", "--gpu", "a10g"]
    code, text, _ = pilot("steady", *flags, *model)
    told = json.loads(text)
    plan = told["projection"]
    assert code == 0
    assert plan["basis"] == "data"
    assert plan["steps"] == pytest.approx(2 * told["steps_per_epoch"], rel=0.3)
    others = plan["startup_seconds"] + plan["between_epochs_seconds"]
    seconds = 2 * sum(LENGTHS) / told["useful_tokens_per_second"]["mean"] + others
    assert plan["seconds"]["mean"] == pytest.approx(seconds)
    attention = 4 * 2 * 16 * told["mean_length"]
    assert told["flops_per_token"]["model"] == pytest.approx(4e6 + 2e4 + 3 * attention)
    assert told["flops_per_token"]["hardware"] == pytest.approx(6e6 + 2e4 + 4 * attention)
    assert told["mfu"]["mean"] == pytest.approx(
        told["useful_tokens_per_second"]["mean"] * told["flops_per_token"]["model"] / 70e12
    )
    assert "memory" in kinds(told)
