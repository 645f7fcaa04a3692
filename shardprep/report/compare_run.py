"""A configuration run to its end, with early stopping switched off, for its evaluations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from shardprep.errors import ConfigError, ShardprepError
from shardprep.formats.environment import in_environment
from shardprep.report.compare_curve_file import Curve, read_curve
from shardprep.report.pilot_processes import POLL_S, Command, say_to_stderr
from shardprep.stopping import CURVE_VARIABLE, NEVER_STOP_VARIABLE

GRACE_S = 30.0  # what a command gets after SIGTERM


def run_to_end(
    run: Sequence[str] | Callable[[], object],
    curve: str | os.PathLike[str],
    *,
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] = say_to_stderr,
) -> Curve:
    """Run a configuration with early stopping switched off, and return its evaluations.

    run    a command, such as ["torchrun", "train.py", "--data", "subsample"], or a function; it uses
           shardprep.EarlyStopping, which then stops nowhere, and writes `curve`
    curve  path for the evaluations; must not exist yet
    env    the command's environment, os.environ unless given
    say    gets what the command prints

    Raises ConfigError if curve exists or the command cannot be started, ShardprepError if it fails or evaluates nothing.
    """
    path = os.path.abspath(os.fspath(curve))
    if os.path.exists(path):
        raise ConfigError(f"{path} exists: it may hold hours of work; compare with it as it is, or give another name")
    told = {CURVE_VARIABLE: path, NEVER_STOP_VARIABLE: "1"}
    if callable(run):
        with in_environment(told):
            run()
    else:
        _run_command(run, {**(os.environ if env is None else env), **told}, say)
    if not os.path.exists(path):
        raise ShardprepError(
            f"the run ended, and evaluated nothing: {path} is not there. Does it use shardprep.EarlyStopping, and evaluate "
            "at least once on the subsample?"
        )
    return read_curve(path)


def _run_command(command: Sequence[str], env: Mapping[str, str], say: Callable[[str], None]) -> None:
    if not command:
        raise ConfigError("no command to run")
    running = Command(command, env, say)
    try:
        while running.exit_code is None:
            time.sleep(POLL_S)
    finally:
        running.end(GRACE_S)
        running.finish_output()
    if running.exit_code:
        last = running.last_lines[-1] if running.last_lines else "it printed nothing"
        raise ShardprepError(f"{command[0]} failed with exit code {running.exit_code}: {last}")
