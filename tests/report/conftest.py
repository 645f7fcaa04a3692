from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardprep.cli import main
from shardprep.core.buckets import LengthBuckets, fit_edges
from shardprep.core.deal import shard_histogram
from shardprep.core.histogram import LengthHistogram, histogram_of, merged
from shardprep.core.manifest import Generation, Ledger, Manifest, ShardInfo, SplitInfo, fingerprint_of

SCHEMA = (
    {"name": "id", "type": "string", "nullable": False},
    {"name": "input_ids", "type": "list<int32>", "nullable": False},
    {"name": "length", "type": "int32", "nullable": False},
    {"name": "label", "type": "int64", "nullable": True},
)
TOKENIZER = {
    "fingerprint": "ab" * 32,
    "eos_id": 50256,
    "pad_id": 50256,
    "notes": ["the file's padding is switched off"],
}


def split_info(name: str, lengths: list[int], shards: int) -> SplitInfo:
    histogram = histogram_of(np.array(lengths, dtype=np.int64))
    infos = []
    for index in range(min(shards, len(lengths))):
        part = shard_histogram(histogram, shards, index)
        key = f"3f2a91c0/{name}/{index:05d}-of-{shards:05d}.parquet"
        infos.append(ShardInfo(key, name, part.rows, part.tokens, part.tokens * 2, "cd" * 32, 500, "ef" * 32, 1))
    return SplitInfo(name, histogram, histogram.rows, histogram.tokens, tuple(infos))


def manifest_of(*splits: SplitInfo, set_aside: dict[str, int] | None = None, buckets: int = 4) -> Manifest:
    whole: LengthHistogram = merged([split.histogram for split in splits])
    edges = fit_edges(whole, buckets, 8) if whole.rows else LengthBuckets((), 8)
    aside = set_aside or {}
    generations = (Generation(splits),)
    manifest = Manifest(
        plan="3f2a91c0",
        fingerprint="",
        settings={"buckets": buckets, "id_field": "id", "columns": ["label:int64"], "max_length": None},
        tokenizer=TOKENIZER,
        schema=SCHEMA,
        buckets=edges,
        generations=generations,
        ledger=Ledger(
            whole.rows + sum(aside.values()), whole.rows, aside, whole.rows, whole.tokens, objects={"read": 9}
        ),
        created_by={"shardprep": "0.1.0"},
    )
    content = fingerprint_of(generations=generations, schema=SCHEMA, tokenizer=TOKENIZER, buckets=edges)
    manifest = replace(manifest, fingerprint=content)
    manifest.check()
    return manifest


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return manifest_of


@pytest.fixture
def make_split() -> Callable[[str, list[int], int], SplitInfo]:
    return split_info


@pytest.fixture
def natural() -> Manifest:
    """Return 3,000 rows of log-normal lengths in two splits, with three documents set aside."""
    draw = np.random.default_rng(7)
    lengths = np.clip(draw.lognormal(6.5, 0.8, 3000), 1, 8192).astype(int).tolist()
    return manifest_of(
        split_info("train", lengths[:2700], 12),
        split_info("validation", lengths[2700:], 2),
        set_aside={"invalid_json": 2, "lone_surrogate": 1},
        buckets=32,
    )


@pytest.fixture
def run_compare(capsys):
    """Run `shardprep compare` with these arguments; return its exit code, output and messages."""

    def call(*arguments):
        try:
            code = main(["compare", *map(str, arguments)])
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return call
