"""ObjectStore: buckets of S3, GCS and Azure, many small objects at little cost.

Reading and writing go through obstore, single synchronous calls in the caller's threads; S3 listings and S3 keys that
obstore would fold or refuse go through botocore (s3_access.py says why). GCS and Azure are listed by obstore: it drops a
"/" at a key's end, so that such an object is found missing, by name, when it is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from obstore.exceptions import InvalidPathError

from shardprep.errors import Changed, Exists, StoreError
from shardprep.storage.counters import Counters
from shardprep.storage.explain import explained
from shardprep.storage.faults import Fault, classify, code_of
from shardprep.storage.inflight import LARGEST, InFlight, in_flight
from shardprep.storage.listing import ListingBuilder
from shardprep.storage.object_client import Client, delete_all
from shardprep.storage.obstore_client import ObstoreClient, other_maker, s3_maker
from shardprep.storage.retry import POLICY, RetryPolicy, retry
from shardprep.storage.s3_access import ODD_KEY, OddKeyClient, S3Access, checked_bucket
from shardprep.storage.s3_listing import Page, list_pages
from shardprep.storage.store import NO_OPTIONS, S3_SCHEMES, Listing, PutResult

ODD_HINT = " obstore does not take such keys: leave them out, or try --store fsspec."
LIST_BYTES = 300_000  # a page of 1,000 keys
T = TypeVar("T")


class ObjectStore:
    """A bucket, or a prefix in one, as a store. `limit` is the one of the process unless given."""

    requests_in_flight = LARGEST

    def __init__(
        self,
        uri: str,
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        limit: InFlight | None = None,
        policy: RetryPolicy = POLICY,
        use_s3fs: bool = False,
    ) -> None:
        scheme, bucket, self._prefix = checked_bucket(uri)
        self.uri = uri
        self._root = f"{scheme}://{bucket}/"
        self.limit = limit or in_flight()
        self._policy = policy
        self._pid = os.getpid()
        self._counters = Counters()
        self._moving = threading.Lock()
        self._plain: Client
        self._odd: Client  # for keys that the plain one would fold or refuse
        self._s3 = S3Access(bucket, options) if scheme in S3_SCHEMES else None
        self._others: ObstoreClient | None = None
        if self._s3 is None:
            self._plain = self._odd = self._others = ObstoreClient(other_maker(f"{scheme}://{bucket}", options))
        elif use_s3fs:
            from shardprep.storage.s3fs_client import S3fsClient

            self._plain = self._odd = S3fsClient(self._s3, options)
        else:
            self._plain, self._odd = ObstoreClient(s3_maker(self._s3, options)), OddKeyClient(self._s3)

    def list(self, prefix: str = "", *, on_progress: Callable[[int], None] | None = None) -> Iterator[Listing]:
        """Yield every object whose key starts with prefix, in any order; large S3 listings 16 requests at a time."""
        full = self._prefix + prefix
        cut = len(self._prefix)
        builder = ListingBuilder(on_progress)
        for page in list_pages(self._s3_page, full) if self._s3 is not None else self._other_pages(full):
            for key, size_bytes, etag in zip(page.keys, page.sizes, page.etags, strict=True):
                builder.add(key[cut:], size_bytes, etag)
            yield builder.take()

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return a whole object; the store itself is asked for the one with this ETag (If-Match)."""
        data, found = self._get(key, etag, None, size_bytes or 0)
        if size_bytes is not None and len(data) != size_bytes:
            raise self._changed(key, f"{len(data)} bytes, {size_bytes} were listed")
        if etag and found and found != etag:  # a store that ignores If-Match
            raise self._changed(key, f"the ETag {found}, {etag} was listed")
        return data

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive; cut at the object's end, which size_bytes tells)."""
        if size_bytes is not None:
            stop = min(stop, size_bytes)
        if start >= stop:
            return b""
        data, found = self._get(key, etag, (start, stop), stop - start)
        if etag and found and found != etag:
            raise self._changed(key, f"the ETag {found}, {etag} was listed")
        if size_bytes is not None and len(data) != stop - start:
            raise self._changed(key, f"{len(data)} bytes from {start} to {stop}")
        return data

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag of one object."""
        full = self._prefix + key
        return self._call("head", "look at", full, lambda: self._client(full).head(full))

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> PutResult:
        """Write a whole object, replacing what is there."""
        del durable  # what the store has acknowledged is there
        full = self._prefix + key
        return self._put(full, data, lambda: self._client(full).put(full, data))

    def put_file(self, key: str, path: str) -> PutResult:
        """Write a whole object from a file, in parts where it is large; it appears when its last part is there."""
        full = self._prefix + key
        size_bytes = os.stat(path).st_size
        return self._counted(full, size_bytes, lambda: self._client(full).put_file(full, path))

    def check_publishable(self, *, replacing: bool) -> None:
        """Do nothing: exclusive creation and conditional replacement are there."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        """Write an object only where there is none (If-None-Match); else raise Exists."""
        full = self._prefix + key
        return self._put(full, data, self._own_or_refused(full, data, is_new=True))

    def put_if_match(self, key: str, data: bytes, etag: str) -> PutResult:
        """Replace the object that has this ETag (If-Match); raise Exists if it has another one by now."""
        full = self._prefix + key
        return self._put(full, data, self._own_or_refused(full, data, etag=etag))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, 1,000 a request; keys that are not there are no error."""
        full = [self._prefix + key for key in keys]
        plain = [key for key in full if not ODD_KEY.search(key)]
        for start in range(0, len(plain), 1000):
            some = plain[start : start + 1000]
            self._call("delete", "delete", some[0], partial(delete_all, self._plain, some))
        for key in full:
            if ODD_KEY.search(key):
                self._call("delete", "delete", key, partial(delete_all, self._odd, [key]))

    def local_path(self, key: str) -> None:  # noqa: ARG002
        """Return None: an object is no file."""
        return

    def counts(self) -> dict[str, int]:
        """Return requests by verb (list, get, head, put, delete), retries, throttles, bytes read and written."""
        return self._counters.snapshot()

    def close(self) -> None:
        """Let go of connections."""
        self._plain.reset()
        if self._s3 is not None:
            self._s3.renew()

    def _client(self, full: str) -> Client:
        return self._odd if ODD_KEY.search(full) else self._plain

    def _get(self, key: str, etag: str, byte_range: tuple[int, int] | None, size_bytes: int) -> tuple[bytes, str]:
        full = self._prefix + key
        client = self._client(full)
        result = self._call("get", "read", full, lambda: client.get(full, etag, byte_range, size_bytes), size_bytes)
        self._counters.add("bytes_read", len(result[0]))
        return result

    def _put(self, full: str, data: bytes | memoryview, put: Callable[[], str]) -> PutResult:
        return self._counted(full, memoryview(data).nbytes, put)

    def _counted(self, full: str, size_bytes: int, put: Callable[[], str]) -> PutResult:
        etag = self._call("put", "write", full, put, size_bytes)
        self._counters.add("bytes_written", size_bytes)
        return PutResult(size_bytes, etag)

    def _own_or_refused(self, full: str, data: bytes, *, is_new: bool = False, etag: str = "") -> Callable[[], str]:
        """Return a conditional put. Tried again after a lost answer, it may be refused because of its own object."""
        tries = 0

        def put() -> str:
            nonlocal tries
            tries += 1
            client = self._client(full)
            try:
                return client.put(full, data, is_new=is_new, etag=etag)
            except Exception as error:
                if classify(error) not in (Fault.EXISTS, Fault.CHANGED):
                    raise
                if tries > 1:
                    found, found_etag = client.get(full, "", None, len(data))
                    if found == data:
                        return found_etag
                why = "an object is there already" if is_new else f"the object has no longer the ETag {etag}"
                raise Exists(f"cannot write {self._root}{full}: {why}.", uri=self._root + full) from error

        return put

    def _s3_page(self, prefix: str, *, after: str = "", token: str | None = None, max_keys: int = 1000) -> Page:
        s3 = self._s3
        assert s3 is not None
        return self._call(
            "list", "list", prefix, lambda: s3.page(prefix, after=after, token=token, max_keys=max_keys), LIST_BYTES
        )

    def _other_pages(self, full: str) -> Iterator[Page]:
        others = self._others
        assert others is not None
        folder = full[: full.rfind("/") + 1]  # obstore lists whole folders only
        after = ""
        stream: Iterator[Page] | None = None

        def next_page() -> Page | None:
            nonlocal stream
            if stream is None:
                stream = others.pages(folder, after)
            try:
                return next(stream, None)
            except Exception:
                stream = (
                    None  # a stream that failed looks as if it were at its end: begin a new one, after the last key
                )
                raise

        while (page := self._call("list", "list", full, next_page, LIST_BYTES)) is not None:
            after = page.keys[-1] if page.keys else after
            yield page.starting_with(full)

    def _call(self, verb: str, doing: str, full: str, call: Callable[[], T], size_bytes: int = 0) -> T:
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.uri} was opened in another process, and its connections do not survive a fork. Open it in the "
                'process that reads, or start processes with "spawn".',
                uri=self.uri,
            )

        def counted() -> T:
            self._counters.add(verb)
            return call()

        def explain(error: Exception, fault: Fault, attempts: int) -> StoreError:
            if fault is Fault.REGION and self._s3 is not None:
                return self._misplaced(self._s3, doing, full, code_of(error))
            pays = self._s3 is None or self._s3.pays
            hint = ODD_HINT if self._others is not None and isinstance(error, (InvalidPathError, ValueError)) else ""
            return explained(error, fault, uri=self._root + full, doing=doing, attempts=attempts, pays=pays, hint=hint)

        def attempt() -> T:
            return retry(
                counted,
                self._policy,
                explain=explain,
                limit=self.limit,
                size_bytes=size_bytes,
                counters=self._counters,
                renew_credentials=self._renew,
            )

        before = self._s3.region if self._s3 is not None else ""
        try:
            return attempt()
        except StoreError as error:
            if not self._moved(before, error.fields.get("region", "")):
                raise
            return attempt()

    def _renew(self) -> None:
        if self._s3 is not None:
            self._s3.renew()
        self._plain.reset()

    def _misplaced(self, s3: S3Access, doing: str, full: str, code: str) -> StoreError:
        region = s3.find_region()
        said = f'the store says it is in "{region}"' if region else "the store does not say where it is"
        return StoreError(
            f"cannot {doing} {self._root}{full}: the bucket {s3.bucket} is not in the region {s3.region} ({code}); {said}. "
            f"Add --storage-option region={region or 'REGION'}.",
            uri=self._root + full,
            region=region,
        )

    def _moved(self, before: str, region: str) -> bool:
        """Use the region that the store told; return whether it is another one than before the failed call."""
        if self._s3 is None or not region:
            return False
        with self._moving:
            if self._s3.region == before and region != before:
                self._s3.move_to(region)
                self._plain.reset()
            return self._s3.region != before

    def _changed(self, key: str, difference: str) -> Changed:
        uri = self._root + self._prefix + key
        return Changed(
            f"{uri} changed after it was listed: it has {difference}. Run again: it is listed anew.", uri=uri
        )
