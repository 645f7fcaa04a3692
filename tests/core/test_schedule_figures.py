"""What the schedule reaches on workload W (40,000 log-normal rows, 16 shards), and what it costs. docs/benchmarks.md."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from shardprep.core.buckets import LengthBuckets, fit_edges
from shardprep.core.histogram import LengthHistogram
from shardprep.core.schedule import Epoch, Policy, RowSet
from tests.core.schedule_cases import lognormal, rows_of

NO_BUCKETS = LengthBuckets((), 8)
ROWS = rows_of(lognormal(40_000), 16)
BUDGET = 14_400


def padding(epoch):
    """Return the share of padded tokens that hold none: all slots of a round take as long as each other."""
    area = sum(epoch.shape(r).area for r in range(epoch.rounds)) * epoch.policy.slots
    tokens = sum(epoch.totals(step)[1] for step in range(epoch.steps))
    assert tokens == ROWS.histogram.tokens
    return 1 - tokens / area


@pytest.mark.parametrize(
    ("settings", "windows", "most"),
    [
        ({"slots": 8, "window_rows": 10**6}, 1, 0.012),
        ({"slots": 8, "window_rows": 2_500}, 2, 0.017),
        ({"slots": 8, "window_rows": 10**6, "accumulate": 8}, 1, 0.012),  # 64 ranks' worth, as 8 rounds of 8
        ({"slots": 64, "window_rows": 10**6}, 1, 0.05),  # as one round of 64: hence steps of several rounds
        ({"slots": 1, "window_rows": 10**6}, 1, 0.005),
        ({"slots": 8, "variety": 1}, 1, 0.018),
        ({"slots": 8, "variety": 2}, 1, 0.029),
        ({"slots": 8, "variety": 3}, 1, 0.05),
        ({"slots": 8, "variety": 4}, 1, 0.085),
    ],
)
def test_padding_and_efficiency(settings, windows, most):
    for number in range(3):
        epoch = Epoch([ROWS], NO_BUCKETS, Policy(batch_tokens=BUDGET, **settings), number)
        assert len(epoch.windows) == windows
        assert padding(epoch) <= most


@pytest.mark.parametrize(("edges", "most"), [(64, 0.05), (32, 0.07), (16, 0.115)])
def test_padding_to_bucket_edges_in_few_shapes(edges, most):
    buckets = fit_edges(ROWS.histogram, edges, 8)
    policy = Policy(slots=8, batch_tokens=BUDGET, pad_to="edge")
    shapes = set()
    for number in range(3):
        epoch = Epoch([ROWS], buckets, policy, number)
        assert padding(epoch) <= most
        shapes |= {(epoch.shape(r).rows, epoch.shape(r).length) for r in range(epoch.rounds)}
    assert {length for _, length in shapes} <= set(buckets.edges)
    assert len(shapes) <= 2.5 * edges


def test_variety_lets_other_rows_meet_in_the_next_epoch():
    again = []
    for variety in range(5):
        policy = Policy(slots=8, batch_tokens=BUDGET, variety=variety)
        rounds = [_round_of_each_row(Epoch([ROWS], NO_BUCKETS, policy, number)) for number in (3, 4)]
        _, together = np.unique(rounds[0], return_counts=True)
        _, twice = np.unique(rounds[0] * 10_000 + rounds[1], return_counts=True)
        again.append((twice * (twice - 1)).sum() / (together * (together - 1)).sum())
    assert all(more > less for more, less in zip(again, again[1:], strict=False))
    assert again[0] < 0.6
    assert again[3] < 0.1


def _round_of_each_row(epoch):
    out = np.zeros((16, 2_500), dtype=np.int64)
    for r in range(epoch.rounds):
        for slot in range(epoch.policy.slots):
            batch = epoch.micro_batch(r, slot)
            out[batch.shard[: batch.real], batch.row[: batch.real]] = r
    return out.reshape(-1)


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_start_does_not_grow_with_rows(slots):
    # 100 million rows in 10,000 shards. Processor time, and generous: the machine may be busy.
    histogram = LengthHistogram(ROWS.histogram.lengths, ROWS.histogram.counts * 2_500)
    tracemalloc.start()
    began = time.process_time()
    epoch = Epoch([RowSet(histogram, 10_000)], NO_BUCKETS, Policy(slots=slots, batch_tokens=BUDGET), 0)
    rounds = epoch.rounds
    epoch.micro_batch(0, 0)
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rounds * slots > 6_000_000
    assert took < 5  # with tracing; 0.02 to 0.06 s without, and hours if each row were touched
    assert peak < 50e6
    memory = sum(a.nbytes for w in epoch._open.values() for lane in w._lanes.values() for a in (lane.shard, lane.row))
    assert memory < 1e6


def test_many_micro_batches_a_second():
    for slots, asked in ((1, 1), (8, 8), (8, 1)):
        best = min(_micros_each(slots, asked) for _ in range(3))
        assert best < 250, f"{slots} slots, {asked} of them asked for: {best:.1f} us each"  # 4 to 10 on a quiet machine


def _micros_each(slots, asked):
    began, count = time.process_time(), 0
    epoch = Epoch([ROWS], NO_BUCKETS, Policy(slots=slots, batch_tokens=BUDGET), 1)
    for r in range(epoch.rounds):
        for slot in range(asked):
            epoch.micro_batch(r, slot)
            count += 1
    return (time.process_time() - began) / count * 1e6
