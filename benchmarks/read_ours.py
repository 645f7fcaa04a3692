"""Our reader for read_run.py: the same interface as the functions of read_peers.py.

ours          its own batches: at most 14,400 slots, one rank, two threads; the consumer sums the mask
ours_all      the same, and the consumer takes ids and labels too, as the other readers' batches always have them
ours_random   random batches of 16 rows, each padded to its longest, as the others make them: the same work. The whole
              loader plays them, cache, threads and collator; only the schedule is another (RandomRounds)
ours_random_all   and takes ids and labels
ours_torch    TorchLoader over `ours`; `workers` processes
ours_torch_all
"""

# ruff: noqa: ARG001, ARG002  readers share one signature, schedules another

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

import shardprep
from shardprep.core.schedule import MicroBatch, RoundShape, Span
from shardprep.reader.plan import ReadPlan

BATCH_TOKENS, BATCH_ROWS = 14_400, 16


class Reader(NamedTuple):
    """As in read_peers.py, which imports torch."""

    batches: Iterable[Any]
    state: Callable[[], Any] | None = None
    load: Callable[[Any], None] | None = None


def seen(batch: Any) -> tuple[None, int, int, int]:
    """Return what a batch holds, of numpy arrays or tensors; its ids and columns are not made."""
    slots = batch.input_ids.shape[0] * batch.input_ids.shape[1]
    if int(batch.attention_mask.sum()) < batch.tokens:
        raise AssertionError(f"the mask of round {batch.round} has fewer ones than the batch has tokens")
    return None, batch.real, slots, batch.tokens  # the mask counts filler rows, too


def seen_all(batch: Any) -> tuple[list[str], int, int, int]:
    """The same, with ids and labels; filler rows are left out."""
    ids, real = batch.ids, batch.real
    if len(batch.columns["label"]) != len(ids):
        raise AssertionError("labels and ids differ in number")
    return (ids if real == len(ids) else ids[:real], *seen(batch)[1:])


class RandomRounds:
    """A schedule of one slot: 16 random rows a round, padded to the longest of them."""

    def __init__(self, plan: ReadPlan, epoch: int) -> None:
        numbers, shards = [], []
        for rows in plan.sets:
            lengths = np.repeat(rows.histogram.lengths, rows.histogram.counts)
            row, place = np.divmod(np.arange(len(lengths)), rows.shards)
            numbers.append((lengths, row))
            shards.append(np.where(row % 2 == 0, place, rows.shards - 1 - place) + rows.first_shard)
        self.lengths, self.row = (np.concatenate(part) for part in zip(*numbers, strict=True))
        self.shard = np.concatenate(shards)
        self.order = np.random.default_rng([plan.policy.seed, epoch]).permutation(len(self.row))
        self.plan, self.epoch = plan, epoch
        self.rounds = self.steps = -(-len(self.row) // BATCH_ROWS)
        self.windows = [Span(0, self.rounds)]

    def at(self, epoch: int) -> RandomRounds:
        return RandomRounds(self.plan, epoch)

    def _rows(self, index: int) -> np.ndarray:
        return self.order[index * BATCH_ROWS : (index + 1) * BATCH_ROWS]

    def shape(self, index: int) -> RoundShape:
        rows = self._rows(index)
        return RoundShape(len(rows), int(self.lengths[rows].max()), index, last_in_step=True)

    def micro_batch(self, index: int, slot: int) -> MicroBatch:
        rows = self._rows(index)
        lengths = self.lengths[rows]
        return MicroBatch(
            index, slot, self.shard[rows], self.row[rows], len(rows), int(lengths.max()), index, len(rows),
            int(lengths.sum()), last_in_step=True, epoch=self.epoch,
        )  # fmt: skip

    def shards(self, window: int, slots: range) -> np.ndarray:
        return np.unique(self.shard)


class RandomPlan(ReadPlan):
    def schedule(self, epoch: int) -> RandomRounds:
        return RandomRounds(self, epoch)


def loader_of(place: str, cache: str, **options: Any) -> Any:
    dataset = shardprep.open(place, cache_dir=cache)
    return dataset.loader("train", **{"batch_tokens": BATCH_TOKENS, "rank": 0, "world_size": 1, **options})


def ours(place: str, workers: int, cache: str) -> Reader:
    loader = loader_of(place, cache)
    return Reader(loader, loader.state_dict, loader.load_state_dict)


def ours_random(place: str, workers: int, cache: str) -> Reader:
    loader = loader_of(place, cache)
    loader.plan = RandomPlan(**{name: getattr(loader.plan, name) for name in loader.plan.__dataclass_fields__})
    return Reader(loader)


def ours_torch(place: str, workers: int, cache: str) -> Reader:
    from shardprep.torch import TorchLoader

    loader = TorchLoader(loader_of(place, cache), num_workers=workers)
    return Reader(loader, loader.state_dict, loader.load_state_dict)


ours_all, ours_random_all, ours_torch_all = ours, ours_random, ours_torch
