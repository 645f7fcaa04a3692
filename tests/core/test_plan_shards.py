"""Every staged row goes to exactly one shard, and each shard is the data set in miniature."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.core.plan import ScanReport, histogram_of, plan_shards, shard_count
from shardprep.errors import BlockError, ConfigError

lengths_of_a_task = st.lists(st.integers(1, 12), max_size=25)
tasks_of_two_splits = st.lists(st.tuples(lengths_of_a_task, lengths_of_a_task), max_size=5)


def histogram(lengths):
    return histogram_of(np.array(lengths, dtype=np.int64))


def report(task, *splits, column_bytes=0):
    found = sum(map(len, splits))
    return ScanReport(task, tuple(map(histogram, splits)), found, {}, column_bytes=column_bytes)


def gathered(plan, split):
    """Rows (task, row) of every shard of a split, in shard order."""
    shards = []
    for index in range(plan.splits[split].shards):
        part = plan.shard(split, index)
        ranges = zip(part.task.tolist(), part.row_start.tolist(), part.row_stop.tolist(), strict=True)
        shards.append([(task, row) for task, start, stop in ranges for row in range(start, stop)])
    return shards


def plain_deal(tasks, shards):
    """The rule in plain Python. tasks: {task: lengths in staged order}; returns rows (task, row) of every shard."""
    by_length = defaultdict(list)
    for task in sorted(tasks):
        for row, length in enumerate(tasks[task]):
            by_length[length].append((task, row))
    numbers = sorted(length for lengths in tasks.values() for length in lengths)
    wanted = [[] for _ in range(shards)]  # lengths of every shard
    for number, length in enumerate(numbers):
        cycle, place = divmod(number, shards)
        wanted[place if cycle % 2 == 0 else shards - 1 - place].append(length)
    out = [[] for _ in range(shards)]
    for length in sorted(by_length):
        rows = iter(by_length[length])
        for shard in range(shards):
            out[shard] += [next(rows) for _ in range(wanted[shard].count(length))]
    return out


def assert_covers_once(shards, tasks):
    rows = [row for shard in shards for row in shard]
    assert sorted(rows) == sorted((task, row) for task, lengths in tasks.items() for row in range(len(lengths)))


@given(tasks_of_two_splits, st.integers(1, 9), st.randoms(use_true_random=False))
def test_shards_follow_the_plain_deal(tasks, shards, random):
    reports = [report(3 * i, *splits) for i, splits in enumerate(tasks)]  # task numbers need not be dense
    random.shuffle(reports)
    plan = plan_shards(reports, split_names=["a", "b"], shards=shards, pad_multiple=1)
    assert [s.name for s in plan.splits] == ["a", "b"]
    for split, name in enumerate("ab"):
        staged = {3 * i: sorted(splits[split]) for i, splits in enumerate(tasks)}
        found = gathered(plan, split)
        assert len(found) == min(shards, sum(map(len, staged.values()))) == plan.splits[split].shards
        assert_covers_once(found, staged)
        assert found == plain_deal(staged, max(1, len(found)))[: len(found)]
        sizes = [len(shard) for shard in found]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        for index, rows in enumerate(found):
            part = plan.shard(name, index)
            assert part.lengths.tolist() == [staged[task][row] for task, row in rows]
            assert (part.rows, part.tokens) == (len(rows), sum(part.lengths))
            assert part.rows == plan.splits[split].shard_rows(index)
            assert (part.split, part.index, part.shards) == (name, index, len(found))


@given(tasks_of_two_splits, st.data())
def test_dropped_rows_are_left_out_and_the_others_move_up(tasks, data):
    drops, left = {}, []
    for i, splits in enumerate(tasks):
        kept = [data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))) for x in splits]
        left.append([[x for x, keep in zip(s, k, strict=True) if keep] for s, k in zip(splits, kept, strict=True)])
        gone = [[x for x, keep in zip(s, k, strict=True) if not keep] for s, k in zip(splits, kept, strict=True)]
        if any(gone):
            drops[i] = tuple(map(histogram, gone))
    options = {"split_names": ["a", "b"], "shards": 4}
    plan = plan_shards([report(i, *s) for i, s in enumerate(tasks)], drops=drops, **options)
    without = plan_shards([report(i, *s) for i, s in enumerate(left)], **options)
    assert plan.buckets == without.buckets
    for split in range(2):
        assert gathered(plan, split) == gathered(without, split)


def test_ranges_that_follow_each_other_are_one():
    plan = plan_shards([report(0, [1, 1, 2, 3, 3])], split_names=["train"], shards=1)
    part = plan.shard("train", 0)
    assert (part.task.tolist(), part.row_start.tolist(), part.row_stop.tolist()) == ([0], [0], [5])


def test_shards_of_one_length_take_consecutive_runs_in_scan_order():
    plan = plan_shards([report(t, [5] * 100) for t in range(10)], split_names=["train"], shards=5)
    assert [plan.shard(0, k).task.tolist() for k in range(5)] == [[2 * k, 2 * k + 1] for k in range(5)]


def test_edges_are_fitted_over_all_splits_or_taken_as_given():
    reports = [report(0, [3, 3, 9], [17])]
    fitted = plan_shards(reports, split_names=["a", "b"], shards=1, buckets=64, pad_multiple=8)
    assert fitted.buckets.edges == (8, 16, 24)
    assert fitted.histogram == histogram([3, 3, 9, 17])
    assert fitted.shards == 2
    given_edges = plan_shards(reports, split_names=["a", "b"], shards=1, edges=(16,), pad_multiple=8)
    assert given_edges.buckets.edges == (16,)
    with pytest.raises(ConfigError, match="multiples of 8"):
        plan_shards(reports, split_names=["a", "b"], shards=1, edges=(12,), pad_multiple=8)


def test_a_split_without_rows_has_no_shards():
    plan = plan_shards([report(0, [3, 4], [])], split_names=["a", "b"], shards=2)
    assert [s.shards for s in plan.splits] == [2, 0]
    assert (plan.splits[1].rows, plan.splits[1].tokens) == (0, 0)


def test_nothing_at_all_is_a_plan_too():
    plan = plan_shards([], split_names=["train"], shard_bytes=1000)
    assert (plan.shards, plan.buckets.edges) == (0, ())


def test_a_task_that_reports_twice_is_an_error():
    with pytest.raises(BlockError, match="twice"):
        plan_shards([report(4, [1]), report(4, [1])], split_names=["train"], shards=1)


def test_dropping_more_than_was_staged_is_an_error():
    with pytest.raises(BlockError, match="more rows of length 2"):
        plan_shards([report(0, [1])], split_names=["train"], shards=1, drops={0: (histogram([2]),)})


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        (0, {"rows": 0, "encoded_bytes": 0, "shard_bytes": 100}),
        (1, {"encoded_bytes": 10, "shard_bytes": 100}),
        (2, {"encoded_bytes": 150, "shard_bytes": 100}),  # halves are rounded up
        (1, {"encoded_bytes": 149, "shard_bytes": 100}),
        (16, {"encoded_bytes": 2_000_000_000, "shard_bytes": 128_000_000}),
        (8, {"encoded_bytes": 33_000_000, "shard_bytes": 128_000_000}),  # small: 8, each with 4 MB
        (4, {"encoded_bytes": 19_000_000, "shard_bytes": 128_000_000}),  # each still gets 4 MB
        (1, {"encoded_bytes": 7_000_000, "shard_bytes": 128_000_000}),
        (16, {"encoded_bytes": 1_300_000_000, "shard_bytes": 128_000_000, "multiple_of": 8}),
        (10, {"tokens": 1_000_500, "encoded_bytes": 1_440_720, "shard_tokens": 100_000}),
        (3, {"rows": 3, "encoded_bytes": 7_600_000, "shard_bytes": 1 << 20}),  # never more than rows
        (3, {"rows": 3, "encoded_bytes": 7_600_000, "shard_bytes": 1 << 20, "multiple_of": 8}),
        (5, {"encoded_bytes": 1_000_000_000, "shard_bytes": 128_000_000, "multiple_of": 8, "shards": 5}),
        (100, {"rows": 100, "encoded_bytes": 100, "shards": 200}),
        (1, {"encoded_bytes": 100}),
    ],
)
def test_the_number_of_shards(wanted, options):
    assert shard_count(**{"rows": 10**6, "tokens": 10**9, **options}) == wanted


def test_columns_count_in_the_size():
    reports = [report(0, [1000] * 1000, column_bytes=1_000_000_000)]
    assert plan_shards(reports, split_names=["train"], shard_bytes=100_000_000).shards == 10
    assert plan_shards([report(0, [1000] * 1000)], split_names=["train"], shard_bytes=100_000_000).shards == 1


def test_equal_documents_in_8_and_200_shards():
    reports = [report(0, [100] * 60), report(1, [100] * 40)]
    plan = plan_shards(reports, split_names=["train"], shards=8)
    assert sorted({plan.shard(0, k).rows for k in range(8)}) == [12, 13]
    many = plan_shards(reports, split_names=["train"], shards=200)
    assert many.shards == 100
    assert all(many.shard(0, k).rows == 1 for k in range(100))


def test_one_giant_among_equals_leaves_the_other_shards_even():
    plan = plan_shards([report(0, [501] * 999 + [500_001])], split_names=["train"], shard_tokens=100_000)
    tokens = [plan.shard(0, k).tokens for k in range(plan.shards)]
    assert sum(tokens) == 1_000_500
    assert sum(not 50_000 <= t <= 150_000 for t in tokens) == 1


def test_many_tasks_and_lengths_stay_cheap():
    rng = np.random.default_rng(0)
    reports = [ScanReport(t, (histogram_of(rng.choice(8000, 300).astype(np.int64) + 1),), 300, {}) for t in range(400)]
    plan = plan_shards(reports, split_names=["train"], shards=37)
    runs = plan.splits[0]
    assert runs.run_ends.nbytes + runs.run_task.nbytes + runs.run_row.nbytes <= 20 * 400 * 300
    counted = np.zeros((400, 300), dtype=np.int64)
    for k in range(37):
        part = plan.shard(0, k)
        for task, start, stop in zip(part.task, part.row_start, part.row_stop, strict=True):
            counted[task, start:stop] += 1
    assert (counted == 1).all()
