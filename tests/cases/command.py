"""The real command line: in this process for speed, or as a process of its own where processes are the point."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardprep.cli import main
from tests.cases.inputs import BYTE
from tests.invariants import Dataset, assert_for_a_person, assert_not_published, assert_sound

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out)
        return value


def run(*arguments: object) -> Ran:
    """Run a command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "shardprep", *map(str, arguments)]


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment with changes (None: unset); TOKENIZERS_PARALLELISM is never set."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": None, **(changes or {})}
    return {name: value for name, value in env.items() if value is not None}


def spawn(*arguments: object, env: Mapping[str, str | None] | None = None, timeout_s: float = 300) -> Ran:
    """Run a command as a process of its own."""
    done = subprocess.run(
        command_line(*arguments), env=environment(env), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def arguments_of(source: object, output: object, flags: tuple[object, ...], *, with_ids: bool = True) -> list[object]:
    """Return the arguments of a build: the byte tokenizer, ids from `id`, serial, unless the flags say otherwise."""
    given = [source] if source is not None else []
    out: list[object] = ["build", *given, output, *flags]
    for flag, value in (("--tokenizer", BYTE), ("--id-field", "id"), ("--scheduler", "serial")):
        if flag not in flags and (with_ids or flag != "--id-field"):
            out += [flag, value]
    if "--tokenizer-backend" not in flags:
        out += ["--tokenizer-backend", "reference"]
    return out


def build(source: object, output: Path, *flags: object, with_ids: bool = True) -> Dataset:
    """Build, and return the data set after the invariants were held to it."""
    ran = run(*arguments_of(source, output, flags, with_ids=with_ids), "--json")
    assert ran.code == 0, ran.err
    dataset = assert_sound(output)
    for name in ("found", "written", "set_aside", "rows", "tokens"):
        assert ran.json[name] == dataset.ledger[name]
    assert ran.json["fingerprint"] == dataset.manifest["fingerprint"]
    return dataset


def refused(source: object, output: Path, *flags: object, code: int = 1) -> str:
    """Build what cannot be built; return what the person reads after R3 and R5 were held to it."""
    ran = run(*arguments_of(source, output, flags))
    assert ran.code == code, f"exit {ran.code}: {ran.out}{ran.err}"
    assert_for_a_person(ran.err)
    assert_not_published(output)
    return ran.err
