"""One test for every reason that the parser gives, and for the rules beside them."""

import gzip
import json
import tracemalloc
import zlib

import pytest
import zstandard

from shardprep.errors import ConfigError
from shardprep.formats.documents import ColumnSpec, DocumentParser, Fields, Reason, is_lines
from shardprep.formats.reasons import Refused

ALL = Fields(
    id="id",
    columns=(ColumnSpec.parse("n:int64"), ColumnSpec.parse("x:float64"), ColumnSpec.parse("s:string"),
             ColumnSpec.parse("b:bool"), ColumnSpec.parse("tags:list<string>"), ColumnSpec.parse("any")),
    split_by="g",
)  # fmt: skip
GOOD = {"id": "a", "text": "hello", "g": "group"}
# What the rest of the job says, not the parser: it has its tests where it happens.
ELSEWHERE = {
    Reason.MISSING_OBJECT, Reason.UNUSABLE_KEY, Reason.OBJECT_CHANGED, Reason.ACCESS_DENIED, Reason.UNREADABLE_OBJECT,
    Reason.WORKER_DIED, Reason.TOO_LONG, Reason.NOT_TOKENIZABLE, Reason.DUPLICATE_ID, Reason.DUPLICATE_TEXT,
}  # fmt: skip


def good(**changes):
    return json.dumps(GOOD | changes).encode()


def without(name):
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def raw(fields: bytes):
    return good()[:-1] + b"," + fields + b"}"


def packed_three_times():
    return gzip.compress(zstandard.compress(gzip.compress(good())))


