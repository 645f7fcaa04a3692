"""Fields: which value of a document is the text, the id, the group, a column; paths and exact types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardprep.errors import ConfigError
from shardprep.formats.reasons import Reason, Refused

RESERVED_COLUMNS = frozenset({"id", "input_ids", "length", "piece"})
SCALAR_TYPES = ("string", "int64", "float64", "bool")
COLUMN_TYPES = (*SCALAR_TYPES, *(f"list<{name}>" for name in SCALAR_TYPES))
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# The parser turns integers beyond 64 bits into floats of at least this size: such a float may be a rounded integer.
ROUNDED_FROM = float(2**63)
WIDE_INT64 = "wide int64"  # beyond EXACT_IN_FLOAT64: int64 for the user, but never to be mixed with floats
EXACT_IN_FLOAT64 = 2**53  # up to here every integer is a float64; Arrow casts no larger ones

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "MISSING"})()


class Inexact(Exception):
    """A number came out as a float where it may have been an integer beyond 64 bits: read the document exactly."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column to pass through.

    name  as given, and the column's name in the shards; path  its dotted parts
    type  one of COLUMN_TYPES, or None: taken from the data
    """

    name: str
    path: tuple[str, ...]
    type: str | None

    @classmethod
    def parse(cls, text: str) -> ColumnSpec:
        """Return the column behind `label`, `label:int64` or `meta.tags:list<string>`. Raises ConfigError."""
        name, colon, kind = text.rpartition(":")
        if not colon:
            name, kind = text, ""
        name, kind = name.strip(), kind.strip().replace(" ", "")
        if not name:
            raise ConfigError(f"--column {text!r} names no field; write it as label or label:int64", column=text)
        if colon and kind not in COLUMN_TYPES:
            known = ", ".join(COLUMN_TYPES)
            raise ConfigError(f"--column {text}: unknown type {kind!r}; known are {known}", column=text)
        if name in RESERVED_COLUMNS:
            raise ConfigError(
                f"--column {text}: {name!r} is a column of every shard already; rename the field", column=text
            )
        return cls(name, tuple(name.split(".")), kind or None)


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a document are used. Paths are dotted; a key that contains the dot itself wins.

    id: None for ids made from places. split_by: None, or the field whose value keeps a group together.
    """

    text: str = "text"
    id: str | None = None
    columns: tuple[ColumnSpec, ...] = ()
    split_by: str | None = None

    def __post_init__(self) -> None:
        for flag, name in (("--text-field", self.text), ("--id-field", self.id), ("--split-by", self.split_by)):
            if name == "":
                raise ConfigError(f"{flag} is empty; give the name of a field")
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"--column {twice[0]} is given twice", column=twice[0])


class FieldPath:
    """A dotted path into a document. At every level the longest key that is there wins: a key "a.b" before a then b."""

    def __init__(self, name: str) -> None:
        self.name = name
        parts = name.split(".")
        # (key, the path from there on), longest key first.
        self._choices = tuple(
            (".".join(parts[:count]), FieldPath(".".join(parts[count:])) if count < len(parts) else None)
            for count in range(len(parts), 0, -1)
        )

    @property
    def keys(self) -> set[str]:
        """Return every key that a look-up may ask for, on any level."""
        return {key for key, _ in self._choices}.union(*(rest.keys for _, rest in self._choices if rest))

    def get(self, value: dict[str, Any]) -> Any:
        """Return the value at the path, or MISSING. Lists are never looked into."""
        for key, rest in self._choices:
            found = value.get(key, MISSING)
            if found is not MISSING:
                if rest is None:
                    return found
                return rest.get(found) if isinstance(found, dict) else MISSING
        return MISSING

    def explain(self, value: dict[str, Any]) -> str:
        """Return why `get` finds nothing."""
        for key, rest in self._choices:
            found = value.get(key, MISSING)
            if found is not MISSING and rest is not None:
                if isinstance(found, dict):
                    return f'inside "{key}": {rest.explain(found)}'
                return f'"{key}" is {describe(found)}, not an object with "{rest.name}" in it'
        return f'there is no "{self.name}"'


def describe(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a string", int: "an integer", float: "a number with a fraction or exponent", list: "a list"}
    return names.get(type(value), type(value).__name__)


def id_of(value: Any, *, exact: bool) -> str | None:
    """Return a string as it is and an integer as decimal string, None for any other type. Raises Inexact."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    check_exact(value, exact=exact)
    return None


def check_exact(value: Any, *, exact: bool) -> None:
    """Raise Inexact where a float may be an integer that the parser rounded; never once read exactly."""
    if not exact and type(value) is float and not -ROUNDED_FROM < value < ROUNDED_FROM:
        raise Inexact


def converter(kind: str) -> Callable[[Any, bool], Any]:
    """Return the function (value, exact) -> value that holds non-null values of a declared column to its type.

    Types are exact: int64 takes integers only (neither true nor 1.0), float64 also integers that it can hold without
    rounding. Elements of lists may be null. The function raises Refused, or Inexact.
    """
    if kind.startswith("list<"):
        element = converter(kind[5:-1])

        def to_list(value: Any, exact: bool) -> list[Any]:
            if type(value) is not list:
                raise _wrong_type(value, kind)
            return [None if item is None else element(item, exact) for item in value]

        return to_list
    return {"string": _to_string, "int64": _to_int64, "float64": _to_float64, "bool": _to_bool}[kind]


def _to_string(value: Any, exact: bool) -> str:
    if type(value) is not str:
        check_exact(value, exact=exact)
        raise _wrong_type(value, "string")
    return value


def _to_bool(value: Any, exact: bool) -> bool:
    if type(value) is not bool:
        check_exact(value, exact=exact)
        raise _wrong_type(value, "bool")
    return value


def _to_int64(value: Any, exact: bool) -> int:
    if type(value) is not int:
        check_exact(value, exact=exact)
        raise _wrong_type(value, "int64")
    return _in_range(value)


def _to_float64(value: Any, exact: bool) -> float:
    if type(value) is float:
        check_exact(value, exact=exact)
        return value
    if type(value) is not int:
        raise _wrong_type(value, "float64")
    number = float(value)  # no overflow: the parser refuses what float64 cannot reach
    if number != value:
        raise Refused(
            Reason.NUMBER_NOT_EXACT, f"float64 can only round the integer {value}; declare it as string or int64"
        )
    return number


def _in_range(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise Refused(Reason.INTEGER_OUT_OF_RANGE, f"the integer {value} does not fit into 64 bits")
    return value


def _wrong_type(value: Any, kind: str) -> Refused:
    return Refused(Reason.COLUMN_WRONG_TYPE, f"{describe(value)}, not {kind}")


def observed_types(value: Any, *, exact: bool) -> tuple[str, ...]:
    """Return the types that an undeclared column's value speaks for: none for null, several for a mixed list.

    Lists give list<...> per element type, list<null> where they have no non-null element. An object, or a list that
    holds lists or objects, gives "object" or "list<object>", which no column can have. Raises Refused for integers
    beyond 64 bits, or Inexact.
    """
    if value is None:
        return ()
    if type(value) is list:
        kinds = {f"list<{kind}>": None for item in value for kind in observed_types(item, exact=exact)}
        if any(kind.startswith("list<list<") for kind in kinds):
            return ("list<object>",)
        return tuple(kinds) or ("list<null>",)
    if type(value) is int:
        return ("int64",) if abs(_in_range(value)) <= EXACT_IN_FLOAT64 else (WIDE_INT64,)
    check_exact(value, exact=exact)
    return ({str: "string", bool: "bool", float: "float64"}.get(type(value), "object"),)
