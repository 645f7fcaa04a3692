"""Sources in S3, on a server that keeps odd keys as they are: prefixes, globs, list files, S3 Inventory."""

import csv
import gzip
import hashlib
import io
import json
from pathlib import Path
from urllib.parse import quote_plus

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardprep.core.plan import object_name
from shardprep.errors import SourceError
from shardprep.formats.documents import DocumentParser, Fields, Reason
from shardprep.prep.sources import list_source
from shardprep.storage.store import open_store
from tests.servers import Moto

CASES = Path(__file__).parents[1] / "cases"
BODY = b'{"text":"a"}'
SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"


@pytest.fixture(scope="module")
def server():
    with Moto() as moto:
        yield moto


@pytest.fixture
def client(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")


@pytest.fixture
def bucket(client, request):
    """A bucket of this test's own; returns the function that puts objects into it."""
    name = "b" + hashlib.sha1(request.node.name.encode()).hexdigest()[:12]
    client.create_bucket(Bucket=name)

    def put(key, body=BODY):
        client.put_object(Bucket=name, Key=key, Body=body)

    put.name = name
    put.uri = f"s3://{name}"
    return put


def names(listed):
    table = listed.table
    keys = table.keys.to_pylist()
    return [object_name(table.labels[root], key) for root, key in zip(table.root.tolist(), keys, strict=True)]


def test_c14_keys(bucket):
    for key, body in json.loads((CASES / "C14" / "s3_keys.json").read_bytes()):
        bucket(key, body.encode())
    for source in (f"{bucket.uri}/raw", f"{bucket.uri}/raw/"):
        listed = list_source(source)
        assert names(listed) == ["raw//c.json", "raw/a.json", "raw/full/", "raw/sub/b.json"]
        assert listed.counters["markers"] == 3
        assert listed.counters["odd_keys"] == 2
        store, parser = open_store(listed.table.roots[0]), DocumentParser(Fields(id="id"))
        found = [
            parser.parse_object(key, store.get(key, etag=etag, size_bytes=size)).documents[0].id
            for key, size, etag in zip(
                listed.table.keys.to_pylist(), listed.table.sizes.tolist(), listed.table.etags.to_pylist(), strict=True
            )
        ]
        assert sorted(found) == ["a", "b", "c", "d"]


def test_a_single_object_and_a_folder_of_the_same_name(bucket):
    for key in ("raw", "raw/a.json", "raw/_side.json", "raw.json", "what*.json"):
        bucket(key)
    assert names(list_source(f"{bucket.uri}/raw")) == ["raw"]
    assert names(list_source(f"{bucket.uri}/raw/")) == ["raw/a.json"]
    assert names(list_source(f"{bucket.uri}/raw/_side.json")) == ["raw/_side.json"]
    assert names(list_source(f"{bucket.uri}/what*.json")) == ["what*.json"]
    assert names(list_source(bucket.uri)) == ["raw", "raw.json", "raw/a.json", "what*.json"]


def test_globs(bucket):
    for key in ("raw/2024-01/a.json", "raw/2024-02/b.json", "raw/2025-01/c.json", "raw/2024-01/deep/d.json"):
        bucket(key)
    assert names(list_source(f"{bucket.uri}/raw/2024-*/*.json")) == ["raw/2024-01/a.json", "raw/2024-02/b.json"]
    assert len(list_source(f"{bucket.uri}/raw/2024-*/**/*.json").table) == 3
    with pytest.raises(SourceError, match="matches folders only"):
        list_source(f"{bucket.uri}/raw/2024-*")


@pytest.mark.parametrize("key", ["", "/raw", "/raw/", "/raw/*.json"])
def test_no_such_bucket_and_nothing_there_are_named(client, bucket, key):
    with pytest.raises(SourceError, match="no bucket s3://no-such-bucket"):
        list_source(f"s3://no-such-bucket{key}")
    with pytest.raises(SourceError, match=f"no objects in {bucket.uri}"):
        list_source(f"{bucket.uri}{key}".replace("*", ""))


def test_a_list_file_over_two_buckets(client, bucket, tmp_path):
    other = bucket.name + "-2"
    client.create_bucket(Bucket=other)
    client.put_object(Bucket=other, Key="x.json", Body=BODY)
    bucket("raw/a.json")
    bucket("raw//b.json")
    lines = [
        "a.json",
        f"s3://{other}/x.json",
        f"{bucket.uri}/raw//b.json",
        f"{bucket.uri}/raw/a.json",
        f"s3://{other}/no",
    ]
    bucket("raw/list.txt", "\n".join(lines).encode())
    listed = list_source(None, source_list=f"{bucket.uri}/raw/list.txt")
    assert sorted(names(listed)) == sorted(
        [f"{bucket.name}/raw//b.json", f"{bucket.name}/raw/a.json", f"{other}/x.json"]
    )
    assert listed.table.sizes.tolist() == [12] * 3
    assert listed.counters["listed_twice"] == 1
    assert [(name, reason) for name, reason, _ in listed.rejects] == [(f"{other}/no", Reason.MISSING_OBJECT)]
    etag = client.head_object(Bucket=bucket.name, Key="raw/a.json")["ETag"]
    assert etag in listed.table.etags.to_pylist()


# S3 Inventory, to the letter of the user guide: quoted CSV without a header and with URL-encoded keys; ETags bare.


def inventory_rows(client, bucket):
    rows = []
    for key, body in (("raw/a.json", BODY), ("raw/b c+d%é.json", BODY * 2), ("raw/_side", BODY), ("raw/", b"")):
        bucket(key, body)
        etag = client.head_object(Bucket=bucket.name, Key=key)["ETag"].strip('"')
        rows.append((bucket.name, key, "v2", True, False, len(body), etag))
    rows.append((bucket.name, "raw/a.json", "v1", False, False, 99, "0" * 32))  # an old version
    rows.append((bucket.name, "raw/gone.json", "v9", True, True, None, ""))  # a delete marker
    return rows


def as_csv(rows):
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for name, key, version, latest, deleted, size, etag in rows:
        flags = str(latest).lower(), str(deleted).lower()
        encoded = quote_plus(key, safe="/")
        writer.writerow(
            [name, encoded, version, *flags, "" if size is None else size, "2024-01-01T00:00:00.000Z", etag, "STANDARD"]
        )
    return gzip.compress(out.getvalue().encode())


def as_parquet(rows):
    columns = list(zip(*rows, strict=True))
    types = [pa.string(), pa.string(), pa.string(), pa.bool_(), pa.bool_(), pa.int64(), pa.string()]
    names_ = ["bucket", "key", "version_id", "is_latest", "is_delete_marker", "size", "e_tag"]
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names_), out)
    return out.getvalue()


