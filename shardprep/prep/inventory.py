"""S3 Inventory: the objects of a bucket from the files that S3 writes every day or week, instead of a listing.

The format: docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html (manifest.json) and
storage-inventory.html (columns). In CSV files keys are URL-encoded, in Parquet files they are not.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from shardprep.errors import NotFound, SourceError
from shardprep.formats.reasons import Reason
from shardprep.prep.source_table import Rejected, TableBuilder
from shardprep.storage.store import Listing, Store

_PARQUET_NAMES = ("bucket", "key", "is_latest", "is_delete_marker", "size", "e_tag")
_CSV_NAMES = {
    "Bucket": "bucket",
    "Key": "key",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "ETag": "e_tag",
}


@dataclass(frozen=True)
class InventoryFile:
    """One file of an inventory: key in its bucket, size in bytes, MD5 in hex; -1 and "" where the manifest has none."""

    key: str
    size_bytes: int
    md5: str


@dataclass(frozen=True)
class Inventory:
    """A manifest.json: file format "CSV" or "Parquet", and for CSV the columns in order."""

    bucket: str
    file_format: str
    columns: tuple[str, ...]
    files: tuple[InventoryFile, ...]


def parse_inventory(data: bytes, uri: str) -> Inventory | None:
    """Return the inventory behind a manifest.json, None if this is something else. Raises SourceError for ORC."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not {"sourceBucket", "fileFormat", "fileSchema", "files"} <= set(value):
        return None
    file_format = str(value["fileFormat"])
    if file_format not in ("CSV", "Parquet"):
        raise SourceError(
            f"{uri}: an inventory in {file_format} is not read; set its output format to CSV or Parquet", key=uri
        )
    columns = tuple(name.strip() for name in str(value["fileSchema"]).split(",")) if file_format == "CSV" else ()
    if columns and not {"Bucket", "Key", "Size"} <= set(columns):
        raise SourceError(f"{uri}: the inventory lacks Bucket, Key or Size; add Size to its fields", key=uri)
    files = tuple(
        InventoryFile(str(entry["key"]), int(entry.get("size", -1)), str(entry.get("MD5checksum", "")))
        for entry in value["files"]
    )
    return Inventory(str(value["sourceBucket"]), file_format, columns, files)


def add_inventory(
    inventory: Inventory, store: Store, manifest_key: str, scheme: str, builder: TableBuilder
) -> list[Rejected]:
    """Add every current object of an inventory to the table; delete markers and old versions are counted.

    Returns keys that cannot be used. Raises SourceError for a file that is missing or damaged.
    """
    rejects: list[Rejected] = []
    for entry in inventory.files:
        data = _read(entry, store, manifest_key)
        batches = _csv_batches(data, inventory.columns) if inventory.file_format == "CSV" else _parquet_batches(data)
        try:
            for batch in batches:
                rejects += _add_batch(batch, scheme, builder, decode=inventory.file_format == "CSV")
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
            raise SourceError(f"the inventory file {entry.key} is damaged: {error}", key=entry.key) from error
    return rejects


def _read(entry: InventoryFile, store: Store, manifest_key: str) -> bytes:
    data = None
    for key in _candidates(entry.key, store, manifest_key):
        try:
            data = store.get(key)
            break
        except NotFound:
            continue
    if data is None:
        raise SourceError(
            f"the inventory names {entry.key}, which is not in {store.uri}. S3 keeps inventory files for as long as the "
            'bucket\'s rules say; and a destination prefix that ends in "/" makes S3 write wrong names.',
            key=entry.key,
        )
    wrong_size = entry.size_bytes >= 0 and len(data) != entry.size_bytes
    if wrong_size or (entry.md5 and hashlib.md5(data, usedforsecurity=False).hexdigest() != entry.md5.lower()):
        raise SourceError(
            f"the inventory file {entry.key} is not the one that its manifest names: {len(data)} bytes, or other bytes "
            f"than the {entry.size_bytes} with MD5 {entry.md5}",
            key=entry.key,
        )
    return data


def _candidates(key: str, store: Store, manifest_key: str) -> Iterator[str]:
    """Yield where a file may be: at its key in the bucket; in a local copy, below or beside the manifest's folder."""
    yield key
    if store.local_path("") is not None:
        folder = manifest_key.rpartition("/")[0]
        name = key.rpartition("/")[2]
        for place in (name, f"data/{name}", f"../data/{name}"):
            yield f"{folder}/{place}" if folder else place


