"""Reading TOML files that people type: every problem is found at once, with file, line, key, what was got, what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError

WHOLE = "a whole number, 0 or more"
COUNT = "a whole number, 1 or more"
POSITIVE = "a number above 0"
AMOUNT = "a number, 0 or more"
SHARE = "a share from 0 to below 1, such as 0.6 for 60 %"
TEXT = "a text in quotes"
SWITCH = "true or false"
LABEL = "a text in quotes or a whole number"
LARGEST = 10**15  # beyond, a number is a slip of the finger
SMALLEST_EXPONENT = -30  # below, too; and exact fractions of 1e-9999999 take for ever

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:=|\.)""")


@dataclass
class TomlFile:
    """A file that was parsed, with the line of each key, and the problems found in it so far."""

    path: str
    values: dict[str, Any]
    lines: dict[tuple[str, str], int]
    problems: list[str] = field(default_factory=list)

    def where(self, table: str, key: str = "") -> str:
        """Return "file, line n" of a key or table, or the file where the line is not known."""
        line = self.lines.get((table, key)) or self.lines.get((table, ""))
        return f"{self.path}, line {line}" if line else self.path

    def problem(self, table: str, key: str, text: str) -> None:
        """Remember a problem."""
        self.problems.append(f"{self.where(table, key)}: {text}")

    def raise_problems(self) -> None:
        """Raise ConfigError with all the problems, if there are any."""
        if self.problems:
            raise ConfigError("; ".join(self.problems), problems=list(self.problems))

    def take(self, table: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
        """Return the values that are well, numbers as fractions; keys that are not in `kinds` are problems."""
        taken: dict[str, Any] = {}
        for key, value in values.items():
            name = f"{table}.{key}" if table else key
            if key not in kinds:
                self.problem(table, key, f"{name} is not known{_meant(key, list(kinds))}")
                continue
            right = _right(value, kinds[key])
            if right is None:
                self.problem(table, key, f"{name} must be {kinds[key]}, got {shown(value)}{_sizes(value)}")
            else:
                taken[key] = right
        return taken


def _meant(key: str, known: Sequence[str]) -> str:
    close = get_close_matches(key.replace("-", "_").lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _is_too_large_or_small(value: int | Decimal) -> bool:
    return not -LARGEST <= value <= LARGEST or (value != 0 and Decimal(value).adjusted() < SMALLEST_EXPONENT)


def _sizes(value: Any) -> str:
    """Return which numbers are taken, where a value is none of them."""
    if not isinstance(value, int | Decimal) or not Decimal(value).is_finite() or not _is_too_large_or_small(value):
        return ""
    return f"; numbers are from 1e{SMALLEST_EXPONENT} to {LARGEST:.0e} in size"


def _right(value: Any, kind: str) -> Any:
    """Return the value in its type, or None where it is of another kind."""
    if kind == SWITCH:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if kind == TEXT or (kind == LABEL and isinstance(value, str)):
        return value if isinstance(value, str) and value.strip() else None
    if not isinstance(value, int | Decimal) or not Decimal(value).is_finite():
        return None
    if _is_too_large_or_small(value):
        return None
    if kind in (WHOLE, COUNT, LABEL):
        least = 0 if kind == WHOLE else 1
        return value if isinstance(value, int) and value >= least else None
    number = Fraction(value)
    low = number > 0 if kind == POSITIVE else number >= 0
    return number if low and (kind != SHARE or number < 1) else None


def shown(value: Any) -> str:
    """Return a value as it was typed, or nearly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_toml(path: str, what: str) -> TomlFile:
    """Return a TOML file; `what` it should be is said when it cannot be read. Raises ConfigError naming file and line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; {what} is TOML in UTF-8") from error
    try:
        values = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:  # also of a whole number with thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return TomlFile(path, values, lines_of(text))


def lines_of(text: str) -> dict[tuple[str, str], int]:
    """Return (table, key) -> line, counting from 1; a table's own line is under the key "".

    An item of an array of tables is called what_if.instances[0]. tomllib keeps no lines, and what this finds is only
    shown to people: a key inside a multi-line text may mislead it.
    """
    lines: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[2].replace('"', "").replace("'", "").replace(" ", "")
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}[{counts[table]}]"
            lines.setdefault((table, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((table, next(group for group in key.groups() if group is not None)), number)
    return lines
