import pyarrow.parquet as pq

from tests.cases.command import build
from tests.cases.inputs import rows, write


def test_row_groups_are_small_enough_to_stream(tmp_path):
    write(tmp_path / "in/rows.jsonl", rows())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "1", "--row-group-size", "256KiB")
    (path,) = dataset.files
    metadata = pq.read_metadata(path)
    assert metadata.num_rows == 10_000
    assert dataset.ledger["tokens"] == 1_510_000
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert len(sizes) > 1
    assert max(sizes) <= 512 << 10
    assert min(sizes) >= max(sizes) / 3, "a tiny row group"


def test_footer_and_first_row_group_are_less_than_a_quarter_of_the_file(tmp_path):
    write(tmp_path / "in/rows.jsonl", rows())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "1", "--row-group-size", "256KiB")
    (path,), (shard,) = dataset.files, dataset.shards
    metadata = pq.read_metadata(path)
    group = metadata.row_group(0)
    first_bytes = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    assert shard["footer_bytes"] + first_bytes < path.stat().st_size / 4
    assert shard["footer_bytes"] == metadata.serialized_size + 8


def test_a_row_larger_than_the_limit_is_a_group_of_its_own(tmp_path):
    lines = [(i, "x" * 99) for i in range(300)] + [("giant", "y" * 200_000)]
    write(tmp_path / "in/a.jsonl", *lines)
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "1", "--row-group-size", "64KiB")
    metadata = pq.read_metadata(dataset.files[0])
    assert metadata.row_group(metadata.num_row_groups - 1).num_rows == 1
    assert metadata.num_row_groups > 2


def test_wide_columns_count_too(tmp_path):
    lines = [f'{{"id":{i},"text":"t","source":"{i:04d}{"s" * 1000}"}}\n'.encode() for i in range(2000)]
    write(tmp_path / "in/a.jsonl", *lines)
    flags = ["--shards", "1", "--row-group-size", "256KiB", "--column", "source:string"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    metadata = pq.read_metadata(dataset.files[0])
    assert max(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) <= 512 << 10


def test_a_few_rows_with_huge_columns_among_slim_ones(tmp_path):
    sources = ["s" * 100_000 if i % 500 < 10 else "s" for i in range(2000)]
    lines = [f'{{"id":{i},"text":"t","source":"{i:04d}{source}"}}\n'.encode() for i, source in enumerate(sources)]
    write(tmp_path / "in/a.jsonl", *lines)
    flags = ["--shards", "1", "--row-group-size", "256KiB", "--column", "source:string"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    metadata = pq.read_metadata(dataset.files[0])
    assert max(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) <= 512 << 10
    assert metadata.num_row_groups < 100
