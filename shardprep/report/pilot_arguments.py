"""The flags of `shardprep pilot`."""

from __future__ import annotations

import argparse
import re

from shardprep.report.pilot_flops import GPUS

STEPS = 300
GRACE_S = 30.0
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}


def add_arguments(pilot: argparse.ArgumentParser) -> None:
    """Add the arguments of `shardprep pilot`."""
    pilot.add_argument(
        "run", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the training command, as you would start it"
    )
    pilot.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps to play (default: {STEPS})")
    pilot.add_argument(
        "--max-seconds", type=_number, metavar="S", help="end after so long with the steps that are there"
    )
    pilot.add_argument("--split", metavar="NAME", help="split that is trained on (default: train, if it is read)")
    pilot.add_argument("--out", metavar="FILE", help="write the result as JSON, for `shardprep cost` and --compare")
    pilot.add_argument("--html", metavar="FILE", help="write one self-contained page")
    pilot.add_argument("--confidence", type=_number, default=0.95, metavar="P", help="of the intervals (default: 0.95)")
    pilot.add_argument(
        "--grace", type=_number, default=GRACE_S, metavar="S",
        help=f"time the command gets to end after SIGTERM (default: {GRACE_S:.0f} s)",
    )  # fmt: skip
    pilot.add_argument(
        "--compare", metavar="FILE", help="result of a pilot of the same run with one rank: what do ranks cost?"
    )
    model = pilot.add_argument_group("the model, for the utilisation of the peak (numbers like 7e9 or 7B)")
    model.add_argument("--params", type=_number, metavar="N", help="parameters that multiply, adapters included")
    model.add_argument("--trainable", type=_number, metavar="N", help="of them trainable, as with LoRA (default: all)")
    model.add_argument(
        "--frozen-lower", type=_number, default=0.0, metavar="N", help="of them below the lowest trainable one"
    )
    model.add_argument("--layers", type=int, metavar="L", help="layers, for attention")
    model.add_argument("--width", type=int, metavar="D", help="heads x head size, for attention")
    model.add_argument(
        "--checkpointing", action="store_true", help="activations are computed again in the backward pass"
    )
    model.add_argument(
        "--peak-flops", type=_number, metavar="F", help="of one GPU, dense, in the precision you train in"
    )
    model.add_argument(
        "--gpu", metavar="NAME", help=f"its peak and memory from the table: {', '.join(gpu.name for gpu in GPUS)}"
    )
    whole = pilot.add_argument_group("the whole run (default: one epoch of the loader)")
    whole.add_argument("--total-steps", type=int, metavar="N", help="steps of the whole run")
    whole.add_argument("--data", metavar="DATASET", help="train on this data set, in place of the one of the pilot")
    whole.add_argument("--passes", type=_number, default=1.0, metavar="N", help="passes over it (default: 1)")
    whole.add_argument("--price-per-hour", type=_number, metavar="USD", help="of all machines together")


def _number(text: str) -> float:
    """Return a number such as 7e9, 7B or 1.5M."""
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)([kmgbtp]?)", text.strip().lower())
    try:
        return float(match[1]) * _SUFFIXES[match[2]] if match else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text}") from None
