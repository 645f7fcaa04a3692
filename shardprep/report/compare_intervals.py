"""Intervals for the difference of two evaluations of the same rows, and how many rows a verdict needs.

Chosen by simulated coverage (tests/report/test_compare_coverage.py, docs/stopping.md):

- means, also weighted ones (a ratio of sums): the studentized bootstrap over rows or groups (Hall, Annals of Statistics 16,
  1988, 927-953; Hesterberg, The American Statistician 69, 2015, 371-386), each end at least as far out as Student's t
  interval. Percentile and BCa intervals cover 80 to 92 % instead of 95 on skewed differences of 10 to 50 rows.
- shares of rows: the score interval of Tango, Statistics in Medicine 17, 1998, 891-908, from the rows on which exactly one of
  the two is right; recommended by Fagerland, Lydersen and Laake, Statistics in Medicine 33, 2014, 2850-2875.
- the test of McNemar in its exact form: a binomial test with 1/2 on the rows on which exactly one is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST_UNITS = 10  # with fewer rows or groups no method covered what it promises
LEAST_EFFECTIVE = 3  # (sum of weights)^2 / sum of squares: below, one or two rows are the whole mean
LEAST_DIFFERING = 5  # resamples without any of the rows that differ are then too many
CELLS = 4_096  # more rows or groups are put at random into so many cells: the deviation's own error is then 1.1 %
RESAMPLES = 4_000  # ends are then off by 2 % of the interval's half width, by chance
DRAWS = 16_000_000  # smaller sets get more resamples: about 0.3 s
MOST_RESAMPLES = 20_000
CHUNK_DRAWS = 2_000_000  # drawn at once: 16 MB
ROUNDING = 1e-9  # relative: scatter that float arithmetic leaves of equal differences
MOST_NEEDED, MOST_TIMES = (
    1_000_000,
    3_000,
)  # more rows than both are no advice: the gap is 1/20 of the deviation, or less
POWER = 0.80  # chance of an answer that the number of rows needed is for
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference with its confidence interval; an end that cannot be given is infinite.

    units is what was drawn independently, rows or groups; deviation the standard error of the difference.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    units: int
    deviation: float
    method: str


def paired_mean(
    differences: Floats, weights: Floats, *, confidence: float, seed: int, resamples: int | None = None
) -> Interval:
    """Return sum(differences) / sum(weights) with its interval; both (units,), differences already times their weights.

    With fewer than LEAST_UNITS units, or where only some few differ or have weight, the ends are infinite.
    """
    units = len(differences)
    mean = float(differences.sum() / weights.sum())
    rest = differences - mean * weights
    if units < 2:
        return Interval(mean, -math.inf, math.inf, confidence, units, math.inf, "none: too few rows")
    deviation = math.sqrt(units / (units - 1) * float(rest @ rest)) / float(weights.sum())
    differing = int(np.count_nonzero(differences))
    effective = float(weights.sum()) ** 2 / float(weights @ weights)
    if units < LEAST_UNITS or effective < LEAST_EFFECTIVE or 0 < differing < LEAST_DIFFERING:
        return Interval(mean, -math.inf, math.inf, confidence, units, deviation, "none: too few rows")
    if deviation <= ROUNDING * abs(mean) or not differing:
        return Interval(mean, mean, mean, confidence, units, 0.0, "all rows differ by the same")
    rng = np.random.default_rng([seed, 0xB007])
    low_t, high_t = _studentized(*_cells(rest, weights, rng), confidence, rng, resamples)
    student = _student(confidence, units - 1)
    low = mean - max(high_t, student) * deviation
    high = mean - min(low_t, -student) * deviation
    return Interval(mean, low, high, confidence, units, deviation, "paired bootstrap, studentized")


def _cells(rest: Floats, weights: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Add up units in random cells where they are many: sums of random groups keep mean, variance and skewness."""
    units = len(rest)
    if units <= CELLS:
        return rest, weights
    cell = rng.permutation(units) % CELLS
    return np.bincount(cell, rest, CELLS).astype(np.float64), np.bincount(cell, weights, CELLS).astype(np.float64)


