"""Rates and their intervals: they cover the truth as often as they say, for steps that depend on their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from shardprep.report.pilot_rates import half_width, ratio_of, student_quantile, terms_for, time_of, warmup_of

SPREAD = 0.2


def walk(draw, steps, dependence):
    """Return log-normal step times around 1 (mean exactly 1), each of which depends on the one before."""
    noise = draw.standard_normal(steps) * np.sqrt(1 - dependence**2)
    values = np.empty(steps)
    values[0] = draw.standard_normal()
    for step in range(1, steps):
        values[step] = dependence * values[step - 1] + noise[step]
    return np.exp(SPREAD * values - SPREAD**2 / 2)


@pytest.mark.parametrize(("confidence", "degrees", "quantile"), [
    (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.90, 4, 2.132), (0.99, 5, 4.032), (0.95, 6, 2.447), (0.95, 8, 2.306),
])  # fmt: skip
def test_quantiles_are_those_of_the_tables(confidence, degrees, quantile):
    assert student_quantile(confidence, degrees) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(("dependence", "warm"), [(0.0, False), (0.5, True), (0.8, False), (0.8, True)])
def test_intervals_cover_the_true_rate_as_often_as_they_say(confidence, dependence, warm):
    draw, runs, hits = np.random.default_rng(17), 500, 0
    for _ in range(runs):
        seconds = walk(draw, 300, dependence)
        if warm:
            seconds *= 1 + 2 * np.exp(-np.arange(300) / 15)
        seconds = seconds[warmup_of(seconds).steps :]
        rate = ratio_of(np.ones(len(seconds)), seconds, confidence)
        hits += rate.low <= 1 <= rate.high
    error = 3 * np.sqrt(confidence * (1 - confidence) / runs)
    assert hits / runs >= confidence - 0.02 - error  # docs/pilot.md has the shares that were found
    assert hits / runs <= confidence + 0.03 + error


def test_intervals_of_tokens_a_second_cover_where_tokens_and_times_go_together():
    draw, runs, hits = np.random.default_rng(3), 500, 0
    for _ in range(runs):
        tokens = draw.integers(500, 2_000, 200).astype(float)
        seconds = tokens / 1_000 * walk(draw, 200, 0.5)
        rate = ratio_of(tokens, seconds, 0.9)
        hits += rate.low <= 1_000 <= rate.high
    assert 0.85 <= hits / runs <= 0.95


@pytest.mark.parametrize("further", [40, 2_000])
def test_the_time_of_further_steps_is_covered_too(further):
    draw, runs, hits = np.random.default_rng(5), 400, 0
    for _ in range(runs):
        seconds = walk(draw, 200 + further, 0.3)
        projected = time_of(seconds[:200], 0.9, further)
        hits += projected.low <= seconds[200:].sum() <= projected.high
    assert 0.84 <= hits / runs <= 0.97


def test_a_steady_run_has_a_narrow_interval_and_no_steps_an_empty_time():
    rate = ratio_of(np.ones(50), np.full(50, 0.25), 0.95)
    assert (rate.mean, rate.low, rate.high) == pytest.approx((4, 4, 4))
    assert half_width(np.zeros(50), 0.95) == 0
    assert time_of(np.full(50, 0.25), 0.95, 0).high == 0
    assert rate.times(2).plus(1).mean == pytest.approx(9)


def test_the_low_end_is_never_below_zero():
    draw = np.random.default_rng(1)
    rate = ratio_of(np.ones(20), draw.lognormal(0, 4, 20), 0.999)
    assert rate.low == 0
    assert rate.high > rate.mean


@pytest.mark.parametrize("slow", [3, 30, 80])
def test_a_warm_up_is_cut_off_where_it_ends(slow):
    draw = np.random.default_rng(slow)
    seconds = draw.normal(1, 0.05, 300)
    seconds[:slow] += 4
    found = warmup_of(seconds)
    assert found.settled
    assert slow <= found.steps <= slow + 30


def test_pauses_late_in_the_run_are_no_warm_up():
    seconds = np.random.default_rng(0).normal(1, 0.05, 300)
    seconds[[90, 140]] = 60  # checkpoints
    found = warmup_of(seconds)
    assert found.settled
    assert found.steps <= 30


def test_a_run_that_still_gets_faster_has_not_settled():
    assert not warmup_of(np.linspace(3, 1, 200)).settled
    assert warmup_of(np.ones(1)).steps == 1
    assert warmup_of(np.ones(50)).steps == 1  # the first step always goes


def test_short_runs_take_fewer_waves():
    assert [terms_for(steps) for steps in (20, 40, 64, 300)] == [4, 4, 6, 6]
