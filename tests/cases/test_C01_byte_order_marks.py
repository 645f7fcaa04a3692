from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places

BOM = b"\xef\xbb\xbf"


def test_the_mark_at_a_files_start_is_dropped_and_one_inside_a_text_is_kept(tmp_path):
    dataset = build(HERE / "C01", tmp_path / "out")
    assert {i: len(dataset.tokens(i)) for i in dataset.ids} == {"b1": 6, "b2": 7, "b3": 9, "b4": 6}
    assert dataset.ledger["tokens"] == 28
    assert dataset.tokens("b1") == dataset.tokens("b4")
    assert bytes(dataset.tokens("b3")[:3]) == BOM
    assert dataset.text("b3") == "\ufeffinner"


def test_a_mark_before_an_array_and_before_lines_of_a_byte_range(tmp_path):
    write(tmp_path / "in/array.json", BOM + b'[{"id":"a1","text":"one"},\n {"id":"a2","text":"two"}]')
    many = [line(f"n{i}", "x" * 1000) for i in range(3000)]  # more than one scan task's bytes: read as byte ranges
    write(tmp_path / "in/large.jsonl", BOM, *many)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"a1", "a2", *(f"n{i}" for i in range(3000))}
    assert dataset.text("n0") == dataset.text("n2999") == "x" * 1000


def test_a_mark_in_the_middle_of_a_file_is_told_with_its_line(tmp_path):
    write(tmp_path / "in/glued.jsonl", line("a", "first"), BOM + line("b", "second"), line("c", "third"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert_places(dataset, {"glued.jsonl": [2]})
    assert dataset.ids == {"a", "c"}
    assert "byte order mark" in dataset.rejects[0]["detail"]


def test_a_file_that_is_only_a_mark_is_an_empty_object(tmp_path):
    write(tmp_path / "in/mark.json", BOM)
    write(tmp_path / "in/good.json", ("a", "good"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.reasons == {"empty_object": 1}
    assert_places(dataset, {"mark.json": [None]})
    assert "mark.json" in refused(tmp_path / "in", tmp_path / "strict", "--on-bad", "fail")
