"""Evaluation results as read: columns, the place of each row, and everything that is wrong with them, by line."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardprep.errors import NotFound, SourceError, StoreError
from shardprep.storage.store import NO_OPTIONS, Store, local_path_of, open_store, split_uri

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
PARQUET_MAGIC = b"PAR1"
ENDINGS = (".jsonl", ".json", ".parquet")
NAMED = 3  # rows or ids in a message
LARGEST = 1e50  # a result beyond it is no result; within, the squares of weighted differences are finite
_PART = re.compile(r"(?P<stem>.*?)-?(?P<index>\d+)-of-(?P<parts>\d+)\.\w+")
_ABSENT = object()


class ResultFile:
    """The results of one evaluation as read: columns of values, and where each row came from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: dict[str, list[Any]] = {}
        self.rows = 0
        self._starts: list[tuple[int, str, list[int] | None]] = []  # first row, file, its line numbers (None: Parquet)

    def place(self, row: int) -> str:
        """Return where a row stands, for a message."""
        start, name, lines = next(part for part in reversed(self._starts) if part[0] <= row)
        return f"{name} row {row - start + 1}" if lines is None else f"{name} line {lines[row - start]}"

    def add_part(self, name: str, data: bytes) -> None:
        """Read one file. Raises SourceError that names file and line."""
        self._starts.append((self.rows, name, None))
        if data[:4] == PARQUET_MAGIC:
            columns, rows = _parquet_columns(name, data)
        else:
            columns, rows, lines = _json_columns(name, data)
            self._starts[-1] = (self.rows, name, lines)
        if rows:
            for missing in self.columns.keys() - columns.keys():
                columns[missing] = [_ABSENT] * rows
            for column, values in columns.items():
                self.columns.setdefault(column, [_ABSENT] * self.rows).extend(values)
        self.rows += rows

    def numbers(self, column: str, rows: Indices | None = None) -> Floats:
        """Return a column at some rows (default: all) as float64, true and false as 1 and 0.

        Raises SourceError that names the rows that hold no finite number, or one beyond LARGEST.
        """
        values = self.columns[column]
        if rows is not None:
            values = [values[i] for i in rows.tolist()]
        if not set(map(type, values)) <= {int, float, bool}:
            values = [value if isinstance(value, int | float) else np.nan for value in values]
        try:
            numbers = np.array(values, np.float64)
        except OverflowError:  # a whole number that no float can hold
            numbers = np.array([value if -LARGEST <= value <= LARGEST else np.nan for value in values], np.float64)
        wrong = np.flatnonzero(~(np.abs(numbers) <= LARGEST))
        if len(wrong):
            wrong = wrong if rows is None else rows[wrong]
            first = ", ".join(f"{self.place(i)} ({_told(self.columns[column][i])})" for i in wrong[:NAMED].tolist())
            more = f" and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
            limit = "" if np.isnan(numbers).any() or np.isinf(numbers).any() else f" within {LARGEST:.0e}"
            raise SourceError(
                f"{self.name}: {_counted(len(wrong))} no finite number{limit} in {column}: {first}{more}. A row that could not be "
                "evaluated is a result too: leaving it out would favour one side. Evaluate it again, or take its id out of "
                "both files on purpose",
                key=self.name,
            )
        return numbers

    def labels(self, column: str, rows: Indices) -> list[str]:
        """Return a column of any type at some rows, as text. Raises SourceError where there is none."""
        values = self.columns[column]
        empty = next((i for i in rows.tolist() if values[i] is None or values[i] is _ABSENT), None)
        if empty is not None:
            raise SourceError(f"{self.place(empty)}: no {column}, which groups rows", key=self.name)
        return [str(values[i]) for i in rows.tolist()]

    def ids(self) -> list[str]:
        """Return the ids, with the piece where documents were cut: "id" or "id piece 2"."""
        found = self.columns.get("id")
        if found is None:
            has = ", ".join(sorted(self.columns)) or "no columns"
            raise SourceError(f'{self.name}: rows need an "id" to be paired by; they have {has}', key=self.name)
        for i, value in enumerate(found):
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise SourceError(
                    f'{self.place(i)}: "id" must be a text or a whole number, got {_told(value)}', key=self.name
                )
        pieces = self.columns.get("piece")
        if pieces is None:
            return [str(value) for value in found]
        return [
            str(value) if piece is None or piece is _ABSENT else f"{value} piece {piece}"
            for value, piece in zip(found, pieces, strict=True)
        ]


