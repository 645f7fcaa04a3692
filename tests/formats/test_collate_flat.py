"""The flat form for worker processes: the same bytes as the direct form, and few of them on the way."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
from batch_rows import COLUMNS, Row, Spec, assert_right, assert_same, cases, specs, view_of
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import BlockError
from shardprep.formats.collate import BufferPool, Collator, pack


@given(cases(names=tuple(COLUMNS)), st.data())
def test_the_flat_form_gives_the_same_bytes(case, data):
    rows, views, spec = case
    many = [spec, *data.draw(st.lists(specs(rows), max_size=4))]
    collator = Collator(5, BufferPool())
    facts = [{"last_in_step": i % 2 == 0, "epoch": i, "name": f"n{i}"} for i in range(len(many))]
    flat = pickle.loads(pickle.dumps(pack(many, views), 5))
    assert len(flat) == len(many)
    batches = list(collator.from_flat(flat, facts))
    assert len(batches) == len(many)
    for each, got, some in zip(many, batches, facts, strict=True):
        assert_right(got, rows, each, 5, **some)
        assert_same(got, collator.batch(each, views, **some))
    for each, got in zip(many, collator.from_flat(flat), strict=True):
        assert_same(got, collator.batch(each, views))


def test_pickled_out_of_band_the_tokens_are_not_copied():
    views = {0: view_of([Row(f"r{i}", [i] * 1000) for i in range(16)])}
    flat = pack([Spec(np.zeros(16, np.int64), np.arange(16), 16, 1000)], views)
    buffers = []
    head = pickle.dumps(flat, protocol=5, buffer_callback=buffers.append)
    assert len(head) < 4096
    assert sum(buffer.raw().nbytes for buffer in buffers) < 4 * 16_000 + 4096  # int32 tokens, no padding, no mask
    assert next(Collator(0, BufferPool()).from_flat(pickle.loads(head, buffers=buffers))).ids == [
        f"r{i}" for i in range(16)
    ]


def test_a_flat_block_holds_nothing_of_the_shard():
    rows = [Row(f"r{i}", [i] * 100, {"source": "x" * 1000}) for i in range(200)]
    flat = pack([Spec(np.zeros(1, np.int64), np.array([7]), 1, 100)], {0: view_of(rows)})
    assert len(pickle.dumps(flat)) < 6000


def _packed(connection):
    views = {0: view_of([Row("a", [1, 2], {"label": 3}), Row("b", [4], {"label": None})])}
    specs = [Spec(np.zeros(2, np.int64), np.arange(2), 1, 4), Spec(np.zeros(1, np.int64), np.array([1]), 1, 8)]
    connection.send(pack(specs, views))
    connection.send(Collator(0, BufferPool()).batch(specs[0], views))
    connection.close()


def test_blocks_and_batches_come_out_of_a_spawned_process():
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_packed, args=(theirs,))
    child.start()
    flat, direct = ours.recv(), ours.recv()
    child.join()
    first, second = Collator(0, BufferPool()).from_flat(flat)
    assert_same(first, direct)
    assert first.columns["label"].tolist() == [3, -100]
    assert second.input_ids.tolist() == [[4] + [0] * 7]
    assert child.exitcode == 0


def test_a_missing_row_is_named_when_packing():
    with pytest.raises(BlockError, match="row 3 of shard 0"):
        pack([Spec(np.zeros(1, np.int64), np.array([3]), 1, 8)], {0: view_of([Row("a", [1])])})


def test_facts_of_another_number_of_micro_batches_are_refused():
    flat = pack([Spec(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, 8)], {0: view_of([Row("a", [1])])})
    with pytest.raises(ValueError, match="zip"):
        list(Collator(0, BufferPool()).from_flat(flat, []))
