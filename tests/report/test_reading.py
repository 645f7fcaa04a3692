"""`shardprep read`: what a person reads, what a script reads, and how wrong calls and broken data sets end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardprep.cli import main
from tests.invariants import Dataset, assert_for_a_person
from tests.reader.data import build, lengths_of

ROWS = 300
LENGTHS = lengths_of(ROWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("read"), LENGTHS, split="train=0.9,validation=0.1")


@pytest.fixture
def read(made, tmp_path, capsys):
    """Run the command on the data set, or on another one; return (exit code, standard output, standard error)."""

    def run(*flags, dataset=made):
        arguments = ["read", str(dataset), "--cache-dir", str(tmp_path / "cache"), *map(str, flags)]
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def rows_of(made, split):
    (generation,) = Dataset(Path(made)).manifest["generations"]
    (found,) = [s for s in generation["splits"] if s["name"] == split]
    return found["rows"], found["tokens"]


def test_a_person_reads_rates_waits_and_padding(made, read):
    code, out, err = read("--batch-tokens", 2_000)
    rows, tokens = rows_of(made, "train")
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert list(lines) == ["played", "rows", "tokens", "padding", "waited", "first batch", "fetched"]
    assert re.fullmatch(r"1 x \d+ micro-batches, \d+ steps an epoch", lines["played"])
    assert re.fullmatch(rf"{rows:,} \([\d,]+ a second\)", lines["rows"])
    assert re.fullmatch(rf"{tokens:,} \([\d,]+ a second\)", lines["tokens"])
    assert re.fullmatch(r"\d+\.\d\d% of [\d,]+ slots", lines["padding"])
    assert re.fullmatch(r"\d+\.\d\d s of \d+\.\d\d s \(\d+\.\d%\): .+", lines["waited"])
    assert re.fullmatch(r"after \d+\.\d\d s", lines["first batch"])
    assert re.fullmatch(r"[\d,]+ bytes; cache: \d+ hits, \d+ misses", lines["fetched"])


def test_json_is_one_object_and_nothing_else(made, read):
    code, out, err = read("--batch-size", 8, "--json", "--split", "validation")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert (told["rows"], told["tokens"]) == rows_of(made, "validation")
    assert told["micro_batches"] == told["batches"] == told["steps"]
    assert told["epochs"] == 1
    assert 0 <= told["wait_share"] <= 1
    assert 0 <= told["padding_share"] < 1
    assert sum(told["wait_seconds_by_cause"].values()) == pytest.approx(told["wait_seconds"])


def test_two_epochs_fetch_once(made, read):
    once = json.loads(read("--batch-tokens", 2_000, "--json")[1])
    code, out, _ = read("--batch-tokens", 2_000, "--epochs", 2, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["epochs"] == 2
    assert told["rows"] == 2 * once["rows"]
    assert told["batches"] == 2 * told["micro_batches"]
    assert told["bytes_fetched"] <= sum(shard["bytes"] for shard in Dataset(Path(made)).shards)


def test_all_ranks_together_read_every_row(made, read):
    given = ["--batch-size", 4, "--world-size", 3, "--json", "--accumulate", 2, "--seed", 5]
    told = [json.loads(read(*given, "--rank", rank)[1]) for rank in range(3)]
    assert sum(one["rows"] for one in told) == rows_of(made, "train")[0]
    assert len({(one["micro_batches"], one["steps"], one["slots"]) for one in told}) == 1


def test_every_policy_of_the_loader_has_its_flag(read):
    flags = [
        "--batch-tokens",
        3_000,
        "--batch-size",
        9,
        "--slots",
        4,
        "--variety",
        1,
        "--window-rows",
        50,
        "--num-threads",
        3,
    ]
    code, out, _ = read(*flags, "--no-shuffle", "--tail", "drop", "--pad-to", "edge", "--json")
    assert code == 0
    assert json.loads(out)["rows"] > 0


def test_prometheus_text_of_the_end(made, read, tmp_path):
    code, _, _ = read("--batch-size", 8, "--prometheus", tmp_path / "metrics-{rank}-{split}.prom")
    text = (tmp_path / "metrics-0-train.prom").read_text()
    assert code == 0
    (line,) = [line for line in text.splitlines() if re.match(r"\w*rows\w*\{", line)]
    assert float(line.split()[-1]) == rows_of(made, "train")[0]


def test_metrics_of_the_environment(read, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDPREP_METRICS_DIR", str(tmp_path / "metrics"))
    assert read("--batch-size", 8)[0] == 0
    (path,) = (tmp_path / "metrics").iterdir()
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["rows"] > 0


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ([], "batch_tokens"),
        (["--batch-tokens", 0], "batch_tokens"),
        (["--batch-size", -1], "batch_size"),
        (["--batch-size", "many"], "--batch-size"),
        (["--batch-size", 4, "--epochs", 0], "--epochs"),
        (["--batch-size", 4, "--rank", 2, "--world-size", 2], "rank"),
        (["--batch-size", 4, "--world-size", 0], "world_size"),
        (["--batch-size", 4, "--split", "test"], '"test"'),
        (["--batch-size", 4, "--num-threads", 0], "num_threads"),
        (["--batch-size", 4, "--tail", "cut"], "--tail"),
        (["--batch-size", 4, "--storage-option", "nonsense"], "nonsense"),
        (["--batch-size", 4, "--cache-limit-bytes", -5], "cache"),
    ],
)
def test_a_wrong_call_is_exit_2_and_says_what(read, flags, word):
    code, out, err = read(*flags)
    assert (code, out) == (2, "")
    assert_for_a_person(err)
    assert word in err


def test_a_missing_split_names_those_that_are_there(read):
    code, out, err = read("--batch-size", 4, "--split", "test", "--json")
    rows = {name: rows for name, rows in re.findall(r"(\w+) \((\d+) rows\)", err)}
    assert code == 2
    assert set(rows) == {"train", "validation"}
    assert json.loads(out)["error"] == "ConfigError"


def test_an_unfinished_data_set_is_exit_1(made, read, tmp_path):
    copied = shutil.copytree(made, tmp_path / "unfinished")
    (copied / "manifest.json").unlink()
    for place in (copied, tmp_path / "nowhere"):
        code, out, err = read("--batch-size", 4, dataset=place)
        assert (code, out) == (1, "")
        assert_for_a_person(err)
        assert "no finished data set" in err


@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_a_damaged_shard_is_exit_1_and_named(made, read, tmp_path, damage):
    copied = Dataset(shutil.copytree(made, tmp_path / "damaged"))
    shard = copied.shards[1]
    path = copied.files[1]
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[300] ^= 1  # among the token ids: a page's own check sum tells
        path.write_bytes(data[:-10] if damage == "cut" else data)
    code, out, err = read("--batch-size", 4, dataset=copied.root)
    assert (code, out) == (1, "")
    assert_for_a_person(err)
    assert shard["name"] in err
    told = read("--batch-size", 4, "--json", dataset=copied.root)
    assert told[0] == 1
    assert shard["name"] in json.loads(told[1])["message"]


def test_a_cache_folder_that_cannot_be_made_is_named(read, tmp_path, made, capsys):
    (tmp_path / "file").write_text("")
    code = main(["read", made, "--batch-size", "4", "--cache-dir", str(tmp_path / "file" / "cache")])
    _, err = capsys.readouterr()
    assert code == 1
    assert_for_a_person(err)
    assert str(tmp_path / "file") in err


def test_a_bar_on_standard_error_when_asked_for(read):
    code, out, err = read("--batch-size", 4, "--progress")
    assert code == 0
    assert "reading train" in err
    assert "reading" not in out


def test_ctrl_c_ends_at_once_without_a_traceback(made, tmp_path):
    import signal

    command = [sys.executable, "-m", "shardprep", "read", made, "--batch-size", "1", "--epochs", "100000"]
    process = subprocess.Popen(
        [*command, "--cache-dir", str(tmp_path / "cache"), "--prometheus", str(tmp_path / "begun")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    import time

    deadline = time.monotonic() + 200
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert_for_a_person(err)
