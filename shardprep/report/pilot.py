"""The pilot's result: what pilot.json holds, and the same as lines for a person.

pilot.json, version 1. A rate is {"mean", "low", "high", "confidence"}: low and high are the ends of its interval.

    version                   1
    split, world_size         of the training loader
    ranks_seen                ranks whose metrics were found; those of other nodes may be missing
    steps_measured            steps that count; steps_left_out: the warm-up before them; settled: false if speed still changed
    measured_seconds          time that the measured steps took; startup_seconds: from the start of the command to the
                              first measured step, less what these steps would have taken after it (null: not known)
    between_epochs_seconds    from the last step of an epoch to the first of the next, mean: evaluation, checkpoints; null if
                              the pilot saw no end of an epoch
    steps_per_second, seconds_per_step         rates
    rows_per_second           rate; real rows, all ranks together
    tokens_per_second         rate; tokens through the model, padding and filler rows included, all ranks together
    useful_tokens_per_second  rate; tokens of real rows, all ranks together: what a manifest counts
    padding_share             share of the tokens through the model that are none of a real row
    wait_share                share of time that the ranks waited for data, mean; wait_share_slowest: of the rank that
                              waited longest in each step, which all others then wait for; wait_share_by_rank: a list
    steps_per_epoch, tokens_per_step, rows_per_step, micro_batches_per_step, tokens_per_micro_batch, mean_length
    wait_seconds_by_cause     {cause: seconds} of the measured steps, mean over ranks
    step_seconds              {"median", "p95", "longest"} of the measured steps
    step_parts                {"wait", "between", "last"}: seconds of a mean step: waiting for data; between two micro-batches
                              of a step; the last micro-batch with all that follows it in the loop
    working_seconds_per_token seconds of a rank without its waits, for each of its tokens through the model (for --compare)
    mfu, hfu                  rates, or null: see docs/pilot.md; flops_per_token {"model", "hardware"}, peak_flops, or null
    gpu                       null, or {"name", "count", "utilization", "memory_used_bytes", "memory_total_bytes", "samples"}
    projection                of the whole run: {"basis": "total_steps", "data" or "epoch", "steps", "passes",
                              "startup_seconds", "between_epochs_seconds": of all epochs, "seconds", "hours", "usd",
                              "usd_per_hour"}; seconds, hours and usd are rates, usd null without a price
    epoch                     {"step": steps played of this epoch, "steps_left", "seconds_left": a rate}
    diagnosis                 [{"kind", "gain_share", "says", "evidence", "advice"}], most leverage first
    notes                     [text]
    series                    {"ranks", "seconds", "wait_seconds"}: of each step by rank, the warm-up included
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardprep.errors import PilotError
from shardprep.report.pilot_diagnosis import diagnose
from shardprep.report.pilot_findings import Measured
from shardprep.report.pilot_flops import gpu_named
from shardprep.report.pilot_gpu import GpuUse
from shardprep.report.pilot_projection import between_epochs_seconds, projection, rest_of_epoch, startup_seconds
from shardprep.report.pilot_question import Question
from shardprep.report.pilot_rates import LEAST_STEPS, Floats, Rate, half_width, ratio_of, warmup_of
from shardprep.report.pilot_steps import Steps

PAUSE = 5  # medians
VARIED = 0.10  # standard deviation over mean of the tokens of steps, from which on fixed costs can be told from others


def pilot_document(
    played: Steps,
    question: Question,
    *,
    started: float | None = None,
    use: GpuUse | None = None,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the content of pilot.json.

    played   all steps, the warm-up included
    started  when the command was started, in Unix seconds; None: not known
    Raises PilotError if too few steps are left after the warm-up.
    """
    warmup = warmup_of(played.seconds)
    steps = played.part(warmup.steps)
    if len(steps) < LEAST_STEPS:
        raise PilotError(
            f"{len(played)} steps were played, {warmup.steps} of them warm-up: at least {LEAST_STEPS} must be left to say how "
            "fast they are; let the pilot run longer (--steps), or the command not end so early",
            steps=len(played),
        )
    rates = _rates(steps, question.confidence)
    seconds = steps.seconds
    start, between = startup_seconds(steps, started, warmup.steps), between_epochs_seconds(played)
    told = [*notes, *_notes(played, steps, settled=warmup.settled)]
    flops = _flops(steps, rates, question, use, told)
    measured = _measured(steps, question, use, flops)
    return {
        "version": 1,
        "split": steps.split,
        "world_size": steps.world_size,
        "ranks_seen": len(steps.ranks),
        "steps_measured": len(steps),
        "steps_left_out": warmup.steps,
        "settled": warmup.settled,
        "measured_seconds": float(seconds.sum()),
        "startup_seconds": start,
        "between_epochs_seconds": between,
        **{name: rate.document() for name, rate in rates.items()},
        "padding_share": measured.padding,
        "wait_share": float(np.mean(measured.waits)),
        "wait_share_slowest": measured.wait_slowest,
        "wait_share_by_rank": list(measured.waits),
        "wait_seconds_by_cause": dict(steps.wait_by_cause),
        "steps_per_epoch": steps.steps_per_epoch,
        "tokens_per_step": float(steps.slots.mean()),
        "rows_per_step": float(steps["step_rows"][0].mean()),
        "micro_batches_per_step": measured.micro_batches,
        "tokens_per_micro_batch": measured.tokens_per_micro_batch,
        "mean_length": _mean_length(steps),
        "step_seconds": {
            "median": float(np.median(seconds)),
            "p95": float(np.quantile(seconds, 0.95)),
            "longest": float(seconds.max()),
        },
        "step_parts": _parts(steps),
        "working_seconds_per_token": measured.slot_seconds,
        **flops,
        "gpu": None if use is None else use.document(),
        "projection": projection(steps, rates, question, start, between),
        "epoch": rest_of_epoch(steps, question.confidence),
        "diagnosis": [finding.document() for finding in diagnose(measured)],
        "notes": told,
        "series": {
            "ranks": list(steps.ranks),
            "seconds": [[round(float(x), 6) for x in row] for row in played["seconds"]],
            "wait_seconds": [[round(float(x), 6) for x in row] for row in played["wait_seconds"]],
        },
    }


