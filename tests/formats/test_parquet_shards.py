"""Parquet shards: same rows back, same bytes every time, damage found, and every Parquet reader can use them."""

import hashlib
import io
import os
from itertools import pairwise

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.buckets import LengthBuckets
from shardprep.core.row_groups import row_groups
from shardprep.errors import BlockError, ConfigError, ManifestError
from shardprep.formats.parquet import (
    ShardWriter,
    decode_row_group,
    encode_shard,
    open_shard,
    read_footer,
    row_group_range,
    shard_schema,
)

COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("label", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("meta.tags", pa.list_(pa.string())),
    ]
)
SCHEMA = shard_schema(COLUMNS, pieces=False, metadata={"shardprep.split": "train", "shardprep.edges": "8,16"})


def block(rows, start=0):
    """Rows are lists of token ids."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.array([i for row in rows for i in row], dtype=np.int32)
    numbers = range(start, start + len(rows))
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([f"doc-{n}" for n in numbers], pa.string()),
            pa.array([n if n % 3 else None for n in numbers], pa.int64()),
            pa.array([f"s{n % 2}" if n % 5 else None for n in numbers], pa.string()),
            pa.array([["x", None][: n % 3] if n % 4 else None for n in numbers], pa.list_(pa.string())),
        ],
        schema=COLUMNS,
    )
    return TokenBlock(ids, offsets_of(lengths), columns)


def many_rows(rows, length, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 256, rows * length).astype(np.int32)
    columns = pa.record_batch({"id": pa.array([f"doc-{n:06d}" for n in range(rows)], pa.string())})
    return TokenBlock(ids, np.arange(rows + 1, dtype=np.int64) * length, columns)


BLOCKS = [block([[1, 2], [3], []]), block([[7, 8, 9]] * 3, start=3)]


def assert_same(left, right):
    assert left.ids.tolist() == right.ids.tolist()
    assert left.offsets.tolist() == right.offsets.tolist()
    assert left.columns.to_pydict() == right.columns.to_pydict()


def test_the_schema_is_the_one_promised():
    file = open_shard(encode_shard(BLOCKS, SCHEMA)[0])
    assert file.schema_arrow.names == ["id", "input_ids", "length", "label", "source", "meta.tags"]
    assert file.schema_arrow.field("input_ids").type == pa.list_(pa.field("element", pa.int32(), nullable=False))
    assert [f.nullable for f in file.schema_arrow] == [False, False, False, True, True, True]
    assert [str(f.type) for f in file.schema_arrow][3:] == ["int64", "string", "list<element: string>"]
    assert file.metadata.metadata == {b"shardprep.split": b"train", b"shardprep.edges": b"8,16"}


def test_rows_come_back_one_row_group_a_block():
    data, digest = encode_shard(BLOCKS, SCHEMA)
    file = open_shard(data)
    assert file.num_row_groups == digest.row_groups == 2
    assert (digest.rows, digest.tokens) == (6, 12)
    for index, expected in enumerate(BLOCKS):
        assert_same(decode_row_group(file, index), expected)


@settings(max_examples=30)
@given(st.lists(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=6), max_size=4))
def test_any_rows_come_back(groups):
    blocks = [block(rows, start=10 * i) for i, rows in enumerate(groups)]
    file = open_shard(encode_shard(blocks, SCHEMA)[0])
    assert file.num_row_groups == len(blocks)
    for index, expected in enumerate(blocks):
        assert_same(decode_row_group(file, index), expected)


def test_a_large_group_comes_back_from_its_parts_in_memory_that_arrow_does_not_keep():
    written = [many_rows(3_000, 400), many_rows(1, 300_000, seed=1)]
    columns = shard_schema(written[0].columns.schema, pieces=False, metadata={})
    file = open_shard(encode_shard(written, columns)[0])
    before = pa.total_allocated_bytes()
    for index, expected in enumerate(written):
        found = decode_row_group(file, index)
        assert pa.total_allocated_bytes() - before < 500_000 < found.ids.nbytes
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.offsets, expected.offsets)
        assert found.columns.to_pydict() == expected.columns.to_pydict()
        assert not found.ids.flags.writeable


def test_a_group_without_rows_is_a_block_without_rows():
    found = decode_row_group(open_shard(encode_shard([BLOCKS[0].slice(0, 0)], SCHEMA)[0]), 0)
    assert_same(found, BLOCKS[0].slice(0, 0))


def test_the_same_rows_make_the_same_bytes_and_slices_do_not_show():
    data, digest = encode_shard(BLOCKS, SCHEMA)
    shown = block([[9, 9], [1, 2], [3], [], [4]], start=-1).slice(1, 4)
    again, same = encode_shard([shown, BLOCKS[1]], SCHEMA)
    assert again.equals(data)
    assert same == digest


def test_the_bytes_of_this_pyarrow_are_golden():
    # Other versions of pyarrow may write other bytes, and say so in the plan; within one version they never change.
    parts = pq.ParquetFile(encode_shard(BLOCKS, SCHEMA)[0]).metadata.row_group(1)
    told = [(c.path_in_schema, c.compression, "|".join(sorted(c.encodings))) for c in map(parts.column, range(6))]
    assert told == [
        ("id", "ZSTD", "PLAIN|RLE"),
        ("input_ids.list.element", "ZSTD", "PLAIN|RLE"),
        ("length", "ZSTD", "PLAIN|RLE"),
        ("label", "ZSTD", "PLAIN|RLE|RLE_DICTIONARY"),
        ("source", "ZSTD", "PLAIN|RLE|RLE_DICTIONARY"),
        ("meta.tags.list.element", "ZSTD", "PLAIN|RLE"),
    ]


def test_digests_are_of_the_bytes():
    sink = io.BytesIO()
    writer = ShardWriter(sink, SCHEMA)
    for part in BLOCKS:
        writer.write(part)
    digest = writer.close()
    data = sink.getvalue()
    assert digest.size_bytes == len(data)
    assert digest.sha256 == hashlib.sha256(data).hexdigest()
    footer = data[-digest.footer_bytes :]
    assert digest.footer_sha256 == hashlib.sha256(footer).hexdigest()
    assert footer[-4:] == b"PAR1"
    assert data == encode_shard(BLOCKS, SCHEMA)[0].to_pybytes()


def test_the_footer_alone_says_where_everything_is():
    data, digest = encode_shard(BLOCKS, SCHEMA)
    metadata = read_footer(data.to_pybytes()[-digest.footer_bytes :])
    assert metadata.num_rows == 6
    assert metadata.equals(open_shard(data).metadata)
    ranges = [row_group_range(metadata, i) for i in range(metadata.num_row_groups)]
    assert ranges[0][0] == 4
    assert ranges[0][1] == ranges[1][0]
    assert ranges[1][1] == digest.size_bytes - digest.footer_bytes


def test_statistics_are_kept_where_they_help():
    group = open_shard(encode_shard(BLOCKS, SCHEMA)[0]).metadata.row_group(0)
    by_name = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert (by_name["length"].statistics.min, by_name["length"].statistics.max) == (0, 2)
    assert by_name["id"].statistics.max == "doc-2"
    assert not by_name["input_ids.list.element"].is_stats_set


def test_pieces_have_a_column():
    schema = shard_schema(
        pa.schema([pa.field("piece", pa.int32()), pa.field("id", pa.string())]), pieces=True, metadata={}
    )
    assert schema.names == ["id", "input_ids", "length", "piece"]
    columns = pa.record_batch({"id": pa.array(["a", "a"]), "piece": pa.array([0, 1], pa.int32())})
    part = TokenBlock(np.array([1, 2, 3], np.int32), np.array([0, 2, 3]), columns)
    file = open_shard(encode_shard([part], schema)[0])
    assert decode_row_group(file, 0).columns.column("piece").to_pylist() == [0, 1]
    assert file.metadata.metadata is None


def test_a_column_that_is_all_null_has_the_same_schema():
    nulls = block([[1]], start=0)
    columns = nulls.columns.set_column(1, "label", pa.nulls(1, pa.int64()))
    file = open_shard(encode_shard([TokenBlock(nulls.ids, nulls.offsets, columns)], SCHEMA)[0])
    assert file.schema_arrow.remove_metadata() == SCHEMA.remove_metadata()


def test_a_shard_without_rows_is_readable():
    file = open_shard(encode_shard([], SCHEMA)[0])
    assert (file.metadata.num_rows, file.num_row_groups) == (0, 0)
    empty = open_shard(encode_shard([block([])], SCHEMA)[0])
    assert sum(decode_row_group(empty, i).rows for i in range(empty.num_row_groups)) == 0


@pytest.mark.parametrize("name", ["input_ids", "length"])
def test_a_column_may_not_take_a_name_of_ours(name):
    with pytest.raises(ConfigError, match=f"--column {name}"):
        shard_schema(pa.schema([pa.field(name, pa.int64())]), pieces=False, metadata={})


def test_a_block_must_fit_the_schema():
    missing = many_rows(2, 3)
    with pytest.raises(BlockError, match="no column 'label'"):
        encode_shard([missing], SCHEMA)
    other = block([[1]])
    columns = other.columns.set_column(1, "label", pa.array(["x"]))
    with pytest.raises(BlockError, match="does not fit"):
        encode_shard([TokenBlock(other.ids, other.offsets, columns)], SCHEMA)
    nothing = block([[1]])
    columns = nothing.columns.set_column(0, "id", pa.array([None], pa.string()))
    with pytest.raises(BlockError, match="does not fit"):
        encode_shard([TokenBlock(nothing.ids, nothing.offsets, columns)], SCHEMA)


def test_a_full_disk_surfaces_as_it_is():
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 100:
                raise OSError(28, "No space left on device")
            return super().write(data)

    def write_all():
        writer = ShardWriter(Full(), SCHEMA)
        for part in BLOCKS * 5:
            writer.write(part)
        writer.close()

    with pytest.raises(OSError, match="No space left"):
        write_all()


def test_every_flipped_byte_of_a_page_is_found():
    data, _ = encode_shard([many_rows(50, 20)], shard_schema(pa.schema([]), pieces=False, metadata={}))
    expected = decode_row_group(open_shard(data), 0)
    start, stop = row_group_range(open_shard(data).metadata, 0)
    kept = 0
    for place in range(start, stop, 37):
        damaged = bytearray(data.to_pybytes())
        damaged[place] ^= 0x55
        try:
            found = decode_row_group(open_shard(pa.py_buffer(bytes(damaged))), 0)
        except ManifestError as error:
            assert "row group 0" in str(error)
        else:  # a bit of a page header that no reader looks at
            assert_same(found, expected)
            kept += 1
    assert kept <= 3


@pytest.mark.parametrize("keep", [0, 3, 11, 200])
def test_a_cut_file_is_named_for_what_it_is(keep):
    data = encode_shard(BLOCKS, SCHEMA)[0].to_pybytes()[:keep]
    with pytest.raises(ManifestError, match="not a readable Parquet file"):
        open_shard(pa.py_buffer(data))
    with pytest.raises(ManifestError, match="not a readable Parquet footer"):
        read_footer(data)


def test_lengths_that_disagree_with_tokens_are_found():
    table = pa.table(
        {"id": ["a"], "input_ids": pa.array([[1, 2]], pa.list_(pa.int32())), "length": pa.array([3], pa.int32())}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with pytest.raises(ManifestError, match="lengths do not agree"):
        decode_row_group(open_shard(sink.getvalue()), 0)


@pytest.fixture(scope="module")
def shard_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("shard") / "00000-of-00001.parquet"
    with path.open("wb") as file:
        writer = ShardWriter(file, SCHEMA)
        for part in BLOCKS:
            writer.write(part)
        writer.close()
    return str(path)


EXPECTED_IDS = [[1, 2], [3], [], [7, 8, 9], [7, 8, 9], [7, 8, 9]]


def test_pandas_reads_lists_of_ints(shard_path):
    frame = pd.read_parquet(shard_path)
    assert [list(map(int, row)) for row in frame["input_ids"]] == EXPECTED_IDS
    assert frame["id"].tolist() == [f"doc-{n}" for n in range(6)]
    assert frame["label"].isna().tolist() == [True, False, False, True, False, False]


def test_duckdb_reads_lists_of_ints(shard_path):
    with duckdb.connect() as db:
        rows = db.execute("select input_ids, length, label, id from read_parquet(?)", [shard_path]).fetchall()
        kinds = db.execute("describe select * from read_parquet(?)", [shard_path]).fetchall()
        longest = db.execute("select id from read_parquet(?) where length > 2 order by id", [shard_path]).fetchall()
    assert [list(row[0]) for row in rows] == EXPECTED_IDS
    assert [row[1] for row in rows] == [len(ids) for ids in EXPECTED_IDS]
    assert {k[0]: k[1] for k in kinds}["input_ids"] == "INTEGER[]"
    assert [row[0] for row in longest] == ["doc-3", "doc-4", "doc-5"]


def test_polars_reads_lists_of_ints(shard_path):
    frame = pl.read_parquet(shard_path)
    assert frame["input_ids"].to_list() == EXPECTED_IDS
    assert frame.schema["input_ids"] == pl.List(pl.Int32)
    assert pl.scan_parquet(shard_path).filter(pl.col("length") > 2).collect()["id"].to_list() == [
        "doc-3",
        "doc-4",
        "doc-5",
    ]


def test_plain_pyarrow_reads_lists_of_ints(shard_path):
    table = pq.read_table(shard_path)
    assert table["input_ids"].to_pylist() == EXPECTED_IDS
    assert table["meta.tags"].to_pylist()[1:3] == [["x"], ["x", None]]


class CountingFile(io.FileIO):
    """A file that counts what is read from it."""

    fetched = 0

    def read(self, size=-1):
        data = super().read(size)
        self.fetched += len(data)
        return data

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.fetched += count
        return count


def test_the_first_batch_reads_little_of_a_large_shard(tmp_path):
    # Case C27: 10,000 documents of 151 tokens in one shard, row groups of at most 256 KiB.
    rows, schema, limit = many_rows(10_000, 151), shard_schema(pa.schema([]), pieces=False, metadata={}), 256 << 10
    cuts = row_groups(rows.lengths, LengthBuckets((152,), 8), limit, 40).tolist()
    path = tmp_path / "one.parquet"
    data, digest = encode_shard((rows.slice(a, b) for a, b in pairwise(cuts)), schema)
    path.write_bytes(data)
    metadata = pq.read_metadata(path)
    assert (metadata.num_rows, digest.tokens) == (10_000, 1_510_000)
    assert metadata.num_row_groups > 1
    assert max(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) <= limit
    for read in (_first_of_all_groups, _first_of_one_group):
        with CountingFile(path) as file:
            assert read(file).num_rows == 8
            assert 0 < file.fetched < 0.1 * os.path.getsize(path)


def _first_of_all_groups(file):
    # pre_buffer (the default since pyarrow 23 or so) asks for 32 MB at once, whatever the file looks like.
    return next(pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=8))


def _first_of_one_group(file):
    return next(pq.ParquetFile(file).iter_batches(batch_size=8, row_groups=[0]))
