"""Reading plan.toml: what docs/cost.md lists, with the data set's manifest, the pilot's rates and the prices it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from typing import Any

from shardprep.report.cost import Controller, Plan, Rate, Spot
from shardprep.report.cost_choices import WhatIfReading, machine_of
from shardprep.report.cost_prices import Prices, read_prices
from shardprep.report.cost_rates import (
    EVALUATION_KEYS,
    RATE_KEYS,
    Measured,
    read_pilot,
    typed_evaluation,
    typed_training,
)
from shardprep.report.cost_toml import (
    AMOUNT,
    COUNT,
    LABEL,
    POSITIVE,
    SHARE,
    SWITCH,
    TEXT,
    WHOLE,
    TomlFile,
    read_toml,
)
from shardprep.report.cost_whatif import WhatIf

TOP = {
    "title": TEXT, "data": TEXT, "split": TEXT, "rows": COUNT, "tokens": COUNT, "tokens_per_row": POSITIVE,
    "passes": POSITIVE, "rates": TEXT, "world_size": COUNT, "instance": TEXT, "instances": COUNT, "usd_per_hour": AMOUNT,
    "prices": TEXT, "method": TEXT, "batch": LABEL, "startup_billed_minutes": AMOUNT, "startup_unbilled_minutes": AMOUNT,
    "checkpoint_minutes": POSITIVE, "checkpoint_write_seconds": AMOUNT, "max_run_minutes": POSITIVE, "relaunches": WHOLE,
    "expected_relaunches": AMOUNT, "people": COUNT, "people_at_once": COUNT, "budget_usd": AMOUNT,
    "budget_person_usd": AMOUNT, "deadline_hours": POSITIVE, "deadline_days": POSITIVE,
}  # fmt: skip
TABLES: dict[str, dict[str, str]] = {
    "evaluation": {"rows_before": AMOUNT, "rows_after": AMOUNT, "rows_after_each_pass": AMOUNT},
    "rates": {"pilot": TEXT, "slower": AMOUNT, **dict.fromkeys((*RATE_KEYS, *EVALUATION_KEYS), POSITIVE)},
    "controller": {"instance": TEXT, "hours": AMOUNT, "worst_hours": AMOUNT, "usd_per_hour": AMOUNT},
    "spot": {"use": SWITCH, "discount": SHARE, "interruptions_per_hour": AMOUNT, "max_wait_minutes": POSITIVE},
}


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as read: the numbers, what else could be tried, and what a person should know about them."""

    path: str
    title: str
    plan: Plan
    prices: Prices
    what_if: WhatIf
    notes: tuple[str, ...]  # what was taken from where, and what was assumed
    warnings: tuple[str, ...]


def read_plan(path: str, *, options: Mapping[str, str], today: date) -> PlanFile:
    """Read a plan and the files it names; relative paths are relative to the plan's folder.

    Raises ConfigError with all that is wrong in it at once, ManifestError or StoreError if its data set cannot be read.
    """
    file = read_toml(path, "the plan")
    return _Reading(file, options, today).result()