def read_results(uri: str, *, options: Mapping[str, str] = NO_OPTIONS) -> ResultFile:
    """Read a file of results, or a folder or prefix of parts, from a local path or any URI.

    Raises SourceError for a broken file or missing parts, StoreError (NotFound) if there is none.
    """
    result = ResultFile(uri)
    for name, data in _files(uri, options):
        result.add_part(name, data)
    if not result.rows:
        raise SourceError(f"{uri}: no rows in it", key=uri)
    return result


def _files(uri: str, options: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    path = local_path_of(uri)
    if path is not None and not os.path.isdir(path):
        try:
            with open(path, "rb") as file:  # not by the store: a pipe has no size
                data = file.read()
        except FileNotFoundError as error:
            raise NotFound(f"{uri}: no such file", uri=uri) from error
        except OSError as error:
            raise StoreError(f"{uri}: it cannot be read ({error.strerror})", uri=uri) from error
        yield uri, data
        return
    if path is None and not uri.endswith("/"):
        root, key = split_uri(uri)
        with suppress(NotFound):
            yield uri, open_store(root, options=options).get(key)
            return
    folder = open_store(uri.rstrip("/"), options=options)
    for name in _parts(folder, uri):
        yield f"{uri.rstrip('/')}/{name}", folder.get(name)


def _parts(folder: Store, uri: str) -> list[str]:
    """Return the names of all parts in a folder, in order; raise where there are none, or not all of them."""
    keys = [key for page in folder.list() for key in page.keys.to_pylist()]
    names = sorted(key for key in keys if "/" not in key and key[0] not in "._" and key.endswith(ENDINGS))
    if not names:
        raise NotFound(f"{uri}: no results there, neither a file nor a folder of .jsonl or .parquet files", uri=uri)
    parts = [_PART.fullmatch(name) for name in names]
    totals = {int(part["parts"]) for part in parts if part}
    indexes = {int(part["index"]) for part in parts if part}
    if len(totals) > 1 or (totals and (None in parts or indexes != set(range(max(totals))))):
        raise SourceError(
            f"{uri}: not one whole set of parts: it holds {', '.join(names[:10])}. A rank did not finish its evaluation, or "
            "another evaluation wrote into the same folder; give each evaluation a folder of its own",
            key=uri,
        )
    return names


def _json_columns(name: str, data: bytes) -> tuple[dict[str, list[Any]], int, list[int]]:
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _row(name, number, line)
        for column in row.keys() - columns.keys():
            columns[column] = [_ABSENT] * len(lines)
        for column, values in columns.items():
            values.append(row.get(column, _ABSENT))
        lines.append(number)
    return columns, len(lines), lines


def _row(name: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except ValueError:
        try:
            row = json.loads(line)  # NaN and Infinity, as Python writes them
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{name} line {number}: not JSON ({error}); results are one JSON object a line", key=name, line=number
            ) from error
    if not isinstance(row, dict):
        raise SourceError(
            f"{name} line {number}: not a JSON object; results are one object a line", key=name, line=number
        )
    return row


def _parquet_columns(name: str, data: bytes) -> tuple[dict[str, list[Any]], int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{name}: not a whole Parquet file ({error})", key=name) from error
    return {column: table.column(column).to_pylist() for column in table.column_names}, table.num_rows


def _told(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "nothing"
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a whole number beyond {LARGEST:.0e}"  # Python writes no more than some thousand digits
    return repr(value)


def _counted(rows: int) -> str:
    return "1 row has" if rows == 1 else f"{rows:,} rows have"
