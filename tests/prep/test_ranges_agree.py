"""All byte ranges of one object must take it for the same: else its documents are written twice, or not at all."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.api import build_dataset
from shardprep.prep.scan import shortest_range
from shardprep.prep.settings import Settings
from shardprep.storage.local import LocalStore
from tests.prep.builds import TOKENIZER


@given(st.integers(1 << 16, 1 << 40), st.integers(1, 5_000))
def test_every_range_knows_the_shortest(size, parts):
    cuts = [size * part // parts for part in range(parts + 1)]
    lengths = {stop - start for start, stop in pairwise(cuts)}
    if min(lengths) > 2 * parts:  # ranges are a mebibyte and more
        assert {shortest_range(size, length) for length in lengths} == {size // parts}


@pytest.mark.parametrize("shift", range(-3, 3))
def test_a_first_line_that_ends_where_a_range_does(shift, tmp_path):
    """2,100,002 bytes in three ranges of two lengths; the first line's end fits into the longer head only."""
    size = 2_100_002
    first = json.dumps({"text": "x" * (size // 3 + shift - len('{"text": ""}'))})
    lines = [first]
    left = size - len(first) - 1
    while left > 2_000:
        lines.append(json.dumps({"text": f"{len(lines):06d}" + "y" * 979}))
        left -= len(lines[-1]) + 1
    lines.append(json.dumps({"text": "z" * (left - 1 - len('{"text": ""}'))}))
    data = ("\n".join(lines) + "\n").encode()
    assert len(data) == size
    (tmp_path / "in").mkdir()
    (tmp_path / "in/big.jsonl").write_bytes(data)
    built = build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial"))
    assert built.manifest.ledger.found == built.manifest.ledger.written == len(lines)


def test_stop_at_the_first_bad_one_also_on_a_rerun(tmp_path):
    """What an earlier run staged with documents set aside is no answer to --on-bad fail."""
    from shardprep.errors import SourceError, TooManyBad

    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / f"in/{number}.json").write_text(json.dumps({"text": f"text {number}"}))
    (tmp_path / "in/bad.json").write_text("{")
    with pytest.raises(TooManyBad):
        build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial", max_bad="0"))
    with pytest.raises(SourceError, match=r"bad\.json"):
        build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial", on_bad="fail"))


@pytest.mark.parametrize("ends", [True, False])
def test_a_line_above_the_limit_is_refused_before_it_is_read(ends, tmp_path, monkeypatch):
    """A line of 20 MB, 1 MB allowed: it is set aside by line, the others are there, and it is not read to its end."""
    lines = [json.dumps({"text": f"{n:06d}" + "y" * 979}) for n in range(4_000)]
    giant = json.dumps({"text": "x" * 20_000_000})
    after = [*lines[2_000:], "{broken"] if ends else []
    data = "\n".join([*lines[:2_000], giant, *after]) + ("\n" if ends else "")
    (tmp_path / "big.jsonl").write_text(data)
    reads, real = [], LocalStore.get_range

    def get_range(self, key, start, stop, **named):
        if key == "big.jsonl":
            reads.append((start, stop))
        return real(self, key, start, stop, **named)

    monkeypatch.setattr(LocalStore, "get_range", get_range)
    settings = Settings(scheduler="serial", max_object_size="1MB")
    built = build_dataset(tmp_path / "big.jsonl", tmp_path / "out", TOKENIZER, settings)
    assert built.manifest.ledger.written == (4_000 if ends else 2_000)
    (part,) = (tmp_path / "out").rglob("rejects/part-*.jsonl")
    rejects = [json.loads(line) for line in part.read_bytes().splitlines()]
    assert (rejects[0]["line"], rejects[0]["reason"]) == (2_001, "too_large")
    assert "--max-object-size" in rejects[0]["detail"]
    assert [(r["line"], r["reason"]) for r in rejects[1:]] == ([(4_002, "invalid_json")] if ends else [])
    begin = data.index('{"text": "xxx')
    assert max(stop - start for start, stop in reads) < 2_500_000
    first = [stop for start, stop in reads if start <= begin < stop]
    assert max(first) < begin + 2_500_000
    assert sum(stop - start for start, stop in reads) < 1.3 * len(data), (
        "each range reads itself, and none the whole line"
    )
