"""The arithmetic of comparisons: against published and exact values, and how often intervals cover the truth."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from shardprep.report.compare_intervals import (
    CELLS,
    POWER,
    _student,
    mcnemar,
    paired_mean,
    paired_share,
    units_needed,
)
from shardprep.report.compare_verdict import verdict_of

Z = 1.959963984540054


# McNemar


def exact_mcnemar(gained, lost):
    """The two-sided binomial test in whole numbers."""
    pairs, fewer = gained + lost, min(gained, lost)
    return min(Fraction(1), Fraction(2 * sum(math.comb(pairs, k) for k in range(fewer + 1)), 2**pairs))


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (1, 7, 0.0703125),  # airway hyper-responsiveness, Fagerland et al. 2013: 0.070
        (0, 10, 2 / 1024),
        (5, 15, 0.04138946533203125),
        (0, 1, 1.0),
        (0, 0, 1.0),
        (12, 12, 1.0),
    ],
)
def test_mcnemar_known_values(gained, lost, p):
    assert mcnemar(gained, lost) == pytest.approx(p, rel=1e-12)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)


def test_mcnemar_is_the_exact_binomial_test():
    for gained in range(0, 70, 3):
        for lost in range(0, 70, 4):
            assert mcnemar(gained, lost) == pytest.approx(float(exact_mcnemar(gained, lost)), rel=1e-9)
    assert mcnemar(500, 560) == pytest.approx(float(exact_mcnemar(500, 560)), rel=1e-9)


def test_mcnemar_of_many_rows_does_not_overflow():
    assert 0 <= mcnemar(400_000, 700_000) < 1e-300
    assert mcnemar(500_000, 500_900) == pytest.approx(0.3685, abs=2e-3)  # normal: 2 (1 - Phi(0.8991))


# The score interval


def test_tangos_interval_of_a_published_example():
    """Fagerland, Lydersen, Laake 2014, airway hyper-responsiveness: 1 and 7 of 21, interval -0.517 to -0.026."""
    interval = paired_share(1, 7, 21, confidence=0.95)
    assert interval.estimate == pytest.approx(-6 / 21)
    assert (interval.low, interval.high) == (pytest.approx(-0.517, abs=5e-4), pytest.approx(-0.026, abs=5e-4))


@pytest.mark.parametrize("rows", [10, 100, 5_000])
def test_tangos_interval_without_a_differing_row_has_a_closed_form(rows):
    interval = paired_share(0, 0, rows, confidence=0.95)
    assert interval.high == pytest.approx(Z**2 / (rows + Z**2), rel=1e-6)
    assert interval.low == pytest.approx(-interval.high)


def test_tangos_interval_turns_over_with_its_rows_and_stays_within_one():
    for gained, lost, rows in ((3, 9, 50), (0, 4, 12), (10, 0, 10), (20, 20, 45), (0, 10, 10)):
        one, other = paired_share(gained, lost, rows, confidence=0.9), paired_share(lost, gained, rows, confidence=0.9)
        assert (one.low, one.high) == (pytest.approx(-other.high, abs=1e-9), pytest.approx(-other.low, abs=1e-9))
        assert -1 <= one.low <= one.estimate <= one.high <= 1


def score_by_likelihood(difference, gained, lost, rows):
    """The score statistic, with the likeliest share of lost rows found by search instead of by the formula."""
    shares = np.linspace(max(0.0, -difference), (1 - difference) / 2, 200_001)[1:-1]
    both = rows - gained - lost
    likelihood = (
        gained * np.log(shares + difference) + lost * np.log(shares) + both * np.log(1 - 2 * shares - difference)
    )
    share = shares[np.argmax(likelihood)]
    return (gained - lost - rows * difference) / math.sqrt(rows * (2 * share + difference * (1 - difference)))


@pytest.mark.parametrize(("gained", "lost", "rows"), [(9, 3, 60), (12, 15, 200), (40, 20, 160)])
def test_the_ends_are_where_the_score_test_just_rejects(gained, lost, rows):
    interval = paired_share(gained, lost, rows, confidence=0.95)
    assert score_by_likelihood(interval.low, gained, lost, rows) == pytest.approx(Z, abs=2e-3)
    assert score_by_likelihood(interval.high, gained, lost, rows) == pytest.approx(-Z, abs=2e-3)


def exact_coverage(rows, gain, loss, cache):
    """How often the interval holds the truth gain - loss: summed over all outcomes of the trinomial, no chance in it."""
    total = covered = no_worse = 0.0
    logs = [math.lgamma(k + 1) for k in range(rows + 1)]
    for gained in range(rows + 1):
        for lost in range(rows + 1 - gained):
            rest = rows - gained - lost
            p = math.exp(
                logs[rows] - logs[gained] - logs[lost] - logs[rest]
                + gained * math.log(gain) + lost * math.log(loss) + rest * math.log(1 - gain - loss)
            )  # fmt: skip
            if p < 1e-9:
                continue
            if (gained, lost) not in cache:
                cache[gained, lost] = paired_share(gained, lost, rows, confidence=0.95)
            interval = cache[gained, lost]
            total += p
            covered += p * (interval.low <= gain - loss <= interval.high)
            no_worse += p * (verdict_of(interval, mode="max", delta=loss - gain, rows=rows).answer == "no worse")
    assert total == pytest.approx(1, abs=1e-4)
    return covered, no_worse


@pytest.mark.parametrize("rows", [40, 150])
def test_intervals_of_accuracy_cover_the_truth_exactly_computed(rows):
    cache = {}
    found = [
        exact_coverage(rows, gain, loss, cache)
        for gain, loss in ((0.05, 0.05), (0.03, 0.06), (0.02, 0.08), (0.01, 0.04))
    ]
    coverage, wrong = np.array(found).T
    assert coverage.min() > 0.935
    assert 0.945 < coverage.mean() < 0.985
    assert wrong[1:].max() < 0.035  # "no worse than delta" where it is worse by delta itself; stated: 0.025


# Student and the bootstrap


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [(0.95, 9, 2.262157), (0.95, 19, 2.093024), (0.95, 99, 1.984217), (0.99, 9, 3.249836), (0.9, 14, 1.76131)],
)
def test_students_quantiles(confidence, freedom, t):
    assert _student(confidence, freedom) == pytest.approx(t, rel=1e-3)


def bounds(differences, weights=None, **more):
    weights = np.ones(len(differences)) if weights is None else weights
    interval = paired_mean(differences * weights, weights, confidence=0.95, seed=more.pop("seed", 0), **more)
    return interval.low, interval.high


def test_the_bootstrap_is_the_one_in_plain_python():
    rng = np.random.default_rng(5)
    d, w = rng.exponential(1, 15) - 1, rng.integers(1, 9, 15).astype(float)
    mean = (d * w).sum() / w.sum()

    def deviation(i):
        center = (d[i] * w[i]).sum() / w[i].sum()
        return math.sqrt(15 / 14 * ((w[i] * (d[i] - center)) ** 2).sum()) / w[i].sum(), center

    own = deviation(np.arange(15))[0]
    ts = sorted((c - mean) / s for s, c in (deviation(rng.integers(0, 15, 15)) for _ in range(20_000)))
    low = mean - max(ts[int(0.975 * 20_000)], _student(0.95, 14)) * own
    high = mean - min(ts[int(0.025 * 20_000)], -_student(0.95, 14)) * own
    assert bounds(d, w) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))


def test_the_same_seed_gives_the_same_interval_and_others_nearly():
    d = np.random.default_rng(1).normal(0.1, 1, 200)
    assert bounds(d) == bounds(d)
    assert bounds(d) != bounds(d, seed=1)
    assert bounds(d) == pytest.approx(bounds(d, seed=1), abs=0.02)


def test_units_and_order_make_no_difference():
    rng = np.random.default_rng(2)
    d, w = rng.normal(0.3, 1, 300), rng.integers(1, 50, 300).astype(float)
    low, high = bounds(d, w)
    assert bounds(d * 1e6, w * 1e3) == (pytest.approx(low * 1e6), pytest.approx(high * 1e6))
    assert bounds(d[::-1], w[::-1]) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


def test_many_rows_are_drawn_in_cells_with_the_same_interval():
    rng = np.random.default_rng(3)
    d, w = rng.standard_t(4, 8 * CELLS), rng.lognormal(0, 0.8, 8 * CELLS)
    low, high = bounds(d, w)
    mean = (d * w).sum() / w.sum()
    half = Z * math.sqrt(((w * (d - mean)) ** 2).sum()) / w.sum()
    assert (low, high) == (pytest.approx(mean - half, abs=0.06 * half), pytest.approx(mean + half, abs=0.06 * half))


def test_too_few_rows_or_too_few_that_differ_give_no_interval():
    assert bounds(np.array([0.1])) == (-math.inf, math.inf)
    assert bounds(np.linspace(0, 1, 9)) == (-math.inf, math.inf)
    d = np.zeros(1_000)
    d[:4] = 0.5
    assert bounds(d) == (-math.inf, math.inf)
    assert bounds(np.zeros(50)) == (0.0, 0.0)
    assert bounds(np.full(50, 0.1)) == (pytest.approx(0.1), pytest.approx(0.1))
    assert all(map(math.isfinite, bounds(np.linspace(0, 1, 10))))


# Coverage


def skewed(rng, n):
    return 0.05 * (rng.lognormal(0, 1, n) - math.exp(0.5)), np.ones(n), 0.0


def normal(rng, n):
    return rng.normal(0.02, 0.1, n), np.ones(n), 0.02


def heavy(rng, n):
    return 0.1 * rng.standard_t(3, n), np.ones(n), 0.0


def sparse(rng, n):
    """Three rows in four do not differ at all."""
    return np.where(rng.random(n) < 0.25, rng.normal(0.1, 0.3, n), 0.0), np.ones(n), 0.025


def by_tokens(rng, n):
    """Lengths as of documents; long rows scatter less and lose more: the truth is a ratio of sums."""
    w = np.clip(rng.lognormal(6.48, 0.8, n), 8, 8_192)
    return rng.normal(0.02, 1, n) * 3 / np.sqrt(w) + 0.02 * w / 900, w, TRUTH_BY_TOKENS


def grouped(rng, n):
    """Groups of 1 to 8 rows with something in common; what is drawn are sums of groups."""
    size = rng.integers(1, 9, n).astype(float)
    return rng.normal(0, 0.1, n) + rng.normal(0, 0.1, n) / np.sqrt(size), size, 0.0


def _truth_by_tokens():
    w = np.clip(np.random.default_rng(0).lognormal(6.48, 0.8, 2_000_000), 8, 8_192)
    return float((0.02 * 3 * np.sqrt(w) + 0.02 * w * w / 900).sum() / w.sum())


TRUTH_BY_TOKENS = _truth_by_tokens()
KINDS = [normal, skewed, heavy, sparse, by_tokens, grouped]


def coverage(kind, n, times, resamples, seed=11):
    """Return (share of intervals that hold the truth, share too low, share too high)."""
    rng = np.random.default_rng(seed)
    low = high = 0
    for _ in range(times):
        d, w, truth = kind(rng, n)
        interval = paired_mean(d * w, w, confidence=0.95, seed=0, resamples=resamples)
        low += interval.high < truth
        high += interval.low > truth
    return 1 - (low + high) / times, low / times, high / times


def tolerance(times, p=0.05):
    return 3 * math.sqrt(p * (1 - p) / times)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_intervals_cover_the_truth_at_their_stated_rate(kind):
    times = 400
    covered, too_low, too_high = coverage(kind, 40, times, 400)
    assert covered > 0.95 - 0.015 - tolerance(times)  # 0.015: what is known to be missed at 40 rows, docs/stopping.md
    assert covered < 0.95 + 0.03 + tolerance(times)
    assert max(too_low, too_high) < 0.025 + 0.025 + tolerance(times, 0.025)


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 20, 50, 200, 1_000, 10_000])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_intervals_cover_the_truth_at_any_size(kind, n):
    times = {1_000: 1_000, 10_000: 200}.get(n, 2_000)
    covered, too_low, too_high = coverage(kind, n, times, 1_000 if n <= 1_000 else 400)
    print(f"{kind.__name__:10s} {n:6d}  covered {covered:.3f}  too low {too_low:.3f}  too high {too_high:.3f}")
    missed = {10: 0.05, 20: 0.03, 50: 0.015}.get(n, 0.01)
    assert 0.95 - missed - tolerance(times) < covered < 0.95 + 0.03 + tolerance(times)


# Verdicts


def verdict(differences, delta):
    interval = paired_mean(differences, np.ones(len(differences)), confidence=0.95, seed=0, resamples=400)
    return verdict_of(interval, mode="min", delta=delta, rows=len(differences)).answer


def test_at_the_boundary_both_wrong_verdicts_are_as_rare_as_stated():
    """Worse by delta itself: neither "no worse" nor "worse" is right; each has a risk of 2.5 %."""
    rng = np.random.default_rng(4)
    answers = [verdict(rng.normal(0.05, 0.2, 80), delta=0.05) for _ in range(600)]
    for wrong in ("no worse", "worse"):
        assert answers.count(wrong) / 600 < 0.025 + tolerance(600, 0.025)
    assert answers.count("cannot tell") / 600 > 0.93


@pytest.mark.parametrize("true", [0.0, 0.2])
def test_the_rows_that_are_said_to_be_needed_give_an_answer_as_often_as_stated(true):
    """No difference, or twice delta: with so many rows the verdict comes in some 80 % of cases, and is the right one."""
    delta, rng = 0.1, np.random.default_rng(5)
    pilot = rng.normal(true, 0.3, 400)
    interval = paired_mean(pilot, np.ones(400), confidence=0.95, seed=0)
    n = units_needed(interval, abs(delta - true))
    assert n == pytest.approx((1.959964 + 0.841621) ** 2 * 0.3**2 / 0.1**2, rel=0.12)
    answers = [verdict(rng.normal(true, 0.3, n), delta) for _ in range(400)]
    right, wrong = ("no worse", "worse") if true == 0 else ("worse", "no worse")
    assert answers.count(right) / 400 == pytest.approx(POWER, abs=0.09)
    assert answers.count(wrong) == 0
