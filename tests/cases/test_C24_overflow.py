import json

import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import BYTE, HERE, line, write
from tests.invariants import assert_places

SOURCE = HERE / "C24"
EDGES = ("--bucket-edges", "2,4,8", "--pad-multiple", "2")


def bucket(length, edges):
    return next((edge for edge in edges if length <= edge), None)


def pieces(dataset, identity):
    rows = [row for row in dataset.rows if row["id"] == identity]
    return [row["input_ids"].tolist() for row in sorted(rows, key=lambda row: row["piece"])]


def test_no_maximum_keeps_every_token(tmp_path):
    dataset = build(SOURCE, tmp_path / "out", *EDGES)
    edges = dataset.manifest["buckets"]["edges"]
    assert edges[:3] == [2, 4, 8]
    found = {i: bucket(len(dataset.tokens(i)), (2, 4, 8)) for i in dataset.ids}
    assert found == {"p1": 8, "p2": 2, "p3": 4, "p4": None, "p5": 4}
    assert dataset.ledger["tokens"] == 26
    assert (dataset.ledger["tokens_cut"], dataset.ledger["documents_cut"]) == (0, 0)
    assert dataset.manifest["settings"]["max_length"] is None


def test_split_makes_pieces_and_loses_nothing(tmp_path):
    dataset = build(SOURCE, tmp_path / "out", *EDGES, "--max-length", "4", "--overflow", "split")
    assert dataset.ledger["tokens"] == 26
    assert [len(piece) for piece in pieces(dataset, "p4")] == [4, 4, 4]
    assert sum(pieces(dataset, "p4"), []) == [*b"hijklmnopqr", 256]
    assert [len(piece) for piece in pieces(dataset, "p1")] == [4, 1]
    assert (dataset.ledger["written"], dataset.ledger["rows"]) == (5, 8)
    assert dataset.manifest["settings"]["overflow"] == "split"
    assert [row["piece"] for row in dataset.rows if row["id"] == "p2"] == [0]


def test_cut_says_what_it_lost(tmp_path):
    dataset = build(SOURCE, tmp_path / "out", *EDGES, "--max-length", "4", "--overflow", "truncate")
    assert dataset.ledger["tokens"] == 17
    assert dataset.ledger["tokens_cut"] == 9
    assert dataset.ledger["documents_cut"] == 2
    assert dataset.manifest["settings"]["overflow"] == "truncate"
    assert dataset.tokens("p4") == [*b"hij", 256]


def test_reject_sets_the_long_ones_aside_by_line(tmp_path):
    flags = [*EDGES, "--max-length", "4", "--overflow", "reject"]
    dataset = build(SOURCE, tmp_path / "out", *flags)
    assert dataset.ids == {"p2", "p3", "p5"}
    assert dataset.reasons == {"too_long": 2}
    assert_places(dataset, {"pack.jsonl": [1, 4]})
    assert "pack.jsonl, line 1" in refused(SOURCE, tmp_path / "strict", *flags, "--on-bad", "fail")


def test_there_is_no_default_that_cuts(tmp_path):
    assert "--overflow" in refused(SOURCE, tmp_path / "out", "--max-length", "4", code=2)
    assert "--max-length" in refused(SOURCE, tmp_path / "out", "--overflow", "truncate", code=2)
    assert "multiples" in refused(SOURCE, tmp_path / "out", "--bucket-edges", "2,4,9", "--pad-multiple", "2", code=2)


@pytest.mark.parametrize("mode", ["split", "truncate", "reject"])
def test_a_row_of_exactly_the_maximum_is_left_alone(tmp_path, mode):
    write(tmp_path / "in.jsonl", ("a", "abc"), ("b", "abcd"))
    dataset = build(tmp_path / "in.jsonl", tmp_path / "out", "--max-length", "4", "--overflow", mode)
    rows = [row["input_ids"].tolist() for row in dataset.rows if row["id"] == "a"]
    assert rows == [[*b"abc", 256]]
    kept = {"split": [[*b"abcd"], [256]], "truncate": [[*b"abc", 256]], "reject": []}[mode]
    assert sorted(row["input_ids"].tolist() for row in dataset.rows if row["id"] == "b") == sorted(kept)


def framed(tmp_path):
    """Return the path of a byte tokenizer with [CLS] text [SEP]: 258 and 259."""
    file = json.loads(BYTE.read_text())
    for i, content in ((258, "[CLS]"), (259, "[SEP]")):
        file["added_tokens"].append({**file["added_tokens"][0], "id": i, "content": content, "special": True})
    special = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (("[CLS]", 258), ("[SEP]", 259))}
    single = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]  # fmt: skip
    file["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    path = tmp_path / "framed.json"
    path.write_text(json.dumps(file))
    return path


def test_the_frame_of_a_template_stays_whole_when_a_row_is_cut(tmp_path):
    write(tmp_path / "in.jsonl", ("a", "abcdefghij"), ("b", "ab"))
    flags = ["--tokenizer", framed(tmp_path), "--max-length", "6", "--overflow"]
    dataset = build(tmp_path / "in.jsonl", tmp_path / "cut", *flags, "truncate")
    assert dataset.tokens("a") == [258, *b"abcd", 259]
    assert dataset.tokens("b") == [258, *b"ab", 259]
    assert (dataset.ledger["tokens_cut"], dataset.ledger["documents_cut"]) == (6, 1)
    dataset = build(tmp_path / "in.jsonl", tmp_path / "split", *flags, "split")
    assert pieces(dataset, "a") == [[258, *b"abcde"], [*b"fghij", 259]]
    assert pieces(dataset, "b") == [[258, *b"ab", 259]]


def test_a_maximum_smaller_than_the_frame(tmp_path):
    write(tmp_path / "in.jsonl", ("a", "abcdefghij"))
    dataset = build(tmp_path / "in.jsonl", tmp_path / "out", "--max-length", "1", "--overflow", "truncate")
    assert len(dataset.tokens("a")) == 1
    assert dataset.ledger["tokens_cut"] == 10


def test_pieces_carry_the_columns_of_their_document(tmp_path):
    write(
        tmp_path / "in.jsonl", b'{"id":"a","text":"abcdefghij","label":5}\n', b'{"id":"b","text":"x"}\n', line("c", "y")
    )
    flags = ["--max-length", "4", "--overflow", "split", "--column", "label:int64", "--shards", "3"]
    dataset = build(tmp_path / "in.jsonl", tmp_path / "out", *flags)
    assert {(row["id"], row["label"]) for row in dataset.rows} == {("a", 5), ("b", None), ("c", None)}
    assert sum(pieces(dataset, "a"), []) == [*b"abcdefghij", 256]


def test_pieces_of_a_document_that_is_set_aside_late_go_with_it(tmp_path):
    write(tmp_path / "in.jsonl", ("a", "abcdefghij"), ("b", "abcdefghij"), ("c", "other"))
    flags = ["--max-length", "4", "--overflow", "split", "--dedup", "exact"]
    dataset = build(tmp_path / "in.jsonl", tmp_path / "out", *flags)
    assert {row["id"] for row in dataset.rows} == {"a", "c"}
    assert dataset.reasons == {"duplicate_text": 1}
    assert_places(dataset, {"in.jsonl": [2]})
