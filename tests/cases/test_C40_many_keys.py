import json
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest

from shardprep.prep import engine
from tests.cases.command import arguments_of, build, environment, run, spawn
from tests.cases.inputs import BYTE, many, write_many
from tests.fault_proxy import FaultProxy
from tests.invariants import assert_sound
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, SeaweedFS, set_environment

MOST_TASKS, MOST_GRAPH_BYTES, MOST_LISTS = 250, 1 << 20, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_many(tmp_path_factory.mktemp("c40") / "many", many())


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """The byte tokenizer with 5 MB of blanks appended."""
    path = tmp_path_factory.mktemp("c40-tok") / "padded.json"
    path.write_bytes(BYTE.read_bytes() + b" " * 5_000_000)
    return path


class Weighing(engine.SerialEngine):
    """The serial engine; weighs what a scheduler would have to carry."""

    def __init__(self):
        self.sizes = []
        weighed.append(self)

    def run(self, function, count, task):
        def weighing(index):
            call = task(index)
            self.sizes.append((function.__name__, len(pickle.dumps((function, call)))))
            return call

        yield from super().run(function, count, weighing)


weighed = []


def test_few_small_tasks_however_large_the_tokenizer(folder, padded, tmp_path, monkeypatch):
    monkeypatch.setattr("shardprep.prep.build.SerialEngine", Weighing)
    weighed.clear()
    dataset = build(folder, tmp_path / "out", "--tokenizer", padded)
    assert dataset.ids == {str(i) for i in range(2500)}
    assert dataset.ledger["tokens"] == 25_000
    sizes = [pair for one in weighed for pair in one.sizes]
    assert 1 < Counter(name for name, _ in sizes)["scan"] <= MOST_TASKS
    assert sum(size for _, size in sizes) < MOST_GRAPH_BYTES


def test_real_workers_start_soon_and_without_a_warning(folder, padded, tmp_path):
    flags = ("--scheduler", "local", "--workers", 2, "--tokenizer", padded)
    ran = spawn(*arguments_of(folder, tmp_path / "out", flags))
    assert ran.code == 0, ran.err
    assert "arge" not in ran.err, "Dask warns of a large graph"
    dataset = assert_sound(tmp_path / "out")
    assert dataset.ledger["tokens"] == 25_000
    facts = json.loads((tmp_path / "out" / dataset.manifest["plan"] / "build.json").read_bytes())
    assert facts["seconds"]["listing"] + facts["seconds"]["engine"] < 100  # 1 s on a quiet machine


def test_the_tokenizer_is_loaded_once_a_process(folder, tmp_path):
    program = Path(__file__).with_name("poison_build.py")
    log = tmp_path / "loads"
    settings = json.dumps({"id_field": "id", "workers": 2, "split": "train=0.5,test=0.5"})
    ran = subprocess.run(
        [sys.executable, str(program), str(folder), str(tmp_path / "out"), settings],
        env=environment({"LOADS_LOG": str(log)}), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    loads = Counter(log.read_text().split())
    assert set(loads.values()) == {1}
    assert 1 <= len(loads) <= 2


def test_few_listing_requests_on_an_s3_server(tmp_path, monkeypatch):
    with SeaweedFS() as server, FaultProxy(server.port) as proxy:
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
        client = boto3.client("s3", endpoint_url=server.endpoint, **keys)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda file: client.put_object(Bucket=BUCKET, Key=f"many/{file[0]}", Body=file[1]), many()))
        client.close()
        set_environment(monkeypatch, proxy.endpoint)
        dataset = build(f"s3://{BUCKET}/many", tmp_path / "out")
        requests = proxy.counts()["requests"]
    assert dataset.ledger["written"] == 2500
    assert 1 <= requests["LIST"] <= MOST_LISTS
    assert requests["GET"] == 2500
    assert requests.get("HEAD", 0) <= 2


def test_the_order_of_many_keys_and_their_names_are_kept_in_the_ids(folder, tmp_path):
    dataset = build(folder, tmp_path / "out", with_ids=False)
    assert dataset.ids == {name for name, _ in many()}


def test_a_dry_run_reads_few_objects_and_writes_nothing(folder, tmp_path):
    ran = run(*arguments_of(folder, tmp_path / "out", ("--dry-run", "--json")))
    assert ran.code == 0, ran.err
    assert "2500" in ran.out.replace(",", "")
    assert not (tmp_path / "out").exists()
