"""Channels in Pipe mode for the tests: real FIFOs, a process that feeds them, and what a loop sees of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import shardprep

FEED = Path(__file__).parent / "feed.py"
BUFFER = 1 << 16  # the smallest: many windows of few rows
END_S = 300


def shards_of(uri, split="train"):
    return [str(path) for path in sorted(Path(uri).glob(f"*/{split}/*.rec"))]


class Channel:
    """A folder in place of /opt/ml, with FIFOs of some channels."""

    def __init__(self, root, uri):
        self.root, self.uri = root, uri
        self.data = root / "input" / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._feeders = []

    def path(self, number, name="train"):
        return str(self.data / f"{name}_{number}")

    def job(self, number, name="train", make=True, **more):
        """Return what the feeder is told about a FIFO; make: it is there from the beginning."""
        if make and not os.path.exists(self.path(number, name)):
            os.mkfifo(self.path(number, name))
        return {"path": self.path(number, name), "files": shards_of(self.uri), **more}

    def feed(self, *jobs):
        """Begin to feed FIFOs, in their order, from a process of its own."""
        command = [sys.executable, "-I", "-S", str(FEED), json.dumps(jobs)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._feeders.append(process)
        return process

    def pipe(self, name="train", **settings):
        """Return a loader of a channel."""
        given = {"manifest": self.uri, "batch_tokens": 1000, "buffer_bytes": BUFFER, "timeout_s": END_S, **settings}
        return shardprep.pipe(name, root=self.root, **given)

    def end(self):
        for process in self._feeders:
            process.kill()
            process.communicate()


def ended(feeder):
    """Wait for a feeder; return what became of each FIFO."""
    out, _ = feeder.communicate(timeout=END_S)
    assert feeder.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def check(batch):
    """A row's tokens are its id and one, as `NumberTokens` makes them."""
    for row, (name, length) in enumerate(zip(batch.ids, batch.lengths.tolist(), strict=True)):
        assert (batch.input_ids[row, :length] == int(name) + 1).all()
        assert (batch.input_ids[row, length:] == 0).all()
        assert batch.columns["label"][row] == (int(name) % 10 if batch.weight[row] else -100)
        assert batch.columns["note"][row] == f"n{name}"
    assert batch.attention_mask.sum() == batch.lengths.sum()


def real_ids(batch):
    return [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]


def play(pipe):
    """Play an epoch; return (ids, shape, step, last in step) of each batch."""
    out = []
    for batch in pipe:
        check(batch)
        out.append((tuple(real_ids(batch)), batch.input_ids.shape, batch.step, batch.last_in_step))
    return out


def counted(batches):
    return Counter(name for ids, *_ in batches for name in ids)


@contextmanager
def channel_in(root, uri):
    channel = Channel(root, uri)
    try:
        yield channel
    finally:
        channel.end()