TABLE = [
    (Reason.EMPTY_OBJECT, b"", "no bytes"),
    (Reason.EMPTY_OBJECT, b" \t\r\n\n", "white space"),
    (Reason.EMPTY_OBJECT, b"\xef\xbb\xbf\n", "white space"),
    (Reason.EMPTY_OBJECT, gzip.compress(b""), "no bytes"),
    (Reason.TOO_LARGE, gzip.compress(b" " * 20_000), "10000 bytes"),
    (Reason.TOO_LARGE, zstandard.compress(b" " * 20_000), "10000 bytes"),
    (Reason.TOO_LARGE, good(text="x" * 10_000), "10000 bytes"),
    (Reason.BAD_COMPRESSION, gzip.compress(good())[:-9], "cut short"),
    (Reason.BAD_COMPRESSION, gzip.compress(good())[:5], "cut short"),
    (Reason.BAD_COMPRESSION, gzip.compress(good()) + b"garbage", "7 bytes that are no gzip"),
    (Reason.BAD_COMPRESSION, gzip.compress(good())[:-8] + bytes(8), "damaged"),
    (Reason.BAD_COMPRESSION, zstandard.compress(good())[:-3], "cut short"),
    (Reason.BAD_COMPRESSION, zstandard.compress(good()) + b"garbage", "7 bytes that are no zstd"),
    (Reason.BAD_COMPRESSION, zstandard.compress(good())[:6] + b"\xff" * 20, "damaged"),
    (Reason.BAD_COMPRESSION, b"\x50\x2a\x4d\x18\xff\x00\x00\x00", "cut short"),
    (Reason.BAD_COMPRESSION, packed_three_times(), "more than 2 times"),
    (Reason.UNSUPPORTED_FORMAT, b"BZh91AY&SY", "bzip2"),
    (Reason.UNSUPPORTED_FORMAT, b"PK\x03\x04....", "zip archive"),
    (Reason.UNSUPPORTED_FORMAT, b"PAR1....", "Parquet"),
    (Reason.WRONG_ENCODING, "\ufeff{}".encode("utf-16-le"), "UTF-16"),
    (Reason.WRONG_ENCODING, "\ufeff{}".encode("utf-16-be"), "UTF-16"),
    (Reason.WRONG_ENCODING, '{"a":1}'.encode("utf-16-le"), "UTF-16"),
    (Reason.WRONG_ENCODING, '{"a":1}'.encode("utf-16-be"), "UTF-16"),
    (Reason.WRONG_ENCODING, "\ufeff{}".encode("utf-32-le"), "UTF-32"),
    (Reason.WRONG_ENCODING, '{"a":1}'.encode("utf-32-be"), "UTF-32"),
    (Reason.INVALID_JSON, good()[:-1] + b",}", "trailing comma"),
    (Reason.INVALID_JSON, good()[:-1], "cut short"),
    (Reason.INVALID_JSON, good() + b"}", "after document"),
    (Reason.INVALID_JSON, b"just text", "expected"),
    (Reason.INVALID_JSON, good() + bytes(20), "NUL bytes"),
    (Reason.INVALID_UTF8, good()[:-2] + b'\xe9"}', "byte 0xe9"),
    (Reason.LONE_SURROGATE, raw(b'"unused":"\\ud83d"'), "surrogate"),
    (Reason.LONE_SURROGATE, raw(b'"\\udc00":1'), "surrogate"),
    (Reason.NAN_LITERAL, raw(b'"unused":NaN'), "NaN"),
    (Reason.NAN_LITERAL, raw(b'"unused":[-Infinity]'), "-Infinity"),
    (Reason.NUMBER_OUT_OF_RANGE, raw(b'"unused":1e999'), "1e999"),
    (Reason.NUMBER_OUT_OF_RANGE, raw(b'"unused":' + b"9" * 5_000), "9..."),
    (Reason.TOO_DEEP, raw(b'"unused":' + b"[" * 1_025 + b"]" * 1_025), "too deep"),
    (Reason.TOO_DEEP, raw(b'"text":1,"unused":' + b"[" * 600 + b"]" * 600), "500 levels"),
    (Reason.SEVERAL_VALUES, good() + good(), "own line"),
    (Reason.SEVERAL_VALUES, b"{\n}\n{\n}\n", "own line"),
    (Reason.NOT_AN_OBJECT, b'"text"', "a string"),
    (Reason.NOT_AN_OBJECT, b"[1, 2]", "array without objects"),
    (Reason.NOT_AN_OBJECT, b"42", "an integer"),
    (Reason.DUPLICATE_KEY, raw(b'"text":"other"'), '"text"'),
    (Reason.DUPLICATE_KEY, raw(b'"id":"a"'), '"id"'),
    (Reason.DUPLICATE_KEY, raw(b'"te\\u0078t":"other"'), '"text"'),
    (Reason.DUPLICATE_KEY, raw(b'"n":1,"n":2'), '"n"'),
    (Reason.MISSING_TEXT, without("text"), 'no "text"'),
    (Reason.NULL_TEXT, good(text=None), "null"),
    (Reason.TEXT_WRONG_TYPE, good(text=["a"]), "a list"),
    (Reason.TEXT_WRONG_TYPE, good(text=1), "an integer"),
    (Reason.TEXT_WRONG_TYPE, good(text={"body": "a"}), "an object"),
    (Reason.EMPTY_TEXT, good(text=""), "empty"),
    (Reason.MISSING_ID, without("id"), 'no "id"'),
    (Reason.NULL_ID, good(id=None), "null"),
    (Reason.ID_WRONG_TYPE, good(id=1.0), "fraction or exponent"),
    (Reason.ID_WRONG_TYPE, good(id=True), "true"),
    (Reason.ID_WRONG_TYPE, good(id=1e30), "fraction or exponent"),
    (Reason.MISSING_GROUP, without("g"), 'no "g"'),
    (Reason.MISSING_GROUP, good(g=None), "null"),
    (Reason.GROUP_WRONG_TYPE, good(g=False), "false"),
    (Reason.COLUMN_WRONG_TYPE, good(n="1"), '"n": a string, not int64'),
    (Reason.COLUMN_WRONG_TYPE, good(n=1.0), "not int64"),
    (Reason.COLUMN_WRONG_TYPE, good(n=True), "not int64"),
    (Reason.COLUMN_WRONG_TYPE, good(x="1.5"), "not float64"),
    (Reason.COLUMN_WRONG_TYPE, good(x=True), "not float64"),
    (Reason.COLUMN_WRONG_TYPE, good(s=1), "not string"),
    (Reason.COLUMN_WRONG_TYPE, good(b=1), "not bool"),
    (Reason.COLUMN_WRONG_TYPE, good(tags="a"), "not list<string>"),
    (Reason.COLUMN_WRONG_TYPE, good(tags=["a", 1]), '"tags": an integer, not string'),
    (Reason.INTEGER_OUT_OF_RANGE, good(n=2**63), str(2**63)),
    (Reason.INTEGER_OUT_OF_RANGE, good(n=-(2**63) - 1), str(-(2**63) - 1)),
    (Reason.INTEGER_OUT_OF_RANGE, good(n=10**30), str(10**30)),
    (Reason.INTEGER_OUT_OF_RANGE, good(any=2**64), str(2**64)),
    (Reason.INTEGER_OUT_OF_RANGE, good(any=[1, 2**64]), str(2**64)),
    (Reason.NUMBER_NOT_EXACT, good(x=2**53 + 1), str(2**53 + 1)),
    (Reason.NUMBER_NOT_EXACT, good(x=2**64 + 1), str(2**64 + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "data", "words"), TABLE, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(TABLE)])
