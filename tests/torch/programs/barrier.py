"""Case C43 (b): one real rank, with a barrier in each round. Prints what it played of either tail as JSON."""

import json
import sys
from datetime import timedelta

import torch.distributed as dist

import shardprep
from shardprep.torch import TorchLoader

dist.init_process_group("gloo", timeout=timedelta(minutes=5))
dataset = shardprep.open(sys.argv[1], cache_dir=sys.argv[2])
said = {}
for tail in ("drop", "pad"):
    loader = TorchLoader(dataset.loader(batch_size=5, tail=tail, seed=1), num_workers=int(sys.argv[3]))
    rounds, ids, fillers = 0, [], 0
    for batch in loader:
        dist.barrier()
        rounds += 1
        ids += batch.ids[: batch.real]
        fillers += int((batch.weight == 0).sum())
    said[tail] = {
        "rounds": rounds, "ids": ids, "fillers": fillers, "len": len(loader), "dropped": loader.loader.dropped_rows
    }  # fmt: skip
print(json.dumps(said))
dist.destroy_process_group()
