"""Passed-through columns: one type per column for the whole data set, and exact Arrow arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from shardprep.errors import TypeConflict
from shardprep.formats.fields import WIDE_INT64, ColumnSpec

_SCALARS = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type behind a column type such as "int64" or "list<string>"."""
    if kind.startswith("list<"):
        return pa.list_(pa.field("element", _SCALARS[kind[5:-1]]))
    return _SCALARS[kind]


def columns_to_arrow(
    specs: Sequence[ColumnSpec], types: Mapping[str, str], rows: Sequence[tuple[object, ...]]
) -> list[pa.Array]:
    """Return one Arrow array (rows,) per column, nulls by mask, nothing rounded.

    types: column -> type for the undeclared ones, as `merge_types` gives it; a declared type wins. Raises TypeConflict
    where a value does not fit the type exactly.
    """
    values: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else ([] for _ in specs)
    return [_array(spec, spec.type or types[spec.name], column) for spec, column in zip(specs, values, strict=True)]


def _array(spec: ColumnSpec, kind: str, values: Sequence[object]) -> pa.Array:
    try:
        if spec.type is None and kind in ("int64", "list<int64>") and pa.types.is_floating(_element(pa.array(values))):
            raise pa.ArrowInvalid("a number with a fraction")  # noqa: TRY301  Arrow would cut the fraction off
        return pa.array(values, type=arrow_type(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeConflict(
            f'"{spec.name}" holds a value that is not exactly {kind} ({error}); declare it: '
            f"--column {spec.name}:string sets such documents aside",
            column=spec.name,
        ) from error


def _element(array: pa.Array) -> pa.DataType:
    return array.type.value_type if pa.types.is_list(array.type) else array.type


def merge_types(reports: Iterable[Mapping[str, Mapping[str, str]]]) -> dict[str, str]:
    """Return one type per undeclared column from {column: {type: place first seen}} of every task, in task order.

    Rules. Nulls and empty lists fit every type; a column of nothing else is string (or list<string>). int64 and float64
    make float64, if no integer is beyond 2**53, up to where float64 holds them all. All else that differs raises
    TypeConflict, which names two places and two types.
    """
    merged: dict[str, dict[str, str]] = {}
    for report in reports:
        for column, seen in report.items():
            kinds = merged.setdefault(column, {})
            for kind, place in seen.items():
                kinds.setdefault(kind, place)
    return {column: _resolve(column, kinds) for column, kinds in merged.items()}


def _resolve(column: str, seen: dict[str, str]) -> str:
    for kind, place in seen.items():
        if "object" in kind:
            what = "an object" if kind == "object" else "a list of lists or objects"
            raise TypeConflict(
                f'"{column}" is {what} at {place}; a column holds strings, numbers, true and false, or lists of them. '
                f"A dotted path reaches inside an object: --column {column}.name:string",
                column=column,
                places=(place,),
                types=(kind,),
            )
    if not seen:
        return "string"
    lists = [kind for kind in seen if kind.startswith("list<")]
    if lists and len(lists) < len(seen):
        raise _conflict(column, seen, lists[0], next(kind for kind in seen if kind not in lists))
    if lists:
        inner = {kind[5:-1]: place for kind, place in seen.items() if kind != "list<null>"}
        return f"list<{_resolve_scalars(column, inner, seen)}>"
    return _resolve_scalars(column, seen, seen)


def _resolve_scalars(column: str, kinds: dict[str, str], seen: dict[str, str]) -> str:
    shown = {kind: next(full for full in seen if full in (kind, f"list<{kind}>")) for kind in kinds}
    numbers = {"int64", WIDE_INT64, "float64"}
    if not kinds:
        return "string"
    if set(kinds) <= {"int64", WIDE_INT64}:
        return "int64"
    if set(kinds) <= numbers:
        if WIDE_INT64 in kinds:
            raise _conflict(column, seen, shown[WIDE_INT64], shown["float64"])
        return "float64"
    if len(kinds) > 1:
        others = [kind for kind in kinds if kind not in numbers]
        rest = [kind for kind in kinds if kind != others[0]]
        raise _conflict(column, seen, shown[others[0]], shown[rest[0]])
    return next(iter(kinds))


def _conflict(column: str, seen: dict[str, str], one: str, other: str) -> TypeConflict:
    first, second = sorted((one, other), key=list(seen).index)
    names = [kind.replace(WIDE_INT64, "int64") for kind in (first, second)]
    why = " with an integer beyond 2**53, where float64 begins to round" if WIDE_INT64 in first + second else ""
    return TypeConflict(
        f'"{column}" is {names[0]} at {seen[first]} but {names[1]} at {seen[second]}{why}; declare it: '
        f"--column {column}:string sets the others aside",
        column=column,
        places=(seen[first], seen[second]),
        types=(names[0], names[1]),
    )
