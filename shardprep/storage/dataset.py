"""The door to a data set: its manifest, read and checked."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from shardprep.core.manifest import Manifest, parse
from shardprep.errors import ManifestError, NotFound
from shardprep.storage.store import NO_OPTIONS, Store, local_path_of, open_store

MANIFEST = "manifest.json"
SHARD = re.compile(r"\d+-of-\d+\.(parquet|rec)")
FEW = 100  # entries of a folder that are looked at to tell what it is


def open_dataset(uri: str, *, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto") -> tuple[Store, Manifest]:
    """Return the store of a data set and its manifest. Raises ManifestError if it is unfinished or broken."""
    store = open_store(uri, options=options, kind=kind)
    try:
        data = store.get(MANIFEST)
    except NotFound as error:
        raise ManifestError(
            f"{uri} holds no finished data set: there is no {MANIFEST}. {_advice(uri)}", uri=uri
        ) from error
    try:
        manifest = parse(data)
        manifest.check()
    except ManifestError as error:
        raise ManifestError(f"{uri.rstrip('/')}/{MANIFEST}: {error.message}", uri=uri) from error
    return store, manifest


def _advice(uri: str) -> str:
    """Return what to do where a manifest is missing."""
    path = local_path_of(uri)
    if path is not None:
        path = os.path.abspath(path)
        with suppress(OSError):
            if stat.S_ISFIFO(os.stat(f"{path}_0").st_mode):
                return f"But {path}_0 is a FIFO: a channel in Pipe mode, which shardprep.pipe reads"
        with suppress(OSError):
            with os.scandir(path) as entries:
                is_part = any(_is_part(entry) for entry in islice(entries, FEW))
            if is_part:
                return (
                    "This is a part of one: the folder of a split or of a plan. Shards are found through the manifest, so give "
                    f"the folder above that has the {MANIFEST}; of a SageMaker channel, let its S3Uri be that folder"
                )
    return "A build that was interrupted is not finished; run the same build command again, and it continues"


def _is_part(entry: os.DirEntry[str]) -> bool:
    """Tell whether this is a shard, or a folder of shards."""
    if SHARD.fullmatch(entry.name):
        return True
    if not entry.is_dir():
        return False
    with os.scandir(entry.path) as inside:
        return any(SHARD.fullmatch(one.name) for one in islice(inside, FEW))
