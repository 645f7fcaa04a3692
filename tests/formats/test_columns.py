"""Column types over all documents, and exact Arrow arrays."""

import json
import pickle

import pyarrow as pa
import pytest

from shardprep.errors import TypeConflict
from shardprep.formats.documents import ColumnSpec, DocumentParser, Fields, columns_to_arrow, merge_types

SPEC = (ColumnSpec.parse("c"),)


def types_of(*values):
    """Return the reports of one task per value."""
    reports = []
    for number, value in enumerate(values):
        parser = DocumentParser(Fields(columns=SPEC))
        assert not parser.parse_object(f"{number}.json", json.dumps({"text": "t", "c": value}).encode()).rejects
        reports.append(parser.column_types)
    return reports


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None], "string"),
        ([None, None], "string"),
        ([1, -5], "int64"),
        ([2**63 - 1, 1], "int64"),
        ([1, 2.5], "float64"),
        ([2.5, 2**53, -(2**53)], "float64"),
        ([2**53 + 1, -(2**63)], "int64"),
        ([True, False, None], "bool"),
        ([["a"], []], "list<string>"),
        ([[], [None]], "list<string>"),
        ([[1], [2.5], None], "list<float64>"),
        ([[1, 2.5]], "list<float64>"),
        ([[2**60]], "list<int64>"),
        ([[True]], "list<bool>"),
    ],
)
def test_one_type_and_exact_values(values, kind):
    types = merge_types(types_of(*values))
    assert types == {"c": kind}
    [column] = columns_to_arrow(SPEC, types, [(value,) for value in values])
    assert column.to_pylist() == values
    assert str(column.type).replace("double", "float64").replace("element: ", "") == kind


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", 1], '"c" is string at 0.json:1 but int64 at 1.json:1; declare it: --column c:'),
        ([1, True], '"c" is int64 at 0.json:1 but bool at 1.json:1'),
        ([None, 1.5, "a"], '"c" is float64 at 1.json:1 but string at 2.json:1'),
        ([["a"], "a"], '"c" is list<string> at 0.json:1 but string at 1.json:1'),
        ([[1], ["a"]], '"c" is list<int64> at 0.json:1 but list<string> at 1.json:1'),
        ([["a", 1]], '"c" is list<string> at 0.json:1 but list<int64> at 0.json:1'),
        ([[], 1], '"c" is list<null> at 0.json:1 but int64 at 1.json:1'),
        ([2**53 + 1, 0.5], '"c" is int64 at 0.json:1 but float64 at 1.json:1 with an integer beyond 2**53'),
        ([2**60, 0.5], '"c" is int64 at 0.json:1 but float64 at 1.json:1 with an integer beyond 2**53'),
        ([[0.5], [2**53 + 1]], '"c" is list<float64> at 0.json:1 but list<int64> at 1.json:1'),
        ([1, {"a": 1}], '"c" is an object at 1.json:1'),
        ([[{"a": 1}]], '"c" is a list of lists or objects at 0.json:1'),
        ([[["a"]]], '"c" is a list of lists or objects at 0.json:1'),
    ],
)
def test_conflicts_name_two_places_and_two_types(values, words):
    with pytest.raises(TypeConflict) as caught:
        merge_types(types_of(*values))
    assert words in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_conflict_does_not_depend_on_how_documents_lie_in_tasks():
    apart = types_of("a", 1, 2.5)
    together = [{"c": {kind: place for report in apart for kind, place in report["c"].items()}}]
    messages = set()
    for reports in (apart, together):
        with pytest.raises(TypeConflict) as caught:
            merge_types(reports)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_declared_types_need_no_report():
    specs = tuple(map(ColumnSpec.parse, ("s:string", "f:float64", "l:list<bool>")))
    arrays = columns_to_arrow(specs, {}, [("a", 1.0, [True, None]), (None, None, None)])
    assert [a.to_pylist() for a in arrays] == [["a", None], [1.0, None], [[True, None], None]]
    assert [a.type for a in arrays] == [pa.string(), pa.float64(), pa.list_(pa.field("element", pa.bool_()))]
    assert [(len(a), a.type) for a in columns_to_arrow(specs, {}, [])] == [(0, a.type) for a in arrays]


def test_a_value_that_does_not_fit_is_never_rounded():
    with pytest.raises(TypeConflict, match="not exactly float64"):
        columns_to_arrow(SPEC, {"c": "float64"}, [(2**53 + 1,)])
    with pytest.raises(TypeConflict, match="not exactly int64"):
        columns_to_arrow(SPEC, {"c": "int64"}, [(1.5,)])
    with pytest.raises(TypeConflict, match="not exactly string"):
        columns_to_arrow(SPEC, {"c": "string"}, [(1,)])
