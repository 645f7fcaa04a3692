"""The whole job on a real S3 server, and through a proxy that makes it misbehave."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from shardprep.cli import main
from shardprep.core.manifest import Manifest
from shardprep.errors import Denied, SourceError, TooManyBad, Unavailable
from shardprep.prep import build as building
from shardprep.storage.objects import ObjectStore
from shardprep.storage.retry import RetryPolicy
from shardprep.storage.store import Store, open_store
from tests.fault_proxy import FaultProxy
from tests.prep.builds import (
    TOKENIZER,
    assert_holds,
    assert_whole,
    build_here,
    command,
    documents,
    rejects_of,
    run,
    write_files,
    write_lines,
)
from tests.servers import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedFS, environment

SMALL, LARGE = documents(80, seed=1), documents(1_300, seed=2, longest=500)
SETTINGS: dict[str, Any] = {"split": "train=0.8,validation=0.2", "shards": 3, "dedup": "exact"}
FLAGS = ("--split", "train=0.8,validation=0.2", "--shards", "3", "--dedup", "exact")
IMPATIENT = RetryPolicy(attempts=6, base_s=0.01, cap_s=0.2, deadline_s=20.0)
Point = Callable[[str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as started:
        yield started


@pytest.fixture(autouse=True)
def point(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Point:
    """Point the environment to the server, or to another endpoint; and retry without patience."""
    monkeypatch.setitem(ObjectStore.__init__.__kwdefaults__, "policy", IMPATIENT)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)

    def to(endpoint: str) -> None:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)

    to(server.endpoint)
    return to


@pytest.fixture
def proxy(server: SeaweedFS, point: Point) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as started:
        point(started.endpoint)
        yield started


@pytest.fixture(scope="module")
def local_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, SMALL)
    write_lines(folder / "large.jsonl", LARGE)
    write_lines(folder / "z.jsonl", [{"id": "again", "text": SMALL[0]["text"]}, "{broken"])
    return folder


@pytest.fixture(scope="module")
def right(local_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """What a build from and to a local disk makes."""
    output = tmp_path_factory.mktemp("right")
    manifest = build_here(local_source, output, **SETTINGS)
    assert_whole(output)
    assert_holds(output, SMALL + LARGE)
    return manifest


def upload(folder: Path, uri: str) -> str:
    store = open_store(uri)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.put(path.name, path.read_bytes()), sorted(folder.iterdir())))
    return uri + "/"


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A prefix of this test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"s3://{BUCKET}/{name}"


@pytest.fixture(scope="module")
def shared_source(server: SeaweedFS, local_source: Path) -> str:
    """The documents in S3, for tests that change none of them."""
    before = dict(os.environ)
    os.environ.update(environment(server.endpoint))
    try:
        return upload(local_source, f"s3://{BUCKET}/shared-source")
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def own_source(local_source: Path, place: str) -> str:
    """The documents in S3, for a test that changes some."""
    return upload(local_source, place + "-in")


def keys(uri: str) -> list[str]:
    return sorted(key for page in open_store(uri).list("") for key in page.keys.to_pylist())


def download(uri: str, folder: Path) -> Path:
    store = open_store(uri)
    for key in keys(uri):
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(store.get(key))
    return folder


def assert_same_rows(manifest: Manifest, right: Manifest) -> None:
    """The plan's name differs, as ETags are no modification times; all bytes of the rows are the same."""
    assert manifest.fingerprint == right.fingerprint
    assert [s.sha256 for s in manifest.shards] == [s.sha256 for s in right.shards]
    assert manifest.ledger.set_aside == right.ledger.set_aside


