"""What every store promises, on every store: a folder, obstore and s3fs on a real S3 server, and fsspec's memory."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from shardprep.errors import Changed, ConfigError, Exists, NotFound, StoreError
from shardprep.storage.fetch import Item, fetch
from shardprep.storage.fsspec_store import FsspecStore
from shardprep.storage.store import Store, open_store, split_uri


def listed(store: Store, prefix: str = "") -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for page in store.list(prefix):
        assert page.keys.type == pa.string()
        assert page.sizes.dtype == np.int64
        assert len(page.keys) == len(page.sizes) == len(page.etags)
        for key, size, etag in zip(page.keys.to_pylist(), page.sizes.tolist(), page.etags.to_pylist(), strict=True):
            assert key not in found
            found[key] = (size, etag)
    return found


def test_what_was_put_is_got_and_listed(store: Store):
    bodies = {"a.json": b"{}", "sub/b.json": b"x" * 70_000, "sub/deep/c d+e%20é.json": b"\x00\xff", "empty": b""}
    for key, body in bodies.items():
        assert store.put(key, body).size_bytes == len(body)
    assert {key: size for key, (size, _) in listed(store).items()} == {key: len(body) for key, body in bodies.items()}
    for key, (size, etag) in listed(store).items():
        assert store.get(key, etag=etag, size_bytes=size) == bodies[key]
        assert store.head(key) == (size, etag)


def test_a_prefix_is_the_beginning_of_a_key_and_no_folder(store: Store):
    for key in ("raw/a", "raw/sub/b", "rawdata/x", "other"):
        store.put(key, b"1")
    assert sorted(listed(store, "raw/")) == ["raw/a", "raw/sub/b"]
    assert sorted(listed(store, "raw")) == ["raw/a", "raw/sub/b", "rawdata/x"]
    assert sorted(listed(store, "raw/s")) == ["raw/sub/b"]
    assert listed(store, "none/") == {}


def test_progress_counts_keys(store: Store):
    for number in range(5):
        store.put(f"k{number}", b"1")
    seen: list[int] = []
    assert sum(len(page.keys) for page in store.list(on_progress=seen.append)) == 5
    assert seen[-1] == 5


def test_put_replaces_and_takes_memory_views(store: Store):
    store.put("k", b"old")
    result = store.put("k", memoryview(bytearray(b"new one")))
    assert store.get("k") == b"new one"
    assert (result.size_bytes, result.etag) == store.head("k")


def test_ranges(store: Store):
    body = bytes(range(256)) * 40
    store.put("k", body)
    size, etag = store.head("k")
    assert store.get_range("k", 0, 10) == body[:10]
    assert store.get_range("k", 100, 5000, etag=etag, size_bytes=size) == body[100:5000]
    assert store.get_range("k", size - 3, size + 100, etag=etag, size_bytes=size) == body[-3:]
    assert store.get_range("k", size, size + 100, size_bytes=size) == b""


def test_an_object_that_changed_is_told(store: Store):
    store.put("k", b"first")
    size, etag = store.head("k")
    store.put("k", b"second one")
    with pytest.raises(Changed, match=r"k changed after it was listed"):
        store.get("k", etag=etag, size_bytes=size)
    with pytest.raises(Changed):
        store.get_range("k", 0, 3, etag=etag, size_bytes=size)


def test_an_object_replaced_by_one_of_the_same_size_is_told(store: Store):
    store.put("k", b"first")
    size, etag = store.head("k")
    assert store.get("k", etag=etag, size_bytes=size) == b"first"
    store.put("k", b"other")
    with pytest.raises(Changed):
        store.get("k", etag=etag, size_bytes=size)


def test_what_is_not_there(store: Store):
    for call in (lambda: store.get("no/such"), lambda: store.get_range("no/such", 0, 1), lambda: store.head("no/such")):
        with pytest.raises(NotFound, match="no/such"):
            call()
    store.delete(["no/such", "nor/this"])


def test_delete(store: Store):
    keys = [f"d/{number}" for number in range(12)]
    for key in [*keys, "kept"]:
        store.put(key, b"1")
    store.delete([*keys, "d/never"])
    assert list(listed(store)) == ["kept"]


def test_of_many_who_create_one_wins(store: Store):
    def create(number: int) -> int | None:
        try:
            store.put_new("m", b"writer %d" % number)
        except Exists:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(create, range(8)) if number is not None]
    assert len(winners) == 1
    assert store.get("m") == b"writer %d" % winners[0]


def test_replace_only_what_was_seen(store: Store):
    first = store.put_new("m", b"first").etag
    if isinstance(store, FsspecStore):
        with pytest.raises(StoreError, match="only if it is unchanged"):
            store.put_if_match("m", b"second", first)
        return
    assert store.put_if_match("m", b"second", first).etag == store.head("m")[1]
    with pytest.raises(Exists, match="m"):
        store.put_if_match("m", b"third", first)
    assert store.get("m") == b"second"


def test_of_many_who_replace_one_wins(store: Store):
    if isinstance(store, FsspecStore):
        return
    etag = store.put("m", b"start").etag

    def replace(number: int) -> bool:
        try:
            store.put_if_match("m", b"writer %d" % number, etag)
        except Exists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(replace, range(8))) == 1


def test_fetch_keeps_the_order_and_errors_stay_in_their_place(store: Store):
    bodies = {f"f/{number:03}": b"%d" % number * (number % 7) for number in range(60)}
    for key, body in bodies.items():
        store.put(key, body)
    wanted = [Item(key, len(body)) for key, body in bodies.items()]
    wanted[20] = Item("f/missing", 3)
    wanted[40] = Item("f/040", 999_999)
    got = list(fetch(store, wanted))
    assert [item for item, _ in got] == wanted
    for number, (item, value) in enumerate(got):
        if number in (20, 40):
            assert type(value) is (NotFound if number == 20 else Changed)
            assert item.key in str(value)
        else:
            assert value == bodies[item.key]


def test_errors_survive_pickling(store: Store):
    with pytest.raises(NotFound) as caught:
        store.get("no/such")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.fields) == (NotFound, str(caught.value), caught.value.fields)


@pytest.mark.parametrize(
    ("uri", "root", "key"),
    [
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3://bucket/a//b/", "s3://bucket", "a//b/"),
        ("s3://bucket", "s3://bucket", ""),
        ("gs://bucket/../x", "gs://bucket", "../x"),
        ("az://container/a%20b", "az://container", "a%20b"),
        ("memory://box/k", "memory://box", "k"),
        ("/data/raw/a.json", "/data/raw", "a.json"),
        ("/data/raw/", "/data/raw", ""),
        ("/a", "/", "a"),
        ("a.json", ".", "a.json"),
        ("file:///data/a b", "/data", "a b"),
        ("file://localhost/data/a", "/data", "a"),
    ],
)
def test_split_uri(uri: str, root: str, key: str):
    assert split_uri(uri) == (root, key)


def test_a_uri_without_a_bucket_and_a_kind_without_a_meaning():
    with pytest.raises(ConfigError, match="needs a bucket"):
        open_store("s3:///x")
    with pytest.raises(ConfigError, match='"boto"'):
        open_store("s3://b", kind="boto")
    with pytest.raises(ConfigError, match="nosuch"):
        open_store("nosuch://b")


def test_memory_without_exclusive_create_is_refused_unless_told(prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardprep.storage.fsspec_store.EXCLUSIVE", frozenset())
    with pytest.raises(StoreError, match="--unsafe-publish"):
        open_store(f"memory://{prefix}").put_new("m", b"1")
    unsafe = FsspecStore(f"memory://{prefix}", unsafe_publish=True)
    unsafe.put_new("m", b"1")
    with pytest.raises(Exists):
        unsafe.put_new("m", b"2")
