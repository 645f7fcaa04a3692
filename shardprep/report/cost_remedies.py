"""What would make a plan fit: one change at a time, each with what it would cost in the worst case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from shardprep.report.cost import HOUR_S, Bill, Machine, Plan, Spot, bill_of, changed, sped_up
from shardprep.report.cost_whatif import PLANNED, Choice, WhatIf, with_choices

T = TypeVar("T")
SPEED_STEPS = 20  # of 1: a needed speed is told in steps of 0.05
FASTEST = 20  # times: a job that must be faster than this does not become so by a batch
TINY = Fraction(1, 1000)  # a limit of nothing
MILDEST_FIRST = (
    "people_at_once", "spot", "batch", "instance", "max_run", "relaunches", "method", "evaluation", "passes",
)  # fmt: skip
MEASURE = "a guess of the plan: measure it with shardprep pilot"
COMPARE = "check that accuracy holds: shardprep compare"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: its kind, what to do, what to know about it, and the bill with it."""

    kind: str
    does: str
    but: str
    bill: Bill


def remedies_of(plan: Plan, what_if: WhatIf, prices: Mapping[str, Fraction]) -> tuple[Remedy, ...]:
    """Return the changes, those that make the plan fit first, cheapest first; none if it fits already.

    max_run moves with the length of a launch. Where nothing alone is enough, two or more are put together.
    """
    if bill_of(plan).fits:
        return ()
    found = [
        *_spot(plan),
        *_passes(plan),
        *_evaluation(plan),
        *_choices(plan, what_if),
        *_cheaper_instances(plan, what_if, prices),
        *_speed(plan),
        *_limits(plan),
    ]
    if not any(remedy.bill.fits for remedy in found):
        found += _together(plan, what_if)
    found.append(_more_budget(plan))
    return tuple(sorted(found, key=lambda one: (not one.bill.fits, one.kind == "budget", one.bill.worst.group_usd)))


def _spot(plan: Plan) -> Iterator[Remedy]:
    if plan.on_spot:
        return
    if plan.spot is not None:
        bill = bill_of(changed(plan, on_spot=True))
        yield Remedy("spot", "run on spot instances as [spot] says", _risk(plan), bill)
        return
    for percent in range(5, 95, 5):
        spot = Spot(Fraction(percent, 100), Fraction(0))
        bill = bill_of(changed(plan, on_spot=True, spot=spot))
        if bill.fits:
            does = f"run on spot instances, if the discount is at least {percent} %"
            yield Remedy("spot", does, "interruptions are not in this figure: describe [spot] in the plan", bill)
            return


def _risk(plan: Plan) -> str:
    return (
        "" if plan.checkpoint_every_s is not None else "give checkpoint_minutes: without, an interruption begins again"
    )


def _passes(plan: Plan) -> Iterator[Remedy]:
    fewer = range(math.ceil(plan.passes) - 1, 0, -1)
    if fewer:
        passes, bill = _first_that_fits(fewer, lambda count: changed(plan, passes=Fraction(count)))
        yield Remedy("passes", f"{passes} pass{'es' * (passes > 1)} instead of {_number(plan.passes)}", COMPARE, bill)


def _evaluation(plan: Plan) -> Iterator[Remedy]:
    if not plan.evaluation_rows or not plan.evaluation.unit_s:
        return

    def with_share(percent: int) -> Plan:
        def cut(rows: Fraction) -> Fraction:
            return Fraction(math.floor(rows * percent / 100))

        return changed(
            plan,
            rows_before=cut(plan.rows_before),
            rows_after=cut(plan.rows_after),
            rows_after_each_pass=cut(plan.rows_after_each_pass),
        )

    percent, bill = _first_that_fits(range(90, -10, -10), with_share)
    rows = _number(bill.plan.evaluation_rows) if bill.plan.evaluation_rows else "no"
    does = f"evaluate {rows} rows a launch instead of {_number(plan.evaluation_rows)}"
    but = (
        "what is not evaluated is not known"
        if percent == 0
        else "fewer rows tell less: shardprep compare says how many are needed"
    )
    yield Remedy("evaluation", does, but, bill)


