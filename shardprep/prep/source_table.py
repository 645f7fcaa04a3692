"""The listing as columns: page by page into Arrow arrays, filtered, sorted, each object once. No Python object per key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.core.plan import SourceTable
from shardprep.errors import ConfigError
from shardprep.formats.reasons import Reason
from shardprep.storage.store import Listing

Rejected = tuple[str, Reason, str]  # name, reason, detail of something that was asked for and cannot be read
ROOTS_MAX = 32_767  # the root's number is an int16
_SIDE_FILE = r"(^|/)[._][^/]*$"
_ODD_KEY = r"//|^/|/$|[\x00-\x1f\x7f]"


@dataclass
class Counters:
    """What a listing saw; `as_dict` gives the numbers of the ledger."""

    markers: int = 0
    side_files: int = 0
    listed_twice: int = 0
    odd_keys: int = 0
    old_versions: int = 0

    def as_dict(self, table: SourceTable) -> dict[str, int]:
        """Return all counters, with objects and bytes of the table."""
        return {
            "objects": len(table),
            "bytes": int(table.sizes.sum()),
            "markers": self.markers,
            "side_files": self.side_files,
            "listed_twice": self.listed_twice,
            "odd_keys": self.odd_keys,
            "old_versions": self.old_versions,
        }


@dataclass
class TableBuilder:
    """Takes pages in any order and gives one sorted table.

    Marker objects (a key that ends in "/" and holds nothing) and, where skip_side_files, side files (the last segment
    starts with "." or "_") are counted and left out.
    """

    on_progress: Callable[[int], None] | None = None
    skip_side_files: bool = True
    counters: Counters = field(default_factory=Counters)
    _seen: int = 0
    _roots: dict[str, int] = field(default_factory=dict)
    _pages: list[tuple[int, Listing]] = field(default_factory=list)

    def add(self, root: str, page: Listing, *, keep: pa.Array | None = None) -> None:
        """Add one page of a root's objects; keep: bool (n,), which of them are meant at all."""
        self._seen += len(page.keys)
        if self.on_progress is not None:
            self.on_progress(self._seen)
        page = _masked(page, keep) if keep is not None else page
        markers = pc.and_(pc.ends_with(page.keys, "/"), pa.array(page.sizes == 0))
        self.counters.markers += _count(markers)
        wanted = pc.invert(markers)
        if self.skip_side_files:
            side = pc.and_(wanted, pc.match_substring_regex(page.keys, _SIDE_FILE))
            self.counters.side_files += _count(side)
            wanted = pc.and_not(wanted, side)
        page = _masked(page, wanted)
        self.counters.odd_keys += _count(pc.match_substring_regex(page.keys, _ODD_KEY))
        if len(page.keys):
            number = self._roots.setdefault(root, len(self._roots))
            if number > ROOTS_MAX:
                raise ConfigError(f"more than {ROOTS_MAX} buckets in one source; make several data sets")
            self._pages.append((number, page))

    def build(self) -> SourceTable:
        """Return the table, sorted by root and key, every object once; empties the builder."""
        pages, self._pages = self._pages, []
        if not pages:
            empty = pa.array([], pa.large_string())
            return SourceTable((), (), np.zeros(0, np.int16), empty, np.zeros(0, np.int64), empty)
        names = sorted(self._roots)
        rank = np.array([names.index(name) for name in self._roots], dtype=np.int16)
        lengths = [len(page.keys) for _, page in pages]
        root = np.repeat(rank[[number for number, _ in pages]], lengths).astype(np.int16)
        keys = _joined([page.keys for _, page in pages])
        sizes = np.concatenate([page.sizes for _, page in pages]).astype(np.int64)
        etags = _joined([page.etags for _, page in pages])
        pages.clear()
        columns = pa.table({"root": root, "key": keys})
        order = pc.sort_indices(columns, sort_keys=[("root", "ascending"), ("key", "ascending")])
        place = order.to_numpy()
        keys, root = keys.take(order), root[place]
        first = _first_of_each(root, keys)
        self.counters.listed_twice += len(keys) - int(first.sum())
        if not first.all():
            order, place = order.filter(pa.array(first)), place[first]
            keys, root = keys.filter(pa.array(first)), root[first]
        return SourceTable(tuple(names), _labels(names), root, keys, sizes[place], etags.take(order))


def _masked(page: Listing, keep: pa.Array) -> Listing:
    if _count(keep) == len(page.keys):
        return page
    return Listing(page.keys.filter(keep), page.sizes[keep.to_numpy(zero_copy_only=False)], page.etags.filter(keep))


def _count(flags: pa.Array) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays([array.cast(pa.large_string()) for array in arrays])


def _first_of_each(root: NDArray[np.int16], keys: pa.Array) -> NDArray[np.bool_]:
    """Return which rows of a sorted table differ from the row before, bool (rows,)."""
    first = np.ones(len(keys), dtype=bool)
    if len(keys) > 1:
        same_key = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        first[1:] = ~(same_key & (root[1:] == root[:-1]))
    return first


def _labels(roots: list[str]) -> tuple[str, ...]:
    """Return what tells roots apart in names: nothing for a single one, else the bucket, with its scheme where needed."""
    if len(roots) == 1:
        return ("",)
    split = [root.split("://", 1) if "://" in root else ["local", "local"] for root in roots]
    buckets = [bucket for _, bucket in split]
    return tuple(bucket if buckets.count(bucket) == 1 else f"{scheme}/{bucket}" for scheme, bucket in split)
