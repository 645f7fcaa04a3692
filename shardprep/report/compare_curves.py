"""What early stopping cost: a stopped run beside the same configuration run to its end on a subsample.

compare_run.run_to_end() runs it, a command or a function, with stopping switched off; compare_curves() says what the rule
would have cost there: regret, saved steps, and the patience that would have avoided it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardprep.report.compare_curve_file import Curve, rule_of
from shardprep.report.compare_verdict import laid_out
from shardprep.stopping_judge import Judge
from shardprep.stopping_rule import StoppingRule, noise_of


@dataclass(frozen=True, slots=True)
class CurveComparison:
    """What the rule of the stopped run costs on the full curve.

    stop_step      where the rule stops the full curve; None: nowhere
    kept           (step, value) of the best until then, which is what remains of a stopped run
    best           (step, value) of the best to the end
    regret         how much better best is than kept, at least 0, in units of the metric
    saved_share    of the full curve's steps
    noise          by which evaluations scatter; None: too few to say
    patience       the smallest patience whose regret is no more than min_delta; its saved share
    distance       mean absolute difference of the two curves over steps in common until the stop; None: there are none
    """

    stopped: Curve
    full: Curve
    rule: StoppingRule
    stop_step: int | None
    kept: tuple[int, float]
    best: tuple[int, float]
    saved_share: float
    noise: float | None
    patience: int
    patience_saved_share: float
    distance: float | None
    common_steps: int

    @property
    def regret(self) -> float:
        """Return by how much the best to the end is better than the best until the stop."""
        return max(0.0, self.rule.gain(self.best[1], self.kept[1]))

    def sentence(self) -> str:
        """Return what it means, in words."""
        rule = self.rule
        if self.stop_step is None:
            return "the rule would not have stopped the run to its end: it says nothing about what stopping costs"
        if self.stop_step == self.full.points[-1][0]:
            return f"{self.full.name} ends where the rule stops it: it was not run to its end, or had no steps left"
        saved = f"it saved {self.saved_share:.0%} of the steps"
        if self.regret <= rule.min_delta:
            return f"stopping cost nothing here (regret {self.regret:.4g}, min_delta {rule.min_delta:g}), and {saved}"
        text = f"stopping cost {self.regret:.4g} in {rule.metric} here, and {saved}"
        if self.noise is not None and self.regret <= 2 * self.noise:
            text += f"; the cost is within the scatter of evaluations (about {self.noise:.2g}), so it may be chance"
        return text

    def summary(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        return {
            "sentence": self.sentence(),
            "rule": asdict(self.rule),
            "stopped": {"file": self.stopped.name, "last_step": self.stopped.points[-1][0]}
            | {"best": _point(self.stopped.best(self.rule))},
            "full": {"file": self.full.name, "last_step": self.full.points[-1][0], "best": _point(self.best)},
            "stop_step": self.stop_step,
            "kept": _point(self.kept),
            "regret": self.regret,
            "saved_share": self.saved_share,
            "noise": self.noise,
            "patience_without_regret": self.patience,
            "patience_saved_share": self.patience_saved_share,
            "distance": self.distance,
            "common_steps": self.common_steps,
            "notes": self.notes(),
        }

    def text(self) -> str:
        """Return everything as a few lines."""
        rule = self.rule
        numbers = f"patience {rule.patience_evaluations}, min_delta {rule.min_delta:g}, min_steps {rule.min_steps:,}"
        stop = "nowhere" if self.stop_step is None else f"at step {self.stop_step:,}, keeping {_at(self.kept)}"
        like = "no step in common with it" if self.distance is None else (
            f"{self.distance:.3g} apart on average over {self.common_steps} common steps"
        )  # fmt: skip
        lines = [
            f"metric      {rule.metric}, {'lower' if rule.mode == 'min' else 'higher'} is better",
            f"stopped     {_run(self.stopped)}, best {_at(self.stopped.best(rule))}",
            f"to its end  {_run(self.full)}, best {_at(self.best)}; {like}",
            f"rule        {numbers}: stops the run to its end {stop}",
        ]
        if self.stop_step is not None:
            lines.append(f"regret      {self.regret:.4g}; {self.saved_share:.0%} of the steps saved")
        if self.regret > rule.min_delta:
            saved = f"saved {self.patience_saved_share:.0%}" if self.patience_saved_share else "stopped nowhere"
            lines.append(f"patience    {self.patience} evaluations would have avoided it, and {saved}")
        lines.append(f"verdict     {self.sentence()}")
        return "\n".join(laid_out(lines + [f"note        {note}" for note in self.notes()]))

    def notes(self) -> list[str]:
        """Return what a reader should know before believing it."""
        found = ["one run on a subsample: another seed, or all of the data, may bend the curve elsewhere"]
        if stop_of(self.rule, self.stopped.points) is None:
            found.append(f"by this rule {self.stopped.name} was not to be stopped either: is it the rule of that run?")
        return found


def compare_curves(stopped: Curve, full: Curve, rule: StoppingRule | None = None) -> CurveComparison:
    """Return what the rule (default: that of the stopped run's file) would have cost on the full curve.

    Raises ConfigError if no rule is known, SourceError for curves without finite values.
    """
    rule = rule or rule_of(stopped)
    last = full.points[-1][0]
    stop = stop_of(rule, full.points)
    patience = _patience_without_regret(rule, full)
    patient_stop = stop_of(replace(rule, patience_evaluations=patience), full.points)
    end = math.inf if stop is None else stop
    until = dict(full.points)
    both = [
        abs(value - until[step])
        for step, value in stopped.points
        if step in until and math.isfinite(value) and math.isfinite(until[step])
    ]
    return CurveComparison(
        stopped=stopped,
        full=full,
        rule=rule,
        stop_step=stop,
        kept=full.best(rule, end),
        best=full.best(rule),
        saved_share=_saved(stop, last),
        noise=noise_of(value for _, value in full.points),
        patience=patience,
        patience_saved_share=_saved(patient_stop, last),
        distance=math.fsum(both) / len(both) if both else None,
        common_steps=len(both),
    )


def _saved(stop: int | None, last: int) -> float:
    return 0.0 if stop is None or not last else 1 - stop / last


def stop_of(rule: StoppingRule, points: Iterable[tuple[int, float]]) -> int | None:
    """Return the step at which the rule stops a run with these evaluations; None: it does not."""
    judge = Judge(rule)
    return next((step for step, value in points if judge.decide(step, value).stop), None)


def _patience_without_regret(rule: StoppingRule, full: Curve) -> int:
    """Return the smallest patience that keeps a value within min_delta of the best; regret falls as patience grows."""
    low, high = 1, len(full.points) + 1
    best = full.best(rule)[1]
    while low < high:
        middle = (low + high) // 2
        stop = stop_of(replace(rule, patience_evaluations=middle), full.points)
        kept = full.best(rule, math.inf if stop is None else stop)[1]
        if rule.exceeds(best, kept):
            low = middle + 1
        else:
            high = middle
    return low


def _run(curve: Curve) -> str:
    return f"{curve.name}: {len(curve.points)} evaluations to step {curve.points[-1][0]:,}"


def _at(point: tuple[int, float]) -> str:
    return f"{point[1]:.6g} (step {point[0]:,})"


def _point(found: tuple[int, float]) -> dict[str, Any]:
    return {"step": found[0], "value": found[1]}
