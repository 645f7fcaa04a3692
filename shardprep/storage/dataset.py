"""The door to a data set: its manifest, read and checked."""

from __future__ import annotations

from collections.abc import Mapping

from shardprep.core.manifest import Manifest, parse
from shardprep.errors import ManifestError, NotFound
from shardprep.storage.store import NO_OPTIONS, Store, open_store

MANIFEST = "manifest.json"


def open_dataset(uri: str, *, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto") -> tuple[Store, Manifest]:
    """Return the store of a data set and its manifest. Raises ManifestError if it is unfinished or broken."""
    store = open_store(uri, options=options, kind=kind)
    try:
        data = store.get(MANIFEST)
    except NotFound as error:
        raise ManifestError(
            f"{uri} holds no finished data set: there is no {MANIFEST}. A build that was interrupted is not finished; "
            "run the same build command again, and it continues",
            uri=uri,
        ) from error
    try:
        manifest = parse(data)
        manifest.check()
    except ManifestError as error:
        raise ManifestError(f"{uri.rstrip('/')}/{MANIFEST}: {error.message}", uri=uri) from error
    return store, manifest
