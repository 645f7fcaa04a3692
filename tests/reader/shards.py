"""Shards for the tests of the cache: real Parquet files, rows that tell their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.content import ShardInfo
from shardprep.formats.parquet import encode_shard, shard_schema
from shardprep.reader.ref import ShardRef
from shardprep.storage.store import open_store


def rows_of(seed: int, rows: int, mean: int = 60) -> TokenBlock:
    """Return rows sorted by length, some of them empty, with an id, a label and a nullable list."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(0, 2 * mean, rows))
    ids = rng.integers(0, 100_000, int(lengths.sum()), dtype=np.int32)
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([f"{seed}/{row}" for row in range(rows)]),
            pa.array(rng.integers(0, 9, rows)),
            pa.array([None if row % 7 == 0 else ["x" * (row % 5)] * (row % 3) for row in range(rows)]),
        ],
        schema=pa.schema(
            [
                pa.field("id", pa.string(), nullable=False),
                pa.field("label", pa.int64()),
                pa.field("tags", pa.list_(pa.string())),
            ]
        ),
    )
    return TokenBlock(ids, offsets_of(lengths), columns)


def encoded(block: TokenBlock, groups: int, name: str) -> tuple[bytes, ShardInfo]:
    """Return the bytes of a shard of so many row groups, and what a manifest says of it."""
    cuts = np.linspace(0, block.rows, groups + 1).astype(int)
    pieces = [block.slice(int(a), int(b)) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    data, digest = encode_shard(pieces, shard_schema(block.columns.schema, pieces=False, metadata={}))
    return data.to_pybytes(), digest.info(name, "train")


def local_shard(folder: Path, seed: int = 0, rows: int = 400, groups: int = 4, mean: int = 60) -> ShardRef:
    """Write one shard of a data set in a folder, and return what it takes to read it."""
    data, info = encoded(rows_of(seed, rows, mean), groups, f"0a1b2c3d/train/{seed:05d}.parquet")
    path = folder / info.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return ShardRef(str(folder), {}, "auto", info)


def assert_same_rows(found: TokenBlock, wanted: TokenBlock) -> None:
    assert np.array_equal(found.lengths, wanted.lengths)
    assert np.array_equal(found.ids[found.offsets[0] : found.offsets[-1]], wanted.ids)
    assert found.columns.equals(wanted.columns)


def refs_in(folder: Path) -> list[ShardRef]:
    """Return the shards that `local_shard` wrote into a folder, for a process that did not write them."""
    refs = []
    for path in sorted(folder.rglob("*.parquet")):
        seed = int(path.stem)
        _, info = encoded(rows_of(seed, 400), 4, str(path.relative_to(folder)))
        refs.append(ShardRef(str(folder), {}, "auto", info))
    return refs


def s3_shard(root: str, seed: int = 0, rows: int = 400, groups: int = 4, mean: int = 60) -> ShardRef:
    """Put one shard of a data set into a bucket, and return what it takes to read it."""
    data, info = encoded(rows_of(seed, rows, mean), groups, f"0a1b2c3d/train/{seed:05d}.parquet")
    store = open_store(root)
    store.put(info.name, data)
    store.close()
    return ShardRef(root, {}, "auto", info)
