"""Whether one model is no worse than another on the same rows, as far as these rows can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardprep.errors import ConfigError, SourceError
from shardprep.report.compare_intervals import LEAST_UNITS, Interval, mcnemar, paired_mean, paired_share
from shardprep.report.compare_pairs import Sample, metric_column, mode_of, paired, sample_of
from shardprep.report.compare_reading import read_results
from shardprep.report.compare_verdict import Unit, Verdict, laid_out, verdict_of, verdict_text
from shardprep.storage.store import NO_OPTIONS

CONFIDENCE = 0.95
FEW_GROUPS = 30
ONE_RUN = (
    "the interval is about which rows were drawn, with these two models as they are. It says nothing about another seed: "
    "training again moves results too, and only several runs of each show by how much"
)
CAUSES = {
    "only_baseline": "only in the baseline",
    "only_candidate": "only in the candidate",
    "repeated_baseline": "repeated in the baseline",
    "repeated_candidate": "repeated in the candidate",
    "filler": "filler rows of weight 0",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was found; `summary()` for a program, `text()` for a person."""

    baseline: str
    candidate: str
    metric: str
    mode: str
    unit: Unit
    sample: Sample
    means: tuple[float, float]
    interval: Interval
    delta: float | None
    verdict: Verdict
    only_right: tuple[int, int] | None  # rows where only the baseline, only the candidate is right
    left_out: dict[str, int]
    seed: int

    @property
    def rows(self) -> int:
        """Return how many rows were compared."""
        return len(self.sample.weights)

    def sentence(self) -> str:
        """Return the verdict in words."""
        return verdict_text(
            self.verdict, self.interval, mode=self.mode, delta=self.delta, unit=self.unit, rows=self.rows
        )

    def notes(self) -> list[str]:
        """Return what a reader should know before believing it."""
        found = [ONE_RUN]
        aside = sum(rows for cause, rows in self.left_out.items() if cause != "filler")
        if aside:
            found.append(f"{aside:,} ids were left out, the result is about the {self.rows:,} common rows alone")
        if self.sample.groups is not None and LEAST_UNITS <= self.interval.units < FEW_GROUPS:
            found.append(f"only {self.interval.units} groups: an interval from so few is rough")
        if np.array_equal(self.sample.baseline, self.sample.candidate):
            found.append(f"{self.metric} is the same in every row: are these two files of one model?")
        return found

    def summary(self) -> dict[str, Any]:
        """Return everything as plain JSON; an end of the interval that cannot be given is None."""
        only = self.only_right
        return {
            "verdict": self.verdict.answer,
            "sentence": self.sentence(),
            "metric": self.metric,
            "mode": self.mode,
            "weight": self.sample.weight,
            "by": self.sample.by,
            "rows": self.rows,
            "groups": self.interval.units if self.sample.by else None,
            "baseline": {"file": self.baseline, "mean": self.means[0]},
            "candidate": {"file": self.candidate, "mean": self.means[1]},
            "difference": {
                "estimate": self.interval.estimate,
                "low": _finite(self.interval.low),
                "high": _finite(self.interval.high),
                "confidence": self.interval.confidence,
                "method": self.interval.method,
            },
            "delta": self.delta,
            "against_zero": self.verdict.against_zero,
            "rows_needed": self.verdict.rows_needed,
            "rows_needed_if_equal": self.verdict.rows_needed_if_equal,
            "mcnemar": only and {"only_baseline": only[0], "only_candidate": only[1], "p": mcnemar(only[1], only[0])},
            "left_out": self.left_out,
            "seed": self.seed,
            "notes": self.notes(),
        }

    def text(self) -> str:
        """Return everything as a few lines."""
        unit, interval, sample = self.unit, self.interval, self.sample
        better = "lower" if self.mode == "min" else "higher"
        counted = "each row counts the same" if sample.weight is None else f"rows weighted by {sample.weight}"
        by = f"; {interval.units:,} groups by {sample.by}, drawn whole" if sample.by else ""
        ends = f"[{unit.signed(interval.low)}, {unit.signed(interval.high)}]"
        if not math.isfinite(interval.low):
            ends = "no interval"
        lines = [
            f"compared    {self.rows:,} rows, paired by id{by}",
            f"metric      {self.metric}, {better} is better; {counted}",
            f"baseline    {unit.level(self.means[0])}  {self.baseline}",
            f"candidate   {unit.level(self.means[1])}  {self.candidate}",
            f"difference  {unit.signed(interval.estimate)}, {interval.confidence * 100:.4g}% interval {ends} ({interval.method})",
        ]
        if self.only_right is not None:
            lost, gained = self.only_right
            p = mcnemar(gained, lost)
            lines.append(
                f"McNemar     {lost:,} rows only the baseline has right, {gained:,} only the candidate; exact p = {p:.3g}"
            )
        if self.left_out:
            lines.append(
                f"left out    {', '.join(f'{rows:,} {CAUSES[cause]}' for cause, rows in self.left_out.items())}"
            )
        lines.append(f"verdict     {self.sentence()}")
        return "\n".join(laid_out(lines + [f"note        {note}" for note in self.notes()]))


