"""An epoch as it is played by 8 ranks, from the schedule alone: which document meets which, and what padding costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.read_workload import ROWS, lengths

RANKS, BATCH_ROWS, BATCH_TOKENS = 8, 16, 14_400


@dataclass(frozen=True, eq=False)
class Played:
    """Documents (rows,) in the order of playing; the step of each; padded slots int64 (steps, ranks)."""

    documents: np.ndarray
    steps: np.ndarray
    slots: np.ndarray

    @property
    def tokens(self) -> int:
        return int(lengths()[self.documents].sum())

    @property
    def padding(self) -> float:
        return 1 - self.tokens / int(self.slots.sum())

    @property
    def useful(self) -> float:
        """Real tokens over the ranks' slot-time: in each step all wait for the rank with the most slots."""
        return self.tokens / (self.slots.shape[1] * int(self.slots.max(axis=1).sum()))

    @property
    def imbalance(self) -> float:
        """Largest over mean padded slots of the ranks in a step, the mean over steps."""
        return float((self.slots.max(axis=1) / self.slots.mean(axis=1)).mean())


def document_numbers(folder: Path) -> list[np.ndarray]:
    """Return the document number of each row of each shard of our data set."""
    files = sorted(folder.rglob("*.parquet"))
    return [np.array([int(x[4:]) for x in pq.read_table(f, columns=["id"])["id"].to_pylist()]) for f in files]


def ours(dataset, numbers: list[np.ndarray], epoch: int, *, rounds_a_step: int = 1, **policy) -> Played:
    """Play an epoch of a `shardprep` data set; every round is a step unless rounds_a_step says more."""
    loader = dataset.loader(
        "train", batch_tokens=BATCH_TOKENS, rank=0, world_size=RANKS, accumulate=rounds_a_step, **policy
    )
    schedule = loader.plan.schedule(epoch)
    slots = loader.plan.policy.slots
    documents, steps, areas = [], [], []
    for index in range(schedule.rounds):
        shape = schedule.shape(index)
        areas.append([shape.rows * shape.length] * slots)
        for slot in range(slots):
            batch = schedule.micro_batch(index, slot)
            if (batch.length, len(batch.row)) != (shape.length, shape.rows):
                raise AssertionError(f"round {index}, slot {slot} has another shape than its round")
            shard, row = batch.shard[: batch.real].tolist(), batch.row[: batch.real].tolist()
            documents += [numbers[s][r] for s, r in zip(shard, row, strict=True)]
            steps += [shape.step] * batch.real
    found = Played(np.array(documents), np.array(steps), np.array(areas))
    if len(np.unique(found.documents)) != ROWS or len(found.documents) != ROWS:
        raise AssertionError(f"{len(found.documents)} rows, {len(np.unique(found.documents))} of them distinct")
    return found


def dealt(order: np.ndarray) -> Played:
    """Play an order in batches of 16; batch k goes to rank k % 8, as accelerate deals them; the tail is left out."""
    steps = len(order) // (BATCH_ROWS * RANKS)
    kept = order[: steps * BATCH_ROWS * RANKS]
    longest = lengths()[kept].reshape(steps, RANKS, BATCH_ROWS).max(axis=2)
    return Played(kept, np.repeat(np.arange(steps), BATCH_ROWS * RANKS), longest * BATCH_ROWS)


def uniform(seed: int) -> Played:
    """Uniform shuffling: what every streaming reader would like to do."""
    return dealt(np.random.default_rng(seed).permutation(ROWS))


def group_by_length(seed: int) -> Played:
    """Hugging Face's LengthGroupedSampler: random pools of 50 batches, each sorted, the longest row first."""
    lens = lengths()
    order = np.random.default_rng(seed).permutation(ROWS)
    pool = 50 * BATCH_ROWS
    pools = [order[i : i + pool] for i in range(0, ROWS, pool)]
    pools = [p[np.argsort(-lens[p], kind="stable")] for p in pools]
    longest = int(np.argmax([lens[p[0]] for p in pools]))
    pools[0][0], pools[longest][0] = pools[longest][0], pools[0][0]
    return dealt(np.concatenate(pools))
