"""s3fs as the client of an S3 bucket, for `--store fsspec`: the same single calls as obstore, at ten times the CPU.

Its defaults are turned off where they cost requests or hide faults: no listings cache (not refreshed, 2 KB a key), one
request an object (with its own concurrency it asks for the size first), a pool as large as our limit, no retries of its
own and none of botocore's (they would multiply with ours). Calls go through `call_s3`, so that keys stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import s3fs
from fsspec.asyn import sync

from shardprep.errors import ConfigError
from shardprep.storage.inflight import LARGEST
from shardprep.storage.obstore_client import FILE_PART_BYTES
from shardprep.storage.s3_access import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, S3Access

OURS = frozenset(
    {"endpoint_url", "endpoint", "region", "request_payer", "requester_pays", "anon", "skip_signature"}
    | {"virtual_hosted_style", "virtual_hosted_style_request"}
)


class S3fsClient:
    """Single calls through s3fs; no retries. The file system is made in the process that uses it."""

    def __init__(self, access: S3Access, options: Mapping[str, str]) -> None:
        self._access = access
        self._options = {name: value for name, value in options.items() if name not in OURS}
        self._lock = threading.Lock()
        self._made: Any = None
        self._fs()

    def reset(self) -> None:
        """Make a new file system from now on: other credentials, or another region."""
        with self._lock:
            self._made = None

    def get(self, key: str, etag: str, byte_range: tuple[int, int] | None, size_bytes: int) -> tuple[bytes, str]:  # noqa: ARG002
        """Return bytes and ETag of an object, or of its bytes start to stop."""
        request: dict[str, Any] = {}
        if etag:
            request["IfMatch"] = etag
        if byte_range is not None:
            request["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"

        async def read(fs: Any) -> tuple[bytes, str]:
            answer = await fs._call_s3("get_object", Bucket=self._access.bucket, Key=key, **request)  # noqa: SLF001
            async with answer["Body"] as body:
                return bytes(await body.read()), str(answer.get("ETag", ""))

        fs = self._fs()
        call: Coroutine[Any, Any, tuple[bytes, str]] = read(fs)
        result: tuple[bytes, str] = sync(fs.loop, lambda: call)
        return result

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""
        answer = self._fs().call_s3("head_object", Bucket=self._access.bucket, Key=key)
        return int(answer["ContentLength"]), str(answer.get("ETag", ""))

    def put(self, key: str, data: bytes | memoryview, *, is_new: bool = False, etag: str = "") -> str:
        """Write an object, only where there is none, or only over the one with this ETag; return the new ETag."""
        request: dict[str, Any] = {"IfNoneMatch": "*"} if is_new else {"IfMatch": etag} if etag else {}
        answer = self._fs().call_s3("put_object", Bucket=self._access.bucket, Key=key, Body=bytes(data), **request)
        return str(answer.get("ETag", ""))

    def put_file(self, key: str, path: str) -> str:
        """Write an object from a file, in parts where it is large; return the new ETag."""
        with open(path, "rb") as file:
            first = file.read(FILE_PART_BYTES + 1)
            if len(first) <= FILE_PART_BYTES:
                return self.put(key, first)
            file.seek(0)
            return self._put_parts(key, iter(partial(file.read, FILE_PART_BYTES), b""))

    def _put_parts(self, key: str, parts: Iterator[bytes]) -> str:
        fs, place = self._fs(), {"Bucket": self._access.bucket, "Key": key}
        upload = fs.call_s3("create_multipart_upload", **place)["UploadId"]
        try:
            done = []
            for number, part in enumerate(parts, 1):
                answer = fs.call_s3("upload_part", **place, UploadId=upload, PartNumber=number, Body=part)
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
            answer = fs.call_s3("complete_multipart_upload", **place, UploadId=upload, MultipartUpload={"Parts": done})
        except BaseException:
            with suppress(Exception):  # what is left of it costs money; the error that matters is the first one
                fs.call_s3("abort_multipart_upload", **place, UploadId=upload)
            raise
        return str(answer.get("ETag", ""))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, up to 1,000 in one request."""
        listed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._fs().call_s3("delete_objects", Bucket=self._access.bucket, Delete=listed)
        for error in answer.get("Errors", []):
            raise OSError(f"{error.get('Key')}: <Code>{error.get('Code')}</Code>")

    def _fs(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        access = self._access
        try:
            fs = s3fs.S3FileSystem(
                anon=access.is_anonymous,
                endpoint_url=access.endpoint or None,
                requester_pays=access.pays,
                client_kwargs={"region_name": access.region},
                config_kwargs={
                    "connect_timeout": CONNECT_TIMEOUT_S,
                    "read_timeout": READ_TIMEOUT_S,
                    "retries": {"total_max_attempts": 1},
                    "max_pool_connections": LARGEST,
                    "s3": {"addressing_style": "virtual" if access.is_by_host else "path"},
                },
                max_concurrency=1,
                use_listings_cache=False,
                skip_instance_cache=True,
                **self._options,
            )
        except TypeError as error:
            raise ConfigError(f"s3fs does not take these storage options: {error}") from error
        fs.retries = 1
        return fs
