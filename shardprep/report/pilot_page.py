"""One self-contained HTML page about a pilot: numbers, diagnosis, and pictures of its steps. No scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from shardprep.report.chart import Bar, Level, bar_chart
from shardprep.report.elements import Cell, cards, document, scroll, table
from shardprep.report.pictures import percent
from shardprep.report.pilot_text import duration, evidence_text, numbers, with_interval

MOST_BARS = 150
MOST_RANKS = 8  # pictures of steps; beyond that the slowest ones
LEAST_SHARE = 0.001  # of time, that is shown
TOP = 1.15  # an axis may end so much above the longest step that matters


def pilot_page(told: Mapping[str, Any]) -> str:
    """Return the page as text; told: the content of pilot.json."""
    sections = [_head(told), _cards(told), _diagnosis(told), _parts(told), _ranks(told), _steps(told), _numbers(told)]
    return document("shardprep pilot", "\n".join(filter(None, sections)))


def _head(told: Mapping[str, Any]) -> str:
    command = f'<p class="quiet"><code>{escape(told["command"])}</code></p>' if told.get("command") else ""
    first = told["diagnosis"][0]["says"] if told["diagnosis"] else "nothing stands out"
    return f"<h1>{escape(first[0].upper() + first[1:])}</h1>{command}"


def _cards(told: Mapping[str, Any]) -> str:
    found = [
        (_short(told["steps_per_second"]["mean"]), f"steps a second; {_interval(told['steps_per_second'], _short)}"),
        (_short(told["useful_tokens_per_second"]["mean"]), "useful tokens a second, all ranks"),
        (percent(told["wait_share"]), "of the time waiting for data"),
        (percent(told["padding_share"]), "of the tokens are padding"),
    ]
    if told["mfu"] is not None:
        found.append(
            (percent(told["mfu"]["mean"]), f"model FLOP utilisation; {percent(told['hfu']['mean'])} of the hardware's")
        )
    if told["gpu"] is not None:
        found.append(
            (f"{told['gpu']['utilization']:.0%}", f"GPU utilisation, {told['gpu']['count']} x {told['gpu']['name']}")
        )
    plan = told["projection"]
    if plan is not None:
        found.append((duration(plan["seconds"]["mean"]), f"for the whole run; {_interval(plan['seconds'], duration)}"))
        if plan["usd"] is not None:
            found.append(
                (f"{plan['usd']['mean']:,.2f} USD", f"for the whole run; {_interval(plan['usd'], '{:,.2f}'.format)}")
            )
    return cards(found)


def _interval(rate: Mapping[str, float], shown: Any) -> str:
    return f"{rate['confidence']:.0%} interval {shown(rate['low'])} to {shown(rate['high'])}"


def _diagnosis(told: Mapping[str, Any]) -> str:
    items = "".join(
        f"<li><p><strong>{escape(finding['says'])}</strong><br>{escape(finding['advice'])}<br>"
        f'<span class="quiet">Evidence: {escape(evidence_text(finding["evidence"]))}</span></p></li>'
        for finding in told["diagnosis"]
    )
    notes = "".join(f'<p class="quiet">Note: {escape(note)}.</p>' for note in told["notes"])
    return f"<h2>Diagnosis</h2><p>What would save most time comes first.</p><ol>{items}</ol>{notes}"


def _parts(told: Mapping[str, Any]) -> str:
    """Return where the time of a mean step goes."""
    parts, causes = told["step_parts"], told["wait_seconds_by_cause"]
    waited = sum(causes.values())
    shares = {f"wait: {cause}": parts["wait"] * seconds / waited for cause, seconds in causes.items() if seconds > 0}
    if told["micro_batches_per_step"] > 1:
        shares |= {"micro-batches": parts["between"], "last micro-batch, step's end": parts["last"]}
    else:
        shares |= {"micro-batch, step's end": parts["last"]}
    whole = sum(parts.values())
    shown = [(name, seconds / whole) for name, seconds in shares.items() if seconds / whole >= LEAST_SHARE]
    bars = [Bar(*_place(at, len(shown)), share, f"{name}: {percent(share)}") for at, (name, share) in enumerate(shown)]
    ticks = [((at + 0.5) / len(shown), name) for at, (name, _) in enumerate(shown)]
    picture = bar_chart(
        title="Where the time of a step goes",
        description="One bar for each part of a step: waits by cause, computing, and the end of the step.",
        bars=bars, x_label="", x_ticks=ticks, y_label="share of a step's time", y_format=percent,
    )  # fmt: skip
    body: list[list[Cell]] = [[name, f"{share * whole * 1000:,.2f}", percent(share)] for name, share in shown]
    return (
        "<h2>Where a step's time goes</h2><p>The last micro-batch of a step has with it all that the loop does before it asks for "
        "the next one: all-reduce, optimizer, logging, checkpoints.</p>"
        f"{scroll(picture)}{table(['', 'ms', 'share'], body)}"
    )


def _ranks(told: Mapping[str, Any]) -> str:
    """Return waits by rank; nothing for a single rank."""
    waits, ranks = told["wait_share_by_rank"], told["series"]["ranks"]
    if len(ranks) < 2:
        return ""
    if told["wait_share_slowest"] < LEAST_SHARE:
        return f"<h2>Waits by rank</h2><p>No rank waited for data: all below {percent(LEAST_SHARE)} of the time.</p>"
    bars = [
        Bar(*_place(at, len(ranks)), share, f"rank {rank}: {percent(share)}")
        for at, (rank, share) in enumerate(zip(ranks, waits, strict=True))
    ]
    picture = bar_chart(
        title="Share of time each rank waited for data",
        description="One bar for each rank.",
        bars=bars,
        x_label="rank",
        x_ticks=[((at + 0.5) / len(ranks), str(rank)) for at, rank in enumerate(ranks)],
        y_label="share of time waited for data",
        y_format=percent,
        level=Level(told["wait_share_slowest"], f"slowest rank of each step: {percent(told['wait_share_slowest'])}"),
    )
    return f"<h2>Waits by rank</h2><p>All ranks wait for the one that waits longest in a step.</p>{scroll(picture)}"


def _steps(told: Mapping[str, Any]) -> str:
    series = told["series"]
    seconds = [np.array(row) for row in series["seconds"]]
    totals = [float(row.sum()) for row in seconds]
    shown = sorted(sorted(range(len(seconds)), key=lambda at: -totals[at])[:MOST_RANKS])
    left_out = told["steps_left_out"]
    top = max(float(np.quantile(np.concatenate(seconds), 0.99)), told["step_seconds"]["p95"]) * TOP
    rule = f"The {left_out:,} steps left of the line are warm-up and do not count. Steps longer than {_ms(top)} end at the top."
    parts = [f"<h2>Steps</h2><p>How long each step took. {rule}</p>"]
    for at in shown:
        if len(seconds) > 1:
            parts.append(f"<h3>Rank {series['ranks'][at]}</h3>")
        parts.append(scroll(_step_picture(seconds[at], np.array(series["wait_seconds"][at]), left_out, top)))
    return "".join(parts)


def _step_picture(seconds: Any, waits: Any, left_out: int, top: float) -> str:
    steps = len(seconds)
    size = -(-steps // MOST_BARS)
    bars = []
    for start in range(0, steps, size):
        part, wait = seconds[start : start + size], waits[start : start + size]
        name = f"step {start + 1}" if size == 1 else f"steps {start + 1} to {start + len(part)}"
        says = f"{name}: {_ms(part.mean())}, {_ms(wait.mean())} of it waiting for data"
        bars.append(Bar(start / steps, min(1.0, (start + size) / steps), min(float(part.mean()), top), says))
    mean = float(seconds[left_out:].mean())
    return bar_chart(
        title="Time of each step",
        description=f"One bar for {size} steps in order, with the mean after the warm-up.",
        bars=bars,
        x_label="step",
        x_ticks=_step_ticks(steps),
        y_label="milliseconds",
        y_format=lambda value: f"{value * 1000:,.3g}" if value < 1 else f"{value * 1000:,.0f}",
        rules=[left_out / steps],
        level=Level(mean, f"mean {_ms(mean)}"),
    )


def _step_ticks(steps: int) -> list[tuple[float, str]]:
    every = max(1, round(steps / 6, -max(0, len(str(steps)) - 2)))
    return [(number / steps, f"{number:,}") for number in range(0, steps + 1, int(every))]


def _numbers(told: Mapping[str, Any]) -> str:
    body: list[Sequence[Cell]] = [[name, text] for name, text in numbers(told).items()]
    body += [
        ["step", f"median {_ms(told['step_seconds']['median'])}, 95 % below {_ms(told['step_seconds']['p95'])}"],
        [
            "tokens of a step",
            f"{told['tokens_per_step']:,.0f}, in {told['micro_batches_per_step']:.3g} micro-batches a rank",
        ],
        [
            "tokens of a micro-batch",
            f"{told['tokens_per_micro_batch']:,.0f}; mean padded length {told['mean_length']:,.0f}",
        ],
    ]
    if told["flops_per_token"] is not None:
        flops = told["flops_per_token"]
        body.append(["FLOPs of a token", f"{flops['model']:.4g} of the model, {flops['hardware']:.4g} of the hardware"])
    if told["epoch"] is not None:
        epoch = told["epoch"]
        left = with_interval(epoch["seconds_left"], duration)
        body.append(["left of this epoch", f"{epoch['steps_left']:,} steps, {left}"])
    return "<h2>Numbers</h2>" + table(["", ""], body)


def _place(at: int, number: int) -> tuple[float, float]:
    return (at + 0.15) / number, (at + 0.85) / number


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"