def test_every_reason(reason, data, words):
    parsed = DocumentParser(ALL, max_object_bytes=10_000).parse_object("raw/k.json", data)
    assert [(reject.reason, parsed.found) for reject in parsed.rejects] == [(reason, 1)]
    assert words in parsed.rejects[0].detail
    assert parsed.documents == []


def test_the_table_misses_no_reason():
    assert {reason for reason, _, _ in TABLE} | ELSEWHERE | {Reason.REFERENCE_WRONG_TYPE} == set(Reason)


def test_every_reason_is_documented():
    assert all(f"\n    {reason} " in (Reason.__doc__ or "") for reason in Reason)


def test_a_good_document_with_everything():
    value = GOOD | {"n": -(2**63), "x": 2**70, "s": "", "b": True, "tags": [None, "a"], "any": 1.5}
    document = DocumentParser(ALL).parse_object("k", json.dumps(value).encode()).documents[0]
    assert document.columns == (-(2**63), 2.0**70, "", True, [None, "a"], 1.5)
    assert (document.id, document.group, document.text) == ("a", "group", "hello")


def test_missing_and_null_columns_are_null():
    document = DocumentParser(ALL).parse_object("k", good(n=None)).documents[0]
    assert document.columns == (None,) * 6


@pytest.mark.parametrize("number", [7, 0, -5, 2**63, 2**64, 10**30, -(10**25)])
def test_integer_ids_are_their_exact_decimal_string(number):
    document = DocumentParser(ALL).parse_object("k", good(id=number, g=number)).documents[0]
    assert (document.id, document.group) == (str(number), str(number))


def test_white_space_is_text():
    assert DocumentParser(Fields()).parse_object("k", b'{"text":" \\n"}').documents[0].text == " \n"


def test_a_repeated_key_that_is_not_used_is_no_error():
    data = b'{"text":"a","unused":1,"unused":2,"meta":{"text":"b"},"kind":"text"}'
    assert [d.text for d in DocumentParser(Fields()).parse_object("k", data).documents] == ["a"]


@pytest.mark.parametrize("key", ["text", "t/x", "schlüssel", 'a"b', "tab\there", "\U0001f600", "a\\b", "a.b"])
def test_repeated_keys_in_any_spelling(key):
    def escaped(text):
        return "".join(
            f"\\u{ord(c):04x}" if ord(c) < 0x10000 else json.dumps(c)[1:-1].upper().replace("\\U", "\\u") for c in text
        )

    plain = json.dumps(key, ensure_ascii=False)
    for other in (plain, json.dumps(key), f'"{escaped(key)}"'):
        data = f'{{{plain}: "one", {other} : "two"}}'.encode()
        parsed = DocumentParser(Fields(text=key)).parse_object("k", data)
        assert [r.reason for r in parsed.rejects] == [Reason.DUPLICATE_KEY], data


def test_repeated_keys_along_a_path():
    fields = Fields(text="data.text")
    for data in (b'{"data":{"text":"a"},"data":{"text":"b"}}', b'{"data":{"text":"a","text":"b"}}'):
        assert [r.reason for r in DocumentParser(fields).parse_object("k", data).rejects] == [Reason.DUPLICATE_KEY]
    elsewhere = b'{"data":{"text":"a"},"other":{"text":"b","text":"c","data":1}}'
    assert [d.text for d in DocumentParser(fields).parse_object("k", elsewhere).documents] == ["a"]


