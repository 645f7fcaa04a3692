"""GPUs are sampled through a stand-in for NVML: there is none where these tests run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from shardprep.report.pilot_gpu import GpuSampler, find_nvml


class NVMLError(Exception):
    pass


@dataclass
class Nvml:
    """Two GPUs, or as many as there are percentages; fails on demand."""

    percents: list[int] = field(default_factory=lambda: [80, 60])
    used: list[int] = field(default_factory=lambda: [10, 12])
    no_driver: bool = False
    fails_after: int = 10**9
    looks: int = 0
    open: int = 0
    NVMLError = NVMLError

    def nvmlInit(self):
        if self.no_driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.percents)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.percents):
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-b": 1}[uuid]

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA L4" if handle == 0 else "NVIDIA A10G"  # bytes in old versions of nvidia-ml-py

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.looks += 1
        if self.looks > self.fails_after:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(gpu=self.percents[handle], memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=self.used[handle] * 10**9, total=24 * 10**9, free=0)


def sampled(nvml, looks=6, **settings):
    with GpuSampler(nvml, every_s=0.001, **settings) as sampler:
        deadline = time.monotonic() + 200
        while nvml.looks < looks and not sampler.problem and time.monotonic() < deadline:
            time.sleep(0.002)
    assert nvml.open == 0
    return sampler


def test_utilization_is_the_mean_and_memory_the_most_of_the_fullest():
    use = sampled(Nvml()).use()
    assert use.document() == {
        "name": "NVIDIA A10G",
        "count": 2,
        "utilization": pytest.approx(0.7, abs=0.05),
        "memory_used_bytes": 12 * 10**9,
        "memory_total_bytes": 24 * 10**9,
        "samples": use.samples,
    }
    assert use.samples >= 5


def test_gpus_without_work_do_not_count_while_another_has_some():
    use = sampled(Nvml(percents=[0, 90], used=[20, 3])).use()
    assert (use.count, use.utilization, use.memory_used_bytes) == (1, pytest.approx(0.9), 3 * 10**9)
    assert sampled(Nvml(percents=[0, 0])).use().utilization == 0


@pytest.mark.parametrize(("visible", "name"), [("1", "NVIDIA A10G"), ("0", "NVIDIA L4"), ("GPU-b", "NVIDIA A10G")])
def test_only_the_visible_gpus_are_looked_at(visible, name):
    use = sampled(Nvml(), visible=visible).use()
    assert (use.count, use.name) == (1, name)


def test_only_samples_between_two_times_count():
    now = iter(range(10**9))
    sampler = sampled(Nvml(percents=[50], used=[1]), unix_clock=lambda: next(now))
    assert sampler.use(0, 2).samples == 3
    assert sampler.use(10**9) is None


@pytest.mark.parametrize(
    ("nvml", "says"),
    [
        (Nvml(no_driver=True), "no GPU was looked at: Driver Not Loaded"),
        (Nvml(fails_after=4), "the GPUs were looked at until NVML said: GPU is lost"),
    ],
)
def test_what_goes_wrong_is_said_and_ends_nothing(nvml, says):
    sampler = sampled(nvml, looks=6)
    assert sampler.problem == says
    assert (sampler.use() is None) == nvml.no_driver


def test_a_gpu_that_is_not_there_is_said():
    assert "Invalid Argument" in sampled(Nvml(), visible="7").problem


def test_without_nvml_nothing_is_sampled():
    with GpuSampler(None) as sampler:
        assert "shardprep[gpu]" in sampler.problem
    assert sampler.use() is None


def test_the_module_is_found_where_it_is_installed(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(here=True))
    assert find_nvml().here
