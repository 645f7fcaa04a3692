"""Checkpoints of train.py: one file each, that appears whole by a rename, and the random states in it."""

from __future__ import annotations

import os
import random
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shardprep.errors import ConfigError, Full, StoreError

_NAME = re.compile(r"step-(\d{9})\.pt")


class Checkpoints:
    """The last checkpoints of a run in a folder, and its best one. Written by rank 0 alone.

    A checkpoint is a file of torch.save, which is a zip archive: its end says what is in it and each part has a CRC-32, so one
    that was cut or changed, by a copy of the folder say, is known.

    keep  how many of the last ones stay, besides the best
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"--keep must be at least 1, got {keep}")
        self.folder, self.keep = Path(folder), keep

    def path(self, step: int) -> Path:
        """Return the file of a step's checkpoint."""
        return self.folder / f"step-{step:09d}.pt"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in order."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.pt"))
        return sorted(int(name[1]) for name in names if name)

    def save(self, step: int, state: dict[str, Any], best: int | None) -> None:
        """Save the state of a step, then remove what is neither among the last ones nor the best.

        Raises StoreError (Full) if it cannot be written; the older ones are then all there.
        """
        path = self.path(step)
        temporary = self.folder / f".{path.name}.tmp"  # one writer: what a killed one left is written over
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(self.folder)
        except (OSError, RuntimeError) as error:  # torch's writer turns some of the first into the second
            with suppress(OSError):
                temporary.unlink()
            why = error.__context__ if isinstance(error.__context__, OSError) else error
            raise Full(
                f"{path}: the checkpoint could not be written ({why}); older ones are whole", uri=str(path)
            ) from error
        steps = self.steps()
        for old in set(steps) - set(steps[-self.keep :]) - {best}:
            with suppress(FileNotFoundError):
                self.path(old).unlink()

    def newest(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that is whole, or None if there is none at all; a damaged one is left out, with a warning.

        Raises StoreError if there are some, and all are damaged: training must not start at 0 unnoticed.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.load(step)
            except StoreError as error:
                warnings.warn(f"{error}: left out, an older checkpoint is looked for", stacklevel=2)
        if steps:
            raise StoreError(
                f"{self.folder}: none of the {len(steps)} checkpoints is whole; remove them to start at step 0"
            )
        return None

    def load(self, step: int) -> dict[str, Any]:
        """Return the checkpoint of a step, its tensors on the CPU. Raises StoreError if it is damaged or not there."""
        path = self.path(step)
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged is None:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
                return state
        except Exception as error:  # where a file is damaged, readers stumble over anything
            raise StoreError(f"{path} is cut or damaged ({error})", uri=str(path)) from error
        raise StoreError(f"{path} is damaged (the check sum of {damaged} differs)", uri=str(path))


def trained_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and buffers that training changes: with LoRA the base stays out of every checkpoint."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_trained_state(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load what `trained_state` gave. Raises ConfigError if it is of another model."""
    own = trained_state(model)
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    other = {name: tuple(value.shape) for name, value in state.items()}
    if shapes != other:
        name = min(name for name in shapes.keys() | other.keys() if shapes.get(name) != other.get(name))
        raise ConfigError(
            f"the checkpoint is of another model: {name} is {other.get(name, 'not in it')} there and {shapes.get(name, 'missing')} "
            "here. Start with the --model, --labels and --lora-* of the first run, or give another folder of checkpoints"
        )
    model.load_state_dict(state, strict=False)


def random_state() -> dict[str, Any]:
    """Return the states of all random numbers of this process, in types that torch.load takes for data."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  what libraries draw from
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Go on with the random numbers of a checkpoint."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def seed_everything(*numbers: int) -> None:
    """Begin random numbers that hang on these numbers alone: seed, rank, step."""
    words = np.random.SeedSequence(numbers).generate_state(3)
    torch.manual_seed(int(words[0]))  # of the GPU too
    np.random.seed(int(words[1]))  # noqa: NPY002
    random.seed(int(words[2]))


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
