"""`shardprep cost`: what a plan costs, whether it fits, and what would make it fit."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from shardprep.errors import ConfigError
from shardprep.report.cost import Bill, bill_of
from shardprep.report.cost_json import cost_json
from shardprep.report.cost_plan import PlanFile, read_plan
from shardprep.report.cost_remedies import Remedy, remedies_of
from shardprep.report.cost_text import cost_text
from shardprep.report.cost_whatif import Cell, grid_of


@dataclass(frozen=True, slots=True)
class Costing:
    """A plan with its bill, what would make it fit, and the grid."""

    file: PlanFile
    bill: Bill
    remedies: tuple[Remedy, ...]
    grid: tuple[Cell, ...]

    def json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return cost_json(self.file, self.bill, self.remedies, self.grid)

    def text(self) -> str:
        """Return everything as lines for a person."""
        return cost_text(self.file, self.bill, self.remedies, self.grid)

    def page(self) -> str:
        """Return everything as one self-contained HTML page."""
        from shardprep.report.cost_page import cost_page

        return cost_page(self.file, self.bill, self.remedies, self.grid)


def costing_of(plan: str, options: Mapping[str, str], today: date | None = None) -> Costing:
    """Read a plan and work out all about it; today is for the age of the prices."""
    file = read_plan(plan, options=options, today=today or date.today())  # noqa: DTZ011  the day where the reader is
    return Costing(
        file=file,
        bill=bill_of(file.plan),
        remedies=remedies_of(file.plan, file.what_if, file.prices.usd_per_hour),
        grid=grid_of(file.plan, file.what_if),
    )


def cost_as_told(chosen: argparse.Namespace, options: Mapping[str, str]) -> Costing:
    """Run `shardprep cost`: return what to print, having written the page if asked to."""
    costing = costing_of(chosen.plan, options)
    if chosen.html:
        try:
            Path(chosen.html).write_text(costing.page(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {chosen.html}: {error.strerror}") from error
    return costing
