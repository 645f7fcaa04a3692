"""Writes shards into FIFOs, one FIFO after the other, as the platform does for a channel in Pipe mode: a process of its own.

    feed.py JOB      JOB is JSON: a list of {"path", "files", "stop", "skip", "piece", "pause_s", "make_after_s"}

It says on its standard output what became of each FIFO: how many bytes went in, and whether the reader left early.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def feed(path, files, stop=None, skip=0, piece=1 << 16, pause_s=0.0, make_after_s=None):
    """Write the bytes of the files one after the other, from `skip` up to `stop` (exclusive); return what happened."""
    if make_after_s is not None:
        time.sleep(make_after_s)
        os.mkfifo(path)
    data = b"".join(Path(file).read_bytes() for file in files)[skip:stop]
    sent = 0
    with open(path, "wb", buffering=0) as fifo:
        try:
            while sent < len(data):
                sent += fifo.write(data[sent : sent + piece])
                time.sleep(pause_s)
        except BrokenPipeError:
            return {"sent": sent, "left_early": True}
    return {"sent": sent, "left_early": False}


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        print(json.dumps(feed(**job)), flush=True)