def _choices(plan: Plan, what_if: WhatIf) -> Iterator[Remedy]:
    for choice in what_if.instances:
        bill = bill_of(with_choices(plan, (choice,), ()))
        yield Remedy("instance", f"run on {choice.label}", "" if choice.measured else MEASURE, bill)
    for choice in what_if.batches:
        bill = bill_of(with_choices(plan, (), (choice,)))
        does = f"batch {choice.label}" + ("" if what_if.batch == PLANNED else f" instead of {what_if.batch}")
        yield Remedy("batch", does, _guess(choice), bill)
    for choice in what_if.methods:
        bill = bill_of(with_choices(plan, (), (choice,)))
        does = choice.label if what_if.method == PLANNED else f"{choice.label} instead of {what_if.method}"
        yield Remedy("method", does, "; ".join(filter(None, [_guess(choice), COMPARE])), bill)


def _guess(choice: Choice) -> str:
    return "" if choice.measured else MEASURE


def _cheaper_instances(plan: Plan, what_if: WhatIf, prices: Mapping[str, Fraction]) -> Iterator[Remedy]:
    """Say how fast an instance of the price file would have to be, where the plan does not say how fast it is."""
    known = {choice.machine.name for choice in what_if.instances if choice.machine} | {plan.machine.name}
    known |= {plan.controller.name} if plan.controller else set()
    for name, price in sorted(prices.items(), key=lambda item: item[1]):
        if name in known or price >= plan.machine.usd_per_hour:
            continue
        machine = Machine(name, price, plan.machine.count)
        speeds = [Fraction(step, SPEED_STEPS) for step in range(1, 2 * SPEED_STEPS + 1)]
        choices = [Choice(name, speed, machine=machine) for speed in speeds]
        choice, bill = _first_that_fits(choices, lambda choice: with_choices(plan, (choice,), ()))
        if bill.fits:
            speed = choice.speed
            does = f"run on {name}, if it is at least {float(speed):g} times as fast as {plan.machine.name}"
            yield Remedy("instance", does, "measure it with shardprep pilot", bill)


def _speed(plan: Plan) -> Iterator[Remedy]:
    speeds = [1 + Fraction(step, SPEED_STEPS) for step in range(1, (FASTEST - 1) * SPEED_STEPS + 1)]
    speed, bill = _first_that_fits(speeds, lambda speed: changed(plan, training=sped_up(plan.training, speed)))
    if bill.fits:
        does = f"train at least {float(speed):g} times as fast: larger batch, LoRA, less padding, less waiting for data"
        yield Remedy("speed", does, "shardprep pilot says what holds it back", bill)


def _limits(plan: Plan) -> Iterator[Remedy]:
    bill = bill_of(plan)
    if plan.max_run_s is not None:
        minutes = math.ceil(bill.slow_s / 60) + 1
        other = bill_of(replace(plan, max_run_s=Fraction(minutes * 60)))
        if "max_run" in bill.over:
            yield Remedy("max_run", f"max_run of {minutes} minutes, so that a launch can end", "", other)
        elif minutes * 60 < plan.max_run_s:
            does = f"max_run of {minutes} minutes instead of {_number(plan.max_run_s / 60)}"
            yield Remedy("max_run", does, "a launch that is slower than the slow end is cut off", other)
    if plan.relaunches > plan.expected_relaunches:
        fewer = range(plan.relaunches - 1, math.ceil(plan.expected_relaunches) - 1, -1)
        relaunches, other = _first_that_fits(fewer, lambda count: replace(plan, relaunches=count))
        does = f"allow {relaunches} relaunch{'es' * (relaunches != 1)} a person instead of {plan.relaunches}"
        yield Remedy(
            "relaunches",
            does,
            "a launch that fails costs money and leaves nothing: checkpoints make it continue",
            other,
        )
    if "deadline" in bill.over and plan.people_at_once is not None and plan.people_at_once < plan.people:
        more = range(plan.people_at_once + 1, plan.people + 1)
        count, other = _first_that_fits(more, lambda count: replace(plan, people_at_once=count))
        yield Remedy(
            "people_at_once", f"{count} people at once instead of {plan.people_at_once}", "ask for the quota", other
        )


