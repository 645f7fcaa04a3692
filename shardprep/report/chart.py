"""One kind of picture: bars over a horizontal axis, as inline SVG without scripts, in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 270
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 26, 46  # room for the labels around the plot
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
CHARACTER = 7.2  # width of a character of the 13 px labels, in user units: rather too much than too little
WIDEST_BAR = 56.0
RULE_GAP = 4.0  # vertical lines nearer than this would make a grey field


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: from left to right in [0, 1] of the plot's width, with its value, and what it says under the pointer."""

    left: float
    right: float
    value: float
    says: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line to compare the bars with."""

    value: float
    label: str


def bar_chart(
    *,
    title: str,
    description: str,
    bars: Sequence[Bar],
    x_label: str,
    x_ticks: Sequence[tuple[float, str]],
    y_label: str,
    y_format: Callable[[float], str],
    y_whole: bool = False,
    rules: Sequence[float] = (),
    level: Level | None = None,
) -> str:
    """Return an SVG element; ticks and rules (thin vertical lines) lie in [0, 1] of the plot's width.

    The vertical axis begins at zero, so that heights may be compared, in whole steps with y_whole. Labels that
    would overlap are left out.
    """
    top = max([bar.value for bar in bars] + ([level.value] if level else []), default=0.0)
    steps = round_steps(top, finest=1.0 if y_whole else 0.0)
    y_of = _scale(steps[-1])
    parts = [f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"]
    parts += [_y_tick(y_of(step), y_format(step)) for step in steps]
    parts += [_bar(bar, y_of) for bar in bars]
    parts += [_rule(x) for x in thinned(rules, RULE_GAP / PLOT_WIDTH)]
    if level:
        parts.append(_level(y_of(level.value), level.label))
    parts += _x_ticks(x_ticks)
    parts.append(f'<text class="axis" x="{LEFT}" y="14">{escape(y_label)}</text>')
    parts.append(f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def round_steps(top: float, at_most: int = 5, finest: float = 0.0) -> list[float]:
    """Return round numbers from 0 to at least top, evenly spaced: steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0, 1.0]
    least = max(top / at_most, finest)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [index * step for index in range(math.ceil(top / step - 1e-9) + 1)]


def thinned(places: Sequence[float], gap: float) -> list[float]:
    """Return the places, ascending, without those nearer than gap to the one kept before."""
    kept: list[float] = []
    for place in sorted(places):
        if not kept or place - kept[-1] >= gap:
            kept.append(place)
    return kept


def _scale(top: float) -> Callable[[float], float]:
    return lambda value: TOP + PLOT_HEIGHT * (1 - value / top)


def _x(share: float) -> float:
    return LEFT + PLOT_WIDTH * share


def _rule(share: float) -> str:
    return f'<line class="rule" x1="{_x(share):.1f}" x2="{_x(share):.1f}" y1="{TOP}" y2="{TOP + PLOT_HEIGHT}"/>'


def _y_tick(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4.5:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _bar(bar: Bar, y_of: Callable[[float], float]) -> str:
    left, right, y = _x(bar.left), _x(bar.right), y_of(bar.value)
    spare = max(0.0, right - left - WIDEST_BAR) / 2  # a few bars stay bars, and do not become walls
    left, right = left + spare, right - spare
    gap = min(1.0, (right - left) / 4)  # a hairline between neighbours, never wider than the bar
    width, height = right - left - gap, TOP + PLOT_HEIGHT - y
    return (
        f'<rect class="bar" x="{left + gap / 2:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}">'
        f"<title>{escape(bar.says)}</title></rect>"
    )


def _level(y: float, label: str) -> str:
    return (
        f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="on-level" x="{WIDTH - RIGHT - 4}" y="{y - 6:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _x_ticks(ticks: Sequence[tuple[float, str]]) -> list[str]:
    parts: list[str] = []
    free_from = -math.inf
    base = TOP + PLOT_HEIGHT
    for share, label in sorted(ticks):
        x, half = _x(share), len(label) * CHARACTER / 2
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>')
        centre = min(max(x, half), WIDTH - half)
        if centre - half >= free_from:
            parts.append(f'<text x="{centre:.1f}" y="{base + 19}" text-anchor="middle">{escape(label)}</text>')
            free_from = centre + half + CHARACTER
    return parts
