"""Between measuring and diagnosis: the numbers that decisions are made from, and the findings that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What the decisions are made from: means over the measured steps. Lists are by rank, in the order of `ranks`.

    seconds                one step
    waits                  share of time that each rank waited for data
    wait_slowest           share of time that the rank that waited longest in each step waited
    wait_by_cause          seconds of all steps, fetch, decode, collate, copy, other
    padding                share of the tokens through the model that are padding or filler
    micro_batches          of a rank, in a step
    between                seconds from the hand-over of a micro-batch to asking for the next, of those that do not
                           end a step: computing alone. None for steps of one micro-batch
    step_end               seconds that the last micro-batch of a step takes above that: optimizer, all-reduce; of the rank
                           that spends least on it, since the others wait for the slowest there
    rank_seconds           one step, of each rank
    fixed_share            share of a step's working time that does not grow with its tokens; fixed_low: low end of its
                           interval. None where steps are too alike to tell
    one_rank_slot_seconds  working seconds for each token through the model in a pilot with one rank; slot_seconds: here
    pause_share            share of time in steps that worked over 5 medians, beyond the median; pauses: how many
    model_bytes            memory of weights, gradients and moments; device_bytes: of one GPU
    """

    world_size: int
    seconds: float
    waits: Sequence[float]
    wait_slowest: float
    padding: float
    micro_batches: float
    tokens_per_micro_batch: float
    rank_seconds: Sequence[float]
    ranks: Sequence[int]
    wait_by_cause: Mapping[str, float] = field(default_factory=dict)
    between: Sequence[float] | None = None
    step_end: float | None = None
    fixed_share: float | None = None
    fixed_low: float = 0.0
    slot_seconds: float = 0.0
    one_rank_slot_seconds: float | None = None
    pause_share: float = 0.0
    pauses: int = 0
    utilization: float | None = None
    memory_share: float | None = None
    memory_bytes: int | None = None
    device_bytes: int | None = None
    model_bytes: float | None = None
    mfu: float | None = None
    hfu: float | None = None


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    gain_share  about what share of the time would be saved if this were gone, at most
    evidence    the numbers that it was decided from
    """

    kind: str
    gain_share: float
    says: str
    evidence: Mapping[str, Any]
    advice: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "kind": self.kind,
            "gain_share": self.gain_share,
            "says": self.says,
            "evidence": dict(self.evidence),
            "advice": self.advice,
        }
