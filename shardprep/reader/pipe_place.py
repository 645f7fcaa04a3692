"""PipePlace: where training stands in the stream of a pipe, as a few numbers that name no rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from shardprep.errors import ConfigError
from shardprep.reader.pipe_windows import Window


@dataclass(frozen=True)
class PipePlace:
    """A place in an epoch's stream: the beginning of a step.

    window, records            windows before it, and their rows
    step                       steps before it
    window_step, window_round  steps and rounds before its window
    prefix                     digest of all rows before the window, in hex
    """

    window: int = 0
    records: int = 0
    step: int = 0
    window_step: int = 0
    window_round: int = 0
    prefix: str = ""

    def behind(self, window: Window, steps: int, rounds: int) -> PipePlace:
        """Return the beginning of the next window, after a window of so many steps and rounds."""
        prefix = hashlib.blake2b(bytes.fromhex(self.prefix) + window.digest, digest_size=16).hexdigest()
        step = self.window_step + steps
        return PipePlace(self.window + 1, self.records + window.rows, step, step, self.window_round + rounds, prefix)

    def at_step(self, step: int) -> PipePlace:
        """Return a place in the same window, before another step."""
        return replace(self, step=step)

    def document(self) -> dict[str, Any]:
        """Return all but the step as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "step"}

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> Self:
        """Return the place in a state of a pipe. Raises ConfigError if it is none."""
        where = state.get("pipe") if isinstance(state, Mapping) else None
        if isinstance(where, Mapping) and isinstance(state.get("policy"), Mapping):
            values = {**where, "step": state.get("step")}
            names = {field.name for field in fields(cls)}
            numbers = [values.get(name) for name in names - {"prefix"}]
            if values.keys() >= names and all(type(number) is int and number >= 0 for number in numbers):
                place = cls(**{name: values[name] for name in names})
                if place.window_step <= place.step and _is_hex(place.prefix):
                    return place
        raise ConfigError(
            "this is not a state of a pipe: save what its state_dict() returns. A state of Dataset.loader cannot be "
            "continued in Pipe mode, whose batches are others"
        )


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and len(text) % 2 == 0 and all(digit in "0123456789abcdef" for digit in text)
