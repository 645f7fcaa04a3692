"""The log of a budget guard: one JSON object a line, appended by every run of a job, and read back by the next one.

    run        a run begins: time (Unix seconds), price_per_hour (USD, one instance), instances, startup_s (billed before the
               run's clock began), version
    carried    runs that another log or none knows, from a checkpoint: {run: {"seconds": ..., "usd_per_hour": ...}}
    step       after a step: step, run_s (seconds since the run began), spent_usd and spent_hours of all runs so far
    evaluated  metric, value, step, spent_usd, spent_hours, marginal cost per unit of the metric
    stop       the guard asked the loop to stop, and why
    end        the run ended in an orderly way

Every line has run (its name), time and run_s. Lines count up, so that nothing is lost when some are missing: what a run cost
is in its last one. A killed run has no end line; the time from its last line to the kill is nowhere written. It is counted
as the longest interval between two lines of that run, or as the time to the next run's start if that is shorter.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from shardprep.errors import ConfigError, StoreError

VERSION = 1
NAME = "budget.jsonl"
HEAD = b'{"event": "'  # how every line begins
EVENTS = ("run", "carried", "step", "evaluated", "stop", "end")
NEVER_SEEN_S = 60.0  # a run that was killed before its first step, in a log where nothing tells how long steps take


@dataclass
class Run:
    """What the log knows of one run; times in seconds, `run_s` up to its last line, start-up not included."""

    name: str
    price_per_hour: float
    instances: int
    startup_s: float
    began: float
    last: float
    run_s: float = 0.0
    lines: int = 0
    longest_line_s: float = 0.0
    longest_step_s: float = 0.0
    step_s: float | None = None
    ended: bool = False
    unseen_s: float = 0.0

    @property
    def billed_s(self) -> float:
        """Return the billed seconds of one instance: start-up, the run up to its last line, and what was not seen after."""
        return self.startup_s + self.run_s + self.unseen_s

    @property
    def usd_per_hour(self) -> float:
        """Return the price of an hour of all instances."""
        return self.price_per_hour * self.instances


@dataclass
class History:
    """All that a log says."""

    runs: dict[str, Run] = field(default_factory=dict)
    carried: dict[str, tuple[float, float]] = field(default_factory=dict)  # run -> seconds, USD per hour
    evaluations: dict[str, list[Evaluation]] = field(default_factory=dict)
    torn_lines: int = 0
    whole: bool = True  # the last line has an end

    @property
    def longest_step_s(self) -> float:
        """Return the longest time between two steps of any run."""
        return max((run.longest_step_s for run in self.runs.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A metric's value, and what all runs had cost by then."""

    step: int
    value: float
    spent_usd: float
    spent_s: float


def log_path(place: str | os.PathLike[str]) -> str:
    """Return the log's file: the place itself if it is a file or called *.jsonl, else budget.jsonl in that folder.

    Raises ConfigError for a URI.
    """
    path = os.fspath(place)
    if "://" in path:
        raise ConfigError(
            f"log must be a folder or file on disk, got {path}: a line is appended after each step. "
            "In SageMaker use /opt/ml/checkpoints, which is copied to S3 while the job runs",
            log=path,
        )
    return path if path.endswith(".jsonl") or os.path.isfile(path) else os.path.join(path, NAME)


def read_log(path: str, now: float) -> History:
    """Return what the log says, with the unseen time of each killed run; now (Unix seconds) is when the next run starts.

    A file that does not exist is an empty log. A line cut off by a kill is skipped. Raises ConfigError for a file that is
    no such log, naming the line, and StoreError if it cannot be read.
    """
    history = History()
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                history.whole = line.endswith(b"\n")
                line = line.strip(b"\0 \r\n")  # noqa: PLW2901  a loss of power can leave zeros
                if line:
                    _take(history, path, number, line)
    except (FileNotFoundError, NotADirectoryError):  # writing to it will say what is wrong
        return history
    except OSError as error:
        raise StoreError(f"cannot read the budget log {path}: {error.strerror}", uri=path) from error
    _count_unseen(history, now)
    return history


