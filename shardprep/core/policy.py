"""What a reader is asked for: the world it plays in, and the policy that decides the rounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import ConfigError

Tail = Literal["pad", "drop"]
PadTo = Literal["round", "edge"]
Word = TypeVar("Word", bound=str)

NO_LIMIT = 2**31  # rows of a micro-batch that only its tokens limit
MOST_SLOTS = 2**20
MOST_VARIETY = 20  # a pool of a million rounds: more than any window has


@dataclass(frozen=True)
class World:
    """Who reads: rank of world_size, 0 <= rank < world_size."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        _whole("world_size", self.world_size, 1)
        _whole("rank", self.rank, 0)
        if self.rank >= self.world_size:
            raise ConfigError(f"rank must be in [0, {self.world_size}), got {self.rank}")


@dataclass(frozen=True)
class Policy:
    """What decides the rounds of every epoch, together with the length histograms; the same on all ranks.

    slots         micro-batches of a round (G): the world size at the start, or the largest planned
    batch_tokens  bound on rows x padded length of a micro-batch; a row longer than that comes alone
    batch_size    bound on the rows of a micro-batch; at least one of the two bounds is given
    accumulate    rounds of a step
    variety       rows of neighbouring lengths are dealt at random among 2**variety rounds; costs padding
    window_rows   rows a slot, at least, that are open at once
    tail          "pad": unfinished rounds are filled with repeated rows of weight 0; "drop": they are left out
    shuffle       False: shards in order, rows by length, the same in every epoch
    seed          of all that is random
    pad_to        "round": to the longest row of the round; "edge": to the bucket edge, a round then has one bucket only
    """

    slots: int
    batch_tokens: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    variety: int = 0
    window_rows: int = 5_000
    tail: Tail = "pad"
    shuffle: bool = True
    seed: int = 0
    pad_to: PadTo = "round"

    def __post_init__(self) -> None:
        _whole("slots", self.slots, 1, MOST_SLOTS)
        if self.batch_tokens is None and self.batch_size is None:
            raise ConfigError("give batch_tokens (padded tokens of a micro-batch), batch_size (its rows), or both")
        if self.batch_tokens is not None:
            _whole("batch_tokens", self.batch_tokens, 1)
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1)
        _whole("accumulate", self.accumulate, 1)
        _whole("variety", self.variety, 0, MOST_VARIETY)
        _whole("window_rows", self.window_rows, 1)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ConfigError(f"seed must be a whole number, got {self.seed!r}")
        if not isinstance(self.shuffle, bool):
            raise ConfigError(f"shuffle must be True or False, got {self.shuffle!r}")
        _one_of("tail", self.tail, get_args(Tail))
        _one_of("pad_to", self.pad_to, get_args(PadTo))

    def rows_of(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows of each padded length (n,) a micro-batch may hold, int64 (n,), at least 1."""
        rows = np.full(len(lengths), NO_LIMIT if self.batch_size is None else self.batch_size, dtype=np.int64)
        if self.batch_tokens is not None:
            np.minimum(rows, np.maximum(1, self.batch_tokens // lengths), out=rows)
        return rows

    @property
    def pool_rounds(self) -> int:
        """Return the rounds of a pool."""
        return 1 << self.variety

    @property
    def full_rounds_only(self) -> bool:
        """Tell whether a round with fewer than batch_size rows a slot is dropped rather than made smaller."""
        return self.tail == "drop" and self.batch_tokens is None

    def document(self) -> dict[str, Any]:
        """Return all but the seed as JSON values, by name: what the state of a reader holds."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "seed"}


def slots_of(world: World, slots: int) -> range:
    """Return the slots that a rank plays of each round: consecutive, so that a node's lanes stay on it in every world."""
    return range(world.rank * slots // world.world_size, (world.rank + 1) * slots // world.world_size)


def micro_batches_per_round(world: World, slots: int) -> int:
    """Return how many micro-batches every rank plays of each round; a rank with fewer slots plays filler for the rest."""
    return -(-slots // world.world_size)


def played_slots(world: World, slots: int) -> tuple[int, ...]:
    """Return the slot of each micro-batch that a rank plays of a round, for `Epoch.micro_batch`.

    -1 - s is filler made of slot s: the rank's own first slot, or where it has none the one that another rank plays.
    """
    mine = slots_of(world, slots)
    return (*mine, *(-1 - mine.start,) * (micro_batches_per_round(world, slots) - len(mine)))


def _whole(name: str, value: object, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")


def _one_of(name: str, value: Word, allowed: tuple[Word, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
