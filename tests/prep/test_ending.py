"""The end of a job is not broken off by signals, takes seconds, and leaves no process; and no signal is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import weakref
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from shardprep.errors import WorkerError
from shardprep.prep.engine import DaskEngine
from shardprep.prep.engine_thread import engine_thread
from shardprep.prep.signals import Terminated, heeding_signals


class Engine:
    """Says whether it was closed to the end. `closing` is called in the middle of it."""

    workers = 1

    def __init__(self, closing: Any = lambda: None) -> None:
        self.is_closed, self._closing = False, closing

    def close(self) -> None:
        self._closing()
        time.sleep(0.1)
        self.is_closed = True


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shardprep-engine"]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_in_the_end_is_raised_after_it() -> None:
    engine: Any = Engine(closing=interrupt)
    with pytest.raises(KeyboardInterrupt), heeding_signals(once=True), engine_thread(lambda _: engine) as engine_of:
        assert engine_of() is engine
    assert engine.is_closed


@pytest.mark.parametrize("is_running", [False, True])
def test_a_signal_while_the_thread_starts(is_running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if is_running or thread.name != "shardprep-engine":
            real(thread)
        if thread.name == "shardprep-engine":
            raise KeyboardInterrupt

    def make(_: Any) -> Any:
        made.append(Engine())
        return made[0]

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt), engine_thread(make):
        raise AssertionError("the thread did not start")
    for thread in engine_threads():
        thread.join(20)
    assert all(engine.is_closed for engine in made)
    assert not engine_threads()


def test_an_engine_that_does_not_start_or_end() -> None:
    def fail(*_: Any) -> Any:
        raise WorkerError("no")

    with pytest.raises(WorkerError), engine_thread(fail) as engine_of:
        engine_of()
    with engine_thread(fail):  # nobody asked for it
        pass
    engine: Any = Engine(closing=fail)
    with pytest.raises(WorkerError), engine_thread(lambda _: engine) as engine_of:
        assert engine_of() is engine


def test_workers_that_are_left_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Dask leaves them where its own end takes too long; they are deaf to what would end them with the interpreter."""
    context: Any = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    worker, other = (context.Process(target=time.sleep, args=(60,), daemon=True) for _ in range(2))
    worker.start()
    other.start()
    told: list[str] = []
    nanny = SimpleNamespace(pid=worker.pid, close_gracefully=lambda: told.append("no other worker"))

    def close(timeout: float) -> None:
        raise TimeoutError

    engine: Any = DaskEngine.__new__(DaskEngine)
    engine._quiet = ExitStack()
    engine._client = SimpleNamespace(close=lambda: told.append("client"))
    engine._cluster = SimpleNamespace(workers={0: nanny}, close=close, shutdown_on_close=True)
    engine.close()
    assert told == ["client", "no other worker"]
    assert worker.exitcode == -signal.SIGKILL
    assert other.is_alive(), "another cluster of this process goes on"
    assert not engine._cluster.shutdown_on_close
    other.kill()
    other.join()


def test_workers_are_waited_for_no_longer_than_the_job() -> None:
    engine: Any = DaskEngine.__new__(DaskEngine)
    client = SimpleNamespace(nthreads=dict)
    engine._distributed = SimpleNamespace(Client=lambda *_, **__: client)
    engine._lost = ()
    looks = iter([False, True])
    with pytest.raises(WorkerError, match="tcp://there:1 has no workers"):
        engine._connect("tcp://there:1", lambda: next(looks))


def test_a_signal_that_python_swallows_is_raised_again() -> None:
    """In a callback of a weak reference an exception is written to stderr, and that is all."""

    def callback(_: Any) -> None:
        interrupt()
        sum(range(1000))

    def lose_and_wait() -> None:
        kept = weakref.ref(threading.Event(), callback)
        time.sleep(20)
        assert kept

    with pytest.raises(KeyboardInterrupt), heeding_signals(once=True):
        lose_and_wait()


def test_whoever_waits_long_for_the_end_may_break_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardprep.prep.signals.QUIET_S", 0.0)
    with heeding_signals(once=True):
        for _ in range(2):
            with pytest.raises(Terminated):
                os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_that_ends_hears_no_second_signal() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with heeding_signals(once=True, last=True):
            pass
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        with pytest.raises(Terminated), heeding_signals(once=True, last=True):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        interrupt()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
