"""Collator: rows of shards to padded batches, in reused memory and without touching single tokens in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import BlockError, ConfigError
from shardprep.formats.batch import Batch, StateAfter
from shardprep.formats.buffers import ALIGN_BYTES, Arrays, BufferPool
from shardprep.formats.flat import FlatBlock, Spec, pack, pieces_of
from shardprep.formats.row_values import IGNORED, ListColumn, RowValues
from shardprep.formats.view import View

__all__ = ["IGNORED", "Batch", "BufferPool", "Collator", "FlatBlock", "ListColumn", "Spec", "View", "pack"]

NO_FACTS: Mapping[str, Any] = {}
TOGETHER_SLOTS = 131_072  # of the micro-batches that share a buffer: 2 MB; a chunk of the reader
ALIGNED_SLOTS = ALIGN_BYTES // 8


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
        facts = {"last_in_step": last_in_step, "epoch": epoch, "name": name, "state": state}
        return self.batches([spec], views, [{key: fact for key, fact in facts.items() if fact is not None}])[0]

    def batches(
        self, specs: Sequence[Spec], views: Mapping[int, View], facts: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Batch]:
        """Return micro-batches, each as `batch` gives it; cheaper than one by one.

        facts: the keywords of `batch` for each of them (last_in_step, epoch, name, state), one mapping a micro-batch.
        Neighbours share a buffer of up to 2 MB: whoever keeps one of them keeps it.
        """
        given = [NO_FACTS] * len(specs) if facts is None else facts
        made: list[Batch] = []
        together: list[tuple[Spec, Mapping[str, Any]]] = []
        slots = 0
        for spec, some in zip(specs, given, strict=True):
            more = len(spec.row) * spec.length
            if together and slots + more > TOGETHER_SLOTS:
                made += self._together(together, views)
                together, slots = [], 0
            together.append((spec, some))
            slots += more
        return made + self._together(together, views) if together else made

    def from_flat(self, flat: FlatBlock, facts: Sequence[Mapping[str, Any]] | None = None) -> Iterator[Batch]:
        """Return the micro-batches of a flat block: the same bytes as `batch` gives. facts: see `batches`."""
        return iter(self.batches(list(flat.cuts()), {0: View(flat.block)}, facts))

    def _together(self, given: list[tuple[Spec, Mapping[str, Any]]], views: Mapping[int, View]) -> list[Batch]:
        """Return micro-batches in one buffer: a call of numpy costs its 2 us once, and lets other threads run longer."""
        shard = np.concatenate([spec.shard for spec, _ in given])
        row = np.concatenate([spec.row for spec, _ in given])
        pieces, lengths = pieces_of(shard, row, views)
        places = [0]
        for spec, _ in given:
            places.append(aligned(places[-1] + len(spec.row) * spec.length))
        # One buffer for both: 5 us less. Whoever keeps one of the two keeps both.
        ids, mask = self._pool.array((2, places[-1]), np.int64)
        self._fill(ids, mask, given, pieces, lengths)
        sizes, weights = np.array(lengths, dtype=np.int64), np.ones(len(lengths), dtype=np.float32)
        made, first = [], 0
        for (spec, some), place in zip(given, places, strict=False):
            shape = (len(spec.row), spec.length)
            stop, place_stop = first + shape[0], place + shape[0] * shape[1]
            real, weight = spec.real, weights[first:stop]
            if real < shape[0]:
                weight[real:] = 0
            kept = {key: views[key] for key in set(spec.shard.tolist())}
            made.append(
                Batch(
                    ids[place:place_stop].reshape(shape),
                    mask[place:place_stop].reshape(shape),
                    sizes[first:stop],
                    weight,
                    step=spec.step,
                    round=spec.round,
                    slot=spec.slot,
                    last_in_step=some.get("last_in_step", spec.last_in_step),
                    epoch=some.get("epoch", spec.epoch),
                    name=some.get("name", spec.name),
                    step_rows=spec.step_rows,
                    step_tokens=spec.step_tokens,
                    real=real,
                    tokens=sum(lengths[first : first + real]),
                    rows=RowValues(spec.shard, spec.row, kept, real),
                    state=some.get("state"),
                    arrays=self._pool,
                )
            )
            first = stop
        return made

    def _fill(
        self,
        out: NDArray[np.int64],
        mask: NDArray[np.int64],
        given: list[tuple[Spec, Mapping[str, Any]]],
        pieces: list[memoryview],
        lengths: list[int],
    ) -> None:
        """Write rows and padding one after the other, and their mask.

        Every piece is a copy of memory (0.1 us; numpy.concatenate takes 0.4), then one call of numpy widens all to int64.
        """
        longest = max(spec.length for spec, _ in given)
        templates = self._templates
        if longest > templates.size:
            templates = self._templates = _Templates(2 * longest, self.pad_id)
        size, padding, ones_then_zeros = templates.size, templates.padding, templates.mask
        flat, place, row = mask.data, 0, 0
        parts: list[memoryview] = []
        for spec, _ in given:
            padded, rows = spec.length, len(spec.row)
            for piece, length in zip(pieces[row : row + rows], lengths[row : row + rows], strict=True):
                parts.append(piece)
                if length < padded:
                    parts.append(padding[: padded - length])
                elif length > padded:
                    raise BlockError(f"a row of {length} tokens does not fit a batch padded to {padded}", length=length)
                stop = place + padded
                flat[place:stop] = ones_then_zeros[size - length : size - length + padded]
                place = stop
            row += rows
            stop = aligned(place)
            if place < stop:
                parts.append(padding[: stop - place])
                place = stop
        out[:] = np.frombuffer(b"".join(parts), dtype=np.int32)


def aligned(slots: int) -> int:
    """Return where the next micro-batch of a buffer begins: at a multiple of 64 bytes, as the buffer does."""
    return -(-slots // ALIGNED_SLOTS) * ALIGNED_SLOTS


class _Templates:
    """What padding and masks of rows up to `size` tokens are cut from.

    padding  int32 (size,), all pad_id
    mask     int64 (2 size,), ones and then zeros: the mask of a row of n tokens is the part from size - n on
    """

    def __init__(self, size: int, pad_id: int) -> None:
        self.size = size
        self.padding = np.full(size, pad_id, dtype=np.int32).data
        self.mask = np.repeat(np.array([1, 0], dtype=np.int64), size).data
