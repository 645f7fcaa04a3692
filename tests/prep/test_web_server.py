"""A source on a plain web server: no sizes in its listing, versions or none, and servers that are down."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import SourceError, Unavailable
from shardprep.prep.sources import list_source
from shardprep.prep.tags import without_version
from shardprep.storage.fsspec_store import FsspecStore
from shardprep.storage.retry import RetryPolicy
from tests.prep.builds import assert_holds, assert_whole, build_here, documents, manifest_of, write_files, write_lines
from tests.servers import free_port

DOCUMENTS = documents(12, seed=5)
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a folder; without versions the answers say nothing of when a file was changed."""
    servers: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def start(folder: Path, *, versions: bool = False) -> str:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def send_header(self, keyword: str, value: str) -> None:
                if versions or keyword != "Last-Modified":
                    super().send_header(keyword, value)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, name="serves")
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_folder_without_sizes_and_versions(serve: Serve, tmp_path: Path) -> None:
    write_files(tmp_path / "web" / "raw", DOCUMENTS)
    source, output = serve(tmp_path / "web") + "/raw/", tmp_path / "out"
    manifest = build_here(source, output)
    assert_whole(output)
    assert_holds(output, DOCUMENTS)
    assert "12 of 12 objects have neither an ETag nor a modification time" in manifest.warnings[0]
    names = {shard.name for shard in manifest.shards}

    changed = [{**document, "text": document["text"].swapcase()} for document in DOCUMENTS]
    write_files(tmp_path / "web" / "raw", changed)
    build_here(source, output)
    assert_holds(output, DOCUMENTS)
    build_here(source, output, overwrite=True)
    assert_whole(output)
    assert_holds(output, changed)
    assert names.isdisjoint(shard.name for shard in manifest_of(output).shards)


def test_a_single_object_tells_when_it_was_changed(serve: Serve, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "web" / "all.jsonl", DOCUMENTS)
    source = serve(tmp_path / "web", versions=True) + "/all.jsonl"
    first = build_here(source, tmp_path / "out")
    assert not first.warnings
    path.touch()
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 5))
    assert build_here(source, tmp_path / "other").plan != first.plan


def be_impatient(patch: pytest.MonkeyPatch) -> None:
    defaults = {**FsspecStore.__init__.__kwdefaults__, "policy": RetryPolicy(attempts=2, base_s=0.01)}
    patch.setattr(FsspecStore.__init__, "__kwdefaults__", defaults)


@pytest.mark.parametrize("what", ["raw/", "raw/0.json", "raw/*.json"])
def test_a_server_that_is_down_is_no_empty_folder(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1.*after 2 tries.*[Cc]onnect"):
        list_source(f"http://127.0.0.1:{free_port()}/{what}")


def test_a_list_of_objects_of_a_server_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)
    (tmp_path / "list").write_text(f"http://127.0.0.1:{free_port()}/a.json\n")
    with pytest.raises(Unavailable):
        list_source(None, source_list=str(tmp_path / "list"))


def test_a_folder_that_is_not_there(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no objects"):
        list_source(serve(tmp_path) + "/none/")


def test_an_inventory_without_etags_has_no_versions(tmp_path: Path) -> None:
    data = b'"b","d%C3%A9.json","7"\n"b","e.json","9"\n'
    (tmp_path / "data.csv").write_bytes(data)
    entry = {"key": "data.csv", "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}
    inventory = {"sourceBucket": "b", "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size", "files": [entry]}
    (tmp_path / "manifest.json").write_text(json.dumps(inventory))
    assert without_version(list_source(str(tmp_path / "manifest.json")).table) == 2
