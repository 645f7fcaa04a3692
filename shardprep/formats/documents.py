"""Documents: an object's bytes, in any container shape, to documents and to what is set aside. No storage.

orjson reads everything. What it refuses is read again for the true reason (refusals.py); so is a document in which a
field may be there twice, or a number may have been rounded. What every reason means: reasons.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from shardprep.formats.columns import columns_to_arrow, merge_types
from shardprep.formats.containers import BOM, is_lines, unpack
from shardprep.formats.fields import ColumnSpec, Fields, describe
from shardprep.formats.picking import Document, Picker
from shardprep.formats.reasons import Reason, Refused
from shardprep.formats.refusals import element_spans, refusal

__all__ = [
    "ColumnSpec",
    "Document",
    "DocumentParser",
    "Fields",
    "Parsed",
    "Reason",
    "Reject",
    "columns_to_arrow",
    "is_lines",
    "merge_types",
]

RAW_BYTES_MAX = 4096  # the bytes of a bad document are kept up to this size
# A file above this is looked at for lines before it is tried as one value: a failed try costs a copy of it.
TRY_WHOLE_BYTES = 1 << 16
BLANK = b" \t\r"


@dataclass(slots=True)
class Reject:
    """One document, or whole object, that is set aside; raw is b"" above RAW_BYTES_MAX; line None where unknown."""

    line: int | None
    offset: int
    reason: Reason
    detail: str
    raw: bytes


@dataclass(slots=True)
class Parsed:
    """What one object, or one range of lines, holds: found = len(documents) + len(rejects); lines = LF bytes."""

    documents: list[Document]
    rejects: list[Reject]
    found: int
    lines: int


class DocumentParser:
    """Parses objects one after the other; one parser per thread.

    column_types gathers the types of undeclared columns, over good documents only: column -> {type: "name:line" where
    it was first seen} ("name#offset" in a range that does not start at 0). Null is no type.
    """

    def __init__(self, fields: Fields, *, max_object_bytes: int = 256_000_000, source_ref: bool = False) -> None:
        """source_ref: lines are those of a SageMaker augmented manifest, see `Document.ref`."""
        self._picker = Picker(fields, source_ref=source_ref)
        self._max_bytes = max_object_bytes
        self._try_whole_bytes = min(TRY_WHOLE_BYTES, max_object_bytes)
        self.column_types = self._picker.column_types

    def parse_object(self, name: str, data: bytes) -> Parsed:
        """Return the documents of a whole object, in any container and compression; never raises for bad data."""
        if data[:1] == b"{" and len(data) <= self._try_whole_bytes:
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError:
                pass  # lines, perhaps
            else:
                return self._single(name, data, value, offset=0)
        try:
            data = unpack(data, self._max_bytes)
        except Refused as why:
            return _whole(data, why)
        if is_lines(data, complete=True):
            return self.parse_lines(name, data, 0)
        return self._one_value(name, data)

    def parse_lines(self, name: str, data: bytes, base_offset: int) -> Parsed:
        """Return the documents of whole lines that lie at byte base_offset of an object of lines.

        Line numbers count from 1 at the start of data; ids and offsets count from the start of the object.
        """
        documents: list[Document] = []
        rejects: list[Reject] = []
        start, stop, line = 0, len(data), 0
        while start < stop:
            end = data.find(b"\n", start)
            if end < 0:
                end = stop
            line += 1
            offset = base_offset + start
            raw = data[start:end]
            start = end + 1
            if offset == 0 and raw.startswith(BOM):
                raw = raw[len(BOM) :]
            try:
                document = self._line(name, raw, line, offset, in_range=base_offset > 0)
                if document is not None:
                    documents.append(document)
            except Refused as why:
                rejects.append(_reject(raw, why, line, offset))
        return Parsed(documents, rejects, len(documents) + len(rejects), data.count(b"\n"))

    def text_behind(self, data: bytes) -> str:
        """Return the text of an object that a `source-ref` names: a JSON object's text field, else all of it as UTF-8.

        Raises Refused with the reason.
        """
        data = unpack(data, self._max_bytes).removeprefix(BOM)
        if not data.strip(BLANK + b"\n"):
            raise Refused(Reason.EMPTY_OBJECT, "no text in it")
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                raise refusal(data, error) from None
        if not isinstance(value, dict):
            return data.decode("utf-8")
        return self._picker.text_of(value, data)

    def _line(self, name: str, raw: bytes, line: int, offset: int, *, in_range: bool) -> Document | None:
        if len(raw) > self._max_bytes:
            raise Refused(Reason.TOO_LARGE, f"a line of {len(raw)} bytes, more than the {self._max_bytes} allowed")
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            if not raw.strip(BLANK):
                return None
            raise refusal(raw, error) from None
        return self._picker.document(
            value, raw, name=name, default_id=f"{name}#{offset}", line=line, offset=offset, in_range=in_range
        )

    def _one_value(self, name: str, data: bytes) -> Parsed:
        body = data.removeprefix(BOM)
        start = len(data) - len(body)
        if not body.strip(BLANK + b"\n"):
            return _whole(data, Refused(Reason.EMPTY_OBJECT, "no bytes" if not data else "white space only"))
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return _whole(data, refusal(body, error))
        if isinstance(value, dict):
            return self._single(name, data, value, offset=start)
        if isinstance(value, list) and (not value or any(isinstance(element, dict) for element in value)):
            return self._array(name, data, value)
        what = "an array without objects" if isinstance(value, list) else describe(value)
        return _whole(data, Refused(Reason.NOT_AN_OBJECT, f"{what} where an object belongs"))

    def _single(self, name: str, data: bytes, value: dict[str, Any], *, offset: int) -> Parsed:
        line, feeds = 1, data.count(b"\n") if b"\n" in data else 0
        if data[offset] != 0x7B:  # white space before the object
            brace = data.index(b"{", offset)
            line += data.count(b"\n", 0, brace)
            offset = brace
        elif offset:
            offset = 0  # a byte order mark belongs to the document's first line
        try:
            document = self._picker.document(
                value, data[offset:] if offset else data, name=name, default_id=name, line=line, offset=offset
            )
        except Refused as why:
            return Parsed([], [_reject(data, why, line, offset)], 1, feeds)
        return Parsed([document], [], 1, feeds)

    def _array(self, name: str, data: bytes, elements: list[Any]) -> Parsed:
        parsed = Parsed([], [], len(elements), data.count(b"\n"))
        line, counted = 1, 0
        for index, (value, (start, stop)) in enumerate(zip(elements, element_spans(data), strict=True)):
            line += data.count(b"\n", counted, start)
            counted = start
            raw = data[start:stop]
            try:
                document = self._picker.document(
                    value, raw, name=name, default_id=f"{name}#{index}", line=line, offset=start
                )
                parsed.documents.append(document)
            except Refused as why:
                parsed.rejects.append(_reject(raw, why, line, start))
        return parsed


def _reject(raw: bytes, why: Refused, line: int | None, offset: int) -> Reject:
    return Reject(line, offset, why.reason, why.detail, raw if len(raw) <= RAW_BYTES_MAX else b"")


def _whole(data: bytes, why: Refused) -> Parsed:
    """Return an object that yields no record: one found, one set aside."""
    return Parsed([], [_reject(data, why, why.line, 0)], 1, data.count(b"\n"))
