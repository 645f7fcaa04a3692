"""A job of two ranks with two threads each, in one process group, as a launcher starts them.

two_ranks.py DATASET CACHE SECONDS_A_BATCH

SECONDS_A_BATCH may be "hold": then both stay at their first batch until standard input ends.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import shardprep


def say(root: str, *values: object) -> None:
    """Write a line to the pipe that both ranks share: one at a time, whole."""
    line = (json.dumps(values) + "\n").encode()
    with open(Path(root) / "manifest.json", "rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        while line:
            line = line[os.write(1, line) :]


def rank(root: str, cache: str, pause: str, number: str) -> None:
    """Play one epoch: say so at the first batch and at the end."""
    loader = shardprep.open(root, cache_dir=cache).loader(batch_size=8, rank=int(number), world_size=2, num_threads=2)
    ids: list[str] = []
    for batch in loader:
        if not ids:
            say(root, "first", number)
            if pause == "hold":
                sys.stdin.read()
        ids += [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]
        time.sleep(0 if pause == "hold" else float(pause))
    say(root, "done", number, ids)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        rank(*sys.argv[1:])
    else:
        jobs = [subprocess.Popen([sys.executable, *sys.argv, number]) for number in "01"]
        sys.exit(max(job.wait() for job in jobs))
