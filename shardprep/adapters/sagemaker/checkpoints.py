"""Checkpoints: a run's states and the files that belong to them, in a folder that somebody copies while they are written.

SageMaker copies /opt/ml/checkpoints to S3 file by file and at any moment, and after an interruption copies back what it
had (developer guide, "Use Checkpoints in Amazon SageMaker"). So a state is one small file that appears by a rename and
holds check sums: of itself, and of the model files saved with it. What was copied half is recognised, and the save
before it is used. No name holds a host or a rank, so that any host continues.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from shardprep.errors import ConfigError, StoreError
from shardprep.reader.history import StateHistory

STATE, FILES = "state", "files"  # keys of what a StateHistory keeps here


class Saved(NamedTuple):
    """A save: the step of the run, the state, the paths of its files, and the state's own path."""

    step: int
    state: dict[str, Any]
    files: tuple[str, ...]
    path: str


class Checkpoints:
    """The last few saves of a run in a folder.

    folder  on all hosts the same, such as `TrainingEnvironment.checkpoint_folder`; made when the first save comes
    rank    of this process: only rank 0 writes, since all hosts copy to one place and a state serves all ranks
    keep    how many saves stay; the files of older ones are removed with them

    States that `StateHistory` saved in this folder are read, too.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int = 0, keep: int = 3) -> None:
        if rank < 0:
            raise ConfigError(f"rank must be at least 0, got {rank}")
        self.rank = rank
        self._history = StateHistory(folder, keep)

    @property
    def folder(self) -> str:
        """Return the folder."""
        return self._history.folder

    @contextmanager
    def file(self, name: str) -> Iterator[str]:
        """Give a path to write a file to, and put the whole file under its name afterwards: for torch.save and its like.

        name: new for every save ("model-1200.pt"): a file that is replaced spoils the saves that it belonged to. Where
        the block raises, no file appears.
        """
        path = self._inside(name)
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(8)}.tmp")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def save(self, step: int, state: dict[str, Any], files: Sequence[str] = ()) -> str | None:
        """Save the state at a step of the run, and the check sums of files of this folder; return the state's path.

        step   optimizer steps so far over all epochs, say
        state  plain JSON values, such as {"reader": loader.state_dict(), "stopping": stopping.state_dict()}
        files  names of whole files in the folder, written before: `file` does

        None, and nothing is written, on other ranks than 0. Raises ConfigError or StoreError as `StateHistory.save` does.
        """
        if self.rank != 0:
            return None
        paths = [self._inside(name) for name in files]
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            raise ConfigError(f"{missing[0]} is not there: write the files of a save before it, with `file`")
        sums = [{"name": os.path.relpath(path, self.folder), **_sums(path)} for path in paths]
        before = self._files_of_saves()
        path = self._history.save(step, {STATE: state, FILES: sums})
        for name in before - self._files_of_saves():
            with suppress(
                OSError
            ):  # it went before, or is somebody's who does not let it go: no reason to stop training
                os.unlink(os.path.join(self.folder, name))
        return path

    def load(self, step: int | None = None) -> Saved | None:
        """Return the last save, or the newest at or before a step, that is whole; None if there is no save at all.

        A save that is cut, changed, or lacks one of its files is passed over, with a warning that names it and the one
        that is used. Raises StoreError if none is whole: training must not start at 0 unnoticed.
        """
        faults: list[str] = []
        for at, path, found in self._history.whole(step):
            if isinstance(found, StoreError):
                faults.append(found.message.partition("; ")[0])
                continue
            saved = self._saved(at, path, found)
            fault = next(filter(None, map(self._fault, found.get(FILES, ()) if saved.state is not found else ())), None)
            if fault is None:
                if faults:
                    warnings.warn(
                        f"{'; '.join(faults)}. The save before it is used: {path}, of step {at}", stacklevel=2
                    )
                return saved
            faults.append(f"{path}: {fault}")
        if faults:
            raise StoreError(
                f"no save is whole: {'; '.join(faults)}. Remove the folder {self.folder} (and its copy in S3) to start at 0 "
                "on purpose",
                uri=self.folder,
            )
        if step is not None:
            self._history.load(step)  # says so where there are later saves only
        return None

    def steps(self) -> list[int]:
        """Return the steps of all saves, in the order of saving."""
        return self._history.steps()

    def _inside(self, name: str) -> str:
        path = os.path.normpath(os.path.join(self.folder, name))
        if not path.startswith(self.folder + os.sep):
            raise ConfigError(f"{name}: files of a save lie in its folder {self.folder}: only that is copied")
        return path

    def _saved(self, step: int, path: str, found: dict[str, Any]) -> Saved:
        if found.keys() != {STATE, FILES}:
            return Saved(step, found, (), path)  # of a StateHistory
        files = tuple(os.path.join(self.folder, str(file["name"])) for file in found[FILES])
        return Saved(step, found[STATE], files, path)

    def _fault(self, file: dict[str, Any]) -> str | None:
        """Return what is wrong with a file of a save, or None."""
        path = os.path.join(self.folder, str(file["name"]))
        try:
            size = os.stat(path).st_size
            if size != file["bytes"]:
                return f"its file {path} has {size:,} of {file['bytes']:,} bytes"
            if _sums(path) != {key: file[key] for key in ("bytes", "sha256")}:
                return f"its file {path} was changed or damaged (its SHA-256 differs)"
        except FileNotFoundError:
            return f"its file {path} is missing"
        return None

    def _files_of_saves(self) -> set[str]:
        return {
            str(file["name"])
            for _, _, found in self._history.whole()
            if not isinstance(found, StoreError) and found.keys() == {STATE, FILES}
            for file in found[FILES]
        }


def _sums(path: str) -> dict[str, Any]:
    """Return the size and SHA-256 of a file. Raises StoreError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return {"bytes": file.tell(), "sha256": digest.hexdigest()}
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: it cannot be read ({error.strerror})", uri=path) from error


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
