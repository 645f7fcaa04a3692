"""The arithmetic of a bill: the reference case to the last digit, and what must hold for every plan."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.report.cost import Controller, Machine, Plan, Rate, Spot, bill_of, changed
from shardprep.report.cost_remedies import remedies_of
from shardprep.report.cost_whatif import Choice, WhatIf, grid_of

CLASS = Plan(
    machine=Machine("ml.g5.xlarge", F("1.41")),
    units=F(251),
    passes=F(2),
    training=Rate(F("1.45"), F("1.45")),
    evaluation=Rate(F(19), F(19)),
    rows_before=F(15),
    rows_after=F(15),
    rows_after_each_pass=F(8),
    startup_billed_s=F(300),
    controller=Controller("ml.t3.medium", F("0.05"), F(3), F(3)),
    people=50,
    relaunches=1,
    max_run_s=F(65 * 60),
)
NOTHING_ELSE = WhatIf((), (), ())


def test_the_reference_case_is_exact() -> None:
    bill = bill_of(CLASS)
    # 251 x 2 x 1.45 s + (15 + 15 + 2 x 8) x 19 s + 300 s, by hand
    assert bill.expected.launch_s == F("727.9") + 46 * 19 + 300 == F("1901.9")
    assert bill.expected.launch_usd == F("1901.9") * F("1.41") / 3600
    assert bill.expected.person_usd == bill.expected.launch_usd + F("0.15")
    assert bill.expected.group_usd == 50 * bill.expected.person_usd
    assert bill.group_one_relaunch_usd == 50 * (2 * bill.expected.launch_usd + F("0.15"))
    assert bill.group_two_launches_at_cap_usd == bill.worst.group_usd == F("160.25")
    assert (bill.idle_usd("day"), bill.idle_usd("week")) == (F("33.84"), F("236.88"))
    assert bill.idle_usd("month") == F("1.41") * 365 * 24 / 12
    assert bill.fits


def amounts(most: int) -> st.SearchStrategy[F]:
    return st.fractions(min_value=0, max_value=most, max_denominator=20)


@st.composite
def plans(draw, spot: bool | None = None) -> Plan:
    unit_s = draw(st.fractions(min_value=F(1, 100), max_value=5, max_denominator=100))
    hours = draw(amounts(10))
    relaunches = draw(st.integers(0, 3))
    on_spot = draw(st.booleans()) if spot is None else spot
    startup_s = draw(amounts(900))
    return Plan(
        machine=Machine("m", draw(amounts(20)), draw(st.integers(1, 4))),
        units=F(draw(st.integers(1, 20_000))),
        passes=F(draw(st.integers(1, 5))),
        training=Rate(unit_s, unit_s * (1 + draw(amounts(1)))),
        evaluation=Rate(unit_s, unit_s),
        rows_before=draw(amounts(100)),
        rows_after=draw(amounts(100)),
        rows_after_each_pass=draw(amounts(100)),
        startup_billed_s=startup_s,
        startup_unbilled_s=draw(amounts(900)),
        checkpoint_every_s=draw(st.none() | st.fractions(min_value=60, max_value=7200, max_denominator=1)),
        checkpoint_write_s=draw(amounts(60)),
        on_spot=on_spot,
        spot=Spot(draw(st.fractions(0, F(9, 10), max_denominator=10)), draw(amounts(1))),
        controller=draw(st.none() | st.just(Controller("c", F("0.05"), hours, hours + draw(amounts(5))))),
        people=draw(st.integers(1, 60)),
        people_at_once=draw(st.none() | st.integers(1, 60)),
        relaunches=relaunches,
        expected_relaunches=F(draw(st.integers(0, relaunches))),
        max_run_s=draw(st.none() | st.integers(1000, 200_000).map(F)),
        budget_usd=draw(st.none() | amounts(10_000)),
        deadline_s=draw(st.none() | st.fractions(min_value=1, max_value=10**6, max_denominator=1)),
    )


MORE = {
    "units": F(1000), "passes": F(1), "rows_before": F(10), "rows_after": F(10), "rows_after_each_pass": F(10),
    "startup_billed_s": F(60), "startup_unbilled_s": F(60), "checkpoint_write_s": F(5), "people": 1, "relaunches": 1,
}  # fmt: skip
ROUNDING = 1 + F(1, 10**9)  # exponentials are floats


@settings(max_examples=30)
@given(plans(), st.sampled_from(sorted(MORE)))
def test_more_of_anything_never_costs_less(plan: Plan, name: str) -> None:
    more = bill_of(replace(plan, **{name: getattr(plan, name) + MORE[name]}))
    less = bill_of(plan)
    for before, after in ((less.expected, more.expected), (less.worst, more.worst)):
        assert after.group_usd * ROUNDING >= before.group_usd
        assert after.person_usd * ROUNDING >= before.person_usd
        assert after.group_elapsed_s * ROUNDING >= before.group_elapsed_s


@settings(max_examples=30)
@given(plans(spot=True), amounts(1))
def test_more_interruptions_and_less_discount_never_cost_less(plan: Plan, more: F) -> None:
    assert plan.spot is not None
    often = replace(plan, spot=replace(plan.spot, interruptions_per_hour=plan.spot.interruptions_per_hour + more))
    assert bill_of(often).expected.group_usd * ROUNDING >= bill_of(plan).expected.group_usd
    full_price = replace(plan, spot=replace(plan.spot, discount=F(0)))
    assert bill_of(full_price).expected.group_usd >= bill_of(plan).expected.group_usd


@settings(max_examples=30)
@given(plans())
def test_the_worst_case_is_never_better_than_the_expected_one(plan: Plan) -> None:
    bill = bill_of(plan)
    assert bill.worst.launch_s >= bill.expected.launch_s
    assert bill.worst.launch_usd >= bill.expected.launch_usd
    assert bill.worst.person_usd >= bill.expected.person_usd
    assert bill.worst.group_usd >= bill.expected.group_usd
    assert bill.worst.group_elapsed_s >= bill.expected.group_elapsed_s


def test_waiting_that_max_wait_cuts_short_is_told_and_never_makes_the_worst_case_the_shorter_one() -> None:
    spot = Spot(F("0.6"), F(1, 10), max_wait_s=F(70 * 60))
    bill = bill_of(replace(CLASS, on_spot=True, spot=spot, startup_unbilled_s=F(100 * 60)))
    assert bill.expected.launch_elapsed_s > 70 * 60
    assert bill.worst.group_elapsed_s >= bill.expected.group_elapsed_s


def test_one_more_row_never_means_fewer_starts_where_the_bound_changes_its_kind() -> None:
    # at these rates more is lost than won: from some length on the bound on interruptions has no end
    plan = replace(
        CLASS, rows_before=F(14), startup_unbilled_s=F(4812), max_run_s=None, on_spot=True,
        spot=Spot(F("0.26"), F("1.58")),
    )  # fmt: skip
    elapsed = [bill_of(replace(plan, units=F(units))).worst.launch_elapsed_s for units in range(1, 900, 3)]
    assert elapsed == sorted(elapsed)


@settings(max_examples=30)
@given(plans())
def test_sums_add_up_and_units_agree(plan: Plan) -> None:
    bill = bill_of(plan)
    for side in (bill.expected, bill.worst):
        assert side.group_usd == plan.people * side.person_usd
        assert side.person_usd == side.launches * side.launch_usd + side.controller_usd
        assert side.launch_usd * 3600 == side.launch_s * plan.usd_per_hour
    assert bill.seconds.billed == bill.expected.launch_s
    assert all(part >= 0 for part in bill.seconds)
    assert bill.seconds.training == plan.units * plan.passes * plan.training.unit_s


@settings(max_examples=30)
@given(plans(spot=True))
def test_spot_without_interruptions_is_the_discount(plan: Plan) -> None:
    assert plan.spot is not None
    calm = replace(plan, spot=replace(plan.spot, interruptions_per_hour=F(0)))
    on_demand = replace(calm, on_spot=False)
    factor = 1 - plan.spot.discount
    assert bill_of(calm).expected.jobs_usd == factor * bill_of(on_demand).expected.jobs_usd
    assert bill_of(calm).worst.jobs_usd == factor * bill_of(on_demand).worst.jobs_usd


@settings(max_examples=30)
@given(plans(spot=False))
def test_twice_the_instances_at_half_the_time_cost_the_same_on_demand(plan: Plan) -> None:
    one = replace(plan, max_run_s=None, startup_billed_s=F(0), checkpoint_every_s=None, checkpoint_write_s=F(0))
    half = Rate(plan.training.unit_s / 2, plan.training.slow_s / 2)
    evaluation = Rate(plan.evaluation.unit_s / 2, plan.evaluation.slow_s / 2)
    two = replace(one, machine=replace(one.machine, count=2 * one.machine.count), training=half, evaluation=evaluation)
    assert bill_of(two).expected.group_usd == bill_of(one).expected.group_usd
    assert bill_of(two).worst.group_usd == bill_of(one).worst.group_usd


@settings(max_examples=15)
@given(plans())
def test_what_would_make_it_fit_does(plan: Plan) -> None:
    remedies = remedies_of(plan, NOTHING_ELSE, {"m": plan.machine.usd_per_hour, "small": F("0.3")})
    bill = bill_of(plan)
    assert bool(remedies) != bill.fits
    if remedies:
        assert [one.bill.fits for one in remedies] == sorted((one.bill.fits for one in remedies), reverse=True)
        (budget,) = [one for one in remedies if one.kind == "budget"]
        assert budget.bill.fits
        for one in remedies:
            assert bill_of(one.bill.plan) == one.bill


def test_each_suggestion_has_its_own_figure() -> None:
    plan = replace(CLASS, budget_usd=F(100), spot=Spot(F("0.6"), F("0.1")), checkpoint_every_s=F(300))
    faster = WhatIf(
        instances=(Choice("ml.g6.xlarge", F("0.9"), machine=Machine("ml.g6.xlarge", F("1.13"))),),
        batches=(Choice("16", F("1.2")),),
        methods=(Choice("LoRA", F(2)),),
    )
    remedies = {one.kind: one for one in remedies_of(plan, faster, {"ml.g4dn.xlarge": F("0.74")}) if one.does}
    assert remedies["spot"].bill.fits
    kinds = {"spot", "passes", "evaluation", "instance", "batch", "method", "max_run", "relaunches", "budget"}
    assert kinds <= remedies.keys()
    assert remedies["evaluation"].bill.plan.evaluation_rows < plan.evaluation_rows
    assert remedies["passes"].bill.plan.passes == 1
    assert remedies["relaunches"].bill.worst.group_usd == 50 * (F(65, 60) * F("1.41") + F("0.15"))
    assert remedies["budget"].bill.plan.budget_usd == 161


def test_an_unknown_speed_is_asked_for_not_made_up() -> None:
    plan = replace(CLASS, budget_usd=F(140))
    (instance,) = [
        one for one in remedies_of(plan, NOTHING_ELSE, {"ml.g6.xlarge": F("1.13")}) if one.kind == "instance"
    ]
    assert "if it is at least" in instance.does
    slower = replace(instance.bill.plan, training=Rate(instance.bill.plan.training.unit_s * F("1.2"), F(10)))
    assert instance.bill.fits
    assert bill_of(changed(plan, machine=slower.machine, training=Rate(F(4), F(4)))).worst.group_usd > 140


def test_two_limits_may_need_two_changes() -> None:
    plan = replace(
        CLASS,
        budget_usd=F(100),
        deadline_s=F(3 * 3600),
        people_at_once=20,
        spot=Spot(F("0.6"), F(0)),
        checkpoint_every_s=F(300),
    )
    (first, *_) = remedies_of(plan, NOTHING_ELSE, {})
    assert first.kind == "together"
    assert first.bill.fits
    assert "people at once" in first.does
    assert "spot" in first.does


def test_a_cap_that_is_too_low_is_found() -> None:
    bill = bill_of(replace(CLASS, max_run_s=F(1800)))
    assert bill.over == ("max_run",)
    (remedy,) = [one for one in remedies_of(bill.plan, NOTHING_ELSE, {}) if one.kind == "max_run"]
    assert remedy.bill.fits
    assert remedy.bill.plan.max_run_s == 33 * 60


def test_a_cap_moves_with_the_length_of_a_launch() -> None:
    one = changed(CLASS, passes=F(1))
    assert one.max_run_s is not None
    assert one.max_run_s % 60 == 0
    slack = one.max_run_s / bill_of(one).expected.launch_s
    assert slack == pytest.approx(float(CLASS.max_run_s / bill_of(CLASS).expected.launch_s), rel=0.04)  # type: ignore[operator]


def test_the_grid_has_every_combination_once() -> None:
    choices = WhatIf(
        instances=(Choice("g6", F("0.8"), machine=Machine("g6", F("1.13"))),),
        batches=(Choice("16", F("1.2")), Choice("32", F("1.3"), measured=True)),
        methods=(Choice("full", F("0.7")),),
    )
    grid = grid_of(replace(CLASS, spot=Spot(F("0.6"), F(0))), choices)
    assert len(grid) == 2 * 3 * 2 * 2
    assert len({(cell.instance, cell.batch, cell.method, cell.spot) for cell in grid}) == len(grid)
    (planned,) = [cell for cell in grid if cell.planned]
    assert planned.bill.expected == bill_of(CLASS).expected
    worst = [cell.bill.worst.group_usd for cell in grid]
    assert worst == sorted(worst)
    assert (
        sum(cell.measured for cell in grid) == 4
    )  # the plan's instance and method, and the measured batch, on both capacities
