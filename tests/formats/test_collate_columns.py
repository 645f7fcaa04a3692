"""Columns of a batch: exact values and nulls from one shard or several, and what filler rows hold."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from batch_rows import COLUMNS, Row, Spec, cases, chosen, plain, view_of
from hypothesis import given

from shardprep.core.block import TokenBlock
from shardprep.formats.collate import BufferPool, Collator, ListColumn, View


def batch_of(values, name="x", *, kind=None, order=None, real=None):
    """A batch of one shard with one column."""
    columns = pa.record_batch({"id": [str(i) for i in range(len(values))], name: pa.array(values, type=kind)})
    view = View(TokenBlock(np.zeros(0, np.int32), np.zeros(len(values) + 1, np.int64), columns))
    rows = np.arange(len(values)) if order is None else np.array(order)
    return Collator(0, BufferPool()).batch(
        Spec(np.zeros(len(rows), np.int64), rows, len(rows) if real is None else real, 1), {0: view}
    )


def expected(name, values, real):
    if name == "label":
        return values[:real] + [-100] * (len(values) - real)
    if name == "labels":
        return values[:real] + [None if value is None else [-100] * len(value) for value in values[real:]]
    return values


@given(cases(names=tuple(COLUMNS)))
def test_columns_are_the_rows_values(case):
    rows, views, spec = case
    columns = Collator(0, BufferPool()).batch(spec, views).columns
    assert list(columns) == list(COLUMNS)
    for name, got in columns.items():
        want = expected(name, [row.values[name] for row in chosen(rows, spec)], spec.real)
        assert plain(got) == want, name
        assert not isinstance(got, np.ma.MaskedArray) or got.mask.any()
    assert all(columns[name].dtype == np.int64 for name in ("label", "class"))
    assert (columns["score"].dtype, columns["good"].dtype) == (np.float64, np.bool_)
    assert columns["marks"][0].dtype == np.int64
    assert all(columns[name][1].dtype == np.int64 for name in ("marks", "labels", "tags"))


def test_what_a_mask_hides_is_loud():
    hidden = [
        batch_of([1, None], "class").columns["class"],
        batch_of([1, None], "label").columns["label"],
        batch_of([1.5, None], "score").columns["score"],
        batch_of([True, None], "good").columns["good"],
    ]
    assert [column.data[1] for column in hidden[:2]] == [-(2**63), -100]
    assert np.isnan(hidden[2].data[1])
    assert not hidden[3].data[1]
    assert all(column.mask.tolist() == [False, True] for column in hidden)


def test_nulls_of_other_rows_make_no_mask():
    assert not isinstance(batch_of([1, None, 3], order=[0, 2]).columns["x"], np.ma.MaskedArray)


def test_a_filler_row_over_a_null_label_is_ignored_and_not_masked():
    label = batch_of([None, 4], "label", order=[1, 0], real=1).columns["label"]
    assert not isinstance(label, np.ma.MaskedArray)
    assert label.tolist() == [4, -100]


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize(("values", "kind"), [([0.5, 1.5], None), (["a", "b"], None), ([True, False], None)])
def test_labels_that_are_no_integers_stay_on_filler_rows(name, values, kind):
    assert plain(batch_of(values, name, kind=kind, real=0).columns[name]) == values


def test_columns_are_the_callers_to_change():
    values = pa.array([1, 2, 3])
    columns = pa.record_batch({"id": ["a", "b", "c"], "x": values, "y": pa.array([[1], [2], [3]])})
    view = View(TokenBlock(np.zeros(0, np.int32), np.zeros(4, np.int64), columns))
    spec = Spec(np.zeros(3, np.int64), np.arange(3), 3, 1)
    batch = Collator(0, BufferPool()).batch(spec, {0: view})
    batch.columns["x"][:] = 9
    batch.columns["y"][0][:] = 9
    assert values.to_pylist() == [1, 2, 3]
    assert plain(Collator(0, BufferPool()).batch(spec, {0: view}).columns["y"]) == [[1], [2], [3]]


def test_narrow_numbers_are_widened():
    assert batch_of([1, 2], kind=pa.int32()).columns["x"].dtype == np.int64
    assert batch_of([1, 2], kind=pa.float32()).columns["x"].dtype == np.float64


def test_a_slice_of_a_shard_gives_its_own_lists():
    whole = view_of([Row(f"{i}", [1], {"marks": [i] * i, "tags": [str(i)]}) for i in range(5)]).block
    view = View(whole.slice(2, 5), 2)
    batch = Collator(0, BufferPool()).batch(Spec(np.zeros(2, np.int64), np.array([4, 2]), 2, 1), {0: view})
    assert plain(batch.columns["marks"]) == [[4] * 4, [2, 2]]
    assert plain(batch.columns["tags"]) == [["4"], ["2"]]


def test_a_list_column_is_a_pair_with_its_mask():
    column = batch_of([[1], None, []]).columns["x"]
    values, offsets = column
    assert isinstance(column, ListColumn)
    assert (values.tolist(), offsets.tolist(), column.null.tolist()) == ([1], [0, 1, 1, 1], [False, True, False])
    assert pickle.loads(pickle.dumps(column)).null.tolist() == [False, True, False]


def test_a_shard_without_columns_has_ids_only():
    batch = Collator(0, BufferPool()).batch(
        Spec(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, 1), {0: view_of([Row("a", [1])])}
    )
    assert (batch.ids, batch.columns) == (["a"], {})
