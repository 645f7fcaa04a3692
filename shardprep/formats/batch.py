"""Batch: what a training loop gets, as numpy arrays; ids, columns and labels are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import ConfigError
from shardprep.formats.buffers import Arrays, Unpooled
from shardprep.formats.row_values import IGNORED, RowValues

StateAfter = Callable[[int, bool], dict[str, Any]]  # (step, last in step) -> the loader's state


class Batch:
    """One micro-batch.

    input_ids       int64 (rows, padded); padding holds the pad token
    attention_mask  int64 (rows, padded): 1 real, 0 padding
    lengths         int64 (rows,), in tokens
    weight          float32 (rows,): 1, or 0 for filler rows, which come last and repeat a real row
    step, round, slot, last_in_step   where it is played; slot -1 is a micro-batch of filler rows only
    epoch, name     name: the data set's in a mix, else ""
    step_rows, step_tokens   real ones of the whole step over all ranks
    real, tokens    real rows of this micro-batch, and their tokens

    Arrays are the caller's, to keep and to change: their memory is used again when the last array over it dies. Small
    batches that follow each other share some, 2 MB at most: keep a copy where you keep few of many. Pickled, a batch
    carries plain arrays, its ids and columns, and its state.
    """

    __slots__ = (
        "_arrays",
        "_columns",
        "_ids",
        "_labels",
        "_rows",
        "_state",
        "attention_mask",
        "epoch",
        "input_ids",
        "last_in_step",
        "lengths",
        "name",
        "real",
        "round",
        "slot",
        "step",
        "step_rows",
        "step_tokens",
        "tokens",
        "weight",
    )

    def __init__(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weight: NDArray[np.float32],
        *,
        step: int,
        round: int,  # noqa: A002  the field's word
        slot: int,
        last_in_step: bool,
        epoch: int,
        name: str,
        step_rows: int,
        step_tokens: int,
        real: int,
        tokens: int,
        rows: RowValues | None = None,
        state: StateAfter | None = None,
        arrays: Arrays | None = None,
    ) -> None:
        self.input_ids = input_ids
        self.attention_mask = attention_mask
        self.lengths = lengths
        self.weight = weight
        self.step = step
        self.round = round
        self.slot = slot
        self.last_in_step = last_in_step
        self.epoch = epoch
        self.name = name
        self.step_rows = step_rows
        self.step_tokens = step_tokens
        self.real = real
        self.tokens = tokens
        self._rows = rows
        self._state: StateAfter | dict[str, Any] | None = state
        self._arrays = arrays
        self._ids: list[str] | None = None
        self._columns: dict[str, Any] | None = None
        self._labels: NDArray[np.int64] | None = None

    @property
    def ids(self) -> list[str]:
        """Return the id of each row; a filler row has that of the row it repeats."""
        if self._ids is None:
            self._ids = [] if self._rows is None else self._rows.ids()
        return self._ids

    @property
    def columns(self) -> dict[str, Any]:
        """Return the passed-through columns by name; `RowValues.columns` says which types come as what."""
        if self._columns is None:
            self._columns = {} if self._rows is None else self._rows.columns()
        return self._columns

    @property
    def labels(self) -> NDArray[np.int64]:
        """Return targets for language modelling, int64 (rows, padded): a copy of input_ids as they are when first asked.

        -100 on padding and on filler rows, which torch's cross entropy leaves out.
        """
        if self._labels is None:
            labels = (self._arrays or Unpooled()).array(self.input_ids.shape, np.int64)
            np.copyto(labels, self.input_ids)
            padded = labels.shape[1]
            shortest = int(self.lengths.min(initial=padded))
            if shortest < padded:
                padding = np.arange(shortest, padded) >= self.lengths[:, None]
                labels[:, shortest:][padding] = IGNORED
            labels[self.real :] = IGNORED
            self._labels = labels
        return self._labels

    def state(self) -> dict[str, Any]:
        """Return the loader's state after this batch, as JSON values: what to save beside a checkpoint made now."""
        if self._state is None:
            raise ConfigError("this batch was made without a loader: it has no state")
        if callable(self._state):
            self._state = self._state(self.step, self.last_in_step)
        return self._state

    def __reduce__(self) -> tuple[Any, ...]:
        if callable(self._state):
            self.state()
        arrays = (self.input_ids, self.attention_mask, self.lengths, self.weight)
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return _rebuild, (arrays, numbers, self.ids, self.columns, self._labels, self._state)


_NUMBERS = (
    "step",
    "round",
    "slot",
    "last_in_step",
    "epoch",
    "name",
    "step_rows",
    "step_tokens",
    "real",
    "tokens",
)


def _rebuild(
    arrays: tuple[Any, ...],
    numbers: dict[str, Any],
    ids: list[str],
    columns: dict[str, Any],
    labels: NDArray[np.int64] | None,
    state: dict[str, Any] | None,
) -> Batch:
    batch = Batch(*arrays, **numbers)
    batch._ids, batch._columns, batch._labels, batch._state = ids, columns, labels, state  # noqa: SLF001
    return batch
