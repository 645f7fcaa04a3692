"""RecordIO and recordio-protobuf by other hands: readers and writers made from the rules alone, and protobuf's own runtime."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.formats.shard import shard_schema

MAGIC = struct.pack("<I", 0xCED7230A)


def dmlc_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (byte where it begins, payload) of every record, as dmlc-core reads: word by word, the magic put back."""
    at = 0
    while at < len(data):
        begin, payload = at, b""
        while True:
            assert at % 4 == 0
            assert data[at : at + 4] == MAGIC, f"no magic at {at}"
            (word,) = struct.unpack_from("<I", data, at + 4)
            flag, length = word >> 29, word & (1 << 29) - 1
            part = data[at + 8 : at + 8 + length]
            assert len(part) == length, f"cut off behind {at}"
            at += 8 + (length + 3) // 4 * 4
            assert not data[at - (-length % 4) : at].strip(b"\0")
            payload += part
            if flag in (0, 3):
                assert (flag == 0) == (begin == at - 8 - (length + 3) // 4 * 4)
                break
            payload += MAGIC
        yield begin, payload


def dmlc_write(payload: bytes) -> bytes:
    """Return a record as dmlc-core writes it: RecordIOWriter::WriteRecord, in Python."""
    out, begin, aligned = b"", 0, len(payload) // 4 * 4
    for i in range(0, aligned, 4):
        if payload[i : i + 4] == MAGIC:
            out += MAGIC + struct.pack("<I", (1 if begin == 0 else 2) << 29 | (i - begin)) + payload[begin:i]
            begin = i + 4
    rest = payload[begin:]
    return out + MAGIC + struct.pack("<I", (3 if begin else 0) << 29 | len(rest)) + rest + b"\0" * (-len(rest) % 4)


@cache
def record_class() -> Any:
    """Return the class of aialgs.data.Record, from a descriptor that is made here."""
    file = descriptor_pb2.FileDescriptorProto(name="tests/record.proto", package="aialgs.data", syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[Any, ...], into: Any = None) -> Any:
        made = (file.message_type if into is None else into).add(name=name)
        for title, number, label, kind, *rest in fields:
            added = made.field.add(name=title, number=number, label=label, type=kind)
            if rest == ["packed"]:
                added.options.packed = True
            elif rest:
                (added.type_name,) = rest
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    for name, kind in (
        ("Float32Tensor", field.TYPE_FLOAT),
        ("Float64Tensor", field.TYPE_DOUBLE),
        ("Int32Tensor", field.TYPE_INT32),
    ):
        message(
            name,
            ("values", 1, many, kind, "packed"),
            ("keys", 2, many, field.TYPE_UINT64, "packed"),
            ("shape", 3, many, field.TYPE_UINT64, "packed"),
        )
    message("Bytes", ("value", 1, many, field.TYPE_BYTES), ("content_type", 2, one, field.TYPE_STRING))
    value = message(
        "Value",
        ("float32_tensor", 2, one, field.TYPE_MESSAGE, ".aialgs.data.Float32Tensor"),
        ("float64_tensor", 3, one, field.TYPE_MESSAGE, ".aialgs.data.Float64Tensor"),
        ("int32_tensor", 7, one, field.TYPE_MESSAGE, ".aialgs.data.Int32Tensor"),
        ("bytes", 9, one, field.TYPE_MESSAGE, ".aialgs.data.Bytes"),
    )
    value.oneof_decl.add(name="value")
    for part in value.field:
        part.oneof_index = 0
    record = message(
        "Record",
        ("features", 1, many, field.TYPE_MESSAGE, ".aialgs.data.Record.FeaturesEntry"),
        ("label", 2, many, field.TYPE_MESSAGE, ".aialgs.data.Record.LabelEntry"),
        ("uid", 3, one, field.TYPE_STRING),
        ("metadata", 4, one, field.TYPE_STRING),
        ("configuration", 5, one, field.TYPE_STRING),
    )
    for name in ("FeaturesEntry", "LabelEntry"):
        entry = message(
            name,
            ("key", 1, one, field.TYPE_STRING),
            ("value", 2, one, field.TYPE_MESSAGE, ".aialgs.data.Value"),
            into=record.nested_type,
        )
        entry.options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("aialgs.data.Record"))


