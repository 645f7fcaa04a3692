"""The picture of a what-if grid: for each way to run, a bar to the expected cost and a line on to the worst case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from shardprep.report.chart import round_steps

WIDTH, ROW, TOP, BOTTOM = 900, 30, 30, 46
RIGHT = 130  # room for the figures behind the bars
WIDEST_LABEL = 400
NARROW = 6.6  # width of a character: most labels are small letters
CLIP = 4.0  # a bar longer than so many times the limit, or the cheapest bar, is cut: the others must stay readable

CSS = """svg .whisker { stroke: var(--bar); stroke-width: 2; }
svg .over { stroke: var(--bad); }
svg .bar.over { fill: var(--bad); stroke: none; }
svg .on-row { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .planned { font-weight: 650; }
"""


@dataclass(frozen=True, slots=True)
class Range:
    """One row: its label, cost expected and in the worst case in USD, and whether it keeps every limit."""

    label: str
    expected: float
    worst: float
    fits: bool
    planned: bool


def range_chart(ranges: Sequence[Range], limit: float | None) -> str:
    """Return an SVG element, one row a range, over an axis in USD from zero; `limit` is a vertical line."""
    left = min(WIDEST_LABEL, max(len(one.label) for one in ranges) * NARROW + 16)
    most = max(one.worst for one in ranges)
    top = min(most, CLIP * max(limit or 0.0, min(one.worst for one in ranges)))
    steps = round_steps(max(top, limit or 0.0))
    plot = WIDTH - left - RIGHT
    height = TOP + ROW * len(ranges) + BOTTOM
    base = height - BOTTOM

    def x_of(usd: float) -> float:
        return left + plot * min(1.0, usd / steps[-1])

    fitting = sum(one.fits for one in ranges)
    parts = [
        "<title>What if: cost of the group for each way to run</title>",
        f"<desc>{len(ranges)} ways to run, {fitting} of them fit; bars end at the expected cost, lines at the worst case.</desc>",
    ]
    for step in steps:
        x = x_of(step)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 19}" text-anchor="middle">{step:,g}</text>')
    if limit is not None:
        x = x_of(limit)
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{base}"/>')
        anchor = "end" if x > WIDTH / 2 else "start"
        shift = -5 if anchor == "end" else 5
        parts.append(
            f'<text class="on-level" x="{x + shift:.1f}" y="{TOP - 10}" text-anchor="{anchor}">budget {limit:,g} USD</text>'
        )
    for index, one in enumerate(ranges):
        parts.append(_row(one, TOP + ROW * index, left, x_of, steps[-1]))
    parts.append(
        f'<text class="axis" x="{WIDTH - 6}" y="{height - 6}" text-anchor="end">USD of the group: bar to the expected cost, '
        "line to the worst case</text>"
    )
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _row(one: Range, y: float, left: float, x_of: Callable[[float], float], axis_end: float) -> str:
    middle = y + ROW / 2
    expected, worst = x_of(one.expected), x_of(one.worst)
    over = "" if one.fits else " over"
    cut = one.worst > axis_end * (1 + 1e-9)
    label = one.label if len(one.label) * NARROW + 16 <= left + 1 else one.label[: int((left - 24) / NARROW)] + "…"
    says = f"{one.label}: expected {money(one.expected)}, worst case {money(one.worst)}, {'fits' if one.fits else 'does not fit'}"
    planned = " planned" if one.planned else ""
    end = (
        f'<path class="whisker{over}" fill="none" d="M{worst - 6:.1f} {middle - 5:.1f} L{worst:.1f} {middle:.1f} '
        f'L{worst - 6:.1f} {middle + 5:.1f}"/>'
        if cut
        else f'<line class="whisker{over}" x1="{worst:.1f}" x2="{worst:.1f}" y1="{middle - 6:.1f}" y2="{middle + 6:.1f}"/>'
    )
    return (
        f"<g><title>{escape(says)}</title>"
        f'<text class="on-row{planned}" x="{left - 8:.1f}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(label)}</text>'
        f'<rect class="bar{over}" x="{left:.1f}" y="{y + 7:.1f}" width="{max(0.5, expected - left):.1f}" height="{ROW - 14}"/>'
        f'<line class="whisker{over}" x1="{expected:.1f}" x2="{worst:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>{end}'
        f'<text class="on-row{planned}" x="{worst + 8:.1f}" y="{middle + 4.5:.1f}">'
        f"{money(one.expected, '')} to {money(one.worst, '')}</text></g>"
    )


def money(usd: float, unit: str = " USD") -> str:
    """Return money in short: 160 USD, 1.2e6 USD."""
    if usd >= 1e6:
        return f"{usd:.1e}{unit}"
    return f"{usd:,.0f}{unit}" if usd >= 100 else f"{usd:,.1f}{unit}"
