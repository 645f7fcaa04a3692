"""The gather of a shard's rows from staging, against plain Python lists of the same rows."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.buckets import LengthBuckets
from shardprep.core.plan import ScanReport, ShardRanges, histogram_of, plan_shards
from shardprep.core.splits import parse_splits
from shardprep.errors import NotFound
from shardprep.formats.parquet import shard_schema
from shardprep.formats.tokenizer import TokenizerSpec
from shardprep.prep.job import Job, Worker
from shardprep.prep.settings import Settings
from shardprep.prep.stage import DOCUMENT, Staged, name_of, stage_rows, tag_of
from shardprep.prep.write import Gather, WriteCall
from shardprep.storage.store import Store

SCHEMA = shard_schema(pa.schema([pa.field("score", pa.float64())]), pieces=False, metadata={})
Row = tuple[int, int, int, str]  # split, length, document, id

rows_of_a_task = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 12), st.integers(0, 5)), max_size=25)
tasks_of_a_job = st.lists(st.tuples(rows_of_a_task, st.booleans(), st.sets(st.integers(0, 5), max_size=3)), max_size=5)


def job_at(staging: str, reports: Sequence[ScanReport] = ()) -> Job:
    return Job(
        settings=Settings(),
        spec=TokenizerSpec("f", 257),
        backend="reference",
        roots=(),
        staging=staging,
        output=staging + "-out",
        tokenizer="tokenizer.json",
        custom_tokenizer=False,
        splits=parse_splits("train=0.5,validation=0.5"),
        batch_bytes=1,
        refs=False,
        tags=tuple(report.tag for report in reports),
    )


def tokens_of(task: int, number: int, length: int) -> list[int]:
    return [(1000 * task + number + i) % 251 for i in range(length)]


def stage(store: Store, task: int, rows: list[Row], batch_bytes: int, *, floats: bool) -> ScanReport:
    """Stage the rows of a task, which lie by split and length."""
    lengths = np.array([row[1] for row in rows], dtype=np.int64)
    splits = np.array([row[0] for row in rows], dtype=np.int8)
    flat = [token for n, row in enumerate(rows) for token in tokens_of(task, n, row[1])]
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([row[3] for row in rows], pa.string()),
            pa.array([n for n in range(len(rows))], pa.float64() if floats else pa.int64()),
            pa.array([row[2] for row in rows], pa.int32()),
        ],
        schema=pa.schema(
            [
                pa.field("id", pa.string(), nullable=False),
                pa.field("score", pa.float64() if floats else pa.int64()),
                pa.field(DOCUMENT, pa.int32(), nullable=False),
            ]
        ),
    )
    block = TokenBlock(np.array(flat, dtype=np.int32), offsets_of(lengths), columns)
    data, schema, batches = stage_rows(block, splits, batch_bytes)
    report = ScanReport(
        task=task,
        histograms=tuple(histogram_of(lengths[splits == s]) for s in range(2)),
        found=len(rows),
        set_aside={},
        documents=len(rows),
    )
    sidecar = Staged(report, "", len(data), schema, batches).to_bytes()
    report = replace(report, tag=tag_of(sidecar))
    store.put(name_of(task, report.tag) + ".arrow", data)
    store.put(name_of(task, report.tag) + ".json", sidecar)
    return report


def call_of(
    folder: str, reports: Sequence[ScanReport], split: int, ranges: ShardRanges, dropped: frozenset[int] = frozenset()
) -> WriteCall:
    return WriteCall(
        job=job_at(folder, reports),
        split=split,
        name="x",
        ranges=ranges,
        buckets=LengthBuckets((16,), 8),
        schema=b"",
        staged="",
        dropped=dropped,
        known=False,
        row_bytes=0,
    )


def told(block: TokenBlock) -> list[tuple[str, list[int], float]]:
    ids, scores = block.columns.column("id").to_pylist(), block.columns.column("score").to_pylist()
    assert block.columns.schema.names == ["id", "score"]
    assert block.columns.schema.field("score").type == pa.float64()
    return [(ids[n], block.ids[block.offsets[n] : block.offsets[n + 1]].tolist(), scores[n]) for n in range(block.rows)]


@pytest.mark.parametrize("where", ["local", "ranged"])
@settings(max_examples=60)
@given(
    tasks=tasks_of_a_job,
    shards=st.integers(1, 5),
    batch_bytes=st.sampled_from([4, 40, 100_000]),
    chunk=st.integers(1, 9),
)
def test_gather_gives_every_kept_row_once(
    where: str, tasks: list[Any], shards: int, batch_bytes: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ranged reads of an object store (in memory) and mapped files of a local disk give the same rows."""
    folder = f"memory://{uuid.uuid4().hex}" if where == "ranged" else str(tmp_path_factory.mktemp("staging"))
    worker = Worker(job_at(folder))
    store = worker.staging
    reports, drops, kept = [], {}, dict[int, list[tuple[int, int, Row]]]()
    for task, (drawn, floats, gone) in enumerate(tasks):
        rows = [(s, n, d, f"t{task}-{i}") for i, (s, n, d) in enumerate(sorted(drawn, key=lambda row: row[:2]))]
        reports.append(stage(store, task, rows, batch_bytes, floats=floats))
        out = [row for row in rows if row[2] in gone]
        if gone:
            drops[task] = tuple(
                histogram_of(np.array([r[1] for r in out if r[0] == s], dtype=np.int64)) for s in range(2)
            )
            for s in range(2):
                of_split = [row for row in rows if row[0] == s]
                left = [i for i, row in enumerate(of_split) if row[2] not in gone]
                store.put(f"{name_of(task, reports[task].tag)}.kept-{s}.npy", np.array(left, dtype=np.int64).tobytes())
        for number, row in enumerate(rows):
            if row[2] not in gone:
                kept.setdefault(row[0], []).append((task, number, row))
    plan = plan_shards(reports, split_names=("train", "validation"), shards=shards, drops=drops)
    for split, split_plan in enumerate(plan.splits):
        wanted = sorted(kept.get(split, []), key=lambda x: (x[2][1], x[0], x[1]))
        place = {row[3]: n for n, (_, _, row) in enumerate(wanted)}
        assert split_plan.shards == min(shards, len(wanted))
        seen: list[tuple[str, list[int], float]] = []
        for k in range(split_plan.shards):
            ranges = split_plan.shard(k)
            call = call_of(folder, reports, split, ranges, frozenset(drops))
            gather = Gather(worker, call, SCHEMA)
            rows_here = [
                row
                for start in range(0, ranges.rows, chunk)
                for row in told(gather.rows(start, min(start + chunk, ranges.rows)))
            ]
            assert not gather._batches, "what is used up is let go"
            m = split_plan.shards
            numbers = [j * m + (k if j % 2 == 0 else m - 1 - k) for j in range(len(rows_here) + 1)]
            by_length = [row[1] for _, _, row in wanted]
            assert [len(tokens) for _, tokens, _ in rows_here] == [by_length[n] for n in numbers if n < len(by_length)]
            for one, other in itertools.pairwise(
                rows_here
            ):  # of one length: a consecutive run in the order of the scan
                if len(one[1]) == len(other[1]):
                    assert place[other[0]] == place[one[0]] + 1
            seen += rows_here
        assert sorted(seen) == sorted(
            (row[3], tokens_of(task, number, row[1]), float(number)) for task, number, row in wanted
        )


@pytest.mark.parametrize("where", ["local", "ranged"])
@pytest.mark.parametrize("gone", [".json", ".arrow"])
def test_staged_rows_that_are_gone(where: str, gone: str, tmp_path: Path) -> None:
    folder = f"memory://{uuid.uuid4().hex}" if where == "ranged" else str(tmp_path)
    worker = Worker(job_at(folder))
    report = stage(worker.staging, 0, [(0, 3, 0, "a")], 100, floats=True)
    ranges = plan_shards([report], split_names=("train", "validation"), shards=1).splits[0].shard(0)
    worker.staging.delete([name_of(0, report.tag) + gone])
    call = call_of(folder, [report], 0, ranges)
    with pytest.raises(NotFound):
        Gather(worker, call, SCHEMA).rows(0, 1)