class _Reading:
    """One plan being read: problems gather in `file`, remarks in notes and warnings."""

    def __init__(self, file: TomlFile, options: Mapping[str, str], today: date) -> None:
        self.file, self.options, self.today = file, options, today
        self.folder = os.path.dirname(file.path)
        self.notes: list[str] = []
        self.warnings: list[str] = []
        tables = {name: value for name, value in file.values.items() if isinstance(value, dict)}
        tops = {name: value for name, value in file.values.items() if not isinstance(value, dict)}
        self.top = file.take("", tops, TOP)
        self.table: dict[str, dict[str, Any]] = {}
        for name, value in tables.items():
            if name in TABLES:
                self.table[name] = file.take(name, value, TABLES[name])
            elif name != "what_if":
                known = ", ".join(f"[{known}]" for known in (*TABLES, "what_if"))
                file.problem(name, "", f"[{name}] is not known; known are {known}")
        self.prices = Prices("", today, {})

    def result(self) -> PlanFile:
        file, top = self.file, self.top
        file.raise_problems()  # before other files are read: a slip is told at once
        self.prices = read_prices(self._path(top["prices"]) if "prices" in top else None)
        if warning := self.prices.warning(self.today):
            self.warnings.append(warning)
        rows, tokens = self._data()
        measured = self._training(rows, tokens)
        plan = Plan(
            machine=machine_of(file, "", top, self.prices),
            units=measured.units,
            unit=measured.unit,
            training=measured.rate,
            passes=self._needed("passes", "how often the data are gone through"),
            people=top.get("people", 1),
            people_at_once=top.get("people_at_once"),
            relaunches=top.get("relaunches", 0),
            expected_relaunches=top.get("expected_relaunches", Fraction(0)),
            startup_billed_s=top.get("startup_billed_minutes", Fraction(0)) * 60,
            startup_unbilled_s=top.get("startup_unbilled_minutes", Fraction(0)) * 60,
            checkpoint_every_s=top["checkpoint_minutes"] * 60 if "checkpoint_minutes" in top else None,
            checkpoint_write_s=top.get("checkpoint_write_seconds", Fraction(0)),
            max_run_s=top["max_run_minutes"] * 60 if "max_run_minutes" in top else None,
            budget_usd=top.get("budget_usd"),
            budget_person_usd=top.get("budget_person_usd"),
            deadline_s=self._deadline(),
            controller=self._controller(),
            **self._evaluation(measured, rows),
            **self._spot(),
        )
        self._check(plan)
        what_if = WhatIfReading(file, self.prices, measured, self._path, top).result()
        file.raise_problems()
        return PlanFile(
            path=file.path,
            title=top.get("title", os.path.basename(file.path)),
            plan=plan,
            prices=self.prices,
            what_if=what_if,
            notes=tuple(self.notes),
            warnings=tuple(self.warnings),
        )

    def _path(self, path: str) -> str:
        return path if "://" in path else os.path.join(self.folder, path)

    def _needed(self, key: str, what: str) -> Fraction:
        if key not in self.top:
            self.file.problems.append(f"{self.file.path}: {key} is missing: {what}")
        return Fraction(self.top.get(key, 1))

    # ---- data and rates --------------------------------------------------------------------------------------------

    def _data(self) -> tuple[Fraction | None, Fraction | None]:
        """Return rows and tokens of one pass, each None where nothing says it."""
        top, file = self.top, self.file
        typed = [key for key in ("rows", "tokens", "tokens_per_row") if key in top]
        if "data" in top:
            if typed:
                file.problem("", typed[0], f"{typed[0]} is in the manifest of data too: give one of them")
                return Fraction(1), Fraction(1)
            return self._from_manifest(top["data"], top.get("split", "train"))
        if "split" in top:
            file.problem("", "split", "split needs data, the data set that it is a split of")
        if "tokens" in top and "tokens_per_row" in top:
            file.problem("", "tokens_per_row", "give tokens or tokens_per_row, not both")
        if "rows" not in top and "tokens" not in top:
            file.problems.append(
                f'{file.path}: nothing says how much data there is: data = "s3://bucket/shards", or rows, or tokens'
            )
        rows = Fraction(top["rows"]) if "rows" in top else None
        if "tokens" in top:
            return rows, Fraction(top["tokens"])
        if "tokens_per_row" in top and rows is None:
            file.problem("", "tokens_per_row", "tokens_per_row needs rows")
        return rows, rows * top["tokens_per_row"] if rows is not None and "tokens_per_row" in top else None

    def _from_manifest(self, data: str, split: str) -> tuple[Fraction, Fraction]:
        from shardprep.report.measures import measures_of
        from shardprep.storage.dataset import open_dataset

        uri = self._path(data)
        _, manifest = open_dataset(uri, options=self.options)
        splits = {one.name: one.histogram for one in measures_of(manifest).splits}
        if split not in splits:
            self.file.problem("", "split", f"{uri} has no split {split}; it has {', '.join(splits)}")
            return Fraction(1), Fraction(1)
        histogram = splits[split]
        self.notes.append(f"{histogram.rows:,} rows and {histogram.tokens:,} tokens: split {split} of {uri}")
        return Fraction(histogram.rows), Fraction(histogram.tokens)

    def _training(self, rows: Fraction | None, tokens: Fraction | None) -> Measured:
        rates = self.table.get("rates", {})
        pilot = self.top.get("rates") or rates.get("pilot")
        if pilot is not None:
            typed = [key for key in RATE_KEYS if key in rates]
            if typed:
                self.file.problem("rates", typed[0], f"rates.{typed[0]} is measured by the pilot too: give one of them")
            measured = read_pilot(self._path(pilot), rows, tokens, self.top.get("world_size"))
        else:
            measured = typed_training(self.file, rates, rows, tokens)
        self.notes += measured.notes
        self.warnings += measured.warnings
        slower = 1 + rates.get("slower", Fraction(0))
        return replace(measured, rate=Rate(measured.rate.unit_s, measured.rate.slow_s * slower))

    def _evaluation(self, measured: Measured, rows: Fraction | None) -> dict[str, Any]:
        counts = self.table.get("evaluation", {})
        rates = self.table.get("rates", {})
        unit_s = typed_evaluation(self.file, rates)
        if unit_s is None:
            unit_s = Fraction(0)
            if any(counts.values()):
                if rows is None:
                    self.file.problem("evaluation", "", "evaluated rows need rates.evaluation_seconds_per_row")
                else:
                    unit_s = measured.units * measured.rate.unit_s / rows
                    self.notes.append(
                        f"an evaluated row counts as much as a trained one, {float(unit_s):.3g} s: no evaluation rate is given"
                    )
        return {"evaluation": Rate(unit_s, unit_s * (1 + rates.get("slower", Fraction(0)))), **counts}

    # ---- machines, spot, limits ------------------------------------------------------------------------------------

    def _controller(self) -> Controller | None:
        values = self.table.get("controller")
        if not values:
            return None
        if "hours" not in values:
            self.file.problem("controller", "", "controller.hours is missing: how long a person uses it")
        machine = machine_of(self.file, "controller", values, self.prices)
        hours = values.get("hours", Fraction(0))
        worst = values.get("worst_hours", hours)
        if worst < hours:
            self.file.problem(
                "controller", "worst_hours", "controller.worst_hours must not be less than controller.hours"
            )
        return Controller(machine.name, machine.usd_per_hour, hours, worst)

    def _spot(self) -> dict[str, Any]:
        values = self.table.get("spot")
        if not values:
            return {}
        missing = [key for key in ("discount", "interruptions_per_hour") if key not in values]
        for key in missing:
            self.file.problem("spot", "", f"spot.{key} is missing")
        wait = values.get("max_wait_minutes")
        spot = Spot(
            values.get("discount", Fraction(0)),
            values.get("interruptions_per_hour", Fraction(0)),
            None if wait is None else wait * 60,
        )
        return {"spot": spot, "on_spot": values.get("use", True)}

    def _deadline(self) -> Fraction | None:
        if "deadline_hours" in self.top and "deadline_days" in self.top:
            self.file.problem("", "deadline_days", "give deadline_hours or deadline_days, not both")
        if "deadline_days" in self.top:
            return Fraction(self.top["deadline_days"]) * 24 * 3600
        return Fraction(self.top["deadline_hours"]) * 3600 if "deadline_hours" in self.top else None

    def _check(self, plan: Plan) -> None:
        """Find what is wrong between keys."""
        if plan.expected_relaunches > plan.relaunches:
            self.file.problem(
                "",
                "expected_relaunches",
                f"expected_relaunches must not be more than relaunches ({plan.relaunches}), which the worst case counts",
            )
        if plan.spot and plan.spot.max_wait_s is not None and plan.max_run_s is None:
            self.file.problem("spot", "max_wait_minutes", "spot.max_wait_minutes needs max_run_minutes")
        elif (
            plan.spot and plan.spot.max_wait_s is not None and plan.max_run_s and plan.spot.max_wait_s < plan.max_run_s
        ):
            self.file.problem("spot", "max_wait_minutes", "spot.max_wait_minutes must be at least max_run_minutes")
        if plan.checkpoint_write_s and plan.checkpoint_every_s is None:
            self.file.problem("", "checkpoint_write_seconds", "checkpoint_write_seconds needs checkpoint_minutes")
        if plan.max_run_s is not None and plan.startup_billed_s >= plan.max_run_s:
            self.file.problem("", "max_run_minutes", "max_run_minutes must be more than startup_billed_minutes")
        if plan.max_run_s is None and plan.training.slow_s == plan.training.unit_s:
            self.warnings.append(
                "the worst case takes the rates as exact: give max_run_minutes, which ends a slow job, or rates.slower "
                "= 0.2 for a job that may be 20 % slower than measured"
            )
        if plan.on_spot and plan.checkpoint_every_s is None and plan.spot and plan.spot.interruptions_per_hour:
            self.warnings.append("on spot without checkpoint_minutes every interruption begins the job again")
