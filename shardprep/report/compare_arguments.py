"""The flags of `shardprep compare`, and what it does with them; numpy is loaded when it is needed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from shardprep.errors import ConfigError

RULE_FLAGS = ("metric", "mode", "patience_evaluations", "min_delta", "min_steps")
CURVE_FLAGS = dict.fromkeys(("run", "patience_evaluations", "min_delta", "min_steps"))
ROW_FLAGS = {"delta": None, "weight": None, "by": None, "common": False, "fail_unless_no_worse": False}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `shardprep compare`."""
    command.add_argument(
        "baseline", metavar="BASELINE", help="results of the model to beat: a file, or a folder of parts"
    )
    command.add_argument("candidate", metavar="CANDIDATE", help="results of the other model on the same rows")
    command.add_argument(
        "--delta",
        metavar="SIZE",
        help="how much worse is still fine: 0.01 in units of the metric; shares: 1pp (default: only bounds)",
    )
    command.add_argument(
        "--metric", metavar="NAME", help="column to compare (default: loss or correct, if there is one)"
    )
    command.add_argument("--mode", choices=("min", "max"), help="what is better, where the metric's name does not say")
    command.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of the interval (default: 0.95)")
    command.add_argument(
        "--weight", metavar="COLUMN", help='how much a row counts (default: tokens for the loss; "none": all the same)'
    )
    command.add_argument("--by", metavar="COLUMN", help="groups of rows that are not independent; groups are drawn")
    command.add_argument("--common", action="store_true", help="compare the common ids only, and count the others")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap (default: 0)")
    command.add_argument("--fail-unless-no-worse", action="store_true", help="exit 1 unless the verdict is: no worse")
    curves = command.add_argument_group(
        "what early stopping cost (BASELINE: the stopped run; CANDIDATE: run to its end)"
    )
    curves.add_argument(
        "--curves", action="store_true", help="compare evaluation histories: files of EarlyStopping(curve=...)"
    )
    curves.add_argument(
        "--run", metavar="COMMAND", help="first run this with stopping off, to write CANDIDATE: the same on a subsample"
    )
    curves.add_argument(
        "--patience-evaluations", type=int, metavar="N", help="another patience than the stopped run had"
    )
    curves.add_argument("--min-delta", type=float, metavar="SIZE", help="another smallest improvement")
    curves.add_argument("--min-steps", type=int, metavar="N", help="another step before which nothing stops")


def compare_from(chosen: argparse.Namespace, options: Mapping[str, str]) -> tuple[dict[str, Any], str, int]:
    """Return what `shardprep compare` found: for a program, for a person, and the exit code."""
    return _of_curves(chosen) if chosen.curves else _of_rows(chosen, options)


def _of_curves(chosen: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    from shardprep.report.compare_curve_file import read_curve, rule_of
    from shardprep.report.compare_curves import compare_curves

    _refuse(chosen, ROW_FLAGS, "is about results by row; it does not go with --curves")
    stopped = read_curve(chosen.baseline, chosen.metric)
    rule = rule_of(stopped, **{name: getattr(chosen, name) for name in RULE_FLAGS})  # before hours of running
    if chosen.run is not None:
        from shardprep.report.compare_run import run_to_end

        try:
            command = shlex.split(chosen.run)
        except ValueError as error:
            raise ConfigError(f"--run {chosen.run}: {error}; quote it as a shell would") from error
        full = run_to_end(command, chosen.candidate)
    else:
        full = read_curve(chosen.candidate, rule.metric)
    found = compare_curves(stopped, full, rule)
    return found.summary(), found.text(), 0


def _refuse(chosen: argparse.Namespace, flags: Mapping[str, Any], why: str) -> None:
    for name, default in flags.items():
        if getattr(chosen, name) != default:
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def _of_rows(chosen: argparse.Namespace, options: Mapping[str, str]) -> tuple[dict[str, Any], str, int]:
    _refuse(chosen, CURVE_FLAGS, "is about curves; it needs --curves")
    if chosen.delta is None and chosen.fail_unless_no_worse:
        raise ConfigError(
            "--fail-unless-no-worse needs --delta: how much worse may the candidate be and still be fine? In units of the "
            "metric (--delta 0.01), or for accuracy in percentage points (--delta 1pp)"
        )
    if chosen.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {chosen.seed}")
    from shardprep.report.compare import compare

    names = ("delta", "metric", "mode", "confidence", "weight", "by", "common", "seed")
    found = compare(
        chosen.baseline, chosen.candidate, options=options, **{name: getattr(chosen, name) for name in names}
    )
    failed = chosen.fail_unless_no_worse and found.verdict.answer != "no worse"
    return found.summary(), found.text(), int(failed)
