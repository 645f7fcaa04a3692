"""Fetch many objects in order, with many requests under way, while the consumer works on earlier ones.

A file system is read inline: a thread costs more than a small file. For an object store, tasks of a thread pool take
the next item, fetch it and put it into its place in the order. As many tasks run as the limit of the process allows;
they end when enough bytes wait for the consumer, and start again when it has used up half of them. So no thread ever waits
for a consumer, and one who stops early leaves nothing running.

An error of one object is a value in its place. But an outage is not the objects' fault: when 20 in a row are out of
reach and the store's root cannot be listed either, `fetch` raises Unavailable, and the job stops and can be continued.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from shardprep.errors import Denied, StoreError, Unavailable
from shardprep.storage.inflight import LARGEST, InFlight, in_flight
from shardprep.storage.retry import stop_retrying_when
from shardprep.storage.store import Store

AHEAD_BYTES = 64 << 20
OBJECT_BYTES = 512  # what a fetched object costs beside its body: bounds the number of tiny ones
PROBE_PREFIX = "_shardprep_probe_"  # a listing of one page at most, whatever the bucket holds
CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "TokenRefreshRequired",
        "InvalidToken",
        "RequestExpired",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
        "UnauthenticatedError",
        "NoCredentialsError",
        "PartialCredentialsError",
    }
)
OUTAGE_RUN = 20  # so many in a row out of reach make us ask whether the store is there at all


class Wanted(Protocol):
    """What `fetch` needs to know of an object; `byte_range` (start, stop) is looked for too, for a part of one."""

    @property
    def key(self) -> str:
        """Key below the store's root."""

    @property
    def size_bytes(self) -> int | None:
        """Size when it was listed; None where nobody knows."""

    @property
    def etag(self) -> str:
        """ETag when it was listed, "" if unknown."""


@dataclass(frozen=True, slots=True)
class Item:
    """One object to fetch, or its bytes start to stop (exclusive). An ETag of "" is not compared, nor a size of None."""

    key: str
    size_bytes: int | None
    etag: str = ""
    byte_range: tuple[int, int] | None = None


ItemT = TypeVar("ItemT", bound=Wanted)


def fetch(
    store: Store, items: Iterable[ItemT], *, ahead_bytes: int = AHEAD_BYTES, limit: InFlight | None = None
) -> Iterator[tuple[ItemT, bytes | StoreError]]:
    """Yield each item with its bytes, in the order of the items; an error, after the retries, comes as the value.

    At most `ahead_bytes` (and one object more) are fetched and not yet used. `limit` is for stores that have
    none of their own. Raises Unavailable when the store as a whole is out of reach.
    """
    if store.requests_in_flight <= 1:
        fetched = _fetch_inline(store, items)
    else:
        # Each request takes its place in the store's own limit: another one would only hold it back, and never grow.
        fetched = _fetch_ahead(store, items, ahead_bytes, getattr(store, "limit", None) or limit or in_flight())
    out_of_reach = read = 0
    for item, value in fetched:
        if isinstance(value, (Unavailable, Denied)):
            if is_of_credentials(value):
                raise value
            out_of_reach += 1
            if out_of_reach % OUTAGE_RUN == 0:
                check_reachable(store, value, read)
        else:
            out_of_reach = 0
            read += 1
        yield item, value
        last = value
    if out_of_reach and not read:
        assert isinstance(last, (Unavailable, Denied))
        if isinstance(last, Unavailable) or out_of_reach > 1:  # a single locked object says nothing of the others
            check_reachable(store, last, read)


def is_of_credentials(error: StoreError) -> bool:
    """Say whether a request was refused because of who asks, not of what for: then no object is to blame."""
    return isinstance(error, Denied) and error.fields.get("code") in CREDENTIAL_CODES


def fetch_one(store: Store, item: Wanted) -> bytes | StoreError:
    """Return the bytes of one item, or the error as a value."""
    byte_range = getattr(item, "byte_range", None)
    try:
        if byte_range is None:
            return store.get(item.key, etag=item.etag, size_bytes=item.size_bytes)
        return store.get_range(item.key, *byte_range, etag=item.etag, size_bytes=item.size_bytes)
    except StoreError as error:
        return error


def _fetch_inline(store: Store, items: Iterable[ItemT]) -> Iterator[tuple[ItemT, bytes | StoreError]]:
    for item in items:
        yield item, fetch_one(store, item)


def _fetch_ahead(
    store: Store, items: Iterable[ItemT], ahead_bytes: int, limit: InFlight
) -> Iterator[tuple[ItemT, bytes | StoreError]]:
    run = _Run(store, iter(items), ahead_bytes, limit)
    try:
        yield from run.results()
    finally:
        run.stop()


