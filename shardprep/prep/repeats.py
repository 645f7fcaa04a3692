"""Repeats over the whole input: the same text twice, the same id twice, the same text in two splits.

Scans stage 16-byte hashes sorted by hash. A task here reads one range of hash values from every staged table, so memory is
bounded by the range and not by the input, and returns what repeats. "First" is the smallest (object, byte offset).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.plan import LengthHistogram, ScanTask, histogram_of
from shardprep.formats.documents import Reason
from shardprep.prep.hashes import HASHES, Place, read_hashes
from shardprep.prep.job import Job, Worker, worker_of
from shardprep.prep.stage import DOCUMENT, Staged, read_batch, staged_of

ROWS_PER_TASK = 2_000_000  # hashes of 40 bytes held at once by a worker: 80 MB, and as much again while sorting
READERS = 16
NAMED = 5  # the first few are named in the summary
LATE_REASONS = (Reason.DUPLICATE_TEXT, Reason.DUPLICATE_ID)
REPEAT = np.dtype([("task", "<i4"), ("document", "<i4"), ("first_task", "<i4"), ("first_document", "<i4")])


@dataclass(frozen=True)
class RepeatsCall:
    """Hash values whose first byte is in [start, stop), of one kind ("texts" or "ids"), over the tasks.

    documents   int64 (tasks,): documents that each task staged
    gone        task -> documents that are out already
    """

    job: Job
    kind: str
    start: int
    stop: int
    tasks: NDArray[np.int64]
    documents: NDArray[np.int64]
    gone: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Repeats:
    """What repeats: REPEAT (n,) the later ones with their first, ordered by place; leaks: texts in two splits.

    leaked   documents whose text also stands in another split; examples of them as REPEAT
    """

    later: NDArray[Any]
    leaked: int
    leaks: NDArray[Any]


def partitions(documents: int) -> list[tuple[int, int]]:
    """Return first-byte ranges, as many as the documents need; always the same for the same number."""
    count = 1
    while count < 256 and documents > count * ROWS_PER_TASK:
        count *= 2
    width = 256 // count
    return [(i * width, (i + 1) * width) for i in range(count)]


def find_repeats(call: RepeatsCall) -> Repeats:
    """Return the repeats among the hashes of a range."""
    worker = worker_of(call.job)
    rows, tasks = _load(call, worker)
    order = np.lexsort((rows["offset"], rows["number"], rows["lo"], rows["hi"]))
    rows, tasks = rows[order], tasks[order]
    same = (rows["hi"][1:] == rows["hi"][:-1]) & (rows["lo"][1:] == rows["lo"][:-1])
    is_first = np.concatenate([[True], ~same]) if len(rows) else np.zeros(0, dtype=bool)
    group = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    later = np.flatnonzero(~is_first)
    table = _table(rows, tasks, later, first[group[later]])
    by_place = np.lexsort((rows["offset"][later], rows["number"][later]))
    split = rows["split"]
    mixed = np.zeros(len(first), dtype=bool)
    np.logical_or.at(mixed, group[later], split[later] != split[first[group[later]]])
    leaked = int(mixed[group].sum()) if len(rows) else 0
    across = later[split[later] != split[first[group[later]]]][:NAMED]
    return Repeats(table[by_place], leaked, _table(rows, tasks, across, first[group[across]]))


def _table(
    rows: NDArray[Any], tasks: NDArray[np.int64], later: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[Any]:
    table = np.zeros(len(later), dtype=REPEAT)
    table["task"], table["document"] = tasks[later], rows["document"][later]
    table["first_task"], table["first_document"] = tasks[first], rows["document"][first]
    return table


def _load(call: RepeatsCall, worker: Worker) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the hashes of the range from all tasks, and the task of each; read by a few threads at once."""
    chosen = call.tasks[call.documents > 0].tolist()
    threads = max(1, min(READERS, worker.staging.requests_in_flight))
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda task: _load_one(call, worker, task), chosen))
    if not parts:
        return np.zeros(0, dtype=HASHES), np.zeros(0, dtype=np.int64)
    return np.concatenate(parts), np.repeat(np.array(chosen, dtype=np.int64), [len(part) for part in parts])


def _load_one(call: RepeatsCall, worker: Worker, task: int) -> NDArray[Any]:
    table = read_hashes(worker.staging, f"{call.job.staged_name(task)}.{call.kind}", call.start, call.stop)
    gone = call.gone.get(task)
    return table if gone is None else table[~np.isin(table["document"], gone)]


