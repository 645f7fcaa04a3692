"""Processing jobs that end before they begin: the exit code, one JSON object where asked for, and the message on the head."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from shardprep.adapters.sagemaker.processing import run_processing
from shardprep.cli import parse_build
from shardprep.prep.signals import Terminated, heeding_signals

BUILD = ("raw", "out", "--tokenizer", "t.json")
TWO = {"hosts": ["algo-1", "algo-2"]}


def call(root: Path, *flags: str, host: str = "algo-1", config: str = "") -> tuple[int, str]:
    """Run one host's part and return its exit code and its message, "" where there is none."""
    folder, message = root / "config", root / "output" / "message"
    folder.mkdir(exist_ok=True)
    (folder / "resourceconfig.json").write_text(config or json.dumps({"current_host": host, **TWO}))
    message.parent.mkdir(exist_ok=True)
    message.write_text("found 1, written 1: of an earlier run")
    code = run_processing([*BUILD, *flags, "--ml-root", str(root)], parse_build)
    return code, message.read_text() if message.exists() else ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min-hosts", "0"), "--min-hosts must be at least 1, got 0"),
        (("--port", "abc"), "argument --port: invalid int value: 'abc'"),
        (("--scratch", "{root}/config/resourceconfig.json"), "cannot make a folder for temporary files in"),
    ],
)
def test_flags_of_the_entry_point(flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    given = [flag.format(root=tmp_path) for flag in flags]
    code, message = call(tmp_path, *given)
    assert code == 2
    assert message.startswith(f"the call is wrong (exit 2): {words}")
    assert call(tmp_path, *given, host="algo-2") == (2, "")  # messages of all hosts would be put together


@pytest.mark.parametrize("config", ["{", '{"current_host": "algo-9", "hosts": ["algo-1"]}', '{"hosts": []}'])
def test_a_file_of_hosts_that_cannot_be_used(config: str, tmp_path: Path) -> None:
    code, message = call(tmp_path, config=config)
    assert code == 2
    assert message.startswith("the call is wrong (exit 2): ")


def test_with_json_a_wrong_call_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]})
    code, message = call(tmp_path, "--max-length", "3", "--json", config=config)
    told = json.loads(capsys.readouterr().out)
    assert (code, told["error"]) == (2, "ConfigError")
    assert message == f"the call is wrong (exit 2): {told['message']}"


def test_only_the_first_signal_raises() -> None:
    with heeding_signals(once=True):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
    with heeding_signals(once=True):
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
