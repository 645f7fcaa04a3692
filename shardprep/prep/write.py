"""One write task: gather a shard's rows from staging, encode them row group by row group, put the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.buckets import LengthBuckets
from shardprep.core.manifest import ShardInfo
from shardprep.core.plan import ShardRanges
from shardprep.core.row_groups import TOKEN_BYTES, row_groups
from shardprep.errors import BlockError, StoreError
from shardprep.prep.job import Job, Worker, worker_of
from shardprep.prep.shard_files import are_whole, shard_files
from shardprep.prep.stage import Staged, read_batch, staged_of
from shardprep.storage.fetch import Item, fetch

AHEAD_BYTES = 32 << 20


@dataclass(frozen=True)
class WriteCall:
    """One shard.

    split     number of the split; ranges: its rows in the staged files, and their lengths
    schema    Arrow schema of the file, serialized
    staged    digest of all staged files and drops: a finished shard of other rows is written again
    dropped   tasks of which rows were dropped late
    known     an earlier run may have finished this shard
    row_bytes bytes of a row beside its tokens, on the average of the whole data set
    """

    job: Job
    split: int
    name: str
    ranges: ShardRanges
    buckets: LengthBuckets
    schema: bytes
    staged: str
    dropped: frozenset[int]
    known: bool
    row_bytes: int


def write_shard(call: WriteCall) -> ShardInfo:
    """Return what was written; a shard that an earlier run finished is only checked."""
    worker = worker_of(call.job)
    side = side_of(call.name)
    finished = _finished(worker, call, side) if call.known else None
    if finished is not None:
        return finished
    schema = pa.ipc.read_schema(pa.py_buffer(call.schema))
    with shard_files(worker.output, call.name, schema) as files:
        for block in _blocks(worker, call, schema):
            files.write(block)
        digest = files.put()
    info = digest.info(f"{_plan_of(call.job)}/{call.name}", call.job.splits.names[call.split])
    worker.staging.put(side, orjson.dumps({"staged": call.staged, "info": asdict(info)}))
    return info


def _blocks(worker: Worker, call: WriteCall, schema: pa.Schema) -> Iterator[TokenBlock]:
    """Yield the shard's rows, row group by row group."""
    gather = Gather(worker, call, schema)
    limit = call.job.settings.row_group_bytes
    cuts = row_groups(call.ranges.lengths, call.buckets, limit, max(_fixed_bytes(schema), call.row_bytes))
    for start, stop in itertools.pairwise(cuts.tolist()):
        yield from _fitting(gather.rows(start, stop), limit)


def side_of(name: str) -> str:
    """Return the name of the staged note that a shard is finished."""
    return "shard-" + name.replace("/", "-") + ".json"


def _plan_of(job: Job) -> str:
    return job.output.rstrip("/").rsplit("/", 1)[-1]


def _fixed_bytes(schema: pa.Schema) -> int:
    """Return the bytes that a row takes beside its tokens, at least: id, length and what is passed through."""
    return 16 + 8 * len(schema)


