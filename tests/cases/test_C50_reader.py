"""Memory stays flat. The case's 4 workers are here the 4 ranks of a node, a process each; DataLoader's: tests/torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shardprep
from tests.cases.command import environment
from tests.cases.inputs import BYTE, line

PROGRAM = Path(__file__).with_name("flat_memory.py")
RANKS, EPOCHS = 4, 3

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def made(folder: Path, count: int) -> Path:
    """Build docs_1000 again and again with new ids, in 100 shards."""
    source = folder / "in"
    source.mkdir()
    for first in range(0, count, 50_000):
        rows = b"".join(line(i, f"doc {i % 1000:06d}") for i in range(first, min(count, first + 50_000)))
        (source / f"part-{first:07d}.jsonl").write_bytes(rows)
    summary = shardprep.build(
        source, folder / "out", tokenizer=str(BYTE), id_field="id", shards=100, scheduler="serial", progress=False
    )
    assert summary["written"] == count
    return folder / "out"


def played(root: Path, cache: Path) -> list[dict]:
    command = [sys.executable, str(PROGRAM), str(root), str(cache)]
    ranks = [
        subprocess.Popen([*command, str(r), str(RANKS), str(EPOCHS)], stdout=subprocess.PIPE, env=environment())
        for r in range(RANKS)
    ]
    answers = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    return [json.loads(answer) for answer in answers]


def assert_flat(told: list[dict], count: int) -> None:
    assert sum(rank["rows"] for rank in told) == EPOCHS * count
    for rank in told:
        after_100, first, _, third = rank["private"]
        assert first - after_100 < 50e6
        assert third - first < 20e6
        assert rank["opened_s"] < 5
        assert rank["opened_bytes"] < 200e6


def test_memory_stays_flat_over_50_000_documents(tmp_path):
    assert_flat(played(made(tmp_path, 50_000), tmp_path / "cache"), 50_000)


@pytest.mark.slow
def test_memory_stays_flat_over_a_million_documents(tmp_path):
    assert_flat(played(made(tmp_path, 1_000_000), tmp_path / "cache"), 1_000_000)
