"""What else could be done: the grid of instances x batch x method x spot, and what would make a plan fit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from shardprep.report.cost import Bill, Machine, Plan, bill_of, changed, sped_up

PLANNED = "as planned"


@dataclass(frozen=True, slots=True)
class Choice:
    """One alternative: `speed` times as fast as the plan. measured: by a pilot; else it was typed, and is a guess."""

    label: str
    speed: Fraction
    measured: bool = False
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The alternatives of a plan, besides itself."""

    instances: tuple[Choice, ...]
    batches: tuple[Choice, ...]
    methods: tuple[Choice, ...]
    batch: str = PLANNED
    method: str = PLANNED


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid, with its bill."""

    instance: str
    batch: str
    method: str
    spot: bool
    planned: bool
    measured: bool
    bill: Bill


def grid_of(plan: Plan, what_if: WhatIf) -> tuple[Cell, ...]:
    """Return every combination, cheapest in the worst case first; the plan itself is among them.

    Speeds multiply: a batch and a method are taken to help independently. Instances change the speed of evaluation too,
    batch and method only that of training. max_run keeps its slack.
    """
    machine = plan.machine
    label = machine.name if machine.count == 1 else f"{machine.count} x {machine.name}"
    here = Choice(label, Fraction(1), measured=True, machine=machine)
    spots = (False, True) if plan.spot is not None else (plan.on_spot,)
    same_batch = Choice(what_if.batch, Fraction(1), measured=True)
    same_method = Choice(what_if.method, Fraction(1), measured=True)
    cells = []
    for instance, batch, method, spot in product(
        (here, *what_if.instances),
        (same_batch, *what_if.batches),
        (same_method, *what_if.methods),
        spots,
    ):
        planned = instance is here and batch is same_batch and method is same_method and spot == plan.on_spot
        bill = bill_of(with_choices(plan, (instance,), (batch, method), spot=spot))
        measured = instance.measured and batch.measured and method.measured
        cells.append(Cell(instance.label, batch.label, method.label, spot, planned, measured, bill))
    return tuple(sorted(cells, key=lambda cell: (cell.bill.worst.group_usd, cell.bill.expected.group_usd)))


def with_choices(
    plan: Plan, instances: tuple[Choice, ...], training: tuple[Choice, ...], *, spot: bool | None = None
) -> Plan:
    """Return the plan with alternatives taken."""
    machine, rate, evaluation = plan.machine, plan.training, plan.evaluation
    for choice in instances:
        machine = choice.machine or machine
        rate, evaluation = sped_up(rate, choice.speed), sped_up(evaluation, choice.speed)
    for choice in training:
        rate = sped_up(rate, choice.speed)
    on_spot = plan.on_spot if spot is None else spot
    return changed(plan, machine=machine, training=rate, evaluation=evaluation, on_spot=on_spot)
