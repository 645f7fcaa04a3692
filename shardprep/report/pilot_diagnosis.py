"""What holds a training run up, from its numbers: findings in order of leverage, each with its evidence. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from shardprep.report.pilot_findings import Finding, Measured

WAITS = 0.05  # share of time from which on something is a finding
PADS = 0.10
ALSO_NAMED = 0.25  # share of the waits from which on their second cause is named too
LAGS = 0.10  # of a rank behind the median of the others
TALKS = 0.10
FIXED = 0.20
PAUSES = 0.05
BUSY_GPU = 0.90  # utilization above which waits of the CPU cost nothing: it runs ahead of the GPU
IDLE_GPU = 0.70
ROOMY = 0.50  # memory used, of a device


def diagnose(m: Measured) -> tuple[Finding, ...]:
    """Return the findings, those that would save most time first; then what the rest of the time is, and memory."""
    found = [
        finding for rule in (_input, _batch, _padding, _stragglers, _communication, _pauses) for finding in rule(m)
    ]
    found.sort(key=lambda finding: -finding.gain_share)
    return (*found, *_compute(m, found), *_memory(m))


def _input(m: Measured) -> Iterator[Finding]:
    if m.wait_slowest < WAITS or (m.utilization is not None and m.utilization >= BUSY_GPU):
        return
    total = sum(m.wait_by_cause.values())
    ranked = sorted(m.wait_by_cause, key=lambda name: -m.wait_by_cause[name]) or ["other"]
    cause = ranked[0]
    named = [name for name in ranked[:2] if name == cause or m.wait_by_cause[name] >= ALSO_NAMED * total]
    parts = [f"{m.wait_by_cause[name] / total:.0%} of it for {_CAUSES[name]}" for name in named] if total > 0 else []
    mostly = "".join(f", {part}" for part in parts)
    evidence = {"wait_share_slowest": m.wait_slowest, "wait_share_by_rank": list(m.waits), **_seconds(m.wait_by_cause)}
    if m.utilization is not None:
        evidence["gpu_utilization"] = m.utilization
    yield Finding(
        "input_bound",
        m.wait_slowest,
        f"input-bound: training waits for data {m.wait_slowest:.0%} of the time{mostly}",
        evidence,
        f"Fix the data first; more GPUs would not help, they would wait as well. {_REMEDIES[cause]}",
    )


_CAUSES = {
    "fetch": "fetching from storage",
    "decode": "decoding",
    "collate": "padding and collating",
    "copy": "copies to the device",
    "other": "threads that were busy or had no turn",
}
_REMEDIES = {
    "fetch": "Storage is slow, or the cache is cold: keep the cache folder between runs, put the data in the region of the "
    "machines, or let the pilot run past the first epoch.",
    "decode": "Decoding happens once a node: a warm cache has none of it. Keep the cache folder between runs, let the pilot run "
    "past the first epoch, or give the node more processors.",
    "collate": "Give the loader more threads (num_threads) or worker processes (TorchLoader num_workers).",
    "copy": "Let the loader copy ahead: TorchLoader(device=..., prefetch=2). If it does, a copy takes longer than a step.",
    "other": "Processors are short: give the loader more threads or worker processes, and the node fewer other tasks.",
}


def _seconds(causes: Mapping[str, float]) -> dict[str, Any]:
    return {f"wait_seconds_{cause}": seconds for cause, seconds in causes.items() if seconds > 0}


def _batch(m: Measured) -> Iterator[Finding]:
    """Too little work for each step or micro-batch: fixed costs show in steps of different size, else in an idle GPU."""
    working = 1 - m.wait_slowest
    evidence: dict[str, Any] = {
        "tokens_per_micro_batch": m.tokens_per_micro_batch, "micro_batches_per_step": m.micro_batches,
    }  # fmt: skip
    if m.fixed_share is not None and m.fixed_low >= FIXED:
        share = m.fixed_share * working
        yield Finding(
            "batch_too_small",
            share / 2,
            f"batch too small: {m.fixed_share:.0%} of a step's work does not grow with its tokens",
            {**evidence, "fixed_share": m.fixed_share, "fixed_share_low": m.fixed_low},
            f"Larger micro-batches (batch_tokens) where memory allows, else accumulate: twice the tokens a step would save "
            f"about {share / 2:.0%} of the time. Learning rate and warm-up may have to follow.",
        )
        return
    if m.step_end is not None and m.world_size == 1 and m.step_end / m.seconds >= FIXED:
        share = m.step_end / m.seconds
        yield Finding(
            "batch_too_small",
            share / 2,
            f"batch too small: the end of a step (optimizer and what follows it) takes {share:.0%} of it",
            {**evidence, "step_end_seconds": m.step_end, "seconds_per_step": m.seconds},
            f"Accumulate more micro-batches a step (accumulate): twice as many would save about {share / 2:.0%} of the time.",
        )
        return
    idle = None if m.utilization is None else 1 - m.utilization - m.wait_slowest
    roomy = m.memory_share is not None and m.memory_share < ROOMY
    if idle is not None and m.utilization is not None and m.utilization < IDLE_GPU and roomy and idle >= TALKS:
        yield Finding(
            "batch_too_small",
            idle / 2,
            f"batch too small: the GPU works {m.utilization:.0%} of the time and uses {m.memory_share:.0%} of its memory, "
            "and it is not data that it waits for",
            {**evidence, "gpu_utilization": m.utilization, "gpu_memory_share": m.memory_share, "idle_share": idle},
            "Larger micro-batches (batch_tokens): the memory is there.",
        )


def _padding(m: Measured) -> Iterator[Finding]:
    if m.padding < PADS:
        return
    gain = m.padding * (1 - m.wait_slowest)
    yield Finding(
        "padding",
        gain,
        f"padding: {m.padding:.0%} of the tokens through the model are none",
        {"padding_share": m.padding, "tokens_per_micro_batch": m.tokens_per_micro_batch},
        'Batches of like lengths have 1 to 2 %: variety=0, pad_to="round", batch_tokens rather than batch_size, slots that '
        "the number of ranks divides, and micro-batches of more than a few rows.",
    )


def _stragglers(m: Measured) -> Iterator[Finding]:
    """Ranks that the others wait for: by their waits for data, by their own computing, or by the whole of their steps."""
    if len(m.ranks) < 2:
        return
    slowest, behind = _last(m.waits)
    if m.waits[slowest] - behind >= LAGS:
        yield Finding(
            "stragglers",
            m.waits[slowest] - behind,
            f"straggler: rank {m.ranks[slowest]} waits for data {m.waits[slowest]:.0%} of the time, the others {behind:.0%}, and"
            " all wait for it",
            {"rank": m.ranks[slowest], "wait_share_by_rank": list(m.waits)},
            "Look at that rank's node: cold cache, slow disk, other tasks on its processors.",
        )
    if m.between is not None:
        slowest, rest = _last(m.between)
        lag = m.between[slowest] / rest - 1 if rest > 0 else 0.0
        if lag >= LAGS:
            gain = (m.between[slowest] - rest) * m.micro_batches / m.seconds
            yield Finding(
                "stragglers",
                min(gain, 1 - m.wait_slowest),
                f"straggler: rank {m.ranks[slowest]} takes {_ms(m.between[slowest])} for a micro-batch, the others {_ms(rest)}",
                {"rank": m.ranks[slowest], "micro_batch_seconds_by_rank": list(m.between)},
                "Look at that rank's device: clock and temperature, another process on it, another model of GPU.",
            )
            return
    slowest, rest = _last(m.rank_seconds)
    if m.rank_seconds[slowest] / rest - 1 >= LAGS:
        yield Finding(
            "stragglers",
            1 - rest / m.rank_seconds[slowest],
            f"straggler: a step takes rank {m.ranks[slowest]} {_ms(m.rank_seconds[slowest])}, the others {_ms(rest)}",
            {"rank": m.ranks[slowest], "seconds_per_step_by_rank": list(m.rank_seconds)},
            "The ranks do not wait for each other in each step, and the slowest decides when all are done: look at its node.",
        )


def _last(values: Sequence[float]) -> tuple[int, float]:
    """Return the place of the largest value, and the median of the others."""
    place = max(range(len(values)), key=values.__getitem__)
    return place, median(value for at, value in enumerate(values) if at != place)


def _communication(m: Measured) -> Iterator[Finding]:
    """All ranks alike slower than one alone; without such a pilot the end of a step is a bound."""
    if m.world_size < 2:
        return
    if m.one_rank_slot_seconds is not None:
        share = 1 - m.one_rank_slot_seconds / m.slot_seconds
        gain = share * (1 - m.wait_slowest)
        if share >= TALKS:
            yield Finding(
                "communication",
                gain,
                f"communication: {m.world_size} ranks work {m.slot_seconds / m.one_rank_slot_seconds:.2f} times as long on a token "
                f"as one rank alone: {gain:.0%} of the time goes to what ranks do together, or take from each other",
                {"seconds_per_token": m.slot_seconds, "seconds_per_token_one_rank": m.one_rank_slot_seconds},
                _TALK_LESS,
            )
    elif m.step_end is not None and m.step_end / m.seconds >= FIXED:
        share = m.step_end / m.seconds
        yield Finding(
            "communication",
            share / 2,
            f"communication: the end of a step (all-reduce, optimizer) takes {share:.0%} of it; how much of that is communication "
            "a pilot with one rank tells (--compare)",
            {"step_end_seconds": m.step_end, "seconds_per_step": m.seconds},
            _TALK_LESS,
        )


_TALK_LESS = (
    "Talk less often: accumulate more micro-batches a step, with no_sync() for all but the last; bf16 gradients; LoRA sends only "
    "its adapters. Ranks on one machine before ranks on several."
)


def _pauses(m: Measured) -> Iterator[Finding]:
    if m.pause_share >= PAUSES:
        yield Finding(
            "pauses",
            m.pause_share,
            f"pauses: {m.pauses} {'step' if m.pauses == 1 else 'steps'} took more than 5 times the median, in all "
            f"{m.pause_share:.0%} of the time",
            {"pauses": m.pauses, "pause_share": m.pause_share},
            "Checkpoints, evaluation or logging inside the loop: less often, or in the background. The projection counts them as "
            "often as they came here.",
        )


def _compute(m: Measured, found: Sequence[Finding]) -> Iterator[Finding]:
    working = 1 - m.wait_slowest
    lost = sum(finding.gain_share for finding in found)
    evidence: dict[str, Any] = {"working_share": working}
    evidence |= {name: value for name in ("mfu", "hfu") if (value := getattr(m, name)) is not None}
    if m.utilization is not None:
        evidence["gpu_utilization"] = m.utilization
    speed = "" if m.hfu is None else f"; the hardware does {m.hfu:.0%} of its peak"
    if lost >= 0.5:
        return
    if m.hfu is not None and m.hfu < 0.2:
        advice = (
            "The device is far from its peak: mixed precision (bf16), fused attention, torch.compile, larger micro-batches; then "
            "more GPUs."
        )
    else:
        advice = (
            "Now more or faster GPUs help, in proportion (data parallel); or less work: LoRA, a shorter --max-length, fewer "
            "passes, early stopping."
        )
    if m.world_size > 1 and m.one_rank_slot_seconds is None:
        advice += " What part of it is communication, a pilot with one rank tells (--compare)."
    first = "compute-bound" if not found else "computing"
    yield Finding(
        "compute_bound",
        0.0,
        f"{first}: {working:.0%} of the time is spent in the training step{speed}",
        evidence,
        advice,
    )


def _memory(m: Measured) -> Iterator[Finding]:
    if m.memory_bytes is not None and m.device_bytes is not None:
        yield Finding(
            "memory",
            0.0,
            f"memory: at most {_gb(m.memory_bytes)} of {_gb(m.device_bytes)} of a device are used: it fits on one device",
            {"memory_used_bytes": m.memory_bytes, "memory_total_bytes": m.device_bytes},
            _DATA_PARALLEL,
        )
    elif m.model_bytes is not None and m.device_bytes is not None:
        fits = m.model_bytes < 0.9 * m.device_bytes
        yield Finding(
            "memory",
            0.0,
            f"memory: weights, gradients and moments take {_gb(m.model_bytes)} of {_gb(m.device_bytes)}: the model "
            + ("fits on one device" if fits else "does not fit on one device, unless they are split"),
            {"model_bytes": m.model_bytes, "memory_total_bytes": m.device_bytes},
            _DATA_PARALLEL
            if fits
            else "LoRA first; else sharded data parallel (FSDP, ZeRO), before any model parallel.",
        )


_DATA_PARALLEL = "With more GPUs use data parallel (DDP), not model parallel."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:,.2f} ms"


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
