"""A RecordIO data set of version 1 that reads for ever, and records of the same bytes for the same rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import shardprep
from shardprep.core.block import concat
from shardprep.core.manifest import parse
from shardprep.formats.recordio import decode_prefix, decode_span, encode_shard, schema_of
from shardprep.formats.recordio_spans import Spans, beside
from shardprep.prep.verify import verify
from tests.formats.records import records_in, rows_in

GOLDEN = Path(__file__).parents[1] / "golden" / "recordio-v1"
MANIFEST = parse((GOLDEN / "manifest.json").read_bytes())
ROWS = {row["id"]: row for row in map(json.loads, (GOLDEN / "rows.jsonl").read_text(encoding="utf-8").splitlines())}


ESCAPES = [6, 3, 1, 0]  # of each shard


def wanted(row: dict[str, object]) -> dict[str, object]:
    text = str(row["text"])
    return {**{k: v for k, v in row.items() if k != "text"}, "input_ids": [int(number) for number in text.split()]}


def test_it_verifies_and_its_escapes_are_told() -> None:
    assert verify(str(GOLDEN), progress=False).problems == ()
    assert MANIFEST.to_bytes() == (GOLDEN / "manifest.json").read_bytes()
    assert [shard.escapes for shard in MANIFEST.shards] == ESCAPES


@pytest.mark.parametrize("shard", MANIFEST.shards, ids=lambda shard: shard.name)
def test_every_reader_gives_the_rows(shard) -> None:
    data = (GOLDEN / shard.name).read_bytes()
    found, used = decode_prefix(data, schema_of(MANIFEST))
    assert used == len(data)
    for rows in (rows_in(found), records_in(data, MANIFEST.schema)):
        assert rows == [wanted(ROWS[row["id"]]) for row in rows]
        assert len(rows) == shard.rows


def test_the_loader_gives_the_rows(tmp_path) -> None:
    data = shardprep.open(str(GOLDEN), cache_dir=str(tmp_path))
    seen = {}
    for split in ("train", "validation"):
        for batch in data.loader(split, batch_size=4):
            for i in range(batch.real):
                seen[batch.ids[i]] = batch.input_ids[i, : batch.lengths[i]].tolist()
    assert seen == {name: wanted(row)["input_ids"] for name, row in ROWS.items()}


@pytest.mark.parametrize("shard", MANIFEST.shards, ids=lambda shard: shard.name)
def test_the_same_rows_make_the_same_bytes(shard) -> None:
    """Only the plan names versions: within version 1 of the layout a change here would be a broken promise."""
    records = (GOLDEN / shard.name).read_bytes()
    data = (GOLDEN / beside(shard.name, ".json")).read_bytes()
    spans = Spans.parse(data, shard)
    blocks = [decode_span(spans, i, records[a:b]) for i, (a, b) in enumerate(pairwise(spans.byte_starts.tolist()))]
    again = encode_shard(blocks, schema_of(MANIFEST))
    assert again.records == records
    assert again.spans == data
    assert again.idx == (GOLDEN / beside(shard.name, ".idx")).read_bytes()
    assert encode_shard([concat(blocks)], schema_of(MANIFEST)).records == records, "however rows are cut into spans"
