"""The exit message of a Processing job: the text that DescribeProcessingJob shows as ExitMessage.

UTF-8 in `output/message` below /opt/ml, of which the first 1,024 bytes are shown; anything else than UTF-8 fails the job, and
messages of several containers are put together before the cut (build-your-own-processing-container.html): so only the head
writes one. Counts come first, and no secret enters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

BYTES_MAX = 1024
MORE = " ..."
PLACE = "output/message"
SECRET_LENGTH_MIN = 8  # shorter values of such variables are words like "true"
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN(?!I)|PASSW|CREDENTIAL|ACCESS_KEY|API_KEY|ACCOUNT_KEY|SIGNATURE|CONNECTION_STRING", re.IGNORECASE
)
_PLACE_NAME = re.compile(r"(FILE|PATH|DIR|URI|URL)$", re.IGNORECASE)
_SECRETS = (
    # A password may hold slashes, as AWS keys do; a port and a path with an @ in it are none.
    (re.compile(r"(://)[^/\s@:]+:(?!\d+/)\S+@"), r"\1...@"),
    (re.compile(r"(://)[^/\s]+@"), r"\1...@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), "..."),
    (re.compile(r"(?i)([?&](?:x-amz-(?:signature|credential|security-token)|sig|token|access_key)=)[^&\s]+"), r"\1..."),
    (
        re.compile(
            r"(?i)\b((?:aws_)?(?:secret(?:_access)?_key|session_token|password|passwd|account_key|api_key)['\"]?\s*[=:]\s*['\"]?)"
            r"[^\s'\"]+"
        ),
        r"\1...",
    ),
    (re.compile(r"(?i)\b((?:token|secret|credentials?)=)\S+"), r"\1..."),
)


def scrubbed(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text without secrets: user parts of URIs, keys, signatures, and values of secret environment variables."""
    for name, value in (os.environ if environment is None else environment).items():
        if len(value) >= SECRET_LENGTH_MIN and _SECRET_NAME.search(name) and not _PLACE_NAME.search(name):
            text = text.replace(value, "...")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def cut(text: str, bytes_max: int = BYTES_MAX) -> str:
    """Return the beginning of a text that has at most so many bytes of UTF-8, cut between characters."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode("utf-8")
    return data[: bytes_max - len(MORE)].decode("utf-8", "ignore") + MORE


def clear_message(ml_root: str) -> None:
    """Remove a message of an earlier run: one that says "written" must not outlive a host that is killed."""
    with suppress(OSError):
        Path(ml_root, PLACE).unlink()


def write_message(text: str, ml_root: str) -> bool:
    """Write the exit message in one line; False where it cannot be written, which is no reason to fail a job."""
    path = Path(ml_root, PLACE)
    data = cut(" ".join(scrubbed(text).split())).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            path.write_bytes(data)
            return True
        return False
    return True


def success(summary: Mapping[str, Any], *, hosts: str, seconds: float) -> str:
    """Return the message of a build that was done, from its --json summary; `hosts` says who took part."""
    if "manifest" not in summary:  # a dry run
        return "dry run: " + ", ".join(
            f"{name} {value}" for name, value in summary.items() if isinstance(value, int | float | str)
        )
    aside: Mapping[str, int] = summary.get("set_aside", {})
    reasons = sorted(aside.items(), key=lambda item: (-item[1], item[0]))
    named = f" ({', '.join(f'{reason} {count:,}' for reason, count in reasons)})" if reasons else ""
    return (
        f"found {summary['found']:,}, written {summary['written']:,}, set aside {sum(aside.values()):,}; "
        f"{summary['shards']:,} shards, manifest {summary['manifest']}; {summary['rows']:,} rows, "
        f"{summary['tokens']:,} tokens; {hosts}, {seconds:.0f} s" + (f"; set aside{named}" if named else "")
    )


def failure(exit_code: int, why: str) -> str:
    """Return the message of a build that failed: the reason, which names the object, document or host."""
    kind = "the call is wrong" if exit_code == 2 else "failed"
    return f"{kind} (exit {exit_code}): {why}"


def stopped(name: str) -> str:
    """Return the message of a job that a signal stopped; whether that was before the manifest's put is not known."""
    return f"stopped by {name}: the build did not come to its end; the same job continues where this one stopped"
