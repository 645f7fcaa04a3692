"""Bytes of shards, in whatever process asks for them.

A store is opened once per process and data set. obstore's connections do not survive a fork, nor does its runtime: a
forked child that touches it hangs. So a forked child starts a helper (helper.py), a fresh process that opens the store
itself and answers over a pipe. A local folder needs none of this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from shardprep.errors import Changed, ManifestError, NotFound, StoreError
from shardprep.reader.ref import ShardRef
from shardprep.storage.retry import stop_retrying_when
from shardprep.storage.store import NO_OPTIONS, Store, local_path_of, open_store

THREADS = 16  # requests that one process waits for at once; the store's own limit decides how many are under way
_STARTED_IN = os.getpid()  # this module was imported here: a process that has it and another id is a forked child


class RangeReader(Protocol):
    """What is asked of a store, or of the helper that stands before one."""

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        ...

    def get_range(self, key: str, start: int, stop: int, *, size_bytes: int | None = None) -> bytes:
        """Return bytes start to stop (exclusive)."""
        ...

    def head(self, key: str) -> tuple[int, str]:
        """Return size in bytes and ETag."""
        ...

    def local_path(self, key: str) -> str | None:
        """Return the path of an object that is a file on this machine, else None."""
        ...


class _Process:
    """What belongs to one process: a forked child begins with nothing."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.readers: dict[tuple[str, str, tuple[tuple[str, str], ...]], RangeReader] = {}
        self.threads: ThreadPoolExecutor | None = None


_process = _Process()


def _here() -> _Process:
    global _process  # noqa: PLW0603  one a process; a child must not use the parent's
    if _process.pid != os.getpid():
        _process = _Process()
    return _process


def reader_at(uri: str, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto") -> RangeReader:
    """Return what reads a data set in this process: its store, or in a forked child a helper."""
    here = _here()
    key = (uri, kind, tuple(sorted(options.items())))
    with here.lock:
        reader = here.readers.get(key)
        if reader is None:
            reader = here.readers[key] = _opened(uri, options, kind)
        return reader


def adopt(store: Store, uri: str, options: Mapping[str, str] = NO_OPTIONS, kind: str = "auto") -> None:
    """Read this data set through a store that is open already: opening another one takes 50 ms."""
    here = _here()
    with here.lock:
        here.readers.setdefault((uri, kind, tuple(sorted(options.items()))), store)


def _opened(uri: str, options: Mapping[str, str], kind: str) -> RangeReader:
    if local_path_of(uri) is None and os.getpid() != _STARTED_IN:
        from shardprep.reader.helper import HelperReader

        return HelperReader(uri, options, kind)
    return open_store(uri, options=options, kind=kind)


def read_range(ref: ShardRef, start: int, stop: int) -> bytes:
    """Return bytes start to stop (exclusive) of a shard. Raises ManifestError where it is missing or has another size."""
    try:
        return reader_at(ref.uri, ref.options, ref.kind).get_range(
            ref.info.name, start, stop, size_bytes=ref.info.bytes
        )
    except (Changed, NotFound) as error:
        raise difference(ref, f"cannot be read as the manifest describes it ({error.message.rstrip('.')})") from error


def read_beside(ref: ShardRef, name: str, size_bytes: int) -> bytes:
    """Return a file that belongs to a shard. Raises ManifestError where it is missing or has another size."""
    try:
        return reader_at(ref.uri, ref.options, ref.kind).get_range(name, 0, size_bytes, size_bytes=size_bytes)
    except NotFound as error:
        raise ref.broken(f"lacks the file {name} that belongs to it") from error
    except Changed as error:
        raise ref.broken(f"has beside it {name} of another size than the manifest says") from error


def difference(ref: ShardRef, what: str) -> ManifestError:
    """Return the error that says how a shard differs from the manifest: missing, of another size, or `what`."""
    try:
        size_bytes = reader_at(ref.uri, ref.options, ref.kind).head(ref.info.name)[0]
    except NotFound:
        return ref.broken("is missing: the manifest names it, but nothing is there")
    except StoreError:
        return ref.broken(what)
    if size_bytes != ref.info.bytes:
        return ref.broken(f"has another size than the manifest says: {size_bytes:,} bytes, not {ref.info.bytes:,}")
    return ref.broken(what)


def local_path(ref: ShardRef) -> str | None:
    """Return the path of a shard that is a file on this machine, else None."""
    if local_path_of(ref.uri) is None:
        return None
    return reader_at(ref.uri, ref.options, ref.kind).local_path(ref.info.name)


def start_read(ref: ShardRef, start: int, stop: int, stopped: threading.Event) -> Future[bytes]:
    """Begin to read a range, and return where it will be; a local file is read at once.

    stopped: when it is set, waits between tries end, and the last error is raised.
    """
    if local_path_of(ref.uri) is None:
        here = _here()
        with here.lock:
            if here.threads is None:
                here.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shardprep-fetch-range")
        return here.threads.submit(read_until, stopped, ref, start, stop)
    done: Future[bytes] = Future()
    try:
        done.set_result(read_range(ref, start, stop))
    except Exception as error:  # noqa: BLE001  raised where the result is asked for
        done.set_exception(error)
    return done


def read_until(stopped: threading.Event, ref: ShardRef, start: int, stop: int) -> bytes:
    """Return what `read_range` returns; when `stopped` is set, waits between tries end, and the last error is raised."""
    with stop_retrying_when(stopped):
        return read_range(ref, start, stop)
