"""S3 as it misbehaves: odd keys, throttling, resets, stalls, lost answers, redirects, requester pays, rotation."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from fault_proxy import FaultProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Moto, SeaweedFS, set_environment

from shardprep.errors import Changed, ConfigError, Denied, Exists, NotFound, StoreError, Unavailable
from shardprep.storage import obstore_client, s3_listing
from shardprep.storage.fetch import Item, fetch
from shardprep.storage.inflight import InFlight
from shardprep.storage.objects import ObjectStore
from shardprep.storage.retry import RetryPolicy
from shardprep.storage.s3_access import ODD_KEY
from shardprep.storage.store import Store, open_store

QUICK = RetryPolicy(base_s=0.01, cap_s=0.05)
MARKERS = [("raw/", ""), ("raw/sub/", ""), ("raw/sub//", "")]
WITH_CONTENT = [
    ("raw/a.json", '{"id":"a"}'),
    ("raw/sub/b.json", '{"id":"b"}'),
    ("raw//c.json", '{"id":"c"}'),
    ("raw/full/", '{"id":"d"}'),
    ("raw/./e.json", '{"id":"e"}'),
    ("raw/../f.json", '{"id":"f"}'),
    ("raw/tab\tg.json", '{"id":"g"}'),
    ("raw/del\x7f", '{"id":"h"}'),
    ("raw/plus+percent%2F é", '{"id":"i"}'),
    ("raw/<&>\"'", '{"id":"j"}'),
]


def boto_client(endpoint: str) -> Any:
    return botocore.session.Session().create_client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION
    )


def sizes_of(store: Store, prefix: str = "") -> dict[str, int]:
    pages = list(store.list(prefix))
    keys = [key for page in pages for key in page.keys.to_pylist()]
    assert len(keys) == len(set(keys))
    return dict(zip(keys, (size for page in pages for size in page.sizes.tolist()), strict=True))


def items_of(store: Store, prefix: str = "") -> list[Item]:
    return [
        Item(key, size, etag)
        for page in store.list(prefix)
        for key, size, etag in zip(page.keys.to_pylist(), page.sizes.tolist(), page.etags.to_pylist(), strict=True)
    ]


def put_many(store: Store, count: int, folders: int = 25) -> dict[str, bytes]:
    bodies = {f"{number % folders:02}/{number:05}.json": b'{"n":%d}' % number for number in range(count)}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(store.put, bodies, bodies.values()))
    return bodies


# C14: markers, empty path parts, keys that clients fold


@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_odd_keys_are_listed_as_they_are_and_read(
    moto_server: Moto, monkeypatch: pytest.MonkeyPatch, prefix: str, kind: str
):
    set_environment(monkeypatch, moto_server.endpoint)
    client = boto_client(moto_server.endpoint)
    client.create_bucket(Bucket=prefix)
    for key, body in [*MARKERS, *WITH_CONTENT, ("rawdata/x.json", "{}")]:
        client.put_object(Bucket=prefix, Key=key, Body=body.encode())
    store = open_store(f"s3://{prefix}", kind=kind)
    assert sizes_of(store, "raw/") == {key: len(body) for key, body in [*MARKERS, *WITH_CONTENT]}
    assert "rawdata/x.json" in sizes_of(store, "raw")
    for item, value in fetch(store, items_of(store, "raw/")):
        assert value == dict([*MARKERS, *WITH_CONTENT])[item.key].encode()
    for key, body in WITH_CONTENT:
        size, etag = store.head(key)
        assert size == len(body)
        assert store.get_range(key, 2, 4, etag=etag, size_bytes=size) == body.encode()[2:4]
        with pytest.raises(Changed, match="changed after it was listed"):
            store.get(key, etag='"0123"')
    below = open_store(f"s3://{prefix}/raw", kind=kind)
    assert sizes_of(below)["/c.json"] == len('{"id":"c"}')
    assert below.get("/c.json") == b'{"id":"c"}'
    assert below.get("full/") == b'{"id":"d"}'
    store.delete([key for key, _ in [*MARKERS, *WITH_CONTENT]])
    assert sizes_of(store) == {"rawdata/x.json": 2}


def test_odd_keys_are_written_and_created_once(moto_server: Moto, monkeypatch: pytest.MonkeyPatch, prefix: str):
    set_environment(monkeypatch, moto_server.endpoint)
    boto_client(moto_server.endpoint).create_bucket(Bucket=prefix)
    store = open_store(f"s3://{prefix}")
    etag = store.put_new("a//b", b"1").etag
    with pytest.raises(Exists):
        store.put_new("a//b", b"2")
    store.put_if_match("a//b", b"3", etag)
    with pytest.raises(Exists):
        store.put_if_match("a//b", b"4", etag)
    assert sizes_of(store) == {"a//b": 1}
    assert store.get("a//b") == b"3"


@settings(deadline=None)
@given(st.text(alphabet="a/.%+ é\\~\t\x7f?#", min_size=1, max_size=8))
def test_a_key_is_odd_if_obstore_would_not_take_it_as_it_is(key: str):
    import obstore
    from obstore.store import MemoryStore

    memory = MemoryStore()
    try:
        obstore.put(memory, key, b"x")
        is_kept = [row["path"] for rows in obstore.list(memory) for row in rows] == [key]
    except (ValueError, obstore.exceptions.BaseError):
        is_kept = False
    assert is_kept or ODD_KEY.search(key)
    assert not (is_kept and ODD_KEY.search(key))


# listing


def test_2500_objects_in_25_folders_take_three_lists(s3_faults: FaultProxy, s3_root: str):
    store = open_store(s3_root)
    bodies = put_many(store, 2500)
    s3_faults.set_rules([])
    assert sizes_of(store) == {key: len(body) for key, body in bodies.items()}
    assert s3_faults.counts()["requests"] == {"LIST": 3}
    assert store.counts()["list"] == 3


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_pieces_of_a_listing_are_complete_on_real_servers(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, prefix: str
):
    endpoint = request.getfixturevalue(server).endpoint
    set_environment(monkeypatch, endpoint)
    boto_client(endpoint).create_bucket(Bucket=prefix)
    store = ObjectStore(f"s3://{prefix}")
    rng = random.Random(5)
    names = {"".join(rng.choice("ab.-0é/") for _ in range(rng.randint(1, 8))) for _ in range(300)}
    keys = {f"p/{name}.json" for name in names if not ODD_KEY.search(f"p/{name}.json")}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.put, sorted(keys), [b"x"] * len(keys)))
    monkeypatch.setattr(s3_listing, "SPLIT_AFTER_PAGES", 2)
    page = store._s3_page
    monkeypatch.setattr(store, "_s3_page", lambda p, max_keys=1000, **more: page(p, max_keys=min(max_keys, 10), **more))
    assert Counter(sizes_of(store, "p/").keys()) == Counter(keys)


# C34: throttling and faults


@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_every_third_request_of_any_verb_is_refused_twice(s3_faults: FaultProxy, s3_root: str, kind: str):
    s3_faults.set_rules([{"kind": "slowdown", "every": 3, "first": 2}])
    count = 2500 if kind == "auto" else 100
    store = ObjectStore(s3_root, policy=QUICK, limit=InFlight(), use_s3fs=kind == "fsspec")
    bodies = put_many(store, count)
    assert {item.key: value for item, value in fetch(store, items_of(store))} == bodies
    store.delete(list(bodies))
    assert sizes_of(store) == {}
    counts = store.counts()
    assert counts["retries"] == counts["throttles"] > count // 2
    assert s3_faults.counts()["faults"]["slowdown"] == counts["throttles"]


def test_one_key_that_always_fails_is_named_and_the_others_come(s3_faults: FaultProxy, s3_root: str):
    store = ObjectStore(s3_root, policy=QUICK, limit=InFlight())
    bodies = put_many(store, 200)
    s3_faults.set_rules([{"kind": "slowdown", "key": "/07/00107.json"}])
    got = {item.key: value for item, value in fetch(store, items_of(store))}
    failed = got.pop("07/00107.json")
    assert isinstance(failed, Unavailable)
    assert f"{s3_root}/07/00107.json after 8 tries" in str(failed)
    assert got == {key: body for key, body in bodies.items() if key != "07/00107.json"}
    assert s3_faults.counts()["faults"]["slowdown"] == 8


def test_never_more_in_flight_than_the_limit(s3_faults: FaultProxy, s3_root: str):
    put_many(open_store(s3_root), 120)
    s3_faults.set_rules([{"kind": "delay", "delay": 0.1}])
    limit = InFlight(start=12, largest=12)
    store = ObjectStore(s3_root, limit=limit)
    assert sum(1 for _ in fetch(store, items_of(store), limit=limit)) == 120
    assert s3_faults.counts()["most_in_flight"] == limit.most == 12


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "reset", "p": 0.2},
        {"kind": "reset_after", "p": 0.2, "share": 0.6},
        {"kind": "truncate", "p": 0.2},
        {"kind": "error", "status": 500, "code": "InternalError", "p": 0.2},
        {"kind": "slowdown", "p": 0.3},
    ],
    ids=lambda rule: rule["kind"],
)
def test_passing_faults_lose_nothing(s3_faults: FaultProxy, s3_root: str, rule: dict[str, Any]):
    store = ObjectStore(s3_root, policy=QUICK, limit=InFlight())
    bodies = put_many(store, 150)
    listed = items_of(store)
    s3_faults.set_rules([rule])
    got = list(fetch(store, listed))
    assert [item for item, _ in got] == listed
    assert {item.key: value for item, value in got} == bodies
    assert s3_faults.counts()["faults"][rule["kind"]] > 5


def test_a_stall_ends_by_the_time_out(s3_faults: FaultProxy, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(obstore_client._TIMEOUTS, "small", {"connect_timeout": "20s", "timeout": "2s"})
    store = ObjectStore(s3_root, policy=QUICK, limit=InFlight())
    store.put("k", b"1")
    s3_faults.set_rules([{"kind": "stall", "delay": 200, "times": 1, "method": "GET"}])
    assert store.get("k") == b"1"
    assert store.counts()["retries"] >= 1


def test_a_large_object_has_more_time_than_a_small_one(
    s3_faults: FaultProxy, s3_root: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(obstore_client._TIMEOUTS, "small", {"timeout": "300ms"})
    store = ObjectStore(s3_root, policy=RetryPolicy(attempts=1))
    body = bytes(9 << 20)
    store.put("large", body)
    s3_faults.set_rules([{"kind": "delay", "delay": 0.6, "method": "GET"}])
    assert store.get("large", size_bytes=len(body)) == body
    with pytest.raises(Unavailable):
        store.get("large", size_bytes=1000)


def test_a_store_that_is_down_stops_the_fetch(s3_faults: FaultProxy, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(obstore_client._TIMEOUTS, "small", {"connect_timeout": "5s", "timeout": "5s"})
    store = ObjectStore(s3_root, policy=RetryPolicy(attempts=1), limit=InFlight())
    put_many(store, 100)
    listed = items_of(store)
    s3_faults.set_rules([{"kind": "reset"}])
    got = []
    with pytest.raises(Unavailable, match=r"is out of reach.*run the same command again"):
        got.extend(fetch(store, listed))
    assert len(got) < 20
    s3_faults.set_rules([{"kind": "reset", "match": ".json"}])
    assert sum(isinstance(value, Unavailable) for _, value in fetch(store, listed)) == 100  # it can be listed
    s3_faults.set_rules([{"kind": "reset"}])
    with pytest.raises(Unavailable, match="out of reach"):
        list(fetch(store, listed[:3]))


# conditional writes whose answer is lost


def test_a_create_whose_answer_is_lost_knows_its_own_object(s3_faults: FaultProxy, s3_root: str):
    store = ObjectStore(s3_root, policy=QUICK)
    s3_faults.set_rules([{"kind": "lost_answer", "method": "PUT", "times": 1}])
    assert store.put_new("m", b"mine").etag == store.head("m")[1]
    s3_faults.set_rules([{"kind": "lost_answer", "method": "PUT", "times": 1}])
    with pytest.raises(Exists):
        store.put_new("m", b"other")
    etag = store.head("m")[1]
    s3_faults.set_rules([{"kind": "lost_answer", "method": "PUT", "times": 1}])
    assert store.put_if_match("m", b"next", etag).etag == store.head("m")[1]
    assert store.get("m") == b"next"


def test_a_conflict_of_two_creates_is_tried_again(s3_faults: FaultProxy, s3_root: str):
    store = ObjectStore(s3_root, policy=QUICK)
    s3_faults.set_rules([{"kind": "error", "status": 409, "code": "ConditionalRequestConflict", "times": 2}])
    store.put_new("m", b"1")
    assert store.get("m") == b"1"


# C36: access options, regions, credentials


@pytest.mark.parametrize("option", [{"request_payer": "requester"}, {"requester_pays": "true"}])
@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_requester_pays_reaches_every_request(s3_faults: FaultProxy, s3_root: str, kind: str, option: dict[str, str]):
    s3_faults.set_rules([{"kind": "require", "header": "x-amz-request-payer"}])
    store = open_store(s3_root, options=option, kind=kind)
    etag = store.put("a", b"12").etag
    store.put_new("b", b"1")
    store.put_if_match("a", b"34", etag)
    store.put("tab\t", b"1")
    assert sizes_of(store) == {"a": 2, "b": 1, "tab\t": 1}
    assert (store.get("a"), store.get_range("a", 0, 1), store.head("a")[0], store.get("tab\t")) == (
        b"34",
        b"3",
        2,
        b"1",
    )
    store.delete(["a", "b", "tab\t"])
    assert s3_faults.counts()["faults"] == {"require": 0}
    assert {"GET", "HEAD", "LIST", "PUT"} <= set(s3_faults.counts()["requests"])


@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_without_the_option_the_error_names_the_key_and_the_way_out(s3_faults: FaultProxy, s3_root: str, kind: str):
    store = open_store(s3_root, kind=kind)
    store.put("first.json", b"1")
    s3_faults.set_rules([{"kind": "require", "header": "x-amz-request-payer"}])
    for call in (
        lambda: store.get("first.json"),
        lambda: store.put("first.json", b"1"),
        lambda: store.head("first.json"),
    ):
        with pytest.raises(Denied, match=r"first\.json.*--storage-option request_payer=requester"):
            call()
    with pytest.raises(Denied, match=r"cannot list s3://.*--storage-option request_payer=requester"):
        list(store.list())


@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_a_bucket_in_another_region_is_followed_once(s3_faults: FaultProxy, s3_root: str, kind: str):
    open_store(s3_root).put("k", b"1")
    s3_faults.set_rules([{"kind": "redirect", "region": "eu-west-1"}])
    store = open_store(s3_root, kind=kind)
    assert store.get("k") == b"1"
    assert sizes_of(store) == {"k": 1}
    assert store.put_new("m", b"1").size_bytes == 1
    assert s3_faults.counts()["faults"]["redirect"] <= 2  # once for each client that we use
    listing_first = open_store(s3_root, kind=kind)
    assert sizes_of(listing_first) == {"k": 1, "m": 1}
    assert listing_first.get("k") == b"1"


def test_a_region_that_does_not_help_is_named(s3_faults: FaultProxy, s3_root: str):
    s3_faults.set_rules([{"kind": "error", "status": 301, "code": "PermanentRedirect", "region": "ap-south-1"}])
    with pytest.raises(StoreError, match=rf"bucket {BUCKET} is not in the region.*ap-south-1"):
        open_store(s3_root).get("k")


def test_expired_credentials_are_looked_up_anew(s3_faults: FaultProxy, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    store = open_store(s3_root)
    store.put("k", b"1")
    s3_faults.set_rules([{"kind": "expired", "times": 1}])
    assert store.get("k") == b"1"
    s3_faults.set_rules([{"kind": "expired"}])
    with pytest.raises(Denied, match="expired"):
        store.get("k")
    assert s3_faults.counts()["requests"]["GET"] == 2


def test_rotated_credentials_in_a_file_are_found(
    s3_server: SeaweedFS, s3_root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    set_environment(monkeypatch, s3_server.endpoint)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    profile.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = old\n")
    store = open_store(s3_root)
    profile.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    assert store.put("k", b"1").size_bytes == 1
    profile.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = old\n")
    store.close()
    with pytest.raises(Denied, match="InvalidAccessKeyId"):
        store.get("k")


def test_no_credentials_at_all(s3_server: SeaweedFS, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    set_environment(monkeypatch, s3_server.endpoint)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Denied, match=r"no credentials found.*anon=true"):
        open_store(s3_root).get("k")
    with pytest.raises(Denied, match="access is denied"):
        open_store(s3_root, options={"anon": "true"}).get("k")


def test_options_win_over_the_environment(s3_server: SeaweedFS, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    set_environment(monkeypatch, "http://127.0.0.1:9")
    for kind in ("auto", "fsspec"):
        store = open_store(s3_root, options={"endpoint_url": s3_server.endpoint, "region": "eu-north-1"}, kind=kind)
        assert store.put("k", b"1").size_bytes == 1
        assert sizes_of(store) == {"k": 1}


def test_a_missing_bucket_is_named(s3_env: SeaweedFS):
    with pytest.raises(NotFound, match=r"s3://no-such-bucket/.*no such bucket"):
        list(open_store("s3://no-such-bucket").list())


def test_large_bodies_and_a_store_after_a_fork(s3_env: SeaweedFS, s3_root: str):
    store = open_store(s3_root)
    body = random.Random(1).randbytes(20 << 20)
    result = store.put("large", body)
    assert store.get("large", etag=result.etag, size_bytes=len(body)) == body
    assert store.get_range("large", 5_000_000, 15_000_000, etag=result.etag) == body[5_000_000:15_000_000]
    store._pid += 1  # what a forked child sees: another process id
    with pytest.raises(StoreError, match="opened in another process"):
        store.get("large")


def test_messages_hold_no_secret_and_no_debug_output(s3_faults: FaultProxy, s3_root: str):
    store = ObjectStore(s3_root, policy=RetryPolicy(attempts=1))
    for rule in (
        {"kind": "slowdown"},
        {"kind": "reset"},
        {"kind": "expired"},
        {"kind": "error", "status": 400, "code": "X"},
    ):
        s3_faults.set_rules([rule])
        for call in (lambda: store.get("k"), lambda: list(store.list()), lambda: store.put("k", b"")):
            with pytest.raises(StoreError) as caught:
                call()
            message = json.dumps(str(caught.value))
            assert SECRET_KEY not in message
            assert "Debug" not in message
            assert "\\n" not in message


# Google Cloud Storage speaks enough of S3 for moto to play its part in listing and reading


@pytest.fixture
def gs_store(moto_server: Moto, prefix: str) -> Iterator[tuple[ObjectStore, FaultProxy, Any]]:
    client = boto_client(moto_server.endpoint)
    bucket = prefix.replace("-", "")  # obstore writes "-" as "%2D", which moto takes for another name
    client.create_bucket(Bucket=bucket)
    with FaultProxy(moto_server.port) as proxy:
        store = ObjectStore(f"gs://{bucket}/root", {"base_url": proxy.endpoint, "anon": "true"}, policy=QUICK)
        yield store, proxy, client


def test_a_listing_of_gcs_that_breaks_goes_on_after_the_last_key(
    gs_store: tuple[ObjectStore, FaultProxy, Any], prefix: str
):
    store, proxy, client = gs_store
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: client.put_object(Bucket=prefix.replace("-", ""), Key=f"root/m/{n:05}", Body=b"12"),
                range(1100),
            )
        )
    proxy.set_rules([{"kind": "slowdown", "first": 1}])
    assert sizes_of(store, "m/0") == {f"m/{number:05}": 2 for number in range(1100)}
    assert store.counts()["throttles"] == 3  # the first page, the second, and the second by its last key


def test_gcs_reads_and_names_what_it_cannot(gs_store: tuple[ObjectStore, FaultProxy, Any], prefix: str):
    store, _, client = gs_store
    client.put_object(Bucket=prefix.replace("-", ""), Key="root/a", Body=b"123", ACL="public-read")
    [item] = items_of(store)
    assert store.get("a", etag=item.etag, size_bytes=3) == b"123"
    assert store.get_range("a", 1, 9, size_bytes=3) == b"23"
    assert store.head("a") == (3, item.etag)
    with pytest.raises(NotFound, match="/root/none"):
        store.get("none")
    client.put_object(Bucket=prefix.replace("-", ""), Key="root/odd//x", Body=b"1")
    with pytest.raises(StoreError, match=r"odd//x.*--store fsspec"):
        items_of(store)
    with pytest.raises(StoreError, match=r"odd//x.*--store fsspec"):
        store.get("odd//x")


def test_azure_without_an_account_is_a_wrong_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"Account must be specified.*--storage-option"):
        open_store("az://container")
    assert open_store("az://container/x", options={"account_name": "me"}).uri == "az://container/x"
