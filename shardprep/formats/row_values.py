"""Ids and columns of chosen rows of some views, as numpy arrays and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import indices
from shardprep.formats.view import View

IGNORED = -100  # the target that torch's cross entropy leaves out
LABELS = ("label", "labels")  # the columns whose integers are targets
INTEGER_UNDER_MASK = np.iinfo(np.int64).min  # a null taken for a class or an index fails at once

Values = NDArray[Any] | list[str | None]


class ListColumn(tuple[Values, NDArray[np.int64]]):  # noqa: SLOT001  a tuple has no slots to give
    """A column of lists: (values, offsets); row i is values[offsets[i]:offsets[i + 1]].

    offsets  int64 (rows + 1,)
    null     bool (rows,): True where a row has no list, which then looks empty; None if every row has one
    """

    null: NDArray[np.bool_] | None

    def __new__(cls, values: Values, offsets: NDArray[np.int64], null: NDArray[np.bool_] | None = None) -> Self:
        """Return the pair, with the mask at its side."""
        pair = super().__new__(cls, (values, offsets))
        pair.null = null
        return pair

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self[0], self[1], self.null


@dataclass(frozen=True, eq=False)
class RowValues:
    """Which rows of which views: shard and row, int (rows,), with the views by shard; rows from `real` on are filler."""

    shard: NDArray[np.integer[Any]]
    row: NDArray[np.integer[Any]]
    views: Mapping[int, View]
    real: int

    def ids(self) -> list[str]:
        """Return the id of each row."""
        return self._strings("id")

    def columns(self) -> dict[str, Any]:
        """Return each column's values of these rows, in the order of the shard.

        int64, float64, bool   numpy array (rows,); with nulls among these rows a numpy masked array, which holds under
                               its mask NaN, False, -100 in an integer column called label or labels, or -2**63
        string                 list[str | None]
        list                   ListColumn: (values, offsets)
        Filler rows have the values of the row that they repeat, but -100 in an integer column (or column of lists of
        integers) called label or labels.
        """
        schema = next(iter(self.views.values())).block.columns.schema
        return {field.name: self._column(field) for field in schema if field.name != "id"}

    def _column(self, field: pa.Field) -> Any:
        if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            return self._lists(field)
        if not _is_fixed(field.type):
            return self._strings(field.name)
        out, null = self._fixed(field)
        if field.name in LABELS and out.dtype == np.int64:
            out[self.real :] = IGNORED
            null[self.real :] = False
        return np.ma.MaskedArray(out, null) if null.any() else out

    def _fixed(self, field: pa.Field) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        parts = {key: (*_numbers_once(view, field.name), view.first) for key, view in self.views.items()}
        # Row by row in plain values: rows of a batch come from many shards, and numpy by shard takes 6 us a shard.
        values, null = [], []
        for key, row in self._places():
            held, missing, first = parts[key]
            values.append(held[row - first])
            null.append(missing is not None and missing[row - first])
        dtype = np.dtype(next(iter(parts.values()))[0].format)
        return np.array(values, dtype=dtype), np.array(null, dtype=np.bool_)

    def _strings(self, name: str) -> list[Any]:
        parts = {key: _strings_once(view, name) for key, view in self.views.items()}
        out: list[Any] = []
        for key, row in self._places():
            data, offsets, missing, first = parts[key]
            at = row - first
            if missing is not None and missing[at]:
                out.append(None)
            else:
                out.append(str(data[offsets[at] : offsets[at + 1]], "utf-8"))
        return out

    def _places(self) -> Iterator[tuple[int, int]]:
        return zip(self.shard.tolist(), self.row.tolist(), strict=True)

    def _lists(self, field: pa.Field) -> ListColumn:
        groups = self._groups()
        taken = [view.block.columns.column(field.name).take(indices(rows)) for view, _, rows in groups]
        array = pa.concat_arrays(taken)
        if len(groups) > 1:
            order = np.argsort(np.concatenate([places for _, places, _ in groups]), kind="stable")
            array = array.take(indices(order))
        lengths = np.diff(_plain(array.offsets))  # 0 where there is no list: `take` leaves nothing under a null
        offsets = np.zeros(len(array) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = _list_values(array.flatten(), field.name)
        if field.name in LABELS and isinstance(values, np.ndarray) and values.dtype == np.int64:
            values[offsets[self.real] :] = IGNORED  # lifts the mask of nulls there, too
        return ListColumn(values, offsets, np.array(_plain(array.is_null())) if array.null_count else None)

    def _groups(self) -> list[tuple[View, NDArray[np.intp], NDArray[np.int64]]]:
        """Return for each view (view, places in the batch, rows in the view)."""
        found: list[tuple[View, NDArray[np.intp], NDArray[np.int64]]] = []
        for shard, view in self.views.items():
            places = np.flatnonzero(self.shard == shard)
            if len(places):
                found.append((view, places, self.row[places].astype(np.int64) - view.first))
        return found


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _numbers_once(view: View, name: str) -> tuple[memoryview, memoryview | None]:
    """Return a column's values and which are null; without nulls, numbers are the shard's own memory."""
    found: tuple[memoryview, memoryview | None] | None = view.kept.get(name)
    if found is None:
        values, null = _to_numpy(view.block.columns.column(name), name)
        found = view.kept[name] = (values.data, None if null is None else null.data)
    return found


def _strings_once(view: View, name: str) -> tuple[memoryview, memoryview, memoryview | None, int]:
    """Return a column's UTF-8 bytes, the offsets of its values in them, which are null, and the view's first row."""
    found: tuple[memoryview, memoryview, memoryview | None, int] | None = view.kept.get(name)
    if found is None:
        array = view.block.columns.column(name)
        _, offsets, data = array.buffers()
        kind = np.int64 if pa.types.is_large_string(array.type) else np.int32
        places = np.frombuffer(offsets, dtype=kind)[array.offset : array.offset + len(array) + 1]
        null = _plain(array.is_null()).data if array.null_count else None
        found = view.kept[name] = (memoryview(data or b""), places.data, null, view.first)
    return found


def _to_numpy(array: pa.Array, name: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return values, int64, float64 or bool (rows,), and which are null, or None if none is."""
    kind = array.type
    if pa.types.is_integer(kind):
        under: Any = IGNORED if name in LABELS else INTEGER_UNDER_MASK
        array = array.cast(pa.int64())
    elif pa.types.is_floating(kind):
        under, array = np.nan, array.cast(pa.float64())
    else:
        under = False
    if not array.null_count:
        return _plain(array), None
    return _plain(array.fill_null(pa.scalar(under, type=array.type))), _plain(array.is_null())


def _plain(array: pa.Array) -> NDArray[Any]:
    """Return numbers or bools without nulls; not by `to_numpy`, which imports pandas where that is installed."""
    if pa.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)


def _list_values(array: pa.Array, name: str) -> Values:
    if not _is_fixed(array.type):
        return cast("list[str | None]", array.to_pylist())
    values, null = _to_numpy(array, name)
    values = np.array(values)  # the caller's own, to change
    return values if null is None else np.ma.MaskedArray(values, np.array(null))
