"""The reader's half: the first batch fetches a row group, not the file; and memory does not grow with the file."""

import json
import subprocess
import sys

import pytest

import shardprep
from shardprep.storage.local import LocalStore
from tests.cases.command import build, environment
from tests.cases.inputs import rows, write
from tests.reader.data import build as numbers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c27")
    write(folder / "in/rows.jsonl", rows())
    return build(folder / "in", folder / "out", "--shards", "1", "--row-group-size", "256KiB")


@pytest.fixture
def fetched(monkeypatch):
    """Every range that is read from a shard, as (start, stop)."""
    ranges = []
    get_range = LocalStore.get_range

    def counting(self, key, start, stop, **more):
        if key.endswith(".parquet"):
            ranges.append((start, stop))
        return get_range(self, key, start, stop, **more)

    monkeypatch.setattr(LocalStore, "get_range", counting)
    return ranges


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_first_batch_fetches_less_than_a_quarter_of_the_file(made, tmp_path, fetched, shuffle, seed):
    size = made.shards[0]["bytes"]
    loader = shardprep.open(made.root, cache_dir=tmp_path / "cache").loader(batch_size=8, shuffle=shuffle, seed=seed)
    assert fetched == []  # opening reads the manifest, nothing more
    batches = iter(loader)
    assert next(batches).input_ids.shape == (8, 152)
    first = list(fetched)
    batches.close()
    assert 0 < sum(stop - start for start, stop in first) < size / 4
    assert len(set(first)) == len(first)


def test_a_whole_epoch_fetches_the_file_once(made, tmp_path, fetched):
    loader = shardprep.open(made.root, cache_dir=tmp_path / "cache").loader(batch_size=8)
    assert sum(int(batch.weight.sum()) for batch in loader) == 10_000
    assert made.shards[0]["bytes"] <= sum(stop - start for start, stop in fetched) < 1.1 * made.shards[0]["bytes"]
    assert loader.metrics()["bytes_fetched"] == sum(stop - start for start, stop in fetched)
    assert loader.metrics()["tokens"] == 1_510_000


PROGRAM = """
import json, sys
import shardprep

def private():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

if __name__ == "__main__":
    loader = shardprep.open(sys.argv[1], cache_dir=sys.argv[2]).loader(batch_size=8)
    peak = 0
    for number, batch in enumerate(loader):
        if number % 50 == 0:
            peak = max(peak, private())
    print(json.dumps([loader.metrics()["rows"], peak]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_private_memory_does_not_grow_with_the_file(tmp_path):
    """Five times the rows of one length, whose order is random in the whole file: 160 MB more, and the same memory."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    peaks = []
    for count in (10_000, 50_000):
        root = numbers(tmp_path / str(count), [1_000] * count, shards=1, row_group_size="256KiB")
        command = [sys.executable, str(program), root, str(tmp_path / f"cache-{count}")]
        ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
        found, peak = json.loads(ran.stdout)
        assert found == count
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 40e6
