from tests.cases.command import build, refused
from tests.cases.inputs import HERE, line, write
from tests.invariants import assert_places


def test_damaged_text_is_set_aside_by_line_and_what_is_good_is_kept(tmp_path):
    dataset = build(HERE / "C10", tmp_path / "out")
    assert dataset.ids == {"x3", "x5", "v5"}
    assert dataset.tokens("x3") == [0xF0, 0x9F, 0x98, 0x80, 256]
    assert dataset.text("x5") == dataset.text("v5") == "good"
    assert_places(dataset, {"surrogates.jsonl": [1, 2, 4], "bytes.jsonl": [1, 2, 3, 4], "utf16.json": [None]})
    assert dataset.reasons == {"lone_surrogate": 3, "invalid_utf8": 4, "wrong_encoding": 1}


def test_strict_names_one_of_them(tmp_path):
    message = refused(HERE / "C10/bytes.jsonl", tmp_path / "out", "--on-bad", "fail")
    assert "bytes.jsonl, line 1" in message


def test_half_a_pair_in_keys_labels_and_unused_fields(tmp_path):
    write(
        tmp_path / "in/a.jsonl",
        rb'{"id":"a","text":"t","\ud800":1}' + b"\n",
        rb'{"id":"b","text":"t","label":"\udfff"}' + b"\n",
        rb'{"id":"c","text":"t","meta":{"deep":["\ud83d x"]}}' + b"\n",
        rb'{"id":"d","text":"\ud83d\ude00\u0000","label":"\ud83d\ude00"}' + b"\n",
    )
    dataset = build(tmp_path / "in", tmp_path / "out", "--column", "label:string")
    assert dataset.ids == {"d"}
    assert dataset.text("d") == "\U0001f600\x00"
    assert dataset.by_id["d"]["label"] == "\U0001f600"
    assert_places(dataset, {"a.jsonl": [1, 2, 3]})


def test_other_encodings_of_whole_files(tmp_path):
    text = line("u", "caf\u00e9").decode()
    for name, codec in (("le16", "utf-16-le"), ("be16", "utf-16-be"), ("le32", "utf-32"), ("latin", "latin-1")):
        write(tmp_path / f"in/{name}.json", text.encode(codec))
    write(tmp_path / "in/lines.jsonl", (text * 3).encode("utf-16"))
    write(tmp_path / "in/good.json", line("g", "caf\u00e9"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"g"}
    assert dataset.reasons == {"wrong_encoding": 4, "invalid_utf8": 1}


def test_bad_bytes_in_the_middle_of_a_large_file_cost_one_line(tmp_path):
    lines = [line(f"n{i}", "\u00e9" * 500) for i in range(3000)]
    lines[1234] = lines[1234].decode().encode("latin-1")
    write(tmp_path / "in/large.jsonl", *lines)
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert_places(dataset, {"large.jsonl": [1235]})
    assert len(dataset.ids) == 2999
    assert dataset.rejects[0]["raw_base64"]
