"""Who reads what: the listing as columns, the scan tasks, and the plan's name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.hashing import OBJECTS, TASKS, order

WAVES = 32  # a small job has about this many tasks: enough for 8 workers to end at about the same time
MIN_TASK_BYTES = 1 << 20
MAX_TASK_BYTES = 16 << 20
MAX_TASKS = 4_000  # what a Dask scheduler takes without effort, with room for tens of thousands
OBJECT_OVERHEAD_BYTES = 4_096  # a request costs about as much as 4 KB of JSON


@dataclass(frozen=True, eq=False)
class SourceTable:
    """Every object of the source, columnar, sorted by (root, key): at most 200 bytes an object.

    roots   URIs that stores are opened at: "s3://bucket" or a local folder
    labels  what tells the roots apart in names; ("",) for a single root
    root    int16 (objects,) index into roots
    keys    large_string (objects,) key relative to its root
    sizes   int64 (objects,) bytes
    etags   large_string (objects,); "" where unknown; local files: modification time in ns
    """

    roots: tuple[str, ...]
    labels: tuple[str, ...]
    root: NDArray[np.int16]
    keys: pa.Array
    sizes: NDArray[np.int64]
    etags: pa.Array

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object to read.

    `name` is its key as users see it: in ids, in the ledger, in messages; `number` its place in the sorted listing.
    """

    root: int
    key: str
    name: str
    size_bytes: int
    etag: str
    number: int


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Whole objects, or one byte range of one large object: bytes start to stop (exclusive)."""

    index: int
    objects: tuple[ObjectRef, ...]
    byte_range: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """All scan tasks, columnar; a task is made when it is asked for.

    table    the listing
    members  int64 (whole objects,): indices into the table, task by task
    first    int64 (tasks,): where a task's members begin; for a byte range, the index of its object
    count    int64 (tasks,): how many members; 0 for a byte range
    start    int64 (tasks,): first byte of a range; 0 for whole objects
    stop     int64 (tasks,): byte after the range; for whole objects their bytes together
    """

    table: SourceTable
    members: NDArray[np.int64]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.first)

    @property
    def task_bytes(self) -> NDArray[np.int64]:
        """Return the bytes that each task reads, int64 (tasks,)."""
        return self.stop - self.start

    def task(self, index: int) -> ScanTask:
        """Return one task with its objects."""
        first, count = int(self.first[index]), int(self.count[index])
        if count:
            return ScanTask(index, self._refs(self.members[first : first + count]))
        byte_range = int(self.start[index]), int(self.stop[index])
        return ScanTask(index, self._refs(np.array([first], dtype=np.int64)), byte_range)

    def __iter__(self) -> Iterator[ScanTask]:
        return map(self.task, range(self.tasks))

    def ranges_before(self, index: int) -> NDArray[np.int64]:
        """Return the tasks that hold the earlier ranges of a task's object, in byte order, int64 (n,).

        Their line feeds together make the number of the line on which the task's range begins.
        """
        if self.count[index]:
            return np.zeros(0, dtype=np.int64)
        same = np.flatnonzero((self.count == 0) & (self.first == self.first[index]) & (self.start < self.start[index]))
        return same[np.argsort(self.start[same])]

    def _refs(self, objects: NDArray[np.int64]) -> tuple[ObjectRef, ...]:
        table, place = self.table, pa.array(objects)
        columns = (
            table.root[objects].tolist(),
            table.keys.take(place).to_pylist(),
            table.sizes[objects].tolist(),
            table.etags.take(place).to_pylist(),
            objects.tolist(),
        )
        return tuple(
            ObjectRef(root, key, object_name(table.labels[root], key), size, etag, number)
            for root, key, size, etag, number in zip(*columns, strict=True)
        )


def object_name(label: str, key: str) -> str:
    """Return an object's key as users see it: behind its root's label where there are several roots."""
    return f"{label.removesuffix('/')}/{key}" if label else key


def plan_scan(
    table: SourceTable,
    *,
    seed: int,
    max_tasks: int = MAX_TASKS,
    min_task_bytes: int = MIN_TASK_BYTES,
    max_task_bytes: int = MAX_TASK_BYTES,
    object_overhead_bytes: int = OBJECT_OVERHEAD_BYTES,
) -> ScanPlan:
    """Return tasks of near-equal weight over the objects in seeded order; workers do not enter.

    The weight of an object is its size and an overhead for the request. The target is a 32nd of the whole, between
    the minimum and the maximum, and more where there would be more than `max_tasks` tasks. An object larger than the
    target becomes byte ranges, near-equal and at most the target long, each a task of its own. The tasks are shuffled
    as well, so that the ranges of one large file do not end up in the same few shards.
    """
    weights = table.sizes + object_overhead_bytes
    target = _target_bytes(table.sizes, weights, max_tasks, min_task_bytes, max_task_bytes)
    large = table.sizes > target
    shuffled = order(len(table), seed, OBJECTS)
    members = shuffled[~large[shuffled]]
    first, count, bytes_ = _whole_tasks(table.sizes[members], weights[members], target)
    objects, start, stop = _ranges(np.flatnonzero(large), table.sizes[large], target)
    mixed = order(len(first) + len(objects), seed, TASKS)
    return ScanPlan(
        table,
        members,
        np.concatenate([first, objects])[mixed],
        np.concatenate([count, np.zeros_like(objects)])[mixed],
        np.concatenate([np.zeros_like(first), start])[mixed],
        np.concatenate([bytes_, stop])[mixed],
    )


def _target_bytes(
    sizes: NDArray[np.int64], weights: NDArray[np.int64], max_tasks: int, min_bytes: int, max_bytes: int
) -> int:
    total = int(weights.sum())
    target = max(min(max(total // WAVES, min_bytes), max_bytes), -(-total // max_tasks), 1)
    while _task_count(sizes, weights, target) > max_tasks:  # ranges are rounded up, object by object
        target += -(-target // 8)
    return target


def _task_count(sizes: NDArray[np.int64], weights: NDArray[np.int64], target: int) -> int:
    large = sizes > target
    whole = 0 if large.all() else max(1, -(-int(weights[~large].sum()) // target))  # objects may weigh nothing
    return int((-(-sizes[large] // target)).sum()) + whole


def _whole_tasks(
    sizes: NDArray[np.int64], weights: NDArray[np.int64], target: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where each task of whole objects begins among them, how many it has, and their bytes."""
    ends = np.cumsum(weights)
    total = int(ends[-1]) if len(ends) else 0
    tasks = -(-total // target)
    middles = np.maximum(ends - weights // 2 - 1, 0)  # an object may weigh nothing
    task = (middles.astype(np.float64) * (tasks / max(total, 1))).astype(np.int64)
    first = np.flatnonzero(np.diff(task, prepend=-1))
    count = np.diff(first, append=len(sizes))
    return first, count, np.add.reduceat(sizes, first) if len(first) else first


def _ranges(
    objects: NDArray[np.int64], sizes: NDArray[np.int64], target: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return object, first byte and stop byte of every range of the large objects."""
    parts = -(-sizes // target)
    which = np.repeat(np.arange(len(objects)), parts)
    part = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    start, stop = sizes[which] * part // parts[which], sizes[which] * (part + 1) // parts[which]
    return objects[which], start, stop


def plan_id(table: SourceTable, settings: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the plan's name, 8 hex digits: of the listing, the settings and the versions, and nothing else.

    Where the source lies does not enter (roots are URIs), nor how the Arrow arrays are cut into buffers.
    """
    facts = {"labels": list(table.labels), "settings": dict(settings), "versions": dict(versions)}
    digest = hashlib.sha256()
    for part in (
        json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(),
        table.root.astype("<i2").tobytes(),
        table.sizes.astype("<i8").tobytes(),
        *_text_buffers(table.keys),
        *_text_buffers(table.etags),
    ):
        digest.update(len(part).to_bytes(8, "little"))  # framed: no two listings share a byte sequence
        digest.update(part)
    return digest.hexdigest()[:8]


def _text_buffers(texts: pa.Array) -> tuple[bytes, memoryview]:
    """Return offsets (from 0) and bytes of a string array, the same for every slice and chunking of it."""
    whole = texts.cast(pa.large_string())
    _, offset_buffer, data = whole.buffers()
    if not len(whole) or data is None:
        return bytes(8 * len(whole) + 8), memoryview(b"")
    offsets = np.frombuffer(offset_buffer, dtype="<i8", count=len(whole) + 1, offset=8 * whole.offset)
    begin, end = int(offsets[0]), int(offsets[-1])
    return (offsets - begin).tobytes(), memoryview(data)[begin:end]
