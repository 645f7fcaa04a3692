"""What the fork server loads once, so that every worker begins with it: modules, and the tokenizer.

A worker that is spawned imports Dask and pyarrow (0.7 s of CPU) and loads a large tokenizer (1.1 s for 150,000 words)
before it reads its first object; one that is forked from a server which did that starts in 0.1 s, shares the memory, and
is back as quickly after it died (docs/decisions/0006). The server is a fresh process that has run nothing but this.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from shardprep.errors import TokenizerError
from shardprep.formats.engines import Engine, Reference, Unusable, fast_engine
from shardprep.formats.tokenizer_file import decoded

VARIABLE = "SHARDPREP_WARM_TOKENIZER"  # path of a tokenizer.json and the backend, for the fork server alone
METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere system libraries do not bear a fork
TEMPORARY_BYTES_MAX = 75  # of the 107 that Linux allows for a socket's path, /pymp-XXXXXXXX/listener-XXXXXXXX takes 32
WORKER_ENVIRONMENT = {
    # One process per core: libraries inside must not start threads of their own.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}

_loaded: dict[str, tuple[Engine | None, Engine]] = {}


def warm_engines(fingerprint: str) -> tuple[Engine | None, Engine] | None:
    """Return the fast engine (None where there is none) and the reference for a tokenizer.json, if the server has them."""
    return _loaded.get(fingerprint)


@contextmanager
def fork_server(tokenizer: bytes | None, backend: str) -> Iterator[None]:
    """Start the fork server, if there is none yet; inside the block its tokenizer file exists: until workers are there."""
    if METHOD != "forkserver":
        yield
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
        if tokenizer is not None:
            path = Path(folder, "tokenizer.json")
            path.write_bytes(tokenizer)
            os.environ[VARIABLE] = f"{backend}:{path}"
        try:
            _ensure_running()
        finally:
            os.environ.pop(VARIABLE, None)
        yield


@contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Inside the block this thread, and the processes and threads that it starts, get no SIGINT and no SIGTERM.

    Ctrl-C, and often SIGTERM, goes to every process of a group. The driver decides what it means: workers that end by
    themselves print traces, and one that ends while it starts leaves Dask waiting for it for ever. Dask ends a worker
    over its memory limit by SIGTERM, and 0.1 s later by SIGKILL.
    """
    resource_tracker.ensure_running()  # it would unblock the signals, after starting its process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ensure_running() -> None:
    _keep_sockets_short()
    try:
        multiprocessing.forkserver.ensure_running()
    except ChildProcessError:
        # This process was forked from one that has a server, and that one's child is not ours: we need our own.
        theirs: Any = multiprocessing.forkserver._forkserver  # noqa: SLF001
        os.close(theirs._forkserver_alive_fd)  # noqa: SLF001  else it would live as long as we do
        theirs.__init__()
        theirs.set_forkserver_preload([__name__])
        theirs.ensure_running()


def _keep_sockets_short() -> None:
    """Let multiprocessing's sockets lie in /tmp where TMPDIR is too long a path for one: it would fail to start."""
    config: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001
    if config.get("tempdir") is None and len(os.fsencode(tempfile.gettempdir())) > TEMPORARY_BYTES_MAX:
        folder = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")  # made for us alone
        multiprocessing.util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
        config["tempdir"] = folder


def _warm_up() -> None:
    """Load everything; a tokenizer that cannot be loaded is left to the workers, which say why."""
    os.environ.update(WORKER_ENVIRONMENT)
    backend, _, path = os.environ.pop(VARIABLE).partition(":")
    try:
        data = Path(path).read_bytes()
        text = decoded(data)
    except (OSError, TokenizerError):
        return
    with ThreadPoolExecutor(1) as pool:  # the fast one loads without the interpreter's lock, beside the imports
        fast = pool.submit(_fast, text, backend)
        import distributed.nanny
        import distributed.worker  # noqa: F401

        import shardprep.prep.scan
        import shardprep.prep.write  # noqa: F401

        try:
            reference = Reference(text)
            _loaded[hashlib.sha256(data).hexdigest()] = (fast.result(), reference)
        except (TokenizerError, ValueError):
            return
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every shared page


def _fast(text: str, backend: str) -> Engine | None:
    if backend == "reference":
        return None
    try:
        return fast_engine(text, lambda: Reference(text))
    except Unusable:
        return None


if VARIABLE in os.environ:
    _warm_up()
