"""The exit message: at most 1,024 bytes of UTF-8, counts first, no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.adapters.sagemaker.message import clear_message, cut, failure, scrubbed, stopped, success, write_message

SUMMARY = {
    "found": 1_000, "written": 990, "set_aside": {"too_long": 3, "no_text": 7}, "rows": 990, "tokens": 123_456, "shards": 8,
    "manifest": "s3://bucket/shards/manifest.json",
}  # fmt: skip


def test_counts_come_first() -> None:
    assert success(SUMMARY, hosts="3 hosts", seconds=61.2) == (
        "found 1,000, written 990, set aside 10; 8 shards, manifest s3://bucket/shards/manifest.json; 990 rows, "
        "123,456 tokens; 3 hosts, 61 s; set aside (no_text 7, too_long 3)"
    )


def test_a_dry_run_and_the_other_ends() -> None:
    assert (
        success({"dry_run": True, "objects": 5, "counters": {}}, hosts="", seconds=0)
        == "dry run: dry_run True, objects 5"
    )
    assert failure(2, "x") == "the call is wrong (exit 2): x"
    assert failure(1, "x") == "failed (exit 1): x"
    assert stopped("SIGTERM").startswith("stopped by SIGTERM")


@given(st.text(max_size=3000), st.integers(8, 1024))
def test_the_cut_is_between_characters(text: str, limit: int) -> None:
    out = cut(text, limit)
    data = out.encode()
    assert len(data) <= limit
    whole = text.encode("utf-8", "replace").decode()
    assert out == whole or (out.endswith(" ...") and whole.startswith(out[:-4]))
    assert out == whole or len(data) > limit - 4 - 4  # not more is cut than a character's bytes


@pytest.mark.parametrize("character", ["x", "é", "日", "🙂"])
@pytest.mark.parametrize("shift", range(4))
def test_at_most_1024_bytes_in_the_file(character: str, shift: int, tmp_path: Path) -> None:
    assert write_message("a" * shift + character * 2000, str(tmp_path))
    data = (tmp_path / "output" / "message").read_bytes()
    assert 1020 <= len(data) <= 1024
    data.decode("utf-8")
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == ["message"]


def test_lines_become_one_and_lone_surrogates_do_no_harm(tmp_path: Path) -> None:
    assert write_message("one\ntwo \udce4\n", str(tmp_path))
    assert (tmp_path / "output" / "message").read_text() == "one two ?"


def test_a_message_of_an_earlier_run_is_taken_away(tmp_path: Path) -> None:
    clear_message(str(tmp_path))
    assert write_message("found 1", str(tmp_path))
    clear_message(str(tmp_path))
    assert list((tmp_path / "output").iterdir()) == []


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file in the way")
    assert not write_message("x", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read s3://user:pass@host/a", "cannot read s3://...@host/a"),
        (
            "https://b.s3.amazonaws.com/k?X-Amz-Signature=abc&x=1",
            "https://b.s3.amazonaws.com/k?X-Amz-Signature=...&x=1",
        ),
        ("cannot list s3://AKIAX:abc/def+x@bucket/raw/ (denied)", "cannot list s3://...@bucket/raw/ (denied)"),
        ("got https://user:p@ss@host/t.json", "got https://...@host/t.json"),
        ("at http://127.0.0.1:9000/bucket/a@b", "at http://127.0.0.1:9000/bucket/a@b"),
        ('{"secret_access_key": "abcd/efgh", "x": 1}', '{"secret_access_key": "...", "x": 1}'),
        ("unrecognized arguments: --token=hunter2 x", "unrecognized arguments: --token=... x"),
        ("end token: 'x', tokenizer=t.json", "end token: 'x', tokenizer=t.json"),
        ("https://a/k?sv=1&sig=abc%3D", "https://a/k?sv=1&sig=..."),
        ("key AKIAABCDEFGHIJKLMNOP is", "key ... is"),
        ("aws_secret_access_key=abcd/efgh", "aws_secret_access_key=..."),
        ("found 10, manifest s3://bucket/a@b/manifest.json", "found 10, manifest s3://bucket/a@b/manifest.json"),
    ],
)
def test_no_secret_is_told(text: str, expected: str) -> None:
    assert scrubbed(text, {}) == expected


def test_values_of_secret_variables_are_not_told() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG", "HF_TOKEN": "hf_abcdefgh", "TOKENIZERS_PARALLELISM": "false-false",
        "TOKENIZER": "false-false",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token", "MY_PASSWORD": "short",
    }  # fmt: skip
    text = "wJalrXUtnFEMI/K7MDENG hf_abcdefgh false-false /var/run/token short"
    assert scrubbed(text, environment) == "... ... false-false /var/run/token short"
