"""Batches against plain Python: padding, mask, weights, labels, ids, and rows that are not there."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from batch_rows import Row, Spec, assert_right, assert_same, cases, view_of
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.buckets import LengthBuckets
from shardprep.core.histogram import histogram_of
from shardprep.core.schedule import Epoch, Policy, RowSet
from shardprep.errors import BlockError, ConfigError
from shardprep.formats import collate
from shardprep.formats.collate import Batch, BufferPool, Collator, pack

PADS = st.integers(-(2**31), 2**31 - 1)


def spec_of(keys, length, real=None):
    shard, row = (np.array(part) for part in zip(*keys, strict=True))
    return Spec(shard, row, len(keys) if real is None else real, length)


@given(cases(), PADS)
def test_a_batch_is_what_plain_python_makes_of_its_rows(case, pad_id):
    rows, views, spec = case
    pool = BufferPool()
    for _ in range(2):  # the second one in used memory
        assert_right(Collator(pad_id, pool).batch(spec, views), rows, spec, pad_id)


@given(cases(names=("label", "source")), PADS)
def test_a_batch_survives_pickling_and_copying(case, pad_id):
    rows, views, spec = case
    facts = {"last_in_step": True, "epoch": 3, "name": "set"}
    batch = Collator(pad_id, BufferPool()).batch(
        spec, views, **facts, state=lambda step, last: {"step": step, "last": last}
    )
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch, 5))):
        assert_right(again, rows, spec, pad_id, **facts)
        assert_same(again, batch)
        assert again.state() == batch.state() == {"step": spec.step, "last": True}


def test_pickling_carries_what_the_loop_changed():
    batch = Collator(0, BufferPool()).batch(spec_of([(0, 0)], 4), {0: view_of([Row("a", [5, 6, 7])])})
    batch.labels[0, 0] = -100
    batch.input_ids[0, 0] = 103  # masked, as in masked language modelling
    again = pickle.loads(pickle.dumps(batch))
    assert again.input_ids.tolist() == [[103, 6, 7, 0]]
    assert again.labels.tolist() == [[-100, 6, 7, -100]]


def test_a_longer_padding_than_ever_before_is_filled():
    view = view_of([Row("a", [1]), Row("b", [2] * 5000)])
    batch = Collator(9, BufferPool()).batch(spec_of([(0, 0), (0, 1)], 5000), {0: view})
    assert batch.input_ids[0].tolist() == [1] + [9] * 4999
    assert batch.attention_mask.sum() == 5001


def test_a_row_longer_than_the_batch_is_refused_and_not_cut():
    view = view_of([Row("a", [1] * 9)])
    with pytest.raises(BlockError, match="a row of 9 tokens does not fit a batch padded to 8"):
        Collator(0, BufferPool()).batch(spec_of([(0, 0)], 8), {0: view})


@pytest.mark.parametrize("row", [6, 9, -1])
def test_a_row_outside_the_view_is_refused(row):
    views = {4: view_of([Row("a", [1]), Row("b", [2])], first=7)}
    with pytest.raises(BlockError, match=rf"row {row} of shard 4 is asked for, but its view holds rows 7 to 8"):
        Collator(0, BufferPool()).batch(spec_of([(4, row)], 8), views)


def test_a_shard_without_a_view_is_refused():
    with pytest.raises(BlockError, match="no view of that shard was given"):
        Collator(0, BufferPool()).batch(spec_of([(5, 0)], 8), {4: view_of([Row("a", [1])])})


@pytest.mark.parametrize("pad_id", [2**31, -(2**31) - 1])
def test_a_pad_token_that_is_no_int32_is_refused(pad_id):
    with pytest.raises(ConfigError, match="pad_id must fit int32"):
        Collator(pad_id, BufferPool())


def test_the_schedules_own_micro_batches_are_specs():
    lengths = [1, 2, 2, 3, 5, 8, 8, 9, 12, 13]
    rows = [[Row(f"{shard}-{i}", [shard + 1] * n) for i, n in enumerate(lengths)] for shard in (0, 1)]
    views = {shard: view_of(rows[shard]) for shard in (0, 1)}
    histogram = histogram_of(np.array(lengths * 2))
    epoch = Epoch(
        [RowSet(histogram, 2, 0)], LengthBuckets((16,), 8), Policy(slots=2, batch_tokens=32, shuffle=False), 5
    )
    collator, seen = Collator(0, BufferPool()), []
    for place in range(epoch.rounds):
        for slot in (0, 1):
            spec = epoch.micro_batch(place, slot)
            batch = collator.batch(spec, views)
            by_place = {(shard, i): row for shard in (0, 1) for i, row in enumerate(rows[shard])}
            assert_right(batch, by_place, spec, 0)
            assert_same(next(collator.from_flat(pack([spec], views))), batch)
            seen += batch.ids[: batch.real]
    assert sorted(seen) == sorted(row.id for shard in (0, 1) for row in rows[shard])


def test_batches_made_together_are_those_made_one_by_one(monkeypatch):
    monkeypatch.setattr(collate, "TOGETHER_SLOTS", 40)
    view = view_of([Row(str(n), [n] * n) for n in range(1, 9)])
    specs = [spec_of([(0, i), (0, i - 1)], i + 2, real=1 + i % 2) for i in range(1, 8)]
    facts = [{"epoch": i, "last_in_step": i % 2 == 0} for i in range(len(specs))]
    collator = Collator(9, BufferPool())
    together = collator.batches(specs, {0: view}, facts)
    for batch, spec, some in zip(together, specs, facts, strict=True):
        assert_same(batch, collator.batch(spec, {0: view}, **some))
        for array in (batch.input_ids, batch.attention_mask):
            assert array.flags.c_contiguous
        assert batch.input_ids.__array_interface__["data"][0] % 64 == 0
    owners = [id(owner_of(batch.input_ids)) for batch in together]
    assert len(set(owners)) == 3  # 6, 8, 10 and 12 slots and gaps between them, then 14 and 16, then 18
    assert collator.batches([], {}) == []


def owner_of(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


def test_the_state_is_asked_for_once_and_only_when_needed():
    asked = []

    def state(step, last):
        asked.append((step, last))
        return {"step": step}

    view = view_of([Row("a", [1])])
    batch = Collator(0, BufferPool()).batch(spec_of([(0, 0)], 1), {0: view}, last_in_step=True, state=state)
    assert not asked
    assert batch.state() == batch.state() == {"step": 13}
    assert asked == [(13, True)]


def test_a_batch_without_a_loader_says_so():
    batch = Collator(0, BufferPool()).batch(spec_of([(0, 0)], 1), {0: view_of([Row("a", [1])])})
    with pytest.raises(ConfigError, match="no state"):
        batch.state()
    assert pickle.loads(pickle.dumps(batch)).ids == ["a"]


def test_a_batch_keeps_only_the_views_that_it_reads():
    views = {shard: view_of([Row(f"s{shard}", [1])]) for shard in range(3)}
    batch = Collator(0, BufferPool()).batch(spec_of([(1, 0)], 1), views)
    assert set(batch._rows.views) == {1}


def test_threads_share_a_collator():
    rows = [Row(f"r{i}", [i] * (i % 50)) for i in range(200)]
    views, collator, wrong = {0: view_of(rows)}, Collator(7, BufferPool(1 << 20)), []

    def work(seed):
        order = np.random.default_rng(seed).integers(0, 200, (100, 8))
        kept: list[tuple[Batch, list[int]]] = []
        for place, chosen in enumerate(order):
            spec = Spec(np.zeros(8, np.int64), chosen, 8, 50 + place * 20)  # longer paddings all the time
            kept = [*kept[-3:], (collator.batch(spec, views), chosen.tolist())]
            for batch, picked in kept:
                want = [rows[i].tokens + [7] * (batch.input_ids.shape[1] - len(rows[i].tokens)) for i in picked]
                if batch.input_ids.tolist() != want:
                    wrong.append(place)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
