"""Large files go from disk to a store piece by piece, on every store; and the file they come from leaves nothing behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shardprep.errors import NotFound, StoreError, Unavailable
from shardprep.storage import local, spool
from shardprep.storage.local import LocalStore
from shardprep.storage.retry import RetryPolicy
from shardprep.storage.store import Store, open_store
from tests.fault_proxy import FaultProxy
from tests.servers import SeaweedFS

LARGE = random.Random(1).randbytes(21_000_000)  # three parts, the last one smaller


@pytest.mark.parametrize("size", [0, 1, 8 << 20, (8 << 20) + 1, len(LARGE)])
def test_a_spooled_file_is_put_whole(store: Store, size: int):
    with spool.spool(store, "sub/k.parquet") as file:
        for start in range(0, size, 1_000_001):
            assert file.write(memoryview(LARGE)[start : min(size, start + 1_000_001)]) > 0
        assert store.put_file("sub/k.parquet", file.path).size_bytes == size
    assert store.get("sub/k.parquet", size_bytes=size) == LARGE[:size]
    assert store.head("sub/k.parquet")[0] == size
    assert [key for page in store.list() for key in page.keys.to_pylist()] == ["sub/k.parquet"]


def test_it_replaces_what_is_there(store: Store):
    store.put("k", b"old")
    before = store.head("k")[1]
    with spool.spool(store, "k") as file:
        file.write(b"new one")
        result = store.put_file("k", file.path)
    assert store.get("k") == b"new one"
    assert store.head("k") == (7, result.etag)
    assert result.etag != before


def test_a_plain_file_of_another_place(store: Store, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("elsewhere") / "x"
    path.write_bytes(LARGE[:9_000_000])
    store.put_file("k", str(path))
    assert store.get("k") == LARGE[:9_000_000]


def test_a_file_of_another_disk_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """/dev/shm is another file system on Linux; elsewhere a rename is refused as if it were."""
    store = LocalStore(str(tmp_path / "store"))
    path = tmp_path / "x"
    path.write_bytes(LARGE[:3_000_000])
    real = os.replace

    def replace(source: str, target: str) -> None:
        if source == str(path):
            raise OSError(18, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(local.os, "replace", replace)
    store.put_file("k", str(path))
    assert store.get("k") == LARGE[:3_000_000]
    assert os.listdir(store.uri) == ["k"]


def test_the_file_that_is_not_there(store: Store):
    with pytest.raises((NotFound, FileNotFoundError)):
        store.put_file("k", "/no/such/file")


@pytest.mark.parametrize("kind", ["auto", "fsspec"])
def test_a_part_that_fails_is_tried_again_and_half_an_object_is_never_seen(
    s3_faults: FaultProxy, s3_root: str, kind: str
):
    store = open_store(s3_root, kind=kind)
    s3_faults.set_rules([{"kind": "reset", "method": "PUT", "key": "k.bin", "times": 1}])
    with spool.spool(store, "k.bin") as file:
        file.write(LARGE)
        store.put_file("k.bin", file.path)
    assert store.get("k.bin") == LARGE
    store._policy = RetryPolicy(attempts=2, base_s=0.01)
    s3_faults.set_rules([{"kind": "error", "status": 500, "code": "InternalError", "method": "PUT", "key": "l.bin"}])
    with spool.spool(store, "l.bin") as file:
        file.write(LARGE)
        with pytest.raises(Unavailable):
            store.put_file("l.bin", file.path)
    s3_faults.set_rules([])
    with pytest.raises(NotFound):
        store.get("l.bin")


@pytest.mark.parametrize("where", ["local", "memory"])
def test_nothing_is_left_of_a_file_that_was_not_put(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spool.tempfile, "tempdir", str(tmp_path))
    store = open_store(str(tmp_path) if where == "local" else "memory://nothing-left")
    with suppress(ZeroDivisionError), spool.spool(store, "sub/k") as file:
        file.write(b"some")
        raise ZeroDivisionError
    assert file.write(b"a footer that Arrow writes late") > 0
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []


def test_a_killed_process_leaves_nothing_in_the_folder_for_temporary_files(tmp_path: Path):
    code = (
        "import os\nfrom shardprep.storage.spool import spool\nfrom shardprep.storage.store import open_store\n"
        "with spool(open_store('memory://x'), 'k') as file:\n    file.write(b'x' * 100_000)\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -9
    if sys.platform == "linux":
        assert os.listdir(tmp_path) == []


def test_a_living_spool_is_not_swept_and_not_listed(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    with spool.spool(store, "sub/k") as file:
        file.write(b"x")
        assert LocalStore(str(tmp_path)).sweep() == 0
        assert list(store.list()) == []
        store.put_file("sub/k", file.path)
    assert store.get("sub/k") == b"x"


def test_a_full_disk_is_named_and_later_writes_are_silent(tmp_path: Path):
    code = (
        "import resource, sys\nfrom shardprep.errors import Full\nfrom shardprep.storage.spool import spool\n"
        "from shardprep.storage.store import open_store\nimport signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "with spool(open_store(sys.argv[1]), 'k') as file:\n"
        "    try:\n        file.write(b'x' * 100_000)\n"
        "    except Full as error:\n        print(error.message)\n"
        "    assert file.write(b'later') == 5\n"
    )
    for uri, named in ((str(tmp_path / "out"), str(tmp_path / "out/k")), ("memory://x", "TMPDIR")):
        done = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "no space left" in done.stdout
        assert named in done.stdout
    assert os.listdir(tmp_path / "out") == []


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file/out"), spool.spool(LocalStore(str(tmp_path / "file/out")), "k"):
        pass


def test_the_scratch_folder_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/disk ext4 rw 0 0\n")
    assert spool._is_in_memory("/tmp", str(mounts))
    assert spool._is_in_memory("/tmp/x/y", str(mounts))
    assert not spool._is_in_memory("/tmp/disk/x", str(mounts))
    assert not spool._is_in_memory("/tmpfoo", str(mounts))
    assert not spool._is_in_memory("/tmp", str(tmp_path / "none"))
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(spool, "_is_in_memory", lambda folder: folder != "/var/tmp")
    assert spool.scratch_folder() == "/var/tmp"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spool.tempfile, "tempdir", str(tmp_path))
    assert spool.scratch_folder() == str(tmp_path)


def test_a_put_of_a_large_file_holds_few_parts_of_it(s3_env: SeaweedFS, s3_root: str):
    """Peak memory of a process that puts 120 MB, against one that puts 20 MB."""
    code = (
        "import resource, sys\nfrom shardprep.storage.spool import spool\nfrom shardprep.storage.store import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "with spool(store, 'k') as file:\n"
        "    for _ in range(int(sys.argv[2])):\n        file.write(bytes(1_000_000))\n"
        "    store.put_file('k', file.path)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = []
    for megabytes in ("20", "120"):
        done = subprocess.run(
            [sys.executable, "-c", code, s3_root, megabytes], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 40_000, peaks
