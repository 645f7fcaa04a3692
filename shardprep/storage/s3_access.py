"""S3 as botocore knows it: credentials, region, endpoint, and the requests that obstore cannot make.

Credentials come from where AWS tools look (environment, profile, SSO, role, container, instance), in each process anew,
and are renewed before they end. obstore asks `credentials` for them.

obstore folds or refuses some keys ("a//b", "a/", "./a", control characters), and folds them in listings without a word,
so that a marker "a/" looks like an object "a". So S3 is listed, and such keys are read, through a botocore client. Its
parser takes 50 ms for a page of 1,000 keys; ours takes the page from the wire before it, in 4 ms.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from shardprep.errors import ConfigError
from shardprep.storage.options import flag, requester_pays
from shardprep.storage.s3_listing import Page

if TYPE_CHECKING:  # 90 ms, which a reader whose environment tells all it needs can do without
    import botocore.session

CREDENTIALS_FOR = timedelta(minutes=10)  # botocore renews 10 to 15 minutes before the end, obstore asks 5 before
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30
POOL = 32
ODD_KEY = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")  # an empty part, "." or "..", a control character
_EMPTY_PAGE = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'


class S3Access:
    """One bucket as one process reaches it: endpoint, region, credentials, and a botocore client made when needed."""

    def __init__(self, bucket: str, options: Mapping[str, str]) -> None:
        self.bucket = bucket
        self.pays = requester_pays(options)
        self.is_anonymous = flag(options, "anon") or flag(options, "skip_signature")
        self._options = options
        self._lock = threading.Lock()
        self._session: botocore.session.Session | None = None
        self._client: Any = None
        self._page = threading.local()
        self._region_heard = ""
        self.endpoint = options.get("endpoint_url") or options.get("endpoint") or self._configured_endpoint()
        self.region = options.get("region") or self._configured_region()
        # A name with a dot does not match the certificate of *.s3.amazonaws.com.
        by_host = not self.endpoint and "." not in bucket
        self.is_by_host = flag(
            options, "virtual_hosted_style", default=flag(options, "virtual_hosted_style_request", default=by_host)
        )

    def credentials(self) -> dict[str, Any]:
        """Return access key, secret key and token as obstore wants them. Raises NoCredentialsError if there are none."""
        if _is_in_environment():  # where botocore looks first, too
            return {
                "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "token": os.environ.get("AWS_SESSION_TOKEN") or os.environ.get("AWS_SECURITY_TOKEN"),
                "expires_at": None,
            }
        from botocore.exceptions import NoCredentialsError

        with self._lock:
            found = self._get_session().get_credentials()
        if found is None:
            raise NoCredentialsError
        frozen = found.get_frozen_credentials()  # renews them if need be
        if not frozen.access_key or not frozen.secret_key:
            raise NoCredentialsError
        is_lasting = getattr(found, "refresh_needed", None) is None
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": None if is_lasting else datetime.now(UTC) + CREDENTIALS_FOR,
        }

    def renew(self) -> None:
        """Forget credentials and client: the next request looks them up anew, as after a rotation."""
        with self._lock:
            self._session = self._client = None

    def find_region(self) -> str:
        """Return the bucket's region as the store itself says it, "" where it does not."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self._region_heard in ("", self.region):  # else a redirected LIST has told it already
            with suppress(BotoCoreError, ClientError):
                self.client.head_bucket(Bucket=self.bucket)
        return self._region_heard

    def move_to(self, region: str) -> None:
        """Use another region from now on."""
        self.region = region
        self.renew()

    @property
    def client(self) -> Any:
        """Return the botocore client, made at the first call."""
        with self._lock:
            if self._client is None:
                self._client = self._make_client()
            return self._client

    def page(self, prefix: str, *, after: str = "", token: str | None = None, max_keys: int = 1000) -> Page:
        """Return one page of a listing (see s3_listing.GetPage)."""
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, "EncodingType": "url"}
        if after:
            request["StartAfter"] = after
        if token is not None:
            request["ContinuationToken"] = token
        if max_keys != 1000:
            request["MaxKeys"] = max_keys
        self._page.body = b""
        self.client.list_objects_v2(**request)
        body, self._page.body = self._page.body, b""
        return _parse_page(body)

    def _get_session(self) -> botocore.session.Session:
        if self._session is None:
            import botocore.session

            self._session = botocore.session.Session()
        return self._session

    def _configured_endpoint(self) -> str:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            if os.environ.get(name):
                return os.environ[name]
        session = self._get_session()
        profile: dict[str, Any] = session.get_scoped_config()
        services = session.full_config.get("services", {}).get(profile.get("services", ""), {})
        return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url") or "")

    def _configured_region(self) -> str:
        given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return given or self._get_session().get_config_variable("region") or "us-east-1"

    def _make_client(self) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": 1},  # retry.py is the only retry loop
            max_pool_connections=POOL,
            signature_version=UNSIGNED if self.is_anonymous else None,
            s3={"addressing_style": "virtual" if self.is_by_host else "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        client = self._get_session().create_client(
            "s3", endpoint_url=self.endpoint or None, region_name=self.region, config=config
        )
        events = client.meta.events
        if self.pays:
            events.register("before-call.s3", _add_request_payer)
        events.register("response-received.s3", self._hear_region)
        events.register("before-send.s3.ListObjectsV2", self._send_list)
        return client

    def _hear_region(self, response_dict: dict[str, Any] | None, **_: Any) -> None:
        # botocore follows redirects by itself, and some servers name the region nowhere else.
        headers = (response_dict or {}).get("headers", {})
        self._region_heard = headers.get("x-amz-bucket-region", "") or self._region_heard

    def _send_list(self, request: Any, **_: Any) -> Any:
        """Send a signed LIST ourselves and keep the body from botocore's parser, but for errors."""
        response = self._client._endpoint.http_session.send(request)  # noqa: SLF001  the client's own connections
        if response.status_code != 200:
            return response
        from botocore.awsrequest import AWSResponse

        self._page.body = response.content
        return AWSResponse(request.url, 200, response.headers, _Raw(_EMPTY_PAGE))


