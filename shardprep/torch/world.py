"""Which rank this process is."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed

from shardprep.core.schedule import World
from shardprep.errors import ConfigError


def resolve_world(
    rank: int | None = None, world_size: int | None = None, *, environment: Mapping[str, str] = os.environ
) -> World:
    """Return rank and world size: as given, else of torch.distributed if a process group is there, else RANK and WORLD_SIZE.

    Where none of them says anything it is rank 0 of 1. No process group is made. Raises ConfigError if one of the two is
    given without the other, or the values do not fit.
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise ConfigError(f"give both rank and world_size, or neither; got rank={rank}, world_size={world_size}")
        return World(rank, world_size)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    found = {name: environment.get(name) or None for name in ("RANK", "WORLD_SIZE")}
    if None in found.values():
        if set(found.values()) != {None}:
            raise ConfigError(
                f"RANK={found['RANK']} and WORLD_SIZE={found['WORLD_SIZE']} in the environment: set both, as torchrun does, "
                "or give rank= and world_size="
            )
        return World(0, 1)
    try:
        return World(int(found["RANK"] or 0), int(found["WORLD_SIZE"] or 1))
    except ValueError as error:
        raise ConfigError(f"RANK and WORLD_SIZE in the environment must be whole numbers, got {found}") from error
