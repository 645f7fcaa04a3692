"""Rates of a training run with intervals: the warm-up left out, and steps that depend on each other allowed for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_STEPS = 20  # after the warm-up: below it an interval would be a guess
MOST_TERMS = 6  # docs/pilot.md: coverage in a simulation of steps that depend on their neighbours
CLOSE_ENOUGH = 1.2  # of the least squared standard error: the very least would pick the quietest stretch, by chance
MOST_DEPENDENT = 0.95
CLIPPED_AT = 3.0  # medians: how slow one step may be, where the end of the warm-up is looked for
DRIFT = 0.1  # of the mean, from first to last step
SURE = 0.99


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean with an interval, which covers the true value in `confidence` of all pilots."""

    mean: float
    low: float
    high: float
    confidence: float

    def document(self) -> dict[str, float]:
        """Return it as JSON values."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "confidence": self.confidence}

    def times(self, factor: float) -> Rate:
        """Return the rate in another unit; factor above 0."""
        return Rate(self.mean * factor, self.low * factor, self.high * factor, self.confidence)

    def plus(self, constant: float) -> Rate:
        """Return it with a known amount added."""
        return Rate(self.mean + constant, self.low + constant, self.high + constant, self.confidence)


@dataclass(frozen=True, slots=True)
class Warmup:
    """How many steps were left out, and whether the rest is steady: false where it still gets faster or slower."""

    steps: int
    settled: bool


def warmup_of(seconds: Floats) -> Warmup:
    """Find where a run has settled, by the rule MSER-5: cut where the standard error of the mean of the rest is least.

    seconds  of each step, in order, float64 (steps,)

    White, Cobb, Spratt, "A comparison of five steady-state truncation heuristics for simulation", Winter Simulation
    Conference 2000. The rule looks at 5 steps as one (in a run below 50, at each), here at their median: a single slow
    step, such as a checkpoint, is not the end of the warm-up. It cuts off half of the run at most; of the cuts that come
    close to the least error it takes the first. The first 2 % of steps, at least one, always go: the first step waits
    for the first batch, and compiles.
    """
    steps = len(seconds)
    if steps < 2:
        return Warmup(steps, settled=False)
    size = 5 if steps >= 50 else 1
    clipped = np.minimum(seconds, CLIPPED_AT * np.median(seconds))
    batches = np.median(clipped[: steps // size * size].reshape(-1, size), axis=1)  # (batches, size) -> (batches,)
    left = np.arange(len(batches), 0, -1.0)  # batches from each place on
    sums, squares = (np.cumsum((batches**power)[::-1])[::-1] for power in (1, 2))
    errors = np.maximum(squares - sums**2 / left, 0) / left**2
    worst_cut = len(batches) // 2
    cut = int(np.flatnonzero(errors[: worst_cut + 1] <= CLOSE_ENOUGH * errors[: worst_cut + 1].min())[0])
    left_out = max(cut * size, math.ceil(steps / 50), 1)
    return Warmup(left_out, settled=cut < worst_cut and not _drifts(clipped[left_out:]))


def _drifts(seconds: Floats) -> bool:
    """Tell whether steps get longer or shorter from first to last: by more than a tenth, and more than chance would."""
    if len(seconds) < LEAST_STEPS:
        return False
    places = np.arange(len(seconds)) - (len(seconds) - 1) / 2
    slope = float(places @ seconds / (places @ places))
    rest = seconds - seconds.mean() - slope * places
    error = half_width(rest * places / float(np.mean(places**2)), SURE)
    return abs(slope) > error and abs(slope) * len(seconds) > DRIFT * float(seconds.mean())


def ratio_of(amounts: Floats, seconds: Floats, confidence: float) -> Rate:
    """Return sum(amounts) / sum(seconds) with an interval; amounts, seconds: of each step, in order, float64 (steps,).

    Steps depend on their neighbours, so the spread of single steps says too little. The error of the ratio is the mean of
    amount - ratio x seconds; its long-run variance is the mean square of the `terms` slowest waves (cosines) in it, and the
    quantile is Student's with as many degrees of freedom: the EWC estimator of Lazarus, Lewis, Stock, Watson, "HAR
    Inference: Recommendations for Practice", Journal of Business & Economic Statistics 36 (2018), with the linear
    form of a ratio. Fewer terms mean wider intervals that hold where more steps depend on each other. What those waves
    still miss is added as if each step depended on the one before (Andrews, Monahan, Econometrica 60, 1992).
    """
    total = float(seconds.sum())
    mean = float(amounts.sum()) / total
    half = half_width(amounts - mean * seconds, confidence) * len(seconds) / total
    return Rate(mean, max(0.0, mean - half), mean + half, confidence)


def time_of(seconds: Floats, confidence: float, steps: float) -> Rate:
    """Return how long so many further steps take, with an interval for that time.

    Its chance has two parts: the pilot's mean is off, and the further steps vary as well; the fewer they are, the more
    the second one counts: the interval is sqrt(1 + measured / steps) times as wide as that of the mean.
    """
    mean = float(seconds.mean())
    if steps <= 0:
        return Rate(0.0, 0.0, 0.0, confidence)
    half = half_width(seconds - mean, confidence) * math.sqrt(1 + len(seconds) / steps)
    return Rate(mean * steps, max(0.0, mean - half) * steps, (mean + half) * steps, confidence)


def half_width(errors: Floats, confidence: float) -> float:
    """Return half the width of the interval for the mean of a series around 0, float64 (steps,)."""
    steps = len(errors)
    terms = terms_for(steps)
    places = (np.arange(steps) + 0.5) / steps
    waves = np.cos(np.pi * np.arange(1, terms + 1)[:, None] * places)  # (terms, steps)
    long_run = float(np.mean((waves @ errors) ** 2) * 2 / steps) * _missed(errors, terms)
    return student_quantile(confidence, terms) * math.sqrt(long_run / steps)


def _missed(errors: Floats, terms: int) -> float:
    """Return the variance at frequency 0 over that of the waves, in a series where each value depends on the last one."""
    steps = len(errors)
    off = errors - errors.mean()
    square = float(off @ off)
    if square == 0:
        return 1.0
    found = float(off[1:] @ off[:-1]) / square
    dependence = min(max(0.0, found + (1 + 3 * max(found, 0.0)) / steps), MOST_DEPENDENT)  # it is found too small
    angles = np.pi * np.arange(1, terms + 1) / steps
    spectrum = 1 / (1 - 2 * dependence * np.cos(angles) + dependence**2)
    return float(1 / (1 - dependence) ** 2 / spectrum.mean())


def terms_for(steps: int) -> int:
    """Return how many cosines the variance is taken from."""
    return max(4, min(MOST_TERMS, int(0.4 * steps ** (2 / 3))))


def student_quantile(confidence: float, degrees: int) -> float:
    """Return t with P(-t <= T <= t) = confidence for Student's T with a whole number of degrees of freedom."""
    low, high = 0.0, 1.0
    while _student_within(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, degrees) < confidence else (low, middle)
    return high


def _student_within(t: float, degrees: int) -> float:
    """Return P(-t <= T <= t): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, total = math.cos(angle), 0.0
    term = cosine if degrees % 2 else 1.0
    for k in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    if degrees % 2:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
