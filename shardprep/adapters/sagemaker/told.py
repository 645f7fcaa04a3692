"""What the SM_* variables and the files of a training job say, each value with its type."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from shardprep.errors import ConfigError
from shardprep.reader.pipe_channel import PIPE, fifo_path, input_data_config

NOT_DATA = frozenset({"code", "sm_drivers"})  # channels that SDK v3 adds for itself


def typed(text: str) -> Any:
    """Return a hyperparameter with its type: the value where the text is JSON, else the text itself.

    All values of a job are texts. "3", "1e-4", "true", "null" and "[1, 2]" become what they are in JSON, and
    '"adam"', quoted twice as the SDK writes it, becomes adam. "007", "True", "1_000", "NaN" and "" are not JSON and stay
    texts. The same rule as the toolkit's and the drivers', so that it does not matter which of them ran.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


class Told:
    """The SM_* variables, and behind them the files."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        self._root, self._environ = root, environ
        self._config_folder = environ.get("SM_INPUT_CONFIG_DIR") or os.path.join(root, "input", "config")
        self._data_folder = environ.get("SM_INPUT_DATA_DIR") or os.path.join(root, "input", "data")
        self._data_config: dict[str, Any] = self._variable("SM_INPUT_DATA_CONFIG", dict) or input_data_config(
            self.path("inputdataconfig.json")
        )

    def path(self, name: str) -> str:
        """Return the path of a configuration file."""
        return os.path.join(self._config_folder, name)

    def hosts(self) -> tuple[tuple[str, ...], str] | None:
        """Return all hosts, sorted, and this one; None where nothing tells them."""
        hosts, current = self._variable("SM_HOSTS", list), self._environ.get("SM_CURRENT_HOST")
        where = "SM_HOSTS and SM_CURRENT_HOST"
        if hosts is None or not current:
            where = self.path("resourceconfig.json")
            config = self._variable("SM_RESOURCE_CONFIG", dict) or self._file("resourceconfig.json")
            if config is None:
                return None
            hosts, current = config.get("hosts"), config.get("current_host")
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts) or current not in hosts:
            raise ConfigError(f"{where}: the current host {current!r} is not among the hosts {hosts!r}")
        return tuple(sorted(set(hosts))), str(current)

    def channels(self) -> Iterator[tuple[str, str]]:
        """Yield the name and folder of every channel of data."""
        names = self._variable("SM_CHANNELS", list)
        if names is None:
            names = list(self._data_config)
            told = {_spelled(name) for name in names}
            # Somebody's own variables, for a script that is tried outside SageMaker: their case is lost.
            names += [
                name.removeprefix("SM_CHANNEL_").lower()
                for name in self._environ
                if name.startswith("SM_CHANNEL_") and _spelled(name.removeprefix("SM_CHANNEL_")) not in told
            ]
        for name in sorted(map(str, names)):
            if name not in NOT_DATA:
                yield name, self._either(f"SM_CHANNEL_{name.upper()}") or os.path.join(self._data_folder, name)

    def mode(self, channel: str) -> str:
        """Return how a channel's data comes in."""
        config = self._data_config.get(channel)
        mode = config.get("TrainingInputMode") if isinstance(config, dict) else None
        if isinstance(mode, str) and mode:
            return mode
        return PIPE if _is_fifo(fifo_path(self._data_folder, channel, 0)) else "File"

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters by name."""
        decoded: dict[str, Any] | None = self._variable("SM_HPS", dict)
        if decoded is not None:
            return self._all_typed(decoded)
        values = {
            str(name): typed(value) if isinstance(value, str) else value
            for name, value in (self._file("hyperparameters.json") or {}).items()
        }
        told = {_spelled(name) for name in values}
        for name, value in values.items():
            text = self._either(f"SM_HP_{name.upper()}")
            values[name] = value if text is None else typed(text)
        for variable, text in self._environ.items():
            if variable.startswith("SM_HP_") and _spelled(variable.removeprefix("SM_HP_")) not in told:
                values[variable.removeprefix("SM_HP_").lower()] = typed(text)
        return values

    def _all_typed(self, decoded: dict[str, Any]) -> dict[str, Any]:
        """Return the values of SM_HPS: the toolkit and the drivers decode them, but its own page shows them as texts.

        A text that the file has as well was not decoded; where the file has another, such as '"3"', it was.
        """
        texts = [name for name, value in decoded.items() if isinstance(value, str) and typed(value) != value]
        if not texts:
            return decoded
        told = self._file("hyperparameters.json") or {}
        return decoded | {
            name: typed(decoded[name]) for name in texts if told.get(name, decoded[name]) == decoded[name]
        }

    def job_name(self) -> str:
        """Return the job's name."""
        return self._environ.get("TRAINING_JOB_NAME") or str(
            (self._variable("SM_TRAINING_ENV", dict) or {}).get("job_name") or ""
        )

    def _either(self, variable: str) -> str | None:
        """Return a variable in either spelling: names keep their - or . in some launchers, and have _ in others."""
        found = self._environ.get(variable)
        return self._environ.get(_spelled(variable)) if found is None else found

    def _variable(self, name: str, kind: type) -> Any:
        """Return the JSON value of a variable, or None where it is not set. Raises ConfigError if it is of another kind."""
        text = self._environ.get(name)
        if not text:
            return None
        return _value(text, kind, f"the variable {name}")

    def _file(self, name: str) -> Any:
        """Return the JSON object in a configuration file, or None where there is no file."""
        path = self.path(name)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: it cannot be read ({error})") from error
        return _value(text, dict, path)


def _value(text: str, kind: type, where: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, kind):
        what = "a JSON object" if kind is dict else "a JSON list"
        raise ConfigError(f"{where}: {what} is expected, got {type(value).__name__}")
    return value


def _spelled(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