def test_the_longest_key_wins_on_every_level():
    parser = DocumentParser(Fields(text="a.b.c"))
    assert parser.parse_object("k", b'{"a":{"b":{"c":"deep"}},"a.b.c":"flat"}').documents[0].text == "flat"
    assert parser.parse_object("k", b'{"a":{"b":{"c":"deep"},"b.c":"half"}}').documents[0].text == "half"
    assert (
        parser.parse_object("k", b'{"a.b":{"c":"other half"},"a":{"b":{"c":"deep"}}}').documents[0].text == "other half"
    )
    reject = parser.parse_object("k", b'{"a":{"b":[{"c":"in a list"}]}}').rejects[0]
    assert reject.reason is Reason.MISSING_TEXT
    assert reject.detail == 'inside "a": "b" is a list, not an object with "c" in it'


def test_elements_of_arrays_go_one_by_one_with_their_place():
    data = b'[\n {"text":"a"},\n  7,\n {"text":""},\n "x", [1, {"text":"b"}],\n {"text":"\xc3\xa9, ]}"}\n]\n'
    parsed = DocumentParser(Fields()).parse_object("k", data)
    assert [(d.id, d.text, d.line) for d in parsed.documents] == [("k#0", "a", 2), ("k#5", "é, ]}", 6)]
    assert [(r.line, r.reason) for r in parsed.rejects] == [
        (3, Reason.NOT_AN_OBJECT), (4, Reason.EMPTY_TEXT), (5, Reason.NOT_AN_OBJECT), (5, Reason.NOT_AN_OBJECT),
    ]  # fmt: skip
    assert [data[r.offset : r.offset + len(r.raw)] for r in parsed.rejects] == [
        b"7",
        b'{"text":""}',
        b'"x"',
        b'[1, {"text":"b"}]',
    ]
    assert (parsed.found, parsed.lines) == (6, 7)


def test_a_damaged_array_is_all_or_nothing():
    for data in (
        b'[\n {"text":"a"}\n {"text":"b"}\n]\n',  # a missing comma: each line is an object
        b'[{"text":"a"},\n{"text":"b"}\n',  # cut short
        b'[\n{"text":"a"},\n{"text":"b"}\n]]\n',
        b'{\n"data":\n{"text":"a"}\n',  # a pretty-printed object, cut short
    ):
        parsed = DocumentParser(Fields()).parse_object("k", data)
        assert (parsed.documents, [r.reason for r in parsed.rejects]) == ([], [Reason.INVALID_JSON]), data


def test_lines_with_a_bad_first_line():
    for bad in (b"[INFO] starting", b'{"text":"cut', b'{"text":', b"[1, 2]", b"null", b"\xff\xfe\xfd"[:1] + b"x"):
        parsed = DocumentParser(Fields()).parse_object("k", bad + b'\n{"text":"a"}\n')
        assert [(d.text, d.line) for d in parsed.documents] == [("a", 2)], bad
        assert [r.line for r in parsed.rejects] == [1]


def test_lf_alone_ends_a_line():
    text = "a\u2028b\u2029c\x85d\x0be"
    line = json.dumps({"text": text}, ensure_ascii=False).replace("\\u000b", "\\u000b").encode()
    data = line + b"\r\n\r\n" + line + b"\n"
    parsed = DocumentParser(Fields()).parse_object("k", data)
    assert [(d.text, d.line) for d in parsed.documents] == [(text, 1), (text, 3)]
    assert parsed.lines == 3


def test_a_line_above_the_limit_is_set_aside_alone():
    data = b'{"text":"a"}\n{"text":"' + b"x" * 200 + b'"}\n{"text":"b"}'
    parsed = DocumentParser(Fields(), max_object_bytes=100).parse_lines("k", data, 0)
    assert [d.text for d in parsed.documents] == ["a", "b"]
    assert [(r.line, r.reason) for r in parsed.rejects] == [(2, Reason.TOO_LARGE)]


def test_the_bytes_of_a_reject_are_kept_up_to_4_kib():
    for size, kept in ((4096, True), (4097, False)):
        data = b'{"text":NaN}'.ljust(size)
        reject = DocumentParser(Fields()).parse_object("k", data).rejects[0]
        assert reject.raw == (data if kept else b"")


