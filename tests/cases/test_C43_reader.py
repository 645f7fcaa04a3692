"""Part (b) with real processes and a barrier at each step: training_process.py of the reader's tests, under 60 s."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cases.command import environment
from tests.cases.reading import counted, documents, once, played_together, ranks, real

TRAINING = Path(__file__).parents[1] / "reader/training_process.py"
SHARDS = [1, 3, 4, 7, 16, 101]


@pytest.mark.parametrize("shards", SHARDS)
def test_first_100_on_4_ranks_are_25_each(tmp_path, shards):
    documents(tmp_path, 100, min(shards, 100))
    for shuffle in (True, False):
        loaders = ranks(tmp_path / "out", tmp_path / "cache", 4, batch_size=1, num_threads=2, shuffle=shuffle)
        assert [len(loader) for loader in loaders] == [25] * 4
        rounds = played_together(loaders)
        assert [sum(len(real(together[rank])) for together in rounds) for rank in range(4)] == [25] * 4
        assert counted(batch for together in rounds for batch in together) == once(100)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_first_101_on_4_ranks_dropped_and_padded(tmp_path, shards, shuffle):
    documents(tmp_path, 101, shards)
    given = {"batch_size": 5, "shuffle": shuffle}
    drop = ranks(tmp_path / "out", tmp_path / "cache", 4, tail="drop", **given)
    assert [len(loader) for loader in drop] == [5] * 4
    assert [loader.dropped_rows for loader in drop] == [1] * 4
    seen = counted(batch for together in played_together(drop) for batch in together)
    assert len(seen) == seen.total() == 100
    assert all((batch.weight == 1).all() for loader in drop for batch in loader)

    pad = ranks(tmp_path / "out", tmp_path / "cache", 4, tail="pad", **given)
    assert [len(loader) for loader in pad] == [6] * 4
    assert [loader.dropped_rows for loader in pad] == [0] * 4
    rounds = played_together(pad)
    batches = [batch for together in rounds for batch in together]
    assert counted(batches) == once(101)
    filler = [batch for batch in batches if (batch.weight == 0).any()]
    assert sum(int((batch.weight == 0).sum()) for batch in batches) == sum(len(batch.ids) for batch in batches) - 101
    assert filler
    for batch in filler:  # reported: weight 0 and labels of -100, on real rows
        assert (batch.labels[batch.weight == 0] == -100).all()
        assert (batch.attention_mask.sum(axis=1) == 11).all()


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_4_real_processes_with_a_barrier_at_each_step(tmp_path, tail):
    documents(tmp_path, 101, 7)
    job = {
        "uri": str(tmp_path / "out"), "cache_dir": str(tmp_path / "cache"), "cache_limit_bytes": None, "world": 4,
        "policy": {"batch_size": 5, "tail": tail}, "threads": 2, "epochs": 1, "states": str(tmp_path / "states"),
        "logs": str(tmp_path), "run": 1, "saver": 0, "step_seconds": 0,
    }  # fmt: skip
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    processes = [subprocess.Popen([sys.executable, TRAINING, path, str(r)], env=environment()) for r in range(4)]
    assert [process.wait(300) for process in processes] == [0] * 4
    logs = [[json.loads(line) for line in (tmp_path / f"1-{rank}.jsonl").read_text().splitlines()] for rank in range(4)]
    assert [len(log) for log in logs] == [6 if tail == "pad" else 5] * 4
    seen = Counter(row for log in logs for line in log for row in line["rows"])
    assert set(seen.values()) == {1}
    assert len(seen) == (101 if tail == "pad" else 100)
