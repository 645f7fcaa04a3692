"""An error that nobody foresaw: a trace for us, a last line that promises nothing it cannot know, exit 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardprep import cli


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_unknown_error(flags, capsys, monkeypatch):
    def fails(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "_inspect", fails)
    assert cli.main(["inspect", "somewhere", *flags]) == 1
    out, err = capsys.readouterr()
    assert "RuntimeError: a bug" in err.splitlines()[-1]
    assert "Nothing was published" not in err
    assert not flags or json.loads(out)["error"] == "RuntimeError"


BYTE = str(Path(__file__).parent / "cases/tok/byte.json")


def one_line(err):
    """Return what is said to a person, but for notes on the tokenizer: one line, and no trace."""
    (line,) = [line for line in err.splitlines() if not line.startswith("tokenizer: ")]
    assert line.startswith("shardprep: ")
    return line


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"text": "a"}')
    return folder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("columns = 5", "--column must be a text, or a list of texts, got 5"),
        ("columns = [5]", "--column must be"),
        ("columns = [['a']]", "--column must be"),
        ("bucket_edges = [1.5]", "--bucket-edges must be whole numbers"),
        ("bucket_edges = [true]", "--bucket-edges must be whole numbers"),
        ("bucket_edges = 8", "--bucket-edges must be whole numbers"),
        ("bucket_edges = 'a,b'", "--bucket-edges must be whole numbers"),
        ("storage_options = 5", "--storage-option must be key=value, got 5"),
        ("storage_options = [5]", "--storage-option must be key=value, got 5"),
        ("storage_options = [['a']]", "--storage-option must be key=value"),
        ("split = 'train=1e400'", "at most 1"),
        ("split = 'train=1e999999999'", "at most 1"),
        ("tokenizer = 5", "tokenizer must be a text, got 5"),
        ("source_list = 5", "--source-list must be a text"),
        ("[table]", "unknown setting"),
    ],
)
def test_wrong_types_in_a_job_file(line, said, source, tmp_path, capsys):
    (tmp_path / "job.toml").write_text(line + "\n")
    tokenizer = [] if line.startswith("tokenizer") else ["--tokenizer", BYTE]
    assert (
        cli.main(["build", str(source), str(tmp_path / "out"), *tokenizer, "--config", str(tmp_path / "job.toml")]) == 2
    )
    assert said in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_job_file_that_is_not_utf8(source, tmp_path, capsys):
    (tmp_path / "job.toml").write_bytes(b'text_field = "\xff"\n')
    assert cli.main(["build", str(source), str(tmp_path / "out"), "--config", str(tmp_path / "job.toml")]) == 2
    assert "not UTF-8 at byte 14" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("below", ["", "/sub/out"])
@pytest.mark.parametrize("what", ["output", "staging"])
def test_a_file_is_where_a_folder_belongs(what, below, source, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    place = str(tmp_path / "file") + below
    output = [place] if what == "output" else [str(tmp_path / "out"), "--staging", place]
    call = ["build", str(source), *output, "--tokenizer", BYTE, "--scheduler", "serial"]
    assert cli.main(call) == 1
    assert one_line(capsys.readouterr().err).endswith(
        f"{tmp_path / 'file'} is a file. Choose another {what}, or move that file"
    )
    assert (tmp_path / "file").read_text() == "mine"


def test_nul_bytes_in_names(source, tmp_path, capsys):
    (tmp_path / "list").write_bytes(b"in/a.json\nin/b\0.json\n")
    call = [
        "build",
        "--source-list",
        str(tmp_path / "list"),
        str(tmp_path / "out"),
        "--tokenizer",
        BYTE,
        "--scheduler",
        "serial",
    ]
    assert cli.main(call) == 0
    (part,) = (tmp_path / "out").rglob("rejects/*.jsonl")
    reject = json.loads(part.read_bytes())
    assert reject["reason"] == "unusable_key"
    assert "line 2 of" in reject["detail"]

    (tmp_path / "refs.manifest").write_text(
        '{"source-ref": "%s"}\n{"source-ref": "/a\\u0000b"}\n' % (source / "a.json")
    )
    call = [
        "build",
        str(tmp_path / "refs.manifest"),
        str(tmp_path / "refs"),
        "--tokenizer",
        BYTE,
        "--scheduler",
        "serial",
    ]
    assert cli.main(call) == 0
    (part,) = (tmp_path / "refs").rglob("rejects/*.jsonl")
    assert (json.loads(part.read_bytes())["line"], json.loads(part.read_bytes())["reason"]) == (2, "unusable_key")

    capsys.readouterr()
    (tmp_path / "job.toml").write_text('source = "a\\u0000b"\noutput = "o"\n')
    assert cli.main(["build", "--tokenizer", BYTE, "--config", str(tmp_path / "job.toml")]) == 2
    assert "NUL" in one_line(capsys.readouterr().err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    "arguments", [["inspect", "out"], ["verify", "out", "--json"], ["inspect", "nosuch", "--json"]]
)
def test_standard_output_is_full(arguments, source, tmp_path):
    assert cli.main(["build", str(source), str(tmp_path / "out"), "--tokenizer", BYTE, "--scheduler", "serial"]) == 0
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardprep", *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1] == "shardprep: cannot write to standard output: No space left on device"
    assert len(lines) == 1 + ("nosuch" in arguments)


def test_the_command_line_loads_no_report_before_its_command_runs():
    program = (
        "import sys, shardprep.cli; "
        "print(*{name.partition('.')[0] for name in sys.modules} & {'numpy', 'pyarrow', 'orjson', 'torch', 'dask'}, "
        "*(name for name in sys.modules if name.startswith(('shardprep.report.cost', 'shardprep.report.compare'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["shardprep.report.compare_arguments", "shardprep.report.cost_arguments"]
