"""PipeLoader: batches of a channel in Pipe mode, epoch by epoch, like those of a loader.

A pipe has no seek. So rows are batched as they come, a window of them at a time (pipe_windows.py); every rank reads the
whole stream from a channel of its own and plays its slots of each round; and to continue in the midst of an epoch is to
read on to there and drop what comes before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

from shardprep.core.content import SplitInfo
from shardprep.core.schedule import World
from shardprep.errors import ConfigError
from shardprep.formats.collate import Batch, BufferPool, Collator
from shardprep.reader.loader import POOL_BYTES, check_asked
from shardprep.reader.metrics import Metrics
from shardprep.reader.pipe_count import RowCount
from shardprep.reader.pipe_place import PipePlace
from shardprep.reader.pipe_stream import End, PipeStream
from shardprep.reader.pipe_windows import Window, lengths_by_window, rounds_of
from shardprep.reader.plan import Chunk, ReadPlan, Schedule
from shardprep.reader.steps import StepLog

log = logging.getLogger("shardprep.pipe")


class PipeLoader:
    """Batches of one rank from a channel, epoch by epoch. Made by `shardprep.pipe`.

    Iterating plays one epoch, from the channel's next FIFO: FIFOs are counted by this process, from 0, whichever epoch
    they are played as. An epoch that was broken off is not continued: its FIFO is closed. A context manager: leaving it
    ends the thread that reads.
    """

    def __init__(
        self,
        plan: ReadPlan,
        stream: PipeStream,
        splits: tuple[SplitInfo, ...],
        *,
        buffer_bytes: int,
        first_fifo: int,
        slots_given: bool,
        metrics: Callable[[World], Metrics],
        world_given: bool,
        launched: int = 1,
    ) -> None:
        self.plan, self.world_given = plan, world_given
        self._unasked = 1 if world_given else launched  # processes that would each play all rows
        self.buffer_bytes = buffer_bytes
        self._splits, self._slots_given, self._slots_loaded = splits, slots_given, False
        self._metrics_of, self._metrics = metrics, metrics(plan.world)
        self._pool = BufferPool(POOL_BYTES)
        self._fifo = first_fifo
        self._next = self._position = (0, PipePlace())
        self._known: tuple[ReadPlan, tuple[int, int]] | None = None
        self._stream, self.channel = stream, stream.channel
        self._bytes_told = 0

    # ---- like a loader --------------------------------------------------------------------------------------------

    def take_world(self, world: World) -> None:
        """Read as this rank from now on. Without `slots=` a round gets as many slots as there are ranks."""
        self._unasked = 1
        self.plan = self.plan.with_world(world)
        if not self._slots_given and not self._slots_loaded:
            self.plan = self.plan.with_slots(world.world_size)
        self._metrics = self._metrics_of(world)
        self.channel.check_world(world)

    def allocate_with(self, allocate: Callable[[int], Any]) -> None:
        """Take the memory of batches from here from now on; see `Loader.allocate_with`."""
        self._pool = BufferPool(POOL_BYTES, allocate)

    def copied(self, seconds: float) -> None:
        """Count a wait for the copy of the last batch to its device."""
        self._metrics.copied(seconds)

    def log_steps(self, steps: StepLog) -> None:
        """Note every step in `steps` from now on; see `Loader.log_steps`."""
        self._metrics.steps = steps

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch.

        By arithmetic on the manifest, for shards that come in the order of their names; O(rows), and kept. Under a
        ShuffleConfig an epoch may have some more or fewer. Raises TypeError where a host gets a part that nobody knows.
        """
        return self._counts[0] * self.plan.per_round

    @property
    def steps(self) -> int:
        """Return the optimizer steps of an epoch; see `__len__`."""
        return self._counts[1]

    def set_epoch(self, epoch: int) -> None:
        """Play this epoch next, from its beginning, with the next FIFO."""
        if epoch < 0:
            raise ConfigError(f"the epoch must be at least 0, got {epoch}")
        self._next = self._position = (epoch, PipePlace())

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands, as JSON values under 1 KB: it names no rank, and serves any rank of any world.

        Inside a step it is the state at the step's beginning.
        """
        return self._state(*self._position)

    def upcoming_state(self) -> dict[str, Any]:
        """Return the state at which the next epoch to be iterated begins."""
        return self._state(*self._next)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: the next FIFO is read up to there, and what comes before is dropped.

        Exact where the stream comes in the same order again, which is checked. Raises ConfigError that names both sides
        if the state is of another data set, policy or buffer.
        """
        place = PipePlace.parse(state)
        policy = dict(state["policy"])
        held = policy.pop("pipe_buffer_bytes", None)
        if held != self.buffer_bytes:
            raise ConfigError(
                f"the state was saved with buffer_bytes={held}, and here it is {self.buffer_bytes}: windows would end "
                "elsewhere. Give the same to shardprep.pipe"
            )
        # Steps are held against the arithmetic of a loader there: those of a pipe are checked when they are come to.
        self.plan, epoch, _ = self.plan.continued({**state, "policy": policy, "step": 0}, slots_given=self._slots_given)
        self._slots_loaded = True
        self._next = self._position = (epoch, place)

    def metrics(self) -> dict[str, Any]:
        """Return what this rank read so far, and where its time went."""
        return self._metrics.snapshot()

    def close(self) -> None:
        """Close the FIFOs, and end the thread that reads them."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch, from the next FIFO. Raises ConfigError where this is one of several ranks, and nobody said which."""
        check_asked(self._unasked)
        epoch, start = self._next
        fifo, self._fifo = self._fifo, self._fifo + 1
        self._next, self._position = (epoch + 1, PipePlace()), (epoch, start)
        self._metrics.began(None if self.channel.is_sharded else self.steps)
        try:
            yield from self._play(epoch, start, fifo)
        finally:
            self._metrics.ended()
        self._position = (epoch + 1, PipePlace())

    # ---- an epoch -------------------------------------------------------------------------------------------------

    def _play(self, epoch: int, start: PipePlace, fifo: int) -> Iterator[Batch]:
        count = RowCount(self._splits, self.channel, self.channel.path(fifo))
        place, is_reached = PipePlace(), False
        if start.window:
            self._tell_of_drop(epoch, start)
        for window in self._windows(fifo):
            if not is_reached and place.window == start.window:
                self._check_same_stream(start, place, epoch)
                place, is_reached = replace(start, prefix=place.prefix), True
            if isinstance(window, End):
                count.finish(window)
                break
            count.add(window)
            schedule = rounds_of(window.histogram, self.plan.buckets, self.plan.policy, epoch, window.index)
            if is_reached:
                yield from self._play_window(epoch, window, schedule, place, count.is_complete)
            place = place.behind(window, schedule.steps, schedule.rounds)
            del window  # while the next one is waited for
        if not is_reached:
            self._check_same_stream(start, place, epoch)

    def _windows(self, fifo: int) -> Iterator[Window | End]:
        """Yield the windows, and tell the metrics of the waits."""
        windows = self._stream.windows(fifo)
        while True:
            started = time.monotonic()
            found = next(windows)
            stopped = time.monotonic()
            self._metrics.waited(started, stopped, [("fetch", started, stopped)])
            read, told = self._stream.bytes_read, self._bytes_told
            self._bytes_told = read
            self._metrics.add(bytes_fetched=read - told)
            yield found
            if isinstance(found, End):
                return
            del found

    def _play_window(
        self, epoch: int, window: Window, schedule: Schedule, place: PipePlace, is_last: bool
    ) -> Iterator[Batch]:
        plan = self.plan
        views, starts = window.views(), window.starts()
        first_round = (place.step - place.window_step) * plan.policy.accumulate
        stop = place.window_step + schedule.steps
        after = (epoch + 1, PipePlace()) if is_last else (epoch, place.behind(window, schedule.steps, schedule.rounds))

        def position(step: int, last: bool) -> tuple[int, PipePlace]:
            """Return where training stands after a micro-batch of a step; last: it is the step's last."""
            if last and step + 1 == stop:
                return after
            return epoch, place.at_step(step + last)

        collator = Collator(plan.pad_id, self._pool)
        chunk = Chunk(0, 0, first_round, schedule.rounds)
        for spec, last in plan.specs(schedule, chunk):
            started = time.monotonic()
            placed = window.placed(spec, starts, place.window_round, place.window_step, epoch)
            batch = collator.batch(
                placed,
                views,
                last_in_step=last,
                state=lambda step, last: self._state(*position(step, last)),
            )
            stopped = time.monotonic()
            self._metrics.waited(started, stopped, [("collate", started, stopped)])
            if last:
                self._position = position(batch.step, last)
            self._metrics.handed(batch)
            self._metrics.playing(batch)
            yield batch
            self._metrics.asked()
            del batch  # its memory goes back while the next one is waited for

    def _check_same_stream(self, start: PipePlace, place: PipePlace, epoch: int) -> None:
        """Raise ConfigError if the rows before a place are not those that were trained on before it was saved."""
        if (place.window, place.records, place.prefix) == (start.window, start.records, start.prefix):
            return
        what = (
            f'the state stands in epoch {epoch} after {start.records:,} records of channel "{self.channel.name}", but the '
            "records that came now are others, or in another order"
        )
        if self.channel.is_shuffled:
            log.warning(
                "%s: a ShuffleConfig does that. Rows of this epoch may be trained on twice, or not at all", what
            )
            return
        raise ConfigError(
            f"{what}: is there a ShuffleConfig on the channel (then give shuffled=True), or another data set? To go on with "
            f"the next epoch instead, call set_epoch({epoch + 1}) after load_state_dict",
            channel=self.channel.name,
        )

    def _tell_of_drop(self, epoch: int, start: PipePlace) -> None:
        rows = sum(split.rows for split in self._splits)
        log.warning(
            'channel "%s": continuing epoch %d after %d of %d records: a pipe cannot seek, so they are read and dropped '
            "now, which takes as long as reading them took before. FastFile mode would not",
            self.channel.name,
            epoch,
            start.records,
            rows,
        )

    @property
    def _counts(self) -> tuple[int, int]:
        """Return the rounds and steps of an epoch whose shards come in order."""
        if self.channel.is_sharded:
            raise TypeError(
                f'the length of channel "{self.channel.name}" is not known: each host gets a part of the shards '
                "(ShardedByS3Key)"
            )
        if self._known is None or self._known[0] is not self.plan:
            rounds = steps = 0
            for index, histogram in enumerate(lengths_by_window(self._splits, self.buffer_bytes)):
                schedule = rounds_of(histogram, self.plan.buckets, self.plan.policy, 0, index)
                rounds, steps = rounds + schedule.rounds, steps + schedule.steps
            self._known = (self.plan, (rounds, steps))
        return self._known[1]

    def _state(self, epoch: int, place: PipePlace) -> dict[str, Any]:
        state = self.plan.state(epoch, place.step).document()
        policy = {**state["policy"], "pipe_buffer_bytes": self.buffer_bytes}
        return {**state, "policy": policy, "pipe": place.document()}
