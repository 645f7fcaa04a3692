"""Keys that are there twice: found cheaply in the bytes, then for certain while a document is read exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shardprep.formats.reasons import Reason, Refused


class Pairs(dict[str, Any]):
    """An object that knows which of its keys were given twice, and refuses to be asked for one of them."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._twice: set[str] = set()
        if len(self) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                (self._twice if key in seen else seen).add(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; raise Refused(duplicate_key) where the key was given more than once."""
        if key in self._twice:
            raise Refused(Reason.DUPLICATE_KEY, f'"{key}" is there more than once in one object')
        return super().get(key, default)


class KeyFinder:
    """Tells from a document's bytes whether one of some keys may be there twice, at about 1 us for 4 KB."""

    def __init__(self, names: Iterable[str]) -> None:
        ordered = sorted(names)
        plain = b"|".join(re.escape(name.encode("utf-8", "surrogatepass")) for name in ordered)
        self._plain = re.compile(b'"(' + plain + rb')"[ \t\r\n]*:').findall
        # Keys may also be spelled with escapes. Those of plain ASCII characters all begin with \\u00.
        simple = all(name.isascii() and name.isprintable() and not set(name) & set('"\\/') for name in ordered)
        self._escape = re.compile(rb"\\u00" if simple else rb"\\").search
        self._spelled = tuple(
            re.compile(b'"' + b"".join(_spellings(character) for character in name) + rb'"[ \t\r\n]*:').findall
            for name in ordered
        )

    def may_repeat(self, raw: bytes) -> bool:
        """Return False only if no key is there twice in one object."""
        found = self._plain(raw)
        if len(found) > 1 and len(set(found)) < len(found):
            return True
        if b"\\" not in raw or self._escape(raw) is None:
            return False
        return any(len(spelled(raw)) > 1 for spelled in self._spelled)


def _spellings(character: str) -> bytes:
    units = character.encode("utf-16-be", "surrogatepass")
    escaped = b"".join(
        rb"\\u" + b"".join(_either_case(digit) for digit in f"{units[i]:02x}{units[i + 1]:02x}")
        for i in range(0, len(units), 2)
    )
    ways = [escaped]
    short = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(character)
    if short:
        ways.append(re.escape(b"\\" + short.encode()))
    if character not in '"\\' and ord(character) >= 0x20:
        ways.append(re.escape(character.encode("utf-8", "surrogatepass")))
    return b"(?:" + b"|".join(ways) + b")"


def _either_case(digit: str) -> bytes:
    return digit.encode() if digit.isdigit() else f"[{digit}{digit.upper()}]".encode()
