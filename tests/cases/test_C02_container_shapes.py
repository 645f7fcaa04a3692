from tests.cases.command import build
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places


def test_lines_arrays_and_pretty_objects_under_one_prefix(tmp_path):
    dataset = build(HERE / "C02", tmp_path / "out")
    glued = {"c1", "c2"} if not dataset.rejects else set()
    if not glued:
        assert_places(dataset, {"glued.json": [1]})
    assert dataset.ids == {"n1", "n2", "n3", "a1", "a2", "p1"} | glued
    assert not any("\r" in dataset.text(i) for i in dataset.ids)
    assert dataset.ledger["objects"]["without_documents"] == 1  # empty_array.json


def test_pretty_objects_one_after_the_other_are_named_not_lost(tmp_path):
    write(tmp_path / "in/two.json", b'{\n "id": "a",\n "text": "one"\n}\n{\n "id": "b",\n "text": "two"\n}\n')
    write(tmp_path / "in/good.json", ("c", "three"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"c"}
    assert [key for key, _ in dataset.places] == ["two.json"]


def test_arrays_of_large_files_are_read_whole_by_one_task(tmp_path):
    body = b",\n".join(line(f"n{i}", "x" * 1000).rstrip() for i in range(3000))
    write(tmp_path / "in/array.json", b"[\n" + body + b"\n]\n")
    pretty = body.replace(b'{"id"', b'{\n  "id"').replace(b',"text"', b',\n  "text"').replace(b'"}', b'"\n}')
    write(tmp_path / "in/pretty.json", b"[\n" + pretty.replace(b'"n', b'"p') + b"\n]\n")
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {f"{kind}{i}" for kind in "np" for i in range(3000)}
    assert dataset.ledger["found"] == 6000


def test_ids_without_a_field_tell_the_place(tmp_path):
    dataset = build(HERE / "C02", tmp_path / "out", with_ids=False)
    assert {"lines.jsonl#0", "array.json#0", "array.json#1", "pretty.json"} <= dataset.ids


def test_blank_lines_of_any_kind_and_no_final_newline(tmp_path):
    write(tmp_path / "in/a.jsonl", b"\r\n \t\r\n", line("a", "one"), b"\n\n", b"   \n", line("b", "two").rstrip(b"\n"))
    write(tmp_path / "in/b.jsonl", b"[]\n", line("c", "three"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"a", "b", "c"}
    assert_places(dataset, {"b.jsonl": [1]})


def test_only_lf_ends_a_line(tmp_path):
    texts = {"u": "one\u2028two\u2029three\u0085four", "v": "vertical\x0b and \x0c"}
    write(tmp_path / "in/a.jsonl", *texts.items(), b"broken\n")
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert {i: dataset.text(i) for i in dataset.ids} == texts
    assert_places(dataset, {"a.jsonl": [3]})
