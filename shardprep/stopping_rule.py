"""When to stop, as a value: the numbers of early stopping, checked, and what may be wrong with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardprep.errors import ConfigError
from shardprep.metric_names import MODES, direction_of, is_share

NOT_FINITE_PATIENCE = 2  # one NaN may be one bad batch of the evaluation; a second one is a model that is broken
FEW_ROWS = 30
CHANGED_SHARE = 0.10  # of the answers, from one evaluation to the next: what the warning about small splits supposes
NOISE_EVALUATIONS = 6  # fewer second differences say nothing about noise
ROUNDING = 1e-12  # relative: 0.8 - 0.7 does not exceed 0.1
TRAINING_SPLITS = ("train", "training")


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When to stop: the numbers of EarlyStopping, checked. Raises ConfigError for those out of range.

    metric                what is evaluated, e.g. "loss"
    mode                  "min": lower is better; "max": higher is better
    patience_evaluations  so many evaluations in a row without an improvement, and the run stops
    min_delta             an improvement must exceed it; units of the metric
    min_steps             never stop before this step; evaluations before it set the best, and are not counted as waiting
    patience_not_finite   so many NaN or infinite evaluations in a row, and the run stops
    """

    metric: str
    mode: str
    patience_evaluations: int
    min_delta: float = 0.0
    min_steps: int = 0
    patience_not_finite: int = NOT_FINITE_PATIENCE

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ConfigError(f'the metric needs a name, such as "loss", got {self.metric!r}')
        if self.mode not in MODES:
            raise ConfigError(
                f'mode must be given: "min" if a lower {self.metric} is better (losses), "max" if a higher one is '
                f"(accuracy); got {self.mode!r}"
            )
        usual = direction_of(self.metric)
        if usual is not None and usual != self.mode:
            raise ConfigError(
                f'mode="{self.mode}" for {self.metric}: that name means that {"lower" if usual == "min" else "higher"} is '
                f'better, so the worst checkpoint would be kept. Give mode="{usual}"; if this metric really is another one, '
                "give it another name"
            )
        for name in ("patience_evaluations", "patience_not_finite"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("min_steps", self.min_steps, least=0)
        for name in ("patience_evaluations", "patience_not_finite", "min_steps"):
            object.__setattr__(self, name, int(getattr(self, name)))  # numpy's integers are no JSON
        if isinstance(self.min_delta, bool) or not isinstance(self.min_delta, int | float):
            raise ConfigError(f"min_delta must be a number, got {self.min_delta!r}")
        if not (math.isfinite(self.min_delta) and self.min_delta >= 0):
            raise ConfigError(f"min_delta must be at least 0 (the direction is given by mode), got {self.min_delta}")

    def gain(self, value: float, other: float) -> float:
        """Return by how much value is better than the other; negative if it is worse."""
        return other - value if self.mode == "min" else value - other

    def exceeds(self, value: float, other: float) -> bool:
        """Return whether value is better than the other by more than min_delta."""
        slack = ROUNDING * max(abs(value), abs(other)) if self.min_delta else 0.0
        return self.gain(value, other) > self.min_delta + slack


def noise_of(values: Iterable[float]) -> float | None:
    """Return the standard deviation of evaluations around a smooth course, from second differences; None if they are few.

    For independent noise of deviation s, v[i-1] - 2 v[i] + v[i+1] has deviation sqrt(6) s; the median of the absolute values
    (times 1.4826, as for a normal distribution) is not moved by the few steep ones at the start.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < NOISE_EVALUATIONS:
        return None
    seconds = [abs(a - 2 * b + c) for a, b, c in zip(finite, finite[1:], finite[2:], strict=False)]
    return 1.4826 * statistics.median(seconds) / math.sqrt(6)


def doubts(rule: StoppingRule, split: str, rows: int | None) -> list[str]:
    """Return what a person should know about a split of so many rows (None: not known) before stopping by it."""
    found = []
    if split == "test":
        found.append(
            'stopping by the split "test" chooses the checkpoint by it: its figures are then too good to report; keep a '
            "validation split for choosing"
        )
    if rows is None:
        return found
    said = f'the split "{split}" has {rows} rows'
    if rows < FEW_ROWS:
        found.append(f"{said}: too few to stop by; evaluations move by chance alone. Use at least some hundreds")
    elif is_share(rule.metric) and 0 < rule.min_delta < (chance := math.sqrt(CHANGED_SHARE / rows)):
        enough = math.ceil(CHANGED_SHARE / rule.min_delta**2)
        found.append(
            f"{said}: if {CHANGED_SHARE:.0%} of the answers change from one evaluation to the next, {rule.metric} moves by "
            f"about {chance:.2g} by chance (one row is {1 / rows:.2g}), and min_delta is {rule.min_delta:g}. Use a larger "
            f"min_delta, or about {enough:,} rows"
        )
    return found


def rows_of(split: str, splits: Any) -> int | None:
    """Return the rows of the validation split, None if only names are known; raise ConfigError where there is none."""
    if not isinstance(split, str) or not split:
        raise ConfigError(f"split must be the name of the split that is evaluated, got {split!r}")
    if split.lower() in TRAINING_SPLITS:
        raise ConfigError(
            f'split "{split}" is what the model is trained on: its loss falls while the model gets worse. Set a validation '
            "split aside: shardprep build ... --split train=0.95,validation=0.05"
        )
    if splits is None:
        raise ConfigError(
            "early stopping needs a validation split, and was given none: pass splits=dataset (from shardprep.open), or a "
            'mapping of split to rows, such as splits={"train": 36000, "validation": 4000}'
        )
    has = getattr(splits, "splits", splits)
    if isinstance(has, str) or not isinstance(has, Iterable):
        raise ConfigError(f"splits must be a data set, a mapping of split to rows, or a list of names, got {splits!r}")
    rows = dict(has) if isinstance(has, Mapping) else dict.fromkeys(has)
    if split not in rows or rows[split] == 0:
        names = ", ".join(map(str, rows)) or "none"
        raise ConfigError(
            f'no rows in a split "{split}" to stop by; there is: {names}. Set one aside with shardprep build ... --split '
            "train=0.95,validation=0.05, or name the one to use with split="
        )
    return rows[split]


def check_whole(name: str, value: Any, *, least: int) -> None:
    """Raise ConfigError unless value is a whole number of at least so much."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
