"""The true reason why the fast parser refuses a document, found by reading it again; slow, for bad documents only."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from shardprep.formats.containers import BOM
from shardprep.formats.keys import Pairs
from shardprep.formats.reasons import Reason, Refused

DEPTH_MAX = 500  # the standard library's parser recurses; Python's stack holds 1,000 calls, ours among them
_PARSER_DEPTH = "depth limit exceeded"  # orjson's words
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_ELEMENT = re.compile(rb"[^ \t\r\n,]")
_SCALAR = re.compile(rb"[^ \t\r\n,\]]+")


def read_exactly(raw: bytes) -> dict[str, Any]:
    """Return a document that orjson accepts, integers of any size exact, objects as Pairs. Raises Refused(too_deep)."""
    if _nests_too_deep(raw):
        raise Refused(
            Reason.TOO_DEEP, f"nested deeper than {DEPTH_MAX} levels, and to be read twice: rename repeated keys"
        )
    value: dict[str, Any] = json.loads(raw, object_pairs_hook=Pairs)
    return value


def refusal(raw: bytes, error: orjson.JSONDecodeError) -> Refused:
    """Return why raw is refused, given what orjson said about it; `line` is the line inside raw."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as bad:
        line = raw.count(b"\n", 0, bad.start) + 1
        return Refused(
            Reason.INVALID_UTF8, f"byte 0x{raw[bad.start]:02x} at byte {bad.start} is no UTF-8 ({bad.reason})", line
        )
    if error.msg == _PARSER_DEPTH or _nests_too_deep(raw):
        return Refused(Reason.TOO_DEEP, f"nested too deep at {_place(error)}", error.lineno)
    try:
        value = _read_with_hooks(text)
    except Refused as found:
        found.line = error.lineno
        return found
    except json.JSONDecodeError as bad:
        if bad.msg == "Extra data" and _begins_value(text, bad.pos):
            return Refused(
                Reason.SEVERAL_VALUES, "more than one JSON value on a line; put each on its own line", error.lineno
            )
    else:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            return Refused(Reason.LONE_SURROGATE, f"half of a surrogate pair at {_place(error)}", error.lineno)
    return Refused(Reason.INVALID_JSON, _message(raw, error), error.lineno)


def _read_with_hooks(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_finite)


def _refuse_constant(name: str) -> NoReturn:
    raise Refused(Reason.NAN_LITERAL, f"{name} is no JSON; write null, or leave the field out")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        shown = digits if len(digits) <= 40 else digits[:40] + "..."
        raise Refused(Reason.NUMBER_OUT_OF_RANGE, f"the number {shown} is beyond the range of float64")
    return number


def _begins_value(text: str, place: int) -> bool:
    """Tell whether another object, array or string begins here, rather than a stray bracket or comma."""
    return text[place : place + 1] in ("{", "[", '"')


def _message(raw: bytes, error: orjson.JSONDecodeError) -> str:
    hint = ""
    if raw.startswith(BOM):
        hint = "; a byte order mark belongs at the start of a file only"
    elif b"\x00" in raw:
        hint = "; it holds NUL bytes: was the file cut or never fully written?"
    elif error.msg == "unexpected end of data":
        hint = "; the value is cut short"
    return f"{error.msg} at {_place(error)}{hint}"


def _place(error: orjson.JSONDecodeError) -> str:
    return f"column {error.colno}"


def _nests_too_deep(raw: bytes) -> bool:
    if raw.count(b"{") + raw.count(b"[") <= DEPTH_MAX:
        return False
    depth = 0
    for match in _NESTING.finditer(raw):
        first = match[0][:1]
        if first in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def element_spans(raw: bytes) -> list[tuple[int, int]]:
    """Return where each element of a valid JSON array lies: bytes start to stop (exclusive)."""
    spans: list[tuple[int, int]] = []
    place = raw.index(b"[") + 1
    while True:
        match = _ELEMENT.search(raw, place)
        assert match is not None, "the array is valid, so it has an end"
        start = match.start()
        kind = raw[start]
        if kind == 0x5D:  # ]
            return spans
        if kind in b"{[":
            place = _end_of_nested(raw, start)
        elif kind == 0x22:  # a string
            place = _skip(_NESTING, raw, start)
        else:
            place = _skip(_SCALAR, raw, start)
        spans.append((start, place))


def _skip(pattern: re.Pattern[bytes], raw: bytes, start: int) -> int:
    match = pattern.match(raw, start)
    assert match is not None, "the array is valid"
    return match.end()


def _end_of_nested(raw: bytes, start: int) -> int:
    depth = 0
    for match in _NESTING.finditer(raw, start):
        first = raw[match.start()]
        if first in b"{[":
            depth += 1
        elif first in b"]}":
            depth -= 1
            if depth == 0:
                return match.end()
    raise AssertionError("the array is valid, so its elements end")
