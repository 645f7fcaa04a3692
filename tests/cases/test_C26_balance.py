import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import equal, skew, write


def rows(dataset):
    return [shard["rows"] for shard in dataset.shards]


def test_equal_documents_in_8_shards(tmp_path):
    write(tmp_path / "in/equal.jsonl", equal())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "8")
    assert sorted(rows(dataset)) == [12] * 4 + [13] * 4


def test_more_shards_than_rows(tmp_path):
    write(tmp_path / "in/equal.jsonl", equal())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "200")
    assert rows(dataset) == [1] * 100
    assert dataset.manifest["shards"] == 100


def test_a_giant_among_equal_ones_leaves_the_others_balanced(tmp_path):
    write(tmp_path / "in/skew.jsonl", skew())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shard-size", "100000tok")
    assert dataset.ledger["written"] == 1000
    assert dataset.ledger["tokens"] == 1_000_500
    others = [shard["tokens"] for shard in dataset.shards if shard["tokens"] < 500_001]
    assert len(others) == len(dataset.shards) - 1
    assert all(50_000 <= tokens <= 150_000 for tokens in others)


@pytest.mark.parametrize(
    ("count", "flags", "expected"),
    [
        (100, ["--shards", "1"], 1),
        (100, ["--shards-multiple-of", "8"], 8),
        (100, ["--shards", "3", "--shards-multiple-of", "8"], 3),
        (5, ["--shards-multiple-of", "8"], 5),
        (1, ["--shards", "8"], 1),
        (1, [], 1),
        (100, ["--shard-size", "1000tok"], 10),
        (100, ["--shard-size", "900tok"], 11),
        (100, ["--shard-size", "1tok"], 100),
        (100, ["--shard-size", "1000000000tok"], 1),
        (100, ["--shard-size", "1000tok", "--shards-multiple-of", "4"], 12),
    ],
)
def test_the_number_of_shards(tmp_path, count, flags, expected):
    write(tmp_path / "in/equal.jsonl", b"".join(equal().splitlines(keepends=True)[:count]))
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    assert len(dataset.shards) == expected
    assert max(rows(dataset)) - min(rows(dataset)) <= 1
    assert sum(rows(dataset)) == count


def test_a_split_without_rows_has_no_shard_and_is_named(tmp_path):
    write(tmp_path / "in/a.jsonl", *[(i, "text") for i in range(3)])
    dataset = build(tmp_path / "in", tmp_path / "out", "--split", "train=0.999999,test=0.000001", "--shards", "2")
    splits = {split["name"]: split for split in dataset.manifest["generations"][0]["splits"]}
    assert splits["test"]["rows"] == 0
    assert splits["test"]["shards"] == []
    assert len(splits["train"]["shards"]) == 2


def test_every_split_is_balanced_by_itself(tmp_path):
    lines = [(f"id-{i}", "x" * (i * 37 % 500 + 1)) for i in range(400)]
    write(tmp_path / "in/a.jsonl", *lines)
    flags = ["--split", "train=0.8,validation=0.1,test=0.1", "--shards", "4"]
    dataset = build(tmp_path / "in", tmp_path / "out", *flags)
    for split in dataset.manifest["generations"][0]["splits"]:
        counts = [shard["rows"] for shard in split["shards"]]
        assert len(counts) == 4
        assert max(counts) - min(counts) <= 1
    train = [shard["tokens"] for shard in dataset.manifest["generations"][0]["splits"][0]["shards"]]
    assert max(train) - min(train) <= 501, "shards differ by more than the longest row"


def test_no_rows_at_all_is_a_data_set_that_says_so_or_an_error(tmp_path):
    write(tmp_path / "in/empty.json", b"[]")
    dataset = build(tmp_path / "in", tmp_path / "out", "--shards", "4")
    assert dataset.shards == []
    assert dataset.ledger["found"] == 0
    assert "at least 1" in refused(tmp_path / "in", tmp_path / "no", "--shards", "0", code=2)
