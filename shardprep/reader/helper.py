"""The helper of a forked child: a fresh process that opens the store and answers requests over a pipe.

A request is (number, name of the call, arguments), an answer (number, whether it is an error, value), both pickled. The
helper ends when its input ends, so with its parent, however that one dies. If it dies first, the next request starts another.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from shardprep.errors import ShardprepError, Unavailable

TRIES = 3  # helpers that one request may lose, to the out-of-memory killer for instance
THREADS = 32
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from shardprep.reader.helper import serve; serve()"


class HelperReader:
    """A store as `RangeReader`, in a process of its own. Thread-safe."""

    def __init__(self, uri: str, options: Mapping[str, str], kind: str) -> None:
        self._uri, self._opening = uri, (uri, dict(options), kind)
        self._lock = threading.Lock()
        self._helper: _Helper | None = None

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        data: bytes = self._ask("get", key)
        return data

    def get_range(self, key: str, start: int, stop: int, *, size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive)."""
        data: bytes = self._ask("get_range", key, start, stop, size_bytes=size_bytes)
        return data

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""
        found: tuple[int, str] = self._ask("head", key)
        return found

    def local_path(self, key: str) -> None:
        """Return None: local folders need no helper."""
        del key

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.end()

    def _ask(self, name: str, *args: Any, **named: Any) -> Any:
        for _ in range(TRIES):
            with self._lock:
                if self._helper is None or not self._helper.is_alive:
                    self._helper = _Helper(self._opening)
                helper = self._helper
            try:
                return helper.ask(name, args, named).result()
            except _HelperDied:
                continue
        raise Unavailable(
            f"cannot read {self._uri}: the process that fetches for this forked worker died {TRIES} times (out of memory?). "
            'Look at the system log; workers that are started with "spawn" fetch for themselves.',
            uri=self._uri,
        )


class _HelperDied(Exception):
    """The helper ended before it answered."""


class _Helper:
    """One helper process, and the thread that hands out its answers."""

    def __init__(self, opening: tuple[str, dict[str, str], str]) -> None:
        command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._number = 0
        self.is_alive = True
        self._send(opening)
        threading.Thread(target=self._receive, name="shardprep-fetch-answers", daemon=True).start()

    def ask(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Future[Any]:
        """Send a request, and return where its answer will be; _HelperDied where none will come."""
        answer: Future[Any] = Future()
        with self._lock:
            if not self.is_alive:
                raise _HelperDied
            self._number += 1
            self._waiting[self._number] = answer
            self._send((self._number, name, args, named))
        return answer

    def end(self) -> None:
        """Close the helper's input; it ends, and is waited for."""
        self._close()
        self._process.wait(10)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # what was not sent yet cannot be sent any more
            self._process.stdin.close()

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except (OSError, ValueError):  # it died, or was ended: `_receive` tells those who wait
            self.is_alive = False

    def _receive(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            try:
                while True:
                    number, is_error, value = pickle.load(answers)  # noqa: S301  from our own helper
                    with self._lock:
                        answer = self._waiting.pop(number)
                    if is_error:
                        answer.set_exception(value)
                    else:
                        answer.set_result(value)
            except (EOFError, pickle.UnpicklingError, OSError, ValueError):
                pass
        with self._lock:
            self.is_alive = False
            lost, self._waiting = self._waiting, {}
        for answer in lost.values():
            answer.set_exception(_HelperDied())
        self._close()
        self._process.wait()


def serve() -> None:
    """Answer requests from standard input on standard output until the input ends. The helper's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; its end is ours
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the answers
    requests = sys.stdin.buffer
    writing = threading.Lock()
    store = _opened(*pickle.load(requests))  # noqa: S301  from our own parent
    threads = ThreadPoolExecutor(THREADS)

    def answer(number: int, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            reply = (number, False, getattr(store, name)(*args, **named))
        except ShardprepError as error:
            reply = (number, True, error)
        except Exception as error:  # noqa: BLE001  a bug: raised where the request came from
            reply = (number, True, RuntimeError(f"{type(error).__name__}: {error}"))
        data = pickle.dumps(reply, protocol=5)
        with writing:
            _write(answers, data)

    while True:
        try:
            request = pickle.load(requests)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):
            os._exit(0)  # requests under way are nobody's any more
        threads.submit(answer, *request)


class _Refused:
    """A store that could not be opened: each call raises why."""

    def __init__(self, error: ShardprepError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _opened(uri: str, options: Mapping[str, str], kind: str) -> Any:
    from shardprep.storage.store import open_store

    try:
        return open_store(uri, options=options, kind=kind)
    except ShardprepError as error:
        return _Refused(error)


def _write(answers: BinaryIO, data: bytes) -> None:
    try:
        answers.write(data)
        answers.flush()
    except OSError:
        os._exit(0)  # nobody listens