def _studentized(
    rest: Floats, weights: Floats, confidence: float, rng: np.random.Generator, resamples: int | None
) -> tuple[float, float]:
    """Return the quantiles of (mean* - mean) / deviation* over the resamples."""
    units = len(rest)
    wanted = resamples or min(max(DRAWS // units, RESAMPLES), MOST_RESAMPLES)
    wanted = max(wanted, math.ceil(20 / (1 - confidence)))  # some ten beyond each end
    # (units, 5): sums of these over a resample give its mean and deviation
    moments = np.stack([rest, weights, rest * rest, rest * weights, weights * weights], axis=1)
    pieces = []
    chunk = max(1, CHUNK_DRAWS // units)
    for start in range(0, wanted, chunk):
        rows = min(chunk, wanted - start)
        drawn = rng.integers(0, units, size=(rows, units), dtype=np.int64)
        drawn += (np.arange(rows) * units)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units)
        pieces.append(counts.astype(np.float64) @ moments)
    sums = np.concatenate(pieces)  # (resamples, 5)
    mean = sums[:, 0] / sums[:, 1]
    squares = sums[:, 2] - 2 * mean * sums[:, 3] + mean**2 * sums[:, 4]
    tiny = 1e-12 * float(moments[:, 2].sum())  # what rounding leaves of a resample without scatter
    flat = squares <= tiny
    deviation = np.sqrt(units / (units - 1) * np.where(flat, 1.0, squares)) / sums[:, 1]
    studentized = np.where(flat, np.where(mean == 0, 0.0, np.copysign(np.inf, mean)), mean / deviation)
    tail = (1 - confidence) / 2
    low, high = np.quantile(studentized, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def _student(confidence: float, freedom: int) -> float:
    """Return Student's t quantile by its expansion in 1 / freedom (Abramowitz and Stegun 26.7.5); good from 9 on."""
    z = _NORMAL.inv_cdf((1 + confidence) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def paired_share(gained: int, lost: int, rows: int, *, confidence: float) -> Interval:
    """Return (gained - lost) / rows with Tango's score interval.

    gained  rows on which only the candidate is right
    lost    rows on which only the baseline is right
    The ends are the differences at which the score test just rejects, found by halving.
    """
    z = _NORMAL.inv_cdf((1 + confidence) / 2)
    estimate = (gained - lost) / rows
    low = _halving(-1.0, estimate, lambda d: _score(d, gained, lost, rows) > z)
    high = _halving(estimate, 1.0, lambda d: _score(d, gained, lost, rows) > -z)
    b, c, n = (gained, lost, rows) if gained + lost else (0.5, 0.5, rows + 1)
    deviation = math.sqrt(max(b + c - (b - c) ** 2 / n, 0.5)) / n
    return Interval(estimate, low, high, confidence, rows, deviation, "score interval for paired shares (Tango)")


def _score(difference: float, gained: int, lost: int, rows: int) -> float:
    """Return the score statistic at a difference: falls from high to low as the difference grows."""
    a = 2 * rows
    b = -gained - lost + (2 * rows - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    share = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)  # of rows lost, most likely at this difference
    variance = rows * (2 * share + difference * (1 - difference))
    distance = gained - lost - rows * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _halving(low: float, high: float, beyond: Callable[[float], bool]) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        if beyond(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p value of McNemar's exact test: twice the smaller binomial tail with 1/2, at most 1."""
    pairs, fewer = gained + lost, min(gained, lost)
    if gained == lost:
        return 1.0
    # logarithms of C(pairs, k) for k = 0 .. fewer, by ratios
    k = np.arange(1, fewer + 1, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(np.log((pairs - k + 1) / k))]) - pairs * math.log(2)
    return float(min(1.0, 2 * np.exp(logs).sum()))


def units_needed(interval: Interval, gap: float) -> int | None:
    """Return how many rows or groups show that the difference lies on this side of a limit, `gap` away from it.

    units x (z_confidence + z_power)^2 deviation^2 / gap^2, for a power of POWER: the usual size of a non-inferiority trial
    (Julious, Statistics in Medicine 23, 2004, 1921-1986, section 6), with the deviation measured here. None where the gap is
    so small beside the deviation that a number would say nothing.
    """
    if not (0 < interval.deviation < math.inf) or gap <= 0:
        return None
    z = _NORMAL.inv_cdf((1 + interval.confidence) / 2) + _NORMAL.inv_cdf(POWER)
    needed = interval.units * (z * interval.deviation / gap) ** 2
    return math.ceil(needed) if needed <= max(MOST_NEEDED, MOST_TIMES * interval.units) else None
