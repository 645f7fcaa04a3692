"""A folder as a store: odd names, links, temporary files, full disks, kills."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import Denied, Exists, Full, NotFound
from shardprep.storage import local
from shardprep.storage.local import LocalStore
from shardprep.storage.local_files import key_of_name


def keys_of(store: LocalStore, prefix: str = "") -> list[str]:
    return sorted(key for page in store.list(prefix) for key in page.keys.to_pylist())


def test_odd_names_are_listed_and_read(tmp_path: Path):
    names = [
        b"\xff.json",
        b"a\\xff.json",
        b"\\x5c",
        b"back\\slash",
        b"tab\t",
        b"line\nfeed",
        "é\u2028".encode(),
        b" ",
        b"\x01",
        b"caf\xe9/\xfe",
    ]
    for name in names:
        path = os.fsencode(tmp_path) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    store = LocalStore(str(tmp_path))
    keys = keys_of(store)
    assert len(set(keys)) == len(names)
    assert sorted(store.get(key) for key in keys) == sorted(names)
    assert "caf\\xe9/\\xfe" in keys
    assert [store.get(key) for key in keys_of(store, "caf\\xe9/")] == [b"caf\xe9/\xfe"]


@given(st.lists(st.binary(min_size=1, max_size=12).filter(lambda n: not {0, 47} & set(n)), max_size=20))
def test_every_name_has_one_key_that_leads_back(names: list[bytes]):
    store = LocalStore("/root")
    keys = [key_of_name(os.fsdecode(name)) for name in names]
    assert len(set(keys)) == len(set(names))
    assert [os.fsencode(store.local_path(key)) for key in keys] == [b"/root/" + name for name in names]
    assert all(key.encode() for key in keys)  # each is valid UTF-8


def test_links_are_followed_once_and_loops_end(tmp_path: Path):
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "o.json").write_text("o")
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "a.json").write_text("a")
    (root / "link.json").symlink_to(root / "real" / "a.json")
    (root / "again").symlink_to(root / "real")
    (root / "real" / "loop").symlink_to(root)
    (root / "out1").symlink_to(outside)
    (root / "out2").symlink_to(outside)
    (root / "gone.json").symlink_to(tmp_path / "nothing")
    (root / "itself").symlink_to("itself")
    store = LocalStore(str(root))
    assert keys_of(store) == ["gone.json", "itself", "link.json", "out1/deep/o.json", "real/a.json"]
    assert store.get("link.json") == b"a"
    with pytest.raises(NotFound, match=r"gone\.json"):
        store.get("gone.json")


def test_pipes_are_no_objects_and_a_missing_folder_is_empty(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert keys_of(LocalStore(str(tmp_path))) == []
    assert keys_of(LocalStore(str(tmp_path / "none"))) == []


def test_a_prefix_enters_only_folders_that_may_match(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    for key in ("a/1", "ab/2", "ab/c/3", "b/4"):
        store.put(key, b"1")
    assert keys_of(store, "ab") == ["ab/2", "ab/c/3"]
    assert keys_of(store, "ab/c/") == ["ab/c/3"]


def test_a_file_that_grows_or_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path))
    store.put("k", b"x" * 100)
    read = os.read

    def grow_then_read(file: int, size: int) -> bytes:
        with open(tmp_path / "k", "ab") as more:
            more.write(b"y")
        return read(file, size)

    monkeypatch.setattr(os, "read", grow_then_read)
    with pytest.raises(local.Changed, match="101 bytes"):
        store.get("k", size_bytes=100)


def test_short_reads_are_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path))
    store.put("k", bytes(range(100)))
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, size: read(file, min(size, 7)))
    assert store.get("k", size_bytes=100) == bytes(range(100))


def test_permissions_name_the_file(tmp_path: Path):
    if os.geteuid() == 0:  # root may do all: what the system would answer is put in its place
        store = LocalStore(str(tmp_path))
        with pytest.raises(Denied, match=r"cannot read .*k: Permission denied.*Check owner"):
            store._raise(PermissionError(errno.EACCES, "Permission denied"), "k", "read")
        return
    (tmp_path / "k").write_text("x")
    (tmp_path / "k").chmod(0)
    with pytest.raises(Denied, match=r"cannot read .*k: Permission denied.*Check owner"):
        LocalStore(str(tmp_path)).get("k")


WRITE = """
import sys, resource
from shardprep.storage.local import LocalStore
from shardprep.storage.local_files import key_of_name
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
store = LocalStore(sys.argv[1])
store.put("small", b"x" * 10_000)
for put in (store.put, store.put_new):
    try:
        put("sub/large", b"x" * 100_000)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("Full no space left for ")
        assert str(tmp_path / "sub" / "large") in line
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["small"]


def test_a_device_without_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(Full, match=r"space.*sub/k"):
        LocalStore(str(tmp_path)).put("sub/k", b"1")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


KILLED = """
import os, sys
from shardprep.storage.local import LocalStore
from shardprep.storage.local_files import key_of_name
real = os.fsync
def stay(file):
    real(file); print("written", flush=True); sys.stdin.read()
os.fsync = stay
LocalStore(sys.argv[1]).put("sub/shard.parquet", b"x" * 100_000)
"""


def test_after_a_kill_the_temporary_file_is_unlisted_and_swept(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.put("sub/shard.parquet", b"old")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        assert len(list((tmp_path / "sub").iterdir())) == 2
        assert keys_of(store) == ["sub/shard.parquet"]
        assert store.sweep() == 0  # its writer lives
        writer.send_signal(signal.SIGKILL)
        writer.wait(300)
    assert keys_of(store) == ["sub/shard.parquet"]
    assert store.sweep("sub/") == 1
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["shard.parquet"]
    assert store.get("sub/shard.parquet") == b"old"


def test_hidden_files_of_others_are_listed(tmp_path: Path):
    for name in (".DS_Store", "._a.json", ".x.tmp", ".a.12.tmp"):
        (tmp_path / name).write_text("x")
    assert keys_of(LocalStore(str(tmp_path))) == sorted((".DS_Store", "._a.json", ".x.tmp", ".a.12.tmp"))


def test_where_links_are_refused_creation_is_still_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(str(tmp_path))
    store.put_new("m", b"1")
    with pytest.raises(Exists, match="m is already there"):
        store.put_new("m", b"2")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_link_whose_answer_was_lost_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    LocalStore(str(tmp_path)).put_new("m", b"1")
    assert (tmp_path / "m").read_bytes() == b"1"


def test_long_names_and_folders_swept_away_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path))
    name = "é" * 120 + ".json"
    store.put(name, b"1")
    assert keys_of(store) == [name]
    makedirs = os.makedirs
    swept = []

    def make_then_sweep(folder: str, exist_ok: bool) -> None:
        makedirs(folder, exist_ok=exist_ok)
        if not swept:
            swept.append(folder)
            os.rmdir(folder)

    monkeypatch.setattr(os, "makedirs", make_then_sweep)
    store.put("new/k", b"1")
    assert swept
    assert store.get("new/k") == b"1"


def test_delete_takes_empty_folders_along(tmp_path: Path):
    store = LocalStore(str(tmp_path / "root"))
    store.put("a/b/c", b"1")
    store.put("a/d", b"1")
    store.delete(["a/b/c"])
    assert sorted(p.name for p in (tmp_path / "root" / "a").iterdir()) == ["d"]
    store.delete(["a/d"])
    assert not (tmp_path / "root" / "a").exists()
    assert tmp_path.exists()
