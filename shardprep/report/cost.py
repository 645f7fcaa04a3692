"""What a training job costs: pure arithmetic over a plan, for one launch, one person and the whole group.

All numbers are exact fractions: 160.25 USD is 160.25, not 160.25000000000003, so that what is rounded for people is
rounded from the true value. Only the redone work of spot instances goes through floating point (exponentials).

Seconds are `_s`, money is `_usd`. docs/cost.md has every definition in words, and where the formulas come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from shardprep.report.cost_spot import expected_running_s, running_bound_s, starts_bound

HOUR_S = 3600
IDLE_HOURS = {"day": 24, "week": 24 * 7, "month": 730}  # 730: a year of 365 days in twelfths, as cloud bills count


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds for one unit (a row or a token) by the job as planned: as measured, and at the slow end."""

    unit_s: Fraction
    slow_s: Fraction


@dataclass(frozen=True, slots=True)
class Machine:
    """What a launch runs on: `count` instances, each with its price on demand."""

    name: str
    usd_per_hour: Fraction
    count: int = 1


@dataclass(frozen=True, slots=True)
class Spot:
    """Spare capacity: cheaper, and taken away at any time. Interruptions are per hour of one running instance."""

    discount: Fraction
    interruptions_per_hour: Fraction
    max_wait_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Controller:
    """The machine that a person works on while the job runs elsewhere; hours of one person."""

    name: str
    usd_per_hour: Fraction
    hours: Fraction
    worst_hours: Fraction


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that costs. Units are rows or tokens, whichever the rate is in."""

    machine: Machine
    units: Fraction
    passes: Fraction
    training: Rate
    unit: str = "rows"
    evaluation: Rate = Rate(Fraction(0), Fraction(0))
    rows_before: Fraction = Fraction(0)
    rows_after: Fraction = Fraction(0)
    rows_after_each_pass: Fraction = Fraction(0)
    startup_billed_s: Fraction = Fraction(0)
    startup_unbilled_s: Fraction = Fraction(0)
    checkpoint_every_s: Fraction | None = None
    checkpoint_write_s: Fraction = Fraction(0)
    on_spot: bool = False
    spot: Spot | None = None
    controller: Controller | None = None
    people: int = 1
    people_at_once: int | None = None
    relaunches: int = 0
    expected_relaunches: Fraction = Fraction(0)
    max_run_s: Fraction | None = None
    budget_usd: Fraction | None = None
    budget_person_usd: Fraction | None = None
    deadline_s: Fraction | None = None

    @property
    def evaluation_rows(self) -> Fraction:
        """Return the rows that one launch evaluates; after each whole pass."""
        return self.rows_before + self.rows_after + self.rows_after_each_pass * math.floor(self.passes)

    @property
    def usd_per_hour(self) -> Fraction:
        """Return what an hour of a launch costs: all instances, with the discount where it runs on spot."""
        price = self.machine.usd_per_hour * self.machine.count
        return price * (1 - self.spot.discount) if self.on_spot and self.spot else price


class Seconds(NamedTuple):
    """The billed seconds of one launch by what they are spent on; `redone` is what interruptions cost, start-up included."""

    startup: Fraction
    training: Fraction
    evaluation: Fraction
    checkpoints: Fraction
    redone: Fraction

    @property
    def billed(self) -> Fraction:
        """Return their sum."""
        return sum(self, Fraction(0))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the bill, expected or worst: of a launch, of a person, of the group."""

    launch_s: Fraction
    launch_elapsed_s: Fraction
    launch_usd: Fraction
    launches: Fraction
    controller_usd: Fraction
    people: int
    rounds: int  # of people, one after another, where not all can run at once

    @property
    def jobs_usd(self) -> Fraction:
        """Return what a person's launches cost."""
        return self.launches * self.launch_usd

    @property
    def person_usd(self) -> Fraction:
        """Return what a person costs: launches and controller."""
        return self.jobs_usd + self.controller_usd

    @property
    def group_usd(self) -> Fraction:
        """Return what all people cost."""
        return self.people * self.person_usd

    @property
    def person_elapsed_s(self) -> Fraction:
        """Return the time from a person's first launch to the end of the last one."""
        return self.launches * self.launch_elapsed_s

    @property
    def group_elapsed_s(self) -> Fraction:
        """Return the time from the first launch to the end of the last one."""
        return self.rounds * self.person_elapsed_s