def _fitting(block: TokenBlock, limit_bytes: int) -> Iterator[TokenBlock]:
    """Yield the block, or halves of it: where rows have columns far wider than the average, a cut by it is too large."""
    if block.rows > 1 and block.tokens * TOKEN_BYTES + block.columns.nbytes > limit_bytes * 3 // 2:
        yield from _fitting(block.slice(0, block.rows // 2), limit_bytes)
        yield from _fitting(block.slice(block.rows // 2, block.rows), limit_bytes)
    else:
        yield block


def _finished(worker: Worker, call: WriteCall, side: str) -> ShardInfo | None:
    """Return the shard of an earlier run, if it was made of the same rows and its bytes are still right."""
    try:
        value = orjson.loads(worker.staging.get(side))
        if value["staged"] != call.staged:
            return None
        info = ShardInfo(**value["info"])
        return info if are_whole(worker.output, call.name, info) else None
    except (StoreError, ValueError, KeyError, TypeError):
        return None


class Gather:
    """Reads a shard's rows from the staged files: each batch once, in the order in which it is first needed."""

    def __init__(self, worker: Worker, call: WriteCall, schema: pa.Schema) -> None:
        self._worker = worker
        self._call = call
        self._schema = schema
        self._lengths = call.ranges.lengths
        self._files: dict[int, Staged] = {}
        self._kept: dict[int, NDArray[np.int64]] = {}
        self._batches: dict[tuple[int, int], _Rows] = {}
        table = self._pieces()  # (task, batch, first row in the batch, rows) in the order of the shard's rows
        self._table = table.tolist()
        self._starts = np.concatenate([[0], np.cumsum(table[:, 3])]).astype(np.int64)
        self._uses: dict[tuple[int, int], int] = {}
        for task, batch, _, _ in self._table:
            self._uses[task, batch] = self._uses.get((task, batch), 0) + 1
        self._coming = self._fetched(list(self._uses))

    def _pieces(self) -> NDArray[np.int64]:
        """Return int64 (pieces, 4): the shard's ranges of staged rows, cut where staged batches end."""
        ranges = self._call.ranges
        order, rows = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 4), dtype=np.int64)]
        for task in np.unique(ranges.task).tolist():
            place = np.flatnonzero(ranges.task == task)
            start, stop = ranges.row_start[place], ranges.row_stop[place]
            if task in self._call.dropped:
                place, start, stop = self._runs_of_kept(task, place, start, stop)
            chosen, first = self._staged(task).split_batches(self._call.split)
            low = np.searchsorted(first, start, side="right") - 1
            spans = np.searchsorted(first, stop - 1, side="right") - low
            which = np.repeat(np.arange(len(place)), spans)
            batch = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(spans) - spans, spans)
            begin, end = np.maximum(start[which], first[batch]), np.minimum(stop[which], first[batch + 1])
            columns = [np.full(len(which), task), chosen[batch], begin - first[batch], end - begin]
            rows.append(np.stack(columns, axis=1))
            order.append(place[which])
        return np.concatenate(rows)[np.argsort(np.concatenate(order), kind="stable")]

    def _runs_of_kept(
        self, task: int, place: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ranges of kept rows as ranges of staged rows, and the range that each is a part of."""
        kept = self._kept_rows(task)
        which = np.repeat(np.arange(len(place)), stop - start)
        row = kept[np.arange(len(which)) - np.repeat(np.cumsum(stop - start) - stop, stop - start)]
        new = np.append(True, (np.diff(row) != 1) | (np.diff(which) != 0))
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(row)) - 1
        return place[which[first]], row[first], row[last] + 1

    def _staged(self, task: int) -> Staged:
        if task not in self._files:
            self._files[task] = staged_of(self._worker.staging, task, self._call.job.tags[task])
        return self._files[task]

    def _kept_rows(self, task: int) -> NDArray[np.int64]:
        """Return which of a task's staged rows of this split are left after late drops."""
        if task not in self._kept:
            data = self._worker.staging.get(f"{self._call.job.late_name(task)}.kept-{self._call.split}.npy")
            self._kept[task] = np.frombuffer(data, dtype=np.int64)
        return self._kept[task]

    def _fetched(self, wanted: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        # Local files too are read, not mapped: mapped pages count as the worker's memory, and Dask ends it for them.
        store = self._worker.staging
        items = (self._item(task, batch) for task, batch in wanted)
        for (task, batch), (_, data) in zip(wanted, fetch(store, items, ahead_bytes=AHEAD_BYTES), strict=True):
            if isinstance(data, StoreError):
                raise data
            yield (task, batch), read_batch(self._files[task], data)

    def _item(self, task: int, batch: int) -> Item:
        start, stop = (int(x) for x in self._files[task].batches[batch, :2])
        return Item(self._call.job.staged_name(task) + ".arrow", self._files[task].size_bytes, "", (start, stop))

    def rows(self, start: int, stop: int) -> TokenBlock:
        """Return rows start to stop of the shard, with the columns of the schema; to be called in order."""
        lengths = self._lengths[start:stop]
        place = int(np.searchsorted(self._starts, start, side="right")) - 1
        bases: dict[tuple[int, int], int] = {}  # where a batch begins among the rows of all batches in use here
        columns, ids, first, count, total = [], [], [], [], 0
        while start < stop:
            task, batch, row, rows = self._table[place]
            skip = start - int(self._starts[place])
            take = min(stop - start, rows - skip)
            found = self._batch(task, batch)
            if (task, batch) not in bases:
                bases[task, batch] = total
                columns.append(found.columns)
                total += found.columns.num_rows
            ids.append(found.ids[found.offsets[row + skip] : found.offsets[row + skip + take]])
            first.append(bases[task, batch] + row + skip)
            count.append(take)
            start += take
            if skip + take == rows:
                self._release(task, batch)
                place += 1
        spans = np.array(count, dtype=np.int64)
        rows_of_all = np.repeat(np.array(first, dtype=np.int64) - np.cumsum(spans) + spans, spans) + np.arange(
            spans.sum()
        )
        taken = pa.Table.from_batches(columns).combine_chunks().take(pa.array(rows_of_all)).combine_chunks()
        flat = np.concatenate(ids)
        if len(flat) != lengths.sum():
            raise BlockError(
                f"{self._call.name}: the staged rows have other lengths than the plan; run the command again"
            )
        return TokenBlock(flat, offsets_of(lengths), taken.to_batches()[0])

    def _batch(self, task: int, batch: int) -> _Rows:
        while (task, batch) not in self._batches:
            place, data = next(self._coming)
            self._batches[place] = _rows_of(data, self._schema)
        return self._batches[task, batch]

    def _release(self, task: int, batch: int) -> None:
        self._uses[task, batch] -= 1
        if not self._uses[task, batch]:
            del self._batches[task, batch]


@dataclass(frozen=True, slots=True)
class _Rows:
    """One staged batch: flat ids, offsets as Python numbers (slicing by them is three times faster), other columns."""

    ids: NDArray[np.int32]
    offsets: list[int]
    columns: pa.RecordBatch


def _rows_of(batch: pa.RecordBatch, schema: pa.Schema) -> _Rows:
    """Return a staged batch with the types of the whole data set, without what is only staged."""
    block = TokenBlock.from_batch(batch)
    target = pa.schema([schema.field(name) for name in block.columns.schema.names if name in schema.names])
    columns = [block.columns.column(field.name) for field in target]
    cast = [column if column.type == f.type else column.cast(f.type) for column, f in zip(columns, target, strict=True)]
    return _Rows(block.ids, block.offsets.tolist(), pa.RecordBatch.from_arrays(cast, schema=target))
