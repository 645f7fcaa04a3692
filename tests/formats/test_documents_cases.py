"""The cases of real bug reports that concern reading: C01, C02, C04, C06, C07, C10, C12, C15."""

import hashlib
from pathlib import Path

import pytest

from shardprep.errors import TypeConflict
from shardprep.formats.documents import ColumnSpec, DocumentParser, Fields, Reason, columns_to_arrow, merge_types

CASES = Path(__file__).parents[1] / "cases"


BY_ID = Fields(id="id")


def read(case: str, fields: Fields = BY_ID):
    """Return documents by id, and rejects as (file, line, reason), of all files of a case."""
    parser = DocumentParser(fields)
    documents, rejects, found = {}, [], 0
    for path in sorted((CASES / case).iterdir()):
        if path.is_file():
            parsed = parser.parse_object(path.name, path.read_bytes())
            assert parsed.found == len(parsed.documents) + len(parsed.rejects)
            found += parsed.found
            documents |= {document.id: document for document in parsed.documents}
            rejects += [(path.name, reject.line, reject.reason) for reject in parsed.rejects]
    return documents, rejects, found, parser


def tokens(text: str) -> int:
    return len(text.encode()) + 1  # one token a byte, and the end token


def test_c01_byte_order_marks():
    documents, rejects, found, _ = read("C01")
    assert {name: tokens(d.text) for name, d in documents.items()} == {"b1": 6, "b2": 7, "b3": 9, "b4": 6}
    assert sum(tokens(d.text) for d in documents.values()) == 28
    assert documents["b1"].text == documents["b4"].text == "first"
    assert documents["b3"].text == "\ufeffinner"
    assert (rejects, found) == ([], 4)


def test_c01_byte_order_mark_inside_gzip_and_on_the_first_line_of_a_range():
    import gzip

    data = b"\xef\xbb\xbf" + b'{"id":"1","text":"a"}\n{"id":"2","text":"b"}\n'
    for packed in (data, gzip.compress(data)):
        parsed = DocumentParser(Fields()).parse_object("k", packed)
        assert [(d.id, d.offset, d.line) for d in parsed.documents] == [("k#0", 0, 1), ("k#25", 25, 2)]
    later = DocumentParser(Fields()).parse_lines("k", data, 1000)
    assert [r.reason for r in later.rejects] == [Reason.INVALID_JSON]
    assert "byte order mark" in later.rejects[0].detail


def test_c02_container_shapes():
    documents, rejects, found, _ = read("C02")
    assert {name: d.text for name, d in documents.items()} == {
        "n1": "one", "n2": "two", "n3": "three", "a1": "four", "a2": "five", "p1": "six",
    }  # fmt: skip
    assert rejects == [("glued.json", 1, Reason.SEVERAL_VALUES)]
    assert found == 7
    assert not any("\r" in d.text for d in documents.values())
    assert [documents[name].line for name in ("n1", "n2", "n3", "a1", "a2", "p1")] == [1, 4, 5, 2, 6, 1]


def test_c02_an_empty_array_is_no_document_and_no_error():
    parsed = DocumentParser(Fields()).parse_object("k", (CASES / "C02" / "empty_array.json").read_bytes())
    assert (parsed.documents, parsed.rejects, parsed.found) == ([], [], 0)


def test_c02_glued_objects_say_what_to_do():
    parsed = DocumentParser(Fields()).parse_object("k", (CASES / "C02" / "glued.json").read_bytes())
    assert parsed.rejects[0].detail == "more than one JSON value on a line; put each on its own line"
    assert parsed.rejects[0].raw == (CASES / "C02" / "glued.json").read_bytes()


def test_c04_compression_by_content():
    documents, rejects, found, _ = read("C04")
    assert sorted(documents) == ["g1", "g2", "g3a", "g3b", "g4"]
    assert (rejects, found) == ([], 5)


def test_c06_trailing_commas_with_file_and_line():
    documents, rejects, found, _ = read("C06")
    assert sorted(documents) == ["k1", "k4", "k6"]
    assert rejects == [
        ("comma.jsonl", 2, Reason.INVALID_JSON),
        ("comma.jsonl", 5, Reason.INVALID_JSON),
        ("comma_array.json", 3, Reason.INVALID_JSON),
    ]
    assert found == 6


