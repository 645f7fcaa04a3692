"""Every byte of the source is in exactly one scan task, whatever the source looks like."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardprep.core.plan import SourceTable, object_name, plan_id, plan_scan


def table(sizes, labels=("",), etags=None):
    n = len(sizes)
    return SourceTable(
        tuple(f"file:///{label}" for label in labels),
        tuple(labels),
        np.sort(np.arange(n, dtype=np.int16) % len(labels)),
        pa.array([f"k{i:05d}" for i in range(n)], pa.large_string()),
        np.array(sizes, dtype=np.int64),
        pa.array(etags or [f"e{i}" for i in range(n)], pa.large_string()),
    )


def assert_covers_once(plan):
    sizes = dict(zip(plan.table.keys.to_pylist(), plan.table.sizes.tolist(), strict=True))
    whole, ranges = [], {}
    for index, task in enumerate(plan):
        assert task.index == index
        assert task.objects
        if task.byte_range is None:
            whole += [ref.key for ref in task.objects]
            assert plan.task_bytes[index] == sum(ref.size_bytes for ref in task.objects)
        else:
            (ref,) = task.objects
            ranges.setdefault(ref.key, []).append(task.byte_range)
            assert plan.task_bytes[index] == task.byte_range[1] - task.byte_range[0]
    assert sorted([*whole, *ranges]) == sorted(sizes)
    for key, parts in ranges.items():
        parts.sort()
        assert parts[0][0] == 0
        assert parts[-1][1] == sizes[key]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        lengths = [stop - start for start, stop in parts]
        assert min(lengths) >= 1
        assert max(lengths) - min(lengths) <= 1


@given(
    st.lists(st.integers(0, 400) | st.integers(0, 20_000), max_size=40),
    st.integers(0, 5),
    st.integers(1, 30),
    st.integers(0, 50),
)
@example([0, 1], 0, 1, 0)  # an empty object before the others, and nothing for its request
@example([0, 101, 101], 0, 4, 0)  # and one beside ranges
def test_every_byte_is_in_one_task(sizes, seed, max_tasks, overhead):
    plan = plan_scan(
        table(sizes),
        seed=seed,
        max_tasks=max_tasks,
        min_task_bytes=100,
        max_task_bytes=1000,
        object_overhead_bytes=overhead,
    )
    assert plan.tasks <= max_tasks
    assert_covers_once(plan)


def test_tasks_are_near_equal_in_weight():
    sizes = np.random.default_rng(0).integers(100, 8000, 50_000)
    plan = plan_scan(table(sizes), seed=0)
    weights = [sum(ref.size_bytes + 4096 for ref in task.objects) for task in plan]
    assert 32 <= plan.tasks <= 40
    assert max(weights) / min(weights) < 1.01


def test_a_small_source_has_few_tasks_and_a_large_one_at_most_4000():
    assert plan_scan(table([4000] * 10), seed=0).tasks == 1
    assert plan_scan(table([4000] * 2500), seed=0).tasks <= 32
    assert plan_scan(table([10**12]), seed=0).tasks <= 4000
    crowd = plan_scan(table([5 * 2**20 + 1] * 3000 + [1] * 10), seed=0, max_task_bytes=5 << 20)
    assert crowd.tasks <= 4000
    assert_covers_once(crowd)


def test_ranges_are_at_most_the_target():
    plan = plan_scan(table([100_000_000]), seed=0)
    assert plan.task_bytes.max() <= 100_004_096 // 32
    assert plan.task_bytes.max() - plan.task_bytes.min() <= 1


def test_the_order_is_seeded_and_the_same_every_time():
    sizes = [4000] * 3000 + [5_000_000]
    first, again, other = (plan_scan(table(sizes), seed=seed) for seed in (0, 0, 1))
    assert list(first) == list(again)
    assert first.members.tolist() != other.members.tolist()
    assert first.members[:8].tolist() != sorted(first.members[:8].tolist())


def test_the_earlier_ranges_of_an_object_are_known():
    plan = plan_scan(table([4000] * 3000 + [9_000_000, 8_000_000]), seed=3)
    for task in plan:
        before = [plan.task(int(i)) for i in plan.ranges_before(task.index)]
        if task.byte_range is None:
            assert before == []
            continue
        assert all(b.objects == task.objects for b in before)
        stops = [0, *(b.byte_range[1] for b in before)]
        assert stops == [*(b.byte_range[0] for b in before), task.byte_range[0]]


def test_refs_carry_what_was_listed():
    plan = plan_scan(table([10, 20], labels=("left", "right/")), seed=0)
    refs = sorted((ref for task in plan for ref in task.objects), key=lambda ref: ref.key)
    assert [(r.root, r.key, r.name, r.size_bytes, r.etag) for r in refs] == [
        (0, "k00000", "left/k00000", 10, "e0"),
        (1, "k00001", "right/k00001", 20, "e1"),
    ]
    assert object_name("", "k") == "k"


def test_an_empty_source_has_no_tasks():
    assert plan_scan(table([]), seed=0).tasks == 0


def test_a_million_objects_are_planned_columnar():
    n = 1_000_000
    keys = pa.array(np.arange(n)).cast(pa.large_string())
    etags = pa.repeat(pa.scalar("", pa.large_string()), n)
    source = SourceTable(("a",), ("",), np.zeros(n, np.int16), keys, np.full(n, 3_800, np.int64), etags)
    plan = plan_scan(source, seed=0)
    assert plan.tasks < 1000
    assert sum(a.nbytes for a in (plan.members, plan.first, plan.count, plan.start, plan.stop)) < 9 * n
    assert sum(plan.count) == n


GOLDEN_ID = "0eb26af8"
GOLDEN_EMPTY_ID = "34675d18"
SETTINGS = {"text_field": "text", "max_length": None, "split": [["train", "0.9"]]}


def test_the_plan_id_is_golden():
    assert plan_id(table([1, 2, 3]), SETTINGS, {"shardprep": "0.1.0"}) == GOLDEN_ID
    assert plan_id(table([]), {}, {}) == GOLDEN_EMPTY_ID


def test_the_plan_id_hangs_on_listing_settings_and_versions_only():
    base = plan_id(table([1, 2]), SETTINGS, {"a": "1"})
    assert plan_id(table([1, 2]), dict(reversed(SETTINGS.items())), {"a": "1"}) == base
    moved = table([1, 2])
    elsewhere = SourceTable(("s3://other",), moved.labels, moved.root, moved.keys, moved.sizes, moved.etags)
    assert plan_id(elsewhere, SETTINGS, {"a": "1"}) == base
    others = [
        plan_id(table([1, 3]), SETTINGS, {"a": "1"}),
        plan_id(table([1, 2], etags=["e0", "x"]), SETTINGS, {"a": "1"}),
        plan_id(table([1, 2], etags=["e0e", "1"]), SETTINGS, {"a": "1"}),
        plan_id(table([1, 2], labels=("x", "y")), SETTINGS, {"a": "1"}),
        plan_id(table([1, 2]), {**SETTINGS, "max_length": 5}, {"a": "1"}),
        plan_id(table([1, 2]), SETTINGS, {"a": "2"}),
    ]
    assert len({base, *others}) == 7


def test_the_plan_id_does_not_see_slices():
    whole, sliced = table([1, 2, 3]), table([9, 1, 2, 3])
    keys = pa.array(["zzz", *whole.keys.to_pylist(), "q"], pa.large_string()).slice(1, 3)
    etags = pa.array(["zzz", *whole.etags.to_pylist()], pa.string()).slice(1)
    view = SourceTable(whole.roots, whole.labels, whole.root, keys, sliced.sizes[1:], etags)
    assert plan_id(view, {}, {}) == plan_id(whole, {}, {})


def test_a_listing_without_etags_has_an_id():
    bare = table([1, 2], etags=["", ""])
    assert plan_id(bare, {}, {}) != plan_id(table([1, 2]), {}, {})


@pytest.mark.parametrize("seed", [0, 2**63, -1])
def test_any_integer_is_a_seed(seed):
    assert_covers_once(plan_scan(table([5000] * 300), seed=seed))
