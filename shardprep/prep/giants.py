"""Documents larger than a shard ought to be: they get through whole, with one warning that names the largest."""

from __future__ import annotations

from shardprep.core.plan import ShardPlan, SplitPlan
from shardprep.core.plan_shards import BYTES_PER_TOKEN
from shardprep.prep.job import Job
from shardprep.prep.stage import read_batch, staged_of
from shardprep.storage.store import Store


def giants(job: Job, staging: Store, plan: ShardPlan) -> list[str]:
    """Return a warning for each split with rows above the wished shard size; nothing where shards are counted."""
    if job.settings.shards is not None:
        return []
    limit = job.settings.shard_tokens or int((job.settings.shard_bytes or 0) / BYTES_PER_TOKEN)
    out = []
    for number, split in enumerate(plan.splits):
        above = split.histogram.lengths > limit
        if not above.any():
            continue
        longest = int(split.histogram.lengths[-1])
        name = _longest_id(job, staging, number, split)
        count = int(split.histogram.counts[above].sum())
        others = f" ({count} documents are)" if count > 1 else ""
        out.append(
            f"document {name} has {longest:,} tokens (about {int(longest * BYTES_PER_TOKEN):,} bytes), more than a shard of "
            f"--shard-size {job.settings.shard_size} ought to hold{others}: it is kept whole, and its shard is larger"
        )
    return out


def _longest_id(job: Job, staging: Store, number: int, split: SplitPlan) -> str:
    """Return the id of the longest row: the last of the last run."""
    task = int(split.run_task[-1])
    staged = staged_of(staging, task, job.tags[task])
    longest = int(split.histogram.lengths[-1])
    chosen, _ = staged.split_batches(number)
    for batch in reversed(chosen.tolist()):
        start, stop = (int(x) for x in staged.batches[batch, :2])
        rows = read_batch(staged, staging.get_range(job.staged_name(task) + ".arrow", start, stop))
        offsets = rows.column("input_ids").offsets.to_numpy()
        for row in range(rows.num_rows - 1, -1, -1):
            if offsets[row + 1] - offsets[row] == longest:
                return str(rows.column("id")[row].as_py())
    raise AssertionError(f"task {task} has no row of {longest} tokens")
