import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places


def test_strict_stops_with_object_and_line(tmp_path):
    message = refused(HERE / "C06", tmp_path / "out", "--on-bad", "fail")
    assert "comma_array.json" in message or ("comma.jsonl" in message and "line 2" in message)


def test_strict_on_the_one_file_names_line_2(tmp_path):
    message = refused(HERE / "C06/comma.jsonl", tmp_path / "out", "--on-bad", "fail")
    assert "comma.jsonl, line 2" in message


def test_tolerant_keeps_exactly_the_good_ones(tmp_path):
    dataset = build(HERE / "C06", tmp_path / "out")
    assert dataset.ids == {"k1", "k4", "k6"}
    assert dataset.reasons == {"invalid_json": 3}
    by_key = {}
    for key, number in dataset.places:
        by_key.setdefault(key, []).append(number)
    assert sorted(by_key["comma.jsonl"]) == [2, 5]
    (array,) = by_key["comma_array.json"]
    assert array in (3, 4)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "{",
        '{"id":"x"',
        '{"id":"x","text":}',
        "{'id':'x'}",
        '{"id":"x","text":"y"}]',
        '{"id":"x","text":"a\tb"}',
        "NULL",
    ],
)
def test_any_damage_of_the_third_line_is_told_with_line_3(tmp_path, bad):
    write(tmp_path / "in/a.jsonl", line("a", "1"), b"\n", bad.encode() + b" x\n", line("b", "2"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert_places(dataset, {"a.jsonl": [3]})
    assert dataset.ids == {"a", "b"}
    assert "a.jsonl, line 3" in refused(tmp_path / "in", tmp_path / "strict", "--on-bad", "fail")


def test_lines_of_byte_ranges_are_counted_from_the_files_start(tmp_path):
    lines = [line(f"n{i}", "x" * 1000) for i in range(4000)]
    bad = {1: b"first\n", 1999: b'{"id":"n1998","text":"\n', 4000: b"last, without a newline"}
    for number, damage in bad.items():
        lines[number - 1] = damage
    write(tmp_path / "in/large.jsonl", *lines)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert_places(dataset, {"large.jsonl": sorted(bad)})
    assert len(dataset.ids) == 3997
    lines[0] = line("n0", "good")
    write(tmp_path / "in/large.jsonl", *lines)
    message = refused(tmp_path / "in", tmp_path / "strict", "--on-bad", "fail")
    assert "large.jsonl, line 1999" in message or "large.jsonl, line 4000" in message


def test_max_bad_counts_in_documents_and_in_shares(tmp_path):
    write(tmp_path / "in/a.jsonl", *[(i, "x") for i in range(97)], b"1\n", b"2\n", b"3\n")
    for limit, passes in (("3", True), ("2", False), ("3%", True), ("2.9%", False)):
        output = tmp_path / f"out-{limit.strip('%')}-{passes}-{'%' in limit}"
        if passes:
            assert build(tmp_path / "in", output, "--max-bad", limit).reasons == {"not_an_object": 3}
        else:
            message = refused(tmp_path / "in", output, "--max-bad", limit)
            assert "3 of 100" in message
            assert "a.jsonl" in message


def test_nothing_usable_is_an_error_that_says_why(tmp_path):
    write(tmp_path / "in/a.jsonl", b'{"id":1,"content":"x"}\n', b'{"id":2,"content":"x"}\n')
    message = refused(tmp_path / "in", tmp_path / "out")
    assert "missing_text" in message
    assert "--text-field" in message
