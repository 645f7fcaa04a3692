"""MountedStore: one folder whose files lie on several hosts, each with all of them or a part, read as one.

SageMaker copies an input to a folder of each host: every object to every host (FullyReplicated), or each object to one of
them (ShardedByS3Key). `mounted://NAME` is the union of those folders. What is in it stands in an index, one Arrow file a
host that all its processes map: NAME.arrow in the folder $SHARDPREP_MOUNTS. A file that this host has is read from its
disk, any other one from the file server of a host that has it (mounted_server.py). It is read-only.

The ETag of a file is a digest of its bytes: modification times are those of the copy, and differ from host to host and
from job to job. So the plan of a build is the same on any number of hosts, and after a rerun.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.errors import Changed, ConfigError, NotFound, StoreError
from shardprep.storage.counters import Counters
from shardprep.storage.explain import explained
from shardprep.storage.faults import Fault
from shardprep.storage.inflight import in_flight
from shardprep.storage.local import LocalStore
from shardprep.storage.retry import POLICY, RetryPolicy, retry
from shardprep.storage.store import Listing, PutResult

SCHEME = "mounted"
VARIABLE = "SHARDPREP_MOUNTS"  # folder of the indexes, set for the processes of a job by the one that starts them
DETAILS = b"shardprep"  # key of the schema's metadata
PAGE_KEYS = 10_000
REQUESTS = 16
ANSWER_S = 60.0
SCHEMA = pa.schema([("key", pa.large_string()), ("size", pa.int64()), ("etag", pa.string()), ("owner", pa.int16())])
T = TypeVar("T")


def digest_of(data: bytes) -> str:
    """Return the ETag of a file with these bytes: 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Mount:
    """How one host sees a mount: its own folder, and the addresses (host:port) of the file servers, by owner's number."""

    folder: str
    servers: tuple[str, ...]


