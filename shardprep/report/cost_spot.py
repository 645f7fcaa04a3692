"""How long a job runs on instances that are taken away: expected, and a bound that holds in 95 of 100 cases.

Model: interruptions come as a Poisson process while the job runs, `rate` a second. After each one the job starts again
(`startup_s`, billed, and at risk like the rest) from its last checkpoint. Work between checkpoints is a segment: it must
run through without interruption, and is redone from its beginning otherwise.

Expected time of one segment of s seconds, once running: let X be the time from a fresh start to its end. An attempt needs
startup + s seconds undisturbed, so X = (exp(rate (startup + s)) - 1) / rate; and a segment that follows on the one before
takes (1 - exp(-rate s)) / rate + (1 - exp(-rate s)) X = exp(rate startup) (exp(rate s) - 1) / rate. Summed over segments,
with the first start-up: that is the "complete" model of J. T. Daly, A higher order estimate of the optimum checkpoint
interval for restart dumps, Future Generation Computer Systems 22 (2006) 303-312, plus the first start. tests/report/
test_cost_spot.py holds it against a simulation.
"""

from __future__ import annotations

import math
from fractions import Fraction

CONFIDENCE = 0.95
LARGEST_EXPONENT = 200.0  # such a job never ends, and the square of its exponential still fits a float
SMALLEST_LOG = -745.0  # exp of less is 0
MOST_COUNTED = 100_000  # interruptions; beyond, Markov's bound is used


def segments_of(work_s: Fraction, every_s: Fraction | None, write_s: Fraction) -> tuple[int, Fraction, Fraction]:
    """Return how many whole segments there are, their length, and that of the last, shorter one; writing included.

    Without checkpoints (None) all the work is one segment. A checkpoint ends every segment, the last one too.
    """
    if every_s is None or work_s == 0:
        return 0, Fraction(0), work_s
    whole = math.floor(work_s / every_s)
    rest = work_s - whole * every_s
    return whole, every_s + write_s, rest + write_s if rest else Fraction(0)


def expected_running_s(
    work_s: Fraction, startup_s: Fraction, every_s: Fraction | None, write_s: Fraction, rate: Fraction
) -> Fraction:
    """Return the expected billed seconds of a launch: start-ups, work, checkpoints, and what is done again."""
    whole, segment_s, rest_s = segments_of(work_s, every_s, write_s)
    straight_s = startup_s + whole * segment_s + rest_s
    if rate == 0:
        return straight_s
    again = _exp_minus_1(rate * startup_s)
    segments = whole * _exp_minus_1(rate * segment_s) + _exp_minus_1(rate * rest_s)
    return max(straight_s, ((1 + again) * segments + again) / rate)


def _exp_minus_1(exponent: Fraction) -> Fraction:
    return Fraction(math.expm1(min(float(exponent), LARGEST_EXPONENT)))


def running_bound_s(
    work_s: Fraction, startup_s: Fraction, every_s: Fraction | None, write_s: Fraction, rate: Fraction
) -> tuple[Fraction, int]:
    """Return billed seconds that are enough in 95 of 100 launches, and the number of starts in them.

    With n interruptions a launch takes at most straight + n (longest segment + start-up): each comes just before a
    checkpoint. So n interruptions are enough if at most n come in that time, whose probability is Poisson's. Where that
    has no end (more is lost than won), Markov's inequality holds: 20 times the expected time.
    """
    expected_s = expected_running_s(work_s, startup_s, every_s, write_s, rate)
    if rate == 0:
        return expected_s, 1
    whole, segment_s, rest_s = segments_of(work_s, every_s, write_s)
    straight_s = startup_s + whole * segment_s + rest_s
    lost_s = (segment_s if whole else rest_s) + startup_s
    markov_s = expected_s / Fraction(1 - CONFIDENCE).limit_denominator(100)
    count = enough_interruptions(float(rate * straight_s), float(rate * lost_s))
    starts = 1 + math.ceil(rate * markov_s)
    if count is None:
        return markov_s, starts
    # The smaller of both, each by itself: so neither falls as the job grows.
    return max(expected_s, min(markov_s, straight_s + count * lost_s)), min(starts, 1 + count)


def starts_bound(running_s: Fraction, rate: Fraction) -> int:
    """Return how many starts are enough, in 95 of 100 launches, while one runs for so long."""
    if rate == 0:
        return 1
    count = enough_interruptions(float(rate * running_s), 0.0)
    return 1 + (math.ceil(rate * running_s / Fraction(1, 20)) if count is None else count)


def enough_interruptions(mean: float, more_each: float) -> int | None:
    """Return a count n so that Poisson(mean + n more_each) is at most n with probability 0.95; None if none is found."""
    if more_each >= 1:
        return None

    def enough(count: int) -> bool:
        return poisson_share(count, mean + count * more_each) >= CONFIDENCE

    low, step = max(0, math.floor(mean / (1 - more_each)) - 1), 1  # from here on more are always safer
    if low > MOST_COUNTED:
        return None
    if enough(low):
        return low
    while not enough(low + step):
        low, step = low + step, 2 * step
        if low > MOST_COUNTED:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def poisson_share(count: int, mean: float) -> float:
    """Return the probability that a Poisson variable of this mean is at most count."""
    if mean <= 0:
        return 1.0
    first = max(0, math.floor(mean - 12 * math.sqrt(mean) - 12))  # below it there is less than 1e-16
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(first, count + 1))
    return min(1.0, math.fsum(math.exp(log) for log in logs if log > SMALLEST_LOG))
