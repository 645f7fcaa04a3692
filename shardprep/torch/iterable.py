"""ShardIterable: a loader's batches for a plain torch.utils.data.DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from shardprep.core.schedule import World
from shardprep.errors import ConfigError
from shardprep.formats.collate import BufferPool
from shardprep.reader.loader import Loader
from shardprep.reader.making import Share, play_share
from shardprep.reader.plan import ReadPlan
from shardprep.torch.batch import TorchBatch
from shardprep.torch.board import EpochBoard, Member, Start
from shardprep.torch.world import resolve_world


class ShardIterable(IterableDataset[TorchBatch]):
    """Batches of a loader, whole: `DataLoader(ShardIterable(loader), batch_size=None, num_workers=k)`.

    Worker w of k makes micro-batches w, w + k, w + 2 k ...; DataLoader takes them in turn, so the sequence is the same for
    every k. Each iteration is the next epoch, with or without persistent workers, also after `set_epoch` and
    `load_state_dict`, which are called here, in the main process, between epochs. Where training stands is known by the
    batch alone: save `batch.state()`. `TorchLoader` needs less, and is faster.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        if not loader.world_given:
            loader.take_world(resolve_world())
        self._plan, self._open_cache, self._num_threads = loader.plan, loader.open_cache, loader.num_threads
        self._slots_given = loader.slots_given
        state = loader.upcoming_state()
        self._board = EpochBoard(Start(state["epoch"], state["step"], self._plan.policy.slots))
        self._count = 0  # iterations begun in this process

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch."""
        plan = self._plan.with_slots(self._board.upcoming.slots)
        return plan.schedule(0).rounds * plan.per_round

    @property
    def world(self) -> World:
        """Return the rank whose batches these are."""
        return self._plan.world

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next, from its beginning."""
        if epoch < 0:
            raise ConfigError(f"the epoch must be at least 0, got {epoch}")
        self._board.upcoming = Start(epoch, 0, self._board.upcoming.slots)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `batch.state()`, of any rank, world size or number of workers; see `Loader.load_state_dict`."""
        self._board.upcoming = self._checked(state)

    def _checked(self, state: dict[str, Any]) -> Start:
        plan, epoch, step = self._plan.continued(state, slots_given=self._slots_given)
        return Start(epoch, step, plan.policy.slots)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Play this process's share of one epoch."""
        member = self._member()
        start = self._board.begin(member)
        plan = self._plan.with_slots(start.slots)
        base = start.step * plan.policy.accumulate * plan.per_round
        return self._play(plan, start.epoch, Share(member.worker, member.workers, base, base))

    def _member(self) -> Member:
        self._count += 1
        info = get_worker_info()
        if info is None:
            return Member(None, self._count, 0, 1)
        return Member(info.seed - info.id, self._count, info.id, info.num_workers)

    def _play(self, plan: ReadPlan, epoch: int, share: Share) -> Iterator[TorchBatch]:
        pool = BufferPool()
        for batch in play_share(plan, self._open_cache(), epoch, share, num_threads=self._num_threads, pool=pool):
            yield TorchBatch(batch)
            del batch
