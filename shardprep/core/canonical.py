"""Canonical JSON, and a reader of parsed JSON that gathers every fault before anyone raises."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray


def compact(value: Any) -> str:
    """Return JSON with sorted keys and no blanks; NaN is refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def rendered(value: Any, depth: int = 0) -> str:
    """Return canonical JSON: the outermost object and every list of objects have one entry a line."""
    if isinstance(value, dict) and (depth == 0 or any(_is_table(v) for v in value.values())):
        entries = [f"{compact(key)}:{rendered(value[key], depth + 1)}" for key in sorted(value)]
        return "{\n" + ",\n".join(entries) + "\n}"
    if _is_table(value):
        return "[\n" + ",\n".join(rendered(entry, depth + 1) for entry in value) + "\n]"
    return compact(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


class Form:
    """Reads values out of parsed JSON; `issues` holds what was wrong, and an empty value stands in for it."""

    def __init__(self) -> None:
        self.issues: list[str] = []

    def item(self, value: Any, key: str, at: str, kind: type) -> Any:
        """Return value[key] if it is of the kind, else an empty one, with an issue."""
        where = f"{at}.{key}".removeprefix(".")
        if not isinstance(value, dict) or key not in value:
            self.issues.append(f"{where} is missing")
        elif not isinstance(value[key], kind) or isinstance(value[key], bool):
            self.issues.append(f"{where} must be {_KINDS[kind]}, got {value[key]!r:.60}")
        else:
            return value[key]
        return kind()

    def text(self, value: Any, key: str, at: str) -> str:
        """Return a string."""
        return str(self.item(value, key, at, str))

    def number(self, value: Any, key: str, at: str) -> int:
        """Return a whole number, not negative."""
        number = int(self.item(value, key, at, int))
        if number < 0:
            self.issues.append(f"{at}.{key} must not be negative, got {number}")
        return number

    def numbers(self, value: Any, key: str, at: str) -> NDArray[np.int64]:
        """Return a list of whole numbers, int64 (n,), none negative."""
        items = self.item(value, key, at, list)
        if not all(type(item) is int and 0 <= item < 2**63 for item in items):
            self.issues.append(f"{at}.{key} must be whole numbers")
            items = []
        return np.array(items, dtype=np.int64)

    def counters(self, value: Any, key: str, at: str) -> dict[str, int]:
        """Return an object of counters."""
        counters = self.item(value, key, at, dict)
        return {name: self.number(counters, name, f"{at}.{key}") for name in counters}

    def objects(self, value: Any, key: str, at: str) -> list[dict[str, Any]]:
        """Return a list of objects."""
        items = self.item(value, key, at, list)
        if not all(isinstance(item, dict) for item in items):
            self.issues.append(f"{at}.{key}".removeprefix(".") + " must hold objects")
            return []
        return list(items)


_KINDS = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}
