"""Records of rows: the bytes that protobuf's own runtime makes of them, and the same rows back, from it and from ours."""

import hashlib
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.core.block import TokenBlock
from shardprep.errors import BlockError, ConfigError
from shardprep.formats import recordio_columns, recordio_segments, recordio_varints
from shardprep.formats.recordio import RecordWriter, decode_prefix, decode_span, encode_shard
from shardprep.formats.recordio_fields import entries_of
from shardprep.formats.recordio_spans import Spans, beside
from shardprep.formats.shard import shard_schema
from tests.formats.records import MAGIC, block_of, dmlc_records, record_class, record_of, row_of, rows_in

TYPES = {
    "label": "int64",
    "source": "string",
    "n": "int64",
    "ok": "bool",
    "score": "float64",
    "meta.tags": "list<string>",
    "Zahlen": "list<int64>",
    "flags": "list<bool>",
    "vector": "list<float64>",
    "ü" * 150: "string",  # a key whose length takes two bytes
}


def row(name, ids=(), **values):
    return {"id": name, "input_ids": list(ids), **dict.fromkeys(TYPES), **values}


ROWS = [
    row("all null"),
    row("", [5]),
    row(
        "full",
        range(300),
        label=-100,
        source="a source",
        n=2**40,
        ok=True,
        score=-0.5,
        **{"meta.tags": ["x", "", "ÿ"], "Zahlen": [1, -(2**63), 2**63 - 1], "ü" * 150: "y" * 200},
        flags=[True, False],
        vector=[1.0, math.inf],
    ),
    row("lists without elements", [], **{"meta.tags": [], "Zahlen": []}, flags=[], vector=[], source=""),
    row(
        "nulls in lists",
        [1],
        **{"meta.tags": [None, "x", None, ""], "Zahlen": [None, 0]},
        flags=[None],
        vector=[None, 1.5],
    ),
    row("wide", [2**31 - 1, 0, 127, 128, 16383, 16384, 2**21, 2**28], label=2**31, n=-1, ok=False),
    row("narrow", [151_000] * 50, label=-(2**31)),
    row("edge", [0], label=2**31 - 1, n=0, score=0.0),
]


