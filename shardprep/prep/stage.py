"""Staged rows: one Arrow stream a scan task, rows by split and length, with a sidecar that says what is where.

    scan-00007-5d0c1e2a.arrow   an Arrow IPC stream; each record batch is one band of lengths of one split
    scan-00007-5d0c1e2a.json    written after it: the report, and the byte range of each batch, so that a batch is one
                                ranged read

A task whose sidecar is there is done: its hash and those of the files with it are checked before they are trusted. The tag
is a digest of the sidecar, and so of all that was staged: two scans of one task that found different rows (another job met
an object that had changed; another backend) never share a name, and neither reads the other's (docs/decisions/0007).
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock
from shardprep.core.plan import LengthHistogram, ScanReport
from shardprep.errors import NotFound, StoreError
from shardprep.storage.store import Store

DOCUMENT = "_document"  # staged only: the number of the row's document in its task
PIECE = "piece"
TAG_DIGITS = 8  # of a digest, in a name
SIDECAR = re.compile(rf"scan-([0-9]+)-([0-9a-f]{{{TAG_DIGITS}}})\.json")
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow columnar format, IPC streaming format


@dataclass(frozen=True)
class Staged:
    """The sidecar of a staged file.

    others    ending -> sha256 of the files staged with it: hashes of texts and ids, rejects
    batches   int64 (batches, 4): byte start, byte stop, split, rows
    """

    report: ScanReport
    sha256: str
    size_bytes: int
    schema: bytes
    batches: NDArray[np.int64]
    others: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the sidecar as JSON."""
        value = {
            "report": report_to_json(self.report),
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "schema": base64.b64encode(self.schema).decode(),
            "batches": self.batches.tolist(),
            "others": self.others,
        }
        return orjson.dumps(value)

    @classmethod
    def of(cls, data: bytes) -> Staged:
        """Return the sidecar behind `to_bytes`."""
        value = orjson.loads(data)
        value["report"]["tag"] = tag_of(data)
        batches = np.array(value["batches"], dtype=np.int64).reshape(-1, 4)
        schema = base64.b64decode(value["schema"])
        report = report_of_json(value["report"])
        return cls(report, value["sha256"], value["size_bytes"], schema, batches, value["others"])

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Return the schema of the staged batches."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def split_batches(self, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of a split's batches, and their first rows within the split with the end: (n,), (n + 1,)."""
        chosen = np.flatnonzero(self.batches[:, 2] == split)
        starts = np.concatenate([[0], np.cumsum(self.batches[chosen, 3])])
        return chosen, starts.astype(np.int64)


def name_of(task: int, tag: str) -> str:
    """Return the name of a task's staged files, without their endings."""
    return f"scan-{task:05d}-{tag}"


def tag_of(sidecar: bytes) -> str:
    """Return the tag that a sidecar and the files it speaks of are named by."""
    return hashlib.sha256(sidecar).hexdigest()[:TAG_DIGITS]


def tags_of(keys: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Return the tags under which each task is staged, from the names in a staging folder."""
    found: dict[int, list[str]] = {}
    for key in keys:
        match = SIDECAR.fullmatch(key)
        if match:
            found.setdefault(int(match[1]), []).append(match[2])
    return {task: tuple(sorted(tags)) for task, tags in found.items()}


def stage_rows(
    block: TokenBlock, splits: NDArray[np.int8], batch_bytes: int
) -> tuple[memoryview, bytes, NDArray[np.int64]]:
    """Return the stream's bytes, the schema message and the batches of a block that lies by split and length."""
    cuts = _cuts(block.lengths, splits, batch_bytes)
    schema = block.slice(0, 0).to_batch().schema.serialize()
    sink = pa.BufferOutputStream()
    sink.write(schema)
    batches = []
    for start, stop in itertools.pairwise(cuts.tolist()):
        first_byte = sink.tell()
        sink.write(block.slice(start, stop).to_batch().serialize())
        batches.append((first_byte, sink.tell(), int(splits[start]), stop - start))
    sink.write(END_OF_STREAM)
    table = np.array(batches, dtype=np.int64).reshape(-1, 4)
    return memoryview(sink.getvalue()), schema.to_pybytes(), table  # no store takes an Arrow buffer as it is


def _cuts(lengths: NDArray[np.int64], splits: NDArray[np.int8], batch_bytes: int) -> NDArray[np.int64]:
    """Return where batches begin, with the end: at each new split, and where another batch_bytes of tokens is full."""
    if not len(lengths):
        return np.zeros(1, dtype=np.int64)
    before = np.cumsum(lengths) - lengths
    band = before * 4 // batch_bytes
    starts = np.flatnonzero((np.diff(band) != 0) | (np.diff(splits) != 0)) + 1
    return np.concatenate([[0], starts, [len(lengths)]]).astype(np.int64)


def load_staged(store: Store, task: int, tag: str, *, check: bool) -> Staged | None:
    """Return a task's sidecar if it is there; with `check`, only if every file that goes with it has its hash."""
    name = name_of(task, tag)
    try:
        data = store.get(name + ".json")
        staged = Staged.of(data)
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError):  # a sidecar of another version, or cut: the task runs again
        return None
    if staged.report.tag != tag:
        return None
    if not check:
        return staged
    hashes = {".arrow": staged.sha256, **staged.others}
    try:
        whole = all(hashlib.sha256(store.get(name + ending)).hexdigest() == digest for ending, digest in hashes.items())
    except StoreError:
        return None
    return staged if whole else None


def staged_of(store: Store, task: int, tag: str) -> Staged:
    """Return the sidecar of a task that was staged. Raises NotFound where it is gone: another job published and swept."""
    staged = load_staged(store, task, tag, check=False)
    if staged is None:
        raise NotFound(
            f"the staged rows of task {task} in {store.uri} are gone: another job may have removed them. Run the same "
            "command again: it continues with what is there",
            task=task,
        )
    return staged


def read_batch(staged: Staged, data: Any) -> pa.RecordBatch:
    """Return the record batch behind the bytes of one staged batch; buffers are shared, not copied."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), staged.arrow_schema)


def report_to_json(report: ScanReport) -> dict[str, Any]:
    """Return a report as JSON values."""
    value = asdict(report)
    del value["tag"]  # it is the digest of what holds this
    value["histograms"] = [[h.lengths.tolist(), h.counts.tolist()] for h in report.histograms]
    return value


def report_of_json(value: dict[str, Any]) -> ScanReport:
    """Return the report behind `report_to_json`."""
    histograms = tuple(
        LengthHistogram(np.array(lengths, dtype=np.int64), np.array(counts, dtype=np.int64))
        for lengths, counts in value["histograms"]
    )
    return ScanReport(**{**value, "histograms": histograms})
