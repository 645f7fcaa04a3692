"""A bill as lines for a person."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from shardprep.report.cost import HOUR_S, IDLE_HOURS, Bill, Controller, Side
from shardprep.report.cost_plan import PlanFile
from shardprep.report.cost_remedies import Remedy
from shardprep.report.cost_whatif import Cell

LABEL = 14
SHOWN_CELLS = 16
LARGE_USD = Fraction(10) ** 9


def cost_text(file: PlanFile, bill: Bill, remedies: Sequence[Remedy], grid: Sequence[Cell]) -> str:
    """Return the bill as lines of at most about 120 characters."""
    lines = [file.title, ""]
    lines += [_labelled(label, text) for label, text in facts_of(file, bill)]
    lines += ["", *_columns([["", "expected", "worst case", ""], *bill_rows(bill)]), ""]
    lines += [_labelled(label, text) for label, text in verdicts_of(bill)]
    lines += ["", *(_labelled("also" if i == 0 else "", text) for i, text in enumerate(sidelights_of(bill)))]
    if remedies:
        lines += ["", "what would make it fit, worst case of the group:", *_remedies(remedies, bill)]
    if len(grid) > 1:
        lines += ["", "what if (worst case first to last; ~: a speed that was not measured):", *_grid(grid)]
    lines += ["", *(_labelled("note", text) for text in file.notes)] if file.notes else []
    lines += [_labelled("warning", text) for text in warnings_of(file, bill)]
    return "\n".join(line.rstrip() for line in lines)


def warnings_of(file: PlanFile, bill: Bill) -> tuple[str, ...]:
    """Return the warnings of the plan, and those that only the bill shows."""
    found = list(file.warnings)
    cap = bill.plan.max_run_s
    if cap is not None and not bill.cut_off and bill.slow_s > cap:
        found.append(
            f"a launch at the slow end takes {minutes(bill.slow_s)}, and max_run ends it after {minutes(cap)}: raise "
            "max_run, or save checkpoints and launch again"
        )
    wait = bill.plan.spot.max_wait_s if bill.plan.on_spot and bill.plan.spot else None
    if wait is not None and bill.expected.launch_elapsed_s > wait:
        found.append(
            f"waiting and running take {minutes(bill.expected.launch_elapsed_s)}, and max_wait ends a launch after "
            f"{minutes(wait)}: raise max_wait_minutes"
        )
    if bill.worst.group_usd > LARGE_USD:
        found.append("on spot this hardly ever ends: checkpoint more often than instances are taken away")
    return tuple(found)


def facts_of(file: PlanFile, bill: Bill) -> list[tuple[str, str]]:
    """Return what the bill is made from: label and text."""
    plan, machine = bill.plan, bill.plan.machine
    many = f"{machine.count} x " if machine.count > 1 else ""
    price = f"{many}{machine.name}, {float(machine.usd_per_hour):,g} USD an hour"
    if plan.on_spot and plan.spot:
        price += f" less {float(plan.spot.discount):.0%} on spot"
    unit = f"{float(plan.training.unit_s):,.3g} s each" if plan.unit == "rows" else _per_second(plan.training.unit_s)
    work = f"{float(plan.units):,.0f} {plan.unit} x {float(plan.passes):g} pass{'es' * (plan.passes != 1)}, {unit}"
    facts = [
        ("instance", f"{price} (prices of {file.prices.day})"),
        ("training", f"{work}: {minutes(bill.seconds.training)}"),
    ]
    if plan.evaluation_rows:
        rows = f"{float(plan.evaluation_rows):,g} rows a launch, {float(plan.evaluation.unit_s):,.3g} s each"
        facts.append(("evaluation", f"{rows}: {minutes(bill.seconds.evaluation)}"))
    if plan.on_spot and plan.spot:
        every = (
            f"a checkpoint every {minutes(plan.checkpoint_every_s)}" if plan.checkpoint_every_s else "no checkpoints"
        )
        taken = f"{float(plan.spot.interruptions_per_hour):g} an hour of one instance, {every}"
        facts.append(("interruptions", f"{taken}: {float(bill.interruptions):.2f} expected in a launch"))
    return facts


def _per_second(unit_s: Fraction) -> str:
    return f"{float(1 / unit_s):,.4g} a second"


def bill_rows(bill: Bill) -> list[list[str]]:
    """Return the table: what, expected, worst case, remark."""
    seconds, expected, worst, plan = bill.seconds, bill.expected, bill.worst, bill.plan
    parts = [("start-up, billed", seconds.startup), ("training", seconds.training), ("evaluation", seconds.evaluation)]
    parts += [("checkpoints", seconds.checkpoints), ("done again after interruptions", seconds.redone)]
    rows = [[f"  {name}", minutes(value), "", ""] for name, value in parts if value]
    why = "the slow end of the rates" if plan.max_run_s is None else "max_run ends it"
    why = "" if worst.launch_s == expected.launch_s else why
    waits = plan.startup_unbilled_s
    hours = f"with {minutes(waits)} at each start that are not billed" if waits else ""
    time = ["  time", hours_text(expected.group_elapsed_s), hours_text(worst.group_elapsed_s), hours]
    group = [
        [f"{plan.people:,} people", "", "", ""],
        ["  cost", usd(expected.group_usd, 1), usd(worst.group_usd, 1), ""],
    ]
    return [
        ["one launch", "", "", ""],
        *rows,
        ["  billed time", minutes(expected.launch_s), minutes(worst.launch_s), why],
        ["  cost", usd(expected.launch_usd, 3), usd(worst.launch_usd, 3), ""],
        ["one person", "", "", ""],
        ["  launches", f"{float(expected.launches):g}", f"{float(worst.launches):g}", ""],
        ["  jobs", usd(expected.jobs_usd, 3), usd(worst.jobs_usd, 3), ""],
        *([_controller_row(plan.controller, expected, worst)] if plan.controller else []),
        ["  cost", usd(expected.person_usd, 3), usd(worst.person_usd, 3), ""],
        *(group if plan.people > 1 else []),
        time,
    ]


def _controller_row(controller: Controller, expected: Side, worst: Side) -> list[str]:
    hours = f"{float(controller.hours):g} h of {controller.name}"
    return ["  controller", usd(expected.controller_usd, 3), usd(worst.controller_usd, 3), hours]


def verdicts_of(bill: Bill) -> list[tuple[str, str]]:
    """Return each limit with whether the worst case keeps it, and the verdict last."""
    plan, worst = bill.plan, bill.worst
    lines: list[tuple[str, str]] = []
    for name, label, limit, used in (
        ("budget_usd", "budget", plan.budget_usd, worst.group_usd),
        ("budget_person_usd", "a person", plan.budget_person_usd, worst.person_usd),
    ):
        if limit is not None:
            rest = f"over by {usd(used - limit, 1)}" if name in bill.over else f"{usd(limit - used, 1)} left"
            lines.append((label, f"{usd(limit, 1)}: {rest} in the worst case"))
    if plan.deadline_s is not None:
        used = worst.group_elapsed_s
        rest = (
            f"late by {hours_text(used - plan.deadline_s)}"
            if used > plan.deadline_s
            else f"{hours_text(plan.deadline_s - used)} left"
        )
        lines.append(("deadline", f"{hours_text(plan.deadline_s)}: {rest} in the worst case"))
    if bill.cut_off and plan.max_run_s is not None:
        needed = minutes(bill.seconds.billed)
        lines.append(
            ("max_run", f"{minutes(plan.max_run_s)}: a launch needs {needed} and is cut off before it is done")
        )
    if not lines:
        lines.append(("limits", "none: budget_usd, budget_person_usd, deadline_hours or deadline_days in the plan"))
    return [*lines, ("verdict", "the worst case fits" if bill.fits else "THE WORST CASE DOES NOT FIT")]


def sidelights_of(bill: Bill) -> list[str]:
    """Return what else a person asks: relaunches, and the notebook that was forgotten."""
    who = "everybody launches" if bill.plan.people > 1 else "the job is launched"
    lines = [f"{usd(bill.group_one_relaunch_usd, 1)} if {who} a second time, from the start"]
    if bill.group_two_launches_at_cap_usd is not None:
        lines.append(f"{usd(bill.group_two_launches_at_cap_usd, 1)} if {who} twice and max_run ends both")
    idle = ", ".join(f"{usd(bill.idle_usd(period), 2)} a {period}" for period in IDLE_HOURS)
    return [*lines, f"a forgotten {bill.plan.machine.name} costs {idle}"]


def _remedies(remedies: Sequence[Remedy], before: Bill) -> list[str]:
    wide = max(len(fits_text(one.bill)) for one in remedies)
    return [
        f"  {fits_text(one.bill).ljust(wide)}  {usd(one.bill.worst.group_usd, 1):>12}  "
        f"{hours_text(one.bill.worst.group_elapsed_s):>8}  {one.does}{cap_note(one, before)}"
        + (f" ({one.but})" if one.but else "")
        for one in remedies
    ]


def cap_note(remedy: Remedy, before: Bill) -> str:
    """Return the max_run that a change goes with, where it is another one."""
    cap = remedy.bill.plan.max_run_s
    said = remedy.kind in ("max_run", "budget")
    return "" if said or cap is None or cap == before.plan.max_run_s else f", with max_run at {minutes(cap)}"


def grid_rows(grid: Sequence[Cell]) -> list[list[str]]:
    """Return the grid as a table without its head."""
    return [
        [
            cell.instance + ("" if cell.measured else " ~"),
            cell.batch,
            cell.method,
            "spot" if cell.spot else "on demand",
            usd(cell.bill.expected.group_usd, 1),
            usd(cell.bill.worst.group_usd, 1),
            hours_text(cell.bill.worst.group_elapsed_s),
            fits_text(cell.bill) + ("; the plan" if cell.planned else ""),
        ]
        for cell in grid
    ]


def fits_text(bill: Bill) -> str:
    """Return "fits", or the limits that the worst case breaks."""
    names = {"budget_usd": "budget", "budget_person_usd": "budget of a person"}
    return "fits" if bill.fits else "over " + ", ".join(names.get(name, name) for name in bill.over)


GRID_HEAD = ["instance", "batch", "method", "", "expected", "worst case", "time", ""]


def _grid(grid: Sequence[Cell]) -> list[str]:
    shown = [cell for i, cell in enumerate(grid) if i < SHOWN_CELLS or cell.planned]
    lines = _columns([GRID_HEAD, *grid_rows(shown)], left=4)
    left_out = len(grid) - len(shown)
    return [*lines, f"  and {left_out:,} dearer ones: --json and --html have all"] if left_out else lines


def minutes(seconds: Fraction) -> str:
    """Return a time: in minutes, or in hours from three hours on."""
    return hours_text(seconds) if seconds >= 3 * HOUR_S else f"{rounded(seconds / 60, 1):,.1f} min"


def hours_text(seconds: Fraction) -> str:
    """Return a time in hours."""
    hours = seconds / HOUR_S
    return f"{rounded(hours, 2 if hours < 10 else 1):,} h"


def usd(value: Fraction, decimals: int) -> str:
    """Return money: 1,029.3 USD."""
    if value > LARGE_USD:
        return "over 1e9 USD"
    return f"{rounded(value, decimals):,.{decimals}f} USD"


def rounded(value: Fraction | None, decimals: int) -> float | None:
    """Return an exact value rounded half to even, None for none."""
    return None if value is None else float(round(value, decimals))


def _labelled(label: str, text: str) -> str:
    return f"{label.ljust(LABEL)}{text}"


def _columns(table: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return lines; the first `left` columns and the last are left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(w) if i < left or i == last else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