def write_index(path: str, table: pa.Table, mount: Mount) -> None:
    """Write an index: columns of SCHEMA, and `here`, bool: whether this host has the file. Sorted by key."""
    details = orjson.dumps({"folder": mount.folder, "servers": list(mount.servers)})
    table = table.replace_schema_metadata({DETAILS: details}).combine_chunks()
    with pa.OSFile(path + ".part", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    os.replace(path + ".part", path)


class MountedStore:
    """The files of one mount. Raises ConfigError where this process has no index of it."""

    requests_in_flight = REQUESTS

    def __init__(self, uri: str, *, policy: RetryPolicy = POLICY) -> None:
        self.uri = uri.rstrip("/")
        name, folder = self.uri.removeprefix(f"{SCHEME}://"), os.environ.get(VARIABLE)
        path = os.path.join(folder or "", f"{name}.arrow")
        if not folder or not os.path.isfile(path):
            raise ConfigError(
                f"{self.uri} is a folder on the hosts of a SageMaker Processing job, and this process is not part of one: "
                "give the folder's own path, or an s3:// URI",
                uri=self.uri,
            )
        self._map = pa.memory_map(path)
        self._table = pa.ipc.open_file(self._map).read_all().combine_chunks()
        details = orjson.loads(self._table.schema.metadata[DETAILS])
        self._local = LocalStore(details["folder"])
        self._servers: list[str] = details["servers"]
        self._keys: Any = self._table["key"].chunk(0) if len(self._table) else self._table["key"]
        self._policy = policy
        self._counters = Counters()
        self._lock = threading.Lock()
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}

    def list(self, prefix: str = "", *, on_progress: Callable[[int], None] | None = None) -> Iterator[Listing]:
        """Yield every file whose key starts with prefix, in order."""
        start = self._place(prefix)
        while start < len(self._table):
            page = self._table.slice(start, PAGE_KEYS)
            page = page.filter(pc.starts_with(page["key"], prefix))
            if not len(page):
                return
            start += len(page)
            if on_progress is not None:
                on_progress(start)
            keys, etags = (page[name].combine_chunks().cast(pa.string()) for name in ("key", "etag"))
            yield Listing(keys, page["size"].to_numpy(), etags)

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return a whole file; raise Changed if it is not the one with this digest or size."""
        place = self._found(key)
        size, digest = self._is(key, place, etag, size_bytes)
        is_here = self._table["here"][place].as_py()
        data = self._local.get(key, size_bytes=size) if is_here else self._remote(key, place, 0, size)
        if digest and digest_of(data) != digest:
            raise self._changed(key, "other bytes")
        return data

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive; cut at the file's end)."""
        place = self._found(key)
        size, _ = self._is(key, place, etag, size_bytes)
        stop = min(stop, size)
        if self._table["here"][place].as_py():
            return self._local.get_range(key, start, stop, size_bytes=size)
        return self._remote(key, place, start, stop)

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and digest of one file."""
        place = self._found(key)
        return self._table["size"][place].as_py(), self._table["etag"][place].as_py()

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> PutResult:
        """Raise StoreError: the store is read-only."""
        del data, durable
        self._refuse(key)

    def put_file(self, key: str, path: str) -> PutResult:
        """Raise StoreError: the store is read-only."""
        del path
        self._refuse(key)

    def check_publishable(self, *, replacing: bool) -> None:
        """Raise StoreError: the store is read-only."""
        del replacing
        self._refuse("")

    def put_new(self, key: str, data: bytes) -> PutResult:
        """Raise StoreError: the store is read-only."""
        del data
        self._refuse(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> PutResult:
        """Raise StoreError: the store is read-only."""
        del data, etag
        self._refuse(key)

    def delete(self, keys: Sequence[str]) -> None:
        """Raise StoreError: the store is read-only."""
        self._refuse(keys[0] if keys else "")

    def local_path(self, key: str) -> None:  # noqa: ARG002
        """Return None: another process of the job may not have the file."""
        return

    def counts(self) -> dict[str, int]:
        """Return what was asked of other hosts: get, retries, bytes_read."""
        return self._counters.snapshot()

    def close(self) -> None:
        """Close the connections to other hosts, and the index."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _refuse(self, key: str) -> NoReturn:
        raise StoreError(f"{self.uri}/{key} is an input of the job, and inputs are read-only", uri=f"{self.uri}/{key}")

    def _place(self, key: str) -> int:
        return bisect_left(range(len(self._table)), key, key=lambda row: self._keys[row].as_py())

    def _found(self, key: str) -> int:
        place = self._place(key)
        if place == len(self._table) or self._keys[place].as_py() != key:
            raise NotFound(f"{self.uri}/{key} is on no host of the job", uri=f"{self.uri}/{key}")
        return place

    def _is(self, key: str, place: int, etag: str, size_bytes: int | None) -> tuple[int, str]:
        size, digest = self._table["size"][place].as_py(), self._table["etag"][place].as_py()
        if (etag and etag != digest) or (size_bytes is not None and size_bytes != size):
            raise self._changed(key, f"{size} bytes and the digest {digest}")
        return size, digest

    def _changed(self, key: str, what: str) -> Changed:
        uri = f"{self.uri}/{key}"
        return Changed(f"{uri} changed after it was listed: it has {what}. Run again: it is listed anew.", uri=uri)

    def _remote(self, key: str, place: int, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        owner = self._servers[self._table["owner"][place].as_py()]

        def explain(error: Exception, fault: Fault, attempts: int) -> StoreError:
            doing = f"read (from the host at {owner.rpartition(':')[0]}, whose part of the input is gone with it)"
            return explained(error, fault, uri=f"{self.uri}/{key}", doing=doing, attempts=attempts)

        def call() -> bytes:
            self._counters.add("get")
            return self._ask(owner, key, start, stop)

        data = retry(
            call, self._policy, explain=explain, limit=in_flight(), size_bytes=stop - start, counters=self._counters
        )
        self._counters.add("bytes_read", len(data))
        return data

    def _ask(self, owner: str, key: str, start: int, stop: int) -> bytes:
        with self._lock:
            idle = self._idle.setdefault(owner, [])
            connection = idle.pop() if idle else None
        if connection is None:
            host, _, port = owner.rpartition(":")
            connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_S)
        try:
            connection.request("GET", f"/files/{quote(key, safe='')}", headers={"Range": f"bytes={start}-{stop - 1}"})
            answer = connection.getresponse()
            data = answer.read()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        with self._lock:
            idle.append(connection)
        if answer.status in (404, 410):
            raise FileNotFoundError(f"{owner} has no {key}")
        if answer.status not in (200, 206) or len(data) != stop - start:
            raise ConnectionError(f"{owner} answered {answer.status} with {len(data)} of {stop - start} bytes")
        return data
