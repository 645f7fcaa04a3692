"""Rereads every shard of a data set and holds it against the manifest; names all that is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardprep.core.manifest import Manifest, ShardInfo, SplitInfo
from shardprep.core.plan import shard_lengths
from shardprep.errors import ManifestError, StoreError
from shardprep.formats.shard import arrow_schema
from shardprep.prep.progress import Bar
from shardprep.prep.reread import blocks_of, damage_in
from shardprep.prep.shard_files import names_beside
from shardprep.storage.dataset import open_dataset
from shardprep.storage.store import NO_OPTIONS, Store


@dataclass(frozen=True)
class Verified:
    """What was reread, and what is wrong: problems make the data set unfit, warnings do not."""

    shards: int
    rows: int
    tokens: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Say whether the data set is what its manifest says."""
        return not self.problems

    def summary(self) -> dict[str, Any]:
        """Return the outcome as --json prints it."""
        return {
            "ok": self.ok,
            "shards": self.shards,
            "rows": self.rows,
            "tokens": self.tokens,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
        }


def verify(
    uri: str, *, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto", progress: bool | None = None
) -> Verified:
    """Return what a reread of every shard found. Raises ManifestError if there is no manifest to hold them against."""
    store, manifest = open_dataset(uri, options=options, kind=kind)
    problems: list[str] = []
    rows = tokens = 0
    with Bar("verifying", sum(s.bytes for s in manifest.shards), "B", shown=progress) as bar:
        for generation in manifest.generations:
            for split in generation.splits:
                for number, shard in enumerate(split.shards):
                    found = list(_faults(store, manifest, split, number, shard))
                    problems += [f"{shard.name}: {fault}" for fault in found]
                    rows += shard.rows if not found else 0
                    tokens += shard.tokens if not found else 0
                    bar.advance(shard.bytes)
    return Verified(len(manifest.shards), rows, tokens, tuple(problems), tuple(_strays(store, manifest)))


def _faults(store: Store, manifest: Manifest, split: SplitInfo, number: int, shard: ShardInfo) -> Iterator[str]:
    """Yield what is wrong with one shard; what is read of it is in memory whole."""
    try:
        data = store.get(shard.name)
    except StoreError as error:
        yield f"cannot be read ({error.message})" if type(error).__name__ != "NotFound" else "is missing"
        return
    if len(data) != shard.bytes:
        where = damage_in(shard, data, arrow_schema(manifest.schema))
        yield f"has {len(data):,} bytes (size), the manifest says {shard.bytes:,}{where}"
        return
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        where = damage_in(shard, data, arrow_schema(manifest.schema))
        yield f"has another sha256 digest than the manifest says: it was replaced or damaged{where}"
        return
    try:
        yield from _content_faults(store, manifest, split, number, shard, data)
    except ManifestError as error:
        yield error.message


def _content_faults(
    store: Store, manifest: Manifest, split: SplitInfo, number: int, shard: ShardInfo, data: bytes
) -> Iterator[str]:
    names, blocks = blocks_of(store, shard, data)
    lengths, largest, smallest = [np.zeros(0, dtype=np.int64)], -1, 0
    for block in blocks:
        lengths.append(block.lengths)
        if len(block.ids):
            largest, smallest = max(largest, int(block.ids.max())), min(smallest, int(block.ids.min()))
    found = np.concatenate(lengths)
    if len(found) != shard.rows or int(found.sum()) != shard.tokens:
        yield f"has {len(found):,} rows and {int(found.sum()):,} tokens, the manifest says {shard.rows:,} and {shard.tokens:,}"
    elif not np.array_equal(found, shard_lengths(split.histogram, len(split.shards), number)):
        yield "its rows do not have the lengths that follow from the histogram"
    vocabulary = manifest.tokenizer.get("vocab_size")
    if vocabulary is not None and largest >= vocabulary:
        yield f"holds token id {largest}, but the vocabulary ends at {vocabulary - 1}"
    if smallest < 0:
        yield f"holds the negative token id {smallest}"
    columns = [field["name"] for field in manifest.schema]
    if names != columns:
        yield f"has the columns {', '.join(names)}, the manifest says {', '.join(columns)}"


def _strays(store: Store, manifest: Manifest) -> Iterator[str]:
    """Yield a warning for each file beside the shards that the manifest does not name."""
    known = {name for shard in manifest.shards for name in (shard.name, *names_beside(shard.name))}
    folders = {name.rpartition("/")[0] + "/" for name in known}
    for folder in sorted(folders):
        for page in store.list(folder):
            for key in page.keys.to_pylist():
                if key not in known:
                    yield f"{key} is not part of the data set: readers ignore it"
