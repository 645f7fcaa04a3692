"""Part (b): a process that has listed and encoded starts a cluster of 2 processes and builds; nobody sets a variable."""

import json
import subprocess
import sys

import pytest

from tests.cases.command import arguments_of, environment, spawn
from tests.cases.inputs import BYTE, docs_1000, write
from tests.invariants import assert_sound

PROGRAM = """
import json, os, sys
import tokenizers
import shardprep
from shardprep.prep.sources import list_source

if __name__ == "__main__":
    source, output, tokenizer = sys.argv[1:]
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    assert len(list_source(source).table) == 1
    assert tokenizers.Tokenizer.from_file(tokenizer).encode_batch(["one", "two"] * 500)[0].ids
    before = shardprep.build(source, output + "-before", tokenizer=tokenizer, id_field="id", scheduler="serial")
    after = shardprep.build(source, output, tokenizer=tokenizer, id_field="id", workers=2)
    again = shardprep.build(source, output + "-again", tokenizer=tokenizer, id_field="id", workers=2)
    print(json.dumps([before["fingerprint"], after["fingerprint"], again["fingerprint"]]))
"""


def test_two_processes_after_use_of_the_tokenizer_and_the_listing(tmp_path):
    write(tmp_path / "in/docs.jsonl", docs_1000(100))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(program), str(tmp_path / "in"), str(tmp_path / "out"), str(BYTE)],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert len(set(json.loads(ran.stdout))) == 1
    assert assert_sound(tmp_path / "out").ids == {str(i) for i in range(100)}


@pytest.mark.parametrize("variable", ["true", "false"])
def test_the_variable_of_the_user_changes_nothing(tmp_path, variable):
    write(tmp_path / "in/docs.jsonl", docs_1000(100))
    flags = ("--scheduler", "local", "--workers", 2)
    ran = spawn(
        *arguments_of(tmp_path / "in", tmp_path / "out", flags), env={"TOKENIZERS_PARALLELISM": variable}, timeout_s=300
    )
    assert ran.code == 0, ran.err
    assert assert_sound(tmp_path / "out").ids == {str(i) for i in range(100)}


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    write(tmp_path / "in/docs.jsonl", docs_1000(100))
    program = tmp_path / "program.py"
    source, output = str(tmp_path / "in"), str(tmp_path / "out")
    program.write_text(
        f"import shardprep\nshardprep.build({source!r}, {output!r}, tokenizer={str(BYTE)!r}, workers=2)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(program)], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "WorkerError" in last
    assert 'if __name__ == "__main__"' in last
    assert not (tmp_path / "out/manifest.json").exists()
