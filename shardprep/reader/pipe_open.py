"""What it takes to read a channel in Pipe mode: the manifest of its data set, which comes another way, and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardprep.core.buckets import LengthBuckets
from shardprep.core.content import SplitInfo
from shardprep.core.manifest import Manifest
from shardprep.core.schedule import Policy, World
from shardprep.errors import ConfigError
from shardprep.reader.metric_files import metrics_of
from shardprep.reader.pipe import PipeLoader
from shardprep.reader.pipe_channel import PipeChannel
from shardprep.reader.pipe_stream import PipeStream
from shardprep.reader.pipe_windows import default_buffer_bytes
from shardprep.reader.plan import ReadPlan

LEAST_BUFFER_BYTES = 1 << 16  # a window of a few rows is no window


@dataclass(frozen=True, kw_only=True)
class PipeSettings:
    """What `shardprep.pipe` was asked for, beside the policy."""

    split: str
    rank: int | None
    world_size: int | None
    slots_given: bool
    buffer_bytes: int | None
    pad_multiple: int | None
    first_fifo: int
    timeout_s: float
    metrics_dir: str | None
    launched: int
    on_metrics: Callable[[dict[str, Any]], None] | None
    prometheus: str | None

    def __post_init__(self) -> None:
        if self.buffer_bytes is not None and self.buffer_bytes < LEAST_BUFFER_BYTES:
            raise ConfigError(f"buffer_bytes must be at least {LEAST_BUFFER_BYTES:,}, got {self.buffer_bytes}")
        if self.first_fifo < 0:
            raise ConfigError(f"first_fifo must be at least 0, got {self.first_fifo}")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be above 0 seconds, got {self.timeout_s}")

    @property
    def world(self) -> World:
        """Return rank and world size, 0 of 1 unless given."""
        return World(self.rank or 0, 1 if self.world_size is None else self.world_size)


def open_pipe(channel: PipeChannel, manifest: Manifest, policy: Policy, settings: PipeSettings, uri: str) -> PipeLoader:
    """Return the loader of a channel, and begin to read. uri: of the manifest, for messages."""
    splits = _splits(manifest, settings.split, uri)
    channel.check_world(settings.world)
    buffer_bytes = settings.buffer_bytes or default_buffer_bytes(splits)
    plan = ReadPlan(
        split=settings.split,
        fingerprint=manifest.fingerprint,
        refs=(),
        sets=(),
        buckets=_buckets(manifest, policy, settings),
        policy=policy,
        world=settings.world,
        pad_id=int(manifest.tokenizer["pad_id"]),
    )
    metrics = partial(
        metrics_of,
        split=settings.split,
        folder=settings.metrics_dir,
        prometheus=settings.prometheus,
        callback=settings.on_metrics,
    )
    return PipeLoader(
        plan,
        _stream(channel, manifest, buffer_bytes, settings),
        splits,
        buffer_bytes=buffer_bytes,
        first_fifo=settings.first_fifo,
        slots_given=settings.slots_given,
        metrics=lambda world: metrics(rank=world.rank, world_size=world.world_size),
        world_given=settings.rank is not None or settings.world_size is not None,
        launched=settings.launched,
    )


def _stream(channel: PipeChannel, manifest: Manifest, buffer_bytes: int, settings: PipeSettings) -> PipeStream:
    from shardprep.formats.recordio import decode_prefix, schema_of

    schema = schema_of(manifest)
    return PipeStream(
        channel,
        lambda data, base: decode_prefix(data, schema, base),
        buffer_bytes,
        first=settings.first_fifo,
        timeout_s=settings.timeout_s,
    )


def _splits(manifest: Manifest, name: str, uri: str) -> tuple[SplitInfo, ...]:
    """Return the split in all generations. Raises ConfigError if it has no rows, or its shards cannot be piped."""
    found = tuple(s for g in manifest.generations for s in g.splits if s.name == name and s.rows)
    if not found:
        has = ", ".join(sorted({split.name for g in manifest.generations for split in g.splits if split.rows}))
        raise ConfigError(f'{uri} has no rows in split "{name}"; it has {has}')
    other = next((shard.name for split in found for shard in split.shards if not shard.name.endswith(".rec")), None)
    if other is not None:
        raise ConfigError(
            f"{uri}: shard {other} cannot be read from a pipe, only RecordIO can: build with --format recordio, or read the "
            "channel in FastFile mode, by shardprep.open"
        )
    return found


def _buckets(manifest: Manifest, policy: Policy, settings: PipeSettings) -> LengthBuckets:
    multiple = settings.pad_multiple
    if multiple is None or multiple == manifest.buckets.pad_multiple:
        return manifest.buckets
    if policy.pad_to == "edge":
        raise ConfigError(
            'pad_multiple is for pad_to="round"; the edges of the data set are multiples of '
            f"{manifest.buckets.pad_multiple}"
        )
    return LengthBuckets((), multiple)
