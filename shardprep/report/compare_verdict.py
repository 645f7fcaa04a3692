"""The verdict of a comparison: no worse than delta, worse, or cannot tell yet and how many rows would."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shardprep.report.compare_intervals import LEAST_UNITS, POWER, Interval, units_needed

WIDTH = 120
INDENT = 12  # of what follows the name of a line
LEAST_NEEDED = 100  # rows that are asked for where there are too few for an interval

Answer = Literal["no worse", "worse", "cannot tell", "no delta"]


@dataclass(frozen=True, slots=True)
class Unit:
    """How values of a metric are written: shares in percentage points, all others as they are."""

    share: bool

    def text(self, value: float) -> str:
        """Return a size."""
        return f"{value * 100:.4g} pp" if self.share else f"{value:.4g}"

    def signed(self, value: float) -> str:
        """Return a difference, with its sign."""
        return f"{value * 100:+.4g} pp" if self.share else f"{value:+.4g}"

    def level(self, value: float) -> str:
        """Return a value of the metric itself."""
        return f"{value:.2%}" if self.share else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an interval says about the question "is the candidate worse by delta or more?".

    answer       "no worse": the bad end of the interval is within delta; "worse": the good end is beyond delta; "no delta":
                 nobody said how much worse is fine, and the bad end is the least that these rows can exclude
    against_zero what it says about any difference at all: "better", "worse" or "unclear"
    rows_needed  rows that would likely show it, if the difference stays as seen; None: it is not known, or not needed
    rows_needed_if_equal  the same, if there is no difference
    """

    answer: Answer
    against_zero: Literal["better", "worse", "unclear"]
    rows_needed: int | None
    rows_needed_if_equal: int | None


def verdict_of(interval: Interval, *, mode: str, delta: float | None, rows: int) -> Verdict:
    """Return the verdict on candidate minus baseline; delta, at least 0, is how much worse is still fine, if anybody said."""
    sign = 1.0 if mode == "min" else -1.0
    harm = sign * interval.estimate
    least, most = sorted((sign * interval.low, sign * interval.high))
    against_zero: Literal["better", "worse", "unclear"] = "worse" if least > 0 else "better" if most < 0 else "unclear"
    if delta is None and math.isfinite(interval.low):
        return Verdict("no delta", against_zero, None, None)
    delta = delta or 0.0
    if most < delta or (most == delta == 0 == least):
        return Verdict("no worse", against_zero, None, None)
    if least > delta:
        return Verdict("worse", against_zero, None, None)
    gap = abs(delta - harm)
    as_seen, if_equal = units_needed(interval, gap), units_needed(interval, delta)
    if not math.isfinite(interval.low):  # too few for a deviation that could be believed
        as_seen = max(as_seen or 0, 2 * interval.units, LEAST_NEEDED)
    elif as_seen is not None:  # those that are there are not enough: the interval reaches over delta
        reach = most - harm if harm < delta else harm - least
        as_seen = max(as_seen, math.ceil(interval.units * (reach / gap) ** 2))
    scale = rows / interval.units
    return Verdict("cannot tell", against_zero, _rounded_up(as_seen, scale), _rounded_up(if_equal, scale))


def _rounded_up(units: int | None, scale: float) -> int | None:
    """Return rows with two digits: more would claim to know them."""
    if units is None:
        return None
    rows = units * scale
    step: int = 10 ** max(0, math.floor(math.log10(rows)) - 1)
    return math.ceil(rows / step) * step


def verdict_text(verdict: Verdict, interval: Interval, *, mode: str, delta: float | None, unit: Unit, rows: int) -> str:
    """Return the verdict as a sentence for a person."""
    allowed = unit.text(delta or 0.0)
    bad, good = (interval.high, interval.low) if mode == "min" else (interval.low, interval.high)
    if verdict.answer == "no delta":
        shown = {
            "better": f"better than the baseline, by {unit.text(abs(bad))} at least",
            "worse": f"worse than the baseline, by {unit.text(abs(good))} at least and {unit.text(abs(bad))} at most",
            "unclear": f"no worse than {unit.text(abs(bad))}, and less cannot be told from these rows",
        }[verdict.against_zero]
        return f"{shown}. Is that fine? Say how much worse would be with --delta, best before looking at the results"
    if verdict.answer == "no worse":
        more = {
            "better": f"; and better than the baseline, by {unit.text(abs(bad))} at least",
            "worse": "; worse than the baseline all the same, but by less than that",
            "unclear": "",
        }[verdict.against_zero]
        return f"no worse than {allowed}: the bad end of the interval, {unit.signed(bad)}, is within it{more}"
    if verdict.answer == "worse":
        return f"worse, by more than {allowed}: even the good end of the interval is {unit.signed(good)}"
    if not math.isfinite(interval.low):
        few = f"{rows:,} row{'s are' if rows != 1 else ' is'} too few for an interval"
        if interval.units >= LEAST_UNITS:
            few = (
                f"too few of the {rows:,} rows differ for an interval, or one or two of them have nearly all the weight"
            )
        elif interval.units != rows:
            few = f"{interval.units:,} group{'s are' if interval.units != 1 else ' is'} too few for an interval"
        return f"cannot tell yet: {few}; needs about {verdict.rows_needed:,} rows at least"
    text = f"cannot tell yet: {allowed} worse lies within the interval"
    if verdict.against_zero == "worse":
        text += " (that it is worse than the baseline is shown)"
    if verdict.rows_needed is None:
        text += "; the difference is about that large itself, no practical number of rows would tell"
        equal = verdict.rows_needed_if_equal
        return text if equal is None else f"{text} if it stays as seen, about {equal:,} if there is none"
    text += f"; needs about {verdict.rows_needed:,} rows"
    if verdict.rows_needed_if_equal is not None and verdict.rows_needed_if_equal > rows:
        text += f" if the difference stays as seen, {verdict.rows_needed_if_equal:,} if there is none"
    return text + f" (for an answer in {POWER:.0%} of cases)"


def laid_out(lines: Iterable[str]) -> list[str]:
    """Return lines, each a name and what it says, broken where they are too long."""
    fill = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * INDENT, break_long_words=False, break_on_hyphens=False)
    return [fill.fill(line) for line in lines]
