"""torchdata: a data set for StatefulDataLoader, whose workers each save and load a state of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardprep.errors import ConfigError
from shardprep.reader.loader import Loader
from shardprep.reader.making import Share
from shardprep.torch.batch import TorchBatch
from shardprep.torch.iterable import ShardIterable

__all__ = ["StatefulShards"]


class StatefulShards(ShardIterable):
    """For `StatefulDataLoader(StatefulShards(loader), batch_size=None, num_workers=k)`.

    StatefulDataLoader's own state continues at the very micro-batch, and only with the same number of workers and the same
    world: it keeps a state for each worker. `batch.state()` continues at the step, anywhere; give it to `load_state_dict`.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._progress: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the reader's state at the beginning of this iteration, and what this worker has made since."""
        if self._progress is not None:
            return dict(self._progress)
        start = self._board.upcoming
        return self._plan.with_slots(start.slots).state(start.epoch, start.step).document()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `batch.state()`, or, called by StatefulDataLoader in a worker, where that worker was."""
        reader = {name: value for name, value in state.items() if name != "worker"}
        start = self._checked(reader)
        if "worker" in state:
            self._resume = {**state["worker"], "start": start}
        else:
            self._board.upcoming = start

    def __iter__(self) -> Iterator[TorchBatch]:
        """Play this process's share of one epoch, or the rest of it."""
        member, resume = self._member(), self._resume
        self._resume = None
        start = self._board.begin(member, None if resume is None else resume["start"])
        plan = self._plan.with_slots(start.slots)
        base = start.step * plan.policy.accumulate * plan.per_round
        done = 0
        if resume is not None:
            here = {"workers": member.workers, "rank": self.world.rank, "world_size": self.world.world_size}
            was = {name: resume[name] for name in here}
            if was != here:
                raise ConfigError(
                    f"the state of a StatefulDataLoader fits only the set-up it was made in: {was}, but this is {here}; "
                    "give batch.state() to load_state_dict of the data set instead"
                )
            done = int(resume["done"])
        self._progress = plan.state(start.epoch, start.step).document()
        self._progress["worker"] = {
            "workers": member.workers,
            "rank": self.world.rank,
            "world_size": self.world.world_size,
            "done": done,
        }
        share = Share(member.worker, member.workers, base, base + member.worker + done * member.workers)
        return self._counted(self._play(plan, start.epoch, share), self._progress["worker"])

    @staticmethod
    def _counted(batches: Iterator[TorchBatch], worker: dict[str, int]) -> Iterator[TorchBatch]:
        for batch in batches:
            worker["done"] += 1
            yield batch
            del batch
