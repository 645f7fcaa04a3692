"""Whatever documents are written, in whatever container and compression, comes back the same."""

import gzip
import json
import random

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shardprep.formats.documents import ColumnSpec, DocumentParser, Fields, is_lines

FIELDS = Fields(id="id", columns=(ColumnSpec.parse("label"), ColumnSpec.parse("tags:list<int64>")))
INT64 = st.integers(-(2**63), 2**63 - 1)
LABELS = st.one_of(st.none(), st.text(), INT64, st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
DOCUMENT = st.fixed_dictionaries(
    {
        "id": st.text(st.characters(codec="utf-8")) | st.integers(-(2**80), 2**80),
        "text": st.text(st.characters(codec="utf-8"), min_size=1),
        "label": LABELS.filter(lambda v: type(v) is not float or abs(v) < 2**63),
        "tags": st.none() | st.lists(st.none() | INT64, max_size=3),
        "other": st.recursive(LABELS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5),
    }
)
DOCUMENTS = st.lists(DOCUMENT, min_size=2, max_size=8)
PACKERS = [
    bytes,
    gzip.compress,
    zstandard.compress,
    lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    lambda data: zstandard.compress(data[:7]) + zstandard.compress(data[7:]),
    lambda data: gzip.compress(zstandard.compress(data)),
]


def dumps(value, ascii_only, indent=None):
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()


def as_lines(values, ascii_only, rng):
    out = bytearray()
    for value in values:
        out += (
            b" \t\r\n" * rng.randrange(2)
            + b" " * rng.randrange(2)
            + dumps(value, ascii_only)
            + rng.choice([b"\n", b"\r\n"])
        )
    return bytes(out if rng.randrange(2) else out.rstrip())


def expected(values):
    return [(str(v["id"]), v["text"], v["label"], v["tags"]) for v in values]


def found(parsed):
    assert parsed.rejects == []
    return [(d.id, d.text, *d.columns) for d in parsed.documents]


@given(DOCUMENTS, st.booleans(), st.booleans(), st.sampled_from(PACKERS), st.integers())
def test_any_container_and_compression(values, ascii_only, mark, pack, seed):
    rng = random.Random(seed)
    shapes = {
        "lines": as_lines(values, ascii_only, rng),
        "array": dumps(values, ascii_only),
        "pretty": dumps(values, ascii_only, indent=2),
    }
    for shape in shapes.values():
        data = b"\xef\xbb\xbf" + shape if mark else shape
        parsed = DocumentParser(FIELDS).parse_object("k", pack(data))
        assert found(parsed) == expected(values)
        assert parsed.lines == data.count(b"\n")
        for document in parsed.documents:
            begins = data[document.offset :].removeprefix(b"\xef\xbb\xbf").lstrip()
            assert begins.startswith(b"{")
            assert document.line == data.count(b"\n", 0, document.offset) + 1
    for value in values[:1]:
        for data in (dumps(value, ascii_only), b" \n" + dumps(value, ascii_only, indent=1) + b"\n"):
            assert found(DocumentParser(FIELDS).parse_object("k", pack(data))) == expected([value])


def ranges_of(data, cuts):
    """Cut at the first line end at or after each place."""
    starts = {0, len(data)}
    for cut in cuts:
        end = data.find(b"\n", min(cut, len(data)))
        if end >= 0:
            starts.add(end + 1)
    return list(zip(sorted(starts), sorted(starts)[1:], strict=False))


@given(DOCUMENTS, st.booleans(), st.lists(st.integers(0, 2_000), max_size=6), st.integers())
def test_ranges_of_lines_are_the_whole(values, ascii_only, cuts, seed):
    rng = random.Random(seed)
    data = as_lines(values, ascii_only, rng).replace(b"\n", b"\nnot json\n{}\n", 1)
    whole = DocumentParser(Fields()).parse_object("k", data)
    documents, rejects, lines = [], [], 0
    for start, stop in ranges_of(data, cuts):
        part = DocumentParser(Fields()).parse_lines("k", data[start:stop], start)
        documents += [(d.id, d.text, d.offset, d.line + lines) for d in part.documents]
        rejects += [(r.line + lines, r.offset, r.reason, r.raw) for r in part.rejects]
        lines += part.lines
    assert documents == [(d.id, d.text, d.offset, d.line) for d in whole.documents]
    assert rejects == [(r.line, r.offset, r.reason, r.raw) for r in whole.rejects]
    assert lines == whole.lines


@given(DOCUMENTS, st.booleans(), st.sampled_from(["lines", "array", "pretty", "one", "pretty one"]), st.integers())
def test_a_head_never_contradicts_the_whole(values, ascii_only, shape, seed):
    data = {
        "lines": lambda: as_lines(values, ascii_only, random.Random(seed)),
        "array": lambda: dumps(values, ascii_only),
        "pretty": lambda: dumps(values, ascii_only, indent=2),
        "one": lambda: dumps(values[0], ascii_only) + b"\n",
        "pretty one": lambda: dumps(values[0], ascii_only, indent=2),
    }[shape]()
    answer = is_lines(data, complete=True)
    assert answer is (shape == "lines")
    for stop in range(len(data)):
        assert is_lines(data[:stop], complete=False) in (None, answer)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise(data):
    for start in (b"", b"{", b"[", b'{"text":"a"}\n', b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"):
        parsed = DocumentParser(Fields()).parse_object("k", start + data)
        assert parsed.found == len(parsed.documents) + len(parsed.rejects)
