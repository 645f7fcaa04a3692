"""TorchLoader: a loader's batches as tensors, made in threads or in processes, and on the GPU before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from shardprep.errors import ConfigError
from shardprep.formats.collate import Batch
from shardprep.reader.head_start import HeadStart
from shardprep.reader.loader import Loader
from shardprep.reader.workers import WorkerPool, WorkerSupply
from shardprep.torch.batch import Device, TorchBatch
from shardprep.torch.copies import Copies, GpuCopies, copied_ahead
from shardprep.torch.world import resolve_world

if TYPE_CHECKING:
    from shardprep.reader.pipe import PipeLoader

AHEAD_ON_GPU = 2  # batches copied ahead: one being copied, one ready


class TorchLoader:
    """A loader, epoch by epoch, as `Loader` plays it; yields TorchBatch.

    loader              of `Dataset.loader`, or of `shardprep.pipe` (then num_workers=0); made without rank and world_size,
                        it gets those of `resolve_world`
    device              where batches go. To a GPU they are copied from pinned memory on a stream of their own
    num_workers         0: threads of this process make the batches. k: k worker processes read, this process pads; it
                        reads the first rows too, while they start. The sequence is the same for every number
    persistent_workers  keep the processes from one epoch to the next
    prefetch            batches on the device ahead of use; 2 on a GPU, else 0

    Raises ConfigError if a value is out of range.
    """

    batch_sampler = None  # Lightning looks at it where there is a sampler

    def __init__(
        self,
        loader: Loader | PipeLoader,
        *,
        device: Device | None = None,
        num_workers: int = 0,
        persistent_workers: bool = False,
        prefetch: int | None = None,
    ) -> None:
        self.loader = cast("Loader", loader)  # a pipe's is like one, but for what worker processes need
        self.device = torch.device("cpu") if device is None else torch.device(device)
        on_gpu = self.device.type == "cuda"
        self.prefetch = (AHEAD_ON_GPU if on_gpu else 0) if prefetch is None else prefetch
        self.num_workers, self.persistent_workers = num_workers, persistent_workers
        if num_workers < 0 or self.prefetch < 0:
            raise ConfigError(
                f"num_workers and prefetch must be at least 0, got num_workers={num_workers}, prefetch={prefetch}"
            )
        if num_workers and not isinstance(loader, Loader):
            raise ConfigError(
                f"num_workers={num_workers} is for data sets that any process can open; a pipe is read by this process alone: "
                "give num_workers=0"
            )
        if persistent_workers and not num_workers:
            raise ConfigError("persistent_workers=True needs num_workers of at least 1")
        if not loader.world_given:
            loader.take_world(resolve_world())
        if on_gpu:
            loader.allocate_with(partial(_pinned, self.device))
        self._pool: WorkerPool | None = None
        self._pool_taken = False
        self._handed: Callable[[], dict[str, Any]] | None = (
            None  # the state where batches are taken from the loader early
        )

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch: the same in every epoch, and on every rank."""
        return len(self.loader)

    @property
    def steps(self) -> int:
        """Return the optimizer steps of an epoch."""
        return self.loader.steps

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next, from its beginning."""
        self.loader.set_epoch(epoch)
        self._handed = None

    @property
    def sampler(self) -> _Epochs:
        """Return what Lightning tells its epoch to: after a checkpoint of a finished epoch it restores no loader."""
        return _Epochs(self)

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands, after the batch that was handed over last; see `Loader.state_dict`."""
        return self.loader.state_dict() if self._handed is None else self._handed()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of any rank, world size or number of workers; see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)
        self._handed = None

    def metrics(self) -> dict[str, Any]:
        """Return what this rank read so far, and where its time went."""
        return self.loader.metrics()

    def close(self) -> None:
        """End persistent workers. The next epoch starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[TorchBatch]:
        """Play one epoch."""
        self._check_world()
        batches = self._from_workers() if self.num_workers else iter(self.loader)
        if not self.prefetch:
            self._handed = None
            copies = Copies(self.device, self.loader.copied)
            for batch in batches:
                yield copies.start(TorchBatch(batch))[0]
                del batch  # its memory goes back while the next one is waited for
            return
        start = self.loader.upcoming_state()  # now: playing moves the loader on before the first batch is handed over
        self._handed = lambda: start
        ahead = (GpuCopies if self.device.type == "cuda" else Copies)(self.device, self.loader.copied)
        for early in copied_ahead(map(TorchBatch, batches), ahead, self.prefetch):
            self._handed = early.state
            yield early
            del early
        self._handed = None

    def _check_world(self) -> None:
        if self.loader.world_given:
            return
        now, was = resolve_world(), self.loader.plan.world
        if now != was:
            raise ConfigError(
                f"this loader was made as rank {was.rank} of {was.world_size}, but now this is rank {now.rank} of "
                f"{now.world_size}: make the TorchLoader after torch.distributed.init_process_group, or give rank= and "
                "world_size= to Dataset.loader"
            )

    def _from_workers(self) -> Iterator[Batch]:
        loader = self.loader
        if not self.persistent_workers or self._pool_taken:
            pool = WorkerPool(loader.plan, loader.open_cache, self.num_workers)
            try:
                yield from loader.play(partial(_supply, loader, pool))
            finally:
                pool.close()
            return
        pool = self._pool_for_epoch()
        self._pool_taken = True
        try:
            yield from loader.play(partial(_supply, loader, pool))
        finally:
            self._pool_taken = False

    def _pool_for_epoch(self) -> WorkerPool:
        if self._pool is not None and not (self._pool.alive and self._pool.plan is self.loader.plan):
            self.close()
        if self._pool is None:
            self._pool = WorkerPool(self.loader.plan, self.loader.open_cache, self.num_workers)
        return self._pool


def _supply(loader: Loader, pool: WorkerPool, *epoch: Any) -> HeadStart | WorkerSupply:
    """Return the supply of an epoch: of workers that have just been started all but the first chunk."""
    is_new = pool.is_new
    workers = pool.supply(*epoch)
    return HeadStart(loader.in_threads(*epoch), workers) if is_new else workers


class _Epochs:
    """Plays the part of a DistributedSampler: `set_epoch` once an epoch, by a framework that counts epochs itself."""

    def __init__(self, loader: TorchLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next; if it is the one that comes anyway, then from where it was to be played."""
        if self._loader.loader.upcoming_state()["epoch"] != epoch:
            self._loader.set_epoch(epoch)


def _pinned(device: torch.device, size_bytes: int) -> Any:
    with torch.cuda.device(device):  # threads begin on GPU 0, and each process would take memory there
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
