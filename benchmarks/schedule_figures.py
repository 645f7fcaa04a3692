"""Padding, balance over ranks and useful tokens per slot-time, workload W, 14,400 tokens a micro-batch, 8 ranks.

Bars: useful at least 0.98; padding at most 1.2 % with one window, 1.7 % with two, 1.2 % for 64 ranks as 8 rounds of 8;
largest over mean padded tokens of a round exactly 1.00. Batches are those of real loaders, one for each rank; medians over
the first epochs. Ours carries as many tokens a step as 8 batches of 16 mean rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.bench import WORK, middle, parser, record, table
from benchmarks.played import BATCH_TOKENS, RANKS, Played, dealt, group_by_length, uniform
from benchmarks.read_workload import ROWS, lengths
from benchmarks.reads import data_set

OURS = {
    "ours, one window": {},
    "ours, two windows": {"window_rows": ROWS // RANKS // 2},
    "ours, 64 ranks' worth as 8 rounds of 8": {"accumulate": 8},
    "ours, 64 slots as one round": {"slots": 64},
    "ours, padded to bucket edges": {"pad_to": "edge"},
}


def read_by_ranks(folder, epoch: int, **policy) -> Played:
    """Read an epoch with eight loaders; return what they played, row counts checked."""
    import shardprep

    dataset = shardprep.open(str(folder), cache_dir=str(WORK / "read/cache"))
    documents, areas = [], []
    for rank in range(RANKS):
        loader = dataset.loader("train", batch_tokens=BATCH_TOKENS, rank=rank, world_size=RANKS, **policy)
        loader.set_epoch(epoch)
        mine = []
        for batch in loader:
            mine.append(batch.input_ids.size)
            documents += [int(name[4:]) for name in batch.ids[: int(batch.weight.sum())]]
        if len(mine) != len(loader):
            raise AssertionError(f"rank {rank} played {len(mine)} micro-batches, len() says {len(loader)}")
        areas.append(mine)
    found = Played(np.array(documents), np.zeros(len(documents)), np.array(areas).T)
    if len(np.unique(found.documents)) != ROWS or len(found.documents) != ROWS:
        raise AssertionError(f"{len(found.documents)} rows, {len(np.unique(found.documents))} of them distinct")
    return found


def batch_rebalance(seed: int) -> Played:
    """Hugging Face's BatchRebalanceSampler (transformers 5), at 128 rows a step."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    lens = lengths()
    ranks = [
        [np.array(b) for b in BatchRebalanceSampler(lens.tolist(), 16 * RANKS, RANKS, 1, seed=seed, rank=r)]
        for r in range(RANKS)
    ]
    steps = min(map(len, ranks))
    areas = np.array([[len(b) * lens[b].max() for b in rank[:steps]] for rank in ranks]).T
    kept = np.concatenate([b for rank in ranks for b in rank[:steps]])
    return Played(kept, np.zeros(len(kept)), areas)


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--epochs", type=int, default=3)
    options = flags.parse_args(arguments)
    folder = data_set()
    policies: dict[str, Callable[[int], Played]] = {
        "random batches of 16": uniform,
        "group_by_length": group_by_length,
        "all rows sorted, then dealt": lambda _: dealt(np.argsort(lengths(), kind="stable")),
    }
    try:
        batch_rebalance(0)
        policies["BatchRebalanceSampler"] = batch_rebalance
    except ImportError:
        print("no transformers here: BatchRebalanceSampler is left out")
    for name, policy in OURS.items():
        policies[name] = lambda epoch, p=policy: read_by_ranks(folder, epoch, **p)
    rows = []
    for name, play in policies.items():
        epochs = [play(epoch) for epoch in range(options.epochs)]
        figures = [middle([getattr(p, what) for p in epochs]) for what in ("useful", "padding", "imbalance")]
        record(
            "schedule_figures", {"policy": name, **dict(zip(("useful", "padding", "imbalance"), figures, strict=True))}
        )
        worst = max(int(p.slots.max()) for p in epochs)
        rows.append(
            (name, f"{figures[0]:.3f}", f"{figures[1]:.2%}", f"{figures[2]:.4f}", f"{worst:,}", len(epochs[0].slots))
        )
    heads = (
        "policy",
        "useful tokens per slot-time",
        "padding",
        "largest over mean padded",
        "largest micro-batch",
        "rounds",
    )
    table(f"Batches over {RANKS} ranks, workload W, {options.epochs} epochs", heads, rows)
