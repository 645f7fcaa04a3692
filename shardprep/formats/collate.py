"""Collator: rows of shards to padded batches, in reused memory and without touching single tokens in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import BlockError, ConfigError
from shardprep.formats.batch import Batch, StateAfter
from shardprep.formats.buffers import Arrays, BufferPool
from shardprep.formats.flat import FlatBlock, Spec, pack, pieces_of
from shardprep.formats.row_values import IGNORED, ListColumn, RowValues
from shardprep.formats.view import View

__all__ = ["IGNORED", "Batch", "BufferPool", "Collator", "FlatBlock", "ListColumn", "Spec", "View", "pack"]

NO_FACTS: Mapping[str, Any] = {}


class Collator:
    """Makes batches. Threads may share one.

    pad_id  the pad token, in padding of input_ids
    pool    where input_ids, attention_mask and labels take their memory from
    """

    def __init__(self, pad_id: int, pool: Arrays) -> None:
        if not -(2**31) <= pad_id < 2**31:
            raise ConfigError(f"pad_id must fit int32, as all tokens do, got {pad_id}")
        self.pad_id = pad_id
        self._pool = pool
        self._templates = _Templates(1024, pad_id)

    def batch(
        self,
        spec: Spec,
        views: Mapping[int, View],
        *,
        last_in_step: bool | None = None,
        epoch: int | None = None,
        name: str | None = None,
        state: StateAfter | None = None,
    ) -> Batch:
        """Return the micro-batch, padded to spec.length.

        views: by shard; each must hold the rows asked of its shard. The batch keeps those it needs, for ids and columns.
        last_in_step, epoch, name: those of the spec, unless given. A rank that plays several micro-batches of a round gives
        last_in_step, True for the last of them only.
        state: called as state(step, last_in_step) when `batch.state()` is.
        Raises BlockError if a row is longer than spec.length, or in no view.
        """
        shard, row, real, padded = spec.shard, spec.row, spec.real, spec.length
        pieces, lengths = pieces_of(shard, row, views)
        rows = len(lengths)
        # One buffer for both: 5 us less. Whoever keeps one of the two keeps both.
        input_ids, mask = self._pool.array((2, rows, padded), np.int64)
        self._fill(input_ids, mask, pieces, lengths)
        sizes = np.array(lengths, dtype=np.int64)
        weight = np.ones(rows, dtype=np.float32)
        if real < rows:
            weight[real:] = 0
        kept = {key: views[key] for key in set(shard.tolist())}
        return Batch(
            input_ids,
            mask,
            sizes,
            weight,
            step=spec.step,
            round=spec.round,
            slot=spec.slot,
            last_in_step=spec.last_in_step if last_in_step is None else last_in_step,
            epoch=spec.epoch if epoch is None else epoch,
            name=spec.name if name is None else name,
            step_rows=spec.step_rows,
            step_tokens=spec.step_tokens,
            real=real,
            tokens=sum(lengths[:real]),
            rows=RowValues(shard, row, kept, real),
            state=state,
            arrays=self._pool,
        )

    def from_flat(self, flat: FlatBlock, facts: Iterable[Mapping[str, Any]] | None = None) -> Iterator[Batch]:
        """Yield the micro-batches of a flat block: the same bytes as `batch` gives.

        facts: the keywords of `batch` for each of them (last_in_step, epoch, name, state), one mapping a micro-batch.
        """
        views = {0: View(flat.block)}
        given = [NO_FACTS] * len(flat) if facts is None else facts
        for cut, some in zip(flat.cuts(), given, strict=True):
            yield self.batch(cut, views, **some)

    def _fill(
        self, out: NDArray[np.int64], mask: NDArray[np.int64], pieces: list[memoryview], lengths: list[int]
    ) -> None:
        """Write rows and padding one after the other, and their mask.

        Every piece is a copy of memory (0.1 us; numpy.concatenate takes 0.4), then one call of numpy widens all to int64.
        """
        padded, longest = out.shape[1], max(lengths)
        if longest > padded:
            raise BlockError(f"a row of {longest} tokens does not fit a batch padded to {padded}", length=longest)
        templates = self._templates
        if padded > templates.size:
            templates = self._templates = _Templates(2 * padded, self.pad_id)
        size, padding, ones_then_zeros = templates.size, templates.padding, templates.mask
        flat, parts, place = mask.reshape(-1).data, [], 0
        for piece, length in zip(pieces, lengths, strict=True):
            parts.append(piece)
            if length < padded:
                parts.append(padding[: padded - length])
            stop = place + padded
            flat[place:stop] = ones_then_zeros[size - length : size - length + padded]
            place = stop
        out.reshape(-1)[:] = np.frombuffer(b"".join(parts), dtype=np.int32)


class _Templates:
    """What padding and masks of rows up to `size` tokens are cut from.

    padding  int32 (size,), all pad_id
    mask     int64 (2 size,), ones and then zeros: the mask of a row of n tokens is the part from size - n on
    """

    def __init__(self, size: int, pad_id: int) -> None:
        self.size = size
        self.padding = np.full(size, pad_id, dtype=np.int32).data
        self.mask = np.repeat(np.array([1, 0], dtype=np.int64), size).data
