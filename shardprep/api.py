"""The library's calls: the same job as the command line, without its printing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded by what needs them
    from shardprep.prep.build import Built
    from shardprep.prep.settings import Settings
    from shardprep.reader.dataset import Dataset
    from shardprep.reader.mix import Mix


def build(
    source: str | Path | None,
    output: str | Path,
    *,
    tokenizer: Any,
    say: Callable[[str], None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Build a data set and return its summary.

    source     prefix, folder, glob or file, local or any URI; None with source_list=FILE
    output     folder or URI; its manifest.json is written last
    tokenizer  path, URI or hub name of a tokenizer.json, or an object with the Tokenizer protocol
    settings   the flags of `shardprep build` with underscores, e.g. id_field="id", columns=["label:int64"]
    say        is called with each line that a person should read

    The summary has found, written, set_aside (by reason), rows, tokens, shards, splits, padding_share, fingerprint,
    manifest (its URI). Raises ShardprepError; ConfigError if the call is wrong. Worker processes import the script
    that calls this: it needs the usual `if __name__ == "__main__":`.
    """
    from shardprep.prep.settings import Settings

    return build_dataset(source, output, tokenizer, Settings.of(settings), say=say).summary()


def open(  # noqa: A001  the name that people look for: shardprep.open
    uri: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
    store: str = "auto",
    cache_dir: str | Path | None = None,
    cache_limit_bytes: int | None = None,
) -> Dataset:
    """Open a data set for reading: its manifest is read and checked, nothing else.

    uri                a folder or URI that `shardprep build` wrote to
    storage_options    of the store, e.g. {"endpoint_url": "http://localhost:8333"}; credentials come from the environment
    store              "auto", or "fsspec" for fsspec instead of obstore
    cache_dir          where this node keeps shards: a folder on disk, shared by processes and jobs. Without it
                       $SHARDPREP_CACHE_DIR, else shardprep/ in the user's cache folder
    cache_limit_bytes  most bytes in that folder; what is needed last is removed first. None: no limit

    Metrics of its loaders go to the folder $SHARDPREP_METRICS_DIR, if that is set. Raises ManifestError if the data set
    is unfinished or broken, StoreError if it cannot be read.
    """
    from shardprep.reader.dataset import open_for_reading

    return open_for_reading(
        str(uri),
        options=storage_options or {},
        kind=store,
        cache_dir=str(cache_dir or os.environ.get("SHARDPREP_CACHE_DIR", "")) or None,
        cache_limit_bytes=cache_limit_bytes,
        metrics_dir=os.environ.get("SHARDPREP_METRICS_DIR") or None,
    )


def mix(datasets: Mapping[str, Dataset], *, weights: Mapping[str, float], until: str) -> Mix:
    """Read several data sets as one: each round comes from one of them.

    datasets  by name, from `open`; they need the same tokenizer and columns
    weights   shares of padded tokens, by name: {"task": 1, "general": 3}
    until     the data set whose epoch is the mix's; the others have epochs of their own

    Raises ConfigError where the data sets do not fit together, or a weight is missing.
    """
    from shardprep.reader.mix import Mix as Mixed

    return Mixed(datasets, weights=weights, until=until)


def build_dataset(
    source: str | Path | None,
    output: str | Path,
    tokenizer: Any,
    settings: Settings,
    *,
    say: Callable[[str], None] | None = None,
) -> Built:
    """Build a data set, with its report page, and return what was made."""
    from shardprep.prep.build import build as run
    from shardprep.report.page import html_page

    return run(None if source is None else str(source), str(output), tokenizer, settings, page=html_page, say=say)
