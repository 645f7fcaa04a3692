"""One host's part of a mount: what lies in its folder, and a server that gives it to the job's other hosts.

    GET /index       what this host has: an Arrow file with key, size, etag
    GET /union       what all have, once the head has put that together
    GET /files/KEY   a file's bytes, or a range of them

Only what the index names is served. A job's hosts reach each other in a network of their own.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.errors import SourceError, StoreError
from shardprep.storage.local import LocalStore
from shardprep.storage.mounted import SCHEMA

HASHING_THREADS = 8
PIECE_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


def index_folder(folder: str, prefix: str = "") -> pa.Table:
    """Return what lies in a folder, sorted: key, size (bytes), etag (digest of the bytes, "" for what cannot be read).

    Nothing where there is no such folder: a host that got no object may not even have it.
    """
    store = LocalStore(folder)
    parts = []
    with ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="shardprep-index") as pool:
        for page in store.list(prefix):
            paths = [store.local_path(key) for key in page.keys.to_pylist()]
            etags = pa.array(list(pool.map(_digest_of_file, paths)), pa.string())
            keys = page.keys.cast(pa.large_string())
            parts.append(pa.table({"key": keys, "size": pa.array(page.sizes, pa.int64()), "etag": etags}))
    schema = pa.schema([SCHEMA.field(name) for name in ("key", "size", "etag")])
    return pa.concat_tables([schema.empty_table(), *parts]).sort_by("key").combine_chunks()


def _digest_of_file(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:  # the build reads it again, and sets it aside by name
        return ""


def union_of(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return what all hosts have together, columns of SCHEMA, sorted; `owner` is a host's place in the mapping.

    Raises SourceError where two hosts have different files under one key.
    """
    names = list(tables)
    parts = [
        table.append_column("owner", pa.array(np.full(len(table), number, np.int16)))
        for number, table in enumerate(tables.values())
    ]
    whole = pa.concat_tables([SCHEMA.empty_table(), *parts])
    whole = whole.sort_by([("key", "ascending"), ("owner", "ascending")]).combine_chunks()
    if len(whole) < 2:
        return whole
    before, after = whole.slice(0, len(whole) - 1), whole.slice(1)
    again = pc.equal(before["key"], after["key"])
    same = pc.and_(pc.equal(before["size"], after["size"]), pc.equal(before["etag"], after["etag"]))
    wrong = pc.index(pc.and_not(again, same), value=True).as_py()
    if wrong >= 0:
        one, two = before.slice(wrong, 1).to_pylist()[0], after.slice(wrong, 1).to_pylist()[0]
        raise SourceError(
            f"{one['key']} is not the same file on all hosts: {one['size']} bytes on {names[one['owner']]}, {two['size']} on "
            f"{names[two['owner']]}, or other bytes. An object that changed while the hosts copied it? Run again, or give "
            "the s3:// URI as the source",
            key=one["key"],
        )
    first = np.concatenate([[True], ~again.to_numpy(zero_copy_only=False)])
    return whole.filter(pa.array(first))


def with_here(union: pa.Table, mine: pa.Table) -> pa.Table:
    """Return the union with a column `here`: whether `mine`, the index of one host, has the file too."""
    return union.append_column("here", pc.is_in(union["key"], value_set=mine["key"].combine_chunks()))


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """Return the table of an Arrow file."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()


class FileServer:
    """Serves one host's part in threads of this process, from `start` to `close`."""

    def __init__(self, folder: str, index: pa.Table, bind: str) -> None:
        self._store = LocalStore(folder)
        self._known = frozenset(index["key"].to_pylist())
        self.answers: dict[str, bytes] = {"/index": to_bytes(index)}
        self._server = ThreadingHTTPServer((bind, 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="shardprep-files", daemon=True)

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def path_of(self, key: str) -> str | None:
        """Return the path of a file that may be served, else None."""
        return self._store.local_path(key) if key in self._known else None


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            with suppress(ConnectionError):  # the one who asked has gone
                self._answer()

        def _answer(self) -> None:
            ready = server.answers.get(self.path)
            if ready is not None:
                self._head(200, len(ready))
                self.wfile.write(ready)
                return
            path = (
                server.path_of(unquote(self.path.removeprefix("/files/"))) if self.path.startswith("/files/") else None
            )
            try:
                file = None if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                file = None
            if file is None:
                self._head(404, 0)
                return
            try:
                self._send(file, os.fstat(file).st_size)
            finally:
                os.close(file)

        def _send(self, file: int, size: int) -> None:
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
            self._head(206 if asked else 200, max(0, stop - start))
            while start < stop and (piece := os.pread(file, min(PIECE_BYTES, stop - start), start)):
                self.wfile.write(piece)
                start += len(piece)
            if start < stop:  # cut off meanwhile: the other side must not wait for the rest
                self.close_connection = True

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing: a line a request helps nobody."""

    return Handler


def check_readable(folder: str) -> None:
    """Raise StoreError where a folder is there and cannot be listed."""
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise StoreError(f"cannot list {folder}: check owner and mode of the folder", uri=folder)
