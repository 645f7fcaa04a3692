"""One rank of a training run, as real loops are written, in a process of its own that may be killed at any instant.

    training_process.py JOB RANK     a fresh process
    training_process.py --serve      forks a process for each rank of each job named on standard input: 1,000 runs in minutes

What a real loop does, and what this one does:

1. All ranks load the newest state that was saved, beside the model of the same step.
2. Each rank computes gradients of its micro-batches of a step. Here: it logs their rows, one line a step.
3. The gradients are reduced over all ranks: nobody goes on before everybody has come. Here: a barrier over TCP.
4. The optimizer steps. One rank, any, saves the model and `loader.state_dict()`; the others go on meanwhile.

So a step counts as finished when the state behind it was saved: then all ranks have logged it (3 comes before 4), and the
next run starts behind it. A rank that is killed between 3 and 4 takes with it a step that was computed but not kept: the
next run starts from the model before it and computes it again, so the lines about it in this run's logs do not count.
Where one rank alone is killed, the others fail in their next reduction, and end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import shardprep
from shardprep.reader import dataset as _loaded_before_the_fork  # noqa: F401
from shardprep.reader.history import StateHistory

PEER_DIED = 3
MEET_S = 300.0


class Team:
    """The ranks of one run: a star of TCP connections around rank 0."""

    def __init__(self, rank: int, world: int, meeting: Path) -> None:
        self._others: list[socket.socket] = []
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.settimeout(MEET_S)
                meeting.with_suffix(".new").write_text(str(server.getsockname()[1]))
                meeting.with_suffix(".new").rename(meeting)
                self._others = [server.accept()[0] for _ in range(world - 1)]
        else:
            deadline = time.monotonic() + MEET_S
            while not meeting.exists():
                if time.monotonic() > deadline:
                    raise ConnectionError("rank 0 does not come")
                time.sleep(0.002)
            self._others = [socket.create_connection(("127.0.0.1", int(meeting.read_text())), MEET_S)]
        self._leads = rank == 0

    def barrier(self) -> None:
        """Wait for all ranks. Raises ConnectionError if one of them is gone."""
        for send in (not self._leads, self._leads):
            for other in self._others:
                if send:
                    other.sendall(b".")
                elif other.recv(1) != b".":
                    raise ConnectionError("a rank is gone")


def train(job: dict[str, Any], rank: int) -> None:
    """Play epochs up to job["epochs"], from where the last run stood."""
    world = job["world"]
    dataset = shardprep.open(job["uri"], cache_dir=job["cache_dir"], cache_limit_bytes=job["cache_limit_bytes"])
    loader = dataset.loader("train", rank=rank, world_size=world, num_threads=job["threads"], **job["policy"])
    history = StateHistory(job["states"], keep=3)
    state = history.load()
    if state is not None:
        loader.load_state_dict(state)
    team = Team(rank, world, Path(job["logs"], f"{job['run']}.port"))
    with open(Path(job["logs"], f"{job['run']}-{rank}.jsonl"), "ab", buffering=0) as log:
        while (epoch := loader.upcoming_state()["epoch"]) < job["epochs"]:
            rows: list[str] = []
            shapes: list[Any] = []
            for batch in loader:
                rows += [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]
                shapes.append([batch.round, *batch.input_ids.shape])
                if batch.last_in_step:
                    line = {"epoch": epoch, "step": batch.step, "rows": rows, "shapes": shapes, "all": batch.step_rows}
                    log.write(json.dumps(line).encode() + b"\n")
                    rows, shapes = [], []
                    time.sleep(job["step_seconds"])
                    team.barrier()
                    assert batch.state() == loader.state_dict()
                    if rank == job["saver"]:
                        history.save(epoch * loader.steps + batch.step + 1, loader.state_dict())
    team.barrier()


def one_rank(job: dict[str, Any], rank: int) -> int:
    """Train; leave a note on how it ended, unless killed. Return the exit code."""
    end = Path(job["logs"], f"{job['run']}-{rank}.end")
    try:
        train(job, rank)
    except ConnectionError:
        end.write_text("a rank is gone")
        return PEER_DIED
    except BaseException:
        end.write_text(traceback.format_exc())
        return 1
    end.write_text("done")
    return 0


def serve() -> None:
    """Fork the ranks of one job a line; answer with their process ids."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the dead
    for line in sys.stdin:
        job = json.loads(Path(line.strip()).read_text())
        pids = []
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                with suppress(OSError):
                    os.close(0)
                os._exit(one_rank(job, rank))
            pids.append(pid)
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    else:
        sys.exit(one_rank(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