def test_from_s3_to_s3(
    shared_source: str,
    right: Manifest,
    server: SeaweedFS,
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = build_here(shared_source, place, **SETTINGS)
    assert_same_rows(manifest, right)
    assert not [key for key in keys(place) if "_staging" in key]
    assert_whole(download(place, tmp_path))
    assert_holds(tmp_path, SMALL + LARGE)

    files = pafs.S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=server.endpoint, region="us-east-1"
    )
    read = [
        pq.read_table(f"{place.removeprefix('s3://')}/{s.name}", filesystem=files).num_rows for s in manifest.shards
    ]
    assert read == [shard.rows for shard in manifest.shards]

    assert main(["verify", place]) == 0
    assert main(["inspect", place, "--json", "--html", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["build", shared_source, place, "--tokenizer", str(TOKENIZER), "--id-field", "id", *FLAGS]) == 0
    assert "already built" in capsys.readouterr().out


def test_with_workers_from_s3_to_s3(shared_source: str, right: Manifest, place: str) -> None:
    done = run([*command(shared_source, place, *FLAGS, "--workers", "2"), "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fingerprint"] == right.fingerprint
    assert not [key for key in keys(place) if "_staging" in key]


def test_local_staging_for_an_output_in_s3(shared_source: str, right: Manifest, place: str, tmp_path: Path) -> None:
    manifest = build_here(shared_source, place, staging=str(tmp_path / "staging"), **SETTINGS)
    assert_same_rows(manifest, right)
    assert not list((tmp_path / "staging").rglob("scan-*"))
    assert [key for key in keys(place) if key.endswith(".parquet")] == sorted(s.name for s in manifest.shards)


def test_fsspec_makes_the_same(shared_source: str, right: Manifest, place: str) -> None:
    assert_same_rows(build_here(shared_source, place, store="fsspec", **SETTINGS), right)


FAULTS: dict[str, list[dict[str, Any]]] = {
    "503": [{"kind": "slowdown", "every": 3, "first": 2}],
    "503 to everything, once": [{"kind": "slowdown", "first": 1}],
    "resets": [{"kind": "reset", "every": 4, "first": 2}],
    "resets within bodies": [{"kind": "reset_after", "method": "GET", "every": 4, "first": 2}],
    "truncated bodies": [{"kind": "truncate", "method": "GET", "every": 3, "first": 2}],
    "stalls": [{"kind": "stall", "every": 10, "first": 1, "delay": 0.3}],
    "lost answers to puts": [{"kind": "lost_answer", "method": "PUT", "first": 1}],
    "errors": [{"kind": "error", "status": 500, "code": "InternalError", "every": 3, "first": 2}],
    "credentials expired for a while": [{"kind": "expired", "every": 7, "first": 1}],
}


@pytest.mark.parametrize("name", FAULTS)
def test_passing_faults_lose_nothing(
    name: str, shared_source: str, right: Manifest, place: str, proxy: FaultProxy
) -> None:
    proxy.set_rules(FAULTS[name])
    manifest = build_here(shared_source, place, **SETTINGS)
    counts = proxy.counts()
    assert sum(counts["faults"].values()) > 5, "the faults took place"
    assert_same_rows(manifest, right)
    assert counts["requests"]["GET"] < 4 * (len(SMALL) + 200), "tries are bounded"
    proxy.set_rules([])
    assert main(["verify", place]) == 0


def before_scan(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, tasks: int = 0) -> None:
    """Do something after the listing, once so many tasks have been scanned."""
    real, seen = building.scan, 0

    def scan(call: Any) -> Any:
        nonlocal seen
        if seen == tasks:
            act()
        seen += 1
        return real(call)

    monkeypatch.setattr(building, "scan", scan)


def ranges_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first task be a range of the large object."""
    real = building.plan_scan

    def planned(table: Any, *, seed: int) -> Any:
        for other in range(seed, seed + 100):
            plan = real(table, seed=other)
            if not plan.count[0]:
                return plan
        raise AssertionError

    monkeypatch.setattr(building, "plan_scan", planned)


@pytest.mark.parametrize("same_size", [True, False])
def test_a_small_object_changes_after_the_listing(
    same_size: bool, own_source: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(own_source)
    old = store.get("d00007.json")
    new = old.replace(b"7", b"8") if same_size else old.replace(SMALL[7]["text"].encode(), b"changed")
    assert (len(new) == len(old)) is same_size
    before_scan(monkeypatch, lambda: _put(store, "d00007.json", new))
    manifest = build_here(own_source, place, **SETTINGS)
    assert manifest.ledger.set_aside == {"duplicate_text": 1, "invalid_json": 1, "object_changed": 1}
    assert_whole(download(place, tmp_path))
    assert_holds(tmp_path, SMALL[:7] + SMALL[8:] + LARGE)
    assert [r["key"] for r in rejects_of(tmp_path) if r["reason"] == "object_changed"] == [
        _key(own_source, "d00007.json")
    ]


def _put(store: Store, key: str, data: bytes) -> None:
    store.put(key, data)


def _key(source: str, name: str) -> str:
    """Return the name of an object as users see it: its key in the bucket."""
    return source.removeprefix(f"s3://{BUCKET}/") + name


@pytest.mark.parametrize("what", ["changes", "is deleted", "cannot be read"])
def test_a_large_object_between_two_of_its_ranges(
    what: str, own_source: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy
) -> None:
    """Rows that were staged already are dropped: two versions are never mixed, and the object is set aside once."""
    store = open_store(own_source)
    act: dict[str, tuple[str, Callable[[], Any]]] = {
        "changes": (
            "object_changed",
            lambda: store.put("large.jsonl", store.get("large.jsonl").replace(b"the", b"THE")),
        ),
        "is deleted": ("missing_object", lambda: store.delete(["large.jsonl"])),
        "cannot be read": ("unreadable_object", lambda: proxy.set_rules([{"kind": "reset", "key": "large.jsonl"}])),
    }
    ranges_first(monkeypatch)
    before_scan(monkeypatch, act[what][1], tasks=1)
    manifest = build_here(own_source, place, **SETTINGS)
    proxy.set_rules([])
    assert manifest.ledger.set_aside == {"duplicate_text": 1, "invalid_json": 1, act[what][0]: 1}
    assert_whole(download(place, tmp_path))
    assert_holds(tmp_path, SMALL)
    assert manifest.ledger.found == len(SMALL) + 2 + 1


def test_an_object_is_deleted_after_the_listing(
    own_source: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_scan(monkeypatch, lambda: open_store(own_source).delete(["d00003.json"]))
    manifest = build_here(own_source, place, **SETTINGS)
    assert manifest.ledger.set_aside == {"duplicate_text": 1, "invalid_json": 1, "missing_object": 1}
    assert_whole(download(place, tmp_path))
    assert [r["key"] for r in rejects_of(tmp_path) if r["reason"] == "missing_object"] == [
        _key(own_source, "d00003.json")
    ]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"kind": "slowdown"}, "unreadable_object"),
        ({"kind": "truncate"}, "unreadable_object"),
        ({"kind": "error", "status": 403, "code": "AccessDenied"}, "access_denied"),
    ],
)
def test_one_key_always_fails(
    rule: dict[str, Any], reason: str, shared_source: str, place: str, tmp_path: Path, proxy: FaultProxy
) -> None:
    proxy.set_rules([{**rule, "method": "GET", "key": "d00011.json"}])
    manifest = build_here(shared_source, place, **SETTINGS)
    tries = sum(path.split("?")[0].endswith("d00011.json") for _, path in proxy.log())
    assert tries <= IMPATIENT.attempts
    assert manifest.ledger.set_aside == {"duplicate_text": 1, "invalid_json": 1, reason: 1}
    assert_whole(download(place, tmp_path))
    assert_holds(tmp_path, SMALL[:11] + SMALL[12:] + LARGE)

    with pytest.raises(SourceError, match=r"d00011\.json: " + reason) as caught:
        build_here(f"{shared_source}d0001*.json", place + "-strict", on_bad="fail")
    assert caught.value.exit_code == 1
    assert "manifest.json" not in keys(place + "-strict")


def test_what_could_not_be_read_is_tried_again(
    shared_source: str, right: Manifest, place: str, proxy: FaultProxy
) -> None:
    """A run that set an object aside for storage reasons, and then failed, does not decide for the next one."""
    proxy.set_rules([{"kind": "error", "status": 403, "code": "AccessDenied", "method": "GET", "key": name}
                     for name in ("d00011.json", "large.jsonl")])  # fmt: skip
    with pytest.raises(TooManyBad, match="2 access_denied"):
        build_here(shared_source, place, max_bad="2", **SETTINGS)
    proxy.set_rules([])
    assert_same_rows(build_here(shared_source, place, max_bad="2", **SETTINGS), right)


@pytest.mark.parametrize("when", ["listing", "scan", "write", "publish"])
def test_the_whole_store_is_down(
    when: str, shared_source: str, right: Manifest, place: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1 and a clear message; nobody is set aside for it; the same command continues."""

    def down(*_: Any) -> None:
        proxy.set_rules([{"kind": "reset"}])

    name = {"listing": "list_source", "scan": "scan", "write": "write_shard", "publish": "_publish"}[when]
    real, seen = getattr(building, name), 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == (1 if when in ("listing", "publish") else 2):
            down()
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(building, name, failing)
        with pytest.raises(Unavailable) as caught:
            build_here(shared_source, place, **SETTINGS)
    assert caught.value.exit_code == 1
    assert f"s3://{BUCKET}/" in caught.value.message
    proxy.set_rules([])
    assert "manifest.json" not in keys(place)
    staged = len([key for key in keys(place) if key.rpartition("/")[2].startswith("scan-") and key.endswith(".json")])
    manifest = build_here(shared_source, place, **SETTINGS)
    assert_same_rows(manifest, right)
    puts = [path for verb, path in proxy.log() if verb == "PUT" and "scan-" in path and path.endswith(".arrow")]
    assert staged or when in ("listing", "scan")
    assert all("scan-" in path for path in puts)
    if when in ("write", "publish"):
        assert not puts, "what was staged is not staged again"


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_credentials_that_end_in_the_middle_set_nobody_aside(
    code: str, shared_source: str, right: Manifest, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The output is a local disk, which goes on taking files: what could not be read must not be left out for it."""
    rule = {"kind": "error", "status": 403, "code": code, "method": "GET"}
    for names in (["d0002"], ["large.jsonl"], ["/d00", ".jsonl"]):
        proxy.set_rules([{**rule, "match": name} for name in names])
        with pytest.raises(Denied, match=code) as caught:
            build_here(shared_source, tmp_path, **SETTINGS)
        assert caught.value.exit_code == 1
        assert not (tmp_path / "manifest.json").exists()
    proxy.set_rules([])
    assert_same_rows(build_here(shared_source, tmp_path, **SETTINGS), right)


@pytest.mark.parametrize("alone", [True, False])
def test_an_object_that_may_not_be_read_while_others_may(
    alone: bool, shared_source: str, place: str, proxy: FaultProxy
) -> None:
    """Also where it is the only one of its task, or the only one of the source."""
    proxy.set_rules([{"kind": "error", "status": 403, "code": "AccessDenied", "method": "GET", "key": "d00011.json"}])
    if alone:
        with pytest.raises(SourceError, match=r"none of the 1 documents .*access_denied.*request_payer"):
            build_here(f"{shared_source}d00011*.json", place)
    else:
        manifest = build_here(f"{shared_source}d0001*.json", place)
        assert manifest.ledger.set_aside == {"access_denied": 1}
    proxy.set_rules([])


def test_requester_pays_reaches_every_call(
    shared_source: str, right: Manifest, place: str, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"kind": "require", "header": "x-amz-request-payer", "value": "requester"}
    proxy.set_rules([rule])
    flags = ["--scheduler", "serial", *FLAGS]
    asked = command(shared_source, place, *flags)[3:]
    assert main(asked) == 1
    said = capsys.readouterr().err
    assert "request_payer=requester" in said
    assert proxy.counts()["faults"]["require"] > 0
    proxy.set_rules([rule])
    assert main([*asked, "--storage-option", "request_payer=requester"]) == 0
    assert main(["verify", place, "--storage-option", "request_payer=requester"]) == 0
    assert proxy.counts()["faults"]["require"] == 0
    capsys.readouterr()
    assert right.fingerprint
