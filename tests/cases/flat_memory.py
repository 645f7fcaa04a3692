"""One rank that plays epochs and tells its private memory.

flat_memory.py DATASET CACHE RANK WORLD EPOCHS
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import shardprep


def memory(name: str) -> int:
    """Return a number of the kernel's, in bytes: RssAnon is this process's own, not files of the cache; VmHWM the peak of all."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def main(root: str, cache: str, rank: str, world: str, epochs: str) -> None:
    began = time.process_time()  # not the clock's: four of them open at once, and the machine may be busy
    dataset = shardprep.open(root, cache_dir=cache)
    loader = dataset.loader(batch_size=64, rank=int(rank), world_size=int(world), num_threads=2)
    told: dict[str, object] = {"micro_batches": len(loader), "opened_s": time.process_time() - began}
    told["opened_bytes"] = memory("VmHWM")
    measured = []
    for epoch in range(int(epochs)):
        for number, batch in enumerate(loader):
            if (epoch, number) == (0, 100):
                measured.append(memory("RssAnon"))
            assert batch.ids  # the documents' own Python objects, as a training script would touch them
        measured.append(memory("RssAnon"))
    print(json.dumps({**told, "rows": loader.metrics()["rows"], "private": measured}))


main(*sys.argv[1:])
