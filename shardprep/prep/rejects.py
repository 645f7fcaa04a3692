"""Documents set aside, as JSON lines: who, where, why, and the bytes themselves when they are few."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from shardprep.formats.documents import Reject
from shardprep.prep.job import Job
from shardprep.storage.store import Store

PART_BYTES = 32 << 20


def reject_line(name: str, reject: Reject) -> bytes:
    """Return one reject as a JSON line."""
    value: dict[str, Any] = {
        "key": name,
        "line": reject.line,
        "offset": reject.offset,
        "reason": str(reject.reason),
        "detail": reject.detail,
    }
    if reject.raw:
        try:
            value["raw"] = reject.raw.decode()
        except UnicodeDecodeError:
            value["raw_base64"] = base64.b64encode(reject.raw).decode()
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def staged_rejects(
    job: Job, store: Store, scanned: Collection[int], late: Collection[int], lines_before: Mapping[int, int]
) -> Iterator[bytes]:
    """Yield the reject lines of the tasks that set something aside while scanning, and of those that lost rows late.

    Physical lines of byte ranges are counted from the object's start. What these tasks say counts, and not what lies in
    the staging folder: a scan that was cut short may have left lines of its own. Raises NotFound if some are gone.
    """
    for task in sorted({*scanned, *late}):
        names = {job.staged_name(task) + ".rejects.jsonl": scanned, job.late_name(task) + ".late.jsonl": late}
        for name, tasks in names.items():
            if task in tasks:
                for line in store.get(name).split(b"\n")[:-1]:
                    # a late drop knows its line as the scan did, from the range's start
                    yield _moved(line, lines_before.get(task, 0)) + b"\n"


def _moved(line: bytes, before: int) -> bytes:
    """Return a reject line with its physical line counted from the object's start."""
    if not before:
        return line
    value = orjson.loads(line)
    if value["line"] is not None:
        value["line"] += before
    return orjson.dumps(value)


def parts(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines in parts of at most PART_BYTES, sorted inside a part by key and place."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= PART_BYTES:
            yield b"".join(_sorted(waiting))
            waiting, size = [], 0
    if waiting:
        yield b"".join(_sorted(waiting))


def _sorted(lines: list[bytes]) -> list[bytes]:
    def place(line: bytes) -> tuple[str, int, str, bytes]:
        value = orjson.loads(line)
        return value["key"], value["offset"], value["reason"], line

    return sorted(lines, key=place)
