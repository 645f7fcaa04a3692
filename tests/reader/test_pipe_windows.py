"""Windows of a stream: where they end, what they hold, and what of it the manifest tells beforehand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.buckets import LengthBuckets
from shardprep.core.content import ShardInfo, SplitInfo
from shardprep.core.deal import rows_of_shards, tokens_of_shards
from shardprep.core.histogram import LengthHistogram
from shardprep.core.schedule import Policy
from shardprep.formats.recordio_frames import MAGIC
from shardprep.reader.pipe_pieces import last_record
from shardprep.reader.pipe_windows import (
    LEAST_BUFFER_BYTES,
    MOST_BUFFER_BYTES,
    Window,
    WindowCutter,
    cost_of,
    default_buffer_bytes,
    lengths_by_window,
    rounds_of,
)

LENGTHS = st.lists(st.integers(0, 200), min_size=1, max_size=60)


def plain_windows(lengths, budget):
    """Return windows of a stream, row by row."""
    windows, filled = [[]], 0
    for length in lengths:
        windows[-1].append(length)
        filled += 4 * length + 64
        if filled >= budget:
            windows.append([])
            filled = 0
    return [window for window in windows if window]


def split_of(lengths, shards):
    """Return a split with these lengths, dealt to so many shards."""
    found, counts = np.unique(np.array(lengths, dtype=np.int64), return_counts=True)
    histogram = LengthHistogram(found, counts.astype(np.int64))
    rows, tokens = rows_of_shards(len(lengths), shards), tokens_of_shards(histogram, shards)
    infos = tuple(
        ShardInfo(f"a/train/{k:05d}.rec", "train", int(r), int(t), 1, "", 1, "")
        for k, (r, t) in enumerate(zip(rows, tokens, strict=True))
    )
    return SplitInfo("train", histogram, len(lengths), sum(lengths), infos)


def plain_stream(lengths, shards):
    """Return the lengths as they come through the pipe: each shard's rows are sorted, dealt back and forth."""
    dealt = [[] for _ in range(shards)]
    for number, length in enumerate(sorted(lengths)):
        cycle, place = divmod(number, shards)
        dealt[place if cycle % 2 == 0 else shards - 1 - place].append(length)
    return [length for shard in dealt for length in shard]


@given(LENGTHS, st.integers(1, 5000), st.lists(st.integers(0, 60), max_size=4))
def test_windows_end_where_the_rows_say_however_they_come(lengths, budget, cuts):
    cutter, found, at = WindowCutter(budget), [], 0
    edges = sorted({0, len(lengths), *(cut for cut in cuts if cut < len(lengths))})
    for start, stop in zip(edges, edges[1:], strict=False):
        found += [at + cut for cut in cutter.cuts(np.array(lengths[start:stop], dtype=np.int64))]
        at = stop
    wanted = np.cumsum([len(window) for window in plain_windows(lengths, budget)]).tolist()
    assert found == wanted or [*found, len(lengths)] == wanted


@given(LENGTHS, st.integers(1, 5), st.integers(100, 5000))
def test_the_manifest_tells_the_windows(lengths, shards, budget):
    shards = min(shards, len(lengths))
    stream = plain_stream(lengths, shards)
    wanted = [sorted(window) for window in plain_windows(stream, budget)]
    told = [
        np.repeat(window.lengths, window.counts).tolist()
        for window in lengths_by_window([split_of(lengths, shards)], budget)
    ]
    assert told == wanted


def block_of(lengths, first=0):
    ids = pa.array([f"{first + i}" for i in range(len(lengths))])
    columns = pa.RecordBatch.from_arrays([ids], names=["id"])
    tokens = np.repeat(np.arange(first, first + len(lengths), dtype=np.int32), lengths)
    return TokenBlock(tokens, offsets_of(np.array(lengths, dtype=np.int64)), columns)


@given(LENGTHS, st.integers(1, 59), st.integers(1, 4))
def test_the_rounds_of_a_window_hold_each_row_once(lengths, cut, slots):
    cut = min(cut, len(lengths))
    blocks = [block_of(lengths[:cut]), block_of(lengths[cut:], cut)]
    window = Window.of(3, tuple(block for block in blocks if block.rows))
    policy = Policy(slots=slots, batch_tokens=256)
    epoch = rounds_of(window.histogram, LengthBuckets((), 8), policy, 5, window.index)
    starts, seen = window.starts(), []
    for index in range(epoch.rounds):
        for slot in range(slots):
            spec = window.placed(epoch.micro_batch(index, slot), starts, 100, 50, 5)
            assert (spec.round, spec.step, spec.epoch) == (100 + index, 50 + index, 5)
            rows = (starts[spec.shard] + spec.row).tolist()
            assert all(lengths[row] <= spec.length for row in rows)
            seen += rows[: spec.real]
    assert sorted(seen) == list(range(len(lengths)))


def test_a_digest_depends_on_ids_lengths_and_order_and_not_on_blocks():
    whole = block_of([3, 1, 2, 5])
    digest = Window.of(0, (whole,)).digest
    assert Window.of(0, (whole.slice(0, 3), whole.slice(3, 4))).digest != Window.of(0, (whole.slice(0, 3),)).digest
    assert Window.of(0, (block_of([3, 1, 2, 5], 7),)).digest != digest
    assert Window.of(0, (block_of([3, 2, 1, 5]),)).digest != digest
    assert Window.of(7, (block_of([3, 1, 2, 5]),)).digest == digest


@pytest.mark.parametrize(
    ("rows", "length", "wanted"),
    [(10, 300, LEAST_BUFFER_BYTES), (10_000, 3_000, None), (50_000, 8_000, MOST_BUFFER_BYTES)],
)
def test_the_default_buffer(rows, length, wanted):
    lengths = np.full(rows, length, dtype=np.int64)
    found = default_buffer_bytes([split_of(lengths.tolist(), 1)])
    assert found == (int(cost_of(lengths).sum()) if wanted is None else wanted)


def test_padding_goes_down_with_the_buffer():
    """What docs/sagemaker.md says of it, on log-normal lengths in a stream of small shards."""
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(6.48, 0.8, 8_000), 16, 8192).astype(int).tolist()
    split, shares = split_of(lengths, 16), []
    policy = Policy(slots=8, batch_tokens=16_384)
    for budget in (1 << 20, 4 << 20, 32 << 20):
        slots = 0
        for index, histogram in enumerate(lengths_by_window([split], budget)):
            epoch = rounds_of(histogram, LengthBuckets((), 8), policy, 0, index)
            slots += sum(epoch.shape(i).area * policy.slots for i in range(epoch.rounds))
        shares.append(1 - sum(lengths) / slots)
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.05


def record(size, flag=0):
    return MAGIC.to_bytes(4, "little") + (flag << 29 | size).to_bytes(4, "little") + bytes(-(-size // 4) * 4)


@pytest.mark.parametrize("size", [0, 5, 8, 100_000, 2_000_000])
def test_the_last_record(size):
    """Of a long record the head is found, wherever the bytes end; a part of a record is no beginning."""
    before = record(8) + record(3)
    data = before + record(4, 1) + record(4, 2) + record(4, 3) + record(size)
    last = len(data) - len(record(size))
    assert last_record(memoryview(data)) == last
    assert last_record(memoryview(data[:-1])) == (last if size else len(before))
    assert last_record(memoryview(data[: last + 7])) == len(before)  # its head is not whole
    assert last_record(memoryview(record(size))) == 0
    assert last_record(memoryview(b"")) == 0