def test_gzip_members_zero_padding_and_zstd_frames():
    one, two = b'{"text":"a"}\n', b'{"text":"b"}\n'
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    for data in (
        gzip.compress(one) + gzip.compress(two),
        gzip.compress(one) + gzip.compress(two) + bytes(512),
        zstandard.compress(one) + zstandard.compress(two),
        skippable + zstandard.compress(one) + skippable + zstandard.compress(two),
        zstandard.compress(gzip.compress(one + two)),
    ):
        assert [d.text for d in DocumentParser(Fields()).parse_object("k", data).documents] == ["a", "b"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lambda d: gzip.compress(gzip.compress(d))])
def test_a_bomb_is_not_unpacked_to_its_end(pack):
    bomb = pack(bytes(100_000_000))
    tracemalloc.start()
    try:
        parsed = DocumentParser(Fields(), max_object_bytes=1_000_000).parse_object("k", bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [r.reason for r in parsed.rejects] == [Reason.TOO_LARGE]
    assert peak < 40_000_000


def test_nesting_up_to_1024_levels_is_read():
    data = b'{"text":"a","unused":' + b"[" * 1_023 + b"]" * 1_023 + b"}"
    assert [d.text for d in DocumentParser(Fields()).parse_object("k", data).documents] == ["a"]


def test_a_deep_bad_document_gives_the_same_reason_at_any_stack_depth():
    data = b'{"a":' * 700 + b"NaN" + b"}" * 700

    def deep(levels):
        return deep(levels - 1) if levels else DocumentParser(Fields()).parse_object("k", data).rejects[0].reason

    assert {deep(0), deep(300)} == {Reason.TOO_DEEP}


def test_damage_inside_gzip_is_never_half_a_file():
    lines = b"".join(b'{"text":"%d"}\n' % i for i in range(2_000))
    data = bytearray(gzip.compress(lines, mtime=0))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises((zlib.error, gzip.BadGzipFile)):
        gzip.decompress(bytes(data))
    parsed = DocumentParser(Fields()).parse_object("k", bytes(data))
    assert (parsed.documents, [r.reason for r in parsed.rejects]) == ([], [Reason.BAD_COMPRESSION])


def test_line_and_offset_of_an_error_in_a_pretty_object():
    data = b'\xef\xbb\xbf{\n  "text": "a",\n  "x": NaN\n}\n'
    reject = DocumentParser(Fields()).parse_object("k", data).rejects[0]
    assert (reject.line, reject.offset, reject.reason) == (3, 0, Reason.NAN_LITERAL)
    bad = DocumentParser(Fields()).parse_object("k", b'{\n "text":\n "\xff"}').rejects[0]
    assert (bad.line, bad.reason) == (3, Reason.INVALID_UTF8)


def test_default_ids_by_container():
    def parse(data):
        return [d.id for d in DocumentParser(Fields()).parse_object("raw/k.json", data).documents]

    assert parse(b'{"text":"a"}') == ["raw/k.json"]
    assert parse(b' \n{"text":"a"}\n') == ["raw/k.json"]
    assert parse(b'{"text":"a"}\n{"text":"b"}') == ["raw/k.json#0", "raw/k.json#13"]
    assert parse(b'[{"text":"a"},{"text":"b"}]') == ["raw/k.json#0", "raw/k.json#1"]


def test_column_types_are_those_of_good_documents_and_name_the_place():
    parser = DocumentParser(Fields(columns=(ColumnSpec.parse("label"),)))
    parser.parse_object(
        "k", b'{"text":"","label":1}\n{"text":"a","label":"x"}\n{"text":"a","label":null}\n{"text":"b","label":["x",2]}'
    )
    assert parser.column_types == {"label": {"string": "k:2", "list<string>": "k:4", "list<int64>": "k:4"}}
    parser.parse_lines("k", b'{"text":"a","label":2.5}', 500)
    assert parser.column_types["label"]["float64"] == "k#500"


def test_augmented_manifests():
    parser = DocumentParser(Fields(columns=(ColumnSpec.parse("class:int64"),)), source_ref=True)
    lines = (
        b'{"source-ref":"s3://b/a.txt","class":0}\n'
        b'{"source":"inline","class":1}\n'
        b'{"text":"own field","source":"wikipedia"}\n'
        b'{"source-ref":7}\n{"source-ref":""}\n{"source":""}\n{"class":2}\n'
        b'{"source-ref":"a","source-ref":"b"}\n'
    )
    parsed = parser.parse_object("m.jsonl", lines)
    assert [(d.text, d.ref, d.columns) for d in parsed.documents] == [
        ("", "s3://b/a.txt", (0,)), ("inline", None, (1,)), ("own field", None, (None,)),
    ]  # fmt: skip
    wrong = Reason.REFERENCE_WRONG_TYPE
    assert [r.reason for r in parsed.rejects] == [
        wrong,
        wrong,
        Reason.EMPTY_TEXT,
        Reason.MISSING_TEXT,
        Reason.DUPLICATE_KEY,
    ]


def test_the_text_behind_a_reference():
    parser = DocumentParser(Fields(), source_ref=True)
    for data in (b"plain text", b"\xef\xbb\xbfplain text", gzip.compress(b"plain text"), b'{"text":"plain text"}'):
        assert parser.text_behind(data) == "plain text"
    assert parser.text_behind(b"[1]") == "[1]"
    assert parser.text_behind(b'{"text": not json') == '{"text": not json'
    for data, reason in (
        (b" \n", Reason.EMPTY_OBJECT),
        (b"caf\xe9", Reason.INVALID_UTF8),
        (b'{"body":"a"}', Reason.MISSING_TEXT),
        (b'{"text":"a","text":"b"}', Reason.DUPLICATE_KEY),
        (gzip.compress(b"plain text")[:-1], Reason.BAD_COMPRESSION),
    ):
        with pytest.raises(Refused) as caught:
            parser.text_behind(data)
        assert caught.value.reason is reason


def test_fields_and_columns_are_checked():
    assert ColumnSpec.parse("meta.tags:list<string>") == ColumnSpec("meta.tags", ("meta", "tags"), "list<string>")
    assert ColumnSpec.parse("label") == ColumnSpec("label", ("label",), None)
    for text, words in (
        ("label:int", "unknown type 'int'"),
        ("id:string", "rename"),
        (":int64", "names no field"),
        ("", "no field"),
    ):
        with pytest.raises(ConfigError, match=words):
            ColumnSpec.parse(text)
    with pytest.raises(ConfigError, match="given twice"):
        Fields(columns=(ColumnSpec.parse("a"), ColumnSpec.parse("a:int64")))
    with pytest.raises(ConfigError, match="--id-field is empty"):
        Fields(id="")


def test_what_a_head_can_tell():
    assert is_lines(b"{", complete=False) is None
    assert is_lines(b"", complete=True) is False
    assert is_lines(gzip.compress(b'{"text":"a"}\n' * 2), complete=False) is False
    assert is_lines("\ufeff{}\n{}".encode("utf-16"), complete=False) is False
    assert is_lines(b'{"text":"a"}\n', complete=False) is None  # perhaps one object alone
    assert is_lines(b'{"text":"a"}\n', complete=True) is False
    assert is_lines(b'{"text":"a"}\n{"te', complete=False) is True
    assert is_lines(b"bad\nworse\n{}", complete=False) is None  # the last line may go on
    assert is_lines(b"bad\nworse\n{}", complete=True) is True
    assert is_lines(b"bad\nworse", complete=True) is False
    assert is_lines(b'{"a": [\n{"text":"b"},\n', complete=False) is None
    assert is_lines(b'{"a": [\n{"text":"b"}\n]}\n', complete=True) is False
    assert is_lines(b'{"a":\n{"a":1}}\n\n', complete=False) is None
    assert is_lines(b'{"a": [\n{"text":"b"}\n}\n', complete=False) is True


def test_a_byte_order_mark_inside_a_file_is_told():
    data = b'{"text":"a"}\n\xef\xbb\xbf{"text":"b"}\n'
    reject = DocumentParser(Fields()).parse_object("k", data).rejects[0]
    assert (reject.line, reject.reason) == (2, Reason.INVALID_JSON)
    assert "byte order mark" in reject.detail


@pytest.mark.parametrize("name", ["n", "any", "s", "b"])
def test_huge_integers_are_called_integers(name):
    reject = DocumentParser(ALL).parse_object("k", good(**{name: 10**25})).rejects[0]
    assert "integer" in reject.detail
