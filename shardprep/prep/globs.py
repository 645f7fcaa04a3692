"""Glob patterns over keys: `*` and `?` stay inside a segment, `**` crosses them, `[a-z]` and `[!a-z]` are sets."""

from __future__ import annotations

import re

from shardprep.errors import ConfigError

_MAGIC = re.compile(r"[*?\[]")


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
