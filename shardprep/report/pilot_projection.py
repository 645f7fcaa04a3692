"""How long the whole run takes, by the steps that were measured, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardprep.report.pilot_question import Question
from shardprep.report.pilot_rates import Rate, time_of
from shardprep.report.pilot_steps import Steps


def projection(
    steps: Steps, rates: Mapping[str, Rate], question: Question, startup: float | None, between: float | None
) -> dict[str, Any] | None:
    """Return how long the whole run takes, and what it costs."""
    if question.steps is not None:
        basis, number = "total_steps", float(question.steps) * question.passes
    elif question.tokens is not None:
        basis, number = "data", question.tokens * question.passes / float(steps["step_tokens"][0].mean())
    elif steps.steps_per_epoch:
        basis, number = "epoch", steps.steps_per_epoch * question.passes
    else:
        return None
    if basis == "data" and question.tokens is not None:
        seconds = _time_of_tokens(question.tokens * question.passes, rates, len(steps) / number)
        epochs = question.passes
    else:
        seconds = time_of(steps.seconds, question.confidence, number)
        epochs = number / steps.steps_per_epoch if steps.steps_per_epoch else 0.0
    others = (between or 0.0) * math.floor(epochs + 1e-9)
    seconds = seconds.plus((startup or 0.0) + others)
    hours = seconds.times(1 / 3600)
    return {
        "basis": basis,
        "steps": math.ceil(number - 1e-9),
        "passes": question.passes,
        "startup_seconds": startup,
        "between_epochs_seconds": others,
        "seconds": seconds.document(),
        "hours": hours.document(),
        "usd": None if question.usd_per_hour is None else hours.times(question.usd_per_hour).document(),
        "usd_per_hour": question.usd_per_hour,
    }


def _time_of_tokens(tokens: float, rates: Mapping[str, Rate], measured_share: float) -> Rate:
    """Return how long so many useful tokens take; measured_share: steps measured over steps of the run, as in `time_of`."""
    rate = rates["useful_tokens_per_second"]
    wide = (rate.high - rate.mean) * math.sqrt(1 + measured_share)
    slowest = max(rate.mean - wide, rate.mean / 100)
    return Rate(tokens / rate.mean, tokens / (rate.mean + wide), tokens / slowest, rate.confidence)


def rest_of_epoch(steps: Steps, confidence: float) -> dict[str, Any] | None:
    """Return what is left of the epoch that the pilot ended in."""
    if not steps.steps_per_epoch:
        return None
    done = int(steps["step"][0, -1]) + 1
    left = max(0, steps.steps_per_epoch - done)
    return {"step": done, "steps_left": left, "seconds_left": time_of(steps.seconds, confidence, left).document()}


def startup_seconds(steps: Steps, started: float | None, left_out: int) -> float | None:
    """Return the time to the first measured step beyond what those before it would have taken; None: start not known."""
    if started is None:
        return None
    first = float((steps["end"][:, 0] - steps["seconds"][:, 0]).max())
    return max(0.0, first - started - left_out * float(steps.seconds.mean()))


def between_epochs_seconds(played: Steps) -> float | None:
    """Return the mean time between the last step of an epoch and the first of the next, where that is in no step."""
    epochs, ends, seconds = played["epoch"][0], played["end"][0], played["seconds"][0]
    last = np.flatnonzero(np.diff(epochs))
    if not len(last):
        return None
    return max(0.0, float(np.mean(ends[last + 1] - seconds[last + 1] - ends[last])))
