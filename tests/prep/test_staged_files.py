"""A task that an earlier run staged counts only with every file that belongs to it."""

from __future__ import annotations

import json

import orjson
import pytest

from shardprep.api import build_dataset
from shardprep.errors import ConfigError, TokenizerError, TooManyBad
from shardprep.formats.backends import Encoder
from shardprep.prep import build as building
from shardprep.prep.scan import ScanCall, scan
from shardprep.prep.settings import Settings
from tests.prep.builds import TOKENIZER, rows_of, text_of

SERIAL = {"scheduler": "serial", "id_field": "id", "dedup": "exact"}


@pytest.fixture
def interrupted(tmp_path):
    """Return source and output after a run that staged everything and then stopped."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.json").write_text(json.dumps({"id": number, "text": f"text {number % 5}"}))
    (source / "bad.json").write_text("{")
    with pytest.raises(TooManyBad):
        build_dataset(source, output, TOKENIZER, Settings(**SERIAL, max_bad="0"))
    return source, output


@pytest.mark.parametrize("ending", [".rejects.jsonl", ".texts", ".ids", ".arrow", ".json"])
@pytest.mark.parametrize("harm", ["emptied", "removed"])
def test_damaged_or_lost_files_are_made_again(interrupted, ending, harm):
    source, output = interrupted
    (staged,) = output.rglob(f"scan-00000-*{ending}")
    staged.write_bytes(b"") if harm == "emptied" else staged.unlink()
    manifest = build_dataset(source, output, TOKENIZER, Settings(**SERIAL)).manifest
    assert manifest.ledger.set_aside == {"duplicate_text": 1, "invalid_json": 1}
    (part,) = output.rglob("rejects/part-*.jsonl")
    assert [orjson.loads(line)["key"] for line in part.read_bytes().splitlines()] == ["5.json", "bad.json"]


@pytest.mark.parametrize("ref", ["nosuch://x/y", "s3://", "s3:///k", "http://user:pw@h/x"])
def test_a_bad_reference_costs_only_its_own_document(ref, tmp_path):
    good = tmp_path / "good.txt"
    good.write_text("good")
    lines = [{"source-ref": str(good)}, {"source-ref": ref}, {"source-ref": str(good)}]
    manifest = tmp_path / "in.manifest"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = Settings(scheduler="serial", source_format="augmented-manifest")
    built = build_dataset(manifest, tmp_path / "out", TOKENIZER, settings).manifest
    assert (built.ledger.found, built.ledger.written) == (3, 2)
    (part,) = (tmp_path / "out").rglob("rejects/part-*.jsonl")
    reject = orjson.loads(part.read_bytes())
    assert (reject["line"], reject["reason"]) == (2, "unusable_key")


@pytest.mark.parametrize("address", ["tcp://nohost", "tcp://127.0.0.1:abc", "inproc://x", "ucx://a:1"])
def test_an_address_without_a_port_is_refused_at_once(address):
    with pytest.raises(ConfigError, match="--scheduler"):
        Settings(scheduler=address)


def test_a_scan_that_ends_late_replaces_nothing(tmp_path, monkeypatch):
    """After a fall-back to the reference a worker may still be busy with the fast backend, whose ids are wrong."""
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / f"in/{number}.json").write_text(json.dumps({"text": f"text {number}"}))
    real, calls = building._scan_once, []

    def scan_once(run):
        calls.append(run.job)
        if run.job.backend == "auto":
            raise TokenizerError("made to differ", kind="difference", first=True)
        reports = real(run)
        with monkeypatch.context() as patch:  # now the scans of the fast backend come to their end
            encode = Encoder.encode
            patch.setattr(
                Encoder, "encode", lambda self, texts: (encode(self, texts)[0] * 0 + 7, encode(self, texts)[1])
            )
            for index in range(run.plan.tasks):
                scan(ScanCall(calls[0], run.plan.task(index)))
        return reports

    monkeypatch.setattr(building, "_scan_once", scan_once)
    build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial"))
    assert [job.backend for job in calls] == ["auto", "reference"]
    assert sorted(text_of(row) for row in rows_of(tmp_path / "out")) == sorted(f"text {n}" for n in range(20))
