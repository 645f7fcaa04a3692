"""The page of `shardprep cost`: the verdict, the bill, what would make it fit, and the what-if grid with its picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardprep.report.cost import Bill
from shardprep.report.cost_picture import CSS, Range, range_chart
from shardprep.report.cost_plan import PlanFile
from shardprep.report.cost_remedies import Remedy
from shardprep.report.cost_text import (
    GRID_HEAD,
    bill_rows,
    cap_note,
    facts_of,
    fits_text,
    grid_rows,
    hours_text,
    minutes,
    sidelights_of,
    usd,
    verdicts_of,
    warnings_of,
)
from shardprep.report.cost_whatif import PLANNED, Cell
from shardprep.report.elements import cards, document, scroll, table

DRAWN = 40  # rows of the picture; the table has all
MORE_CSS = (
    CSS
    + """.verdict { font-size: 1.1rem; font-weight: 650; }
.good { color: var(--bar); }
tr.group td { font-weight: 650; padding-top: .8rem; border-bottom: 0; }
"""
)


def cost_page(file: PlanFile, bill: Bill, remedies: Sequence[Remedy], grid: Sequence[Cell]) -> str:
    """Return the page as text, the same for the same plan, prices and day."""
    sections = [
        f'<h1>{escape(file.title)}</h1><p class="quiet">What the plan <code>{escape(file.path)}</code> costs</p>',
        _verdict(bill),
        _cards(bill),
        _list("Warnings", warnings_of(file, bill), bad=True),
        _bill(bill),
        _limits(bill),
        _remedies(remedies, bill),
        _grid(grid, bill),
        _from(file, bill),
    ]
    return document(f"shardprep cost: {file.title}", "\n".join(filter(None, sections)), MORE_CSS)


def _verdict(bill: Bill) -> str:
    if bill.fits:
        return '<p class="verdict good">The worst case fits.</p>'
    return '<p class="verdict bad">The worst case does not fit.</p>'


def _cards(bill: Bill) -> str:
    expected, worst, plan = bill.expected, bill.worst, bill.plan
    people = f"{plan.people:,} people" if plan.people > 1 else "one person"
    of = f" of a budget of {usd(plan.budget_usd, 0)}" if plan.budget_usd else ""
    items = [
        (usd(expected.group_usd, 1), f"expected, {people}"),
        (usd(worst.group_usd, 1), "worst case" + of),
        (
            usd(expected.launch_usd, 3),
            f"a launch, of {minutes(expected.launch_s)}; {usd(worst.launch_usd, 3)} in the worst case",
        ),
        (
            hours_text(worst.group_elapsed_s),
            f"until all is done in the worst case; {hours_text(expected.group_elapsed_s)} expected",
        ),
    ]
    return cards(items)


def _list(title: str, lines: Sequence[str], *, bad: bool = False) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    kind = ' class="bad"' if bad else ""
    return f"<h2{kind}>{escape(title)}</h2><ul>{items}</ul>" if items else ""


def _bill(bill: Bill) -> str:
    rows = []
    for what, expected, worst, remark in bill_rows(bill):
        group = ' class="group"' if not expected else ""
        cells = (
            f'<td>{escape(what.strip())}</td><td class="n">{escape(expected)}</td><td class="n">{escape(worst)}</td>'
        )
        rows.append(f"<tr{group}>{cells}<td>{escape(remark)}</td></tr>")
    head = '<thead><tr><th></th><th class="n">expected</th><th class="n">worst case</th><th></th></tr></thead>'
    body = "".join(rows)
    return "<h2>The bill</h2>" + scroll(f"<table>{head}<tbody>{body}</tbody></table>")


def _limits(bill: Bill) -> str:
    limits = [f"{label}: {text}" for label, text in verdicts_of(bill)[:-1]]
    return _list("Limits", limits) + _list("Also", sidelights_of(bill))


def _remedies(remedies: Sequence[Remedy], bill: Bill) -> str:
    if not remedies:
        return ""
    body = [
        [
            fits_text(one.bill),
            usd(one.bill.worst.group_usd, 1),
            hours_text(one.bill.worst.group_elapsed_s),
            one.does + cap_note(one, bill),
            one.but,
        ]
        for one in remedies
    ]
    return (
        "<h2>What would make it fit</h2><p>The worst case of the group with each change. "
        "max_run moves with the length of a launch, so that its slack stays.</p>"
        + table(["", "worst case", "time", "change", "but"], body)
    )


def _grid(grid: Sequence[Cell], bill: Bill) -> str:
    if len(grid) < 2:
        return ""
    drawn = [cell for i, cell in enumerate(grid) if i < DRAWN or cell.planned]
    ranges = [
        Range(
            _label(cell),
            float(cell.bill.expected.group_usd),
            float(cell.bill.worst.group_usd),
            cell.bill.fits,
            cell.planned,
        )
        for cell in drawn
    ]
    limit = None if bill.plan.budget_usd is None else float(bill.plan.budget_usd)
    left_out = f" The {len(drawn)} cheapest of {len(grid)} are drawn." if len(drawn) < len(grid) else ""
    guessed = (
        " ~ marks a speed that the plan gives and nobody measured." if not all(cell.measured for cell in grid) else ""
    )
    return (
        "<h2>What if</h2><p>Every way to run that the plan names, cheapest worst case first; the plan itself in bold. "
        "Red ones break a limit."
        f"{guessed}{left_out}</p>{scroll(range_chart(ranges, limit))}"
        + table([*GRID_HEAD[:3], "capacity", *GRID_HEAD[4:]], grid_rows(grid))
    )


def _label(cell: Cell) -> str:
    parts = ["spot" if cell.spot else "", cell.instance]
    parts += [f"batch {cell.batch}" if cell.batch != PLANNED else "", cell.method if cell.method != PLANNED else ""]
    return ", ".join(filter(None, parts)) + ("" if cell.measured else " ~")


def _from(file: PlanFile, bill: Bill) -> str:
    body = [[label, text] for label, text in facts_of(file, bill)]
    notes = "".join(f"<p>{escape(note)}</p>" for note in file.notes)
    cap = bill.plan.max_run_s
    ends = (
        f"max_run ends a launch after {float(cap / 60):g} minutes"
        if cap
        else "there is no max_run, and it takes the slow end of the rates"
    )
    launches = f"{float(bill.worst.launches):g} time{'s' * (bill.worst.launches != 1)}"
    worst = f"<p>The worst case launches {launches} a person; {ends}.</p>"
    return (
        f"<h2>Made from</h2>{table(['', ''], body)}{notes}{worst}<footer>Prices of {file.prices.day} from <code>"
        f"{escape(file.prices.path)}</code>. Time is billed by the second. "
        "Storage, requests and data transfer are not in it.</footer>"
    )
