"""What a job's runs have cost so far, and what its metrics were by then: sums, and how two accounts become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shardprep.budget_log import VERSION, Evaluation, History
from shardprep.errors import ConfigError

Bills = dict[str, tuple[float, float]]  # run -> billed seconds of one instance, USD an hour of all instances


@dataclass
class Account:
    """Earlier runs, and the metrics of all."""

    runs: Bills = field(default_factory=dict)
    evaluations: dict[str, list[Evaluation]] = field(default_factory=dict)
    longest_step_s: float = 0.0
    longest_save_s: float = 0.0

    @classmethod
    def of(cls, history: History) -> Self:
        """Return the account that a log holds."""
        account = cls(
            runs={run.name: (run.billed_s, run.usd_per_hour) for run in history.runs.values()},
            evaluations=history.evaluations,
            longest_step_s=history.longest_step_s,
        )
        account.take(history.carried)
        return account

    @property
    def hours(self) -> float:
        """Return the billed hours of all earlier runs."""
        return sum(seconds for seconds, _ in self.runs.values()) / 3600

    @property
    def usd(self) -> float:
        """Return what all earlier runs cost, each at its own price."""
        return sum(seconds * usd_per_hour for seconds, usd_per_hour in self.runs.values()) / 3600

    def take(self, runs: Bills) -> Bills:
        """Add runs; one that is known counts once, at the larger figure. Return those that were new or larger."""
        new = {name: bill for name, bill in runs.items() if bill[0] > self.runs.get(name, (-1.0, 0.0))[0]}
        self.runs |= new
        return new

    def evaluated(self, metric: str, this: Evaluation) -> Evaluation | None:
        """Remember an evaluation, and return the last finite one before it at a smaller step."""
        history = self.evaluations.setdefault(metric, [])
        before = next((one for one in reversed(history) if one.step < this.step and math.isfinite(one.value)), None)
        history.append(this)
        return before

    def state(self, run: str, seconds: float, usd_per_hour: float) -> dict[str, Any]:
        """Return the account with the present run in it as JSON values."""
        return {
            "version": VERSION,
            "runs": bills_json({**self.runs, run: (seconds, usd_per_hour)}),
            "evaluations": {
                metric: [one.step, number_or_none(one.value), one.spent_usd, one.spent_s]
                for metric, one in ((metric, _last(history)) for metric, history in self.evaluations.items())
            },
            "longest_step_s": self.longest_step_s,
            "longest_save_s": self.longest_save_s,
        }

    def merge(self, state: Mapping[str, Any], own_run: str) -> Bills:
        """Take over a state and return the runs that were not known; raises ConfigError if it is none.

        own_run is left out: its own past is known better by its clock.
        """
        try:
            other = _parsed(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is no state of a BudgetGuard ({type(error).__name__}: {error})") from error
        other.runs.pop(own_run, None)
        for metric, evaluations in other.evaluations.items():
            known = self.evaluations.setdefault(metric, [])
            known += [one for one in evaluations if all(one.step > earlier.step for earlier in known)]
        self.longest_step_s = max(self.longest_step_s, other.longest_step_s)
        self.longest_save_s = max(self.longest_save_s, other.longest_save_s)
        return self.take(other.runs)


def _parsed(state: Mapping[str, Any]) -> Account:
    runs = {VERSION: state["runs"]}[state["version"]]
    return Account(
        runs={name: (float(bill["seconds"]), float(bill["usd_per_hour"])) for name, bill in runs.items()},
        evaluations={
            metric: [Evaluation(int(step), math.nan if value is None else float(value), float(usd), float(seconds))]
            for metric, (step, value, usd, seconds) in state["evaluations"].items()
        },
        longest_step_s=float(state["longest_step_s"]),
        longest_save_s=float(state["longest_save_s"]),
    )


def _last(history: list[Evaluation]) -> Evaluation:
    """Return the last finite evaluation, which the next one is compared with; the last one if none is."""
    return next((one for one in reversed(history) if math.isfinite(one.value)), history[-1])


def bills_json(runs: Bills) -> dict[str, dict[str, float]]:
    """Return runs as JSON values."""
    return {name: {"seconds": seconds, "usd_per_hour": price} for name, (seconds, price) in runs.items()}


def marginal_cost(before: Evaluation, this: Evaluation, mode: str | None, *, priced: bool) -> float:
    """Return the cost of one unit of the metric between two evaluations: USD, or hours if not priced.

    Infinite where nothing was gained: no change, a change for the worse where mode says which that is, or a value that is
    not finite.
    """
    change = this.value - before.value
    gained = {"max": change, "min": -change}.get(mode or "", abs(change))
    cost = this.spent_usd - before.spent_usd if priced else (this.spent_s - before.spent_s) / 3600
    return cost / gained if 0 < gained < math.inf else math.inf


def number_or_none(value: float | None) -> float | None:
    """Return a number that JSON has, or None."""
    return value if value is not None and math.isfinite(value) else None
