"""Every fault is provoked on a real server, with each of the three clients, and must get its one name."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from fault_proxy import FaultProxy
from servers import BUCKET, set_environment

from shardprep.errors import Changed, Denied, Exists, Full, NotFound, StoreError, Unavailable
from shardprep.storage.explain import explained
from shardprep.storage.faults import Fault, classify, code_of
from shardprep.storage.objects import Client, ObjectStore

ANSWERS: list[tuple[dict[str, Any], Fault]] = [
    ({"kind": "slowdown"}, Fault.THROTTLED),
    ({"kind": "error", "status": 429, "code": "TooManyRequests"}, Fault.THROTTLED),
    ({"kind": "error", "status": 503, "code": "ServiceUnavailable"}, Fault.THROTTLED),
    ({"kind": "error", "status": 400, "code": "RequestTimeout"}, Fault.TRANSIENT),
    ({"kind": "error", "status": 500, "code": "InternalError"}, Fault.TRANSIENT),
    ({"kind": "error", "status": 502, "code": "BadGateway"}, Fault.TRANSIENT),
    ({"kind": "error", "status": 409, "code": "ConditionalRequestConflict"}, Fault.TRANSIENT),
    ({"kind": "reset"}, Fault.TRANSIENT),
    ({"kind": "reset_after"}, Fault.TRANSIENT),
    ({"kind": "truncate"}, Fault.TRANSIENT),
    ({"kind": "expired"}, Fault.EXPIRED),
    ({"kind": "error", "status": 400, "code": "ExpiredToken"}, Fault.EXPIRED),
    ({"kind": "error", "status": 403, "code": "InvalidAccessKeyId"}, Fault.EXPIRED),
    ({"kind": "error", "status": 403, "code": "AccessDenied"}, Fault.DENIED),
    ({"kind": "error", "status": 403, "code": "RequestTimeTooSkewed"}, Fault.DENIED),
    ({"kind": "error", "status": 507, "code": "InsufficientStorage"}, Fault.FULL),
    ({"kind": "error", "status": 400, "code": "EntityTooLarge"}, Fault.PERMANENT),
]


@pytest.fixture(params=["obstore", "botocore", "s3fs"])
def client(request: pytest.FixtureRequest, s3_faults: FaultProxy, s3_root: str) -> Client:
    store = ObjectStore(s3_root, use_s3fs=request.param == "s3fs")
    store.put("k", b"x" * 5000)
    return store._odd if request.param == "botocore" else store._plain


def fault_of(call: Any) -> Fault:
    with pytest.raises(Exception) as caught:
        call()
    return classify(caught.value)


def test_every_answer_has_its_fault(client: Client, s3_faults: FaultProxy, prefix: str):
    for rule, fault in ANSWERS:
        s3_faults.set_rules([rule])
        assert fault_of(lambda: client.get(f"{prefix}/k", "", None, 5000)) is fault, rule
        if rule["kind"] in ("slowdown", "error"):
            assert fault_of(lambda: client.put(f"{prefix}/k", b"1")) is fault, rule


def test_refusals_of_a_real_server(client: Client, prefix: str):
    key = f"{prefix}/k"
    assert fault_of(lambda: client.get(f"{prefix}/none", "", None, 0)) is Fault.NOT_FOUND
    assert fault_of(lambda: client.head(f"{prefix}/none")) is Fault.NOT_FOUND
    assert fault_of(lambda: client.get(key, '"0123"', None, 0)) is Fault.CHANGED
    assert fault_of(lambda: client.get(key, "", (90_000, 90_001), 1)) is Fault.CHANGED
    assert fault_of(lambda: client.put(key, b"1", is_new=True)) is Fault.EXISTS
    assert fault_of(lambda: client.put(key, b"1", etag='"0123"')) in (Fault.EXISTS, Fault.CHANGED)


def test_wrong_credentials_and_nobody_there(s3_server: Any, s3_root: str, monkeypatch: pytest.MonkeyPatch):
    for use_s3fs in (False, True):
        set_environment(monkeypatch, s3_server.endpoint)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        client = ObjectStore(s3_root, use_s3fs=use_s3fs)._plain
        assert fault_of(lambda client=client: client.get("k", "", None, 0)) is Fault.DENIED
        set_environment(monkeypatch, "http://127.0.0.1:9")
        client = ObjectStore(s3_root, use_s3fs=use_s3fs)._plain
        assert fault_of(lambda client=client: client.get("k", "", None, 0)) is Fault.TRANSIENT
    set_environment(monkeypatch, s3_server.endpoint)
    assert fault_of(lambda: ObjectStore("s3://no-such-bucket")._plain.get("k", "", None, 0)) is Fault.NOT_FOUND
    assert fault_of(lambda: list(ObjectStore("s3://no-such-bucket")._s3.page(""))) is Fault.NOT_FOUND  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.ENOENT, Fault.NOT_FOUND),
        (errno.EACCES, Fault.DENIED),
        (errno.EROFS, Fault.DENIED),
        (errno.ENOSPC, Fault.FULL),
        (errno.EDQUOT, Fault.FULL),
        (errno.EFBIG, Fault.FULL),
        (errno.EEXIST, Fault.EXISTS),
        (errno.ECONNRESET, Fault.TRANSIENT),
        (errno.ETIMEDOUT, Fault.TRANSIENT),
        (errno.EIO, Fault.TRANSIENT),
        (errno.EISDIR, Fault.PERMANENT),
    ],
)
def test_numbers_of_the_operating_system(number: int, fault: Fault):
    assert classify(OSError(number, os.strerror(number))) is fault
    assert code_of(OSError(number, os.strerror(number))) == errno.errorcode[number]


def test_a_bug_of_ours_is_permanent():
    assert classify(ZeroDivisionError("division by zero")) is Fault.PERMANENT
    assert not Fault.PERMANENT.passes


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault.THROTTLED, Unavailable, "after 8 tries: the store keeps asking to slow down"),
        (Fault.TRANSIENT, Unavailable, "after 8 tries: no good answer"),
        (Fault.NOT_FOUND, NotFound, "not there"),
        (Fault.CHANGED, Changed, "changed after it was listed"),
        (Fault.DENIED, Denied, "access is denied"),
        (Fault.EXPIRED, Denied, "expired"),
        (Fault.EXISTS, Exists, "another object is there"),
        (Fault.FULL, Full, "space"),
        (Fault.PERMANENT, StoreError, "boom"),
    ],
)
def test_every_fault_has_an_error_that_names_the_object(fault: Fault, kind: type[StoreError], words: str):
    error = explained(RuntimeError("boom"), fault, uri=f"s3://{BUCKET}/k", doing="read", attempts=8)
    assert type(error) is kind
    assert words in str(error)
    assert f"s3://{BUCKET}/k" in str(error)
    assert error.fields["attempts"] == 8
