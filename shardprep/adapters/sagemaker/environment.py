"""What a training job is told by SageMaker: hosts, rank, channels, hyperparameters and folders.

Four places say it, asked in this order: the launcher (torchrun's RANK, WORLD_SIZE ..., then those of Open MPI) for ranks;
the SM_* variables of the training toolkit and of the drivers of SDK v3 for the rest; then the files that the platform
puts below /opt/ml/input/config, which every training container has. Formats: SageMaker developer guide, "How Amazon
SageMaker Provides Training Information", and ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

from shardprep.adapters.sagemaker.told import Told, typed
from shardprep.errors import ConfigError
from shardprep.reader.pipe_channel import ROOT

__all__ = ["TrainingEnvironment", "training_environment", "typed"]

_LAUNCHERS = (  # what tells rank, world size, local rank and local world size
    ("torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    (
        "Open MPI",
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class TrainingEnvironment:
    """One process of a training job.

    hosts, current_host, host_rank   names like "algo-1", sorted; the rank is the place of this host among them
    rank, world_size                 of the launcher; where there is none one process a host: host_rank of len(hosts)
    local_rank, local_world_size     the same on this host; 0 of 1 without a launcher
    launcher          "torchrun", "Open MPI", or "" where ranks come from the list of hosts
    channels          folder of each channel of data; in Pipe mode its FIFOs are that path with _0, _1 ... added
    channel_modes     "File", "FastFile" or "Pipe"
    hyperparameters   each with its type: `typed` says how it is found
    checkpoint_folder what is saved here goes to S3 while the job runs, if the job has a CheckpointConfig, and is here
                      again after an interruption
    model_folder, output_folder   packed and uploaded when the job ends
    failure_file      its first 1,024 characters become the FailureReason of a job that fails
    scratch_folder    not kept: a good place for `cache_dir`
    job_name          "" where nothing tells it
    """

    hosts: tuple[str, ...]
    current_host: str
    host_rank: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str
    channels: Mapping[str, str]
    channel_modes: Mapping[str, str]
    hyperparameters: Mapping[str, Any]
    checkpoint_folder: str
    model_folder: str
    output_folder: str
    failure_file: str
    scratch_folder: str
    job_name: str

    def channel(self, name: str) -> str:
        """Return the folder of a channel. Raises ConfigError that names those that are there."""
        if name not in self.channels:
            has = ", ".join(self.channels) or "none"
            raise ConfigError(f'this job has no channel "{name}"; it has {has}. Add it to InputDataConfig of the job')
        return self.channels[name]


@overload
def training_environment(
    root: str = ROOT, environ: Mapping[str, str] = os.environ, *, required: Literal[True]
) -> TrainingEnvironment: ...
@overload
def training_environment(
    root: str = ROOT, environ: Mapping[str, str] = os.environ, *, required: bool = False
) -> TrainingEnvironment | None: ...
def training_environment(
    root: str = ROOT, environ: Mapping[str, str] = os.environ, *, required: bool = False
) -> TrainingEnvironment | None:
    """Return what this process of a training job is told, or None outside SageMaker; required: an error instead of None.

    root     in place of /opt/ml: what the SM_* variables do not say is looked up below it
    environ  environment variables

    Raises ConfigError that names the file or variable where one is broken, or only one of rank and world size is set.
    """
    told = Told(root, environ)
    found = told.hosts()
    if found is None:
        if required:
            raise ConfigError(
                f"this is no SageMaker training job: neither SM_HOSTS and SM_CURRENT_HOST are set, nor is there "
                f"{told.path('resourceconfig.json')}. Leave out required=True to get None outside SageMaker"
            )
        return None
    hosts, current = found
    ranks = _launched(environ)
    host_rank = hosts.index(current)
    if ranks is None:
        ranks = _Ranks(host_rank, len(hosts), 0, 1, "")
    channels = dict(told.channels())
    return TrainingEnvironment(
        hosts=hosts,
        current_host=current,
        host_rank=host_rank,
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        launcher=ranks.launcher,
        channels=channels,
        channel_modes={name: told.mode(name) for name in channels},
        hyperparameters=told.hyperparameters(),
        checkpoint_folder=os.path.join(root, "checkpoints"),
        model_folder=environ.get("SM_MODEL_DIR") or os.path.join(root, "model"),
        output_folder=environ.get("SM_OUTPUT_DATA_DIR") or os.path.join(root, "output", "data"),
        failure_file=environ.get("SM_OUTPUT_FAILURE") or os.path.join(root, "output", "failure"),
        scratch_folder=environ.get("TMPDIR") or "/tmp",  # noqa: S108  the platform's own name for it
        job_name=told.job_name(),
    )


class _Ranks(NamedTuple):
    """Who this process is among all."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str


def _launched(environ: Mapping[str, str]) -> _Ranks | None:
    """Return the ranks of the first launcher that says some. Raises ConfigError where they do not fit together."""
    for launcher, names in _LAUNCHERS:
        found = {name: environ[name] for name in names if environ.get(name)}
        if not any(name in found for name in names[:2]):
            continue
        missing = [name for name in names[:2] if name not in found]
        if missing:
            has = ", ".join(f"{name}={value}" for name, value in found.items())
            raise ConfigError(f"{has} is set, but not {missing[0]}: set both, as {launcher} does, or neither")
        try:
            rank, world, local, local_world = (
                int(found.get(name, default)) for name, default in zip(names, ("", "", "0", "1"), strict=True)
            )
        except ValueError as error:
            raise ConfigError(f"{', '.join(names)} must be whole numbers, got {found}") from error
        if not (0 <= rank < world and 0 <= local < local_world):
            raise ConfigError(f"a rank must be at least 0 and below its world size, got {found}")
        return _Ranks(rank, world, local, local_world, launcher)
    return None
