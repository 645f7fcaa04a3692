"""What went wrong: one name for every error that a client of a store may raise.

obstore says the HTTP status and the store's own code in its message; botocore in the error's `response`; s3fs wraps
botocore's error; the rest are OSErrors with a number. The messages are those of real servers: tests provoke them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any


class Fault(Enum):
    """Kinds of failure; `passes` says whether trying again may help."""

    THROTTLED = "throttled"
    TRANSIENT = "transient"
    CHANGED = "changed"
    NOT_FOUND = "not found"
    DENIED = "denied"
    EXPIRED = "expired credentials"
    EXISTS = "exists"
    FULL = "full"
    REGION = "region"
    PERMANENT = "permanent"

    @property
    def passes(self) -> bool:
        """Return whether the same call may succeed a little later."""
        return self in (Fault.THROTTLED, Fault.TRANSIENT)


_CODES = {
    Fault.THROTTLED: "SlowDown Throttling ThrottlingException ThrottledException RequestThrottled RequestLimitExceeded "
    "RequestThrottledException TooManyRequests TooManyRequestsException BandwidthLimitExceeded ServerBusy "
    "ServiceUnavailable rateLimitExceeded userRateLimitExceeded",
    Fault.TRANSIENT: "InternalError InternalFailure RequestTimeout RequestTimeoutException OperationAborted "
    "ConditionalRequestConflict IncompleteBody OperationTimedOut PriorRequestNotComplete",
    Fault.EXPIRED: "ExpiredToken ExpiredTokenException TokenRefreshRequired InvalidToken RequestExpired "
    "InvalidAccessKeyId InvalidClientTokenId",
    Fault.REGION: "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException Redirect "
    "TemporaryRedirect",
    Fault.NOT_FOUND: "NoSuchKey NoSuchBucket NoSuchVersion NotFound BlobNotFound ContainerNotFound ResourceNotFound",
    Fault.CHANGED: "PreconditionFailed InvalidRange ConditionNotMet",
    Fault.EXISTS: "BlobAlreadyExists",
    Fault.FULL: "QuotaExceeded InsufficientStorage StorageFull XMinioStorageFull InsufficientCapacity",
    Fault.DENIED: "AccessDenied SignatureDoesNotMatch AllAccessDisabled AccountProblem RequestTimeTooSkewed Forbidden "
    "AuthorizationFailure AuthenticationFailed InvalidSecurity NotSignedUp",
}
_OF_CODE = {code: fault for fault, codes in _CODES.items() for code in codes.split()}
_OF_STATUS = {
    301: Fault.REGION,
    307: Fault.REGION,
    308: Fault.REGION,
    401: Fault.DENIED,
    403: Fault.DENIED,
    404: Fault.NOT_FOUND,
    408: Fault.TRANSIENT,
    409: Fault.TRANSIENT,
    412: Fault.CHANGED,
    416: Fault.CHANGED,
    429: Fault.THROTTLED,
    500: Fault.TRANSIENT,
    502: Fault.TRANSIENT,
    503: Fault.THROTTLED,
    504: Fault.TRANSIENT,
    507: Fault.FULL,
}
_OF_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), Fault.NOT_FOUND),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Fault.DENIED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Fault.FULL),
    errno.EEXIST: Fault.EXISTS,
    errno.EBUSY: Fault.THROTTLED,  # s3fs: SlowDown
    **dict.fromkeys(
        (
            errno.EIO,
            errno.EAGAIN,
            errno.EINTR,
            errno.ETIMEDOUT,
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.ECONNABORTED,
            errno.EPIPE,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.ENETDOWN,
            errno.ENETRESET,
            errno.EHOSTDOWN,
            errno.ESTALE,
        ),
        Fault.TRANSIENT,
    ),
}
# By the names in an error's class tree, so that no client must be imported to know its errors.
_OF_CLASS = {
    "AlreadyExistsError": Fault.EXISTS,
    "PreconditionError": Fault.CHANGED,
    "PermissionDeniedError": Fault.DENIED,
    "UnauthenticatedError": Fault.EXPIRED,
    "NoCredentialsError": Fault.DENIED,
    "PartialCredentialsError": Fault.DENIED,
    "CredentialRetrievalError": Fault.TRANSIENT,  # an instance's or container's credential service was busy
    "MetadataRetrievalError": Fault.TRANSIENT,
    "UnauthorizedSSOTokenError": Fault.DENIED,
    "SSOTokenLoadError": Fault.DENIED,
    "TokenRetrievalError": Fault.DENIED,
    "ProfileNotFound": Fault.DENIED,
    "HTTPClientError": Fault.TRANSIENT,  # botocore: connections, time-outs, broken bodies
    "IncompleteReadError": Fault.TRANSIENT,
    "ResponseStreamingError": Fault.TRANSIENT,
    "ResponseParserError": Fault.TRANSIENT,
    "ParseError": Fault.TRANSIENT,  # ElementTree: a listing that was cut off
    "HTTPError": Fault.TRANSIENT,  # urllib3
    "ClientConnectionError": Fault.TRANSIENT,  # aiohttp
    "ClientPayloadError": Fault.TRANSIENT,
    "ServerDisconnectedError": Fault.TRANSIENT,
    "FSTimeoutError": Fault.TRANSIENT,
    "FileNotFoundError": Fault.NOT_FOUND,
    "FileExistsError": Fault.EXISTS,
    "PermissionError": Fault.DENIED,
    "TimeoutError": Fault.TRANSIENT,
    "ConnectionError": Fault.TRANSIENT,
    "EOFError": Fault.TRANSIENT,
}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PROVIDER = re.compile(r"credential provider: (\w+)")  # obstore asked us for credentials, and got this error
_NO_ANSWER = re.compile(r"HTTP error|kind: (Timeout|Interrupted|Connect|Request)|error sending request")


def classify(error: BaseException) -> Fault:
    """Return the kind of an error of obstore, botocore, s3fs or another fsspec file system, or the operating system."""
    for one in _with_causes(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return _of_answer(*_botocore_answer(response), _is_write(one))
    message = str(error)
    status = _STATUS.search(message)
    code = _CODE.search(message)
    if status or code:
        fault = _of_answer(int(status[1]) if status else 0, code[1] if code else "", is_write=False)
        return Fault.EXISTS if fault is Fault.CHANGED and type(error).__name__ == "AlreadyExistsError" else fault
    if "redirect without LOCATION" in message:
        return Fault.REGION
    if provider := _PROVIDER.search(message):
        return _OF_CLASS.get(provider[1], Fault.DENIED)
    if isinstance(error, OSError) and error.errno in _OF_ERRNO:
        return _OF_ERRNO[error.errno]
    for kind in type(error).__mro__:
        if kind.__name__ in _OF_CLASS:
            return _OF_CLASS[kind.__name__]
    return Fault.TRANSIENT if _NO_ANSWER.search(message) else Fault.PERMANENT


def code_of(error: BaseException) -> str:
    """Return the store's own code ("AccessDenied"), else the HTTP status, else the error's class: for messages."""
    for one in _with_causes(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict) and "Error" in response:
            status, code = _botocore_answer(response)
            return code if not code.isdigit() else str(status)
    message = str(error)
    if found := _CODE.search(message) or _STATUS.search(message) or _PROVIDER.search(message):
        return found[1]
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(5):
        if one is None:
            return
        yield one
        one = one.__cause__


def _botocore_answer(response: dict[str, Any]) -> tuple[int, str]:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(response["Error"].get("Code", ""))


def _is_write(error: BaseException) -> bool:
    return str(getattr(error, "operation_name", "")) in ("PutObject", "CompleteMultipartUpload")


def _of_answer(status: int, code: str, is_write: bool) -> Fault:
    fault = _OF_CODE.get(code)
    if fault is None and status in (400, 403) and (not code or code.isdigit()):
        return Fault.EXPIRED  # the answer to a HEAD has no body, so no code: new credentials are worth one try
    if fault is None:
        fault = _OF_STATUS.get(status, Fault.TRANSIENT if status >= 500 else Fault.PERMANENT)
    return Fault.EXISTS if fault is Fault.CHANGED and is_write else fault