def test_c07_nan_and_its_like():
    documents, rejects, found, _ = read("C07")
    assert {name: tokens(d.text) for name, d in documents.items()} == {"f6": 4}
    nan, out = Reason.NAN_LITERAL, Reason.NUMBER_OUT_OF_RANGE
    assert [(line, reason) for _, line, reason in rejects] == [(1, nan), (2, nan), (3, nan), (4, out), (5, nan)]
    assert found == 6


def test_c10_damaged_text():
    documents, rejects, found, _ = read("C10")
    assert {name: d.text for name, d in documents.items()} == {"x3": "\U0001f600", "x5": "good", "v5": "good"}
    assert tokens(documents["x3"].text) == 5
    bad, half = Reason.INVALID_UTF8, Reason.LONE_SURROGATE
    assert rejects == [
        *(("bytes.jsonl", line, bad) for line in (1, 2, 3, 4)),
        *(("surrogates.jsonl", line, half) for line in (1, 2, 4)),
        ("utf16.json", None, Reason.WRONG_ENCODING),
    ]
    assert found == 11


def test_c12_which_value_is_the_text():
    documents, rejects, found, _ = read("C12", Fields(text="data.text", id="id"))
    assert {name: d.text for name, d in documents.items()} == {"e1": "inner one", "e2": "flat dotted"}
    assert [(line, reason) for _, line, reason in rejects] == [
        (3, Reason.MISSING_TEXT), (4, Reason.TEXT_WRONG_TYPE), (5, Reason.MISSING_TEXT),
    ]  # fmt: skip
    assert found == 5


def test_c12_labels_declared_as_string():
    fields = Fields(id="id", columns=(ColumnSpec.parse("label:string"),))
    documents, rejects, found, _ = read("C12/labels", fields)
    assert {name: documents[name].columns for name in ("l0", "l1", "l2", "l5")} == {
        "l0": ("1.0",), "l1": ("2",), "l2": ("01",), "l5": ("pos",),
    }  # fmt: skip
    assert sum(d.columns == (None,) for d in documents.values()) == 200
    wrong = Reason.COLUMN_WRONG_TYPE
    assert rejects == [("part-1.jsonl", 1, wrong), ("part-1.jsonl", 2, wrong), ("part-3.jsonl", 1, wrong)]
    assert found == 207
    [column] = columns_to_arrow(fields.columns, {}, [d.columns for d in documents.values()])
    [nulls] = columns_to_arrow(fields.columns, {}, [(None,)] * 3)
    assert column.type == nulls.type


def test_c12_labels_undeclared_stop_with_two_files_and_two_types():
    _, _, _, parser = read("C12/labels", Fields(id="id", columns=(ColumnSpec.parse("label"),)))
    with pytest.raises(TypeConflict) as caught:
        merge_types([parser.column_types])
    message = str(caught.value)
    places, types = caught.value.fields["places"], caught.value.fields["types"]
    assert len({place.rpartition(":")[0] for place in places}) == 2
    assert len(set(types)) == 2
    assert all(word in message for word in (*places, *types, "--column label:"))


def test_c15_one_large_document():
    unit = "one document, no line breaks, 0123456789 "
    text = bytearray((unit * (5_300_000 // len(unit) + 1)).encode()[:5_300_000])
    before = b'{"id":"w1","text":"small"}\n{"id":"w2","text":"'
    for place in (65_536, 1_048_576, 5_242_880):
        text[place - 1 - len(before) : place + 2 - len(before)] = "€".encode()
    assert hashlib.sha256(text).hexdigest() == "1cb688f409f5b2bd34472f8bf7cc78599d02d60a74583315698104a912f36506"
    data = before + bytes(text) + b'"}\n{"id":"w3","text":"after"}\n'
    parsed = DocumentParser(Fields(id="id")).parse_object("big.jsonl", data)
    assert [(d.id, tokens(d.text)) for d in parsed.documents] == [("w1", 6), ("w2", 5_300_001), ("w3", 6)]
    large = parsed.documents[1].text
    assert len(large) == 5_299_994
    assert hashlib.sha256(large.encode()).hexdigest() == hashlib.sha256(text).hexdigest()
    assert parsed.rejects == []