def _is_in_environment() -> bool:
    return bool(
        os.environ.get("AWS_ACCESS_KEY_ID")
        and os.environ.get("AWS_SECRET_ACCESS_KEY")
        and not os.environ.get("AWS_PROFILE")
    )


class _Raw:
    """A body for AWSResponse."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Any:
        """Yield the body."""
        yield self._body


def _add_request_payer(params: dict[str, Any], **_: Any) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"


def _parse_page(body: bytes) -> Page:
    root = ET.fromstring(body)  # noqa: S314  entities are not resolved by this parser, and the answer was signed for
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    is_encoded = (root.findtext(f"{space}EncodingType") or "").lower() == "url"
    keys: list[str] = []
    sizes: list[int] = []
    etags: list[str] = []
    for content in root.iterfind(f"{space}Contents"):
        key = content.findtext(f"{space}Key") or ""
        keys.append(unquote_plus(key) if is_encoded and ("%" in key or "+" in key) else key)
        sizes.append(int(content.findtext(f"{space}Size") or 0))
        etags.append(content.findtext(f"{space}ETag") or "")
    is_truncated = root.findtext(f"{space}IsTruncated") == "true"
    return Page(keys, sizes, etags, root.findtext(f"{space}NextContinuationToken") if is_truncated else None)


class OddKeyClient:
    """Reads and writes single objects whose keys obstore would fold or refuse."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def get(self, key: str, etag: str, byte_range: tuple[int, int] | None, size_bytes: int) -> tuple[bytes, str]:  # noqa: ARG002
        """Return bytes and ETag of an object, or of its bytes start to stop."""
        request: dict[str, Any] = {"Bucket": self._access.bucket, "Key": key}
        if etag:
            request["IfMatch"] = etag
        if byte_range is not None:
            request["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
        answer = self._access.client.get_object(**request)
        return answer["Body"].read(), answer.get("ETag", "")

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""
        answer = self._access.client.head_object(Bucket=self._access.bucket, Key=key)
        return answer["ContentLength"], answer.get("ETag", "")

    def put(self, key: str, data: bytes | memoryview, *, is_new: bool = False, etag: str = "") -> str:
        """Write an object, only where there is none, or only over the one with this ETag; return the new ETag."""
        request: dict[str, Any] = {"Bucket": self._access.bucket, "Key": key, "Body": bytes(data)}
        if is_new:
            request["IfNoneMatch"] = "*"
        if etag:
            request["IfMatch"] = etag
        return str(self._access.client.put_object(**request).get("ETag", ""))

    def put_file(self, key: str, path: str) -> str:
        """Write an object from a file, in one request that reads it piece by piece; return the new ETag."""
        with open(path, "rb") as body:
            answer = self._access.client.put_object(Bucket=self._access.bucket, Key=key, Body=body)
        return str(answer.get("ETag", ""))

    def reset(self) -> None:
        """Do nothing: the client is kept by the S3Access."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, one by one: there are few."""
        for key in keys:
            self._access.client.delete_object(Bucket=self._access.bucket, Key=key)


def checked_bucket(uri: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of an object store's URI; the prefix ends in "/" or is ""."""
    scheme, rest = uri.split("://", 1)
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise ConfigError(f'a URI needs a bucket, like "{scheme}://bucket/prefix", got "{uri}"')
    return scheme, bucket, prefix if not prefix or prefix.endswith("/") else prefix + "/"
