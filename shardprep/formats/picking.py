"""Picking: from one parsed JSON value to a document, or to the reason why it is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shardprep.formats.containers import BOM
from shardprep.formats.fields import (
    MISSING,
    ColumnSpec,
    FieldPath,
    Fields,
    Inexact,
    converter,
    describe,
    id_of,
    observed_types,
)
from shardprep.formats.keys import KeyFinder
from shardprep.formats.reasons import Reason, Refused
from shardprep.formats.refusals import read_exactly


@dataclass(slots=True)
class Document:
    """One good document.

    offset  byte where it begins in its object, after decompression; line  physical line, 1-based; LF alone ends a line
    columns one value per Fields.columns; group  value of the --split-by field, else None
    ref     where the text is to be fetched from (augmented manifests); the text is "" then. Else None
    """

    id: str
    text: str
    offset: int
    line: int
    columns: tuple[object, ...] = ()
    group: str | None = None
    ref: str | None = None


class Picker:
    """Picks text, id, group and columns; notes the types of undeclared columns in `column_types`."""

    def __init__(self, fields: Fields, *, source_ref: bool) -> None:
        self.column_types: dict[str, dict[str, str]] = {c.name: {} for c in fields.columns if c.type is None}
        self._source_ref = source_ref
        self._text_name = fields.text
        self._text = _Getter(fields.text)
        self._id = _Getter(fields.id) if fields.id is not None else None
        self._group = _Getter(fields.split_by) if fields.split_by is not None else None
        self._columns = tuple(_Column(spec) for spec in fields.columns)
        names = {key for getter in self._getters() for key in getter.path.keys}
        if source_ref:
            names |= {"source", "source-ref"}
        self._keys = KeyFinder(names)

    def document(
        self, value: Any, raw: bytes, *, name: str, default_id: str, line: int, offset: int, in_range: bool = False
    ) -> Document:
        """Return the document behind a parsed JSON value whose bytes are raw; raise Refused.

        name: the object's. in_range: line counts from the start of a range, so offsets tell places.
        """
        if type(value) is not dict:
            raise Refused(Reason.NOT_AN_OBJECT, f"{describe(value)} where an object belongs")
        exact = self._keys.may_repeat(raw)
        if exact:
            value = read_exactly(raw.removeprefix(BOM))
        try:
            document, types = self._pick(value, default_id, line, offset, exact=exact)
        except Inexact:
            value = read_exactly(raw.removeprefix(BOM))
            document, types = self._pick(value, default_id, line, offset, exact=True)
        for column, kinds in types:
            seen = self.column_types[column]
            for kind in kinds:
                if kind not in seen:
                    seen[kind] = f"{name}#{offset}" if in_range else f"{name}:{line}"
        return document

    def text_of(self, value: dict[str, Any], raw: bytes) -> str:
        """Return the text of a parsed JSON object, whose bytes are raw; raise Refused."""
        return self._text_of(read_exactly(raw) if self._keys.may_repeat(raw) else value)

    def _pick(
        self, value: dict[str, Any], default_id: str, line: int, offset: int, *, exact: bool
    ) -> tuple[Document, list[tuple[str, tuple[str, ...]]]]:
        ref = None
        if self._source_ref:
            text, ref = self._inline_or_ref(value)
        else:
            text = self._text_of(value)
        identity = default_id if self._id is None else self._id_of(value, exact=exact)
        group = None if self._group is None else self._group_of(value, exact=exact)
        types: list[tuple[str, tuple[str, ...]]] = []
        columns = tuple([column.value(value, types, exact=exact) for column in self._columns]) if self._columns else ()
        return Document(identity, text, offset, line, columns, group, ref), types

    def _text_of(self, value: dict[str, Any]) -> str:
        text = self._text.get(value)
        if type(text) is str and text:
            return text
        raise self._bad_text(text, self._text_name, self._text.path.explain(value) if text is MISSING else "")

    def _bad_text(self, text: Any, name: str, why_missing: str) -> Refused:
        if text is MISSING:
            return Refused(Reason.MISSING_TEXT, why_missing)
        if text is None:
            return Refused(Reason.NULL_TEXT, f'"{name}" is null')
        if text == "":
            return Refused(Reason.EMPTY_TEXT, f'"{name}" is empty')
        return Refused(Reason.TEXT_WRONG_TYPE, f'"{name}" is {describe(text)}, not a string')

    def _inline_or_ref(self, value: dict[str, Any]) -> tuple[str, str | None]:
        """Return the inline text, or "" and the reference of an augmented manifest's line.

        The text field wins, then `source`, then `source-ref`: what is at hand is not fetched, and a `source` that
        only names where a text came from is never taken for the text.
        """
        if self._text.get(value) is not MISSING or not ("source" in value or "source-ref" in value):
            return self._text_of(value), None
        text = value.get("source", MISSING)
        if text is not MISSING:
            if type(text) is str and text:
                return text, None
            raise self._bad_text(text, "source", "")
        ref = value.get("source-ref")
        if type(ref) is not str or not ref:
            raise Refused(Reason.REFERENCE_WRONG_TYPE, f'"source-ref" is {describe(ref)}, not the URI of an object')
        return "", ref

    def _id_of(self, value: dict[str, Any], *, exact: bool) -> str:
        assert self._id is not None
        found = self._id.get(value)
        if type(found) is str:
            return found
        if found is MISSING:
            raise Refused(Reason.MISSING_ID, self._id.path.explain(value))
        if found is None:
            raise Refused(Reason.NULL_ID, f'"{self._id.path.name}" is null')
        identity = id_of(found, exact=exact)
        if identity is None:
            raise Refused(
                Reason.ID_WRONG_TYPE, f'"{self._id.path.name}" is {describe(found)}, neither string nor integer'
            )
        return identity

    def _group_of(self, value: dict[str, Any], *, exact: bool) -> str:
        assert self._group is not None
        name = self._group.path.name
        found = self._group.get(value)
        if found is MISSING:
            raise Refused(Reason.MISSING_GROUP, self._group.path.explain(value))
        if found is None:
            raise Refused(Reason.MISSING_GROUP, f'"{name}" is null')
        group = id_of(found, exact=exact)
        if group is None:
            raise Refused(Reason.GROUP_WRONG_TYPE, f'"{name}" is {describe(found)}, neither string nor integer')
        return group

    def _getters(self) -> Iterable[_Getter]:
        yield self._text
        if self._id is not None:
            yield self._id
        if self._group is not None:
            yield self._group
        for column in self._columns:
            yield column.getter


class _Getter:
    """A path, and the shortest way to its value."""

    def __init__(self, name: str) -> None:
        self.path = FieldPath(name)
        self.get: Callable[[dict[str, Any]], Any] = self.path.get
        if "." not in name:
            self.get = lambda value: value.get(name, MISSING)


class _Column:
    """One column: its value held to the declared type, or its types noted."""

    def __init__(self, spec: ColumnSpec) -> None:
        self.getter = _Getter(spec.name)
        self._name = spec.name
        self._convert = converter(spec.type) if spec.type is not None else None

    def value(self, document: dict[str, Any], types: list[tuple[str, tuple[str, ...]]], *, exact: bool) -> Any:
        found = self.getter.get(document)
        if found is None or found is MISSING:
            return None
        try:
            if self._convert is not None:
                return self._convert(found, exact)
            types.append((self._name, observed_types(found, exact=exact)))
        except Refused as why:
            if why.reason is not Reason.DUPLICATE_KEY:
                why.detail = f'"{self._name}": {why.detail}'
            raise
        return found
