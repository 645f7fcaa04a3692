"""A rank that asks all ranks whether any of them is to stop."""

from __future__ import annotations

import sys

import torch.distributed

from shardprep.adapters.sagemaker import any_rank

rank, meet = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
print(*any_rank(rank == 0, rank == 1, False))  # noqa: FBT003
torch.distributed.destroy_process_group()
