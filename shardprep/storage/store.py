"""The Store protocol: everything shardprep asks of a disk or an object store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.errors import ConfigError

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
S3_SCHEMES = frozenset({"s3", "s3a"})
OBJECT_SCHEMES = frozenset({"gs", "az", "abfs", "abfss", "adl", "azure"})  # what obstore takes beside S3
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True, eq=False)
class Listing:
    """One page of a listing, columnar: keys string (n,), sizes int64 (n,) in bytes, etags string (n,).

    An ETag is "" where the store has none. For local files it is the modification time in nanoseconds.
    """

    keys: pa.Array
    sizes: NDArray[np.int64]
    etags: pa.Array


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put left behind: size in bytes, and the ETag ("" where the store has none)."""

    size_bytes: int
    etag: str


class Store(Protocol):
    """Objects under one root. Keys are relative to the root, joined to it with nothing added or folded.

    Every method raises StoreError (NotFound, Changed, Exists, Denied, Unavailable, Full), with the object's URI in
    the message, after the retries of retry.py. Stores are thread-safe, made in the process that uses them, and never
    pickled.
    """

    uri: str
    requests_in_flight: int  # how many threads are worth having; 1 for local disks

    def list(self, prefix: str = "", *, on_progress: Callable[[int], None] | None = None) -> Iterator[Listing]:
        """Yield every object whose key starts with prefix, in any order; on_progress gets the number of keys so far."""
        ...

    def get(self, key: str, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return a whole object; raise Changed if it is not the one with this ETag or size."""
        ...

    def get_range(self, key: str, start: int, stop: int, *, etag: str = "", size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive; cut at the object's end); raise Changed as `get` does."""
        ...

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag of one object."""
        ...

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> PutResult:
        """Write a whole object, replacing what is there; readers see the old or the new one, never half.

        Not durable: a local disk may lose it in a power cut; for what can be made again and is checked before use.
        """
        ...

    def put_file(self, key: str, path: str) -> PutResult:
        """Write a whole object, as `put` does, from a file on this machine's disk, which may be moved away by it.

        No more than a few parts of it are in memory at once.
        """
        ...

    def check_publishable(self, *, replacing: bool) -> None:
        """Raise StoreError where `put_new` (or, replacing, `put_if_match`) cannot be had here."""
        ...

    def put_new(self, key: str, data: bytes) -> PutResult:
        """Write an object only where there is none; raise Exists otherwise. Exactly one of many racing calls wins."""
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> PutResult:
        """Replace the object that has this ETag; raise Exists if it has another one by now."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; keys that are not there are no error."""
        ...

    def local_path(self, key: str) -> str | None:
        """Return the path of an object that is a file on this machine, else None."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what this store did so far: requests by verb, retries, throttles, bytes read and written."""
        ...

    def close(self) -> None:
        """Let go of connections; the store is of no use after. For a local folder nothing is to be done."""
        ...


def split_uri(uri: str) -> tuple[str, str]:
    """Return (URI of the root, key) of a URI; nothing is folded, decoded or looked up.

    s3://bucket/a/b       -> ("s3://bucket", "a/b")       any scheme: the root is scheme and host or bucket
    /data/raw/a.json      -> ("/data/raw", "a.json")      local: the root is the folder that holds the last name
    /data/raw/            -> ("/data/raw", "")
    file:///data/raw/a    -> ("/data/raw", "a")
    """
    path = local_path_of(uri)
    if path is None:
        scheme, rest = uri.split("://", 1)
        host, _, key = rest.partition("/")
        return f"{scheme}://{host}", key
    folder, slash, name = path.rpartition("/")
    return folder or slash or ".", name


def local_path_of(uri: str) -> str | None:
    """Return the path that a URI means, if it is a local path or file://..., else None."""
    if uri.startswith("file://"):
        return uri.removeprefix("file://").removeprefix("localhost")
    return None if _SCHEME.match(uri) else uri


def open_store(
    uri: str, *, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto", unsafe_publish: bool = False
) -> Store:
    """Return the store whose root is this URI: a bucket, a prefix in it, or a local folder.

    kind is "auto" (local paths directly, obstore for S3, GCS and Azure, fsspec for the rest) or "fsspec" (fsspec for
    all but local paths). Nothing is asked of the store yet. Raises ConfigError for an unknown kind or scheme, for
    options that do not exist there, and for secrets among the options: workers find credentials by themselves.
    unsafe_publish allows a store without exclusive creation to publish all the same.
    """
    if kind not in ("auto", "fsspec"):
        raise ConfigError(f'the kind of a store is "auto" or "fsspec", got "{kind}"')
    from shardprep.storage import options as settings

    settings.check_no_secrets(uri, options)
    path = local_path_of(uri)
    if path is not None:
        from shardprep.storage.local import LocalStore

        return LocalStore(path)
    scheme = uri.split("://", 1)[0]
    if scheme == "mounted":
        from shardprep.storage.mounted import MountedStore

        return MountedStore(uri)
    # Each client costs some 100 ms to import: only the one that is needed.
    if scheme in S3_SCHEMES or (kind == "auto" and scheme in OBJECT_SCHEMES):
        from shardprep.storage.objects import ObjectStore

        return ObjectStore(uri, options, use_s3fs=kind == "fsspec")
    from shardprep.storage.fsspec_store import FsspecStore

    return FsspecStore(uri, options, unsafe_publish=unsafe_publish)