def _rates(steps: Steps, confidence: float) -> dict[str, Rate]:
    seconds = steps.seconds
    amounts = {
        "steps_per_second": np.ones(len(seconds)),
        "rows_per_second": steps["step_rows"][0],
        "tokens_per_second": steps.slots,
        "useful_tokens_per_second": steps["step_tokens"][0],
    }
    rates = {name: ratio_of(amount, seconds, confidence) for name, amount in amounts.items()}
    return {**rates, "seconds_per_step": ratio_of(seconds, np.ones(len(seconds)), confidence)}


def _notes(played: Steps, steps: Steps, *, settled: bool) -> list[str]:
    notes = []
    if not settled:
        notes.append("the speed had not settled: a longer pilot (--steps) would say more")
    if len(steps.ranks) < steps.world_size:
        notes.append(
            f"metrics of {len(steps.ranks)} of {steps.world_size} ranks were found: those of other nodes are counted as these"
        )
    if not np.diff(played["epoch"][0]).any():
        notes.append(
            "no end of an epoch was seen: evaluation and checkpoints between epochs come on top of the projection"
        )
    if played.steps_per_epoch and len(played) > played.steps_per_epoch:
        notes.append(
            f"the pilot is longer than an epoch ({played.steps_per_epoch:,} steps): later epochs find a warm cache"
        )
    return notes


def _mean_length(steps: Steps) -> float:
    """Return the padded length that a token finds itself in, mean over tokens."""
    return float(steps["square_slots"].sum() / steps["slots"].sum())


def _flops(
    steps: Steps, rates: Mapping[str, Rate], question: Question, use: GpuUse | None, notes: list[str]
) -> dict[str, Any]:
    nothing = {"mfu": None, "hfu": None, "flops_per_token": None, "peak_flops": None}
    if question.model is None:
        return nothing
    model, hardware = question.model.flops_per_token(_mean_length(steps))
    counted = {**nothing, "flops_per_token": {"model": model, "hardware": hardware}}
    name = question.gpu or (use.name if use else None)
    known = gpu_named(name) if name else None
    peak = question.peak_flops or (known.peak_flops if known else None)
    if peak is None:
        notes.append("no utilisation of the peak: give --peak-flops or --gpu")
        return counted
    all_peaks = peak * steps.world_size
    return {
        **counted,
        "mfu": rates["useful_tokens_per_second"].times(model / all_peaks).document(),
        "hfu": rates["tokens_per_second"].times(hardware / all_peaks).document(),
        "peak_flops": peak,
    }


