"""What it takes to read one split as one rank: a value, so that worker processes can be handed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from shardprep.core.buckets import LengthBuckets
from shardprep.core.mixing import MixEpoch, MixSet
from shardprep.core.schedule import (
    PLAN_VERSION,
    Epoch,
    MicroBatch,
    Policy,
    RoundShape,
    RowSet,
    Span,
    World,
    micro_batches_per_round,
    played_slots,
    slots_of,
)
from shardprep.core.state import ReaderState, check_same
from shardprep.errors import ConfigError
from shardprep.reader.cache import ShardRef

# Slots (rows x padded length) of one chunk, the unit that a thread makes at once: 2 MB of ids and mask. Handing over
# costs about 50 us whatever the size, and a chunk lives once a thread.
CHUNK_SLOTS = 131_072
FIRST_SLOTS = (
    16_384  # the second chunk's; they double from there: the first batches should not wait for their successors
)


class Schedule(Protocol):
    """The rounds of an epoch, by arithmetic: of one data set (core.schedule.Epoch) or of several (core.mixing)."""

    def at(self, epoch: int) -> Schedule:
        """Return another epoch of the same rows; cheaper than a new one."""
        ...

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        ...

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        ...

    @property
    def dropped_rows(self) -> int:
        """Return the rows that tail="drop" leaves out."""
        ...

    @property
    def windows(self) -> Sequence[Span]:
        """Return the rounds of each window in the order of playing."""
        ...

    def shape(self, index: int) -> RoundShape:
        """Return what all ranks play in a round."""
        ...

    def micro_batch(self, index: int, slot: int) -> MicroBatch:
        """Return the rows of one slot of a round."""
        ...

    def shards(self, window: int, slots: range) -> NDArray[Any]:
        """Return the shards that these slots need in a window."""
        ...


class Chunk(NamedTuple):
    """Consecutive rounds of one window that are made at once: first and stop (exclusive)."""

    number: int
    window: int
    first: int
    stop: int


@dataclass(frozen=True)
class Mixed:
    """The data sets of a mix, and the one whose epoch is the mix's."""

    sets: tuple[MixSet, ...]
    until: str


@dataclass(frozen=True)
class ReadPlan:
    """One split, one policy, one rank.

    refs        shards of all generations, flat: what `MicroBatch.shard` counts
    sets        rows of each generation
    pad_id      fills padding slots
    mixed       where several data sets are read: their rows, in place of `sets` and `buckets`
    """

    split: str
    fingerprint: str
    refs: tuple[ShardRef, ...]
    sets: tuple[RowSet, ...]
    buckets: LengthBuckets
    policy: Policy
    world: World
    pad_id: int
    mixed: Mixed | None = None

    def schedule(self, epoch: int) -> Schedule:
        """Return the rounds of an epoch."""
        if self.mixed is not None:
            return MixEpoch(self.mixed.sets, self.policy, self.mixed.until, epoch)
        return Epoch(self.sets, self.buckets, self.policy, epoch)

    @property
    def slots(self) -> range:
        """Return the slots that this rank plays in each round."""
        return slots_of(self.world, self.policy.slots)

    @property
    def per_round(self) -> int:
        """Return the micro-batches that every rank plays in each round."""
        return micro_batches_per_round(self.world, self.policy.slots)

    def state(self, epoch: int, step: int) -> ReaderState:
        """Return the state at the beginning of a step."""
        return ReaderState(
            plan_version=PLAN_VERSION,
            fingerprint=self.fingerprint,
            split=self.split,
            seed=self.policy.seed,
            epoch=epoch,
            step=step,
            policy=self.policy.document(),
        )

    def continued(self, state: object, *, slots_given: bool) -> tuple[ReadPlan, int, int]:
        """Return the plan that continues from a state, and its epoch and step; without slots_given with the state's slots.

        Raises ConfigError that names both sides if the state is of another data set, plan version or policy.
        """
        wanted = ReaderState.parse(state)
        plan = self if slots_given else self.with_slots(int(wanted.policy["slots"]))
        check_same(wanted, plan.state(0, 0))
        steps = plan.schedule(0).steps
        if wanted.step > steps:
            raise ConfigError(f"the state is at step {wanted.step}, but an epoch has {steps} steps")
        return plan, wanted.epoch, wanted.step

    def position_after(self, epoch: int, schedule: Schedule, step: int, last: bool) -> tuple[int, int]:
        """Return epoch and step after a micro-batch of this step; last: it is the step's last."""
        if not last:
            return epoch, step
        return (epoch, step + 1) if step + 1 < schedule.steps else (epoch + 1, 0)

    def state_after(self, epoch: int, schedule: Schedule) -> Callable[[int, bool], dict[str, Any]]:
        """Return what tells the state after a micro-batch of an epoch: called with its step, and whether it is the last."""
        return lambda step, last: self.state(*self.position_after(epoch, schedule, step, last)).document()

    def with_world(self, world: World) -> ReadPlan:
        """Return the plan of another rank, of the same rounds."""
        return replace(self, world=world)

    def with_slots(self, slots: int) -> ReadPlan:
        """Return the plan with rounds of so many slots; itself if it has as many."""
        if slots == self.policy.slots:
            return self
        return replace(self, policy=replace(self.policy, slots=slots))

    def specs(self, schedule: Schedule, chunk: Chunk) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield this rank's micro-batches of a chunk in the order of playing, and whether each is its step's last."""
        slots = played_slots(self.world, self.policy.slots)
        last = len(slots) - 1
        for index in range(chunk.first, chunk.stop):
            for place, slot in enumerate(slots):
                spec = schedule.micro_batch(index, slot)
                yield spec, spec.last_in_step and place == last


def chunks(schedule: Schedule, per_round: int, first: int) -> Iterator[Chunk]:
    """Yield the epoch from a round on in chunks; they depend on nothing else, so that worker processes agree on them."""
    number, at = 0, first
    for window, span in enumerate(schedule.windows):
        at = max(at, span.start)
        while at < span.stop:
            limit = min(CHUNK_SLOTS, FIRST_SLOTS << min(number, 16) >> 1) if number else 0
            stop, slots = at + 1, schedule.shape(at).area * per_round
            while stop < span.stop:
                slots += schedule.shape(stop).area * per_round
                if slots > limit:
                    break
                stop += 1
            yield Chunk(number, window, at, stop)
            number, at = number + 1, stop