def encoded(rows, types=TYPES, cuts=()):
    block, schema = block_of(rows, types)
    edges = [0, *cuts, len(rows)]
    blocks = [block.slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return encode_shard(blocks, schema), schema


def check(rows, types=TYPES, cuts=()):
    shard, schema = encoded(rows, types, cuts)
    payloads = [payload for _, payload in dmlc_records(shard.records)]
    wanted = [record_of(each, types).SerializeToString(deterministic=True) for each in rows]
    assert payloads == wanted
    read = [row_of(record_class().FromString(payload), types) for payload in payloads]
    assert read == rows
    found, used = decode_prefix(shard.records, schema)
    assert used == len(shard.records) == shard.digest.size_bytes
    assert rows_in(found) == rows
    assert found.ids.dtype == np.int32
    assert found.columns.schema == block_of(rows, types)[0].columns.schema
    found.columns.validate(full=True)
    return shard


def test_every_type_null_and_edge():
    shard = check(ROWS)
    check(ROWS, cuts=(1, 3))
    check(ROWS[::-1])
    for each in ROWS:
        check([each])
    assert (shard.digest.rows, shard.digest.row_groups, shard.digest.escapes) == (len(ROWS), 1, 0)


def test_negative_labels_take_ten_bytes_and_wide_ones_are_bytes():
    shard, _ = encoded([row("a", label=-100), row("b", label=2**40), row("c", label=3)])
    first, second, third = (record_class().FromString(payload) for _, payload in dmlc_records(shard.records))
    assert list(first.label["values"].int32_tensor.values) == [-100]
    assert first.label["values"].ByteSize() == 2 + 2 + 10
    assert second.label["values"].bytes.value[0] == struct.pack("<q", 2**40)
    assert list(third.label["values"].int32_tensor.values) == [3]


def test_labels_of_other_types():
    check([row("a", label="cat"), row("b", [1], label=None)], {**TYPES, "label": "string"})
    check([row("a", label=0.25), row("b")], {**TYPES, "label": "float64"})
    check([row("a", label=True), row("b", label=False)], {**TYPES, "label": "bool"})
    labels = [[1, -100, 2], [], None, [None, 1], [2**40, 1]]
    check([row(str(i), label=each) for i, each in enumerate(labels)], {**TYPES, "label": "list<int64>"})
    check([row("a", label=["x", None, ""]), row("b", label=[])], {**TYPES, "label": "list<string>"})


def test_pieces_of_split_documents():
    types = {"piece": "int32", "label": "int64"}
    check([{"id": "a", "input_ids": [1] * i, "piece": i, "label": None} for i in range(200)], types)


def test_only_ids():
    check([{"id": f"d{i}", "input_ids": list(range(i))} for i in range(50)], {})


def test_no_rows():
    shard, schema = encoded([])
    assert (shard.records, shard.idx) == (b"", b"")
    assert (shard.digest.rows, shard.digest.row_groups) == (0, 0)
    block, used = decode_prefix(b"", schema)
    assert (block.rows, used) == (0, 0)
    assert block.columns.schema == block_of([], TYPES)[0].columns.schema


def test_token_ids_below_zero_come_back():
    """No tokenizer makes them, but nothing else here says so; `verify` does."""
    check([row("a", [-1, 5, -(2**31)]), row("b", [7])])


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("times", [1, 2])
def test_tokens_that_are_the_magic_word(shift, times):
    """Ids 10, 35, 26455 are the bytes 0A 23 D7 CE 01; where these lie at a multiple of 4 they are escaped."""
    ids = [1] * shift + [10, 35, 26455] * times
    rows = [row(str(i), [*ids, *[7] * i], source="s" * i) for i in range(9)]
    shard = check(rows)
    aligned = 0
    for each in rows:
        payload = record_of(each, TYPES).SerializeToString(deterministic=True)
        aligned += sum(payload[i : i + 4] == MAGIC for i in range(0, len(payload) - 3, 4))
    assert shard.digest.escapes == aligned > 0
    assert Spans.parse(shard.spans, shard.digest.info("p/train/0.rec", "train")).escapes == aligned


def test_a_magic_word_in_every_kind_of_value():
    number = struct.unpack("<q", MAGIC * 2)[0]
    rows = []
    for shift in range(4):
        rows.append(
            row("u" * shift, [1] * shift, n=number, score=struct.unpack("<d", MAGIC * 2)[0], Zahlen=[number] * 3)
        )
        rows.append(row("u" * shift, [10, 35, 26455] * 300, vector=[struct.unpack("<d", MAGIC * 2)[0]] * 2))
    assert check(rows).digest.escapes > 10


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
wide = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-100, -1, 0, 1, 2**31 - 1, 2**31, struct.unpack("<q", MAGIC * 2)[0]]
)
floats = st.floats(allow_nan=False)


def lists(of):
    return st.none() | st.lists(st.none() | of, max_size=4) | st.lists(of, max_size=4)


drawn = st.fixed_dictionaries(
    {
        "id": texts,
        "input_ids": st.lists(
            st.integers(0, 2**31 - 1) | st.integers(0, 160_000) | st.sampled_from([10, 35, 26455, 127, 128]),
            max_size=12,
        ),
        "label": st.none() | wide,
        "source": st.none() | texts,
        "n": st.none() | wide,
        "ok": st.none() | st.booleans(),
        "score": st.none() | floats,
        "meta.tags": lists(texts),
        "Zahlen": lists(wide),
        "flags": lists(st.booleans()),
        "vector": lists(floats),
        "ü" * 150: st.none() | texts,
    }
)


@settings(max_examples=60)
@given(st.lists(drawn, max_size=8), st.data())
def test_any_rows(rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=2)))
    shard = check(rows, cuts=cuts)
    assert encoded(rows, cuts=cuts)[0] == shard
    spans = Spans.parse(shard.spans, shard.digest.info("plan/train/00000-of-00001.rec", "train")) if rows else None
    starts = spans.byte_starts.tolist() if spans else []
    blocks = [
        decode_span(spans, i, shard.records[a:b]) for i, (a, b) in enumerate(zip(starts[:-1], starts[1:], strict=True))
    ]
    assert [each for block in blocks for each in rows_in(block)] == rows
    index = [tuple(map(int, line.split("\t"))) for line in shard.idx.decode().splitlines()]
    assert index == [(i, begin) for i, (begin, _) in enumerate(dmlc_records(shard.records))]
    assert not shard.idx or shard.idx.endswith(b"\n")


