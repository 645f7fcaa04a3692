"""StateHistory: the loader's states by step, so that a model checkpoint finds the state of its own step."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from shardprep.errors import ConfigError, StoreError
from shardprep.reader.whole_file import write_whole

FORMAT = "shardprep reader state"
VERSION = 1
SIZE_MAX_BYTES = 64 * 1024  # a state is under 1 KB: anything much larger is not one
STALE_S = 3600  # a temporary file of this age belongs to a dead process
_NAME = re.compile(r"state-(\d{12})-(\d{6,})\.json")
_TEMPORARY = re.compile(r"\.state-.*\.tmp")


class _Entry(NamedTuple):
    """A file of the history."""

    save: int  # 1, 2, 3 ... in the order of saving
    step: int
    name: str


class StateHistory:
    """The last few states in a folder, one JSON file each.

    A file appears whole, by a rename: whoever copies the folder at any moment copies states that can be read. Save on one
    rank only: a state serves all ranks. Other files of the folder are left alone.

    folder  made when the first state is saved
    keep    how many states stay, the ones saved last
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 5) -> None:
        if keep < 1:
            raise ConfigError(f"keep must be at least 1, got {keep}")
        self.folder = os.path.abspath(folder)
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> str:
        """Write the state at a step of the training run, and return its file's path; a state of the same step is replaced.

        step: any number that names the checkpoint, at least 0, such as the optimizer steps so far over all epochs.
        Raises ConfigError if the state is not plain JSON or too large, StoreError (Full) if it cannot be written; the older
        states are then all there.
        """
        if not 0 <= step < 10**12:
            raise ConfigError(f"the step must be in [0, 10**12), got {step}")
        entries = self._entries()
        save = max((entry.save for entry in entries), default=0) + 1
        data = _document(step, save, state)
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: the folder cannot be made ({error.strerror})", uri=self.folder) from error
        path = os.path.join(self.folder, f"state-{step:012d}-{save:06d}.json")
        write_whole(path, data, durable=True)
        older = [entry for entry in entries if entry.step != step]
        gone = [entry.name for entry in entries if entry.step == step]
        gone += [entry.name for entry in sorted(older)[: max(0, len(older) + 1 - self.keep)]]
        for name in [*gone, *self._stale()]:
            with suppress(FileNotFoundError):  # another process cleans up as well
                os.unlink(os.path.join(self.folder, name))
        return path

    def load(self, step: int | None = None) -> dict[str, Any] | None:
        """Return the state saved last, or the newest at or before a step; None if the folder has no state.

        With a step, a state of that very step is what a checkpoint needs; one from before it plays the rows since then
        again. Raises StoreError that names the file if it is cut, changed, or not a state of this history, or if all states
        are of later steps: training must not start at 0 unnoticed.
        """
        while True:
            entry = self._chosen(step)
            if entry is None:
                return None
            path = os.path.join(self.folder, entry.name)
            try:
                data = self._read(path)
            except FileNotFoundError:
                continue  # a save in another process removed it just now: look again
            return self._parsed(path, entry, data)

    def whole(self, step: int | None = None) -> Iterator[tuple[int, str, dict[str, Any] | StoreError]]:
        """Yield step, path and state of all states (at or before a step), the one that `load` would choose first.

        A file that is cut or changed gives the error that says so in place of its state; one that is removed meanwhile is
        passed over.
        """
        entries = [entry for entry in self._entries() if step is None or entry.step <= step]
        for entry in sorted(entries, key=lambda entry: entry if step is None else entry[1::-1], reverse=True):
            path = os.path.join(self.folder, entry.name)
            try:
                data = self._read(path)
            except FileNotFoundError:
                continue
            try:
                yield entry.step, path, self._parsed(path, entry, data)
            except StoreError as error:
                yield entry.step, path, error

    def steps(self) -> list[int]:
        """Return the steps of all states, in the order of saving."""
        return [entry.step for entry in sorted(self._entries())]

    def _chosen(self, step: int | None) -> _Entry | None:
        entries = self._entries() or self._entries()  # a listing may miss both of a new file and the one it replaces
        if step is None or not entries:
            return max(entries, default=None)
        before = [entry for entry in entries if entry.step <= step]
        if not before and step > 0:
            first = min(entry.step for entry in entries)
            raise StoreError(
                f"{self.folder}: no state at or before step {step}, the earliest is of step {first}. Load a later model "
                "checkpoint, keep more states (keep=), or start the epoch anew on purpose, without this history",
                uri=self.folder,
            )
        return max(before, key=lambda entry: (entry.step, entry.save), default=None)

    def _entries(self) -> list[_Entry]:
        found = (_NAME.fullmatch(name) for name in self._names())
        return [_Entry(int(match[2]), int(match[1]), match[0]) for match in found if match]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.folder}: it cannot be listed ({error.strerror})", uri=self.folder) from error

    def _read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(SIZE_MAX_BYTES + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{path}: it cannot be read ({error.strerror})", uri=path) from error

    def _stale(self) -> list[str]:
        """Return temporary files that a killed process left here."""
        stale = []
        for name in filter(_TEMPORARY.fullmatch, self._names()):
            with suppress(FileNotFoundError):
                if time.time() - os.stat(os.path.join(self.folder, name)).st_mtime > STALE_S:
                    stale.append(name)
        return stale

    def _parsed(self, path: str, entry: _Entry, data: bytes) -> dict[str, Any]:
        others = sorted({other.step for other in self._entries() if other.name != entry.name})
        advice = f"states of other steps are there: {others}; " if others else "no other state is there; "
        advice += "remove this file to leave it out"
        if len(data) > SIZE_MAX_BYTES:
            raise StoreError(f"{path}: larger than {SIZE_MAX_BYTES} bytes, so not a reader state; {advice}", uri=path)
        try:
            document = json.loads(data, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{path}: not whole, JSON ends or breaks after {len(data)} bytes ({error}); {advice}", uri=path
            ) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise StoreError(f"{path}: JSON, but not a reader state; {advice}", uri=path)
        if document.get("version") != VERSION:
            got = document.get("version")
            raise StoreError(f"{path}: of version {got!r}, this shardprep reads version {VERSION}; {advice}", uri=path)
        state = document.get("state")
        if (
            not isinstance(state, dict)
            or document.get("sha256") != _digest(state)
            or document.get("step") != entry.step
        ):
            raise StoreError(f"{path}: changed since it was written (its hash or step differs); {advice}", uri=path)
        return state


def _document(step: int, save: int, state: dict[str, Any]) -> bytes:
    try:
        text = _canonical(state)
        plain = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the state must be plain JSON: {error}; save what loader.state_dict() returns") from error
    if not isinstance(state, dict) or plain != state:
        raise ConfigError(
            "the state must be a dict of plain JSON values: it changes on its way through JSON (tuples, keys that are not "
            "strings); save what loader.state_dict() returns"
        )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "save": save,
        "state": state,
        "sha256": _digest(state),
    }
    data = (json.dumps(document, indent=1) + "\n").encode()
    if len(data) > SIZE_MAX_BYTES:
        raise ConfigError(
            f"the state takes {len(data)} bytes, more than {SIZE_MAX_BYTES}; save the loader's state alone, not the model's"
        )
    return data


def _canonical(state: dict[str, Any]) -> str:
    return json.dumps(state, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(state).encode()).hexdigest()
