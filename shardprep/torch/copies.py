"""Copies of batches to a device, and how long training waits for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shardprep.torch.batch import TorchBatch

Waited = Callable[[float], None]  # takes the seconds of a wait


class Copies:
    """Copies in the consumer's thread, which waits for them; on the CPU there is nothing to copy, and no wait."""

    def __init__(self, device: torch.device, waited: Waited) -> None:
        self._device, self._waited = device, waited

    def start(self, batch: TorchBatch) -> tuple[TorchBatch, Any]:
        """Return the batch on the device."""
        if self._device.type == "cpu":
            return batch.to(self._device), None
        started = time.monotonic()
        copy = batch.to(self._device)
        self._waited(time.monotonic() - started)
        return copy, None

    def ready(self, copy: TorchBatch, event: Any) -> TorchBatch:
        """Return the copy."""
        del event
        return copy

    def finish(self) -> None:
        """Do nothing: no copy is under way."""


class GpuCopies:
    """Copies to a GPU on a stream of their own, so that they run beside the training step.

    Nobody waits for them on the processor. Where the stream that trains comes to a batch whose copy is not done, it stands
    still, and that time is the wait: from events before and behind it, read when the GPU has passed them.
    """

    def __init__(self, device: torch.device, waited: Waited) -> None:
        self._device, self._waited = device, waited
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[Any, TorchBatch]] = deque()
        self._stalls: deque[tuple[Any, Any]] = deque()  # events of the stream that trains, before and behind a copy

    def start(self, batch: TorchBatch) -> tuple[TorchBatch, Any]:
        """Begin a copy. The pinned source stays alive until it is done: only then may its memory be used again."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        with torch.cuda.stream(self._stream):
            copy = batch.to(self._device, non_blocking=True)
        event = self._stream.record_event()
        self._under_way.append((event, batch))
        return copy, event

    def ready(self, copy: TorchBatch, event: Any) -> TorchBatch:
        """Let the stream that trains wait for the copy, and the allocator know that it is used there."""
        current = torch.cuda.current_stream(self._device)
        if event.query():
            current.wait_event(event)
        else:
            before = current.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            current.wait_event(event)
            behind = current.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._stalls.append((before, behind))
        self._tell()
        for tensor in copy.tensors():
            tensor.record_stream(current)
        return copy

    def finish(self) -> None:
        """Wait for all copies: then the pool may have the memory they came from."""
        self._stream.synchronize()
        self._under_way.clear()
        self._tell()
        self._stalls.clear()  # the GPU has not come to them yet

    def _tell(self) -> None:
        while self._stalls and self._stalls[0][1].query():
            before, behind = self._stalls.popleft()
            self._waited(before.elapsed_time(behind) / 1000)


def copied_ahead(batches: Iterator[TorchBatch], copies: Copies | GpuCopies, ahead: int) -> Iterator[TorchBatch]:
    """Yield batches on the device, so many of them copied before they are asked for."""
    waiting: deque[tuple[TorchBatch, Any]] = deque()
    try:
        for batch in batches:
            waiting.append(copies.start(batch))
            del batch
            if len(waiting) > ahead:
                yield copies.ready(*waiting.popleft())
        while waiting:
            yield copies.ready(*waiting.popleft())
    finally:
        copies.finish()
