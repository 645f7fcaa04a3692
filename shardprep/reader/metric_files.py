"""Where metrics go: a callback, a text file for Prometheus, a folder of JSON lines."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardprep.errors import ConfigError, StoreError
from shardprep.reader.metrics import Metrics, Sink
from shardprep.reader.steps import StepLog
from shardprep.reader.whole_file import write_whole

CALLBACK_EVERY_S = 10.0
FILE_EVERY_S = 2.0  # a job that is killed loses two seconds of its story
_PREFIX = "shardprep_reader"
_METRICS = (  # name, type, key in the snapshot, help
    (
        "wall_seconds_total",
        "counter",
        "wall_seconds",
        "Time the loader was being iterated, the consumer's work included.",
    ),
    ("batches_total", "counter", "batches", "Micro-batches handed over."),
    ("rows_total", "counter", "rows", "Real rows handed over."),
    ("tokens_total", "counter", "tokens", "Tokens of real rows handed over."),
    ("slots_total", "counter", "slots", "Tokens handed over with padding and filler rows."),
    ("fetched_bytes_total", "counter", "bytes_fetched", "Bytes fetched from storage."),
    ("cache_hits_total", "counter", "cache_hits", "Shards found in the cache of the node."),
    ("cache_misses_total", "counter", "cache_misses", "Shards that were not in the cache of the node."),
    ("first_batch_seconds", "gauge", "first_batch_seconds", "Time to the first batch."),
)


@dataclass
class Callback:
    """Calls a function with the snapshot; what it raises reaches the training loop."""

    function: Callable[[dict[str, Any]], None]
    every_s: float = CALLBACK_EVERY_S

    def write(self, snapshot: dict[str, Any], *, final: bool) -> None:  # noqa: ARG002
        """Call it."""
        self.function(snapshot)


@dataclass
class MetricFile:
    """A file of metrics. If it cannot be written later on, training goes on, with one warning and no more metrics."""

    path: str
    put: Callable[[str, dict[str, Any], bool], None]
    every_s: float = FILE_EVERY_S
    broken: bool = field(default=False, init=False)

    def write(self, snapshot: dict[str, Any], *, final: bool) -> None:
        """Write the snapshot."""
        if self.broken:
            return
        try:
            self.put(self.path, snapshot, final)
        except (OSError, StoreError) as error:
            self.broken = True
            warnings.warn(f"{self.path}: no more metrics are written, training goes on ({error})", stacklevel=2)


def put_prometheus(path: str, snapshot: dict[str, Any], final: bool) -> None:  # noqa: ARG001
    """Replace a text file for the node exporter's textfile collector, whole."""
    write_whole(path, prometheus_text(snapshot).encode(), durable=False)


def append_line(path: str, snapshot: dict[str, Any], final: bool, *, steps: StepLog) -> None:
    """Append the snapshot as a line of JSON, with time (Unix seconds), pid, final, and the steps since the last line."""
    about = {"time": time.time(), "pid": os.getpid(), "final": final}
    played = {"steps_per_epoch": steps.steps_per_epoch, "steps": steps.take()}
    line = json.dumps({**about, **snapshot, **played}) + "\n"
    # Opened for each line: nothing to close, nothing shared with a forked child. One write keeps lines whole.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def metrics_of(
    *,
    rank: int = 0,
    world_size: int = 1,
    split: str = "",
    folder: str | None = None,
    prometheus: str | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    callback_every_s: float = CALLBACK_EVERY_S,
) -> Metrics:
    """Return a loader's metrics with the outlets asked for.

    folder      gets {split}-rank-{rank}.jsonl, with a line every 2 s and one at the end
    prometheus  path of a text file; {rank} and {split} in it are filled in, since each rank needs a file of its own.
                Shares come from rates: rate(shardprep_reader_wait_seconds_total) / rate(shardprep_reader_wall_seconds_total)
    callback    called with the snapshot every so many seconds, and at the end
    Raises ConfigError if a folder cannot be made or written to: at once, not in the middle of training.
    """
    sinks: list[Sink] = []
    steps = None
    if folder is not None:
        name = f"{_in_a_name(split) or 'loader'}-rank-{rank:05d}.jsonl"
        steps = StepLog()
        sinks.append(MetricFile(os.path.join(_writable(folder), name), partial(append_line, steps=steps)))
    if prometheus is not None:
        path = prometheus.replace("{rank}", str(rank)).replace("{split}", _in_a_name(split))
        _writable(os.path.dirname(path) or ".")
        sinks.append(MetricFile(path, put_prometheus))
    if callback is not None:
        sinks.append(Callback(callback, callback_every_s))
    return Metrics(rank=rank, world_size=world_size, split=split, sinks=sinks, steps=steps)


def prometheus_text(snapshot: dict[str, Any]) -> str:
    """Return a snapshot in Prometheus' text format, version 0.0.4."""
    labels = f'rank="{snapshot["rank"]}",split="{_escaped(snapshot["split"])}"'
    lines = _head("wait_seconds_total", "counter", "Time the consumer waited for data, by what was waited for.")
    lines += [
        f'{_PREFIX}_wait_seconds_total{{{labels},cause="{cause}"}} {seconds}'
        for cause, seconds in snapshot["wait_seconds_by_cause"].items()
    ]
    for name, kind, key, text in _METRICS:
        if snapshot[key] is not None:
            lines += [*_head(name, kind, text), f"{_PREFIX}_{name}{{{labels}}} {snapshot[key]}"]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {_PREFIX}_{name} {text}", f"# TYPE {_PREFIX}_{name} {kind}"]


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _in_a_name(split: str) -> str:
    return re.sub(r"[^\w.-]", "_", split)


def _writable(folder: str) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "no permission to write"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise ConfigError(f"metrics cannot be written to {folder} ({reason}); name another folder, or none")
    return folder
