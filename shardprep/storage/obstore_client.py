"""obstore with our settings: the fast path to S3, GCS and Azure.

obstore's `timeout` runs from the start of a request to the end of the body, so one client cannot serve both small
objects (a stall must show soon) and large ones (256 MB must not time out on a slow line). There are three clients, made
when first needed: small requests, large reads (each read within 30 s), large writes (1 MB/s at least).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store, from_url

from shardprep.errors import ConfigError
from shardprep.storage.s3_listing import Page

if TYPE_CHECKING:
    from shardprep.storage.s3_access import S3Access

SMALL_BYTES = 8 << 20
LARGE_S = 600  # 1 MB/s for 512 MB and some
SINGLE_PUT_BYTES = 512 << 20  # above it in parts; below in one request, which leaves nothing behind when killed
PART_BYTES = 64 << 20
FILE_PART_BYTES = 8 << 20  # of a file: two of them are in memory, and S3's 10,000 are enough for 80 GB
FILE_PARTS_AT_ONCE = 2
DELETES_AT_ONCE = 1000
_TIMEOUTS = {
    "small": {"connect_timeout": "5s", "timeout": "30s"},
    "read": {"connect_timeout": "5s", "timeout": f"{LARGE_S}s", "read_timeout": "30s"},
    "write": {"connect_timeout": "5s", "timeout": f"{LARGE_S}s"},
}
_OTHER_NAMES = {"anon": "skip_signature", "endpoint_url": "endpoint"}  # our names for what obstore calls otherwise
_RETRIES: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}  # retry.py is the only retry loop


class ObstoreClient:
    """Single calls on plain keys; no retries. `make` returns an obstore store for given client options."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._clients: dict[str, Any] = {}
        self._client("small")  # wrong options show now

    def reset(self) -> None:
        """Make new clients from now on: other credentials, or another region."""
        self._clients = {}

    def get(self, key: str, etag: str, byte_range: tuple[int, int] | None, size_bytes: int) -> tuple[bytes, str]:
        """Return bytes and ETag of an object, or of its bytes start to stop."""
        client = self._client("small" if size_bytes <= SMALL_BYTES else "read")
        options: Any = {}
        if etag:
            options["if_match"] = etag
        if byte_range is not None:
            options["range"] = byte_range
        result = obstore.get(client, key, options=options) if options else obstore.get(client, key)
        return bytes(result.bytes()), result.meta["e_tag"] or ""

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""
        found = obstore.head(self._client("small"), key)
        return found["size"], found["e_tag"] or ""

    def put(self, key: str, data: bytes | memoryview, *, is_new: bool = False, etag: str = "") -> str:
        """Write an object, only where there is none, or only over the one with this ETag; return the new ETag."""
        if isinstance(data, memoryview):
            data = data.cast("B")  # obstore takes no other format, and Arrow's buffers have one
        size_bytes = len(data)
        client = self._client("small" if size_bytes <= SMALL_BYTES else "write")
        mode: Any = "create" if is_new else {"e_tag": etag} if etag else "overwrite"
        result = obstore.put(
            client,
            key,
            data if isinstance(data, bytes) else memoryview(data).cast("B"),  # an Arrow buffer's own view is of int8
            mode=mode,
            use_multipart=size_bytes > SINGLE_PUT_BYTES,
            chunk_size=PART_BYTES,
            max_concurrency=1,
        )
        return result["e_tag"] or ""

    def put_file(self, key: str, path: str) -> str:
        """Write an object from a file, in parts where it is large; return the new ETag."""
        if os.stat(path).st_size <= FILE_PART_BYTES:
            return self.put(key, Path(path).read_bytes())
        result = obstore.put(
            self._client("write"),
            key,
            Path(path),
            use_multipart=True,
            chunk_size=FILE_PART_BYTES,
            max_concurrency=FILE_PARTS_AT_ONCE,
        )
        return result["e_tag"] or ""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, up to 1,000 a request."""
        for start in range(0, len(keys), DELETES_AT_ONCE):
            obstore.delete(self._client("small"), list(keys[start : start + DELETES_AT_ONCE]))

    def pages(self, prefix: str, after: str) -> Iterator[Page]:
        """Yield pages of the keys under a folder ("" or with "/" at its end) after one key. GCS and Azure only."""
        rows: Any
        for rows in obstore.list(self._client("small"), prefix or None, offset=after or None, chunk_size=1000):
            yield Page([r["path"] for r in rows], [r["size"] for r in rows], [r["e_tag"] or "" for r in rows])

    def _client(self, name: str) -> Any:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self._make(_TIMEOUTS[name])
        return client


def s3_maker(access: S3Access, options: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return what makes obstore's S3 stores for this access; other options are passed to obstore as they are."""
    ours = {"endpoint_url", "endpoint", "region", "request_payer", "requester_pays", "anon", "skip_signature"}
    ours |= {"virtual_hosted_style", "virtual_hosted_style_request"}
    passed = {name: value for name, value in options.items() if name not in ours}

    def make(timeouts: Any) -> Any:
        settings: dict[str, Any] = {**passed, "region": access.region}
        settings["virtual_hosted_style_request"] = access.is_by_host
        if access.endpoint:
            settings["endpoint"] = access.endpoint
        if access.pays:
            settings["request_payer"] = True
        if access.is_anonymous:
            settings["skip_signature"] = True
        else:
            settings["credential_provider"] = access.credentials
        client_options: Any = {**timeouts, "allow_http": True}
        return _made(lambda: S3Store(access.bucket, client_options=client_options, retry_config=_RETRIES, **settings))

    return make


def other_maker(root_uri: str, options: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return what makes obstore's GCS and Azure stores; credentials are found by obstore, in the environment."""

    def make(timeouts: Any) -> Any:
        settings: dict[str, Any] = {_OTHER_NAMES.get(name, name): value for name, value in options.items()}
        settings["client_options"] = {**timeouts, "allow_http": True}
        return _made(lambda: from_url(root_uri, retry_config=_RETRIES, **settings))

    return make


def _made(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{str(error).splitlines()[0].rstrip('.')}. Look at --storage-option.") from error
