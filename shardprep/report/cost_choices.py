"""Reading the machines of a plan, with their prices, and its what-if tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from shardprep.report.cost import Machine
from shardprep.report.cost_prices import Prices
from shardprep.report.cost_rates import Measured, read_pilot
from shardprep.report.cost_toml import AMOUNT, COUNT, LABEL, POSITIVE, TEXT, TomlFile, shown
from shardprep.report.cost_whatif import PLANNED, Choice, WhatIf

CHOICES = {
    "instances": {"instance": TEXT, "instances": COUNT, "usd_per_hour": AMOUNT, "speed": POSITIVE, "rates": TEXT},
    "batches": {"batch": LABEL, "speed": POSITIVE, "rates": TEXT},
    "methods": {"method": TEXT, "speed": POSITIVE, "rates": TEXT},
}


def machine_of(file: TomlFile, table: str, values: Mapping[str, Any], prices: Prices) -> Machine:
    """Return the machine that a table names, or one without a name by its price; what is wrong becomes a problem."""
    name, price = values.get("instance"), values.get("usd_per_hour")
    if name is None and price is None:
        where = file.where(table) if table else file.path
        file.problems.append(f'{where}: no instance: instance = "ml.g5.xlarge", or usd_per_hour with a price')
        price = Fraction(0)
    if price is None:
        price = _price(file, table, str(name), prices)
    return Machine(name=name or "own machine", usd_per_hour=price, count=values.get("instances", 1))


def _price(file: TomlFile, table: str, name: str, prices: Prices) -> Fraction:
    if name not in prices.usd_per_hour:
        known = ", ".join(sorted(prices.usd_per_hour))
        file.problem(
            table,
            "instance",
            f"no price of {shown(name)}: add a line {shown(name)} = USD an hour to {prices.path}, or give usd_per_hour here; "
            f"known are {known}",
        )
    return prices.usd_per_hour.get(name, Fraction(0))


class WhatIfReading:
    """The what-if tables of one plan being read."""

    def __init__(
        self, file: TomlFile, prices: Prices, measured: Measured, path_of: Callable[[str], str], top: Mapping[str, Any]
    ) -> None:
        self.file, self.prices, self.measured, self.path_of, self.top = file, prices, measured, path_of, top

    def result(self) -> WhatIf:
        """Return the alternatives; what is wrong becomes a problem of the file."""
        raw = self.file.values.get("what_if", {})
        if not isinstance(raw, dict):
            self.file.problem("", "what_if", "what_if must be tables: [[what_if.instances]] and so on")
            raw = {}
        for key in raw.keys() - CHOICES.keys():
            known = ", ".join(f"[[what_if.{name}]]" for name in CHOICES)
            self.file.problem("what_if", key, f"what_if.{key} is not known; known are {known}")
        found = {name: self._choices(name, raw.get(name, [])) for name in CHOICES}
        return WhatIf(
            instances=found["instances"],
            batches=found["batches"],
            methods=found["methods"],
            batch=str(self.top.get("batch", PLANNED)),
            method=str(self.top.get("method", PLANNED)),
        )

    def _choices(self, name: str, items: Any) -> tuple[Choice, ...]:
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            self.file.problem("what_if", name, f"what_if.{name} must be tables: [[what_if.{name}]], one for each")
            return ()
        return tuple(self._choice(name, f"what_if.{name}[{index}]", item) for index, item in enumerate(items))

    def _choice(self, name: str, table: str, item: Mapping[str, Any]) -> Choice:
        values = self.file.take(table, item, CHOICES[name])
        speed, measured = self._speed(table, item, values)
        if name == "instances":
            machine = machine_of(self.file, table, values, self.prices)
            label = machine.name if machine.count == 1 else f"{machine.count} x {machine.name}"
            return Choice(label, speed, measured=measured, machine=machine)
        key = {"batches": "batch", "methods": "method"}[name]
        if key not in item:
            self.file.problem(table, "", f"{table}.{key} is missing")
        return Choice(str(values.get(key, "")), speed, measured=measured)

    def _speed(self, table: str, item: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Fraction, bool]:
        """Return how many times as fast as the plan, and whether that was measured."""
        given = [key for key in ("speed", "rates") if key in item]
        if len(given) != 1:
            what = "both are given" if given else "neither is given"
            needs = "needs either speed (1.5: half as fast again) or rates, a pilot's file"
            self.file.problem(table, given[-1] if given else "", f"{table} {needs}; {what}")
        if "rates" not in values:
            return values.get("speed", Fraction(1)), False
        plan = self.measured
        other = read_pilot(self.path_of(values["rates"]), plan.rows, plan.tokens, self.top.get("world_size"))
        return plan.units * plan.rate.unit_s / (other.units * other.rate.unit_s), True
