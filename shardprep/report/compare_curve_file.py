"""The evaluations of a run as a file: one JSON object a line, with step and value."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError, NotFound, SourceError, StoreError
from shardprep.report.compare_pairs import mode_of
from shardprep.stopping_rule import StoppingRule

RULE_KEYS = ("metric", "mode", "patience_evaluations", "min_delta", "min_steps", "patience_not_finite")

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """The evaluations of a run, (step, value) by rising step; settings are those of its EarlyStopping, if it had one."""

    name: str
    points: Points
    settings: Mapping[str, Any]

    def best(self, rule: StoppingRule, stop_step: float = math.inf) -> tuple[int, float]:
        """Return the first of the best finite evaluations up to a step. Raises SourceError if there is none."""
        found = [(step, value) for step, value in self.points if step <= stop_step and math.isfinite(value)]
        if not found:
            raise SourceError(f"{self.name}: no finite {rule.metric} in it", key=self.name)
        return min(found, key=lambda point: -rule.gain(point[1], 0.0))


def rule_of(curve: Curve, **given: Any) -> StoppingRule:
    """Return the rule of a curve's own settings, with those given in their place. Raises ConfigError if it lacks some."""
    settings = {key: curve.settings[key] for key in RULE_KEYS if key in curve.settings}
    settings |= {key: value for key, value in given.items() if value is not None}
    if "metric" in settings:
        settings["mode"] = mode_of(settings["metric"], settings.get("mode"))
    if not settings.keys() >= {"metric", "mode", "patience_evaluations"}:
        raise ConfigError(
            f"{curve.name} does not say by which rule the run was stopped (EarlyStopping(curve=...) writes it into the first "
            "line); give --metric, --patience-evaluations, and --min-delta and --min-steps if there were any"
        )
    return StoppingRule(**settings)


def read_curve(path: str | os.PathLike[str], metric: str | None = None) -> Curve:
    """Read the evaluations in a JSONL file: that of EarlyStopping(curve=...), or any log whose lines have step and metric.

    Lines without them are passed over. After a resume that went back the later evaluations count. Raises SourceError that
    names file and line, StoreError (NotFound) if it cannot be read.
    """
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{name}: no such file", uri=name) from error
    except OSError as error:
        raise StoreError(f"{name}: it cannot be read ({error.strerror})", uri=name) from error
    settings: dict[str, Any] = {}
    points: list[tuple[int, float]] = []
    for number, line in _lines(name, data):
        if "curve" in line:
            settings = line
            continue
        step = line.get("step")
        key = "value" if "value" in line else metric or settings.get("metric")
        if not isinstance(step, int) or isinstance(step, bool) or key not in line:
            continue
        value = math.nan if line[key] is None else line[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SourceError(f"{name} line {number}: {key} must be a number, got {value!r}", key=name, line=number)
        while points and points[-1][0] >= step:
            points.pop()
        points.append((step, float(value)))
    if metric is not None and settings.get("metric", metric) != metric:
        raise ConfigError(f"{name} holds {settings['metric']}, not {metric}")
    if not points:
        raise SourceError(
            f'{name}: no evaluation in it: no line with "step" and "{metric or "value"}"; for a log of another kind say '
            "--metric NAME",
            key=name,
        )
    return Curve(name, tuple(points), settings)


def _lines(name: str, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return  # the run was killed while it wrote: no end of line
            raise SourceError(f"{name} line {number}: not JSON ({error})", key=name, line=number) from error
        if isinstance(found, dict):
            yield number, found
