"""From a client's error to one of ours: what failed, where, why, and what to do now."""

from __future__ import annotations

from shardprep.errors import Changed, Denied, Exists, Full, NotFound, StoreError, Unavailable
from shardprep.storage.faults import Fault, code_of

MESSAGE_MAX = 300  # clients put whole answers, and debug output, into their messages


def explained(
    error: Exception, fault: Fault, *, uri: str, doing: str, attempts: int, pays: bool = False, hint: str = ""
) -> StoreError:
    """Return the StoreError for a failed call: `doing` is a verb ("read"), `pays` whether requests are paid for."""
    code = code_of(error)
    fields = {"uri": uri, "attempts": attempts, "code": code}
    tries = "" if attempts == 1 else f" after {attempts} tries"
    if fault in (Fault.THROTTLED, Fault.TRANSIENT):
        what = "the store keeps asking to slow down" if fault is Fault.THROTTLED else "no good answer from the store"
        return Unavailable(
            f"cannot {doing} {uri}{tries}: {what} ({code}: {_first_line(error)}). Run the same command again: it "
            "continues where this one stopped.",
            **fields,
        )
    if fault is Fault.NOT_FOUND:
        what = "there is no such bucket" if code in ("NoSuchBucket", "ContainerNotFound") else "it is not there"
        return NotFound(f"cannot {doing} {uri}: {what} ({code}).", **fields)
    if fault is Fault.CHANGED:
        return Changed(f"{uri} changed after it was listed ({code}). Run again: it is listed anew.", **fields)
    if fault is Fault.EXISTS:
        return Exists(f"cannot {doing} {uri}: another object is there ({code}).", **fields)
    if fault is Fault.FULL:
        return Full(f"no space left to {doing} {uri} ({code}). Make room, then run the same command again.", **fields)
    if fault in (Fault.DENIED, Fault.EXPIRED):
        return Denied(f"cannot {doing} {uri}: {_why_denied(error, fault, code, pays)}", **fields)
    return StoreError(f"cannot {doing} {uri}{tries} ({code}): {_first_line(error)}{hint}", **fields)


def _why_denied(error: Exception, fault: Fault, code: str, pays: bool) -> str:
    if fault is Fault.EXPIRED and code != "403":
        return f"the credentials have expired or are unknown ({code}), also after looking them up anew. Renew them."
    if code == "SignatureDoesNotMatch":
        return f"the secret key does not belong to the access key ({code}). Look at the credentials."
    if code == "RequestTimeTooSkewed":
        return f"the clock of this machine is wrong ({code}). Set it."
    if code in ("NoCredentialsError", "PartialCredentialsError"):
        return (
            "no credentials found in the environment, the profile or the machine's role. Set AWS_PROFILE, or give "
            "--storage-option anon=true for a public bucket."
        )
    if code not in ("AccessDenied", "403", "Forbidden", "PermissionDeniedError"):
        return f"access is denied ({code}: {_first_line(error)})."
    causes = "the user or role may lack the permission for it, or a bucket policy forbids it"
    if not pays:
        causes += "; if the bucket's readers pay, add --storage-option request_payer=requester"
    return f"access is denied ({code}): {causes}."


def _first_line(error: Exception) -> str:
    text = str(error).split("\n\nDebug source", 1)[0].strip().split("\n", 1)[0]
    # obstore's messages end in the answer's body: the code was taken out of it already.
    text = text.split(": <?xml", 1)[0]
    return text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + " ..."