def _together(plan: Plan, what_if: WhatIf) -> list[Remedy]:
    """Return several changes that fit together: those that cost nothing first, as long as each one still helps."""
    steps: list[Remedy] = []
    here = bill_of(plan)
    for kind in MILDEST_FIRST:
        if here.fits:
            break
        options = [one for one in _certain(here.plan, what_if) if one.kind == kind]
        best = min(options, key=lambda one: _excess(one.bill), default=None)
        if best is not None and _excess(best.bill) < _excess(here):
            steps.append(best)
            here = best.bill
    if not here.fits:
        return []
    buts = dict.fromkeys(one.but for one in steps if one.but)
    return [Remedy("together", "together: " + "; ".join(one.does for one in steps), "; ".join(buts), here)]


def _certain(plan: Plan, what_if: WhatIf) -> Iterator[Remedy]:
    """Yield the changes whose effect the plan itself describes."""
    if plan.spot is not None:
        yield from _spot(plan)
    yield from _passes(plan)
    yield from _evaluation(plan)
    yield from _choices(plan, what_if)
    yield from _limits(plan)


def _excess(bill: Bill) -> Fraction:
    """Return by how much the worst case breaks its limits, as a sum of shares."""
    plan, worst = bill.plan, bill.worst
    pairs = [
        (worst.group_usd, plan.budget_usd),
        (worst.person_usd, plan.budget_person_usd),
        (worst.group_elapsed_s, plan.deadline_s),
        (bill.seconds.billed, plan.max_run_s),
    ]
    return sum(
        (max(Fraction(0), used / max(limit, TINY) - 1) for used, limit in pairs if limit is not None), Fraction(0)
    )


def _more_budget(plan: Plan) -> Remedy:
    """Return limits that the plan keeps, rounded up: first a max_run that lets it end, then what that costs."""
    says: list[str] = []
    bill = bill_of(plan)
    if bill.cut_off:
        minutes = math.ceil(bill.slow_s / 60)
        bill = bill_of(replace(plan, max_run_s=Fraction(minutes * 60)))
        says.append(f"max_run of {minutes:,} minutes")
    limits: dict[str, Fraction] = {}
    if "budget_usd" in bill.over:
        limits["budget_usd"] = Fraction(math.ceil(bill.worst.group_usd))
        says.append(f"a budget of {math.ceil(bill.worst.group_usd):,} USD")
    if "budget_person_usd" in bill.over:
        limits["budget_person_usd"] = Fraction(math.ceil(bill.worst.person_usd))
        says.append(f"{math.ceil(bill.worst.person_usd):,} USD a person")
    if "deadline" in bill.over:
        hours = math.ceil(bill.worst.group_elapsed_s / HOUR_S)
        limits["deadline_s"] = Fraction(hours * HOUR_S)
        says.append(f"a deadline of {hours:,} hours")
    with_limits = replace(bill.plan, **limits)  # type: ignore[arg-type]
    return Remedy("budget", f"or, as planned: {' and '.join(says)}", "", bill_of(with_limits))


def _first_that_fits(options: Sequence[T], plan_of: Callable[[T], Plan]) -> tuple[T, Bill]:
    """Return the first option whose plan fits, with its bill; the last one if none does.

    Options go from the mildest to the strongest: where one fits, all after it do, so the first is found by halving.
    """
    low, high = -1, len(options) - 1
    bill = bill_of(plan_of(options[high]))
    if bill.fits:
        while high - low > 1:
            middle = (low + high) // 2
            other = bill_of(plan_of(options[middle]))
            low, high, bill = (low, middle, other) if other.fits else (middle, high, bill)
    return options[high], bill


def _number(value: Fraction) -> str:
    return f"{float(value):,g}"