def record_of(row: dict[str, Any], types: dict[str, str]) -> Any:
    """Return a row as docs/recordio.md says, made by protobuf's runtime."""
    record = record_class()(uid=row["id"])
    record.features["values"].int32_tensor.values.extend(row["input_ids"])
    record.features["values"].int32_tensor.SetInParent()
    for name, kind in types.items():
        if row[name] is None:
            continue
        value = record.label["values"] if name == "label" else record.features[name]
        inner = kind.removeprefix("list<").removesuffix(">")
        items = row[name] if inner != kind else [row[name]]
        fits = None not in items and (
            inner != "int64" or (name == "label" and all(-(2**31) <= i < 2**31 for i in items))
        )
        if fits and inner in ("int64", "bool", "int32"):
            value.int32_tensor.SetInParent()
            value.int32_tensor.values.extend(map(int, items))
        elif fits and inner == "float64":
            value.float64_tensor.SetInParent()
            value.float64_tensor.values.extend(items)
        else:
            value.bytes.SetInParent()
            value.bytes.value.extend(_element(item, inner) for item in items)
    return record


def _element(item: Any, kind: str) -> bytes:
    if item is None:
        return b"\xff"
    packing = {"int64": "<q", "float64": "<d", "bool": "?"}
    return item.encode() if kind == "string" else struct.pack(packing[kind], item)


def row_of(record: Any, types: dict[str, str]) -> dict[str, Any]:
    """Return the row in a record, read as docs/recordio.md says."""
    row: dict[str, Any] = {"id": record.uid, "input_ids": list(record.features["values"].int32_tensor.values)}
    for name, kind in types.items():
        held, key = (record.label, "values") if name == "label" else (record.features, name)
        if key not in held:
            row[name] = None
            continue
        value, inner = held[key], kind.removeprefix("list<").removesuffix(">")
        form = value.WhichOneof("value")
        if form == "bytes":
            items = [_value(item, inner) for item in value.bytes.value]
        else:
            items = list(getattr(value, form).values)
            items = [bool(item) for item in items] if inner == "bool" else items
        if inner == kind:
            (items,) = items
        row[name] = items
    return row


def _value(item: bytes, kind: str) -> Any:
    if item == b"\xff":
        return None
    packing = {"int64": "<q", "float64": "<d", "bool": "?"}
    return item.decode() if kind == "string" else struct.unpack(packing[kind], item)[0]


def records_in(data: bytes, schema: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a shard, read by the rules and protobuf alone; the schema is a manifest's."""
    ours = ("id", "input_ids", "length")
    types = {field["name"]: field["type"] for field in schema if field["name"] not in ours}
    return [row_of(record_class().FromString(payload), types) for _, payload in dmlc_records(data)]


ARROW = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(), "int32": pa.int32()}


def arrow(kind: str) -> pa.DataType:
    inner = kind.removeprefix("list<").removesuffix(">")
    return ARROW[inner] if inner == kind else pa.list_(pa.field("element", ARROW[inner]))


def block_of(rows: Sequence[dict[str, Any]], types: dict[str, str]) -> tuple[TokenBlock, pa.Schema]:
    """Return rows as a block, and the schema of shards of them."""
    fields = [pa.field("id", pa.string(), nullable=False)]
    fields += [pa.field(name, arrow(kind), nullable=name != "piece") for name, kind in types.items()]
    columns = pa.schema(fields)
    arrays = [pa.array([row[f.name] for row in rows], f.type) for f in fields]
    ids = np.array([i for row in rows for i in row["input_ids"]], dtype=np.int32)
    offsets = offsets_of(np.array([len(row["input_ids"]) for row in rows], dtype=np.int64))
    schema = shard_schema(columns, pieces="piece" in types, metadata={"shardprep": json.dumps({"split": "train"})})
    return TokenBlock(ids, offsets, pa.RecordBatch.from_arrays(arrays, schema=columns)), schema


def rows_in(block: TokenBlock) -> list[dict[str, Any]]:
    """Return a block as plain Python."""
    rows = block.columns.to_pylist()
    offsets = block.offsets.tolist()
    return [
        {**row, "input_ids": block.ids[start:stop].tolist()}
        for row, start, stop in zip(rows, offsets[:-1], offsets[1:], strict=True)
    ]
