"""What a schedule is asked with and answers: values, in the field's words."""

from __future__ import annotations

from dataclasses import dataclass

from shardprep.core.histogram import LengthHistogram
from shardprep.core.lanes import Array


@dataclass(frozen=True, eq=False)
class RowSet:
    """One generation of a split: its length histogram, and its shards as a range of the reader's flat list."""

    histogram: LengthHistogram
    shards: int
    first_shard: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Rounds start to stop - 1."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What all micro-batches of a round have in common: rows, padded length, and the step it belongs to."""

    rows: int
    length: int
    step: int
    last_in_step: bool

    @property
    def area(self) -> int:
        """Return the padded tokens of a micro-batch."""
        return self.rows * self.length


@dataclass(frozen=True, eq=False, slots=True)
class MicroBatch:
    """The rows of one micro-batch: shard, an index of the flat list, and place in it, both int64 (rows,), read-only.

    All entries are rows to read, none longer than `length`; those from `real` on are filler that repeats rows.

    slot         -1: filler as a whole (real is 0)
    length       padded, in tokens
    step_rows    real rows of the whole step, over all its rounds and slots
    step_tokens  real tokens of the same
    epoch, name  of the set of rows: in a mix each set has epochs of its own
    """

    round: int
    slot: int
    shard: Array
    row: Array
    real: int
    length: int
    step: int
    step_rows: int
    step_tokens: int
    last_in_step: bool
    epoch: int
    name: str = ""
