from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places, content


def test_nan_and_infinity_share_one_fate_with_either_backend(tmp_path):
    dataset = build(HERE / "C07", tmp_path / "out")
    assert dataset.ids == {"f6"}
    assert len(dataset.tokens("f6")) == 4
    assert dataset.ledger["found"] == 6
    assert_places(dataset, {"nan.jsonl": [1, 2, 3, 4, 5]})
    assert dataset.reasons == {"nan_literal": 4, "number_out_of_range": 1}
    other = tmp_path / "auto"
    build(HERE / "C07", other, "--tokenizer-backend", "auto")
    assert content(tmp_path / "out") == content(other)


def test_strict_names_the_first_of_them(tmp_path):
    assert "nan.jsonl, line 1" in refused(HERE / "C07", tmp_path / "out", "--on-bad", "fail")


def test_numbers_that_look_odd_but_are_json(tmp_path):
    numbers = ["1e308", "-0", "-0.0", "1E-400", "123456789012345678901234567890", "0.1e1"]
    lines = [f'{{"id":"g{i}","text":"t","n":{number}}}\n'.encode() for i, number in enumerate(numbers)]
    bad = ["-1e999", "01", "+1", ".5", "1.", "0x10", "NaN", "-NaN", "nan"]
    lines += [f'{{"id":"b{i}","text":"t","n":{number}}}\n'.encode() for i, number in enumerate(bad)]
    write(tmp_path / "in/a.jsonl", *lines)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {f"g{i}" for i in range(len(numbers))}
    assert_places(dataset, {"a.jsonl": range(len(numbers) + 1, len(numbers) + len(bad) + 1)})


def test_a_float_column_never_holds_a_nan(tmp_path):
    write(
        tmp_path / "in/a.jsonl",
        b'{"id":1,"text":"t","score":0.5}\n',
        b'{"id":2,"text":"t","score":NaN}\n',
        line(3, "t"),
    )
    dataset = build(tmp_path / "in", tmp_path / "out", "--column", "score:float64")
    assert {i: row["score"] for i, row in dataset.by_id.items()} == {"1": 0.5, "3": None}
    assert_places(dataset, {"a.jsonl": [2]})
