"""View: consecutive rows of one shard, wherever they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardprep.core.block import TokenBlock


@dataclass(frozen=True, eq=False)
class View:
    """Rows first .. first + block.rows - 1 of a shard.

    Batches made from a view keep it alive, since their ids and columns are read when they are asked for.
    """

    block: TokenBlock
    first: int = 0

    @cached_property
    def parts(self) -> tuple[memoryview, memoryview, int, int]:
        """Return (tokens, offsets, first, rows); memoryviews are cut, and give plain integers, faster than arrays."""
        return self.block.ids.data, self.block.offsets.data, self.first, self.block.rows

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Return what `row_values` made of columns, so that it is made once a view."""
        return {}
