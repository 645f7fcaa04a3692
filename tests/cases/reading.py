"""Reading in the cases: data sets of the case, all ranks of a world in one process, and what they played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shardprep
from tests.cases.command import build
from tests.cases.inputs import docs_1000, write
from tests.invariants import Dataset


def documents(folder: Path, count: int, shards: int, *flags: object) -> Dataset:
    """Build the first `count` documents of docs_1000 in so many shards."""
    write(folder / "in/docs.jsonl", docs_1000(count))
    return build(folder / "in", folder / "out", "--shards", shards, *flags)


def ranks(root: object, cache: Path, world: int, **given: Any) -> list[Any]:
    """Return the loader of every rank."""
    dataset = shardprep.open(str(root), cache_dir=cache)
    return [dataset.loader(rank=rank, world_size=world, **given) for rank in range(world)]


def real(batch: Any) -> list[str]:
    """Return the ids of the rows that count."""
    return [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]


def counted(batches: Iterable[Any]) -> Counter[str]:
    """Count the rows that count, by id; each of them is the document that its id says."""
    seen: Counter[str] = Counter()
    for batch in batches:
        for i, name in enumerate(batch.ids):
            if batch.weight[i]:
                tokens = batch.input_ids[i, : batch.lengths[i]]
                assert bytes(tokens[:-1].tolist()).decode() == f"doc {int(name):06d}"
                assert tokens[-1] == 256
                seen[name] += 1
    return seen


def once(count: int) -> Counter[str]:
    """Return ids 0 to count - 1, once each."""
    return Counter(str(i) for i in range(count))


def played_together(loaders: list[Any]) -> list[tuple[Any, ...]]:
    """Play one epoch on all ranks, round by round; ranks that end early or differ in shape fail."""
    rounds = list(zip(*loaders, strict=True))
    for together in rounds:
        assert len({(b.input_ids.shape, b.step, b.round, b.last_in_step, b.step_rows) for b in together}) == 1
    return rounds
