"""A pilot's result as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

WIDTH = 110


def pilot_text(told: Mapping[str, Any]) -> str:
    """Return the numbers, the projection, and the diagnosis with its evidence."""
    lines = [f"{name:<14}{text}" for name, text in numbers(told).items()]
    lines += ["", "diagnosis, most leverage first"]
    for number, finding in enumerate(told["diagnosis"], 1):
        lines += wrap(finding["says"], WIDTH, initial_indent=f"{number:>2}. ", subsequent_indent="    ")
        lines += wrap(
            evidence_text(finding["evidence"]), WIDTH, initial_indent="    evidence: ", subsequent_indent="    "
        )
        lines += wrap(finding["advice"], WIDTH, initial_indent="    ", subsequent_indent="    ")
    lines += [line for note in told["notes"] for line in wrap(f"note: {note}", WIDTH, subsequent_indent="      ")]
    return "\n".join(lines)


def numbers(told: Mapping[str, Any]) -> dict[str, str]:
    """Return names and values of what was measured, as text."""
    steps, useful = told["steps_per_second"], with_interval(told["useful_tokens_per_second"], _whole)
    took = f"{told['steps_measured']:,} steps in {duration(told['measured_seconds'])} on {_ranks(told)}"
    found = {
        "measured": f"{took}; {told['steps_left_out']:,} steps of warm-up left out",
        "steps": f"{with_interval(steps, _significant)} a second ({steps['confidence']:.0%} interval)",
        "rows": f"{with_interval(told['rows_per_second'], _significant)} a second",
        "tokens": f"{useful} useful a second; {told['tokens_per_second']['mean']:,.0f} with padding",
        "padding": f"{told['padding_share']:.2%} of the tokens through the model",
        "waits": _waits(told),
    }
    if told["mfu"] is not None:
        hardware = f"HFU {told['hfu']['mean']:.1%} of {told['peak_flops']:.3g} FLOP/s"
        found["peak"] = f"MFU {with_interval(told['mfu'], _percent)}; {hardware}"
    gpu = told["gpu"]
    if gpu is not None:
        memory = f"{gpu['memory_used_bytes'] / 1e9:.1f} of {gpu['memory_total_bytes'] / 1e9:.1f} GB used"
        found["GPUs"] = f"{gpu['count']} x {gpu['name']}, busy {gpu['utilization']:.0%} of the time, {memory}"
    return found | _projection(told)


def _projection(told: Mapping[str, Any]) -> dict[str, str]:
    plan = told["projection"]
    if plan is None:
        return {}
    seconds = plan["seconds"]
    of = {"total_steps": "", "data": " of the data", "epoch": " of the loader's epoch"}[plan["basis"]]
    passes = "" if plan["passes"] == 1 else f", {plan['passes']:g} passes"
    others = {"start-up": plan["startup_seconds"], "between epochs": plan["between_epochs_seconds"]}
    also = "".join(f", {duration(some)} of it {name}" for name, some in others.items() if some and some >= 0.05)
    found = {"whole run": f"{plan['steps']:,} steps{of}{passes}: {with_interval(seconds, duration)}{also}"}
    if plan["usd"] is not None:
        found["cost"] = f"{with_interval(plan['usd'], _usd)} at {_usd(plan['usd_per_hour'])} an hour"
    return found


def _ranks(told: Mapping[str, Any]) -> str:
    return "1 rank" if told["world_size"] == 1 else f"{told['world_size']:,} ranks"


def _waits(told: Mapping[str, Any]) -> str:
    text = f"{told['wait_share']:.1%} of the time for data"
    if told["world_size"] > 1:
        text += f"; {told['wait_share_slowest']:.1%} by the slowest rank of each step"
    return text


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return the numbers of a finding."""
    return ", ".join(f"{name.replace('_', ' ')} {_value(name, value)}" for name, value in evidence.items())


def _value(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_value(name, one) for one in value[:8]) + (" ..." if len(value) > 8 else "")
    if "share" in name or name in ("mfu", "hfu", "gpu_utilization", "padding"):
        return f"{value:.1%}"
    if "seconds_per_token" in name:
        return f"{value * 1e6:.3g} us"
    if "seconds" in name:
        return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.1f} s"
    if "bytes" in name:
        return f"{value / 1e9:,.1f} GB"
    return _significant(value)


def with_interval(rate: Mapping[str, float], shown: Any) -> str:
    """Return a rate as "mean (low to high)"."""
    return f"{shown(rate['mean'])} ({shown(rate['low'])} to {shown(rate['high'])})"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} h"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _usd(value: float) -> str:
    return f"{value:,.2f} USD"
