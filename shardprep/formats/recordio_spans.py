"""The two files beside a RecordIO shard: the index that other readers know, and the spans with their check sums.

A span is some whole records in a row, those of one block: what is read at once by who wants a part of the shard. RecordIO has
no check sums and no footer, so the file of spans takes the place of both.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import indices
from shardprep.core.canonical import Form, compact
from shardprep.core.content import ShardInfo
from shardprep.errors import ManifestError
from shardprep.formats.shard import arrow_schema, schema_rows

VERSION = 1
RECORDS, INDEX, SPANS = ".rec", ".idx", ".json"
FOLDER = "index"


def beside(name: str, ending: str) -> str:
    """Return the name of a file beside a shard: "plan/train/0.rec" -> "plan/index/train/0.idx".

    Not in the split's own folder: a Pipe channel on that streams records and nothing else.
    """
    folder, _, last = name.rpartition("/")
    above, _, split = folder.rpartition("/")
    return "/".join(filter(None, (above, FOLDER, split, last.removesuffix(RECORDS) + ending)))


def index_lines(first: int, heads: NDArray[np.int64]) -> memoryview:
    """Return the lines of an .idx file for records that begin at these bytes: number, TAB, byte, line feed."""
    if not len(heads):
        return memoryview(b"")
    numbers = np.arange(first, first + len(heads))
    import pyarrow.compute as pc  # 28 ms that no reader should wait for

    lines = pc.binary_join_element_wise(_decimal(numbers), _decimal(heads), "\t")
    lines = pc.binary_join_element_wise(lines, "", "\n")
    _, _, data = lines.buffers()
    return memoryview(data)


def _decimal(numbers: NDArray[np.int64]) -> pa.Array:
    return indices(numbers).cast(pa.string())


@dataclass(frozen=True, eq=False)
class Spans:
    """Where the spans of a shard lie.

    row_starts, byte_starts  int64 (spans + 1,): where each begins, and where the last one ends
    crcs                     int64 (spans,): CRC-32 of each span's bytes
    escapes                  magic words that had to be escaped
    index_bytes, index_sha256  of the .idx file
    schema                   columns of the shard
    """

    row_starts: NDArray[np.int64]
    byte_starts: NDArray[np.int64]
    crcs: NDArray[np.int64]
    escapes: int
    index_bytes: int
    index_sha256: str
    schema: pa.Schema

    def to_bytes(self) -> bytes:
        """Return canonical JSON, with a line feed at the end."""
        value = {
            "version": VERSION,
            "rows": self.row_starts.tolist(),
            "bytes": self.byte_starts.tolist(),
            "crc32": self.crcs.tolist(),
            "escapes": self.escapes,
            "index": {"bytes": self.index_bytes, "sha256": self.index_sha256},
            "schema": list(schema_rows(self.schema)),
        }
        return (compact(value) + "\n").encode()

    def check(self, span: int, data: Any) -> None:
        """Raise ManifestError if the bytes of a span are not those that were written."""
        start, stop = self.byte_starts[span : span + 2].tolist()
        if len(data) != stop - start:
            raise ManifestError(f"is cut off at byte {start + len(data):,}", byte=start + len(data), span=span)
        if zlib.crc32(data) != self.crcs[span]:
            raise ManifestError(
                f"is damaged between bytes {start:,} and {stop:,}: they have another CRC-32 than was written",
                byte=start,
                span=span,
            )

    @classmethod
    def parse(cls, data: bytes, info: ShardInfo) -> Spans:
        """Return what the file says, held against its digest in the manifest. Raises ManifestError where it differs."""
        name = beside(info.name, SPANS)
        digest = hashlib.sha256(data).hexdigest()
        if digest != info.footer_sha256:
            raise ManifestError(
                f"has beside it a file {name} with another sha256 digest than the manifest says ({digest[:12]}..., not "
                f"{info.footer_sha256[:12]}...): it was replaced or damaged"
            )
        value = json.loads(data)
        if value.get("version") != VERSION:
            raise ManifestError(
                f"has beside it {name} of version {value.get('version')!r}, and this shardprep reads version {VERSION}; "
                "install a newer shardprep"
            )
        form = Form()
        index = form.item(value, "index", "", dict)
        found = cls(
            form.numbers(value, "rows", ""),
            form.numbers(value, "bytes", ""),
            form.numbers(value, "crc32", ""),
            form.number(value, "escapes", ""),
            form.number(index, "bytes", "index"),
            form.text(index, "sha256", "index"),
            arrow_schema(form.objects(value, "schema", "")),
        )
        if form.issues or not found._leads_to(info):
            what = "; ".join(form.issues) or "its spans do not lead from the first row and byte to the last"
            raise ManifestError(f"has beside it {name}, which is broken: {what}")
        return found

    def _leads_to(self, info: ShardInfo) -> bool:
        ends = (self.row_starts, info.rows), (self.byte_starts, info.bytes)
        return all(
            len(starts) == len(self.crcs) + 1 and starts[0] == 0 and starts[-1] == stop and (np.diff(starts) > 0).all()
            for starts, stop in ends
        )
