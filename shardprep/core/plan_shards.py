"""Which rows make which shard: histograms added, edges fitted, shards counted, rows dealt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardprep.core.buckets import LengthBuckets, fit_edges
from shardprep.core.deal import length_runs, shard_histogram, shard_rows
from shardprep.core.histogram import LengthHistogram, merged, subtracted
from shardprep.errors import BlockError

BYTES_PER_TOKEN = 1.44  # measured: PLAIN int32, zstd level 1, natural text and a vocabulary of 150,000
SMALL_SET_SHARDS = 8  # a small set is cut into so many, for readers on several devices,
SMALL_SHARD_BYTES = 4_000_000  # where each still gets this much


@dataclass(frozen=True, eq=False)
class ScanReport:
    """What one scan task found: small, and never rows.

    histograms    one per split, in the order of the splits; staged rows lie in that order, by length inside a split
    found         documents found (an object that yields no record counts as one)
    set_aside     reason -> documents
    tokens_cut    tokens lost to --overflow truncate, and documents cut
    column_bytes  bytes of id and passed-through columns over all staged rows
    column_types  column -> {type: "object:line" where it was first seen}, for undeclared columns
    objects       counters: read, empty, bytes
    line_feeds    number of LF bytes in the task's byte range (0 for tasks of whole objects)
    backend       the tokenizer backend that encoded the task's documents; "" where it had none
    tag           hex digest of all that the task staged: its part of the staged files' names
    """

    task: int
    histograms: tuple[LengthHistogram, ...]
    found: int
    set_aside: dict[str, int]
    tokens_cut: int = 0
    documents_cut: int = 0
    documents: int = 0
    column_bytes: int = 0
    column_types: dict[str, dict[str, str]] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    line_feeds: int = 0
    backend: str = ""
    tag: str = ""


@dataclass(frozen=True, eq=False)
class ShardRanges:
    """The rows of one shard, in shard order: ranges of staged rows, one after the other.

    task       int64 (ranges,)
    row_start  int64 (ranges,) among the task's kept rows of this split, by length: row 0 is the first kept one
    row_stop   int64 (ranges,) exclusive
    histogram  of the shard's rows
    """

    split: str
    index: int
    shards: int
    task: NDArray[np.int64]
    row_start: NDArray[np.int64]
    row_stop: NDArray[np.int64]
    histogram: LengthHistogram

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return what lengths the gathered rows must have, int64 (rows,), ascending; made anew at every call."""
        return np.repeat(self.histogram.lengths, self.histogram.counts)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.histogram.rows

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.histogram.tokens


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """One split: its histogram, its number of shards (0 without rows), and where its rows lie.

    The staged rows are runs, one for each task and length, sorted by (length, task); so are the arrays (runs,):
    run_ends   int64, rows of the split up to and with this run
    run_task   int32
    run_row    int64, first row of the run among the task's kept rows of this split
    """

    name: str
    histogram: LengthHistogram
    shards: int
    run_ends: NDArray[np.int64]
    run_task: NDArray[np.int32]
    run_row: NDArray[np.int64]

    @cached_property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.histogram.rows

    @cached_property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.histogram.tokens

    def shard_rows(self, index: int) -> int:
        """Return the number of rows of one shard."""
        return shard_rows(self.rows, self.shards, index)

    def shard(self, index: int) -> ShardRanges:
        """Return the rows of one shard as ranges of staged rows."""
        first, stop = length_runs(self.histogram, self.shards, index)
        first, stop = first[stop > first], stop[stop > first]
        low = np.searchsorted(self.run_ends, first, side="right")
        spans = np.searchsorted(self.run_ends, stop, side="left") - low + 1
        run = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans - low, spans)
        run_start = np.where(run > 0, self.run_ends[run - 1], 0)
        start = np.maximum(run_start, np.repeat(first, spans)) - run_start + self.run_row[run]
        end = np.minimum(self.run_ends[run], np.repeat(stop, spans)) - run_start + self.run_row[run]
        task = self.run_task[run].astype(np.int64)
        # Ranges that follow each other in one task are one range.
        new = np.append(True, (task[1:] != task[:-1]) | (start[1:] != end[:-1]))
        last = np.append(new[1:], True)
        return ShardRanges(
            self.name, index, self.shards, task[new], start[new], end[last],
            shard_histogram(self.histogram, self.shards, index),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """All splits in order, also those without rows, and the bucket edges that they share."""

    splits: tuple[SplitPlan, ...]
    buckets: LengthBuckets

    @property
    def shards(self) -> int:
        """Return the number of shards of all splits."""
        return sum(split.shards for split in self.splits)

    @property
    def histogram(self) -> LengthHistogram:
        """Return the histogram of all splits together."""
        return merged([split.histogram for split in self.splits])

    def shard(self, split: int | str, index: int) -> ShardRanges:
        """Return shard `index` of a split, named or numbered."""
        place = [s.name for s in self.splits].index(split) if isinstance(split, str) else split
        return self.splits[place].shard(index)


def plan_shards(
    reports: Sequence[ScanReport],
    *,
    split_names: Sequence[str],
    shard_bytes: int | None = None,
    shard_tokens: int | None = None,
    shards: int | None = None,
    multiple_of: int = 1,
    edges: tuple[int, ...] | None = None,
    buckets: int = 64,
    pad_multiple: int = 8,
    bytes_per_token: float = BYTES_PER_TOKEN,
    drops: Mapping[int, tuple[LengthHistogram, ...]] | None = None,
) -> ShardPlan:
    """Return the shards of every split; pure, and the same for any order of the reports.

    drops: by task, histograms (one per split) of staged rows that are left out. One of shard_bytes, shard_tokens and
    shards says how many shards there are. Given edges are used as they are, else at most `buckets` edges are fitted
    over all splits together. Raises BlockError if a task reported twice or more is dropped than was staged.
    """
    ordered = sorted(reports, key=lambda report: report.task)
    tasks = [report.task for report in ordered]
    if len(set(tasks)) != len(tasks):
        raise BlockError("a scan task reported twice: its rows would be written twice")
    staged = sum(histogram.rows for report in ordered for histogram in report.histograms)
    column_bytes_per_row = sum(report.column_bytes for report in ordered) / max(staged, 1)
    plans = []
    for place, name in enumerate(split_names):
        kept = [_kept(report, place, drops or {}) for report in ordered]
        histogram = merged(kept)
        count = shard_count(
            histogram.rows,
            histogram.tokens,
            int(histogram.tokens * bytes_per_token + histogram.rows * column_bytes_per_row),
            shard_bytes=shard_bytes,
            shard_tokens=shard_tokens,
            shards=shards,
            multiple_of=multiple_of,
        )
        plans.append(_split_plan(name, histogram, count, tasks, kept))
    fitted = (
        fit_edges(merged([plan.histogram for plan in plans]), buckets, pad_multiple)
        if edges is None
        else LengthBuckets(edges, pad_multiple)
    )
    return ShardPlan(tuple(plans), fitted)


def shard_count(
    rows: int,
    tokens: int,
    encoded_bytes: int,
    *,
    shard_bytes: int | None = None,
    shard_tokens: int | None = None,
    shards: int | None = None,
    multiple_of: int = 1,
) -> int:
    """Return how many shards a split gets; 0 without rows, never more than rows.

    The total over the size wished for, rounded; for small sets at least 8 where each still gets 4 MB; then up to the
    multiple. `shards` wins over all of it.
    """
    if shards is None:
        total, size = (tokens, shard_tokens) if shard_tokens is not None else (encoded_bytes, shard_bytes)
        wished = (2 * total + size) // (2 * size) if size is not None else 1
        shards = max(1, wished, min(SMALL_SET_SHARDS, encoded_bytes // SMALL_SHARD_BYTES))
        shards = -(-shards // multiple_of) * multiple_of
    return min(shards, rows)


def _kept(report: ScanReport, place: int, drops: Mapping[int, tuple[LengthHistogram, ...]]) -> LengthHistogram:
    histogram = report.histograms[place]
    return subtracted(histogram, drops[report.task][place]) if report.task in drops else histogram


def _split_plan(
    name: str, histogram: LengthHistogram, shards: int, tasks: Sequence[int], kept: Sequence[LengthHistogram]
) -> SplitPlan:
    """Return the plan of a split with its runs sorted by (length, task); memory grows with runs, not with rows."""
    empty = np.zeros(0, dtype=np.int64)
    lengths = np.concatenate([empty, *(h.lengths for h in kept)])
    by_length = np.argsort(lengths, kind="stable")  # the tasks come in order, and keep it
    del lengths
    task = np.repeat(np.array(tasks, dtype=np.int32), [len(h.lengths) for h in kept])
    row = np.concatenate([empty, *(np.cumsum(h.counts) - h.counts for h in kept)])
    counts = np.concatenate([empty, *(h.counts for h in kept)])
    return SplitPlan(name, histogram, shards, np.cumsum(counts[by_length]), task[by_length], row[by_length])
