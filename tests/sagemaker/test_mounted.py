"""One folder on several hosts: the union of what they have, read from the own disk or from the host that has it."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardprep.adapters.sagemaker.mounts import MountPlan, Part, check_same, fetch_table, look, plan_mount
from shardprep.errors import Changed, ConfigError, NotFound, SourceError, StoreError, Unavailable
from shardprep.prep.sources import list_source
from shardprep.storage.mounted import MountedStore
from shardprep.storage.mounted_server import index_folder, union_of
from shardprep.storage.retry import RetryPolicy
from shardprep.storage.store import open_store

URI = "mounted://source"
IMPATIENT = RetryPolicy(attempts=2, base_s=0.01, deadline_s=5.0)
FILES = {
    "a.json": b'{"text": "a"}',
    "deep/b c+%.json": b"bb",
    "deep/ü日🙂.json": b"\x00" * 100_000,
    "empty": b"",
    "z/z.json": b"z",
}


def fill(folder: Path, names: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES[name])
    return folder


@contextlib.contextmanager
def hosts(folder: Path, shares: list[list[str]], monkeypatch: pytest.MonkeyPatch, me: int) -> Iterator[list[Part]]:
    """File servers of several hosts, and this process as one of them."""
    parts = []
    try:
        for number, share in enumerate(shares):
            root = fill(folder / f"host{number}", share)
            parts.append(Part({"folder": str(root), "below": False, "prefix": ""}, "/none", "127.0.0.1"))
        servers = [f"127.0.0.1:{part.server.port}" for part in parts]
        tables = {f"host{n}": fetch_table(server, "index") for n, server in enumerate(servers)}
        parts[me].keep(union_of(tables), servers, str(folder / "mounts"))
        monkeypatch.setenv("SHARDPREP_MOUNTS", str(folder / "mounts"))
        yield parts
    finally:
        for part in parts:
            part.close()


@pytest.mark.parametrize("me", [0, 1, 2])
def test_every_host_reads_every_file(me: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(FILES)
    with hosts(tmp_path, [names[:3], [], names[2:]], monkeypatch, me):
        store = open_store(URI + "/")
        assert isinstance(store, MountedStore)
        listed = {}
        for page in store.list():
            listed |= dict(
                zip(page.keys.to_pylist(), zip(page.sizes.tolist(), page.etags.to_pylist(), strict=True), strict=True)
            )
        assert list(listed) == sorted(FILES)
        for name, data in FILES.items():
            size, etag = listed[name]
            assert (size, etag) == store.head(name)
            assert store.get(name, etag=etag, size_bytes=size) == data
            assert store.get_range(name, 1, 3, etag=etag, size_bytes=size) == data[1:3]
            assert store.get_range(name, 0, 1 << 30) == data
        own = {name for name in FILES if (tmp_path / f"host{me}" / name).exists()}
        assert store.counts().get("bytes_read", 0) > 0 or own == set(FILES)
        assert [page.keys.to_pylist() for page in store.list("deep/")] == [
            sorted(n for n in FILES if n.startswith("deep/"))
        ]
        assert list(store.list("nothing")) == []
        store.close()


def test_the_union_does_not_hang_on_who_has_what(tmp_path: Path) -> None:
    names = list(FILES)
    whole = index_folder(str(fill(tmp_path / "whole", names)))
    parts = {str(n): index_folder(str(fill(tmp_path / str(n), names[n::2]))) for n in range(2)}
    for union in (
        union_of({"a": whole}),
        union_of({"a": whole, "b": whole}),
        union_of(parts | {"c": index_folder(str(tmp_path / "no"))}),
    ):
        assert union.select(["key", "size", "etag"]).equals(whole)
    assert union_of({"a": index_folder(str(tmp_path / "no"))}).num_rows == 0


def test_the_same_digest_whatever_the_times(tmp_path: Path) -> None:
    one, two = (index_folder(str(fill(tmp_path / name, ["a.json"]))) for name in "xy")
    os.utime(tmp_path / "y" / "a.json", (1, 1))
    assert one.equals(two)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    one = index_folder(str(fill(tmp_path / "one", ["a.json", "empty"])))
    fill(tmp_path / "two", ["empty"])
    (tmp_path / "two" / "a.json").write_bytes(b'{"text": "b"}')
    with pytest.raises(
        SourceError, match=r"a\.json is not the same file on all hosts: 13 bytes on algo-1, 13 on algo-2"
    ):
        union_of({"algo-1": one, "algo-2": index_folder(str(tmp_path / "two"))})


def test_sources_of_all_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosts(tmp_path, [["a.json"], ["deep/b c+%.json", "z/z.json"]], monkeypatch, 0):
        for source, keys in (
            (URI + "/", ["a.json", "deep/b c+%.json", "z/z.json"]),
            (URI + "/**/*.json", ["a.json", "deep/b c+%.json", "z/z.json"]),
            (URI + "/z/*", ["z/z.json"]),
            (URI + "/a.json", ["a.json"]),
        ):
            table = list_source(source).table
            assert table.keys.to_pylist() == keys, source
            assert table.labels == ("",)


def test_what_is_not_there_changed_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosts(tmp_path, [["a.json"], ["z/z.json"]], monkeypatch, 0) as parts:
        store = MountedStore(URI, policy=IMPATIENT)
        with pytest.raises(NotFound, match="is on no host of the job"):
            store.get("deep")
        with pytest.raises(Changed, match="changed after it was listed"):
            store.get("a.json", etag="other")
        with pytest.raises(Changed):
            store.get_range("a.json", 0, 1, size_bytes=1)
        (tmp_path / "host0" / "a.json").write_bytes(b'{"text": "A"}')
        with pytest.raises(Changed, match="other bytes"):
            store.get("a.json")
        (tmp_path / "host1" / "z" / "z.json").unlink()
        with pytest.raises(NotFound):
            store.get("z/z.json")
        (tmp_path / "host1" / "z" / "z.json").write_bytes(b"")
        with pytest.raises(Unavailable, match="answered 206 with 0 of 1 bytes"):
            store.get("z/z.json")
        parts[1].close()
        store.close()
        with pytest.raises(
            Unavailable, match=r"from the host at 127\.0\.0\.1, whose part of the input is gone with it"
        ):
            store.get("z/z.json")


def test_inputs_are_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosts(tmp_path, [["a.json"]], monkeypatch, 0):
        store = MountedStore(URI)
        for call in (
            lambda: store.put("a", b""),
            lambda: store.put_new("a", b""),
            lambda: store.put_if_match("a", b"", "x"),
            lambda: store.put_file("a", "/x"),
            lambda: store.delete(["a"]),
            lambda: store.check_publishable(replacing=False),
        ):
            with pytest.raises(StoreError, match="inputs are read-only"):
                call()
        assert store.local_path("a.json") is None


def test_nothing_but_what_was_listed_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("x")
    with hosts(tmp_path, [["a.json"]], monkeypatch, 0) as parts:
        for path in ("/files/..%2Fsecret", "/files/%2Fetc%2Fpasswd", "/../secret", "/", "/union", "/files/"):
            connection = http.client.HTTPConnection("127.0.0.1", parts[0].server.port, timeout=60)
            connection.request("GET", path)
            assert connection.getresponse().status == 404, path
            connection.close()


def test_a_process_outside_a_job_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDPREP_MOUNTS", raising=False)
    with pytest.raises(ConfigError, match="this process is not part of one"):
        open_store(URI)


def test_which_sources_are_mounts(tmp_path: Path) -> None:
    raw = tmp_path / "processing" / "input" / "raw"
    raw.mkdir(parents=True)
    root = str(tmp_path)
    below = "processing/input/raw"
    assert plan_mount("s3://bucket/raw/", root) is None
    assert plan_mount(None, root) is None
    plan = plan_mount(f"{raw}/", root)
    assert plan == MountPlan(below, below=True, prefix="", rest="", given=f"{raw}/")
    assert (plan.uri, plan.shown("no objects in mounted://source/")) == ("mounted://source/", f"no objects in {raw}/")
    plan = plan_mount(f"file://{raw}/2024/*.json", root)
    assert (plan.folder, plan.prefix, plan.rest) == (f"{below}/2024", "", "*.json")
    plan = plan_mount(f"{raw}/part-?.json", root)
    assert (plan.folder, plan.prefix, plan.uri) == (below, "part-", "mounted://source/part-?.json")
    plan = plan_mount(f"{raw}/one.json", root)
    assert (plan.folder, plan.prefix, plan.uri) == (below, "one.json", "mounted://source/one.json")
    assert plan.shown("cannot read mounted://source/one.json") == f"cannot read {raw}/one.json"
    elsewhere = plan_mount("/mnt/fsx/raw/", root)
    assert (elsewhere.folder, elsewhere.below) == ("/mnt/fsx/raw", False) or not Path("/mnt/fsx/raw").exists()


def test_a_shared_folder_is_told_from_one_of_each_host(tmp_path: Path) -> None:
    fill(tmp_path / "one", ["a.json"])
    fill(tmp_path / "two", ["a.json"])
    os.utime(tmp_path / "two" / "a.json", (1, 1))
    mine = look(str(tmp_path / "one"))
    sent = {"entries": [list(entry) for entry in mine["entries"]]}
    check_same("f", mine, {"algo-2": sent})
    with pytest.raises(
        ConfigError, match="f is not the same folder on all hosts: algo-2 sees other files, sizes or times"
    ):
        check_same("f", mine, {"algo-2": look(str(tmp_path / "two"))})
    with pytest.raises(ConfigError, match="algo-2 sees No such file or directory"):
        check_same("f", mine, {"algo-2": look(str(tmp_path / "three"))})
