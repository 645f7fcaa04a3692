"""What shards of every format have in common: their columns, and what they are known by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from shardprep.core.block import IDS, IDS_FIELD
from shardprep.core.content import ShardInfo
from shardprep.errors import ConfigError, ManifestError

ID, LENGTH, PIECE = "id", "length", "piece"


class Sink(Protocol):
    """Where a shard's bytes go: a file open for binary writing, or BytesIO."""

    def write(self, data: Any, /) -> Any:
        """Write all of the data."""
        ...


@dataclass(frozen=True, slots=True)
class ShardDigest:
    """What a shard is known by: sizes in bytes, SHA-256 in hex.

    The footer is the file's end, with its 8 last bytes; of RecordIO a file of its own. escapes: see ShardInfo.
    """

    rows: int
    tokens: int
    row_groups: int
    size_bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str
    escapes: int | None = None

    def info(self, name: str, split: str) -> ShardInfo:
        """Return what a manifest says of the shard under this name."""
        return ShardInfo(
            name=name,
            split=split,
            rows=self.rows,
            tokens=self.tokens,
            bytes=self.size_bytes,
            sha256=self.sha256,
            footer_bytes=self.footer_bytes,
            footer_sha256=self.footer_sha256,
            row_groups=self.row_groups,
            escapes=self.escapes,
        )


def shard_schema(columns: pa.Schema, pieces: bool, metadata: Mapping[str, str]) -> pa.Schema:
    """Return the schema of shards with these passed-through columns (an `id` or `piece` among them is left out).

    Raises ConfigError if a column takes a name of ours.
    """
    passed = [column for column in columns if column.name not in {ID, PIECE}]
    for column in passed:
        if column.name in {IDS, LENGTH}:
            raise ConfigError(f"--column {column.name}: shards have a column of that name already; rename the field")
    ours = [pa.field(ID, pa.string(), nullable=False), IDS_FIELD, pa.field(LENGTH, pa.int32(), nullable=False)]
    if pieces:
        ours.append(pa.field(PIECE, pa.int32(), nullable=False))
    fields = [*ours, *(pa.field(column.name, column.type) for column in passed)]
    return pa.schema(fields, metadata=dict(sorted(metadata.items())))


def schema_rows(schema: pa.Schema) -> tuple[dict[str, Any], ...]:
    """Return the schema as the manifest tells it."""
    return tuple({"name": f.name, "type": _type_name(f.type), "nullable": f.nullable} for f in schema)


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_type_name(kind.value_type)}>"
    return {"double": "float64"}.get(str(kind), str(kind))


def arrow_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Return the columns of shards from what a manifest says of them. Raises ManifestError for a type that none has."""
    return pa.schema([_field(row) for row in rows])


def _field(row: Mapping[str, Any]) -> pa.Field:
    name, kind = row.get("name"), str(row.get("type"))
    if name == IDS:
        return IDS_FIELD
    inner = kind.removeprefix("list<").removesuffix(">")
    if inner not in _TYPES:
        raise ManifestError(f"the manifest says that column {name!r} is {kind}, which this version does not read")
    element = _TYPES[inner]
    return pa.field(
        name, element if inner == kind else pa.list_(pa.field("element", element)), bool(row.get("nullable"))
    )


_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}
