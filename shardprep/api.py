"""The library's calls: the same job as the command line, without its printing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # loaded by what needs them
    from shardprep.prep.build import Built
    from shardprep.prep.settings import Settings
    from shardprep.reader.dataset import Dataset
    from shardprep.reader.mix import Mix
    from shardprep.reader.pipe import PipeLoader


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
        launched=_launched(),
    )


def pipe(
    channel: str,
    *,
    manifest: str | Path | Dataset,
    split: str = "train",
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    accumulate: int = 1,
    slots: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    pad_to: Literal["round", "edge"] = "round",
    pad_multiple: int | None = None,
    variety: int = 0,
    buffer_bytes: int | None = None,
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] | None = None,
    shuffled: bool | None = None,
    root: str | Path = "/opt/ml",
    first_fifo: int = 0,
    timeout_s: float = 3600.0,
    storage_options: Mapping[str, str] | None = None,
    store: str = "auto",
    on_metrics: Callable[[dict[str, Any]], None] | None = None,
    prometheus: str | None = None,
) -> PipeLoader:
    """Read a channel of a SageMaker training job in Pipe mode, epoch by epoch, like a loader. Reading begins at once.

    channel       its S3Uri is the folder of one split of RecordIO shards: s3://bucket/shards/3f2a91c0/train/
    manifest      the data set: its folder or URI, its manifest.json (in a second channel, say), or what `open` returned
    rank          of world_size processes; each reads a channel of its own with all shards, and plays its share
    pad_multiple  that of the data set unless given
    buffer_bytes  of the rows that are sorted and shuffled together, as they are in memory: tokens take 4 bytes, a row 64;
                  two such windows are in memory. None: what the largest shard takes, from 64 to 512 MB
    distribution  "ShardedByS3Key": this host gets a part of the shards, and fewer rows are no error. Without it and
                  without `shuffled` the job's inputdataconfig.json tells
    shuffled      the channel has a ShuffleConfig: its objects come in another order each time
    root          in place of /opt/ml; FIFOs are {root}/input/data/{channel}_0, _1 ...
    first_fifo    number of the FIFO to begin with: not 0 where an earlier process of the same job read some
    timeout_s     longest wait for a FIFO, or without a single byte

    split, batch_tokens, batch_size, accumulate, slots, seed, shuffle, pad_to, variety, on_metrics and prometheus are those
    of `Dataset.loader`; storage_options and store those of `open`. Raises ConfigError if the channel is in another mode or
    a value is out of range, ManifestError or StoreError where the manifest cannot be had.
    """
    from shardprep.core.policy import Policy
    from shardprep.reader.pipe_channel import PipeChannel
    from shardprep.reader.pipe_open import PipeSettings, open_pipe
    from shardprep.storage.dataset import MANIFEST, open_dataset

    policy = Policy(
        slots=(world_size or 1) if slots is None else slots,
        batch_tokens=batch_tokens,
        batch_size=batch_size,
        accumulate=accumulate,
        variety=variety,
        shuffle=shuffle,
        seed=seed,
        pad_to=pad_to,
    )
    settings = PipeSettings(
        split=split,
        rank=rank,
        world_size=world_size,
        slots_given=slots is not None,
        buffer_bytes=buffer_bytes,
        pad_multiple=pad_multiple,
        first_fifo=first_fifo,
        timeout_s=timeout_s,
        metrics_dir=os.environ.get("SHARDPREP_METRICS_DIR") or None,
        launched=_launched(),
        on_metrics=on_metrics,
        prometheus=prometheus,
    )
    place = PipeChannel.of(channel, str(root), distribution=distribution, shuffled=shuffled)
    if isinstance(manifest, str | Path):
        uri = str(manifest).removesuffix(MANIFEST) or "."
        opened, found = open_dataset(uri, options=storage_options or {}, kind=store)
        opened.close()
    else:
        uri, found = manifest.uri, manifest.manifest
    return open_pipe(place, found, policy, settings, uri)


def _launched() -> int:
    """Return how many processes torchrun, or whoever sets WORLD_SIZE as it does, started: this is one of them."""
    said = os.environ.get("WORLD_SIZE", "")
    return int(said) if said.isdecimal() else 1


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
