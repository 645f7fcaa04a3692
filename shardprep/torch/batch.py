"""TorchBatch: a micro-batch as tensors, on whatever device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from shardprep.formats.collate import IGNORED, Batch, ListColumn

Device = torch.device | str | int


class MaskedColumn(NamedTuple):
    """A column with nulls: values (rows,), and null, bool (rows,), True where there is none."""

    values: torch.Tensor
    null: torch.Tensor


class ListsColumn(NamedTuple):
    """A column of lists: row i is values[offsets[i]:offsets[i + 1]]; null, bool (rows,), or None if every row has a list."""

    values: Any
    offsets: torch.Tensor
    null: torch.Tensor | None


class TorchBatch:
    """One micro-batch.

    input_ids       int64 (rows, padded); padding holds the pad token
    attention_mask  int64 (rows, padded): 1 real, 0 padding
    lengths         int64 (rows,), in tokens
    weight          float32 (rows,): 1, or 0 for filler rows, which come last and repeat a real row
    labels          int64 (rows, padded): input_ids, with -100 on padding and on filler rows
    ids, columns    made when they are asked for; number columns as tensors, text as list[str | None]
    step, round, slot, last_in_step, epoch, name, step_rows, step_tokens, real, tokens   as in `Batch`

    Pickled, it crosses to another process as plain arrays: not through shared memory.
    """

    __slots__ = ("_batch", "_columns", "_labels", "attention_mask", "input_ids", "lengths", "weight")

    def __init__(self, batch: Batch) -> None:
        """Take a batch's arrays as tensors, without copying."""
        self._batch = batch
        self.input_ids = torch.from_numpy(batch.input_ids)
        self.attention_mask = torch.from_numpy(batch.attention_mask)
        self.lengths = torch.from_numpy(batch.lengths)
        self.weight = torch.from_numpy(batch.weight)
        self._labels: torch.Tensor | None = None
        self._columns: dict[str, Any] | None = None

    @property
    def labels(self) -> torch.Tensor:
        """Return targets for language modelling, made on the batch's device when first asked for."""
        if self._labels is None and self._batch.input_ids is not _NO_ARRAY:
            self._labels = torch.from_numpy(self._batch.labels)
        if self._labels is None:
            self._labels = self.input_ids.masked_fill(self.attention_mask == 0, IGNORED)
            self._labels[self._batch.real :] = IGNORED
        return self._labels

    @property
    def ids(self) -> list[str]:
        """Return the id of each row; a filler row has that of the row it repeats."""
        return self._batch.ids

    @property
    def columns(self) -> dict[str, Any]:
        """Return the passed-through columns by name, on the batch's device."""
        if self._columns is None:
            device = self.input_ids.device
            self._columns = {name: _column(value, device) for name, value in self._batch.columns.items()}
        return self._columns

    @property
    def step(self) -> int:
        """Return the optimizer step in the epoch."""
        return self._batch.step

    @property
    def round(self) -> int:
        """Return the round in the epoch."""
        return self._batch.round

    @property
    def slot(self) -> int:
        """Return the slot in the round; negative: filler rows only."""
        return self._batch.slot

    @property
    def last_in_step(self) -> bool:
        """Tell whether it is time for optimizer.step() after this micro-batch."""
        return self._batch.last_in_step

    @property
    def epoch(self) -> int:
        """Return the epoch."""
        return self._batch.epoch

    @property
    def name(self) -> str:
        """Return the data set's name in a mix, else an empty string."""
        return self._batch.name

    @property
    def step_rows(self) -> int:
        """Return the real rows of the whole step over all ranks."""
        return self._batch.step_rows

    @property
    def step_tokens(self) -> int:
        """Return the real tokens of the whole step over all ranks."""
        return self._batch.step_tokens

    @property
    def real(self) -> int:
        """Return the real rows of this micro-batch."""
        return self._batch.real

    @property
    def tokens(self) -> int:
        """Return the tokens of its real rows."""
        return self._batch.tokens

    def state(self) -> dict[str, Any]:
        """Return the loader's state after this batch, as JSON values: what to save beside a checkpoint made now."""
        return self._batch.state()

    def to(self, device: Device, non_blocking: bool = False) -> TorchBatch:
        """Return the batch on a device; itself if it is there."""
        wanted = torch.device(device)
        here = self.input_ids.device
        if here.type == wanted.type and (wanted.index is None or here.index == wanted.index):
            return self
        return self._with({name: getattr(self, name).to(wanted, non_blocking=non_blocking) for name in _TENSORS})

    def pin_memory(self) -> TorchBatch:
        """Return the batch in page-locked memory: for DataLoader(pin_memory=True)."""
        return self._with({name: getattr(self, name).pin_memory() for name in _TENSORS})

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that were made so far, but for columns."""
        return [getattr(self, name) for name in _TENSORS]

    def _with(self, tensors: dict[str, torch.Tensor]) -> TorchBatch:
        moved = object.__new__(TorchBatch)
        for name, tensor in tensors.items():
            setattr(moved, name, tensor)
        moved._batch = _without_arrays(self._batch)
        moved._labels = moved._columns = None
        return moved

    def __reduce__(self) -> tuple[Any, ...]:
        if self._batch.input_ids is _NO_ARRAY:
            arrays = {name: getattr(self, name).cpu().numpy() for name in _TENSORS}
            return TorchBatch, (_rebuilt(self._batch, arrays),)
        return TorchBatch, (self._batch,)


_TENSORS = ("input_ids", "attention_mask", "lengths", "weight")
_NO_ARRAY: Any = np.zeros((0, 0), dtype=np.int64)


def _without_arrays(batch: Batch) -> Batch:
    """Return the batch's ids, columns and numbers: its memory may go back to the pool."""
    return _rebuilt(batch, dict.fromkeys(_TENSORS, _NO_ARRAY))


def _rebuilt(batch: Batch, arrays: dict[str, Any]) -> Batch:
    other = object.__new__(Batch)
    for name in Batch.__slots__:
        setattr(other, name, getattr(batch, name))
    for name, array in arrays.items():
        setattr(other, name, array)
    other._labels = None
    return other


def _column(value: Any, device: torch.device) -> Any:
    if isinstance(value, ListColumn):
        null = None if value.null is None else _tensor(value.null, device)
        return ListsColumn(_column(value[0], device), _tensor(value[1], device), null)
    if isinstance(value, np.ma.MaskedArray):
        return MaskedColumn(_tensor(value.data, device), _tensor(np.ma.getmaskarray(value), device))
    if isinstance(value, np.ndarray):
        return _tensor(value, device)
    return value


def _tensor(array: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.require(array, requirements="W")).to(device)
