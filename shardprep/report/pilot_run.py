"""`shardprep pilot`: run a training command for some steps, and say what the whole run will take."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError, PilotError
from shardprep.reader.metric_files import FILE_EVERY_S
from shardprep.report.pilot import pilot_document
from shardprep.report.pilot_flops import Model
from shardprep.report.pilot_gpu import GpuSampler, sampler_of_this_node
from shardprep.report.pilot_processes import POLL_S, Command, say_to_stderr
from shardprep.report.pilot_question import Question
from shardprep.report.pilot_rates import LEAST_STEPS
from shardprep.report.pilot_steps import MetricsFolder, Steps, common_steps

LATE_S = 2 * FILE_EVERY_S


def pilot_of(chosen: argparse.Namespace, options: Mapping[str, str]) -> dict[str, Any]:
    """Run the command and return the content of pilot.json; write the files that were asked for.

    Raises ConfigError if the call is wrong, PilotError if the command failed or played too few steps. The command and all
    that it started have ended on return, whatever happens.
    """
    command = chosen.run[1:] if chosen.run[:1] == ["--"] else chosen.run
    if not command:
        raise ConfigError("no command: shardprep pilot [flags] -- torchrun ... train.py ...")
    if chosen.steps <= LEAST_STEPS:  # the first one is never counted
        raise ConfigError(f"--steps must be at least {LEAST_STEPS + 1}, to say how fast they are; got {chosen.steps}")
    if chosen.grace < 0 or (chosen.max_seconds is not None and chosen.max_seconds <= 0):
        raise ConfigError(f"--grace and --max-seconds must be above 0, got {chosen.grace:g} and {chosen.max_seconds}")
    question = _question(chosen, options)
    for path in filter(None, (chosen.out, chosen.html)):
        check_writable(path)
    with tempfile.TemporaryDirectory(prefix="shardprep-pilot-") as folder, sampler_of_this_node() as sampler:
        started = time.time()
        steps = play(
            command,
            folder,
            steps=chosen.steps,
            split=chosen.split,
            grace_s=chosen.grace,
            max_seconds=chosen.max_seconds,
        )
        told = document_of(steps, question, started, sampler)
    told["command"] = shlex.join(command)
    _write(chosen, told)
    return told


def document_of(steps: Steps, question: Question, started: float | None, sampler: GpuSampler) -> dict[str, Any]:
    """Return the content of pilot.json; GPUs count while the second half of the steps was played: the warm-up is over."""
    ends = steps["end"]
    use = sampler.use(float(ends[0, len(steps) // 2]), float(ends.max())) if len(steps) else None
    problem = (sampler.problem,) if sampler.problem else ()
    return pilot_document(steps, question, started=started, use=use, notes=problem)


def play(
    command: Sequence[str],
    folder: str,
    *,
    steps: int,
    split: str | None,
    grace_s: float,
    max_seconds: float | None = None,
) -> Steps:
    """Run a command with $SHARDPREP_METRICS_DIR set to the folder until so many steps are there; return them.

    The command gets SIGTERM then; it may also end by itself. Raises PilotError if it failed, or if no loader said anything.
    """
    env = {**os.environ, "SHARDPREP_METRICS_DIR": folder, "SHARDPREP_PILOT_STEPS": str(steps), "PYTHONUNBUFFERED": "1"}
    metrics = MetricsFolder(folder)
    running = Command(command, env, say_to_stderr)
    deadline = float("inf") if max_seconds is None else time.monotonic() + max_seconds
    try:
        while True:
            code = running.exit_code
            metrics.update()  # after the look at the exit code: what was written before the end is read
            ranks = [] if code is None and metrics.awaits(split, steps) else metrics.ranks(split)
            enough = bool(ranks) and min(map(len, ranks)) >= steps
            if enough and len(ranks) < ranks[0].world_size:  # the others are on other nodes, or write a moment later
                deadline = min(deadline, time.monotonic() + LATE_S)
                enough = False
            if code is not None or enough or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
    finally:
        running.end(grace_s)
        running.finish_output()
    enough = bool(ranks) and min(map(len, ranks)) >= steps
    if code and not enough:
        raise PilotError(_failed(code, min(map(len, ranks), default=0), running.last_lines), exit_code=code)
    if not ranks:
        raise PilotError(
            "the command ended without a step that shardprep saw: it must read with shardprep.open(...).loader(...), or a "
            "TorchLoader around it, in the environment it is given ($SHARDPREP_METRICS_DIR), and play at least one step to its end"
            if code is not None
            else f"no step was played within {max_seconds:g} s; let the pilot run longer (--max-seconds)"
        )
    return common_steps(ranks).part(0, steps)


def _failed(code: int, steps: int, last_lines: Sequence[str]) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    lines = "".join(f"\n  {line}" for line in last_lines)
    return f"the command ended with {how} after {steps} steps" + (f"; its last lines:{lines}" if lines else "")


def _question(chosen: argparse.Namespace, options: Mapping[str, str]) -> Question:
    model = None
    if chosen.params is not None:
        model = Model(
            chosen.params, chosen.trainable, chosen.frozen_lower, chosen.layers, chosen.width, chosen.checkpointing
        )
    elif chosen.trainable is not None or chosen.layers is not None or chosen.width is not None:
        raise ConfigError("--trainable, --layers and --width need --params")
    return Question(
        confidence=chosen.confidence,
        model=model,
        gpu=chosen.gpu,
        peak_flops=chosen.peak_flops,
        usd_per_hour=chosen.price_per_hour,
        steps=chosen.total_steps,
        tokens=None if chosen.data is None else _tokens_of(chosen.data, chosen.split or "train", options),
        passes=chosen.passes,
        one_rank=None if chosen.compare is None else read_pilot(chosen.compare, world_size=1),
    )


def _tokens_of(place: str, split: str, options: Mapping[str, str]) -> int:
    from shardprep.storage.dataset import open_dataset

    _, manifest = open_dataset(re.sub(r"/?manifest\.json$", "", place) or ".", options=options)
    found = [info for generation in manifest.generations for info in generation.splits if info.name == split]
    if not found:
        names = {info.name for generation in manifest.generations for info in generation.splits}
        raise ConfigError(f'{place} has no split "{split}"; it has {", ".join(sorted(names))} (--split)')
    return sum(info.tokens for info in found)


def read_pilot(path: str, *, world_size: int | None = None) -> dict[str, Any]:
    """Return the content of a pilot.json. Raises ConfigError if it is none, or of another world size than asked for."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(told, dict) or told.get("version") != 1 or "steps_per_second" not in told:
        raise ConfigError(f"{path} is no pilot of version 1: `shardprep pilot --out {path} -- ...` writes one")
    if world_size is not None and told["world_size"] != world_size:
        raise ConfigError(f"{path} is a pilot of {told['world_size']} ranks; one of {world_size} is needed")
    return told


def check_writable(path: str) -> None:
    """Refuse a path now rather than after the pilot."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: no such folder, or no permission")


def _write(chosen: argparse.Namespace, told: Mapping[str, Any]) -> None:
    try:
        if chosen.out:
            Path(chosen.out).write_text(json.dumps(told, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        if chosen.html:
            from shardprep.report.pilot_page import pilot_page

            Path(chosen.html).write_text(pilot_page(told), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from error
