"""A channel of a SageMaker training job in Pipe mode: where its FIFOs are, and what the job said about it.

Epoch n of channel c is the FIFO /opt/ml/input/data/c_n, counted from 0; the next one may not exist yet (SageMaker
developer guide, "How Amazon SageMaker Provides Training Information").
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any, Self

from shardprep.core.policy import World
from shardprep.errors import ConfigError, ManifestError

ROOT = "/opt/ml"
PIPE = "Pipe"
MAGIC = 0xCED7230A  # begins every record (formats/recordio_frames.py)
FULLY_REPLICATED, SHARDED = "FullyReplicated", "ShardedByS3Key"


def fifo_path(data_folder: str, channel: str, number: int) -> str:
    """Return the path of the FIFO with this number."""
    return os.path.join(data_folder, f"{channel}_{number}")


def input_data_config(path: str) -> dict[str, Any]:
    """Return inputdataconfig.json, by channel; {} where there is no such file. Raises ConfigError that names it."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: it cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is expected, got {type(value).__name__}")
    return value


@dataclass(frozen=True)
class PipeChannel:
    """A channel, and the folder that its FIFOs are in.

    is_sharded   each host gets other objects (S3DataDistributionType ShardedByS3Key)
    is_shuffled  the objects come in another order every epoch (ShuffleConfig)
    """

    name: str
    data_folder: str
    is_sharded: bool = False
    is_shuffled: bool = False

    @classmethod
    def of(cls, name: str, root: str, *, distribution: str | None = None, shuffled: bool | None = None) -> Self:
        """Return the channel as the arguments say, else as inputdataconfig.json of the job does.

        Raises ConfigError if the job brings it in another way, or wraps its objects into records.
        """
        if not name or "/" in name:
            raise ConfigError(f'a channel is named as in InputDataConfig, such as "train"; got {name!r}')
        if distribution not in (None, FULLY_REPLICATED, SHARDED):
            raise ConfigError(f'distribution must be "{FULLY_REPLICATED}" or "{SHARDED}", got {distribution!r}')
        config = input_data_config(os.path.join(root, "input", "config", "inputdataconfig.json"))
        folder = os.path.join(root, "input", "data")
        told = config.get(name) if isinstance(config.get(name), dict) else None
        if config and told is None:
            raise ConfigError(f'this job has no channel "{name}"; it has {", ".join(sorted(config))}', channel=name)
        told = told or {}
        mode = told.get("TrainingInputMode")
        if mode not in (None, "", PIPE):
            raise ConfigError(
                f'channel "{name}" comes in {mode} mode, not in Pipe mode: read its folder instead, '
                f'shardprep.open("{os.path.join(folder, name)}"), or set its InputMode to Pipe',
                channel=name,
            )
        if told.get("RecordWrapperType") == "RecordIO":
            raise ConfigError(wrapped(name), channel=name)
        return cls(
            name,
            folder,
            (distribution or told.get("S3DistributionType")) == SHARDED,
            bool(told.get("ShuffleConfig")) if shuffled is None else shuffled,
        )

    def path(self, number: int) -> str:
        """Return the path of the FIFO with this number."""
        return fifo_path(self.data_folder, self.name, number)

    def check_world(self, world: World) -> None:
        """Raise ConfigError where ranks would read different streams, and so play different rounds."""
        if self.is_sharded and world.world_size > 1:
            raise ConfigError(
                f'channel "{self.name}" is ShardedByS3Key, so every host gets other rows, and nobody knows how many: '
                f"{world.world_size} ranks would play different numbers of rounds and wait for each other for ever. Set "
                "S3DataDistributionType to FullyReplicated: every rank reads all and plays its own share"
            )


def wrapped(channel: str) -> str:
    """Return what to say of a channel whose objects are each wrapped into one record."""
    return (
        f'channel "{channel}" has RecordWrapperType RecordIO, which makes one record of each whole object; these shards '
        "are RecordIO already. Set RecordWrapperType to None for it, or leave it out"
    )


def check_beginning(channel: str, path: str, data: memoryview, *, is_last: bool) -> None:
    """Raise ManifestError that says what to do if a stream does not begin with a record of a shard.

    data: its first bytes, all of them if is_last.
    """
    head = bytes(data[:16])
    words = struct.unpack("<4I", head.ljust(16, b"\0"))
    if not head or words[0] == MAGIC:
        # Wrapped: the payload begins with a record's head. A writer that escapes cuts it there, into an empty first part.
        is_wrapped = words[2] == MAGIC and words[1] >> 29 in (0, 1)
        if head and is_wrapped:
            raise ManifestError(f"{path}: {wrapped(channel)}", channel=channel, byte=0)
        return
    if is_last and len(head) < 4:
        return  # cut in its first word: said as such
    what = "no RecordIO"
    if head[:2] == b"\x1f\x8b":
        what = "gzip: set CompressionType Gzip for the channel, or None if shards were not compressed"
    elif head[:4] == b"PAR1":
        what = "Parquet, which cannot be read from a pipe: build with --format recordio, or use FastFile mode"
    elif head[:1] in (b"{", b"["):
        what = "JSON: the channel's S3Uri must be the folder of one split, such as s3://bucket/shards/3f2a91c0/train/"
    raise ManifestError(
        f'{path}: the stream of channel "{channel}" begins with {head!r}, which is {what}', channel=channel, byte=0
    )
