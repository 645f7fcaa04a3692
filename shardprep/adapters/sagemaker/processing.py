"""`shardprep build` as a SageMaker Processing job: the program that runs on each of its hosts.

On one host it is the plain build. On several, the first of the sorted hosts is the head: it runs the Dask scheduler and the
build; every host runs workers. The exit code of the head is that of the build; the other hosts leave with 0 only after the
head has told them that all went well. docs/sagemaker.md has the rules, and what to do when a job fails.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from shardprep.adapters.sagemaker.guest import Guest
from shardprep.adapters.sagemaker.head import Head
from shardprep.adapters.sagemaker.hosts import Hosts, find_hosts
from shardprep.adapters.sagemaker.job_config import BuildCall, Own, ParseBuild, check_local_places, ml_root_of
from shardprep.adapters.sagemaker.message import clear_message, failure, scrubbed, stopped, success, write_message
from shardprep.adapters.sagemaker.single import Single
from shardprep.errors import ConfigError, ShardprepError
from shardprep.prep.signals import Terminated, heeding_signals

INTERRUPTED, TERMINATED = 130, 143  # what shells use for a program ended by SIGINT, or by SIGTERM


def run_processing(arguments: Sequence[str], parse_build: ParseBuild) -> int:
    """Run this host's part of the job and return its exit code; `parse_build` reads the arguments of `shardprep build`."""
    hosts = None
    ml_root = ml_root_of(arguments)
    clear_message(ml_root)
    try:
        hosts = find_hosts(ml_root)
        own, rest = _own(arguments)
        scratch = _folder_in(own.scratch)
    except ShardprepError as error:
        _say("shardprep", error.message)
        # Who is the head is not known where the file that says so cannot be used: better each host's message than none.
        if hosts is None or hosts.is_head:
            write_message(failure(error.exit_code, error.message), ml_root)
        return error.exit_code
    try:
        with heeding_signals(once=True):
            if hosts is not None and not hosts.is_head:
                return _guest(hosts, own, scratch)
            return _Work(hosts, own, scratch, rest, parse_build).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _own(arguments: Sequence[str]) -> tuple[Own, list[str]]:
    with _usage_as_error():
        return Own.parse(arguments)


def _folder_in(scratch: str) -> str:
    try:
        os.makedirs(scratch, exist_ok=True)
        return tempfile.mkdtemp(prefix="shardprep-", dir=scratch)
    except OSError as error:
        raise ConfigError(
            f"cannot make a folder for temporary files in {scratch}: {error.strerror}; --scratch names another place"
        ) from error


@contextlib.contextmanager
def _usage_as_error() -> Iterator[None]:
    """Turn argparse's exit for a wrong call into ConfigError, which gets into the exit message."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as ended:
        text = said.getvalue()
        sys.stderr.write(scrubbed(text))
        if not ended.code:
            raise
        last = (text.strip().splitlines() or ["wrong arguments"])[-1]
        raise ConfigError(last.partition("error: ")[2] or last) from ended


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _say(host: str, line: str) -> None:
    sys.stderr.write(f"{host}: {scrubbed(line)}\n")
    sys.stderr.flush()


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def _guest(hosts: Hosts, own: Own, scratch: str) -> int:
    try:
        return Guest(hosts, own, scratch, lambda line: _say(hosts.current, line)).run()
    except ShardprepError as error:
        _say(hosts.current, error.message)
        return error.exit_code
    except (KeyboardInterrupt, Terminated) as error:
        _say(hosts.current, "stopped by a signal")
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED


class _Work:
    """The head's part, or that of the only host: gather, build, tell everybody how it ended."""

    def __init__(self, hosts: Hosts | None, own: Own, scratch: str, rest: list[str], parse_build: ParseBuild) -> None:
        self._own, self._rest, self._parse = own, rest, parse_build
        self._names = hosts.names if hosts else ("localhost",)
        name = hosts.current if hosts else "localhost"
        self._began = time.monotonic()
        self._call: BuildCall | None = None
        self._printed = False

        def say(line: str) -> None:
            _say(name, line)

        self._say = say
        several = hosts is not None and len(hosts.names) > 1
        self._team: Head | Single = Head(hosts, own, scratch, say) if several and hosts else Single(own, scratch, say)

    def run(self) -> int:
        how, code, why = "failed", 1, "an error that shardprep does not know"
        try:
            how, code, why = self._ended()
        except Exception as error:
            why = f"an error that shardprep does not know ({type(error).__name__}: {error}); please report it"
            raise
        finally:
            self._finish(how, code, why)
        return code

    def _ended(self) -> tuple[str, int, str]:
        """Build, and return how it ended, the exit code and why; no signal is heeded after that."""
        try:
            try:
                return self._build()
            finally:
                _ignore_signals()
        except ShardprepError as error:
            self._say(f"shardprep: {error.message}")
            if "--json" in self._rest:
                self._print({"error": type(error).__name__, "message": scrubbed(error.message)})
            return "failed", error.exit_code, error.message
        except (KeyboardInterrupt, Terminated) as error:
            _ignore_signals()  # the exception may have come in the middle of that
            return self._stop(signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)

    def _build(self) -> tuple[str, int, str]:
        self._call = call = self._parsed()
        check_local_places(call, self._own, len(self._names))
        self._team.start(call)
        return self._judged(self._team.wait())

    def _judged(self, code: int) -> tuple[str, int, str]:
        """Return how the build ended, the exit code and the message."""
        build = self._team.build
        assert build is not None
        assert self._call is not None
        result = build.result()
        if code == 0:
            if self._call.json or self._call.dry_run:
                self._print(result)
            return "done", 0, success(result, hosts=self._team.who, seconds=time.monotonic() - self._began)
        if code in (INTERRUPTED, TERMINATED):
            return "stopped", code, stopped(signal.Signals(code - 128).name)
        why = str(result.get("message") or build.last_words)
        if code < 0:
            name = signal.Signals(-code).name
            why = f"the build was killed by {name}" + (
                ": was there too little memory on the head?" if name == "SIGKILL" else ""
            )
        if self._call.json and result:
            self._print({**result, "message": scrubbed(why)})
        code = code if code > 0 else 1
        return "failed", code, failure(code, why)

    def _stop(self, number: signal.Signals) -> tuple[str, int, str]:
        self._say(f"{number.name}: stopping")
        if self._team.stop(number) == 0:
            return self._judged(0)  # it was done before it heard
        return "stopped", 128 + number, stopped(number.name)

    def _print(self, value: dict[str, Any]) -> None:
        if not self._printed:  # a signal may have come between the printing and the end
            self._printed = True
            _print_json(value)

    def _finish(self, how: str, code: int, why: str) -> None:
        if how == "failed" and not why.startswith(("failed", "the call is wrong")):
            why = failure(code, why)
        self._say(scrubbed(why))
        if not write_message(why, self._own.ml_root):
            self._say(f"cannot write the exit message below {self._own.ml_root}")
        try:
            self._team.end(how, code, scrubbed(why))
        finally:
            self._team.close()

    def _parsed(self) -> BuildCall:
        with _usage_as_error():
            return self._parse(self._rest)
