"""What a pilot is asked beside what it measures: the model, the whole run, its price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardprep.errors import ConfigError
from shardprep.report.pilot_flops import Model, gpu_named


@dataclass(frozen=True)
class Question:
    """What the pilot is asked beside what it measures.

    steps, tokens  of the whole run, one pass; None: an epoch of the loader
    passes         over the data
    usd_per_hour   of all machines together
    peak_flops     of one GPU; None: by the name of the GPU, if it is known
    one_rank       pilot.json of the same run with one rank
    """

    confidence: float = 0.95
    model: Model | None = None
    gpu: str | None = None
    peak_flops: float | None = None
    usd_per_hour: float | None = None
    steps: int | None = None
    tokens: int | None = None
    passes: float = 1
    one_rank: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence <= 0.999:
            raise ConfigError(f"--confidence must be in [0.5, 0.999], got {self.confidence:g}")
        for name in ("peak_flops", "usd_per_hour", "steps", "passes"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{_FLAGS[name]} must be above 0, got {value:g}")
        if self.gpu is not None and gpu_named(self.gpu) is None:
            raise ConfigError(f'no peak is known for the GPU "{self.gpu}": give --peak-flops')
        if self.steps is not None and self.tokens is not None:
            raise ConfigError("--total-steps and --data both say how long the run is: give one of them")


_FLAGS = {
    "peak_flops": "--peak-flops",
    "usd_per_hour": "--price-per-hour",
    "steps": "--total-steps",
    "passes": "--passes",
}
