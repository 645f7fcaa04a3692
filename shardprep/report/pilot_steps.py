"""The steps that the loaders of a run wrote to $SHARDPREP_METRICS_DIR, rank by rank."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import ConfigError
from shardprep.reader.steps import CAUSES, COLUMNS

Floats = NDArray[np.float64]


@dataclass
class RankSteps:
    """Steps of one rank, in order.

    columns  by the names of reader/steps.py, each a list (steps,)
    """

    split: str
    rank: int
    world_size: int
    steps_per_epoch: int | None = None
    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    pid: int = 0

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of the rank's file. A new process, after a restart, begins anew."""
        if line["pid"] != self.pid:
            self.pid, self.columns = line["pid"], {name: [] for name in COLUMNS}
        self.steps_per_epoch = line.get("steps_per_epoch") or self.steps_per_epoch
        self.extend(line.get("steps", {}))

    def extend(self, steps: Mapping[str, list[float]]) -> None:
        """Add what `StepLog.take` gave."""
        for name, values in steps.items():
            self.columns[name].extend(values)


class MetricsFolder:
    """A folder of metrics, read on as its files grow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self._ranks: dict[tuple[str, int], RankSteps] = {}

    def update(self) -> None:
        """Read the whole lines that were added since the last time."""
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            if name.endswith(".jsonl") and os.path.isfile(path):
                with open(path, "rb") as file:
                    file.seek(self._read.get(path, 0))
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]  # a process that was killed may leave half a line
                self._read[path] = self._read.get(path, 0) + len(whole)
                for line in whole.splitlines():
                    self._add(_told(line))

    def awaits(self, split: str | None, steps: int) -> bool:
        """Tell whether a split that is named may still come: until another one has been read for so many steps."""
        return (
            split not in (None, *(name for name, _ in self._ranks))
            and max(map(len, self._ranks.values()), default=0) < steps
        )

    def ranks(self, split: str | None = None) -> list[RankSteps]:
        """Return the ranks of a split, by number: the one that is named, else train, else the one with most steps."""
        splits = {name for name, _ in self._ranks}
        if split is None and splits:
            most = max(sorted(splits), key=lambda name: sum(len(r) for (s, _), r in self._ranks.items() if s == name))
            split = "train" if "train" in splits else most
        elif split is not None and splits and split not in splits:
            raise ConfigError(f'no loader read the split "{split}"; the command read {", ".join(sorted(splits))}')
        return [steps for (name, _), steps in sorted(self._ranks.items()) if name == split]

    def _add(self, line: Mapping[str, Any]) -> None:
        if not line.keys() >= {"split", "rank", "world_size", "pid"}:
            return  # the command's own file: nobody forbids it to write there
        key = (line["split"], line["rank"])
        if key not in self._ranks:
            self._ranks[key] = RankSteps(line["split"], line["rank"], line["world_size"])
        self._ranks[key].add(line)


def _told(line: bytes) -> Mapping[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@dataclass(frozen=True)
class Steps:
    """Steps that all ranks have played, in order: each column is float64 (ranks, steps)."""

    split: str
    ranks: tuple[int, ...]
    world_size: int
    steps_per_epoch: int | None
    columns: Mapping[str, Floats]

    def __len__(self) -> int:
        return int(self.columns["seconds"].shape[1])

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def part(self, start: int, stop: int | None = None) -> Steps:
        """Return the steps from start on, up to stop."""
        cut = {name: values[:, start:stop] for name, values in self.columns.items()}
        return Steps(self.split, self.ranks, self.world_size, self.steps_per_epoch, cut)

    @property
    def wait_by_cause(self) -> dict[str, float]:
        """Return the seconds waited, by what was waited for, mean over ranks."""
        return {cause: float(self[f"wait_{cause}_seconds"].sum(1).mean()) for cause in CAUSES}

    @property
    def seconds(self) -> Floats:
        """Return the time of each step, float64 (steps,): of the rank that took longest over all of them."""
        slowest = int(self["seconds"].sum(1).argmax())
        seconds: Floats = self["seconds"][slowest]
        return seconds

    @property
    def slots(self) -> Floats:
        """Return the tokens through the model in each step, float64 (steps,), over all ranks, those not seen included.

        A round has one shape for all ranks, so the ranks that were not seen played as many as the others.
        """
        slots: Floats = self["slots"].sum(0) * self.world_size / len(self.ranks)
        return slots


def common_steps(ranks: Iterable[RankSteps]) -> Steps:
    """Return the steps that all of these ranks played: they play the same ones, in one order. There is at least one rank."""
    ranks = list(ranks)
    steps = min(map(len, ranks))
    columns = {name: np.array([r.columns[name][:steps] for r in ranks], np.float64) for name in COLUMNS}
    first = ranks[0]
    return Steps(first.split, tuple(r.rank for r in ranks), first.world_size, first.steps_per_epoch, columns)
