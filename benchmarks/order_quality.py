"""How well the order is mixed, beside uniform shuffling and group_by_length, and what each level of variety costs in padding.

Workload W in 16 shards, 8 ranks, 14,400 tokens a micro-batch (the others: 16 rows), a round is a step. Over seeds:
neighbours    documents i and i + 1 of the source that are played one right after the other, or in the same step
correlation   of the order of playing with the order of the source: mean and largest absolute value over the seeds
meet again    pairs of rows of a step that are in one step in the next epoch too; by chance it is about a step's share of all
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.bench import middle, parser, record, table
from benchmarks.played import BATCH_ROWS, RANKS, Played, document_numbers, group_by_length, ours, uniform
from benchmarks.read_workload import ROWS
from benchmarks.reads import data_set

VARIETIES = (0, 1, 2, 3, 4)


def neighbours(played: Played) -> tuple[float, float]:
    """Return the share of source neighbours that are adjacent, and that are in one step."""
    place, step = np.full(ROWS, -ROWS), np.full(ROWS, -1)
    place[played.documents] = np.arange(len(played.documents))
    step[played.documents] = played.steps
    return float((np.abs(np.diff(place)) == 1).mean()), float(((np.diff(step) == 0) & (step[1:] >= 0)).mean())


def correlation(played: Played) -> float:
    return float(np.corrcoef(np.arange(len(played.documents)), played.documents)[0, 1])


def meet_again(first: Played, second: Played) -> float:
    """Return the share of pairs of rows of a step that share a step again."""
    steps = []
    for played in (first, second):
        step = np.full(ROWS, -1)
        step[played.documents] = played.steps
        steps.append(step)
    both = (steps[0] >= 0) & (steps[1] >= 0)
    cells = np.unique(steps[0][both].astype(np.int64) << 32 | steps[1][both], return_counts=True)[1]
    here = np.bincount(steps[0][both])
    return float((cells * (cells - 1)).sum() / (here * (here - 1)).sum())


def main(arguments: list[str]) -> None:
    import shardprep

    flags = parser(__doc__)
    flags.add_argument("--seeds", type=int, default=20)
    options = flags.parse_args(arguments)
    folder = data_set()
    dataset, numbers = shardprep.open(str(folder)), document_numbers(folder)
    two = ROWS // RANKS // 2
    policies: dict[str, Callable[[int, int], Played]] = {
        "uniform shuffling": lambda seed, epoch: uniform(1000 * seed + epoch),
        "group_by_length": lambda seed, epoch: group_by_length(1000 * seed + epoch),
    }
    for variety in VARIETIES:
        policies[f"ours, variety={variety}"] = lambda seed, epoch, v=variety: ours(
            dataset, numbers, epoch, seed=seed, variety=v
        )
    policies["ours, variety=0, two windows"] = lambda seed, epoch: ours(
        dataset, numbers, epoch, seed=seed, window_rows=two
    )
    policies["ours, variety=2, two windows"] = lambda seed, epoch: ours(
        dataset, numbers, epoch, seed=seed, variety=2, window_rows=two
    )
    rows = []
    for name, play in policies.items():
        found = [(play(seed, 1), play(seed, 2)) for seed in range(options.seeds)]
        near = [neighbours(first) for first, _ in found]
        related = [abs(correlation(first)) for first, _ in found]
        again = middle([meet_again(first, second) for first, second in found])
        sizes = np.concatenate([np.bincount(first.steps) for first, _ in found])
        chance = float((sizes.astype(float) ** 2).sum() / sizes.sum() / ROWS)
        padding = middle([first.padding for first, _ in found])
        useful = middle([first.useful for first, _ in found])
        record("order_quality", {"policy": name, "meet_again": again, "padding": padding})
        rows.append(
            (
                name,
                f"{middle([a for a, _ in near]):.5f}",
                f"{middle([s for _, s in near]):.4f}",
                f"{np.mean(related):.4f} ({max(related):.4f})",
                f"{again:.4f}",
                f"{chance:.4f}",
                f"{padding:.2%}",
                f"{useful:.3f}",
            )
        )
    heads = (
        "order", "neighbours adjacent", "neighbours in one step", "correlation: mean (largest)", "pairs that meet again",
        "by chance", "padding", "useful tokens per slot-time",
    )  # fmt: skip
    table(f"Order, workload W, {options.seeds} seeds, steps of about {RANKS * BATCH_ROWS} rows", heads, rows)
