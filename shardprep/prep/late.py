"""What is known only when all scans are in: one type a column, repeats, and rows that are left out after all."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.core.plan import LengthHistogram, ScanPlan, ScanReport
from shardprep.errors import SourceError, WorkerError
from shardprep.formats.columns import merge_types
from shardprep.formats.documents import Reason
from shardprep.prep.engine import Engine, WorkerDied
from shardprep.prep.job import Job
from shardprep.prep.repeats import (
    LATE_REASONS,
    NAMED,
    REPEAT,
    DropCall,
    Dropped,
    NamesCall,
    Repeats,
    RepeatsCall,
    drop,
    find_repeats,
    names,
    partitions,
)

# A document that is left out, and why: 20 bytes, however many repeat.
GONE = np.dtype([*((name, REPEAT[name]) for name in REPEAT.names or ()), ("reason", "<i4")])


@dataclass(frozen=True)
class Late:
    """Rows left out after they were staged.

    histograms  task -> histogram (one per split) of the rows left out
    set_aside   reason -> documents
    facts       what repeats, for the manifest
    cuts        tokens that were cut off each document that is left out
    """

    histograms: dict[int, tuple[LengthHistogram, ...]] = field(default_factory=dict)
    set_aside: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()

    def digest(self) -> bytes:
        """Return bytes that tell these drops from others."""
        facts = {
            str(task): [[h.lengths.tolist(), h.counts.tolist()] for h in gone] for task, gone in self.histograms.items()
        }
        return orjson.dumps([facts, self.set_aside], option=orjson.OPT_SORT_KEYS)


def column_types(job: Job, reports: Sequence[ScanReport]) -> dict[str, str]:
    """Return the type of every column; raise TypeConflict where the data has two for an undeclared one."""
    merged = merge_types([report.column_types for report in reports])
    return {spec.name: spec.type or merged.get(spec.name, "string") for spec in job.fields.columns}


def without_lost_objects(plan: ScanPlan, reports: Sequence[ScanReport]) -> list[ScanReport]:
    """Return the reports with every object that lost one of its byte ranges dropped whole, set aside once.

    An object that changed while it was read must not be mixed from two versions.
    """
    lost: dict[int, int] = {}
    for report in reports:
        if report.objects.get("lost"):
            lost.setdefault(int(plan.first[report.task]), report.task)
    if not lost:
        return list(reports)
    out = []
    for report in reports:
        is_range = not plan.count[report.task]
        if is_range and int(plan.first[report.task]) in lost and lost[int(plan.first[report.task])] != report.task:
            nothing = tuple(replace(h, lengths=h.lengths[:0], counts=h.counts[:0]) for h in report.histograms)
            objects = {**report.objects, "left_out": 1}
            out.append(
                replace(
                    report,
                    histograms=nothing,
                    found=0,
                    set_aside={},
                    column_types={},
                    documents=0,
                    tokens_cut=0,
                    documents_cut=0,
                    column_bytes=0,
                    objects=objects,
                )
            )
        else:
            out.append(report)
    return out


def find_and_drop(engine: Engine, job: Job, plan: ScanPlan, reports: Sequence[ScanReport]) -> Late:
    """Return what repeats over the whole input, and what is left out for it. Raises SourceError if that is to stop the job."""
    settings = job.settings
    facts: dict[str, Any] = {}
    gone = np.zeros(0, dtype=GONE)
    if settings.dedup == "exact" or len(job.splits.names) > 1:
        texts = _repeats(engine, job, reports, "texts", {})
        if settings.dedup == "exact":
            facts["texts_set_aside"] = len(texts.later)
            gone = _marked(gone, texts.later, Reason.DUPLICATE_TEXT)
        else:
            facts["texts_in_two_splits"] = texts.leaked
            facts["texts_in_two_splits_examples"] = _examples(engine, job, texts.leaks)
    if settings.id_field is not None:
        ids = _repeats(engine, job, reports, "ids", {task: some["document"] for task, some in _by_task(gone)})
        facts["ids"] = len(ids.later)
        facts["ids_examples"] = [pair[0] for pair in _examples(engine, job, ids.later[:NAMED])]
        if len(ids.later) and settings.on_duplicate_id == "fail":
            raise SourceError(
                f"{len(ids.later):,} documents have an id that an earlier one has, for example {', '.join(facts['ids_examples'])}; "
                "--on-duplicate-id keep or set-aside would go on",
                ids=facts["ids_examples"],
            )
        if settings.on_duplicate_id == "set-aside":
            gone = _marked(gone, ids.later, Reason.DUPLICATE_ID)
    return _drop_all(engine, job, plan, gone, facts)


def _repeats(
    engine: Engine, job: Job, reports: Sequence[ScanReport], kind: str, gone: dict[int, NDArray[np.int32]]
) -> Repeats:
    """Return the repeats of one kind over all hash ranges."""
    tasks = np.array([report.task for report in reports], dtype=np.int64)
    documents = np.array([report.documents for report in reports], dtype=np.int64)
    ranges = partitions(int(documents.sum()))
    found: dict[int, Repeats] = {}
    for index, result in engine.run(
        find_repeats, len(ranges), lambda i: RepeatsCall(job, kind, *ranges[i], tasks, documents, gone)
    ):
        found[index] = _alive(result)
    later = np.concatenate([np.zeros(0, dtype=REPEAT), *(found[i].later for i in range(len(ranges)))])
    leaks = np.concatenate([np.zeros(0, dtype=REPEAT), *(found[i].leaks for i in range(len(ranges)))])
    return Repeats(later, sum(part.leaked for part in found.values()), leaks[:NAMED])


def _alive(result: Any) -> Any:
    if isinstance(result, WorkerDied):
        raise WorkerError(
            f"a worker died while repeats were looked for: {result.detail}; give workers more memory (--memory-limit)"
        )
    return result


def _marked(gone: NDArray[Any], later: NDArray[Any], reason: Reason) -> NDArray[Any]:
    """Return GONE (n,) with these repeats added, by task and document."""
    added = np.zeros(len(later), dtype=GONE)
    for name in REPEAT.names or ():
        added[name] = later[name]
    added["reason"] = LATE_REASONS.index(reason)
    both = np.concatenate([gone, added])
    return both[np.lexsort((both["document"], both["task"]))]


def _by_task(gone: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield each task with its part of GONE."""
    starts = np.flatnonzero(np.diff(gone["task"], prepend=-1))
    for start, stop in itertools.pairwise([*starts.tolist(), len(gone)]):
        yield int(gone["task"][start]), gone[start:stop]


