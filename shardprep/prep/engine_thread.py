"""The engine of a job is started and ended by a thread of its own: no signal breaks its end off.

Python raises KeyboardInterrupt in the main thread, wherever that is. In the middle of closing a Dask cluster it would call
the closing off: the workers would stay, and multiprocessing wait for them for ever when the interpreter ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

from shardprep.prep.engine import Engine

LOOK_S = 1.0  # between two looks whether the thread that needs the engine is there still


@contextmanager
def engine_thread(start: Callable[[Callable[[], bool]], Engine]) -> Iterator[Callable[[], Engine]]:
    """Start an engine beside the block; yield what waits for it; end it at the end of the block, whatever happens.

    `start` is called with what tells whether the engine is still wanted.
    """
    started: Future[Engine] = Future()
    ended: Future[None] = Future()
    over, caller = threading.Event(), threading.current_thread()

    def live() -> None:
        if not started.set_running_or_notify_cancel():
            return
        try:
            engine = start(over.is_set)
        except BaseException as error:  # noqa: BLE001  raised where the engine is waited for
            ended.set_result(None)
            started.set_exception(error)
            return
        started.set_result(engine)
        while not over.wait(LOOK_S) and caller.is_alive():
            pass
        try:
            engine.close()
        except BaseException as error:  # noqa: BLE001  raised where the end is waited for
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=live, name="shardprep-engine")
    try:
        thread.start()
        yield started.result
    finally:
        over.set()
        if not started.cancel():  # else it never ran: a signal came while the thread was started
            try:
                ended.result()
            finally:
                wait([ended])  # a signal came in the wait: it goes on its way when all is over
