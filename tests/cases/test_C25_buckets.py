from collections import Counter

from tests.cases.command import build
from tests.cases.inputs import lengths, write

EDGES = (32, 64, 128, 256, 512)
HELD = {32: 62, 64: 64, 128: 128, 256: 256, 512: 490}


def bucket(length, edges):
    return next(edge for edge in edges if length <= edge)


def histogram(dataset):
    (split,) = dataset.manifest["generations"][0]["splits"]
    return dict(zip(split["lengths"], split["counts"], strict=True))


def test_each_bucket_holds_the_documents_of_the_case(tmp_path):
    write(tmp_path / "in/lengths.jsonl", lengths())
    dataset = build(tmp_path / "in", tmp_path / "out", "--bucket-edges", "32,64,128,256,512")
    assert dataset.ledger["tokens"] == 251_500
    assert tuple(dataset.manifest["buckets"]["edges"]) == EDGES
    assert Counter(bucket(row["length"], EDGES) for row in dataset.rows) == HELD
    assert histogram(dataset) == Counter(row["length"] for row in dataset.rows)


def test_rows_are_sorted_and_row_groups_end_at_edges(tmp_path):
    import pyarrow.parquet as pq

    write(tmp_path / "in/lengths.jsonl", lengths())
    flags = ["--bucket-edges", "32,64,128,256,512", "--shards", "1", "--row-group-size", "128KiB"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    inner = 0
    for path in dataset.files:
        file = pq.ParquetFile(path)
        groups = [file.read_row_group(i, ["length"])["length"].to_pylist() for i in range(file.num_row_groups)]
        flat = sum(groups, [])
        assert flat == sorted(flat)
        inner += sum(
            bucket(one[-1], EDGES) != bucket(other[0], EDGES) for one, other in zip(groups, groups[1:], strict=False)
        )
    assert inner > 0


def test_fitted_edges_pad_little(tmp_path):
    write(tmp_path / "in/lengths.jsonl", lengths())
    shares = []
    for buckets in (1, 4, 64):
        dataset = build(tmp_path / "in", tmp_path / f"out{buckets}", "--buckets", buckets)
        assert len(dataset.manifest["buckets"]["edges"]) <= buckets
        assert all(edge % 8 == 0 for edge in dataset.manifest["buckets"]["edges"])
        shares.append(dataset.manifest["padding_share"])
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.05


def test_one_length_and_one_bucket_more_than_lengths(tmp_path):
    write(tmp_path / "in/a.jsonl", *[(i, "abcdefg") for i in range(5)])
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.manifest["buckets"]["edges"] == [8]
    assert dataset.manifest["padding_share"] == 0
