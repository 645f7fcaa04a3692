import json

import boto3
import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import HERE
from tests.servers import Moto, set_environment

KEYS = json.loads((HERE / "C14/s3_keys.json").read_bytes())


@pytest.fixture(scope="module")
def server():
    """Moto with the keys of the case in the bucket `case`, and odd ones in `odd`: it keeps keys as they are."""
    with Moto() as moto:
        client = boto3.client(
            "s3", endpoint_url=moto.endpoint, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
        )
        for bucket in ("case", "odd"):
            client.create_bucket(Bucket=bucket)
        for key, body in KEYS:
            client.put_object(Bucket="case", Key=key, Body=body.encode())
        for i, key in enumerate(ODD):
            client.put_object(Bucket="odd", Key="p/" + key, Body=json.dumps({"id": str(i), "text": key}).encode())
        client.close()
        yield moto


ODD = [
    "with space.json", "plus+.json", "50%.json", "50%25.json", "q?x=1.json", "h#.json", "caf\u00e9.json", "\u6587.json",
    "a//b.json", "/lead.json", "trail.json/", "./dot.json", "up/../x.json", "tab\t.json", "amp&;.json", "back\\slash.json",
    "\U0001f600.json", "*.json",
]  # fmt: skip


@pytest.fixture
def s3(server, monkeypatch):
    set_environment(monkeypatch, server.endpoint)


@pytest.mark.parametrize("source", ["s3://case/raw", "s3://case/raw/"])
@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_markers_are_counted_and_odd_keys_are_read(s3, tmp_path, source, kind):
    dataset = build(source, tmp_path / "out", "--store", kind)
    assert dataset.ids == {"a", "b", "c", "d"}
    assert dataset.ledger["objects"]["markers"] == 3
    assert dataset.ledger["objects"]["objects"] == 4
    assert dataset.rejects == []


def test_ids_of_odd_keys_are_their_keys(s3, tmp_path):
    dataset = build("s3://case/raw", tmp_path / "out", with_ids=False)
    assert dataset.ids == {"raw/a.json", "raw/sub/b.json", "raw//c.json", "raw/full/"}


def test_keys_of_every_kind(s3, tmp_path):
    dataset = build("s3://odd/p", tmp_path / "out")
    read = {int(i): dataset.text(i) for i in dataset.ids}
    assert read == dict(enumerate(ODD))


def test_a_prefix_that_holds_nothing_and_a_bucket_that_is_not_there(s3, tmp_path):
    assert "no objects" in refused("s3://case/rawer", tmp_path / "out")
    assert "nowhere" in refused("s3://nowhere/raw", tmp_path / "out")
