"""A training loop without a model: writes the rows of each finished step, saves states, and is killed in between."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import shardprep
from shardprep.reader.history import StateHistory
from shardprep.torch import TorchLoader

shards, folder, die_at, save_every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo", timeout=timedelta(minutes=5))
rank = dist.get_rank()
dataset = shardprep.open(shards, cache_dir=folder / "cache")
loader = TorchLoader(dataset.loader(batch_tokens=300, slots=6, accumulate=2, seed=2), num_workers=rank % 2)
history = StateHistory(folder / "states")
state = history.load()
if state is not None:
    loader.load_state_dict(state)
began = loader.state_dict()
ids, played = [], 0
while loader.state_dict()["epoch"] < 2:
    for batch in loader:
        ids += batch.ids[: batch.real]
        played += 1
        if played == die_at and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if not batch.last_in_step:
            continue
        counts = torch.tensor([len(ids)])
        dist.all_reduce(counts)  # stands for the gradients
        assert counts.item() == batch.step_rows
        with open(folder / f"rows-{rank}.jsonl", "a") as file:
            file.write(json.dumps({"at": [batch.epoch, batch.step], "ids": ids}) + "\n")
        ids = []
        done = loader.state_dict()
        if rank == 0 and done["step"] % save_every == 0:
            history.save(done["epoch"] * 10**6 + done["step"], done)
print(json.dumps({"rank": rank, "began": [began["epoch"], began["step"]], "slots": loader.loader.plan.policy.slots}))
dist.destroy_process_group()