@dataclass(frozen=True, slots=True)
class Bill:
    """What a plan costs."""

    plan: Plan
    seconds: Seconds
    slow_s: Fraction  # billed seconds of a launch at the slow end of the rates, without a cap
    interruptions: Fraction  # expected number in one launch
    expected: Side
    worst: Side

    def group_launches_usd(self, launches: int, launch_s: Fraction) -> Fraction:
        """Return what the group pays if everybody launches so often, each launch billed for launch_s."""
        launch_usd = launch_s * self.plan.usd_per_hour / HOUR_S
        return self.plan.people * (launches * launch_usd + self.expected.controller_usd)

    @property
    def group_one_relaunch_usd(self) -> Fraction:
        """Return the cost if everybody launches a second time, from the start."""
        return self.group_launches_usd(2, self.expected.launch_s)

    @property
    def group_two_launches_at_cap_usd(self) -> Fraction | None:
        """Return the cost if everybody launches twice, and max_run ends every launch; None without a cap."""
        return None if self.plan.max_run_s is None else self.group_launches_usd(2, self.plan.max_run_s)

    def idle_usd(self, period: str) -> Fraction:
        """Return what one forgotten instance of the plan costs on demand, in a day, week or month."""
        return self.plan.machine.usd_per_hour * IDLE_HOURS[period]

    @property
    def cut_off(self) -> bool:
        """Return whether max_run ends a launch before it is done, even at the measured rates."""
        return self.plan.max_run_s is not None and self.seconds.billed > self.plan.max_run_s

    @property
    def over(self) -> tuple[str, ...]:
        """Return which limits the worst case breaks: budget_usd, budget_person_usd, deadline, max_run."""
        plan = self.plan
        checks = {
            "budget_usd": plan.budget_usd is not None and self.worst.group_usd > plan.budget_usd,
            "budget_person_usd": plan.budget_person_usd is not None and self.worst.person_usd > plan.budget_person_usd,
            "deadline": plan.deadline_s is not None and self.worst.group_elapsed_s > plan.deadline_s,
            "max_run": self.cut_off,
        }
        return tuple(name for name, broken in checks.items() if broken)

    @property
    def fits(self) -> bool:
        """Return whether the worst case keeps every limit."""
        return not self.over


def bill_of(plan: Plan) -> Bill:
    """Return the bill of a plan."""
    work_s, slow_work_s = _work_s(plan, slow=False), _work_s(plan, slow=True)
    spot_rate = _interruptions_per_s(plan)
    segment_s = plan.checkpoint_every_s
    running_s = expected_running_s(work_s, plan.startup_billed_s, segment_s, plan.checkpoint_write_s, spot_rate)
    straight_s = expected_running_s(work_s, plan.startup_billed_s, segment_s, plan.checkpoint_write_s, Fraction(0))
    training_s = plan.units * plan.passes * plan.training.unit_s
    seconds = Seconds(
        startup=plan.startup_billed_s,
        training=training_s,
        evaluation=work_s - training_s,
        checkpoints=straight_s - plan.startup_billed_s - work_s,
        redone=running_s - straight_s,
    )
    interruptions = spot_rate * running_s  # Wald's equation: the rate times the expected time at risk
    slow_s, starts = running_bound_s(slow_work_s, plan.startup_billed_s, segment_s, plan.checkpoint_write_s, spot_rate)
    worst_s = slow_s
    if plan.max_run_s is not None:
        worst_s, starts = max(plan.max_run_s, running_s), starts_bound(plan.max_run_s, spot_rate)
    expected = _side(plan, running_s, 1 + interruptions, 1 + plan.expected_relaunches, worst=False)
    worst = _side(plan, worst_s, max(Fraction(starts), 1 + interruptions), Fraction(1 + plan.relaunches), worst=True)
    # max_wait that is shorter than what a launch needs bounds nothing that anybody wants
    longest_s = max(worst.launch_elapsed_s, expected.launch_elapsed_s)
    return Bill(
        plan=plan,
        seconds=seconds,
        slow_s=slow_s,
        interruptions=interruptions,
        expected=expected,
        worst=replace(worst, launch_elapsed_s=longest_s),
    )


def _side(plan: Plan, launch_s: Fraction, starts: Fraction, launches: Fraction, *, worst: bool) -> Side:
    elapsed_s = launch_s + starts * plan.startup_unbilled_s
    if worst and plan.on_spot and plan.spot and plan.spot.max_wait_s is not None:
        elapsed_s = max(launch_s, min(elapsed_s, plan.spot.max_wait_s))
    controller = plan.controller
    hours = Fraction(0) if controller is None else controller.worst_hours if worst else controller.hours
    return Side(
        launch_s=launch_s,
        launch_elapsed_s=elapsed_s,
        launch_usd=launch_s * plan.usd_per_hour / HOUR_S,
        launches=launches,
        controller_usd=hours * controller.usd_per_hour if controller else Fraction(0),
        people=plan.people,
        rounds=math.ceil(Fraction(plan.people, plan.people_at_once or plan.people)),
    )


def _work_s(plan: Plan, *, slow: bool) -> Fraction:
    """Return the seconds of training and evaluation of one launch that is never interrupted."""
    training = plan.training.slow_s if slow else plan.training.unit_s
    evaluation = plan.evaluation.slow_s if slow else plan.evaluation.unit_s
    return plan.units * plan.passes * training + plan.evaluation_rows * evaluation


def _interruptions_per_s(plan: Plan) -> Fraction:
    """Return how often a launch is interrupted while it runs: when any one of its instances is."""
    if not plan.on_spot or plan.spot is None:
        return Fraction(0)
    return plan.spot.interruptions_per_hour * plan.machine.count / HOUR_S


def changed(plan: Plan, **changes: object) -> Plan:
    """Return the plan with some fields changed; max_run moves with the length of a launch, so that its slack stays.

    The new cap is the old one times new over old expected time, rounded up to whole minutes.
    """
    new = replace(plan, **changes)  # type: ignore[arg-type]
    if plan.max_run_s is None or "max_run_s" in changes:
        return new
    ratio = bill_of(new).seconds.billed / max(bill_of(plan).seconds.billed, Fraction(1))
    if ratio == 1:
        return new
    return replace(new, max_run_s=Fraction(math.ceil(plan.max_run_s * ratio / 60) * 60))


def sped_up(rate: Rate, speed: Fraction) -> Rate:
    """Return a rate `speed` times as fast."""
    return Rate(rate.unit_s / speed, rate.slow_s / speed)
