"""The arguments of `shardprep cost`; what works it out is imported when the command runs."""

from __future__ import annotations

import argparse


def add_arguments(cost: argparse.ArgumentParser) -> None:
    """Add the arguments of `shardprep cost`."""
    cost.add_argument("plan", metavar="PLAN", help="plan.toml: data, passes, rates, instance, people, limits")
    cost.add_argument("--html", metavar="FILE", help="also write one self-contained page")
