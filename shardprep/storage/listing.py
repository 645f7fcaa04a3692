"""Pages of a listing: from rows to columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from shardprep.storage.store import Listing


class ListingBuilder:
    """Gathers rows of a listing; `take` returns them as one page and tells `on_progress` the number of keys so far."""

    def __init__(self, on_progress: Callable[[int], None] | None = None) -> None:
        self._on_progress = on_progress
        self._taken = 0
        self._clear()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, size_bytes: int, etag: str) -> None:
        """Add one object."""
        self._keys.append(key)
        self._sizes.append(size_bytes)
        self._etags.append(etag)

    def take(self) -> Listing:
        """Return what was added since the last call, as one page."""
        self._taken += len(self._keys)
        if self._on_progress is not None:
            self._on_progress(self._taken)
        page = Listing(
            pa.array(self._keys, pa.string()), np.array(self._sizes, dtype=np.int64), pa.array(self._etags, pa.string())
        )
        self._clear()
        return page

    def _clear(self) -> None:
        self._keys: list[str] = []
        self._sizes: list[int] = []
        self._etags: list[str] = []
