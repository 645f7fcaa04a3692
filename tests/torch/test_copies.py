"""Waits for copies to a device: none on the CPU, the consumer's own elsewhere, and on a GPU how long its stream stood still.

No GPU here: streams and events are stand-ins on a timeline of the test.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from shardprep.torch import TorchLoader
from shardprep.torch.copies import GpuCopies, copied_ahead


@pytest.mark.parametrize(("device", "prefetch"), [("cpu", 0), ("cpu", 2), ("meta", 0), ("meta", 1)])
def test_copies_are_counted_where_there_are_any(dataset, device, prefetch):
    loader = TorchLoader(dataset.loader(batch_tokens=2_000), device=device, prefetch=prefetch)
    for _ in loader:
        pass
    told = loader.metrics()
    causes = told["wait_seconds_by_cause"]
    assert (causes["copy"] > 0) == (device != "cpu")
    assert sum(causes.values()) == pytest.approx(told["wait_seconds"])


class Gpu:
    """One GPU: `now` is how far the host is; a copy takes `copy_s`, a step `step_s`, and events know when they come."""

    def __init__(self, copy_s, step_s):
        self.now, self.copy_s, self.step_s = 0.0, copy_s, step_s
        self.training = Stream(self)

    def install(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(self))
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.training)
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(self))


class Stream:
    def __init__(self, gpu):
        self.gpu, self.busy_until = gpu, 0.0

    def run(self, seconds):
        self.busy_until = max(self.busy_until, self.gpu.now) + seconds

    def record_event(self, event=None):
        if event is None:  # behind a copy
            event = Event(self.gpu)
            self.run(self.gpu.copy_s)
        event.at = max(self.busy_until, self.gpu.now)
        return event

    def wait_event(self, event):
        self.busy_until = max(self.busy_until, event.at)

    def synchronize(self):
        self.gpu.now = max(self.gpu.now, self.busy_until)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, 0.0

    def query(self):
        return self.at <= self.gpu.now

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


@pytest.mark.parametrize(
    ("copy_s", "step_s", "least", "most"),
    [(3.0, 1.0, 18.0, 22.0), (1.0, 3.0, 0.0, 1.0)],  # 10 batches: the first is waited for, then copies run beside steps
)
def test_a_gpu_that_waits_for_copies(monkeypatch, copy_s, step_s, least, most):
    gpu, waits = Gpu(copy_s, step_s), []
    gpu.install(monkeypatch)
    copies = GpuCopies(torch.device("cuda"), waits.append)
    batches = (SimpleNamespace(n=n, to=lambda *_, n=n, **__: SimpleNamespace(n=n, tensors=list)) for n in range(10))
    seen = []
    for batch in copied_ahead(batches, copies, 2):
        seen.append(batch.n)
        gpu.training.run(step_s)
        gpu.training.synchronize()  # loss.item()
    assert seen == list(range(10))
    assert least <= sum(waits) <= most
