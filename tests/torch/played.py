"""What was played, as plain values that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from shardprep.torch import TorchBatch


def played(batches: Iterable[TorchBatch]) -> list[tuple[Any, ...]]:
    """Return all that a loop sees of each batch."""
    return [seen(batch) for batch in batches]


def seen(batch: TorchBatch) -> tuple[Any, ...]:
    assert (
        batch.input_ids.dtype == batch.attention_mask.dtype == batch.lengths.dtype == batch.labels.dtype == torch.int64
    )
    assert batch.weight.dtype == torch.float32
    numbers = (batch.epoch, batch.step, batch.round, batch.slot, batch.last_in_step, batch.step_rows, batch.step_tokens)
    tensors = (batch.input_ids, batch.attention_mask, batch.lengths, batch.weight, batch.labels)
    columns = {
        name: column.tolist() if isinstance(column, torch.Tensor) else column for name, column in batch.columns.items()
    }
    return (*numbers, batch.real, batch.tokens, batch.ids, columns, [t.tolist() for t in tensors], batch.state())


def ids_of(batches: Iterable[TorchBatch]) -> list[str]:
    """Return the ids of the real rows, in order."""
    return [name for batch in batches for name in batch.ids[: batch.real]]


def take(batches: Iterable[TorchBatch], count: int) -> list[TorchBatch]:
    """Return the first batches; the epoch is then broken off."""
    iterator = iter(batches)
    found = list(islice(iterator, count))
    if hasattr(iterator, "close"):
        iterator.close()
    return found
