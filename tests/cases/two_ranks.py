"""A job of two ranks with two threads each, in one process group, as a launcher starts them.

two_ranks.py DATASET CACHE SECONDS_A_BATCH
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import shardprep


def rank(root: str, cache: str, pause: str, number: str) -> None:
    """Play one epoch: say so at the first batch and at the end."""
    loader = shardprep.open(root, cache_dir=cache).loader(batch_size=8, rank=int(number), world_size=2, num_threads=2)
    ids: list[str] = []
    for batch in loader:
        if not ids:
            print(json.dumps(["first", number]), flush=True)
        ids += [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]
        time.sleep(float(pause))
    print(json.dumps(["done", number, ids]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        rank(*sys.argv[1:])
    else:
        jobs = [subprocess.Popen([sys.executable, *sys.argv, number]) for number in "01"]
        sys.exit(max(job.wait() for job in jobs))
