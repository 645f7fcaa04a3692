"""The loader: one epoch after the other of one rank's batches, made ahead in threads, counted at the consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shardprep.core.schedule import World
from shardprep.errors import ConfigError
from shardprep.formats.collate import Batch, BufferPool, Collator
from shardprep.reader.cache import ShardCache
from shardprep.reader.making import StateAfter, Supply, Threads, in_order
from shardprep.reader.metrics import Metrics
from shardprep.reader.plan import ReadPlan, Schedule, chunks
from shardprep.reader.steps import StepLog

POOL_BYTES = 64 << 20


def check_asked(unasked: int) -> None:
    """Raise ConfigError if so many processes, more than one, would each play all rows without having been told to."""
    if unasked > 1:
        raise ConfigError(
            f"this process is one of {unasked} (WORLD_SIZE), and the loader was made without rank= and world_size=: each of "
            "them would train on all rows. Give both, or wrap the loader in shardprep.torch.TorchLoader, which finds them; "
            "rank=0, world_size=1 plays all rows in each process"
        )


class Loader:
    """Batches of one rank, epoch by epoch. Made by `Dataset.loader`.

    Iterating plays one epoch: the one after the last begun, or the one set by `set_epoch` or `load_state_dict`. An epoch
    that was broken off is not continued.
    """

    def __init__(
        self,
        plan: ReadPlan,
        cache: Callable[[], ShardCache],
        *,
        num_threads: int,
        slots_given: bool,
        metrics: Callable[[World], Metrics],
        world_given: bool = True,
        launched: int = 1,
    ) -> None:
        self.plan = plan
        self.world_given = world_given
        self._unasked = 1 if world_given else launched  # processes that would each play all rows
        self.open_cache = cache
        self.num_threads = num_threads
        self.slots_given = slots_given
        self._slots_loaded = False
        self._metrics_of = metrics
        self._metrics = metrics(plan.world)
        self._pool = BufferPool(POOL_BYTES)
        self._next = (0, 0)
        self._position = (0, 0)
        self._known: tuple[ReadPlan, Schedule] | None = None

    def take_world(self, world: World) -> None:
        """Read as this rank from now on. Without `slots=` a round gets as many slots as there are ranks."""
        self._unasked = 1
        self.plan = self.plan.with_world(world)
        if not self.slots_given and not self._slots_loaded:
            self.plan = self.plan.with_slots(world.world_size)
        self._metrics = self._metrics_of(world)

    def allocate_with(self, allocate: Callable[[int], Any]) -> None:
        """Take the memory of batches from here from now on: size in bytes -> a writable buffer; for pinned memory."""
        self._pool = BufferPool(POOL_BYTES, allocate)

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch: the same in every epoch, and on every rank."""
        return self._any_epoch.rounds * self.plan.per_round

    @property
    def steps(self) -> int:
        """Return the optimizer steps of an epoch."""
        return self._any_epoch.steps

    @property
    def dropped_rows(self) -> int:
        """Return the rows that an epoch leaves out with tail="drop"; 0 with "pad"."""
        return self._any_epoch.dropped_rows

    def check(self) -> None:
        """Raise ConfigError if what the plan asks for cannot be played."""
        _ = self._any_epoch

    @property
    def _any_epoch(self) -> Schedule:
        """Return a schedule, for what is the same in all epochs."""
        if self._known is None or self._known[0] is not self.plan:
            self._known = (self.plan, self.plan.schedule(0))
        return self._known[1]

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next, from its beginning."""
        if epoch < 0:
            raise ConfigError(f"the epoch must be at least 0, got {epoch}")
        self._next = self._position = (epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands, as JSON values: it names no rank, and serves any rank of any world.

        Inside a step it is the state at the step's beginning: gradients of an unfinished step die with the process.
        """
        return self.plan.state(*self._position).document()

    def upcoming_state(self) -> dict[str, Any]:
        """Return the state at which the next epoch to be iterated begins."""
        return self.plan.state(*self._next).document()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of this data set and policy, from any rank, world size, or number of workers.

        The rounds keep the slots they had: without `slots=` they are taken from the state. Raises ConfigError that names
        both sides if the state is of another data set, plan version or policy.
        """
        self.plan, epoch, step = self.plan.continued(state, slots_given=self.slots_given)
        self._slots_loaded = True
        self._next = self._position = (epoch, step)

    def metrics(self) -> dict[str, Any]:
        """Return what this rank read so far, and where its time went."""
        return self._metrics.snapshot()

    def copied(self, seconds: float) -> None:
        """Count a wait for the copy of the last batch to its device."""
        self._metrics.copied(seconds)

    def log_steps(self, steps: StepLog) -> None:
        """Note every step in `steps` from now on: how long it took, and how much of it was waiting for data."""
        self._metrics.steps = steps

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch. Raises ConfigError where this is one of several ranks, and nobody said which."""
        check_asked(self._unasked)
        return self.play(self.in_threads)

    def play(self, open_supply: Callable[[int, Schedule, Collator, StateAfter], Supply]) -> Iterator[Batch]:
        """Play one epoch of batches that somebody else makes: worker processes, say."""
        epoch, step = self._next
        self._next, self._position = (epoch + 1, 0), (epoch, step)
        plan, schedule = self.plan, self._any_epoch.at(epoch)
        todo = chunks(schedule, plan.per_round, step * plan.policy.accumulate)
        collator, state = Collator(plan.pad_id, self._pool), plan.state_after(epoch, schedule)
        with open_supply(epoch, schedule, collator, state) as supply:
            self._metrics.began(schedule.steps)
            try:
                for batch, last in in_order(todo, supply, self._metrics):
                    if last:
                        self._position = plan.position_after(epoch, schedule, batch.step, last)
                    self._metrics.handed(batch)
                    self._metrics.playing(batch)
                    yield batch
                    self._metrics.asked()
                    del batch  # its memory goes back while the next one is waited for
            finally:
                self._metrics.ended()
        self._position = (epoch + 1, 0)

    def in_threads(self, epoch: int, schedule: Schedule, collator: Collator, state: StateAfter) -> Threads:
        """Return the supply of this process's own threads."""
        cache = self.open_cache()
        return Threads(self.plan, schedule, cache, collator, state, epoch=epoch, num_threads=self.num_threads)
