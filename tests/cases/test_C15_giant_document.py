import hashlib

import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import big, giant_text, line, write

W2_SHA256 = "1cb688f409f5b2bd34472f8bf7cc78599d02d60a74583315698104a912f36506"


def test_one_5_mb_document_between_small_ones(tmp_path):
    write(tmp_path / "in/big.jsonl", big())
    dataset = build(tmp_path / "in", tmp_path / "out", "--shard-size", "1MiB")
    assert {i: len(dataset.tokens(i)) for i in dataset.ids} == {"w1": 6, "w2": 5_300_001, "w3": 6}
    text = dataset.text("w2")
    assert hashlib.sha256(text.encode()).hexdigest() == W2_SHA256
    assert len(text) == 5_299_994
    assert "\ufffd" not in text
    (holder,) = [path for path in dataset.files if any(row["id"] == "w2" for row in _rows(path))]
    assert [row["id"] for row in _rows(holder)][-1] == "w2"
    (warning,) = dataset.manifest["warnings"]
    assert "w2" in warning
    assert "5,300,001" in warning
    assert "1MiB" in warning


def _rows(path):
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=["id"]).to_pylist()


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("place", ["first", "last", "alone"])
def test_a_giant_line_anywhere_in_a_file(tmp_path, ending, place):
    giant = line("giant", giant_text(0)[:1_500_000]).rstrip(b"\n")
    small = [line(f"s{i}", f"small {i}").rstrip(b"\n") for i in range(3)]
    lines = {"first": [giant, *small], "last": [*small, giant], "alone": [giant]}[place]
    separator = ending or b"\n"
    write(tmp_path / "in/a.jsonl", separator.join(lines) + ending)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == ({"giant"} if place == "alone" else {"giant", "s0", "s1", "s2"})
    assert dataset.text("giant") == giant_text(0)[:1_500_000]


def test_a_bad_giant_line_costs_itself_alone(tmp_path):
    write(tmp_path / "in/a.jsonl", ("a", "one"), b'{"id":"g","text":"' + b"x" * 3_000_000 + b"\n", ("b", "two"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"a", "b"}
    assert dataset.places == [("a.jsonl", 2)]


def test_above_the_largest_object_size_it_is_set_aside_by_name(tmp_path):
    write(tmp_path / "in/one.json", b'{"id":"g",\n"text":"' + b"x" * 300_000 + b'"}')
    write(tmp_path / "in/a.jsonl", ("a", "one"), ("g2", "x" * 2_500_000), ("b", "two"))
    dataset = build(tmp_path / "in", tmp_path / "out", "--max-object-size", "200kB")
    assert dataset.reasons == {"too_large": 2}
    assert ("one.json", None) in dataset.places
    assert {key for key, _ in dataset.places} == {"one.json", "a.jsonl"}


def test_limits_in_tokens_and_a_shard_of_its_own(tmp_path):
    write(tmp_path / "in/a.jsonl", *[(i, "x" * 99) for i in range(20)], ("giant", "y" * 50_000))
    dataset = build(tmp_path / "in", tmp_path / "out", "--shard-size", "1000tok")
    assert sum("giant" in warning for warning in dataset.manifest["warnings"]) == 1
    assert "50,001" in dataset.manifest["warnings"][0]
    message = refused(tmp_path / "in", tmp_path / "no", "--shard-size", "0tok", code=2)
    assert "--shard-size" in message
