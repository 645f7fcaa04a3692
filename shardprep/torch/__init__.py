"""Batches for PyTorch. Needs torch; nothing else of shardprep does.

TorchLoader     wraps a loader: tensors, worker processes, copies to the GPU ahead of use
ShardIterable   for those who must have a torch.utils.data.DataLoader
TorchBatch      what both yield
resolve_world   rank and world size: arguments, torch.distributed, RANK and WORLD_SIZE
"""

from shardprep.torch.batch import ListsColumn, MaskedColumn, TorchBatch
from shardprep.torch.iterable import ShardIterable
from shardprep.torch.loader import TorchLoader
from shardprep.torch.world import resolve_world

__all__ = ["ListsColumn", "MaskedColumn", "ShardIterable", "TorchBatch", "TorchLoader", "resolve_world"]
