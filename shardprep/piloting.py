"""A pilot inside a training loop: `with shardprep.pilot(...) as pilot`, `for batch in pilot.watch(loader)`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shardprep.errors import ConfigError, PilotError
from shardprep.reader.steps import StepLog
from shardprep.report.pilot_flops import Model
from shardprep.report.pilot_gpu import GpuSampler, sampler_of_this_node
from shardprep.report.pilot_question import Question
from shardprep.report.pilot_rates import LEAST_STEPS
from shardprep.report.pilot_run import check_writable, document_of
from shardprep.report.pilot_steps import RankSteps, common_steps
from shardprep.report.pilot_text import pilot_text


def pilot(
    *,
    steps: int = 300,
    out: str | Path | None = None,
    html: str | Path | None = None,
    confidence: float = 0.95,
    price_per_hour: float | None = None,
    total_steps: int | None = None,
    passes: float = 1,
    params: float | None = None,
    trainable: float | None = None,
    frozen_lower: float = 0,
    layers: int | None = None,
    width: int | None = None,
    checkpointing: bool = False,
    peak_flops: float | None = None,
    gpu: str | None = None,
) -> Pilot:
    """Measure some steps of a loop and say what the whole run takes; the settings are those of `shardprep pilot`.

    steps      to play; `watch` ends after them
    out, html  files for the result and its page, written at the end of the block

    Raises ConfigError if a value is out of range, or a file cannot be written.
    """
    if steps <= LEAST_STEPS:  # the first one is never counted
        raise ConfigError(f"steps must be at least {LEAST_STEPS + 1}, to say how fast they are; got {steps}")
    if params is None and not (trainable is None and layers is None and width is None):
        raise ConfigError("trainable, layers and width need params")
    for path in filter(None, (out, html)):
        check_writable(str(path))
    model = None if params is None else Model(params, trainable, frozen_lower, layers, width, checkpointing)
    question = Question(
        confidence=confidence,
        model=model,
        gpu=gpu,
        peak_flops=peak_flops,
        usd_per_hour=price_per_hour,
        steps=total_steps,
        passes=passes,
    )
    return Pilot(question, steps=steps, out=out, html=html, sampler=sampler_of_this_node())


class Pilot:
    """A pilot of this process's rank; made by `shardprep.pilot`. Other ranks make their own, and know nothing of each other.

    result  the content of pilot.json, after the block
    """

    def __init__(
        self, question: Question, *, steps: int, out: str | Path | None, html: str | Path | None, sampler: GpuSampler
    ) -> None:
        self._question, self._steps, self._sampler = question, steps, sampler
        self._files = {"out": out, "html": html}
        self._log = StepLog()
        self._about: tuple[str, int, int] | None = None
        self._started: float | None = None
        self.result: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._started = time.time()
        self._sampler.__enter__()
        return self

    def watch(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of an epoch of a Loader or TorchLoader, until the pilot has its steps."""
        inner = getattr(loader, "loader", loader)
        inner.log_steps(self._log)
        told = inner.metrics()
        self._about = (told["split"], told["rank"], told["world_size"])
        if not self.done:
            for batch in loader:  # the step before it ended when it was asked for: a next step is not begun
                if self.done:
                    return
                yield batch

    @property
    def done(self) -> bool:
        """Tell whether the pilot has its steps."""
        return self._log.count >= self._steps

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, trace)
        if error is not None:
            return
        if self._about is None:
            raise PilotError("the pilot saw no step: iterate over pilot.watch(loader)")
        steps = RankSteps(*self._about, steps_per_epoch=self._log.steps_per_epoch)
        steps.extend(self._log.take())
        self.result = document_of(
            common_steps([steps]).part(0, self._steps), self._question, self._started, self._sampler
        )
        self._write()

    def text(self) -> str:
        """Return the result as lines for a person."""
        return pilot_text(self.result)

    def _write(self) -> None:
        if self._files["out"]:
            text = json.dumps(self.result, ensure_ascii=False, indent=2) + "\n"
            Path(self._files["out"]).write_text(text, encoding="utf-8")
        if self._files["html"]:
            from shardprep.report.pilot_page import pilot_page

            Path(self._files["html"]).write_text(pilot_page(self.result), encoding="utf-8")
