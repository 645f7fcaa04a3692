"""What SageMaker's own SDK (2.x) reads of our shards. Of 3.x only the framing is left, and it is the same.

The SDK is fetched without what it depends on, into a folder of its own with the protobuf that its generated code wants; its
package is entered past its __init__, which would import all of that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardprep.formats.recordio import encode_shard
from tests.formats.records import block_of

WANTED = ("sagemaker==2.245.0", "protobuf==4.25.8")
READ = """
import json, sys, types
from pathlib import Path
place, shard = sys.argv[1:]
for name, inner in (("sagemaker", "sagemaker"), ("sagemaker.amazon", "sagemaker/amazon")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(Path(place) / inner)]
sys.modules["sagemaker.utils"] = types.ModuleType("sagemaker.utils")
sys.modules["sagemaker.utils"].DeferredError = object  # what stands for scipy where that is missing
from sagemaker.serializer_utils import read_records
with open(shard, "rb") as file:
    rows = [
        {
            "id": record.uid,
            "input_ids": list(record.features["values"].int32_tensor.values),
            "label": list(record.label["values"].int32_tensor.values),
            "keys": sorted(record.features),
        }
        for record in read_records(file)
    ]
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *WANTED]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def read(sdk: Path, shard: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, str(sdk), str(shard)]
    env = {"PYTHONPATH": str(sdk), "PATH": "", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_the_sdk_reads_what_has_no_escape_and_stumbles_over_what_has(sdk: Path, tmp_path: Path) -> None:
    types = {"label": "int64", "source": "string"}
    rows = [
        {"id": f"d{i}", "input_ids": list(range(i * 50)), "label": i - 3, "source": "s" if i % 2 else None}
        for i in range(9)
    ]
    block, schema = block_of(rows, types)
    sound = encode_shard([block], schema)
    (tmp_path / "sound.rec").write_bytes(sound.records)
    done = read(sdk, tmp_path / "sound.rec")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        {
            "id": row["id"],
            "input_ids": row["input_ids"],
            "label": [row["label"]],
            "keys": ["source", "values"] if row["source"] else ["values"],
        }
        for row in rows
    ]

    magic = [{**rows[0], "id": f"{shift}", "input_ids": [1] * shift + [10, 35, 26455]} for shift in range(4)]
    escaped = encode_shard([block_of(magic, types)[0]], schema)
    assert escaped.digest.escapes == 1
    (tmp_path / "escaped.rec").write_bytes(escaped.records)
    done = read(sdk, tmp_path / "escaped.rec")
    assert done.returncode != 0, "docs/recordio.md says that it takes flag and length for one number"
