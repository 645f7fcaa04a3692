"""A bill as one JSON object for programs. The rounded figures are those that people quote; `exact` has them all."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardprep.report.cost import HOUR_S, IDLE_HOURS, Bill
from shardprep.report.cost_plan import PlanFile
from shardprep.report.cost_remedies import Remedy
from shardprep.report.cost_text import rounded, warnings_of
from shardprep.report.cost_whatif import Cell

# Decimals of the rounded figures: money of one person to a tenth of a cent, of the group to ten cents. Half to even.
DECIMALS = {
    "job_minutes": 1, "job_usd": 3, "person_usd": 3, "group_usd": 1, "group_one_relaunch_usd": 1,
    "group_two_launches_at_cap_usd": 1, "idle_day_usd": 2, "idle_week_usd": 1, "idle_month_usd": 1,
    "worst_job_minutes": 1, "worst_job_usd": 3, "worst_person_usd": 3, "worst_group_usd": 1, "person_hours": 2,
    "worst_person_hours": 2, "group_hours": 2, "worst_group_hours": 2, "interruptions": 2,
}  # fmt: skip


def figures_of(bill: Bill) -> dict[str, Fraction | None]:
    """Return the figures of a bill by name, exact; DECIMALS says how each is rounded."""
    expected, worst = bill.expected, bill.worst
    return {
        "job_minutes": expected.launch_s / 60,
        "job_usd": expected.launch_usd,
        "person_usd": expected.person_usd,
        "group_usd": expected.group_usd,
        "group_one_relaunch_usd": bill.group_one_relaunch_usd,
        "group_two_launches_at_cap_usd": bill.group_two_launches_at_cap_usd,
        **{f"idle_{period}_usd": bill.idle_usd(period) for period in IDLE_HOURS},
        "worst_job_minutes": worst.launch_s / 60,
        "worst_job_usd": worst.launch_usd,
        "worst_person_usd": worst.person_usd,
        "worst_group_usd": worst.group_usd,
        "person_hours": expected.person_elapsed_s / HOUR_S,
        "worst_person_hours": worst.person_elapsed_s / HOUR_S,
        "group_hours": expected.group_elapsed_s / HOUR_S,
        "worst_group_hours": worst.group_elapsed_s / HOUR_S,
        "interruptions": bill.interruptions,
    }


def cost_json(file: PlanFile, bill: Bill, remedies: Sequence[Remedy], grid: Sequence[Cell]) -> dict[str, Any]:
    """Return everything as JSON values; `exact` has the figures unrounded."""
    figures, plan = figures_of(bill), bill.plan
    return {
        "plan": file.path,
        "title": file.title,
        "fits": bill.fits,
        "over": list(bill.over),
        **{name: rounded(value, DECIMALS[name]) for name, value in figures.items()},
        "people": plan.people,
        "budget_usd": _float(plan.budget_usd),
        "budget_person_usd": _float(plan.budget_person_usd),
        "deadline_hours": None if plan.deadline_s is None else float(plan.deadline_s / HOUR_S),
        "instance": plan.machine.name,
        "instances": plan.machine.count,
        "usd_per_hour": float(plan.machine.usd_per_hour),
        "billed_usd_per_hour": float(plan.usd_per_hour),
        "spot": plan.on_spot,
        "prices": {"file": file.prices.path, "date": file.prices.day.isoformat()},
        "minutes": {name: float(value / 60) for name, value in bill.seconds._asdict().items()},
        "exact": {name: _float(value) for name, value in figures.items()},
        "would_fit": [_remedy_json(remedy, bill) for remedy in remedies],
        "what_if": [_cell_json(cell) for cell in grid],
        "notes": list(file.notes),
        "warnings": list(warnings_of(file, bill)),
    }


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _remedy_json(remedy: Remedy, before: Bill) -> dict[str, Any]:
    return {
        "kind": remedy.kind,
        "does": remedy.does,
        "but": remedy.but,
        "fits": remedy.bill.fits,
        "group_usd": rounded(remedy.bill.expected.group_usd, 1),
        "worst_group_usd": rounded(remedy.bill.worst.group_usd, 1),
        "saves_usd": rounded(before.worst.group_usd - remedy.bill.worst.group_usd, 1),
        "worst_group_hours": rounded(remedy.bill.worst.group_elapsed_s / HOUR_S, 2),
        "max_run_minutes": _minutes(remedy.bill.plan.max_run_s),
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    bill = cell.bill
    return {
        "instance": cell.instance,
        "batch": cell.batch,
        "method": cell.method,
        "spot": cell.spot,
        "planned": cell.planned,
        "measured": cell.measured,
        "fits": bill.fits,
        "group_usd": rounded(bill.expected.group_usd, 1),
        "worst_group_usd": rounded(bill.worst.group_usd, 1),
        "group_hours": rounded(bill.expected.group_elapsed_s / HOUR_S, 2),
        "worst_group_hours": rounded(bill.worst.group_elapsed_s / HOUR_S, 2),
        "max_run_minutes": _minutes(bill.plan.max_run_s),
    }


def _minutes(seconds: Fraction | None) -> float | None:
    return None if seconds is None else float(seconds / 60)
