"""EpochBoard: how the copies of a data set in DataLoader workers agree on which epoch they play.

DataLoader tells its workers nothing: neither set_epoch in the main process nor how often it was iterated reaches them. So
they look at a small file without a name, which forked and spawned workers inherit open. It is on disk, not in shared
memory, and goes away with the last process that has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any, NamedTuple

KEPT = 16  # iterations that late workers may still join


class Start(NamedTuple):
    """Where an iteration begins, with how many slots a round."""

    epoch: int
    step: int
    slots: int


class Member(NamedTuple):
    """A worker that begins an iteration.

    key    the same in all workers of one DataLoader iterator, None in the main process
    turn   how often this worker has begun one
    """

    key: int | None
    turn: int
    worker: int
    workers: int


class EpochBoard:
    """The next epoch, and the iterations that were begun, in a file that processes share."""

    def __init__(self, start: Start) -> None:
        file, path = tempfile.mkstemp(prefix="shardprep-epochs-")
        os.unlink(path)
        self._file = file
        self._write({"next": list(start), "begun": []})

    def __del__(self) -> None:
        os.close(self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is not None:
            return _joined, (reduction.DupFd(self._file),)
        return EpochBoard, (self.upcoming,)  # a copy that goes its own way

    @property
    def upcoming(self) -> Start:
        """Return where the next iteration begins."""
        with self._locked():
            return Start(*self._read()["next"])

    @upcoming.setter
    def upcoming(self, start: Start) -> None:
        with self._locked():
            self._write({**self._read(), "next": list(start)})

    def begin(self, member: Member, at: Start | None = None) -> Start:
        """Return where the iteration that this worker joins begins; the first one to come opens it, `at` if that is given.

        A worker joins the newest iteration of its DataLoader that it is not in yet and whose members all live: those of one
        that was broken off do not.
        """
        key = [member.key, member.turn, member.workers]
        with self._locked():
            board = self._read()
            for entry in reversed(board["begun"]):
                if entry["key"] == key and str(member.worker) not in entry["members"] and _all_live(entry["members"]):
                    break
            else:
                entry = {"key": key, "start": list(at or board["next"]), "members": {}}
                board["begun"] = [*board["begun"], entry][-KEPT:]
                board["next"] = [entry["start"][0] + 1, 0, entry["start"][2]]
            entry["members"][str(member.worker)] = os.getpid()
            self._write(board)
            return Start(*entry["start"])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # lockf, not flock: forked processes share the open file
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> dict[str, Any]:
        board: dict[str, Any] = json.loads(os.pread(self._file, os.fstat(self._file).st_size, 0))
        return board

    def _write(self, board: dict[str, Any]) -> None:
        data = json.dumps(board).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))


def _joined(file: Any) -> EpochBoard:
    board = object.__new__(EpochBoard)
    board._file = file.detach()
    return board


def _all_live(members: dict[str, int]) -> bool:
    for pid in members.values():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            continue
    return True