def _csv_batches(data: bytes, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    source: Any = pa.BufferReader(data)
    if data[:2] == b"\x1f\x8b":
        source = pa.CompressedInputStream(source, "gzip")
    wanted = [name for name in columns if name in _CSV_NAMES]
    reader = pa_csv.open_csv(
        source,
        read_options=pa_csv.ReadOptions(column_names=list(columns), use_threads=False),
        parse_options=pa_csv.ParseOptions(quote_char='"', double_quote=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), include_columns=wanted, strings_can_be_null=False
        ),
    )
    for batch in reader:
        yield batch.rename_columns([_CSV_NAMES[name] for name in batch.schema.names])


def _parquet_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(io.BytesIO(data)) as file:
        names = [name for name in file.schema_arrow.names if name in _PARQUET_NAMES]
        if not {"bucket", "key", "size"} <= set(names):
            raise pa.ArrowInvalid("it lacks bucket, key or size; add Size to the inventory's fields")
        yield from file.iter_batches(columns=names)


def _add_batch(batch: pa.RecordBatch, scheme: str, builder: TableBuilder, *, decode: bool) -> list[Rejected]:
    current = pa.array(np.ones(batch.num_rows, dtype=bool))
    if "is_latest" in batch.schema.names:
        current = pc.and_(current, _is_true(batch["is_latest"], empty=True))
    if "is_delete_marker" in batch.schema.names:
        current = pc.and_not(current, _is_true(batch["is_delete_marker"], empty=False))
    builder.counters.old_versions += batch.num_rows - int(pc.sum(current).as_py() or 0)
    batch = batch.filter(current)
    rejects: list[Rejected] = []
    if decode:
        keys = _decoded(batch["key"])
        why = "the inventory's key is no URL-encoded UTF-8"
        rejects = [(raw, Reason.UNUSABLE_KEY, why) for raw in batch["key"].filter(keys.is_null()).to_pylist()]
        batch, keys = batch.filter(keys.is_valid()), keys.drop_null()
    else:
        keys = batch["key"].cast(pa.string())
    sizes = pc.fill_null(_as_int64(batch["size"]), 0).to_numpy()
    etags = _quoted(batch["e_tag"]) if "e_tag" in batch.schema.names else pa.array([""] * len(keys), pa.string())
    buckets = batch["bucket"].cast(pa.string())
    for bucket in pc.unique(buckets).to_pylist():
        mask = pc.equal(buckets, bucket)
        numbers = sizes[mask.to_numpy(zero_copy_only=False)]
        builder.add(f"{scheme}://{bucket}", Listing(keys.filter(mask), numbers, etags.filter(mask)))
    return rejects


def _is_true(values: pa.Array, *, empty: bool) -> pa.Array:
    """Return booleans for a boolean column, or for the words of a CSV column; empty: what no value means."""
    if pa.types.is_boolean(values.type):
        return pc.fill_null(values, empty)
    words = pc.utf8_lower(values)
    return pc.or_(pc.equal(words, "true"), pc.equal(words, "")) if empty else pc.equal(words, "true")


def _as_int64(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):  # a delete marker has no size
        values = pc.if_else(pc.equal(values, ""), "0", values)
    return values.cast(pa.int64())


def _decoded(keys: pa.Array) -> pa.Array:
    """Return URL-decoded keys, null where the bytes are no UTF-8."""
    if not pc.any(pc.match_substring_regex(keys, "[%+]")).as_py():
        return keys
    return pa.array([_url_decoded(key) for key in keys.to_pylist()], pa.string())


def _url_decoded(key: str) -> str | None:
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return None


def _quoted(etags: pa.Array) -> pa.Array:
    """Return ETags as the S3 protocol writes them, in quotation marks: an inventory leaves them out."""
    etags = pc.fill_null(etags.cast(pa.string()), "")
    plain = pc.and_(pc.not_equal(etags, ""), pc.invert(pc.starts_with(etags, '"')))
    return pc.if_else(plain, pc.binary_join_element_wise('"', etags, '"', ""), etags)