@dataclass(frozen=True)
class DropCall:
    """Documents of one scan task that are set aside after all.

    documents   int64 (n,)
    reasons     int32 (n,) indices into LATE_REASONS
    first_ids   large_string (n,): the id that each is a repeat of
    """

    job: Job
    task: ScanTask
    documents: NDArray[np.int64]
    reasons: NDArray[np.int32]
    first_ids: pa.Array


@dataclass(frozen=True)
class Dropped:
    """What dropping did: histograms (one per split) of the rows left out, and documents by reason.

    cuts    tokens that --overflow truncate had cut off each document left out, where it had
    """

    task: int
    histograms: tuple[LengthHistogram, ...]
    set_aside: dict[str, int]
    cuts: tuple[int, ...]


def drop(call: DropCall) -> Dropped:
    """Stage which rows of a task are kept, and the reject lines; return what is left out."""
    worker = worker_of(call.job)
    staged = staged_of(worker.staging, call.task.index, call.job.tags[call.task.index])
    name = call.job.late_name(call.task.index)
    gone: list[LengthHistogram] = []
    for split in range(len(call.job.splits.names)):
        owners, lengths = _owners(call.job, worker, staged, split)
        out = np.isin(owners, call.documents)
        worker.staging.put(f"{name}.kept-{split}.npy", np.flatnonzero(~out).astype(np.int64).tobytes())
        gone.append(histogram_of(lengths[out]))
    places = _places(worker, call)
    names = {ref.number: ref.name for ref in call.task.objects}
    lines = []
    counts: dict[str, int] = {}
    for document, code, first in zip(
        call.documents.tolist(), call.reasons.tolist(), call.first_ids.to_pylist(), strict=True
    ):
        number, offset, line, _ = places[document]
        reason = LATE_REASONS[code]
        what = "text" if reason == Reason.DUPLICATE_TEXT else "id"
        value = {
            "key": names[number],
            "line": line,
            "offset": offset,
            "reason": str(reason),
            "detail": f"same {what} as {first}",
        }
        lines.append(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
        counts[str(reason)] = counts.get(str(reason), 0) + 1
    worker.staging.put(name + ".late.jsonl", b"".join(lines))
    return Dropped(call.task.index, tuple(gone), counts, tuple(cut for *_, cut in places.values() if cut))


def _owners(job: Job, worker: Worker, staged: Staged, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the document number and the length of each staged row of a split."""
    owners, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for batch in _batches(job, worker, staged, split):
        owners.append(batch.column(DOCUMENT).to_numpy().astype(np.int64))
        lengths.append(np.diff(batch.column("input_ids").offsets.to_numpy()).astype(np.int64))
    return np.concatenate(owners), np.concatenate(lengths)


def _batches(job: Job, worker: Worker, staged: Staged, split: int | None) -> Iterator[pa.RecordBatch]:
    name = job.staged_name(staged.report.task) + ".arrow"
    for start, stop, batch_split, _ in staged.batches.tolist():
        if split is None or batch_split == split:
            yield read_batch(staged, worker.staging.get_range(name, start, stop))


def _places(worker: Worker, call: DropCall) -> dict[int, Place]:
    table = read_hashes(
        worker.staging, f"{call.job.staged_name(call.task.index)}.{call.job.settings.hashed[0]}", 0, 256
    )
    wanted = table[np.isin(table["document"], call.documents)]
    return {int(r["document"]): (int(r["number"]), int(r["offset"]), int(r["line"]), int(r["cut"])) for r in wanted}


@dataclass(frozen=True)
class NamesCall:
    """The ids of some documents of one scan task: int64 (n,), ascending, each once."""

    job: Job
    task: int
    documents: NDArray[np.int64]


def names(call: NamesCall) -> pa.Array:
    """Return the ids of documents, in their order, large_string (n,)."""
    worker = worker_of(call.job)
    staged = staged_of(worker.staging, call.task, call.job.tags[call.task])
    found, ids = [np.zeros(0, dtype=np.int64)], [pa.array([], pa.large_string())]
    for batch in _batches(call.job, worker, staged, None):
        owners = batch.column(DOCUMENT).to_numpy()
        rows = np.flatnonzero(np.isin(owners, call.documents))
        found.append(owners[rows].astype(np.int64))
        ids.append(batch.column("id").take(pa.array(rows)).cast(pa.large_string()))
    _, first = np.unique(np.concatenate(found), return_index=True)  # pieces of a document have its id each
    return pa.concat_arrays(ids).take(pa.array(first))
