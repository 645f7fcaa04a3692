"""A data set, opened for reading: its manifest, and nothing more until rows are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardprep.core.content import SplitInfo
from shardprep.core.manifest import Manifest
from shardprep.core.schedule import Policy, RowSet, World
from shardprep.errors import ConfigError
from shardprep.reader.cache import ShardCache, ShardRef, default_folder
from shardprep.reader.fetcher import adopt
from shardprep.reader.loader import Loader
from shardprep.reader.metric_files import metrics_of
from shardprep.reader.plan import ReadPlan
from shardprep.storage.dataset import open_dataset
from shardprep.storage.store import NO_OPTIONS


@dataclass(frozen=True)
class CacheSettings:
    """Where shards are kept on this node: a folder on disk, and at most so many bytes (None: no limit)."""

    folder: str
    limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit_bytes < 1:
            raise ConfigError(f"cache_limit_bytes must be at least 1, or left out for no limit; got {self.limit_bytes}")

    def open(self) -> ShardCache:
        """Return the cache, for this process."""
        return ShardCache(self.folder, self.limit_bytes)


class Dataset:
    """A published data set. Holds the manifest; opens no shard."""

    def __init__(
        self,
        uri: str,
        manifest: Manifest,
        *,
        options: Mapping[str, str],
        kind: str,
        cache: CacheSettings,
        metrics_dir: str | None = None,
        launched: int = 1,
    ) -> None:
        self.uri = uri
        self.manifest = manifest
        self._options, self._kind, self._cache, self._metrics_dir = dict(options), kind, cache, metrics_dir
        self._launched = launched

    @property
    def splits(self) -> dict[str, int]:
        """Return the rows of each split, over all generations."""
        rows: dict[str, int] = {}
        for generation in self.manifest.generations:
            for split in generation.splits:
                rows[split.name] = rows.get(split.name, 0) + split.rows
        return rows

    def loader(
        self,
        split: str = "train",
        *,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        accumulate: int = 1,
        slots: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        tail: Literal["pad", "drop"] = "pad",
        pad_to: Literal["round", "edge"] = "round",
        variety: int = 0,
        window_rows: int = 5_000,
        cache_dir: str | None = None,
        cache_limit_bytes: int | None = None,
        num_threads: int = 2,
        on_metrics: Callable[[dict[str, Any]], None] | None = None,
        prometheus: str | None = None,
    ) -> Loader:
        """Return the batches of one rank.

        batch_tokens  largest padded area of a micro-batch, in tokens; a longer row makes a micro-batch of its own
        batch_size    most rows of a micro-batch; with batch_tokens both are upper limits
        rank          of world_size processes that read together, 0 and 1 unless given; TorchLoader finds them itself
        accumulate    rounds between two optimizer steps
        slots         micro-batches of a round, world_size unless given; give the largest world you plan to resume on
        shuffle       False: shards in order, rows by length, the same in every epoch (evaluation)
        tail          "pad": unfinished rounds get filler rows of weight 0; "drop": they are left out
        pad_to        "round": all of a round to its longest row; "edge": to the edge of its length bucket
        variety       how freely rows of like length are mixed between epochs, 0, 1, 2 ...: each costs padding
        window_rows   rows a slot, at least, that are shuffled together
        cache_dir     folder of this node's cache, on disk; shared by processes and jobs
        num_threads   threads that make batches ahead
        on_metrics    called with `Loader.metrics()` every 10 s and at the end of an epoch
        prometheus    text file for Prometheus, replaced every 2 s; may contain {rank} and {split}

        Raises ConfigError if the split is not there or a value is out of range.
        """
        sets, refs = self.part(split)
        world = World(0 if rank is None else rank, 1 if world_size is None else world_size)
        policy = Policy(
            slots=world.world_size if slots is None else slots,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            accumulate=accumulate,
            variety=variety,
            window_rows=window_rows,
            tail=tail,
            shuffle=shuffle,
            seed=seed,
            pad_to=pad_to,
        )
        if num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, got {num_threads}")
        plan = ReadPlan(
            split=split,
            fingerprint=self.manifest.fingerprint,
            refs=refs,
            sets=sets,
            buckets=self.manifest.buckets,
            policy=policy,
            world=world,
            pad_id=int(self.manifest.tokenizer["pad_id"]),
        )
        cache = CacheSettings(
            cache_dir or self._cache.folder,
            self._cache.limit_bytes if cache_limit_bytes is None else cache_limit_bytes,
        )
        return Loader(
            plan,
            cache.open,
            num_threads=num_threads,
            slots_given=slots is not None,
            world_given=rank is not None or world_size is not None,
            launched=self._launched,
            metrics=lambda world: metrics_of(
                rank=world.rank,
                world_size=world.world_size,
                split=split,
                folder=self._metrics_dir,
                prometheus=prometheus,
                callback=on_metrics,
            ),
        )

    def part(self, split: str, first_shard: int = 0) -> tuple[tuple[RowSet, ...], tuple[ShardRef, ...]]:
        """Return the rows of a split, generation by generation, and its shards, counted from first_shard on."""
        sets: list[RowSet] = []
        refs: list[ShardRef] = []
        for info in self._infos(split):
            sets.append(RowSet(info.histogram, len(info.shards), first_shard + len(refs)))
            refs += [ShardRef(self.uri, self._options, self._kind, shard) for shard in info.shards]
        return tuple(sets), tuple(refs)

    def _infos(self, split: str) -> list[SplitInfo]:
        found = [s for g in self.manifest.generations for s in g.splits if s.name == split and s.rows]
        if not found:
            has = ", ".join(f"{name} ({rows} rows)" for name, rows in self.splits.items())
            raise ConfigError(f'{self.uri} has no rows in split "{split}"; it has {has}')
        return found


def open_for_reading(
    uri: str,
    *,
    options: Mapping[str, str] = NO_OPTIONS,
    kind: str = "auto",
    cache_dir: str | None = None,
    cache_limit_bytes: int | None = None,
    metrics_dir: str | None = None,
    launched: int = 1,
) -> Dataset:
    """Read the manifest of a data set. Raises ManifestError if it is unfinished or broken.

    launched  processes that were started together, of which this is one
    """
    store, manifest = open_dataset(uri, options=options, kind=kind)
    adopt(store, uri, options, kind)
    cache = CacheSettings(cache_dir or default_folder(), cache_limit_bytes)
    return Dataset(uri, manifest, options=options, kind=kind, cache=cache, metrics_dir=metrics_dir, launched=launched)
