import json

import pytest

from tests.cases.command import build, refused
from tests.cases.inputs import BYTE, BYTE_EOS, BYTE_NO_EOS, HERE
from tests.invariants import content

SOURCE = HERE / "C17"
EXPECTED = {"t1": [104, 105, 256], "t2": [97, 10, 98, 256], "t3": [32, 256]}


def ids(dataset):
    return {row["id"]: row["input_ids"].tolist() for row in dataset.rows}


@pytest.mark.parametrize("tokenizer", [BYTE, BYTE_EOS])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_one_end_token_whoever_adds_it(tmp_path, tokenizer, backend):
    dataset = build(SOURCE, tmp_path / "out", "--tokenizer", tokenizer, "--tokenizer-backend", backend)
    assert ids(dataset) == EXPECTED
    assert dataset.manifest["tokenizer"]["eos_id"] == 256


def test_without_an_end_token_the_job_stops_before_it_reads(tmp_path):
    message = refused(SOURCE, tmp_path / "out", "--tokenizer", BYTE_NO_EOS)
    assert "no end token" in message
    assert "--eos-token" in message
    assert "--no-eos" in message
    assert not (tmp_path / "out").exists()


def test_the_user_gives_an_id_or_switches_it_off(tmp_path):
    given = build(SOURCE, tmp_path / "given", "--tokenizer", BYTE_NO_EOS, "--eos-token", "256")
    assert ids(given) == EXPECTED
    bare = build(SOURCE, tmp_path / "bare", "--tokenizer", BYTE_NO_EOS, "--no-eos")
    assert ids(bare) == {i: tokens[:-1] for i, tokens in EXPECTED.items()}
    off = build(SOURCE, tmp_path / "off", "--no-eos")
    assert ids(off) == ids(bare)


def test_the_templates_own_end_token_can_be_switched_off_too(tmp_path):
    flags = ["--tokenizer", BYTE_EOS, "--no-template"]
    assert ids(build(SOURCE, tmp_path / "one", *flags)) == EXPECTED
    assert ids(build(SOURCE, tmp_path / "none", *flags, "--no-eos")) == {i: t[:-1] for i, t in EXPECTED.items()}


def test_unknown_or_contradicting_end_tokens_are_wrong_calls(tmp_path):
    assert "<nope>" in refused(SOURCE, tmp_path / "out", "--eos-token", "<nope>", code=2)
    assert "exclude" in refused(SOURCE, tmp_path / "out", "--eos-token", "256", "--no-eos", code=2)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    file = json.loads(BYTE.read_text())
    file["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    file["padding"] = {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None}
    file["padding"] |= {"pad_id": 257, "pad_type_id": 0, "pad_token": "<pad>"}
    path = tmp_path / "cutting.json"
    path.write_text(json.dumps(file))
    dataset = build(SOURCE, tmp_path / "out", "--tokenizer", path)
    assert ids(dataset) == EXPECTED
    assert dataset.manifest["tokenizer"]["pad_id"] == 257
    assert any("truncation" in note for note in dataset.manifest["tokenizer"]["notes"])


def test_a_text_that_spells_the_end_token_is_text(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"id":"t","text":"<|endoftext|>"}\n')
    for backend in ("reference", "auto"):
        dataset = build(source, tmp_path / backend, "--tokenizer-backend", backend)
        assert dataset.text("t") == "<|endoftext|>"
    assert content(tmp_path / "auto") == content(tmp_path / "reference")


def test_damaged_tokenizer_files_are_told_before_anything_is_read(tmp_path):
    for name, data in (
        ("empty.json", b""),
        ("text.json", b"hello"),
        ("other.json", b"{}"),
        ("bytes.json", b"\xff\xfe\x00"),
    ):
        (tmp_path / name).write_bytes(data)
        assert "tokenizer file" in refused(SOURCE, tmp_path / "out", "--tokenizer", tmp_path / name)
    assert "nowhere.json" in refused(SOURCE, tmp_path / "out", "--tokenizer", tmp_path / "nowhere.json", code=2)
    assert not (tmp_path / "out").exists()