def _take(history: History, path: str, number: int, line: bytes) -> None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not history.runs and not line.startswith(HEAD) and not HEAD.startswith(line):
            raise _foreign(path, number, "it is not JSON") from error
        history.torn_lines += (
            1  # cut off by a kill or a loss of power; later lines count up, and the next run began a new one
        )
        return
    if not isinstance(record, dict) or record.get("event") not in EVENTS:
        raise _foreign(path, number, "it is no line of a budget log")
    try:
        _TAKERS[record["event"]](history, record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(path, number, f"{type(error).__name__}: {error}") from error


def _foreign(path: str, number: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: {why}. This file is not the log of a budget guard, or was damaged: give log= another "
        "place, or move the file away (what it counted is then no longer counted)",
        log=path,
        line=number,
    )


def _begun(history: History, record: dict[str, Any]) -> None:
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']!r} of the log, this shardprep reads version {VERSION}")
    began = float(record["time"])
    history.runs[record["run"]] = Run(
        name=str(record["run"]),
        price_per_hour=float(record["price_per_hour"]),
        instances=int(record["instances"]),
        startup_s=float(record["startup_s"]),
        began=began,
        last=began,
    )


def _carried(history: History, record: dict[str, Any]) -> None:
    for name, entry in record["runs"].items():
        history.carried[name] = (float(entry["seconds"]), float(entry["usd_per_hour"]))
    _seen(history, record)


def _seen(history: History, record: dict[str, Any]) -> Run:
    run = history.runs[record["run"]]
    run_s = float(record["run_s"])
    run.longest_line_s = max(run.longest_line_s, run_s - run.run_s)
    run.run_s, run.last, run.lines = max(run.run_s, run_s), float(record["time"]), run.lines + 1
    return run


def _stepped(history: History, record: dict[str, Any]) -> None:
    run = _seen(history, record)
    if run.step_s is not None:
        run.longest_step_s = max(run.longest_step_s, run.run_s - run.step_s)
    run.step_s = run.run_s


def _evaluated(history: History, record: dict[str, Any]) -> None:
    _seen(history, record)
    value = record["value"]
    history.evaluations.setdefault(str(record["metric"]), []).append(
        Evaluation(
            step=int(record["step"]),
            value=float("nan") if value is None else float(value),
            spent_usd=float(record["spent_usd"]),
            spent_s=float(record["spent_hours"]) * 3600,
        )
    )


def _ended(history: History, record: dict[str, Any]) -> None:
    _seen(history, record).ended = True


_TAKERS = {
    "run": _begun,
    "carried": _carried,
    "step": _stepped,
    "evaluated": _evaluated,
    "stop": _seen,
    "end": _ended,
}


def _count_unseen(history: History, now: float) -> None:
    """Count the time between a killed run's last line and the kill: see the head of this module."""
    runs = list(history.runs.values())
    typical = max((run.longest_line_s for run in runs), default=0.0)
    for run, following in zip(runs, [*(run.began for run in runs[1:]), now], strict=True):
        if not run.ended:
            most = run.longest_line_s if run.lines else max(typical, NEVER_SEEN_S)
            gap = following - run.last
            # A clock that was set back tells nothing: then the longer of the two is counted.
            run.unseen_s = min(most, gap) if gap >= 0 else most


def append_line(path: str, record: Mapping[str, Any], *, on_new_line: bool = False) -> None:
    """Append one line in one write; on_new_line begins a line of its own after one that was cut off. Raises OSError."""
    data = (b"\n" if on_new_line else b"") + json.dumps(record, allow_nan=False).encode() + b"\n"
    # Opened for each line: nothing to close, nothing shared with a forked child.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        written = os.write(file, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, "only a part of the line could be written", path)
    finally:
        os.close(file)