def _examples(engine: Engine, job: Job, pairs: NDArray[Any]) -> list[list[str]]:
    """Return [id, id of the first] of a few repeats."""
    ids = _Names(engine, job, _packed(np.concatenate([_places(pairs, ""), _places(pairs, "first_")])))
    columns = (ids.of(_packed(_places(pairs, prefix))).to_pylist() for prefix in ("", "first_"))
    return [list(pair) for pair in zip(*columns, strict=True)]


def _places(pairs: NDArray[Any], prefix: str) -> NDArray[np.int64]:
    """Return int64 (n, 2): task and document of repeats, or of their firsts."""
    return np.stack([pairs[prefix + "task"], pairs[prefix + "document"]], axis=1).astype(np.int64)


def _packed(places: NDArray[np.int64]) -> NDArray[np.int64]:
    return places[:, 0] << 32 | places[:, 1]


class _Names:
    """Ids of documents, as columns: a text of Arrow each, and no object of Python's."""

    def __init__(self, engine: Engine, job: Job, wanted: NDArray[np.int64]) -> None:
        self._places = np.unique(wanted)
        task = self._places >> 32
        starts = np.flatnonzero(np.diff(task, prepend=-1))
        bounds = list(itertools.pairwise([*starts.tolist(), len(task)]))

        def call(i: int) -> NamesCall:
            start, stop = bounds[i]
            return NamesCall(job, int(task[start]), self._places[start:stop] & 0xFFFFFFFF)

        parts = {index: _alive(result) for index, result in engine.run(names, len(bounds), call)}
        self._ids = pa.chunked_array([parts[i] for i in range(len(bounds))], pa.large_string()).combine_chunks()

    def of(self, wanted: NDArray[np.int64]) -> pa.Array:
        """Return the ids of these documents, large_string (n,)."""
        return self._ids.take(pa.array(np.searchsorted(self._places, wanted)))


def _drop_all(engine: Engine, job: Job, plan: ScanPlan, gone: NDArray[Any], facts: dict[str, Any]) -> Late:
    """Stage what is left of each task that loses documents."""
    ids = _Names(engine, job, _packed(_places(gone, "first_")))
    by_task = list(_by_task(gone))

    def call(i: int) -> DropCall:
        task, some = by_task[i]
        first_ids = ids.of(_packed(_places(some, "first_")))
        return DropCall(job, plan.task(task), some["document"].astype(np.int64), some["reason"].copy(), first_ids)

    histograms, set_aside, cuts = {}, dict[str, int](), list[int]()
    for _, result in engine.run(drop, len(by_task), call):
        dropped: Dropped = _alive(result)
        histograms[dropped.task] = dropped.histograms
        cuts += dropped.cuts
        for reason, count in dropped.set_aside.items():
            set_aside[reason] = set_aside.get(reason, 0) + count
    return Late(dict(sorted(histograms.items())), dict(sorted(set_aside.items())), facts, tuple(cuts))


def staged_digest(tags: Sequence[str], late: Late) -> str:
    """Return what tells the staged rows of one run from those of another, hex."""
    return hashlib.sha256(late.digest() + "".join(tags).encode()).hexdigest()
