"""Spot: the formula against a simulation of what it describes, and the bound against the same simulation."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest

from shardprep.report.cost_spot import (
    enough_interruptions,
    expected_running_s,
    poisson_share,
    running_bound_s,
    segments_of,
    starts_bound,
)

HOUR = 3600.0


def launch(draw: np.random.Generator, work: float, startup: float, every: float | None, write: float, rate: float):
    """Play one launch and return its billed seconds and its starts: written from the words, not from the formula."""
    done = elapsed = 0.0
    starts = 1
    next_loss = draw.exponential(1 / rate)
    free_at = startup  # when the start-up is over
    while done < work:
        length = min(every or math.inf, work - done)
        needed = max(free_at - elapsed, 0.0) + length + (write if every else 0.0)
        if elapsed + needed <= next_loss:
            elapsed += needed
            done += length
        else:
            elapsed = next_loss
            starts += 1
            free_at = elapsed + startup
            next_loss = elapsed + draw.exponential(1 / rate)
    return elapsed, starts


CASES = [
    (10 * HOUR, 300.0, 900.0, 20.0, 0.5 / HOUR),
    (2.6 * HOUR, 600.0, 3600.0, 60.0, 1.5 / HOUR),  # a last segment that is shorter
    (1.0 * HOUR, 480.0, None, 0.0, 1.0 / HOUR),  # no checkpoints at all
]


@pytest.mark.parametrize(("work", "startup", "every", "write", "rate"), CASES)
def test_expected_time_and_bound_against_a_simulation(work, startup, every, write, rate) -> None:
    draw = np.random.default_rng(11)
    played = np.array([launch(draw, work, startup, every, write, rate) for _ in range(3000)])
    exact = [F(work), F(startup), None if every is None else F(every), F(write), F(rate)]
    expected = float(expected_running_s(*exact))
    error = played[:, 0].std() / math.sqrt(len(played))
    assert abs(played[:, 0].mean() - expected) < 4 * error
    assert abs((played[:, 1] - 1).mean() - rate * expected) < 4 * played[:, 1].std() / math.sqrt(len(played))  # Wald
    bound, starts = running_bound_s(*exact)
    assert (played[:, 0] <= float(bound)).mean() >= 0.95
    assert (played[:, 1] <= starts).mean() >= 0.95
    assert bound >= expected


def test_without_interruptions_it_is_the_plain_sum() -> None:
    assert expected_running_s(F(1000), F(60), F(300), F(5), F(0)) == 60 + 1000 + 4 * 5
    assert running_bound_s(F(1000), F(60), F(300), F(5), F(0)) == (1080, 1)
    assert starts_bound(F(10**6), F(0)) == 1


def test_rare_interruptions_come_close_to_the_plain_sum() -> None:
    rare = expected_running_s(F(1000), F(60), F(300), F(5), F(1, 10**12))
    assert 0 <= rare - 1080 < F(1, 10**6)


def test_checkpoints_are_worth_it_and_too_many_are_not() -> None:
    rate = F(1, 7200)
    none, some, many = (expected_running_s(F(36_000), F(300), every, F(30), rate) for every in (None, F(900), F(40)))
    assert some < none
    assert some < many


def test_the_last_segment_is_shorter() -> None:
    assert segments_of(F(1000), F(300), F(5)) == (3, 305, 105)
    assert segments_of(F(900), F(300), F(5)) == (3, 305, 0)
    assert segments_of(F(900), None, F(5)) == (0, 0, 900)
    assert segments_of(F(0), F(300), F(5)) == (0, 0, 0)


def test_a_job_that_never_ends_has_a_number_still() -> None:
    hopeless = expected_running_s(F(10**7), F(600), None, F(0), F(1, 600))
    assert hopeless > 10**20
    bound, starts = running_bound_s(F(10**7), F(600), None, F(0), F(1, 600))
    assert bound == 20 * hopeless
    assert starts > 10**6


@pytest.mark.parametrize("mean", [0.01, 0.5, 3.0, 40.0, 5000.0])
def test_enough_interruptions_are_enough_and_hardly_more(mean) -> None:
    count = enough_interruptions(mean, 0.0)
    draw = np.random.default_rng(3).poisson(mean, 20_000)
    assert (draw <= count).mean() >= 0.945
    assert count <= mean + 3 * math.sqrt(mean) + 2 + mean / 100
    assert poisson_share(count, mean) >= 0.95


def test_more_lost_than_won_has_no_count() -> None:
    assert enough_interruptions(3.0, 1.0) is None
    assert enough_interruptions(1e9, 0.0) is None
    assert starts_bound(F(10**9), F(1)) == 1 + 20 * 10**9
    assert poisson_share(0, 0.0) == 1.0