def compare(
    baseline: str,
    candidate: str,
    *,
    delta: float | str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    confidence: float = CONFIDENCE,
    weight: str | None = None,
    by: str | None = None,
    common: bool = False,
    seed: int = 0,
    options: Mapping[str, str] = NO_OPTIONS,
) -> Comparison:
    """Compare two files (or folders of parts) of results of the same rows: candidate minus baseline.

    delta       how much worse is still fine: in units of the metric, or "1pp" for shares; None: no verdict, but its bounds
    metric      a column; default: loss, correct or accuracy, whichever both have alone
    mode        "min" or "max", where the metric's name does not say
    confidence  of the two-sided interval; the risk of a wrong "no worse" is half of what is left
    weight      column by which rows count; default: tokens for the loss, else weight; "none": all the same
    by          column of groups whose rows are not independent (documents, users): groups are drawn, not rows
    common      compare ids that occur once in both files, and count the others

    Raises ConfigError for a wrong call, SourceError for broken files or different sets, StoreError if one cannot be read.
    """
    if not 0.5 <= confidence <= 0.999:
        raise ConfigError(f"--confidence must be between 0.5 and 0.999, such as 0.95; got {confidence}")
    first, second = read_results(baseline, options=options), read_results(candidate, options=options)
    metric, column = metric_column(metric, first, second)
    mode = mode_of(metric, mode)
    pairs = paired(first, second, common=common)
    sample = sample_of(first, second, pairs, column, weight=weight, by=by)
    # A loss is a mean, even where all are 0 or 1.
    share = "loss" not in column.lower() and all(
        bool(np.isin(values, (0, 1)).all()) for values in (sample.baseline, sample.candidate)
    )
    if column == "correct" and not share:
        raise SourceError(f'{baseline} or {candidate}: "correct" must be true or false in every row', key=candidate)
    allowed = None if delta is None else delta_of(delta, metric, share=share)
    interval, only_right = _interval(sample, confidence, seed, share=share)
    total = sample.weights.sum()
    means = [float((values * sample.weights).sum() / total) for values in (sample.baseline, sample.candidate)]
    return Comparison(
        baseline, candidate, metric, mode, Unit(share), sample, (means[0], means[1]), interval, allowed,
        verdict_of(interval, mode=mode, delta=allowed, rows=len(sample.weights)), only_right, pairs.left_out, seed,
    )  # fmt: skip


def _interval(sample: Sample, confidence: float, seed: int, *, share: bool) -> tuple[Interval, tuple[int, int] | None]:
    if share and sample.weight is None and sample.groups is None:
        gained = int(np.count_nonzero(sample.candidate > sample.baseline))
        lost = int(np.count_nonzero(sample.candidate < sample.baseline))
        return paired_share(gained, lost, len(sample.weights), confidence=confidence), (lost, gained)
    differences, weights = (sample.candidate - sample.baseline) * sample.weights, sample.weights
    if sample.groups is not None:
        differences = np.bincount(sample.groups, differences).astype(np.float64)
        weights = np.bincount(sample.groups, weights).astype(np.float64)
        differences, weights = differences[weights > 0], weights[weights > 0]
    return paired_mean(differences, weights, confidence=confidence, seed=seed), None


def delta_of(given: float | str, metric: str, *, share: bool) -> float:
    """Return delta in units of the metric. Raises ConfigError if it is not a size, or of a unit the metric has not."""
    text = str(given).strip()
    points = text.endswith("pp")
    try:
        value = float(text.removesuffix("pp"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        hint = " (per cent of what? for shares of rows write 1pp, percentage points)" if text.endswith("%") else ""
        raise ConfigError(
            f"--delta is how much worse is still fine: a number of at least 0 in units of {metric}, or for shares of rows in "
            f"percentage points, such as 1pp; got {text}{hint}"
        )
    if points and not share:
        raise ConfigError(
            f"--delta {text}: {metric} is no share of rows, so it has no percentage points; give its own unit"
        )
    if share and not points and value >= 1:
        raise ConfigError(
            f"--delta {text} would allow everything: {metric} is a share from 0 to 1; did you mean {text}pp?"
        )
    return value / 100 if points else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