def manifest(bucket, files, file_format, schema=SCHEMA):
    return json.dumps(
        {
            "sourceBucket": bucket.name,
            "destinationBucket": f"arn:aws:s3:::{bucket.name}",
            "version": "2016-11-30",
            "creationTimestamp": "1514944800000",
            "fileFormat": file_format,
            "fileSchema": schema,
            "files": [
                {"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}
                for key, data in files.items()
            ],
        }
    ).encode()


def put_inventory(bucket, rows, file_format, schema=SCHEMA):
    make, ending = {"CSV": (as_csv, "csv.gz"), "Parquet": (as_parquet, "parquet")}[file_format]
    files = {f"inv/{bucket.name}/all/data/{i}.{ending}": make(part) for i, part in enumerate((rows[:2], rows[2:]))}
    for key, data in files.items():
        bucket(key, data)
    bucket(f"inv/{bucket.name}/all/2024-01-01T00-00Z/manifest.json", manifest(bucket, files, file_format, schema))
    return f"{bucket.uri}/inv/{bucket.name}/all/2024-01-01T00-00Z/manifest.json"


@pytest.mark.parametrize("file_format", ["CSV", "Parquet"])
def test_an_inventory_gives_what_a_listing_gives(client, bucket, file_format):
    rows = inventory_rows(client, bucket)
    uri = put_inventory(bucket, rows, file_format)
    listed, direct = list_source(uri), list_source(f"{bucket.uri}/raw/")
    assert names(listed) == names(direct) == ["raw/a.json", "raw/b c+d%é.json"]
    for column in ("keys", "etags"):
        assert getattr(listed.table, column).equals(getattr(direct.table, column))
    assert listed.table.sizes.tolist() == direct.table.sizes.tolist()
    assert listed.table.roots == (bucket.uri,)
    assert (listed.counters["old_versions"], listed.counters["markers"], listed.counters["side_files"]) == (2, 1, 1)
    assert list_source(uri, source_format="inventory").table.keys.equals(listed.table.keys)


@pytest.mark.parametrize("file_format", ["CSV", "Parquet"])
@pytest.mark.parametrize("keep_tree", [True, False])
def test_a_local_copy_of_an_inventory(client, bucket, tmp_path, file_format, keep_tree):
    uri = put_inventory(bucket, inventory_rows(client, bucket), file_format)
    for item in client.list_objects_v2(Bucket=bucket.name, Prefix="inv/")["Contents"]:
        key = item["Key"]
        path = tmp_path / (key if keep_tree else key.rpartition("/")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(client.get_object(Bucket=bucket.name, Key=key)["Body"].read())
    local = tmp_path / (uri.removeprefix(bucket.uri + "/") if keep_tree else "manifest.json")
    listed = list_source(str(local))
    assert names(listed) == ["raw/a.json", "raw/b c+d%é.json"]
    assert listed.table.roots == (bucket.uri,)


def test_an_inventory_with_few_columns_and_a_key_that_is_no_text(client, bucket):
    rows = b'"' + bucket.name.encode() + b'","raw/a.json","12"\n"' + bucket.name.encode() + b'","raw/%FF","3"\n'
    bucket("data/1.csv", rows)
    bucket("manifest.json", manifest(bucket, {"data/1.csv": rows}, "CSV", "Bucket, Key, Size"))
    listed = list_source(f"{bucket.uri}/manifest.json")
    assert (names(listed), listed.table.etags.to_pylist()) == (["raw/a.json"], [""])
    assert [(name, reason) for name, reason, _ in listed.rejects] == [("raw/%FF", Reason.UNUSABLE_KEY)]


def test_inventories_that_cannot_be_read_say_why(client, bucket):
    data = as_csv(inventory_rows(client, bucket))
    for files, file_format, schema, words in (
        ({"d.csv.gz": data}, "ORC", SCHEMA, "ORC is not read"),
        ({"d.csv.gz": data}, "CSV", "Bucket, Key", "add Size"),
        ({"nowhere.csv.gz": data}, "CSV", SCHEMA, "which is not in"),
        ({"d.csv.gz": data + b"x"}, "CSV", SCHEMA, "not the one that its manifest names"),
        ({"broken.csv.gz": data[:-20]}, "CSV", SCHEMA, "broken.csv.gz is damaged"),
        ({"broken.csv.gz": data[:-20]}, "Parquet", "message s3.inventory {}", "broken.csv.gz is damaged"),
    ):
        bucket("d.csv.gz", data)
        bucket("broken.csv.gz", data[:-20])
        bucket("manifest.json", manifest(bucket, files, file_format, schema))
        with pytest.raises(SourceError, match=words):
            list_source(f"{bucket.uri}/manifest.json")


def test_another_manifest_json_is_just_a_file(bucket):
    bucket("manifest.json", b'{"text":"a"}')
    listed = list_source(f"{bucket.uri}/manifest.json")
    assert (names(listed), listed.kind) == (["manifest.json"], "objects")
    with pytest.raises(SourceError, match="no manifest"):
        list_source(f"{bucket.uri}/manifest.json", source_format="inventory")
