"""What the driver holds of repeats: columns, so that a source full of them does not fill its memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardprep.core.plan import ScanReport, SourceTable, histogram_of, plan_scan
from shardprep.core.splits import parse_splits
from shardprep.formats.tokenizer import TokenizerSpec
from shardprep.prep import late, repeats
from shardprep.prep.job import Job
from shardprep.prep.settings import Settings

TASKS, DOCUMENTS = 40, 10_000  # of each task all but one repeat: a document and another one, far away


class ManyRepeats:
    """An engine whose workers found all this; what they hold themselves is not counted."""

    workers = 1

    def __init__(self) -> None:
        self.dropped = 0

    def run(self, function: Callable[[Any], Any], count: int, task: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        for index in range(count):
            yield index, getattr(self, f"_{function.__name__}")(task(index))

    def alone(self, *_: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        pass

    def _find_repeats(self, call: repeats.RepeatsCall) -> repeats.Repeats:
        later = np.zeros(TASKS * (DOCUMENTS - 1), dtype=repeats.REPEAT)
        later["task"] = np.repeat(np.arange(TASKS), DOCUMENTS - 1)
        later["document"] = np.tile(np.arange(1, DOCUMENTS), TASKS)
        later["first_task"] = (later["task"] + 7) % TASKS
        later["first_document"] = later["document"]
        return repeats.Repeats(later, 0, later[:0])

    def _names(self, call: repeats.NamesCall) -> pa.Array:
        return pa.array([f"{call.task}:{n}" for n in call.documents.tolist()], pa.large_string())

    def _drop(self, call: repeats.DropCall) -> repeats.Dropped:
        assert len(call.documents) == DOCUMENTS - 1
        assert call.first_ids[5].as_py() == f"{(call.task.index + 7) % TASKS}:{call.documents[5]}"
        self.dropped += len(call.documents)
        return repeats.Dropped(call.task.index, (histogram_of(np.zeros(0, np.int64)),), {"duplicate_text": 1}, ())


@pytest.fixture
def job() -> Job:
    return Job(
        settings=Settings(dedup="exact"),
        spec=TokenizerSpec("f", 257),
        backend="reference",
        roots=("/nowhere",),
        staging="/nowhere",
        output="/nowhere",
        tokenizer="tokenizer.json",
        custom_tokenizer=False,
        splits=parse_splits("train=1"),
        batch_bytes=1,
        refs=False,
        tags=("00000000",) * TASKS,
    )


def test_the_driver_holds_few_bytes_of_each_repeat(job: Job) -> None:
    table = SourceTable(
        ("/nowhere",),
        ("",),
        np.zeros(TASKS, np.int16),
        pa.array([str(n) for n in range(TASKS)], pa.large_string()),
        np.full(TASKS, 1 << 20),
        pa.array(["x"] * TASKS, pa.large_string()),
    )
    plan = plan_scan(table, seed=0, min_task_bytes=1 << 20, max_task_bytes=1 << 20)
    reports = [ScanReport(t, (histogram_of(np.ones(1, np.int64)),), 1, {}, documents=DOCUMENTS) for t in range(TASKS)]
    engine, count = ManyRepeats(), TASKS * (DOCUMENTS - 1)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        found = late.find_and_drop(engine, job, plan, reports)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert engine.dropped == count
    assert found.facts["texts_set_aside"] == count
    assert peak / count < 130, (
        peak / count,
        "columns of 20 bytes, a few at once while sorting; as Python objects it was 166 and more",
    )
    assert pa.total_allocated_bytes() - before < 1 << 20
