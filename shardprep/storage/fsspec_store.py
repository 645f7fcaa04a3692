"""FsspecStore: every URI that fsspec knows and obstore does not (memory://, sftp://, hdfs://, ...).

What such a file system cannot do decides what is promised. There is no If-Match: the number of bytes is compared with the
listing, and where the file system tells a mark of change (an ETag, a check sum, a time) that too, by one request more; where
it tells none, an object replaced by one of the same size is not noticed. A web server's listing tells not even sizes: they
are 0 there, and not compared. `put` writes under the name itself. `put_new` needs the file system's exclusive create; one
without it is refused unless `unsafe_publish` is given, and then a second writer at the same moment is not noticed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from shardprep.errors import Changed, ConfigError, Exists, NotFound, StoreError
from shardprep.storage.counters import Counters
from shardprep.storage.explain import explained
from shardprep.storage.faults import Fault, classify
from shardprep.storage.inflight import InFlight, in_flight
from shardprep.storage.listing import ListingBuilder
from shardprep.storage.retry import POLICY, RetryPolicy, retry
from shardprep.storage.store import NO_OPTIONS, Listing, PutResult

PAGE_KEYS = 10_000
IN_FLIGHT = 16  # most of these file systems hold one connection
MARKS = ("ETag", "etag", "checksum", "md5Hash", "mtime", "modified", "LastModified", "Last-Modified", "created")
EXCLUSIVE = frozenset({"memory", "sftp", "ssh", "dir"})  # their mode "xb" was tried, or is the operating system's
T = TypeVar("T")


class FsspecStore:
    """A folder of an fsspec file system as a store; the file system is made in this process, and never shared."""

    requests_in_flight = IN_FLIGHT

    def __init__(
        self,
        uri: str,
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        unsafe_publish: bool = False,
        limit: InFlight | None = None,
        policy: RetryPolicy = POLICY,
    ) -> None:
        self.uri = uri
        self._scheme = uri.split("://", 1)[0]
        self._fs, path = _file_system(uri, options)
        self._base = path if path.endswith("/") else path + "/"
        self._unsafe_publish = unsafe_publish
        self.limit = limit or in_flight()
        self._policy = policy
        self._pid = os.getpid()
        self._counters = Counters()

    def list(self, prefix: str = "", *, on_progress: Callable[[int], None] | None = None) -> Iterator[Listing]:
        """Yield every file whose key starts with prefix; nothing where there is no such folder."""
        folder = self._base + prefix[: prefix.rfind("/") + 1]
        found = self._call("list", "list", prefix, lambda: self._find(folder.rstrip("/") or "/"))
        page = ListingBuilder(on_progress)
        for name, info in sorted(found.items()):
            path = name if name.startswith(self._base) else "/" + name
            if path.startswith(self._base + prefix):
                page.add(path[len(self._base) :], int(info.get("size") or 0), _mark(info))
                if len(page) >= PAGE_KEYS:
                    yield page.take()
        if len(page):
            yield page.take()

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return a whole file; raise Changed if it has not the size given, or has another mark of change by now."""
        data: bytes = self._call("get", "read", key, lambda: self._fs.cat_file(self._base + key), size_bytes or 0)
        self._counters.add("bytes_read", len(data))
        is_told = size_bytes is not None and (size_bytes > 0 or etag)
        if is_told and len(data) != size_bytes:
            raise self._changed(key, f"{len(data)} bytes, {size_bytes} were listed")
        if etag:  # looked at after reading: who replaced it meanwhile is noticed as well
            found = self.head(key)[1]
            if found and found != etag:
                raise self._changed(key, f"the mark {found}, {etag} was listed")
        return data

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive; cut at the file's end); size and mark of change are compared first."""
        if etag or size_bytes is not None:
            found_size, found = self.head(key)
            if (size_bytes is not None and found_size != size_bytes) or (etag and found and found != etag):
                raise self._changed(key, f"{found_size} bytes and the mark {found}")
        stop = stop if size_bytes is None else min(stop, size_bytes)
        if start >= stop:
            return b""
        path = self._base + key
        data: bytes = self._call(
            "get", "read", key, lambda: self._fs.cat_file(path, start=start, end=stop), stop - start
        )
        self._counters.add("bytes_read", len(data))
        return data

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and mark of change of one file."""
        info = self._call("head", "look at", key, lambda: self._info(self._base + key))
        return int(info.get("size") or 0), _mark(info)

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> PutResult:
        """Write a whole file, replacing what is there."""
        del durable  # what the store has acknowledged is there
        return self._write(key, data, lambda: self._pipe(key, data, "overwrite"))

    def put_file(self, key: str, path: str) -> PutResult:
        """Write a whole file from one on this machine, as the file system does it: piece by piece where it can."""
        target, size_bytes = self._base + key, os.stat(path).st_size

        def put() -> None:
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._fs.put_file(path, target)

        self._call("put", "write", key, put, size_bytes)
        self._counters.add("bytes_written", size_bytes)
        return PutResult(size_bytes, self.head(key)[1])

    def check_publishable(self, *, replacing: bool) -> None:
        """Raise StoreError where `put_new` (or, replacing, `put_if_match`) is going to be refused, before work is done."""
        if not self._unsafe_publish and (replacing or self._scheme not in EXCLUSIVE):
            what = "replace a manifest only if it is unchanged" if replacing else "create exclusively"
            raise StoreError(
                f"{self._scheme}:// cannot {what}, so two jobs could both publish at {self.uri}. Choose another output, or "
                "give --unsafe-publish if no other job writes there.",
                uri=self.uri,
            )

    def put_new(self, key: str, data: bytes) -> PutResult:
        """Write a file only where there is none; StoreError if the file system cannot create exclusively."""
        if self._scheme in EXCLUSIVE:
            return self._write(key, data, lambda: self._pipe(key, data, "create"))
        if not self._unsafe_publish:
            raise StoreError(
                f"{self._scheme}:// cannot create exclusively, so two jobs could both publish {self.uri}/{key}. Choose "
                "another output, or give --unsafe-publish if no other job writes there.",
                uri=f"{self.uri}/{key}",
            )
        if self._call("head", "look at", key, lambda: self._fs.exists(self._base + key)):
            raise Exists(f"{self.uri}/{key} is already there.", uri=f"{self.uri}/{key}")
        return self.put(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> PutResult:
        """Replace the file that has this mark; without `unsafe_publish` StoreError: no file system here can do it."""
        if not self._unsafe_publish:
            raise StoreError(
                f"{self._scheme}:// cannot replace {self.uri}/{key} only if it is unchanged. Choose another output, or "
                "give --unsafe-publish if no other job writes there.",
                uri=f"{self.uri}/{key}",
            )
        found = self.head(key)[1]
        if found != etag:
            raise Exists(f"{self.uri}/{key} was replaced by another writer meanwhile.", uri=f"{self.uri}/{key}")
        return self.put(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files; those that are not there are no error."""
        for key in keys:
            try:
                self._call("delete", "delete", key, lambda path=self._base + key: self._fs.rm_file(path))  # type: ignore[misc]
            except NotFound:
                continue

    def local_path(self, key: str) -> None:  # noqa: ARG002
        """Return None: these are no files of this machine."""
        return

    def counts(self) -> dict[str, int]:
        """Return requests by verb (list, get, head, put, delete), retries, throttles, bytes read and written."""
        return self._counters.snapshot()

    def close(self) -> None:
        """Let go of the file system."""
        self._fs.clear_instance_cache()

    def _find(self, folder: str) -> dict[str, Any]:
        found: dict[str, Any] = self._fs.find(folder, detail=True)
        if not found:  # fsspec leaves out what it cannot list: a server that is down looks like an empty folder
            with suppress(FileNotFoundError, NotADirectoryError):
                self._fs.ls(folder, detail=False)
        return found

    def _info(self, path: str) -> dict[str, Any]:
        try:
            info: dict[str, Any] = self._fs.info(path)
        except FileNotFoundError as error:  # what fsspec's http says of a server that is down as well
            if isinstance(error.__cause__, Exception) and classify(error.__cause__).passes:
                raise error.__cause__ from None
            raise
        return info

    def _pipe(self, key: str, data: bytes | memoryview, mode: str) -> None:
        path = self._base + key
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if mode == "create" and self._scheme != "memory":
            with self._fs.open(path, "xb") as file:
                file.write(data)
        else:
            self._fs.pipe_file(path, bytes(data), mode=mode)

    def _write(self, key: str, data: bytes | memoryview, write: Callable[[], None]) -> PutResult:
        size_bytes = memoryview(data).nbytes
        self._call("put", "write", key, write, size_bytes)
        self._counters.add("bytes_written", size_bytes)
        return PutResult(size_bytes, self.head(key)[1])

    def _changed(self, key: str, difference: str) -> Changed:
        uri = f"{self.uri}/{key}"
        return Changed(
            f"{uri} changed after it was listed: it has {difference}. Run again: it is listed anew.", uri=uri
        )

    def _call(self, verb: str, doing: str, key: str, call: Callable[[], T], size_bytes: int = 0) -> T:
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.uri} was opened in another process. Open it in the process that uses it.", uri=self.uri
            )

        def counted() -> T:
            self._counters.add(verb)
            return call()

        def explain(error: Exception, fault: Fault, attempts: int) -> StoreError:
            return explained(error, fault, uri=f"{self.uri}/{key}", doing=doing, attempts=attempts, pays=True)

        return retry(
            counted, self._policy, explain=explain, limit=self.limit, size_bytes=size_bytes, counters=self._counters
        )


def _file_system(uri: str, options: Mapping[str, str]) -> tuple[Any, str]:
    import fsspec

    scheme = uri.split("://", 1)[0]
    try:
        fs, path = fsspec.core.url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"cannot open {uri} with these storage options: {error}") from error
    except ImportError as error:
        raise ConfigError(f"{scheme}:// needs a package that is not installed: {error}") from error
    return fs, path


def _mark(info: Mapping[str, Any]) -> str:
    value = next((info[name] for name in MARKS if info.get(name)), "")
    if isinstance(value, datetime):  # the memory file system tells a time as a number here, as a date there
        value = value.timestamp()
    return f"{value:.6f}" if isinstance(value, float) else str(value)
