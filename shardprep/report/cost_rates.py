"""Rates: typed into a plan, or from the file that `shardprep pilot` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError
from shardprep.report.cost import Rate
from shardprep.report.cost_toml import TomlFile

RATE_KEYS = ("seconds_per_row", "rows_per_second", "tokens_per_second")
EVALUATION_KEYS = ("evaluation_seconds_per_row", "evaluation_rows_per_second")
PILOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """How fast the job trains: seconds a unit, how many units a pass has, and both counts of the data where known."""

    rate: Rate
    unit: str
    units: Fraction
    rows: Fraction | None
    tokens: Fraction | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def typed_training(
    file: TomlFile, rates: Mapping[str, Fraction], rows: Fraction | None, tokens: Fraction | None
) -> Measured:
    """Return the rate of [rates]; what is missing or given twice becomes a problem of the file."""
    given = [key for key in RATE_KEYS if key in rates]
    one = Fraction(1)
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "no rate is given"
        where = file.where("rates", given[-1] if given else "")
        file.problems.append(
            f'{where}: {what}: give one of rates = "pilot.json" or, in [rates], {", ".join(RATE_KEYS)}'
        )
        return Measured(Rate(one, one), "rows", rows or one, rows, tokens)
    key = given[0]
    unit = "tokens" if key == "tokens_per_second" else "rows"
    units = tokens if unit == "tokens" else rows
    if units is None:
        needs = "tokens or tokens_per_row" if unit == "tokens" else "rows"
        file.problem("rates", key, f"rates.{key} needs {needs}, or data")
    unit_s = rates[key] if key == "seconds_per_row" else 1 / rates[key]
    return Measured(Rate(unit_s, unit_s), unit, units or one, rows, tokens)


def typed_evaluation(file: TomlFile, rates: Mapping[str, Fraction]) -> Fraction | None:
    """Return the seconds of one evaluated row, None where nothing is typed."""
    given = [key for key in EVALUATION_KEYS if key in rates]
    if len(given) > 1:
        file.problem("rates", given[1], f"give one of {' and '.join(given)}")
    if not given:
        return None
    return rates[given[0]] if given[0] == "evaluation_seconds_per_row" else 1 / rates[given[0]]


def read_pilot(path: str, rows: Fraction | None, tokens: Fraction | None, world_size: int | None) -> Measured:
    """Return the rate that a pilot measured: by tokens where tokens are known (lengths vary less), else by rows.

    world_size: ranks that are planned; a rate measured on others is scaled in proportion, with a warning.
    Raises ConfigError naming the file, the key and what was got.
    """
    pilot = _pilot(path)
    unit, units = ("tokens", tokens) if tokens is not None else ("rows", rows)
    key = "useful_tokens_per_second" if unit == "tokens" else "rows_per_second"
    mean, low = _rate(path, pilot, key)
    warning = ""
    ranks = pilot.get("world_size")
    if world_size is not None and isinstance(ranks, int) and ranks > 0 and ranks != world_size:
        mean, low = mean * world_size / ranks, low * world_size / ranks
        warning = (
            f"{path} was measured on {ranks} rank{'s' * (ranks != 1)}, {world_size} are planned: the rate is scaled in "
            "proportion, which is the best that can happen. Measure it"
        )
    return Measured(
        rate=Rate(1 / mean, 1 / low),
        unit=unit,
        units=units if units is not None else Fraction(1),
        rows=rows,
        tokens=tokens,
        notes=(f"{float(mean):,.4g} {unit} a second ({float(low):,.4g} at the slow end): {path}",),
        warnings=(warning,) if warning else (),
    )


def _pilot(path: str) -> dict[str, Any]:
    try:
        pilot = json.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise ConfigError(f"cannot read the pilot's rates {path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not JSON: {error}; `shardprep pilot` writes such a file") from error
    if not isinstance(pilot, dict) or pilot.get("version") != PILOT_VERSION:
        got = pilot.get("version") if isinstance(pilot, dict) else type(pilot).__name__
        raise ConfigError(
            f"{path} is no pilot file of version {PILOT_VERSION}, got {got!r}; `shardprep pilot` writes one"
        )
    return pilot


def _rate(path: str, pilot: Mapping[str, Any], key: str) -> tuple[Fraction, Fraction]:
    """Return the mean and the low end; a plain number is both."""
    value = pilot.get(key)
    ends = (value.get("mean"), value.get("low")) if isinstance(value, Mapping) else (value, value)
    numbers = [
        Fraction(end)
        for end in ends
        if isinstance(end, int | Decimal) and not isinstance(end, bool) and Decimal(end).is_finite() and end > 0
    ]
    if len(numbers) != len(ends):
        raise ConfigError(f"{path}: {key} must have a mean and a low end above 0, got {value!r}", key=key)
    return numbers[0], min(numbers)
