"""Sources: from what the user names to one sorted table of objects. Listed once; local first.

Names of objects, which ids, ledger and messages use:

    S3 and other stores   the key in its bucket; "bucket/key" where there are several buckets
    a local folder        the path below it, with "/"
    a local glob          the path below the folder before the first wildcard
    a single local file   its base name
    a list file           the path below the longest folder that all its local entries share
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.core.plan import SourceTable
from shardprep.errors import ConfigError, Denied, NotFound, SourceError
from shardprep.prep.globs import has_magic, literal_folder, literal_prefix, to_regex
from shardprep.prep.inventory import Inventory, add_inventory, parse_inventory
from shardprep.prep.source_list import add_entries, with_sizes
from shardprep.prep.source_table import Rejected, TableBuilder
from shardprep.storage import store as storage
from shardprep.storage.store import NO_OPTIONS, Listing, Store, local_path_of, split_uri

HEAD_BYTES = 1 << 16  # a first line of an augmented manifest is shorter
INVENTORY_BYTES_MAX = 64 << 20
Progress = Callable[[int], None]


class OpenStore(Protocol):
    """`open_store` of shardprep.storage.store, or a stand-in."""

    def __call__(self, uri: str, *, options: Mapping[str, str] = ..., kind: str = ...) -> Store:
        """Return the store whose root is this URI."""
        ...


@dataclass(frozen=True)
class Listed:
    """What was listed.

    table     the objects to read, sorted, each once
    counters  objects, bytes, markers, side_files, listed_twice, odd_keys, old_versions
    rejects   (name, reason, detail) of what was asked for and cannot be read
    kind      "objects", or "augmented": the objects are augmented manifests
    """

    table: SourceTable
    counters: dict[str, int]
    rejects: list[Rejected]
    kind: str = "objects"


def list_source(
    source: str | None,
    *,
    source_list: str | None = None,
    source_format: str = "auto",
    open_store: OpenStore = storage.open_store,
    options: Mapping[str, str] = NO_OPTIONS,
    store_kind: str = "auto",
    on_progress: Progress | None = None,
) -> Listed:
    """Return the objects behind SOURCE (prefix, folder, glob, file, inventory) or behind a list file.

    source_format: "objects" reads no first line to see what it is; "inventory" and "augmented-manifest" insist.
    Raises SourceError that names what was not found, ConfigError for a wrong call, StoreError.
    """
    if (source is None) == (source_list is None):
        raise ConfigError("give either SOURCE or --source-list FILE")
    lister = _Lister(lambda uri: open_store(uri, options=options, kind=store_kind), on_progress)
    if source_list is not None:
        return lister.list_file(source_list, "augmented" if source_format == "augmented-manifest" else "objects")
    assert source is not None
    listed = lister.source(source, source_format)
    if not len(listed.table) and not listed.rejects:
        raise SourceError(_nothing(source, listed.counters), source=source)
    return listed


def _nothing(source: str, counters: dict[str, int]) -> str:
    skipped = [
        f"{counters[name]} {words}"
        for name, words in (
            ("markers", "empty folder markers"),
            ("side_files", 'side files (names that start with "." or "_")'),
            ("old_versions", "old versions"),
        )
        if counters.get(name)
    ]
    seen = f"; skipped: {', '.join(skipped)}" if skipped else ""
    return f"no objects in {source}{seen}. Look at the spelling, and at the folder itself."


class _Lister:
    def __init__(self, open_root: Callable[[str], Store], on_progress: Progress | None) -> None:
        self._open = open_root
        self._on_progress = on_progress

    def source(self, source: str, source_format: str) -> Listed:
        if not source.strip():
            raise ConfigError("SOURCE is empty; give a folder, prefix, glob or file")
        path = local_path_of(source)
        if path is not None:
            return self._local(source, path, source_format)
        return self._remote(source, source_format)

    def list_file(self, uri: str, kind: str) -> Listed:
        root, key = _absolute(uri)
        try:
            data = self._open(root).get(key)
        except NotFound as error:
            raise SourceError(f"the list {uri} is not there; look at --source-list", source=uri) from error
        builder = TableBuilder(skip_side_files=False)
        rejects = add_entries(data, f"{root}/{key}", builder)
        table = builder.build()
        if not len(table) and not rejects:
            raise SourceError(f"the list {uri} names no object: it is empty, or holds only comments", source=uri)
        table, missing = with_sizes(table, self._open, self._on_progress)
        if not len(table):
            first = (rejects + missing)[0]
            raise SourceError(
                f"none of the {len(rejects) + len(missing)} objects that the list {uri} names can be read; the first: "
                f"{first[0]}: {first[2]}",
                source=uri,
            )
        return Listed(table, builder.counters.as_dict(table), rejects + missing, kind)

    def _local(self, source: str, path: str, source_format: str) -> Listed:
        full = os.path.abspath(path)
        if os.path.isdir(full):
            _check_is_file_format(source, source_format)
            return self._prefix(full, "", source_format)
        if os.path.exists(full) and not path.endswith("/"):
            root, key = split_uri(full)
            return self._file(source, root, _local_key(self._open(root), key, full), source_format)
        if has_magic(path):
            _check_is_file_format(source, source_format)
            pattern = full + ("/" if path.endswith("/") else "")
            folder = literal_folder(pattern)
            root = folder.rstrip("/") or "/"
            if os.path.isdir(root):
                return self._glob(source, root, pattern[len(folder) :], source_format)
            raise SourceError(f"no such folder: {root}, where {source} begins", source=source)
        raise SourceError(f"no such file or folder: {source}", source=source)

    def _remote(self, source: str, source_format: str) -> Listed:
        root, key = split_uri(source)
        if root.endswith("://"):
            raise ConfigError(f"{source} names no bucket; write it as {root}bucket/prefix", source=source)
        if key and not key.endswith("/") and self._is_object(root, key):
            return self._file(source, root, key, source_format)
        _check_is_file_format(source, source_format)
        try:
            if has_magic(key):
                return self._glob(source, root, key, source_format)
            return self._prefix(root, key if not key or key.endswith("/") else key + "/", source_format)
        except NotFound as error:
            raise SourceError(f"there is no bucket {root}, where {source} would be ({error})", source=source) from error

    def _is_object(self, root: str, key: str) -> bool:
        try:
            self._open(root).head(key)
        except (NotFound, Denied):  # S3 denies a HEAD of what is not there to those who may not list: listing will tell
            return False
        return True

    def _prefix(self, root: str, prefix: str, source_format: str) -> Listed:
        builder = TableBuilder(self._on_progress)
        for page in self._open(root).list(prefix):
            builder.add(root, page)
        return _listed(builder, source_format)

    def _glob(self, source: str, root: str, pattern: str, source_format: str) -> Listed:
        # A pattern that begins its last part with "." or "_" asks for such files.
        builder = TableBuilder(self._on_progress, skip_side_files=pattern.rpartition("/")[2][:1] not in (".", "_"))
        matches = to_regex(pattern)
        folders = matches.removesuffix(r"\z") + "/"
        inside_folders = False
        for page in self._open(root).list(literal_prefix(pattern)):
            keep = pc.match_substring_regex(page.keys, matches)
            builder.add(root, page, keep=keep)
            inside_folders = inside_folders or bool(pc.any(pc.match_substring_regex(page.keys, folders)).as_py())
        listed = _listed(builder, source_format)
        if not len(listed.table) and inside_folders:
            raise SourceError(f"{source} matches folders only; to read what is in them, add /**", source=source)
        return listed

    def _file(self, source: str, root: str, key: str, source_format: str) -> Listed:
        store = self._open(root)
        size_bytes, etag = store.head(key)
        kind = "augmented" if source_format == "augmented-manifest" else "objects"
        if source_format in ("auto", "inventory") and key.rpartition("/")[2].endswith("manifest.json"):
            inventory = parse_inventory(store.get(key), source) if size_bytes <= INVENTORY_BYTES_MAX else None
            if inventory is not None:
                return self._inventory(inventory, store, key, root)
        if source_format == "inventory":
            raise SourceError(f"{source} is no manifest.json of S3 Inventory", source=source)
        if source_format == "auto" and _is_augmented(store.get_range(key, 0, HEAD_BYTES)):
            kind = "augmented"
        builder = TableBuilder(self._on_progress, skip_side_files=False)
        builder.add(root, Listing(pa.array([key], pa.string()), np.array([size_bytes], np.int64), pa.array([etag])))
        return _listed(builder, "augmented-manifest" if kind == "augmented" else "objects")

    def _inventory(self, inventory: Inventory, store: Store, key: str, root: str) -> Listed:
        scheme = root.split("://", 1)[0] if "://" in root else "s3"
        builder = TableBuilder(self._on_progress)
        rejects = add_inventory(inventory, store, key, scheme, builder)
        table = builder.build()
        return Listed(table, builder.counters.as_dict(table), rejects)


def _listed(builder: TableBuilder, source_format: str) -> Listed:
    table = builder.build()
    kind = "augmented" if source_format == "augmented-manifest" else "objects"
    return Listed(table, builder.counters.as_dict(table), [], kind)


def _absolute(uri: str) -> tuple[str, str]:
    path = local_path_of(uri)
    return split_uri(uri if path is None else os.path.abspath(path))


def _check_is_file_format(source: str, source_format: str) -> None:
    if source_format == "inventory":
        raise SourceError(f"{source} is no file; for S3 Inventory give the manifest.json itself", source=source)


def _local_key(store: Store, name: str, path: str) -> str:
    """Return the key by which a store knows a file: its name, unless the name needs an escape."""
    if store.local_path(name) == path:
        return name
    for page in store.list(""):
        for key in page.keys.to_pylist():
            if store.local_path(key) == path:
                return str(key)
    return name


def _is_augmented(head: bytes) -> bool:
    """Tell from its first line whether a file is an augmented manifest of SageMaker.

    `source-ref` tells. `source` alone is a common name for where a text came from: it tells only where the line holds
    nothing else, or the `...-metadata` that Ground Truth adds to each label.
    """
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    try:
        value: Any = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("source-ref"), str):
        return True
    return isinstance(value.get("source"), str) and (
        len(value) == 1 or any(name.endswith("-metadata") for name in value)
    )
