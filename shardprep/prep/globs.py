"""Glob patterns over keys: `*` and `?` stay inside a segment, `**` crosses them, `[a-z]` and `[!a-z]` are sets."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.errors import ConfigError
from shardprep.storage.store import local_path_of

_MAGIC = re.compile(r"[*?\[]")
OURS = ("manifest.json", "0/report.html", "0/train/0.parquet", "0/_staging/scan-0.json")  # what we write below a place


def has_magic(text: str) -> bool:
    """Tell whether a text is a pattern rather than a name."""
    return _MAGIC.search(text) is not None


def literal_prefix(pattern: str) -> str:
    """Return what every match begins with."""
    match = _MAGIC.search(pattern)
    return pattern[: match.start()] if match else pattern


def literal_folder(pattern: str) -> str:
    """Return the folder, with its "/", below which every match lies; "" for none."""
    return literal_prefix(pattern).rpartition("/")[0] + "/" if "/" in literal_prefix(pattern) else ""


def to_regex(pattern: str) -> str:
    """Return the regular expression (RE2) that matches exactly the keys of a pattern. Raises ConfigError."""
    if pattern.endswith("/"):
        pattern += "**"
    out: list[str] = []
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if pattern.startswith("**/", place) and (place == 0 or pattern[place - 1] == "/"):
            out.append("(?:[^/]*/)*")
            place += 3
        elif pattern.startswith("**", place):
            out.append(".*")
            place += 2
        elif character == "*":
            out.append("[^/]*")
            place += 1
        elif character == "?":
            out.append("[^/]")
            place += 1
        elif character == "[":
            piece, place = _set(pattern, place)
            out.append(piece)
        else:
            out.append(_quoted(character))
            place += 1
    return r"(?s)\A" + "".join(out) + r"\z"


def _set(pattern: str, place: int) -> tuple[str, int]:
    start = place + 1
    negated = pattern[start : start + 1] in ("!", "^")
    start += negated
    stop = pattern.find("]", start + 1)  # a "]" right after the "[" belongs to the set
    if stop < 0:
        raise ConfigError(
            f'the pattern {pattern} has a "[" without "]"; write [[] for the sign itself', pattern=pattern
        )
    body = "".join(
        c if c == "-" and start < at < stop - 1 else _quoted(c) for at, c in enumerate(pattern[start:stop], start)
    )
    return f"[{'^/' if negated else ''}{body}]", stop + 1


def _quoted(character: str) -> str:
    return (
        character
        if character.isalnum() or character == "/" or not character.isascii()
        else f"\\x{{{ord(character):x}}}"
    )


def holds(source: str, place: str) -> bool:
    """Say whether files that we write below `place` are ones that `source` (prefix, folder or glob) would read."""
    local = [local_path_of(uri) for uri in (source, place)]
    if (local[0] is None) != (local[1] is None):
        return False
    pattern = has_magic(source) and not (local[0] is not None and os.path.exists(local[0]))
    if local[0] is not None and local[1] is not None:  # links lead to one file by several names
        folder = literal_folder(local[0]) if pattern else local[0]
        rest = local[0][len(folder) :] if pattern else ""
        source = os.path.realpath(folder or ".").rstrip("/") + "/" + rest
        place = os.path.realpath(local[1])
    inside = [f"{place.rstrip('/')}/{name}" for name in OURS]
    if not pattern:
        return any(name.startswith(source.rstrip("/") + "/") for name in inside)
    return bool(pc.any(pc.match_substring_regex(pa.array(inside), to_regex(source))).as_py())