def check_reachable(store: Store, error: Unavailable | Denied, read: int) -> None:
    """Raise `error`, or Unavailable, unless it is the objects' own fault: `read` of others came through.

    Denied is the credentials' fault where nothing could be read; for Unavailable the store is asked for a listing.
    """
    if isinstance(error, Denied):
        if not read:  # not one object may be read: that is the credentials, and no reason to set all aside
            raise error
        return
    try:
        next(iter(store.list(PROBE_PREFIX)), None)
    except Unavailable as down:
        raise Unavailable(
            f"{store.uri} is out of reach: the last objects could not be read, and listing fails too ({down}). "
            "Nothing is lost: run the same command again when the store is back, and it continues.",
            uri=store.uri,
        ) from error
    except StoreError:
        return  # the store answers


class _Slot(Generic[ItemT]):
    __slots__ = ("cost", "item", "value")

    def __init__(self, item: ItemT, cost: int) -> None:
        self.item, self.cost = item, cost
        self.value: bytes | StoreError | None = None


class _Run(Generic[ItemT]):
    """One call of `fetch`: slots in order, filled by tasks that end when enough is there."""

    def __init__(self, store: Store, items: Iterator[ItemT], ahead_bytes: int, limit: InFlight) -> None:
        self._store, self._items, self._ahead_bytes, self._limit = store, items, ahead_bytes, limit
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._slots: deque[_Slot[ItemT]] = deque()
        self._ahead = 0
        self._tasks = 0
        self._is_drained = False
        self._is_awaited = False
        self._failure: BaseException | None = None
        self._stopped = threading.Event()

    def results(self) -> Iterator[tuple[ItemT, bytes | StoreError]]:
        slots = self._slots
        while True:
            with self._changed:
                if 2 * self._ahead <= self._ahead_bytes:
                    self._start_task()
                while not slots or slots[0].value is None:
                    if self._is_drained and not slots:
                        if self._failure is not None:
                            raise self._failure
                        return
                    if not self._tasks:
                        self._start_task()
                    self._is_awaited = True
                    self._changed.wait()
                slot = slots.popleft()
                self._ahead -= slot.cost
            assert slot.value is not None
            yield slot.item, slot.value

    def stop(self) -> None:
        """Start nothing more, cut short what waits for a retry, and return when no thread works on this."""
        self._stopped.set()
        with self._changed:
            while self._tasks:
                self._is_awaited = True
                self._changed.wait()

    def _start_task(self) -> None:
        if self._tasks < self._limit.current and not self._is_drained and not self._stopped.is_set():
            self._tasks += 1
            try:
                _pool().submit(self._work)
            except RuntimeError as error:  # the interpreter is ending: no thread may start any more
                self._tasks -= 1
                self._failure, self._is_drained = error, True

    def _work(self) -> None:
        slot: _Slot[ItemT] | None = None
        value: bytes | StoreError | None = None
        with stop_retrying_when(self._stopped):
            while True:
                with self._changed:
                    if slot is not None:
                        slot.value = value
                    last, slot = slot, self._take()
                    if slot is not None:
                        self._start_task()  # each starts the next, so that three objects do not start 16 tasks
                    else:
                        self._tasks -= 1
                    if self._is_awaited and (slot is None or self._slots[0] is last):
                        self._is_awaited = False
                        self._changed.notify()
                    if slot is None:
                        return
                try:
                    value = fetch_one(self._store, slot.item)
                except BaseException as error:  # noqa: BLE001  a bug: raised where the consumer is
                    with self._changed:
                        self._failure, self._is_drained, self._is_awaited = error, True, False
                        self._slots.remove(slot)
                        self._tasks -= 1
                        self._changed.notify()
                    return

    def _take(self) -> _Slot[ItemT] | None:
        if self._is_drained or self._stopped.is_set() or self._tasks > self._limit.current:
            return None
        if self._slots and self._ahead >= self._ahead_bytes:
            return None
        try:
            item = next(self._items)
        except StopIteration:
            self._is_drained = True
            return None
        except BaseException as error:  # noqa: BLE001  the caller's iterator failed: raised where the consumer is
            self._failure, self._is_drained = error, True
            return None
        byte_range = getattr(item, "byte_range", None)
        size_bytes = (item.size_bytes or 0) if byte_range is None else byte_range[1] - byte_range[0]
        slot = _Slot(item, size_bytes + OBJECT_BYTES)
        self._slots.append(slot)
        self._ahead += slot.cost
        return slot


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    pid = os.getpid()
    if pid not in _pools:  # a forked child has the parent's pool object, but none of its threads
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(LARGEST, thread_name_prefix="shardprep-fetch")
    return _pools[pid]
