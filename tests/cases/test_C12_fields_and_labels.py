import json

import pyarrow.parquet as pq
import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places

LABELS = HERE / "C12/labels"


def test_the_text_one_level_down(tmp_path):
    dataset = build(HERE / "C12/nested.jsonl", tmp_path / "out", "--text-field", "data.text")
    assert {i: dataset.text(i) for i in dataset.ids} == {"e1": "inner one", "e2": "flat dotted"}
    assert_places(dataset, {"nested.jsonl": [3, 4, 5]})
    assert dataset.reasons == {"missing_text": 2, "text_wrong_type": 1}


def test_labels_declared_as_string_stay_what_they_are(tmp_path):
    dataset = build(LABELS, tmp_path / "out", "--column", "label:string", "--shards", "5")
    labels = {i: row["label"] for i, row in dataset.by_id.items()}
    named = {i: label for i, label in labels.items() if i.startswith("l")}
    assert named == {"l0": "1.0", "l1": "2", "l2": "01", "l5": "pos"}
    assert [label for i, label in labels.items() if i.startswith("n")] == [None] * 200
    assert_places(dataset, {"part-1.jsonl": [1, 2], "part-3.jsonl": [1]})
    assert dataset.ledger["found"] == 207


def test_a_shard_whose_labels_are_all_null_has_the_same_schema(tmp_path):
    write(tmp_path / "in/a.jsonl", *[f'{{"id":{i},"text":"t"}}\n'.encode() for i in range(9)])
    write(tmp_path / "in/b.jsonl", b'{"id":"long","text":"a longer text","label":7}\n')
    for name, flag in (("declared", "label:int64"), ("found", "label")):
        dataset = build(tmp_path / "in", tmp_path / name, "--column", flag, "--shards", "10")
        kinds = {str(pq.read_schema(path).field("label").type) for path in dataset.files}
        assert kinds == {"int64"}
        assert len(dataset.files) == 10


def test_undeclared_labels_of_two_types_stop_the_job_before_it_writes(tmp_path):
    message = refused(LABELS, tmp_path / "out", "--column", "label")
    assert "label" in message
    places = [name for name in ("part-0.jsonl", "part-1.jsonl", "part-2.jsonl", "part-3.jsonl") if name in message]
    assert len(places) == 2
    types = [kind for kind in ("string", "int64", "bool", "list<") if kind in message.partition("declare it")[0]]
    assert len(types) >= 2
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_the_conflict_is_found_however_far_apart_the_types_are(tmp_path):
    write(tmp_path / "in/a.jsonl", *[f'{{"id":{i},"text":"{"x" * 900}","label":{i}}}\n'.encode() for i in range(3000)])
    write(tmp_path / "in/b.jsonl", b'{"id":"s","text":"t","label":"pos"}\n')
    message = refused(tmp_path / "in", tmp_path / "out", "--column", "label")
    assert "a.jsonl" in message
    assert "b.jsonl:1" in message


VALUES = [
    '"a"',
    "1",
    "1.5",
    "true",
    "null",
    "[]",
    "{}",
    "9223372036854775808",
    "9007199254740993",
    "1.0",
    '["a"]',
    "[1]",
]
ACCEPTED = {
    "string": {'"a"': "a", "null": None},
    "int64": {"1": 1, "null": None, "9007199254740993": 9007199254740993},
    "float64": {"1": 1.0, "1.5": 1.5, "null": None, "1.0": 1.0, "9223372036854775808": 2.0**63},
    "bool": {"true": True, "null": None},
    "list<string>": {"[]": [], "null": None, '["a"]': ["a"]},
    "list<int64>": {"[]": [], "null": None, "[1]": [1]},
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_each_declared_type_takes_what_is_exactly_it_and_sets_the_rest_aside(tmp_path, kind):
    lines = [f'{{"id":"{i}","text":"t","label":{value}}}\n'.encode() for i, value in enumerate(VALUES)]
    write(tmp_path / "in/a.jsonl", *lines)
    dataset = build(tmp_path / "in", tmp_path / "out", "--column", f"label:{kind}")
    assert {VALUES[int(i)]: row["label"] for i, row in dataset.by_id.items()} == ACCEPTED[kind]
    assert_places(dataset, {"a.jsonl": [n for n, value in enumerate(VALUES, 1) if value not in ACCEPTED[kind]]})


def test_undeclared_numbers_with_and_without_a_fraction_make_floats(tmp_path):
    write(tmp_path / "in/a.jsonl", b'{"id":1,"text":"t","n":1}\n', b'{"id":2,"text":"t","n":2.5}\n', line(3, "t"))
    dataset = build(tmp_path / "in", tmp_path / "out", "--column", "n")
    assert {i: row["n"] for i, row in dataset.by_id.items()} == {"1": 1.0, "2": 2.5, "3": None}


def test_an_undeclared_column_that_is_never_there_is_null_everywhere(tmp_path):
    write(tmp_path / "in/a.jsonl", ("a", "one"), ("b", "two"))
    dataset = build(tmp_path / "in", tmp_path / "out", "--column", "label", "--shards", "2")
    assert [row["label"] for row in dataset.rows] == [None, None]


def test_columns_with_dots_lists_and_nested_paths(tmp_path):
    write(
        tmp_path / "in/a.jsonl",
        b'{"id":"1","text":"t","meta":{"lang":"de","tags":["x",null,"y"]},"a.b":1}\n',
        b'{"id":"2","text":"t","meta":{"lang":"en"},"a":{"b":2}}\n',
        b'{"id":"3","text":"t","meta.lang":"flat","meta":{"lang":"deep"}}\n',
    )
    flags = ["--column", "meta.lang:string", "--column", "meta.tags:list<string>", "--column", "a.b"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    rows = {i: (row["meta.lang"], row["meta.tags"], row["a.b"]) for i, row in dataset.by_id.items()}
    assert rows == {"1": ("de", ["x", None, "y"], 1), "2": ("en", None, 2), "3": ("flat", None, None)}


def test_a_label_that_one_split_never_has(tmp_path):
    values = [{"id": i, "text": f"t{i}", "group": i % 7, **({"label": 3} if i % 7 == 0 else {})} for i in range(70)]
    write(tmp_path / "in/a.jsonl", *[json.dumps(value).encode() + b"\n" for value in values])
    flags = ["--column", "label", "--split", "train=0.5,validation=0.5", "--split-by", "group"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    by_split = {path.parent.name: pq.read_table(path)["label"] for path in dataset.files}
    assert len(by_split) == 2
    assert {str(column.type) for column in by_split.values()} == {"int64"}
    assert sorted(column.null_count for column in by_split.values())[-1] > 0


def test_a_column_named_like_one_of_ours_is_a_wrong_call(tmp_path):
    write(tmp_path / "in/a.jsonl", ("a", "one"))
    for name in ("id", "input_ids", "length", "piece"):
        assert name in refused(tmp_path / "in", tmp_path / "out", "--column", f"{name}:string", code=2)
    assert "float32" in refused(tmp_path / "in", tmp_path / "out", "--column", "label:float32", code=2)
    assert "twice" in refused(tmp_path / "in", tmp_path / "out", "--column", "l:string", "--column", "l:int64", code=2)
