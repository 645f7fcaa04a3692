"""The judgement on a run's evaluations so far: whether to stop, and which of them was the best. A history in, decisions out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from shardprep.stopping_rule import StoppingRule, noise_of

Kind = Literal["first", "improved", "waiting", "warm-up", "patience", "not-finite"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after an evaluation; `reason` is for a person, `kind` for a program."""

    stop: bool
    is_best: bool
    reason: str
    kind: Kind


class Judge:
    """Decides by a rule, evaluation by evaluation; `history` and `best` are (step, value)."""

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.history: list[tuple[int, float]] = []
        self.best: tuple[int, float] | None = None  # strictly the best, whatever min_delta
        self.last: Decision | None = None
        self._reference: tuple[int, float] | None = None  # the last that improved by more than min_delta
        self._waited = self._not_finite = 0

    def decide(self, step: int, value: float) -> Decision:
        """Take an evaluation of a later step, and decide."""
        self.last = self._decided(step, value)
        return self.last

    def _decided(self, step: int, value: float) -> Decision:
        rule, before = self.rule, self._reference
        self.history.append((step, value))
        finite = math.isfinite(value)
        self._not_finite = 0 if finite else self._not_finite + 1
        is_best = finite and (self.best is None or rule.gain(value, self.best[1]) > 0)
        if is_best:
            self.best = (step, value)
        said = f"{rule.metric} {value:.6g} at step {step}"
        if finite and (before is None or rule.exceeds(value, before[1])):
            self._reference, self._waited = (step, value), 0
            if before is None:
                return Decision(stop=False, is_best=True, reason=f"{said}: the first value", kind="first")
            gain = rule.gain(value, before[1])
            reason = f"{said}: better than {_at(before)} by {gain:.4g}"
            return Decision(stop=False, is_best=is_best, reason=reason, kind="improved")
        self._waited += step >= rule.min_steps
        return self._without_improvement(said, step, is_best)

    def _without_improvement(self, said: str, step: int, is_best: bool) -> Decision:
        rule = self.rule
        what = f"{said}: {'the best, but ' if is_best else ''}no improvement"
        what += f" by more than {rule.min_delta:g}" if rule.min_delta else ""
        what += f" on {_at(self._reference)}" if self._reference else ", there is no finite value yet"
        if step < rule.min_steps:
            what += f"; not counted before step {rule.min_steps}"
            return Decision(stop=False, is_best=is_best, reason=what, kind="warm-up")
        what += f", {self._waited} in a row (patience {rule.patience_evaluations}){self._backwards()}"
        broken = self._not_finite >= rule.patience_not_finite
        if not broken and self._waited < rule.patience_evaluations:
            return Decision(stop=False, is_best=is_best, reason=what, kind="waiting")
        if broken:
            what = f"{said}: not a finite number {self._not_finite} times in a row; the model is likely broken"
        keep = f"keep the checkpoint of step {self.best[0]} ({rule.metric} {self.best[1]:.6g})" if self.best else ""
        kept = keep or "no checkpoint is worth keeping"
        reason = f"stop: {what}; {kept}{self._noisy()}"
        kind: Kind = "not-finite" if broken else "patience"
        return Decision(stop=True, is_best=is_best, reason=reason, kind=kind)

    def _backwards(self) -> str:
        """Return a warning if the metric went the other way from the first evaluation on, as with the wrong mode."""
        finite = [point for point in self.history if math.isfinite(point[1])]
        if len(finite) < 3 or self.best != finite[0]:
            return ""
        first, last = finite[0], finite[-1]
        losses = [self.rule.gain(one[1], two[1]) for one, two in pairwise(finite)]
        if sum(losses) < sum(map(abs, losses)) / 2 or last[1] == first[1]:  # mere scatter has no direction
            return ""
        verb = "rose" if self.rule.mode == "min" else "fell"
        return (
            f". But {self.rule.metric} {verb} over the whole run, from {first[1]:.6g} (step {first[0]}) to {last[1]:.6g} "
            f'(step {last[0]}): either mode="{self.rule.mode}" is the wrong direction, or the run diverges'
        )

    def _noisy(self) -> str:
        noise = noise_of([value for _, value in self.history])
        if noise is None or noise <= self.rule.min_delta:
            return ""
        return (
            f". Evaluations scatter by about {noise:.2g} around their course, min_delta is {self.rule.min_delta:g}: some of "
            "the waiting may be chance; more validation rows or more patience help"
        )


def _at(point: tuple[int, float]) -> str:
    return f"{point[1]:.6g} (step {point[0]})"
