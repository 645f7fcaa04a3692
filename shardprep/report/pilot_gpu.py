"""Utilisation and memory of the GPUs of this node while a pilot runs, by NVML (nvidia-ml-py, the extra `gpu`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

EVERY_S = 1.0  # NVML's own sample period is between 1/6 and 1 s
BUSY_PERCENT = 5


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the GPUs did: utilization is the share of time in which a kernel ran, mean over time and the GPUs in use."""

    name: str
    count: int
    utilization: float
    memory_used_bytes: int  # most, of the GPU that used most
    memory_total_bytes: int  # of that GPU
    samples: int

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    gpu: int
    percent: int
    used_bytes: int
    total_bytes: int


class GpuSampler:
    """Looks at the GPUs every second, in a thread, between `with` and its end.

    nvml  the module pynvml, or None: nothing is sampled. What goes wrong is in `problem`; it does not end the pilot
    """

    def __init__(
        self,
        nvml: Any,
        *,
        visible: str | None = None,
        every_s: float = EVERY_S,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._nvml, self._visible, self._every_s, self._unix_clock = nvml, visible, every_s, unix_clock
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._open = False
        self._samples: list[_Sample] = []
        self._names: list[str] = []
        self.problem = (
            "" if nvml is not None else "no GPU was looked at: nvidia-ml-py is not installed (shardprep[gpu])"
        )

    def __enter__(self) -> Self:
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
                self._open = True
                handles = _handles(self._nvml, self._visible)
                self._names = [_text(self._nvml.nvmlDeviceGetName(handle)) for handle in handles]
            except self._nvml.NVMLError as error:
                self.problem = f"no GPU was looked at: {error}"
            else:
                self._thread = threading.Thread(target=self._look, args=(handles,), name="shardprep-gpus", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _look(self, handles: list[Any]) -> None:
        try:
            while not self._end.wait(self._every_s):
                now = self._unix_clock()
                for number, handle in enumerate(handles):
                    percent = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                    memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                    self._samples.append(_Sample(now, number, percent, int(memory.used), int(memory.total)))
        except self._nvml.NVMLError as error:
            self.problem = f"the GPUs were looked at until NVML said: {error}"

    def use(self, start: float = float("-inf"), stop: float = float("inf")) -> GpuUse | None:
        """Return what the GPUs did between two times, in Unix seconds; None if nothing was seen.

        GPUs that never had work do not count, as long as one had: the job may use only some of the node's.
        """
        seen = [sample for sample in self._samples if start <= sample.time <= stop]
        busy = {sample.gpu for sample in seen if sample.percent >= BUSY_PERCENT}
        counted = [sample for sample in seen if sample.gpu in busy or not busy]
        if not counted:
            return None
        fullest = max(counted, key=lambda sample: sample.used_bytes / max(1, sample.total_bytes))
        return GpuUse(
            name=self._names[fullest.gpu],
            count=len({sample.gpu for sample in counted}),
            utilization=sum(sample.percent for sample in counted) / len(counted) / 100,
            memory_used_bytes=fullest.used_bytes,
            memory_total_bytes=fullest.total_bytes,
            samples=len(counted),
        )


def find_nvml() -> Any:
    """Return the module pynvml, or None if it is not installed."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return pynvml


def sampler_of_this_node() -> GpuSampler:
    """Return a sampler of the GPUs that $CUDA_VISIBLE_DEVICES names, or all."""
    return GpuSampler(find_nvml(), visible=os.environ.get("CUDA_VISIBLE_DEVICES"))


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    """Return the handles of the visible GPUs: numbers or UUIDs, as CUDA takes them; MIG slices count with their GPU."""
    if not visible:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit():
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(name)))
        elif name.startswith(("GPU-", "MIG-")):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(name))
    return handles


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
