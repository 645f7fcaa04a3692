"""List files: one URI or path a line, sizes and ETags asked for object by object, many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.core.plan import SourceTable, object_name
from shardprep.errors import Denied, NotFound, SourceError, StoreError
from shardprep.formats.reasons import Reason
from shardprep.prep.source_table import Rejected, TableBuilder
from shardprep.storage.local_files import key_of_path, name_of_key
from shardprep.storage.store import Listing, Store, local_path_of, split_uri

PAGE_LINES = 10_000
THREADS_MAX = 64
LOCAL = ""  # stands for the folder that all local entries have in common, known at the end


def add_entries(data: bytes, uri: str, builder: TableBuilder) -> list[Rejected]:
    """Add the entries of a list file, sizes 0 and ETags "" still; return those that cannot be used.

    Blank lines and lines that begin with "#" are skipped; relative paths are relative to the list's folder.
    """
    folder = uri.rpartition("/")[0]
    rejects: list[Rejected] = []
    lines = enumerate(_decoded(data, uri), 1)
    while page := list(islice(lines, PAGE_LINES)):
        keys: dict[str, list[str]] = {}
        for number, line in page:
            entry = line.strip()
            if not entry or entry.startswith("#"):
                continue
            if "\0" in entry:  # no file and no key has one, and the operating system refuses to look
                what = f"line {number} of {uri} holds a NUL byte; is the list UTF-8?"
                rejects.append((entry, Reason.UNUSABLE_KEY, what))
                continue
            root, key = _place(entry, folder)
            if key and not key.endswith("/"):
                keys.setdefault(root, []).append(key)
            else:
                what = f"line {number} of {uri} names a folder; a list names objects, one a line"
                rejects.append((entry, Reason.UNUSABLE_KEY, what))
        for root, found in keys.items():
            builder.add(root, Listing(pa.array(found, pa.string()), np.ones(len(found), np.int64), _blank(len(found))))
    return rejects


def _decoded(data: bytes, uri: str) -> Iterator[str]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{uri}, line {number}: not UTF-8 ({error.reason})", key=uri, line=number) from error


def _place(entry: str, folder: str) -> tuple[str, str]:
    """Return root and key; for a local path LOCAL and the absolute path without its first "/"."""
    path = local_path_of(entry)
    if path is not None and not path.startswith("/") and entry == path:
        entry = f"{folder}/{path}" if folder else path
        path = local_path_of(entry)
    if path is None:
        return split_uri(entry)
    is_folder = path.endswith("/")
    return LOCAL, key_of_path(os.path.abspath(path)).lstrip("/") + ("/" if is_folder else "")


def with_sizes(
    table: SourceTable, open_root: Callable[[str], Store], on_progress: Callable[[int], None] | None
) -> tuple[SourceTable, list[Rejected]]:
    """Return the table with sizes and ETags, and the entries that are not there or may not be read.

    Raises the store's error where not one object can be read, or the store is out of reach.
    """
    table = _rooted(table)
    sizes = np.zeros(len(table), np.int64)
    kept = np.ones(len(table), dtype=bool)
    etags: list[pa.Array] = []
    rejects: list[Rejected] = []
    denied: Denied | None = None
    stores = [open_root(root) for root in table.roots]
    threads = max([1, *(min(THREADS_MAX, store.requests_in_flight) for store in stores)])
    with ThreadPoolExecutor(threads, thread_name_prefix="shardprep-head") as pool:
        for start in range(0, len(table), PAGE_LINES):
            stop = min(start + PAGE_LINES, len(table))
            roots = table.root[start:stop].tolist()
            keys = table.keys[start:stop].to_pylist()
            heads = pool.map(lambda pair: _head(stores[pair[0]], pair[1]), zip(roots, keys, strict=True))
            page: list[str] = []
            for place, (root, key, found) in enumerate(zip(roots, keys, heads, strict=True), start):
                if isinstance(found, StoreError):
                    kept[place] = False
                    denied = found if isinstance(found, Denied) else denied
                    rejects.append((object_name(table.labels[root], key), _reason(found), found.message))
                    page.append("")
                else:
                    sizes[place] = found[0]
                    page.append(found[1])
            etags.append(pa.array(page, pa.large_string()))
            if on_progress is not None:
                on_progress(stop)
    if denied is not None and not kept.any():
        raise denied  # nothing can be read at all: that is the credentials' fault, not the list's
    joined = pa.concat_arrays(etags) if etags else table.etags
    mask = pa.array(kept)
    return SourceTable(
        table.roots, table.labels, table.root[kept], table.keys.filter(mask), sizes[kept], joined.filter(mask)
    ), rejects


def _rooted(table: SourceTable) -> SourceTable:
    """Return the table with the longest folder that all local entries share as their root."""
    if LOCAL not in table.roots:
        return table
    number = table.roots.index(LOCAL)
    local = table.root == number
    paths = table.keys.filter(pa.array(local))  # sorted: first and last share what all share
    first, last = paths[0].as_py(), paths[len(paths) - 1].as_py()
    folder = os.path.commonpath([os.path.dirname(first), os.path.dirname(last)])
    cut = len(folder) + 1 if folder else 0
    keys = pc.if_else(pa.array(local), pc.utf8_slice_codeunits(table.keys, cut), table.keys)
    roots = tuple("/" + name_of_key(folder) if root == LOCAL else root for root in table.roots)
    return SourceTable(roots, table.labels, table.root, keys, table.sizes, table.etags)


def _head(store: Store, key: str) -> tuple[int, str] | StoreError:
    path = store.local_path(key)
    if path is not None and os.path.isdir(path):
        return NotFound(f"{path} is a folder; a list names objects, one a line", uri=path)
    try:
        return store.head(key)
    except (NotFound, Denied) as error:
        return error


def _reason(error: StoreError) -> Reason:
    return Reason.ACCESS_DENIED if isinstance(error, Denied) else Reason.MISSING_OBJECT


def _blank(count: int) -> pa.Array:
    return pa.array([""] * count, pa.string())
