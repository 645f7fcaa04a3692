"""The price file: what an hour of each instance costs, and when that was looked up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from importlib.resources import files

from shardprep.report.cost_toml import AMOUNT, TomlFile, read_toml

OLD_DAYS = 92  # three months: prices and instances change a few times a year


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in USD an hour by instance, as of a day."""

    path: str
    day: date
    usd_per_hour: dict[str, Fraction]

    def warning(self, today: date) -> str | None:
        """Return a line if the prices are old, or of a day that has not come."""
        age = (today - self.day).days
        if age > OLD_DAYS:
            return f"prices are of {self.day}, {age} days ago: look them up again and edit {self.path}"
        return f"prices are of {self.day}, which is not yet: check the date in {self.path}" if age < 0 else None


def bundled_prices_path() -> str:
    """Return the path of the price file that comes with shardprep."""
    return str(files("shardprep.report").joinpath("prices.toml"))


def read_prices(path: str | None) -> Prices:
    """Return the prices of a file, or those that come with shardprep. Raises ConfigError naming file, line and key."""
    file = read_toml(path or bundled_prices_path(), "the price file")
    day = _day(file)
    table = file.values.get("usd_per_hour")
    prices: dict[str, Fraction] = {}
    if isinstance(table, dict) and table:
        prices = file.take("usd_per_hour", table, dict.fromkeys(table, AMOUNT))
    else:
        file.problem(
            "", "usd_per_hour", 'there are no prices: [usd_per_hour], then lines such as "ml.g5.xlarge" = 1.41'
        )
    for key in file.values.keys() - {"date", "usd_per_hour"}:
        file.problem("", key, f"{key} is not known; known are date and [usd_per_hour]")
    file.raise_problems()
    return Prices(file.path, day, prices)


def _day(file: TomlFile) -> date:
    day = file.values.get("date")
    if isinstance(day, date) and not isinstance(day, datetime):
        return day
    got = "nothing" if day is None else repr(day)
    file.problem("", "date", f"date must be the day of the prices, such as date = 2026-10-16 without quotes, got {got}")
    return date.min