def _measured(steps: Steps, question: Question, use: GpuUse | None, flops: Mapping[str, Any]) -> Measured:
    seconds, waits = steps["seconds"], steps["wait_seconds"]  # (ranks, steps)
    busy = seconds.sum(1) - waits.sum(1)
    slowest = int(seconds.sum(1).argmax())
    batches = steps["micro_batches"]
    inner = float(batches.mean()) - 1
    between = steps["between_seconds"].mean(1) / inner if inner > 0 else None
    ends = None if between is None else float((busy / len(steps) - between * (inner + 1)).min())
    working = seconds[slowest] - waits[slowest]
    fixed, fixed_low = _fixed_share(working, steps["slots"][slowest], question.confidence)
    usual = float(np.median(working))
    long = working[working > PAUSE * usual] - usual
    known = gpu_named(question.gpu) if question.gpu else gpu_named(use.name) if use else None
    return Measured(
        world_size=steps.world_size,
        seconds=float(seconds[slowest].mean()),
        waits=[float(share) for share in waits.sum(1) / seconds.sum(1)],
        wait_slowest=min(1.0, float(waits.max(0).sum() / seconds[slowest].sum())),
        wait_by_cause=steps.wait_by_cause,
        padding=max(0.0, 1 - float(steps["step_tokens"][0].sum() / steps.slots.sum())),
        micro_batches=float(batches.mean()),
        tokens_per_micro_batch=float(steps["slots"].sum() / batches.sum()),
        rank_seconds=[float(mean) for mean in seconds.mean(1)],
        ranks=steps.ranks,
        between=None if between is None else [float(mean) for mean in between],
        step_end=None if ends is None else max(0.0, ends),
        fixed_share=fixed,
        fixed_low=fixed_low,
        slot_seconds=float(busy.sum() / steps["slots"].sum()),
        one_rank_slot_seconds=None if question.one_rank is None else question.one_rank["working_seconds_per_token"],
        pause_share=float(long.sum() / seconds[slowest].sum()),
        pauses=len(long),
        utilization=use.utilization if use else None,
        memory_share=use.memory_used_bytes / use.memory_total_bytes if use else None,
        memory_bytes=use.memory_used_bytes if use else None,
        device_bytes=use.memory_total_bytes if use else known.memory_bytes if known else None,
        model_bytes=question.model.least_bytes if question.model else None,
        mfu=flops["mfu"]["mean"] if flops["mfu"] else None,
        hfu=flops["hfu"]["mean"] if flops["hfu"] else None,
    )


def _fixed_share(working: Floats, slots: Floats, confidence: float) -> tuple[float | None, float]:
    """Return the share of the working time that does not grow with the tokens of a step, and the low end of its interval.

    working, slots  of each step: seconds, and tokens through the model of this rank. A straight line through them, by least
    squares; its height at no tokens is the fixed time. None where the steps are too alike.
    """
    mean = float(slots.mean())
    off = slots - mean
    if float(off.std()) < VARIED * mean:
        return None, 0.0
    limit = 5 * float(np.median(working))  # pauses say nothing about tokens
    working = np.minimum(working, limit)
    slope = float(off @ working / (off @ off))
    level = float(working.mean())
    rest = working - level - slope * off
    # The height at 0 is the mean of these: level - slope * mean, with the errors of both.
    influence = rest * (1 - mean * off / float(off @ off / len(off)))
    height, half = level - slope * mean, half_width(influence, confidence)
    return min(1.0, max(0.0, height / level)), max(0.0, (height - half) / level)


def _parts(steps: Steps) -> dict[str, float]:
    """Return where the time of a mean step goes, in seconds, mean over ranks: waiting, computing, and the step's end."""
    wait, between = float(steps["wait_seconds"].mean()), float(steps["between_seconds"].mean())
    return {"wait": wait, "between": between, "last": max(0.0, float(steps["seconds"].mean()) - wait - between)}
