"""`shardprep read`: iterate a data set as training would, and say how fast it was and what it waited for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from shardprep.errors import ConfigError

NUMBERS = {
    "batch_tokens": "largest padded area of a micro-batch, in tokens",
    "batch_size": "most rows of a micro-batch",
    "accumulate": "rounds between two optimizer steps (default: 1)",
    "slots": "micro-batches of a round (default: the world size)",
    "seed": "order of rounds (default: 0)",
    "variety": "how freely rows of like length are mixed, 0, 1, 2 ... (default: 0)",
    "window_rows": "rows a slot, at least, that are shuffled together (default: 5000)",
    "num_threads": "threads that make batches ahead (default: 2)",
}


def add_arguments(read: argparse.ArgumentParser) -> None:
    """Add the arguments of `shardprep read`."""
    read.add_argument("dataset", metavar="DATASET")
    read.add_argument("--split", default="train", metavar="NAME", help="split to read (default: train)")
    for name, text in NUMBERS.items():
        read.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=text)
    read.add_argument("--world-size", type=int, default=1, metavar="W", help="ranks that read together (default: 1)")
    read.add_argument("--rank", type=int, default=0, metavar="R", help="which of them to play (default: 0)")
    read.add_argument("--epochs", type=int, default=1, metavar="N", help="epochs to play (default: 1)")
    read.add_argument("--no-shuffle", action="store_true", help="shards in order, rows by length, as for evaluation")
    read.add_argument("--tail", choices=("pad", "drop"), default="pad", help="unfinished rounds (default: pad)")
    read.add_argument("--pad-to", choices=("round", "edge"), default="round", help="padded length (default: round)")
    read.add_argument("--store", choices=("auto", "fsspec"), default="auto", help="fsspec instead of obstore")
    read.add_argument(
        "--cache-dir", metavar="DIR", help="this node's cache (default: $SHARDPREP_CACHE_DIR, else one a user)"
    )
    read.add_argument("--cache-limit-bytes", type=int, metavar="N", help="most bytes in the cache (default: no limit)")
    read.add_argument("--prometheus", metavar="FILE", help="also write metrics as a text file for Prometheus")


def read_as_training(chosen: argparse.Namespace, options: Mapping[str, str]) -> dict[str, Any]:
    """Play the epochs and return the loader's metrics, with `epochs`, `micro_batches` and `steps` of one epoch."""
    import shardprep
    from shardprep.prep.progress import Bar  # tqdm: not for the commands that show no bar

    if chosen.epochs < 1:
        raise ConfigError(f"--epochs must be at least 1, got {chosen.epochs}")
    dataset = shardprep.open(
        chosen.dataset,
        storage_options=options,
        store=chosen.store,
        cache_dir=chosen.cache_dir,
        cache_limit_bytes=chosen.cache_limit_bytes,
    )
    loader = dataset.loader(
        chosen.split,
        rank=chosen.rank,
        world_size=chosen.world_size,
        shuffle=not chosen.no_shuffle,
        tail=chosen.tail,
        pad_to=chosen.pad_to,
        prometheus=chosen.prometheus,
        **{name: getattr(chosen, name) for name in NUMBERS if getattr(chosen, name) is not None},
    )
    with Bar(f"reading {chosen.split}", len(loader) * chosen.epochs, " batches", shown=chosen.progress) as bar:
        for _ in range(chosen.epochs):
            for batch in loader:
                bar.advance(1, **({"wait": f"{loader.metrics()['wait_share']:.1%}"} if batch.last_in_step else {}))
    return {"epochs": chosen.epochs, "micro_batches": len(loader), "steps": loader.steps, **loader.metrics()}


def reading_text(told: Mapping[str, Any]) -> str:
    """Return what was read as a few lines for a person."""
    causes = ", ".join(
        f"{name} {seconds:.2f} s" for name, seconds in told["wait_seconds_by_cause"].items() if seconds >= 0.005
    )
    where = causes or "nothing"
    first = told["first_batch_seconds"]
    return "\n".join(
        [
            f"played       {told['epochs']} x {told['micro_batches']:,} micro-batches, {told['steps']:,} steps an epoch",
            f"rows         {told['rows']:,} ({told['rows_per_second']:,.0f} a second)",
            f"tokens       {told['tokens']:,} ({told['tokens_per_second']:,.0f} a second)",
            f"padding      {told['padding_share']:.2%} of {told['slots']:,} slots",
            f"waited       {told['wait_seconds']:.2f} s of {told['wall_seconds']:.2f} s ({told['wait_share']:.1%}): {where}",
            f"first batch  {'none' if first is None else f'after {first:.2f} s'}",
            f"fetched      {told['bytes_fetched']:,} bytes; cache: {told['cache_hits']:,} hits, {told['cache_misses']:,} misses",
        ]
    )