@settings(max_examples=20)
@given(st.lists(drawn, min_size=1, max_size=6))
def test_small_chunks_and_long_strings_take_the_other_ways(rows):
    """Limits between two ways of doing one thing, set so that small rows take the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordio_segments, "LONG_BYTES", 0)
        patch.setattr(recordio_varints, "CHUNK_BYTES", 11)
        patch.setattr(recordio_columns, "CHUNK_VALUES", 3)
        check(rows)


def test_the_same_rows_make_the_same_bytes_and_slices_do_not_show():
    block, schema = block_of([row("before", [9] * 7, source="zz"), *ROWS, row("behind", [3])], TYPES)
    shard = encode_shard([block.slice(1, 1 + len(ROWS))], schema)
    assert shard == encode_shard([block_of(ROWS, TYPES)[0]], schema)
    shuffled = block.columns.select(block.columns.schema.names[::-1])
    assert encode_shard([TokenBlock(block.ids, block.offsets, shuffled)], schema) == encode_shard([block], schema)


def test_digests_are_of_the_bytes():
    block, schema = block_of(ROWS, TYPES)
    written, index = [], []

    class Sink(list):
        def write(self, data):
            self.append(bytes(data))

    sink, lines = Sink(), Sink()
    writer = RecordWriter(sink, lines, schema)
    for start in range(0, len(ROWS), 3):
        writer.write(block.slice(start, min(start + 3, len(ROWS))))
        writer.write(block.slice(0, 0))  # no rows, no span
    digest = writer.close()
    written, index = b"".join(sink), b"".join(lines)
    assert digest.sha256 == hashlib.sha256(written).hexdigest()
    assert (digest.size_bytes, digest.row_groups) == (len(written), 3)
    assert digest.footer_sha256 == hashlib.sha256(writer.spans).hexdigest()
    spans = Spans.parse(writer.spans, digest.info("p/train/0.rec", "train"))
    assert spans.index_sha256 == hashlib.sha256(index).hexdigest()
    assert spans.index_bytes == len(index)
    assert spans.row_starts.tolist() == [0, 3, 6, 8]
    assert spans.schema == schema


def test_a_block_must_fit_the_schema():
    block, schema = block_of(ROWS, TYPES)
    with pytest.raises(BlockError, match="no column 'label'"):
        encode_shard([TokenBlock(block.ids, block.offsets, block.columns.select(["id"]))], schema)
    columns = block.columns.set_column(1, "label", pa.array(["x"] * len(ROWS)))
    with pytest.raises(BlockError, match=r"does not fit.*'label' is string"):
        encode_shard([TokenBlock(block.ids, block.offsets, columns)], schema)
    columns = block.columns.set_column(0, "id", pa.nulls(len(ROWS), pa.string()))
    with pytest.raises(BlockError, match=r"does not fit.*8 nulls"):
        encode_shard([TokenBlock(block.ids, block.offsets, columns)], schema)


def test_a_record_has_a_largest_size(monkeypatch):
    monkeypatch.setattr("shardprep.formats.recordio_encode.MOST_BYTES", 1000)
    block, schema = block_of([row("short", [1]), row("the long one", [200] * 900)], TYPES)
    with pytest.raises(BlockError, match=r"'the long one' makes a record of .* \(--max-length\)"):
        encode_shard([block], schema)


def test_a_column_may_not_take_the_name_of_the_tokens():
    with pytest.raises(ConfigError, match="--column values"):
        entries_of(shard_schema(pa.schema([pa.field("values", pa.int64())]), pieces=False, metadata={}))


def test_names_of_the_files_beside():
    assert beside("3f2a91c0/train/00000-of-00012.rec", ".idx") == "3f2a91c0/index/train/00000-of-00012.idx"
    assert beside("train/00000-of-00012.rec", ".json") == "index/train/00000-of-00012.json"
